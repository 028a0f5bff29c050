"""Namespaces: names of topics and groups, wrapped and unwrapped as RocketMQ does it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.client.namespace import Namespace
from skylarkmq.protocol.message import MessageQueue

SHOP = Namespace("shop")
PAIRS = [
    ("orders", "shop%orders"),
    ("%RETRY%billing", "%RETRY%shop%billing"),
    ("%DLQ%billing", "%DLQ%shop%billing"),
    ("a%b", "shop%a%b"),
    ("%odd", "shop%%odd"),
]
SYSTEM = ["TBW102", "RMQ_SYS_TRACE_TOPIC", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "CID_RMQ_SYS_TRANS"]


@pytest.mark.parametrize(("plain", "wrapped"), PAIRS)
def test_names_are_wrapped_and_unwrapped(plain: str, wrapped: str) -> None:
    assert SHOP.wrap(plain) == wrapped
    assert SHOP.wrap(wrapped) == wrapped, "once is enough"
    assert SHOP.unwrap(wrapped) == plain
    assert SHOP.holds(wrapped)


@pytest.mark.parametrize("name", [*SYSTEM, ""])
def test_names_of_the_broker_itself_stay(name: str) -> None:
    assert SHOP.wrap(name) == name
    assert SHOP.unwrap(name) == name


@pytest.mark.parametrize("name", ["orders", "other%orders", "%RETRY%other%g", "shopping%orders"])
def test_what_is_of_another_namespace_stays_whole(name: str) -> None:
    assert SHOP.unwrap(name) == name
    assert not SHOP.holds(name)


@pytest.mark.parametrize("nothing", [None, ""])
def test_the_empty_namespace_changes_nothing(nothing: str | None) -> None:
    namespace = Namespace(nothing)
    queue = MessageQueue("shop%orders", "broker-a", 1)
    assert not namespace
    assert namespace.wrap("orders") == "orders"
    assert namespace.unwrap("shop%orders") == "shop%orders"
    assert namespace.wrap_queue(queue) is queue
    assert namespace.unwrap_queue(queue) is queue
    assert namespace.holds("anything")


def test_queues_keep_broker_and_number() -> None:
    wrapped = SHOP.wrap_queue(MessageQueue("orders", "broker-a", 3))
    assert wrapped == MessageQueue("shop%orders", "broker-a", 3)
    assert SHOP.unwrap_queue(wrapped) == MessageQueue("orders", "broker-a", 3)


@pytest.mark.parametrize("name", ["a%b", "a b", "x" * 65, "../x", "a\n"])
def test_a_namespace_has_a_name_that_topics_may_have(name: str) -> None:
    with pytest.raises(ValueError, match="is no namespace"):
        Namespace(name)


@given(st.text(alphabet="abcXYZ019_-|", min_size=1, max_size=40))
def test_unwrapping_undoes_wrapping(topic: str) -> None:
    assert SHOP.unwrap(SHOP.wrap(topic)) == topic
