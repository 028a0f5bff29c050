"""Tells the members of a group that it changed, without a flood.

A group of up to SMALL_GROUP members hears of every change at once, as in RocketMQ: until all have
divided the queues anew, some are read by two members or by none. A larger group hears of the first
change at once, and of what changes within the next NOTIFY_INTERVAL_S once, at its end; the interval
is PER_MEMBER_S for each member when that is longer, because each member that is told asks for the
whole list. So a thousand members that join together cost a few rounds, and not half a million
pushes. Loop thread.

Unlike RocketMQ, which tells all members of every single change however many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from skylarkmq.broker.groups.memberships import Member
from skylarkmq.common.clock import Clock

SMALL_GROUP: Final = 48
"""Members that cost at most about a thousand pushes when they all join together."""
NOTIFY_INTERVAL_S: Final = 0.1
PER_MEMBER_S: Final = 0.001

Notify = Callable[[Collection[Member], str], None]  # (members, group)


class GroupNotifier:
    """Stands between the table of groups and the pushes."""

    def __init__(
        self,
        clock: Clock,
        notify: Notify,
        members_of: Callable[[str], Collection[Member]],
    ) -> None:
        self._clock = clock
        self._notify = notify
        self._members_of = members_of
        # Large groups told of within the interval, and whether they have changed since. Invariant:
        # each has one timer, which takes it out.
        self._changed: dict[str, bool] = {}

    def changed(self, group: str) -> None:
        """Have the members that a group has now told of its change."""
        if group in self._changed:
            self._changed[group] = True
            return
        members = self._members_of(group)
        self._notify(members, group)
        if len(members) <= SMALL_GROUP:
            return
        self._changed[group] = False
        interval_s = max(NOTIFY_INTERVAL_S, PER_MEMBER_S * len(members))
        self._clock.call_at(self._clock.monotonic() + interval_s, self._look_again, group)

    def _look_again(self, group: str) -> None:
        if self._changed.pop(group):
            self.changed(group)
