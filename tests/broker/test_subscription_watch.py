"""Members of one group that do not subscribe to the same are found and named."""

from __future__ import annotations

import logging

import pytest

from skylarkmq.broker.groups.subscription_watch import SubscriptionWatch
from skylarkmq.protocol.bodies.group import SubscriptionData
from tests.support.manual_clock import ManualClock


def wants(*topics: str, expression: str = "*", kind: str = "TAG") -> list[SubscriptionData]:
    return [
        SubscriptionData(topic=topic, sub_string=expression, expression_type=kind)
        for topic in (*topics, "%RETRY%g")
    ]


def test_both_members_and_what_differs_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    watch = SubscriptionWatch(ManualClock())
    watch.note("g", 1, "client-a", wants("orders"))
    watch.note("g", 2, "client-b", wants("orders", "payments"))
    assert watch.differing == {"g": 2}
    (text,) = [record.getMessage() for record in caplog.records]
    for word in ("group g", "client-a", "client-b", "payments"):
        assert word in text
    caplog.clear()
    for _ in range(3):  # heartbeats that say the same
        watch.note("g", 1, "client-a", wants("orders"))
        watch.note("g", 2, "client-b", wants("orders", "payments"))
    assert not caplog.records
    watch.note("g", 2, "client-b", wants("orders", "refunds"))
    assert "refunds" in caplog.records[0].getMessage()
    assert watch.differing == {"g": 2}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (wants("T", expression="A || B"), wants("T", expression="B||A")),
        (wants("T", expression=""), wants("T", expression="*")),
        (wants("T", "U"), wants("U", "T")),
        (wants("T", kind=""), wants("T")),
    ],
)
def test_the_same_in_other_words_is_the_same(
    first: list[SubscriptionData], second: list[SubscriptionData]
) -> None:
    watch = SubscriptionWatch(ManualClock())
    watch.note("g", 1, "a", first)
    watch.note("g", 2, "b", second)
    assert not watch.differing


@pytest.mark.parametrize(
    "other",
    [
        wants("T", expression="B"),
        wants("T", expression="A", kind="SQL92"),
        wants("T", "U", expression="A"),
        [],
    ],
)
def test_other_expressions_kinds_and_topics_differ(other: list[SubscriptionData]) -> None:
    watch = SubscriptionWatch(ManualClock())
    watch.note("g", 1, "a", wants("T", expression="A"))
    watch.note("h", 1, "a", wants("T", expression="A"))
    watch.note("g", 2, "b", other)
    assert watch.differing == {"g": 2}


def test_a_group_agrees_again_when_the_other_leaves_or_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    watch = SubscriptionWatch(ManualClock())
    watch.note("g", 1, "a", wants("T"))
    watch.note("g", 2, "b", wants("U"))
    watch.gone("g", 2)
    assert not watch.differing
    assert "the same again" in caplog.records[-1].getMessage()
    watch.note("g", 2, "b", wants("U"))
    watch.note("g", 3, "c", wants("V"))
    assert watch.differing == {"g": 3}
    watch.note("g", 2, "b", wants("T"))
    watch.note("g", 3, "c", wants("T"))
    assert not watch.differing
    watch.gone("g", 4)
    for member in (1, 2, 3):
        watch.gone("g", member)
    assert not any(watch._members) and not any(watch._wishes), "who has left is forgotten"


def test_one_example_of_each_wish_without_what_all_want() -> None:
    watch = SubscriptionWatch(ManualClock())
    watch.note("g", 1, "a", wants("T", "U"))
    assert watch.examples("g") == []
    assert watch.examples("nobody") == []
    watch.note("g", 2, "b", wants("U", "T"))
    watch.note("g", 3, "c", wants("T"))
    assert watch.examples("g") == [("a", frozenset({("U", "TAG", "*")})), ("c", frozenset())]


def test_examples_are_bounded() -> None:
    watch = SubscriptionWatch(ManualClock())
    for number in range(100):
        watch.note("g", number, f"c{number}", wants(f"T{number}"))
    assert len(watch.examples("g")) == 16


def test_members_that_change_and_change_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    watch = SubscriptionWatch(clock)
    watch.note("g", 1, "a", wants("T"))
    for number in range(1000):
        watch.note("g", 2, "b", wants(f"T{number}"))
    assert len(caplog.records) == 100
    caplog.clear()
    clock.advance(10)
    watch.note("g", 2, "b", wants("U"))
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "900 such changes" in caplog.records[0].getMessage()


def test_only_a_group_that_was_said_to_differ_is_said_to_agree_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A lone member that subscribed anew was such a line, and so was one of each rolling start."""
    caplog.set_level(logging.INFO)
    watch = SubscriptionWatch(ManualClock())
    watch.note("g", 1, "a", wants("T"))
    watch.note("g", 1, "a", wants("U"))
    watch.gone("g", 1)
    assert not caplog.records
    watch.note("g", 1, "a", wants("T"))
    watch.note("g", 2, "b", wants("U"))
    watch.note("g", 2, "b", wants("T"))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "the same again" in caplog.records[1].getMessage()
