"""Messages: what a program may ask to send, and what it sees of one that came back."""

import copy
import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from skylarkmq.protocol.errors import LocalProtocolError
from skylarkmq.protocol.message import Message, MessageExt, MessageQueue
from skylarkmq.protocol.record import decode_message
from tests.protocol.message_vectors import IPV6_RECORD, PLAIN_RECORD, STORE


def test_the_least_message() -> None:
    message = Message("TopicTest", b"body")
    assert message.to_properties() == {}
    assert (message.body, message.keys, message.flag, message.delay_level) == (b"body", "", 0, 0)
    assert message.tags is None
    assert message.wait_store_ok


def test_everything_that_travels_as_a_property() -> None:
    message = Message(
        "TopicTest",
        "héllo",
        tags="TagA",
        keys=["k1", "", "k2"],
        properties={"n": "3", "ключ": "значение"},
        delay_level=3,
        sharding_key="user-7",
        wait_store_ok=False,
        flag=-5,
    )
    assert message.body == "héllo".encode()
    assert message.flag == -5
    assert message.to_properties() == {
        "n": "3",
        "ключ": "значение",
        "KEYS": "k1 k2",
        "TAGS": "TagA",
        "DELAY": "3",
        "__SHARDINGKEY": "user-7",
        "WAIT": "false",
    }


@pytest.mark.parametrize("body", [b"ab", bytearray(b"ab"), memoryview(b"ab"), "ab"])
def test_a_body_is_kept_as_bytes(body: Any) -> None:
    assert Message("T", body).body == b"ab"
    assert type(Message("T", body).body) is bytes


def test_a_message_keeps_what_it_was_given() -> None:
    properties = {"a": "1"}
    body = bytearray(b"ab")
    message = Message("T", body, properties=properties)
    properties["b"] = "2"
    body[0] = 0
    message.to_properties()["c"] = "3"
    assert message.to_properties() == {"a": "1"}
    assert message.body == b"ab"
    with pytest.raises(AttributeError):
        message.topic = "U"  # type: ignore[misc]


def test_equal_parts_are_equal_messages() -> None:
    one = Message("T", b"b", tags="x", properties={"a": "1"})
    other = Message("T", b"b", tags="x", properties={"a": "1"})
    assert one == other
    assert hash(one) == hash(other)
    assert one != Message("T", b"b", tags="y", properties={"a": "1"})


def test_one_text_of_keys_may_hold_several() -> None:
    assert Message("T", b"", keys="k1 k2").to_properties() == {"KEYS": "k1 k2"}


@pytest.mark.parametrize(
    "parts",
    [
        {"properties": {"KEYS": "k"}},
        {"properties": {"UNIQ_KEY": "u"}},
        {"properties": {"TRAN_MSG": "true"}},
        {"properties": {"": "v"}},
        {"properties": {"n": ""}},
        {"properties": {"n\x01": "v"}},
        {"properties": {"n\0": "v"}},
        {"properties": {"n": "v\0"}},
        {"properties": {"n": "v\x02"}},
        {"properties": {"n": "\ud800"}},
        {"tags": "a\x01b"},
        {"tags": "a\0b"},
        {"keys": "a\0"},
        {"sharding_key": "\0"},
        {"unique_key": "\0"},
        {"tags": "a\x02DELAY\x013"},
        {"keys": "a\x02b"},
        {"keys": ["a b"]},
        {"keys": ["a\tb"]},
        {"sharding_key": "a\x01"},
        {"delay_level": -1},
        {"flag": 1 << 31},
        {"flag": -(1 << 31) - 1},
        {"body": "\ud800"},
        {"priority": -1},
        {"priority": 1 << 31},
        {"priority": 1, "sharding_key": "k"},
    ],
)
def test_what_no_record_can_carry_is_refused_at_once(parts: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError):
        Message("T", **(dict[str, Any](body=b"") | parts))


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"body": None}, "bytes or text, not NoneType"),
        ({"body": 5}, "bytes or text, not int"),
        ({"body": [1, 2]}, "bytes or text, not list"),
        ({"body": {"a": 1}}, "bytes or text, not dict"),
        ({"tags": ["a"]}, "tags is text, not list"),
        ({"properties": {"n": 1}}, "property value is text, not int"),
        ({"properties": {1: "n"}}, "property name is text, not int"),
        ({"sharding_key": 3}, "sharding_key is text, not int"),
        ({"priority": "5"}, "a priority is a number, not str"),
        ({"priority": True}, "a priority is a number, not bool"),
    ],
)
def test_what_is_no_text_is_named_and_not_turned_into_something(
    parts: dict[str, Any], why: str
) -> None:
    with pytest.raises(TypeError, match=why):
        Message("T", **(dict[str, Any](body=b"") | parts))


def test_a_part_that_cannot_be_is_a_value_error_to_a_program() -> None:
    with pytest.raises(ValueError, match="only one of"):
        Message("T", b"", delay_level=3, delay=timedelta(seconds=1))


def test_queues_sort_as_in_java() -> None:
    queues = [
        MessageQueue("b", "x", 0),
        MessageQueue("a", "y", 10),
        MessageQueue("a", "y", 9),
        MessageQueue("a", "x", 11),
        MessageQueue("B", "z", 0),
    ]
    assert sorted(queues) == [queues[4], queues[3], queues[2], queues[1], queues[0]]


def message_of(record: bytes) -> MessageExt:
    return decode_message(record)


def test_a_stored_messages_names() -> None:
    message = message_of(PLAIN_RECORD)
    assert message.tags == "TagA"
    assert message.keys == "KEY0 k1"
    assert message.unique_key == "7F0000010001070DEA4E0F4A6C9A0000"
    assert message.msg_id == message.unique_key
    assert message.offset_msg_id == STORE["messages"][0]["offsetMsgId"]


def test_a_message_without_a_unique_key_goes_by_its_offset_id() -> None:
    message = message_of(IPV6_RECORD)
    assert message.unique_key is None
    assert message.msg_id == message.offset_msg_id == STORE["messages"][2]["offsetMsgId"]
    message.properties.clear()
    assert (message.tags, message.keys) == (None, "")


@pytest.mark.parametrize(
    ("parts", "name", "value"),
    [
        ({"delay": timedelta(seconds=7)}, "TIMER_DELAY_MS", "7000"),
        ({"delay": timedelta(microseconds=1)}, "TIMER_DELAY_MS", "1"),
        (
            {"deliver_at": datetime(2001, 9, 9, 1, 46, 40, 1, tzinfo=UTC)},
            "TIMER_DELIVER_MS",
            "1000000000001",
        ),
        (
            {"deliver_at": datetime(2001, 9, 9, 3, 46, 40, tzinfo=timezone(timedelta(hours=2)))},
            "TIMER_DELIVER_MS",
            "1000000000000",
        ),
    ],
)
def test_a_time_of_delivery_is_told_in_milliseconds_and_never_early(
    parts: dict[str, Any], name: str, value: str
) -> None:
    message = Message("T", b"", **parts)
    assert message.to_properties() == {name: value}
    assert message.is_timed


def test_a_delay_of_nothing_is_no_delay() -> None:
    message = Message("T", b"", delay=timedelta())
    assert message.to_properties() == {}
    assert not message.is_timed
    assert not Message("T", b"", delay_level=3).is_timed


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"delay": timedelta(seconds=-1)}, "negative"),
        ({"delay": float("nan")}, "^delay is NaN or too long$"),
        ({"delay": float("inf")}, "^delay is NaN or too long$"),
        ({"delay": 10**400}, "^delay is NaN or too long$"),
        ({"deliver_at": datetime(2030, 1, 1)}, "time zone"),
        ({"delay": timedelta(seconds=1), "delay_level": 1}, "only one"),
        ({"delay": timedelta(0), "deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}, "only one"),
    ],
)
def test_times_of_delivery_that_cannot_be(parts: dict[str, Any], why: str) -> None:
    with pytest.raises(LocalProtocolError, match=why):
        Message("T", b"", **parts)


def test_a_message_can_be_copied_pickled_and_changed_into_another() -> None:
    message = Message("T", "text", keys=["a", "b"], properties={"p": "1"})
    plain = Message("T", b"x")
    for one in (message, plain):
        assert pickle.loads(pickle.dumps(one)) == one
        assert copy.deepcopy(one) == one
    assert msgspec.structs.replace(message, topic="U").topic == "U"
    assert Message("T", b"x", properties={}) == plain
    assert dict(plain.properties) == {}
