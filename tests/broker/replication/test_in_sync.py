"""An acknowledgement waits for every replica that may lead next, while the set changes too."""

from __future__ import annotations

from skylarkmq.broker.replication.failover.in_sync import InSyncReplicas

LIMIT_S = 10.0
SILENT_S = 3.0


def of_three() -> InSyncReplicas:
    in_sync = InSyncReplicas("a", 100, ("a", "b", "c"), 7, 0.0)
    in_sync.own_end(150)
    return in_sync


def test_confirmed_is_the_smallest_durable_end() -> None:
    in_sync = of_three()
    in_sync.confirm("b", 140, 150, 1.0)
    assert in_sync.confirmed == 0 and not in_sync.holds_start, "c said nothing in this term"
    in_sync.confirm("c", 90, 150, 1.0)
    assert in_sync.confirmed == 90 and not in_sync.holds_start
    in_sync.confirm("c", 120, 150, 1.0)
    assert in_sync.confirmed == 120 and in_sync.holds_start
    in_sync.confirm("c", 110, 150, 1.0)
    assert in_sync.confirmed == 120, "it never goes back"


def test_who_leaves_is_waited_for_until_the_swap_has_succeeded() -> None:
    in_sync = of_three()
    in_sync.confirm("b", 150, 150, 11.0)
    change = in_sync.next_change(("a", "b"), 12.0, LIMIT_S, SILENT_S)
    assert change is not None
    assert change.members == {"a", "b"} and change.revision == 7
    assert in_sync.confirmed == 0 and "c" in in_sync.waited_for
    assert in_sync.next_change(("a", "b"), 13.0, LIMIT_S, SILENT_S) is None, "one change at a time"
    in_sync.observed(("a", "b", "c"), 7)
    assert in_sync.change is not None, "the revision has not moved"
    in_sync.observed(("a", "b"), 8)
    assert in_sync.confirmed == 150 and in_sync.change is None


def test_who_joins_is_waited_for_before_the_swap_and_dropped_if_it_fails() -> None:
    in_sync = InSyncReplicas("a", 100, ("a",), 7, 0.0)
    in_sync.own_end(150)
    in_sync.confirm("b", 149, 150, 1.0)
    assert in_sync.next_change(("a", "b"), 1.0, LIMIT_S, SILENT_S) is None, (
        "it has not all that is confirmed"
    )
    in_sync.confirm("b", 150, 150, 1.0)
    change = in_sync.next_change(("a", "b"), 1.0, LIMIT_S, SILENT_S)
    assert change is not None and change.members == {"a", "b"}
    in_sync.own_end(200)
    assert in_sync.confirmed == 150, "b is waited for"
    in_sync.never_happened()
    assert in_sync.confirmed == 200 and in_sync.waited_for == {"a"}


def test_who_joins_holds_the_start_of_the_term() -> None:
    """Below it an earlier master may have acknowledged, and this one does not know how far."""
    in_sync = of_three()
    in_sync.confirm("d", 99, 150, 1.0)
    assert in_sync.confirmed == 0
    assert in_sync.next_change(("a", "b", "c", "d"), 1.0, LIMIT_S, SILENT_S) is None
    in_sync.confirm("d", 100, 150, 1.0)
    change = in_sync.next_change(("a", "b", "c", "d"), 1.0, LIMIT_S, SILENT_S)
    assert change is not None and "d" in change.members


def test_nobody_joins_whose_process_is_gone() -> None:
    in_sync = of_three()
    in_sync.confirm("d", 150, 150, 1.0)
    assert in_sync.next_change(("a", "b", "c"), 1.0, LIMIT_S, SILENT_S) is None


def test_a_member_that_keeps_up_stays_though_it_is_never_at_the_end() -> None:
    in_sync = of_three()
    in_sync.confirm("c", 150, 150, 0.0)
    for second in range(30):
        end = 150 + 10 * second
        in_sync.confirm("b", end, end + 10, float(second))
        in_sync.confirm("c", 150, end + 10, float(second))
    change = in_sync.next_change(("a", "b", "c"), 30.0, LIMIT_S, SILENT_S)
    assert change is not None and change.members == {"a", "b"}, "c alone hangs behind"


def test_a_member_whose_process_is_gone_leaves_sooner() -> None:
    in_sync = of_three()
    in_sync.confirm("b", 150, 150, 2.0)
    in_sync.confirm("c", 150, 150, 2.0)
    assert in_sync.next_change(("a", "b"), 5.0, LIMIT_S, SILENT_S) is None, "c was heard just now"
    in_sync.confirm("b", 150, 150, 5.0)
    change = in_sync.next_change(("a", "b"), 5.1, LIMIT_S, SILENT_S)
    assert change is not None and change.members == {"a", "b"}


def test_a_member_that_says_good_bye_leaves_at_once_until_it_greets_again() -> None:
    in_sync, all_live = of_three(), ("a", "b", "c")
    for other in ("b", "c"):
        in_sync.confirm(other, 150, 150, 5.0)
    in_sync.own_end(160)
    in_sync.confirm("b", 160, 160, 5.0)
    in_sync.said_good_bye("c")
    change = in_sync.next_change(all_live, 5.0, LIMIT_S, SILENT_S)
    assert change is not None and change.members == {"a", "b"}
    assert in_sync.confirmed == 150, "it is waited for until the swap has succeeded"
    in_sync.observed(("a", "b"), 8)
    assert in_sync.confirmed == 160
    in_sync.confirm("c", 160, 160, 5.0)
    assert in_sync.next_change(all_live, 5.0, LIMIT_S, SILENT_S) is None, "it is leaving"
    in_sync.greeted("c")
    change = in_sync.next_change(all_live, 5.0, LIMIT_S, SILENT_S)
    assert change is not None and change.members == {"a", "b", "c"}


def test_a_member_that_is_gone_before_it_said_anything_in_this_term_leaves_at_once() -> None:
    """So does a master that has handed over and stops."""
    in_sync = of_three()
    in_sync.confirm("b", 150, 150, 0.1)
    assert in_sync.next_change(("a", "b", "c"), 0.1, LIMIT_S, SILENT_S) is None
    change = in_sync.next_change(("a", "b"), 0.1, LIMIT_S, SILENT_S)
    assert change is not None and change.members == {"a", "b"}
