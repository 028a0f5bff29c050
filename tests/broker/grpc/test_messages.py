"""Stored records as messages of the gRPC protocol."""

from __future__ import annotations

import gzip
import hashlib

import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.broker.grpc import messages
from skylarkmq.broker.grpc.messages import HIDDEN, fill_message
from skylarkmq.protocol.compression import CompressionKind, compress, compression_flags
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.record import encode_record
from skylarkmq.protocol.v5.schema_pb2 import (
    DELAY,
    FIFO,
    GZIP,
    IDENTITY,
    MD5,
    NORMAL,
    PRIORITY,
    TRANSACTION,
    Message,
)
from tests.support.fake_queues import STORE_MS, Stored, record

BODY_MAX = 4 << 20
BORN_MS = STORE_MS - 1_234


def message_of(
    body: bytes = b"hello",
    properties: dict[str, str] | None = None,
    *,
    sys_flag: int = 0,
    topic: str = "orders",
    born_ms: int = BORN_MS,
    reconsume_times: int = 0,
    body_max: int = BODY_MAX,
) -> Message:
    stored = Stored(
        body,
        properties or {},
        sys_flag=sys_flag,
        born_timestamp=born_ms,
        reconsume_times=reconsume_times,
    )
    message = Message()
    fill_message(message, record(0, "%RETRY%group_orders", 3, 17, stored), topic, body_max)
    return message


def test_all_fields() -> None:
    properties = {
        "TAGS": "TagA",
        "KEYS": "k1 k2",
        "UNIQ_KEY": "01A1",
        "__SHARDINGKEY": "group-1",
        "TRACE_CONTEXT": "00-ab",
        "__BORNHOST": "192.0.2.99",
        "color": "blue",
        "größe": "L",
    }
    stored = Stored(b"hello", properties, born_timestamp=BORN_MS)
    message = Message()
    fill_message(
        message,
        memoryview(record(0, "%RETRY%group_orders", 3, 17, stored)),
        "orders",
        BODY_MAX,
        namespace="NS",
        handle="s1.handle",
        attempt=4,
    )

    assert (message.topic.name, message.topic.resource_namespace) == ("orders", "NS")
    assert message.user_properties == {"color": "blue", "größe": "L"}
    assert message.body == b"hello"
    system = message.system_properties
    assert (system.tag, list(system.keys), system.message_id) == ("TagA", ["k1", "k2"], "01A1")
    assert system.body_digest.type == MD5
    assert system.body_digest.checksum == "5D41402ABC4B2A76B9719D911017C592"
    assert (system.body_encoding, system.message_type) == (IDENTITY, FIFO)
    assert system.born_timestamp.ToMilliseconds() == BORN_MS
    assert system.store_timestamp.ToMilliseconds() == STORE_MS + 17
    assert (system.born_host, system.store_host) == ("192.0.2.99", "192.0.2.20:10911")
    assert (system.queue_id, system.queue_offset) == (3, 17)
    assert (system.receipt_handle, system.delivery_attempt) == ("s1.handle", 4)
    assert (system.message_group, system.trace_context) == ("group-1", "00-ab")
    assert not system.HasField("delivery_timestamp")
    assert not system.HasField("dead_letter_queue")


def test_what_is_not_there_is_not_set() -> None:
    system = message_of(reconsume_times=2).system_properties

    for name in ("tag", "receipt_handle", "message_group", "trace_context"):
        assert not system.HasField(name)
    assert not system.keys
    assert system.born_host == "192.0.2.20"
    assert system.message_id == f"C000021400002A9F{17:016X}"
    assert system.delivery_attempt == 3


def test_a_copy_without_an_id_of_its_producer_keeps_the_first_one() -> None:
    system = message_of(properties={"ORIGIN_MESSAGE_ID": "C0FE"}).system_properties

    assert system.message_id == "C0FE"


def test_properties_of_the_broker_are_not_the_users() -> None:
    shown = message_of(properties=dict.fromkeys(HIDDEN, "1") | {"mine": "2"}).user_properties

    assert shown == {"mine": "2"}
    assert {"__SHARDINGKEY", "__transactionId__", "TRANSACTION_CHECK_TIMES", "RETRY_TOPIC"} < HIDDEN


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({}, NORMAL),
        ({"__SHARDINGKEY": "a"}, FIFO),
        ({"TIMER_DELIVER_MS": "1", "__SHARDINGKEY": "a"}, DELAY),
        ({"TIMER_DELAY_SEC": "1"}, DELAY),
        ({"TIMER_DELAY_MS": "1"}, DELAY),
        ({"DELAY": "3"}, DELAY),
        ({"TRAN_MSG": "true", "DELAY": "3"}, TRANSACTION),
        ({"TRAN_MSG": "false"}, NORMAL),
        ({"_SYS_MSG_PRIORITY_": "3"}, PRIORITY),
        ({"_SYS_MSG_PRIORITY_": "-3"}, NORMAL),
        ({"_SYS_MSG_PRIORITY_": "3", "DELAY": "1"}, DELAY),
    ],
)
def test_types(properties: dict[str, str], kind: int) -> None:
    message = message_of(properties=properties)
    assert message.system_properties.message_type == kind
    assert not message.user_properties


@pytest.mark.parametrize("priority", [0, 7, 2**31 - 1])
def test_a_priority_is_shown_as_it_was_sent(priority: int) -> None:
    message = message_of(properties={"_SYS_MSG_PRIORITY_": str(priority)})
    assert message.system_properties.priority == priority
    assert not message_of(properties={}).system_properties.HasField("priority")


@pytest.mark.parametrize(
    ("properties", "time_ms"),
    [
        ({"TIMER_DELIVER_MS": "1700000000123"}, 1_700_000_000_123),
        ({"TIMER_DELAY_SEC": "5", "TIMER_OUT_MS": "1700000005000"}, 1_700_000_005_000),
        ({"TIMER_DELAY_SEC": "5"}, None),
        ({"TIMER_DELIVER_MS": "soon"}, None),
        ({"TIMER_DELIVER_MS": "-1"}, None),
        ({"TIMER_DELIVER_MS": "\u0663"}, None),
        ({"TIMER_DELIVER_MS": "9" * 5000}, None),
    ],
)
def test_times_of_delivery(properties: dict[str, str], time_ms: int | None) -> None:
    system = message_of(properties=properties).system_properties

    found = system.delivery_timestamp.ToMilliseconds()
    assert (found if system.HasField("delivery_timestamp") else None) == time_ms


@pytest.mark.parametrize("born_ms", [-1, -(1 << 63), (1 << 63) - 1])
def test_times_beyond_the_calendar_are_cut(born_ms: int) -> None:
    system = message_of(born_ms=born_ms).system_properties

    system.born_timestamp.ToDatetime()  # raises for a time that clients refuse
    assert system.born_timestamp.ToMilliseconds() == (253_402_300_799_999 if born_ms > 0 else 0)


@pytest.mark.parametrize("kind", CompressionKind)
def test_compressed_bodies_are_opened(kind: CompressionKind) -> None:
    opened = b"a long body " * 1000
    body = compress(opened, kind)
    message = message_of(body, sys_flag=compression_flags(kind))

    assert message.body == opened
    assert message.system_properties.body_encoding == IDENTITY
    checksum = message.system_properties.body_digest.checksum
    assert checksum == hashlib.md5(opened).hexdigest().upper()


@pytest.mark.parametrize(
    "body",
    [
        gzip.compress(b"a body", mtime=0),
        b"no zlib at all",
        compress(b"one byte more than it may have")[:-1],
        compress(bytes(1001)),
    ],
)
def test_what_cannot_be_opened_goes_out_as_it_is_stored(body: bytes) -> None:
    message = message_of(body, sys_flag=MessageSysFlag.COMPRESSED_FLAG, body_max=1000)

    assert message.body == body
    assert message.system_properties.body_encoding == GZIP
    checksum = message.system_properties.body_digest.checksum
    assert checksum == hashlib.md5(body).hexdigest().upper()


def test_a_missing_library_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lz4.frame", None)
    told: set[str] = set()
    monkeypatch.setattr(messages, "_logged", told)
    body = b"\x04\x22\x4d\x18 whatever"
    for _ in range(3):
        message = message_of(body, sys_flag=compression_flags(CompressionKind.LZ4))
        assert (message.body, message.system_properties.body_encoding) == (body, GZIP)

    assert [line.levelname for line in caplog.records] == ["WARNING"]


@pytest.mark.parametrize(
    ("properties", "origin"),
    [
        ({"DLQ_ORIGIN_TOPIC": "orders", "DLQ_ORIGIN_MESSAGE_ID": "0B"}, ("orders", "0B")),
        ({"RETRY_TOPIC": "orders", "UNIQ_KEY": "0C"}, ("orders", "0C")),
        ({"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "0D"}, ("orders", "0D")),
    ],
)
def test_dead_letters_say_where_they_come_from(
    properties: dict[str, str], origin: tuple[str, str]
) -> None:
    found = message_of(properties=properties, topic="%DLQ%group").system_properties

    assert (found.dead_letter_queue.topic, found.dead_letter_queue.message_id) == origin
    assert not message_of(properties=properties).system_properties.HasField("dead_letter_queue")


def test_hosts_of_ipv6() -> None:
    host = HostAddress("2001:db8::1", 10911).pack()
    flags = MessageSysFlag.BORNHOST_V6_FLAG | MessageSysFlag.STOREHOSTADDRESS_V6_FLAG
    data = encode_record(
        queue_id=0, flag=0, queue_offset=0, physical_offset=0, sys_flag=flags,
        born_timestamp=BORN_MS, born_host=host, store_timestamp=STORE_MS, store_host=host,
        reconsume_times=0, prepared_transaction_offset=0, body=b"b", topic=b"orders",
        properties=b"",
    )  # fmt: skip
    message = Message()
    fill_message(message, data, "orders", BODY_MAX)

    system = message.system_properties
    assert (system.born_host, system.store_host) == ("2001:db8::1", "[2001:db8::1]:10911")


def test_text_that_is_no_utf8_reaches_the_client_as_text() -> None:
    data = encode_record(
        queue_id=0, flag=0, queue_offset=0, physical_offset=0, sys_flag=0,
        born_timestamp=0, born_host=bytes(8), store_timestamp=0, store_host=bytes(8),
        reconsume_times=0, prepared_transaction_offset=0, body=b"b", topic=b"orders",
        properties=b"TAGS\x01\xff\x02name\x01\xfe",
    )  # fmt: skip
    message = Message()
    fill_message(message, data, "orders", BODY_MAX)

    read = Message.FromString(message.SerializeToString())
    assert (read.system_properties.tag, read.user_properties["name"]) == ("\ufffd", "\ufffd")


@pytest.mark.parametrize("place", [3, 88, 92])
def test_a_damaged_record_is_refused(place: int) -> None:
    data = bytearray(record(0, "orders", 0, 0, Stored(b"hello", {})))
    data[place] ^= 1

    with pytest.raises(RemoteProtocolError):
        fill_message(Message(), bytes(data), "orders", BODY_MAX)
