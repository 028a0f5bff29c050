"""Subscriptions: tags as text and as hashes, versions, and where a new group starts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from skylarkmq.client import Consumer, MessageQueue
from skylarkmq.client.consumer.subscription import (
    WHERE_NAMES,
    Sql92,
    StartFrom,
    Subscription,
    Tag,
    check_filter,
)
from skylarkmq.client.errors import FilterRefused, RouteNotFound, SystemBusy
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.bodies.group import CheckClientRequestBody
from skylarkmq.protocol.bodies.text import decode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.client.consumer.support import Group


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


def test_times_name_their_zone() -> None:
    start = StartFrom.timestamp(datetime(2026, 1, 1, tzinfo=UTC))
    east = datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert start == StartFrom.timestamp(east)
    assert start.timestamp_ms == 1_767_225_600_000
    with pytest.raises(ValueError, match="names no time zone"):
        StartFrom.timestamp(datetime(2026, 1, 1))
    with pytest.raises(TypeError, match="is a datetime with its time zone, not 17000"):
        StartFrom.timestamp(1_700_000_000.5)  # type: ignore[arg-type]
    assert [WHERE_NAMES[each.where] for each in (StartFrom.LAST, StartFrom.FIRST, start)] == [
        "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP",
    ]  # fmt: skip


def test_an_expression_is_the_broker_s_affair() -> None:
    subscription = Subscription("orders", Sql92("n > 3"), 7)
    data = subscription.data
    assert (data.expression_type, data.sub_string, data.sub_version) == ("SQL92", "n > 3", 7)
    assert (data.tags_set, data.code_set) == ([], [])
    assert subscription.wants("any")
    with pytest.raises(ValueError, match="has an expression"):
        Sql92("  ")


async def asked(*codes: int, **settings: Any) -> None:
    """Ask two brokers, the second of which answers with the codes in turn."""
    it = Group({"orders": 1})
    other = it.cluster.broker("broker-b", {"orders": 1})
    other.refuse(RequestCode.CHECK_CLIENT_CONFIG, *codes)
    client = it.client()
    try:
        await it.wait(client.start())
        await it.wait(services_of(client).routes.refresh("orders"))
        subscription = Subscription("orders", Sql92("n > 3"), 1)
        await it.wait(check_filter(services_of(client), "billing", subscription, **settings))
        code = RequestCode.CHECK_CLIENT_CONFIG
        (request,) = [each for each in other.requests if each.code == code]
        question = decode_body(CheckClientRequestBody, request.body)
        assert question.group == "billing"
        assert question.subscription_data == subscription.data
    finally:
        await it.wait(client.stop())


async def test_every_broker_of_the_topic_is_asked_whether_it_can_filter_so() -> None:
    await asked()


@pytest.mark.parametrize(
    ("code", "hint"), [(1, "enablePropertyFilter=true"), (23, "Correct"), (3, "older than 4.1")]
)
async def test_a_refused_filter_is_told_at_once_with_what_to_do(code: int, hint: str) -> None:
    with pytest.raises(FilterRefused, match=hint) as caught:
        await asked(code)
    assert caught.value.code == code
    assert caught.value.remark == "refused by the test"


async def test_a_member_passes_over_a_broker_that_is_busy_but_not_where_pulls_carry_it() -> None:
    """An Apache broker swallows what is wrong with an expression in a pull, and sends all."""
    await asked(ResponseCode.SYSTEM_BUSY)
    with pytest.raises(SystemBusy):
        await asked(ResponseCode.SYSTEM_BUSY, inline=True)


async def test_queues_by_hand_are_not_read_before_each_broker_has_read_the_expression() -> None:
    it = Group({"orders": 1})
    it.broker.refuse(RequestCode.CHECK_CLIENT_CONFIG, ResponseCode.SUBSCRIPTION_PARSE_FAILED)
    consumer = Consumer(group="billing")
    consumer._client = it.client()
    await it.wait(consumer.start())
    queues = [MessageQueue("orders", "broker-a", 0)]
    with pytest.raises(FilterRefused, match="Correct the expression") as caught:
        await it.wait(consumer.assign(queues, Sql92("n >")))
    assert not caught.value.retryable
    with pytest.raises(RouteNotFound):
        await it.wait(consumer.assign([MessageQueue("later", "broker-a", 0)], Sql92("n > 3")))
    assert consumer.assignment() == []
    await it.wait(consumer.subscribe("orders"))
    await it.pass_time(1)
    assert consumer.assignment() == queues, "nothing has changed"
    await it.stop(consumer)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"selector": "a || b"}, r"Tag\('a', 'b'\) or Sql92"),
        ({"start_from": "first"}, r"StartFrom.LAST, NOW, FIRST or timestamp, not 'first'"),
    ],
)
def test_what_is_no_selector_and_no_start_is_refused_at_once(
    wrong: dict[str, Any], why: str
) -> None:
    with pytest.raises(TypeError, match=why):
        Consumer("orders", namesrv_addr="ns:9876", group="g", **wrong)


def test_several_topics_are_given_one_by_one() -> None:
    topics: Any = ["orders", "returns"]
    with pytest.raises(TypeError, match=r"a topic is text, not list; several .* Consumer"):
        Consumer(topics, namesrv_addr="ns:9876", group="g")
