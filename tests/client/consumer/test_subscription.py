"""Subscriptions: tags as text and as hashes, versions, and where a new group starts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from skylarkmq.client.consumer.start_from import StartFrom
from skylarkmq.client.consumer.subscription import Subscription, Tag


@pytest.mark.parametrize(
    ("tag", "tags", "expression"),
    [
        (Tag("A"), ("A",), "A"),
        (Tag("A", "B"), ("A", "B"), "A || B"),
        (Tag(" A||B  ||A "), ("A", "B"), "A || B"),
        (Tag("*"), (), "*"),
        (Tag("A", "*"), (), "*"),
    ],
)
def test_tags(tag: Tag, tags: tuple[str, ...], expression: str) -> None:
    assert (tag.tags, tag.expression) == (tags, expression)


@pytest.mark.parametrize("nothing", [(), ("",), (" || ",)])
def test_a_selector_selects_something(nothing: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="at least one tag"):
        Tag(*nothing)


def test_the_subscription_carries_java_s_hashes() -> None:
    subscription = Subscription("t", Tag("TagA", "TagQ-overflow"), 17)
    assert subscription.data.code_set == [2598919, -1876444936]
    assert subscription.data.sub_version == 17
    assert subscription.wants("TagA")
    assert not subscription.wants("TagB")
    assert not subscription.wants(None)


def test_without_a_selector_everything_is_wanted() -> None:
    subscription = Subscription("t", None, 1)
    assert (subscription.data.sub_string, subscription.data.code_set) == ("*", [])
    assert subscription.wants(None)
    assert subscription.wants("A")


def test_times_without_a_zone_are_utc() -> None:
    naive = StartFrom.timestamp(datetime(2026, 1, 1))
    assert naive == StartFrom.timestamp(datetime(2026, 1, 1, tzinfo=UTC))
    east = datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert naive == StartFrom.timestamp(east)
    assert naive.timestamp_ms == 1_767_225_600_000
    assert [each.wire_name for each in (StartFrom.LAST, StartFrom.FIRST, naive)] == [
        "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP",
    ]  # fmt: skip
