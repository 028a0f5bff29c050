"""Changes of groups are told at once when rare, and bundled when many."""

from __future__ import annotations

from typing import Any

from skylarkmq.broker.groups.group_notifier import SMALL_GROUP, GroupNotifier
from tests.support.manual_clock import ManualClock


class Rig:
    def __init__(self, members: int = 0) -> None:
        self.clock = ManualClock()
        self.members: list[Any] = [object() for _ in range(members)]
        self.pushes = 0
        self.rounds: list[tuple[str, int]] = []
        self.notifier = GroupNotifier(self.clock, self._notify, lambda _: list(self.members))

    def _notify(self, members: Any, group: str) -> None:
        self.pushes += len(members)
        self.rounds.append((group, len(members)))

    def join(self, group: str = "g") -> None:
        self.members.append(object())
        self.notifier.changed(group)


def test_a_small_group_hears_of_every_change_at_once() -> None:
    """As in RocketMQ: while members divide by different lists, they share queues."""
    rig = Rig()
    for _ in range(SMALL_GROUP):
        rig.join()
    assert rig.rounds == [("g", size) for size in range(1, SMALL_GROUP + 1)]
    assert rig.clock.pending_count == 0


def test_a_large_group_hears_of_a_single_change_at_once() -> None:
    rig = Rig(members=SMALL_GROUP)
    rig.join()
    assert rig.rounds == [("g", SMALL_GROUP + 1)]
    rig.clock.advance(5.0)
    assert len(rig.rounds) == 1
    assert rig.clock.pending_count == 0
    rig.join()
    assert rig.rounds[1:] == [("g", SMALL_GROUP + 2)]


def test_what_follows_soon_is_told_together_to_all_who_are_there_then() -> None:
    rig = Rig(members=SMALL_GROUP)
    for _ in range(3):
        rig.join()
    rig.members.pop()
    assert rig.rounds == [("g", SMALL_GROUP + 1)]
    rig.clock.advance(0.1)
    assert rig.rounds[1:] == [("g", SMALL_GROUP + 2)]
    rig.clock.advance(1.0)
    assert len(rig.rounds) == 2


def test_a_thousand_members_at_once_do_not_cost_half_a_million_pushes() -> None:
    rig = Rig()
    for _ in range(1000):
        rig.join()
        rig.clock.advance(0.001)
    rig.clock.advance(1.0)
    assert rig.rounds[-1] == ("g", 1000), "the last word is told to all"
    assert rig.pushes < 12_000


def test_a_large_group_hears_less_often() -> None:
    rig = Rig(members=499)
    rig.join()
    rig.join()
    rig.clock.advance(0.4)
    assert len(rig.rounds) == 1
    rig.clock.advance(0.2)
    assert rig.rounds[-1] == ("g", 501)


def test_groups_do_not_wait_for_each_other() -> None:
    rig = Rig()
    rig.join("g")
    rig.join("h")
    assert [group for group, _ in rig.rounds] == ["g", "h"]
