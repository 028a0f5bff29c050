"""Whom a master waits for before it acknowledges, in one term. No I/O, no clock.

    members      the replicas in sync, as `state` says them; any of them may lead next
    waited for   the members, and those of a change of the set whose outcome is not known yet
    confirmed    the smallest end of what each of those waited for has stored; it never goes back

The rules that keep an acknowledged record on every replica that may lead:

- Shrinking: who leaves is waited for until the swap that drops it is seen to have succeeded. For
  one that says good-bye the swap is due at once, for others when they were silent for a while.
- Growing: who joins has everything that was confirmed, and at least the start of the term, below
  which earlier masters may have acknowledged. It is waited for from before the swap is tried.
- A change is settled only by a revision of `state` other than the one that it started from. Until
  then it may still happen, so both sets are waited for, and the same change is tried again.

What a replica confirmed in an earlier term does not count: its log may have been another one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SetChange:
    """A change of the set that is under way, from the state at `revision`."""

    revision: int
    members: frozenset[str]


@dataclass(slots=True)
class _Follower:
    """What one other replica said in this term."""

    durable_end: int
    caught_up_s: float  # when it last held everything that there was a report earlier
    reported_s: float
    log_end: int  # of the master, at its last report


class InSyncReplicas:
    """The set of one master in one term.

    Times are seconds of the master's monotonic clock.
    """

    def __init__(
        self, me: str, start: int, members: Collection[str], revision: int, now_s: float
    ) -> None:
        self._me = me
        self._start = start
        self._revision = revision
        self._now_s = now_s
        self._followers: dict[str, _Follower] = {}
        self._leaving: set[str] = set()  # said good-bye, and have not greeted since
        self._own_end = 0
        self.members = frozenset(members)
        self.change: SetChange | None = None
        # Invariant: every member that `state` may name has stored all bytes below it.
        self.confirmed = 0

    @property
    def waited_for(self) -> frozenset[str]:
        """Whose confirmation an acknowledgement needs."""
        return self.members if self.change is None else self.members | self.change.members

    @property
    def holds_start(self) -> bool:
        """Whether all that earlier masters may have shown or acknowledged is confirmed again."""
        return self.confirmed >= self._start

    def own_end(self, durable_end: int) -> None:
        """The master's own log is stored up to here."""
        self._own_end = durable_end
        self._advance()

    def confirm(self, replica: str, durable_end: int, log_end: int, now_s: float) -> None:
        """A follower has stored the master's log up to `durable_end`, in this term.

        Args:
            log_end: of the master's log now.
        """
        found = self._followers.get(replica)
        if found is None:
            found = self._followers[replica] = _Follower(0, self._now_s, now_s, log_end)
        found.durable_end = max(found.durable_end, durable_end)
        if durable_end >= log_end:
            found.caught_up_s = now_s
        elif durable_end >= found.log_end:
            found.caught_up_s = max(found.caught_up_s, found.reported_s)
        found.reported_s, found.log_end = now_s, log_end
        self._advance()

    def greeted(self, replica: str) -> None:
        """A follower asks to be fed: it is no longer one that leaves."""
        self._leaving.discard(replica)

    def said_good_bye(self, replica: str) -> None:
        """A follower stops, and confirms nothing more."""
        self._leaving.add(replica)

    def durable_end(self, replica: str) -> int:
        """What this replica confirmed in this term; 0 for nothing."""
        if replica == self._me:
            return self._own_end
        found = self._followers.get(replica)
        return 0 if found is None else found.durable_end

    def _advance(self) -> None:
        ends = [self.durable_end(replica) for replica in self.waited_for]
        self.confirmed = max(self.confirmed, min(ends))

    def next_change(
        self, alive: Collection[str], now_s: float, not_caught_up_s: float, silent_s: float
    ) -> SetChange | None:
        """Begin the change of the set that is due, if one is, and return it.

        Args:
            alive: replicas whose process is known to run.
            not_caught_up_s: a member that was behind for this long leaves.
            silent_s: so does one that is not alive, and has said nothing for this long, or nothing
                at all in this term, as a master that has handed over and stops.
        """
        if self.change is not None:
            return None
        stay = frozenset(
            replica
            for replica in self.members
            if replica == self._me
            or (
                replica not in self._leaving
                and now_s - self._caught_up_s(replica) <= not_caught_up_s
                and (replica in alive or self._was_heard(replica, now_s - silent_s))
            )
        )
        join = frozenset(
            replica
            for replica, found in self._followers.items()
            if replica in alive
            and replica not in self._leaving
            and now_s - found.caught_up_s <= not_caught_up_s
            and self._may_join(replica)
        )
        if stay | join == self.members:
            return None
        return self._begin(stay | join)

    def _may_join(self, replica: str) -> bool:
        return self.durable_end(replica) >= max(self.confirmed, self._start)

    def _begin(self, members: frozenset[str]) -> SetChange:
        # Before the swap is tried: from here on a joiner is waited for.
        self.change = SetChange(self._revision, members)
        return self.change

    def _caught_up_s(self, replica: str) -> float:
        found = self._followers.get(replica)
        return self._now_s if found is None else found.caught_up_s

    def _was_heard(self, replica: str, since_s: float) -> bool:
        found = self._followers.get(replica)
        return found is not None and found.reported_s >= since_s

    def observed(self, members: Collection[str], revision: int) -> None:
        """`state`, still of this term, was read: it settles a change if its revision moved."""
        if revision <= self._revision:
            return
        self._revision = revision
        self.members = frozenset(members)
        self.change = None
        self._advance()

    def never_happened(self) -> None:
        """The change that is under way can no longer happen, and did not: it is dropped."""
        self.change = None
        self._advance()
