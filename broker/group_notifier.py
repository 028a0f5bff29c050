"""Tells the members of a group that it changed, without a flood.

The first change is told at once. What changes within the next NOTIFY_INTERVAL_S is told once, at
its end, to who is a member then; in a large group the interval is longer, PER_MEMBER_S for each,
because each member that is told asks for the whole list. So a thousand members that join together
cost a few rounds, and not half a million pushes. Loop thread.

Unlike RocketMQ, which tells all members of every single change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from skylarkmq.broker.connection import Connection
from skylarkmq.protocol.clock import Clock

NOTIFY_INTERVAL_S: Final = 0.1
PER_MEMBER_S: Final = 0.001

Notify = Callable[[Collection[Connection], str], None]  # (members, group)
MembersOf = Callable[[str], Collection[Connection]]


class GroupNotifier:
    """Stands between the table of groups and the pushes."""

    def __init__(self, clock: Clock, notify: Notify) -> None:
        self.members_of: MembersOf = lambda group: ()
        self._clock = clock
        self._notify = notify
        # Groups told of within the interval, and whether they have changed since. Invariant: each
        # has one timer, which takes it out.
        self._changed: dict[str, bool] = {}

    def changed(self, members: Collection[Connection], group: str) -> None:
        """The group has changed; `members` are those that it has now."""
        if group in self._changed:
            self._changed[group] = True
            return
        self._tell(members, group)

    def _tell(self, members: Collection[Connection], group: str) -> None:
        self._notify(members, group)
        self._changed[group] = False
        interval_s = max(NOTIFY_INTERVAL_S, PER_MEMBER_S * len(members))
        self._clock.call_at(self._clock.monotonic() + interval_s, self._look_again, group)

    def _look_again(self, group: str) -> None:
        if self._changed.pop(group):
            self._tell(self.members_of(group), group)
