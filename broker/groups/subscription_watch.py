"""Groups whose members do not want the same: found, logged once a change, and counted.

RocketMQ keeps one subscription for a group, the last heartbeat's. Members that differ therefore
take each other's messages away: each heartbeat replaces what the others asked for, and what no
member of a queue wants is never delivered. Such a group works for a moment during a rolling change
and is broken otherwise, so it is worth a warning with the names of both clients.

A member's wish is its set of (topic, kind of expression, expression); tags count as a set. Members
that wish alike share one object. Loop thread.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Hashable
from typing import Final

from skylarkmq.broker.base.token_bucket import TokenBucket
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.bodies.group import SubscriptionData
from skylarkmq.protocol.errors import shown
from skylarkmq.protocol.flags import is_retry_topic

log = logging.getLogger(__name__)

Wish = frozenset[tuple[str, str, str]]  # (topic, kind of expression, expression)

SHOWN_DIFFERENCES: Final = 3
EXAMPLES_MAX: Final = 16
# A large group that is rolled over to another version differs at each step.
WARNINGS_BURST: Final = 100.0
WARNINGS_PER_S: Final = 0.2
EXPRESSION_TAG: Final = "TAG"
SUBSCRIBE_ALL: Final = "*"


class SubscriptionWatch:
    """What each member of each group wants, by whatever identifies the member."""

    def __init__(self, clock: Clock) -> None:
        self._bucket = TokenBucket(clock, WARNINGS_BURST, WARNINGS_PER_S)
        self._members: dict[str, dict[Hashable, tuple[str, Wish]]] = {}  # group -> member -> wish
        self._wishes: dict[str, Counter[Wish]] = {}
        self._logged: set[str] = set()  # groups that were said to differ, and still do

    @property
    def differing(self) -> dict[str, int]:
        """Groups whose members differ, with the number of different wishes."""
        return {group: len(wishes) for group, wishes in self._wishes.items() if len(wishes) > 1}

    def examples(self, group: str) -> list[tuple[str, Wish]]:
        """Return a client for each wish of a group that differs, EXAMPLES_MAX at most; else none.

        The wishes are without what all members want.
        """
        wishes = self._wishes.get(group)
        if wishes is None or len(wishes) < 2:
            return []
        clients: dict[Wish, str] = {}
        for client_id, wish in self._members[group].values():
            clients.setdefault(wish, client_id)
            if len(clients) == EXAMPLES_MAX:
                break
        first, *others = clients
        shared = first.intersection(*others)
        return [(client_id, wish - shared) for wish, client_id in clients.items()]

    def note(
        self, group: str, member: Hashable, client_id: str, wanted: Collection[SubscriptionData]
    ) -> None:
        """Take in one heartbeat's word, and log when it is new and another member differs."""
        wish = _wish(wanted)
        members = self._members.setdefault(group, {})
        known = members.get(member)
        if known is not None and known[1] == wish:
            return
        wishes = self._wishes.setdefault(group, Counter())
        for same in wishes:
            if same == wish:
                wish = same
                break
        members[member] = client_id, wish
        wishes[wish] += 1
        if known is not None:
            self._forget(group, known[1])
        self._tell(group, client_id, wish)

    def gone(self, group: str, member: Hashable) -> None:
        """Forget a member that has left."""
        members = self._members.get(group)
        known = members.pop(member, None) if members is not None else None
        if known is None:
            return
        self._forget(group, known[1])
        if not members:
            del self._members[group]
            del self._wishes[group]
            self._logged.discard(group)

    def _forget(self, group: str, wish: Wish) -> None:
        wishes = self._wishes[group]
        wishes[wish] -= 1
        if not wishes[wish]:
            del wishes[wish]
            if len(wishes) == 1 and group in self._logged:
                self._logged.discard(group)
                log.info("group %s: all members subscribe to the same again", group)

    def _tell(self, group: str, client_id: str, wish: Wish) -> None:
        if len(self._wishes[group]) < 2 or not self._bucket.take():
            return
        self._logged.add(group)
        if left_out := self._bucket.left_out():
            log.warning("%d such changes of groups were left out of this log", left_out)
        other, theirs = next(known for known in self._members[group].values() if known[1] != wish)
        log.warning(
            "group %s: its members differ: %s subscribes to %s, %s to %s; the broker keeps the "
            "last heartbeat's word, so messages are lost to both: give each its own group",
            group,
            shown(client_id),
            _text(wish - theirs),
            shown(other),
            _text(theirs - wish),
        )


def _wish(wanted: Collection[SubscriptionData]) -> Wish:
    return frozenset(
        (data.topic, data.expression_type or EXPRESSION_TAG, _expression(data))
        for data in wanted
        if not is_retry_topic(data.topic)
    )


def _expression(data: SubscriptionData) -> str:
    if data.expression_type not in ("", EXPRESSION_TAG):
        return data.sub_string
    tags = sorted({tag for part in data.sub_string.split("||") if (tag := part.strip())})
    return " || ".join(tags) or SUBSCRIBE_ALL


def _text(wish: Wish) -> str:
    parts = [
        f"{topic} ({shown(expression)})"
        for topic, _, expression in sorted(wish)[:SHOWN_DIFFERENCES]
    ]
    more = len(wish) - SHOWN_DIFFERENCES
    return ", ".join(parts) + (f" and {more} more" if more > 0 else "") if parts else "less"
