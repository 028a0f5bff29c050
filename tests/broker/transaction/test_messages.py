"""The forms of a transactional message, against those that RocketMQ's own broker has stored."""

from __future__ import annotations

import random
from typing import Any

import pytest

from skylarkmq.broker.delay.delayed_message import Parked, ParkedReader, Place
from skylarkmq.broker.transaction.messages import (
    ended_by,
    final_of,
    first_offset_of,
    given_up,
    half_of,
    op_of,
    renewed,
    resumed,
)
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.properties import decode_properties
from skylarkmq.protocol.record import encode_record
from skylarkmq.store.results import MessageInner
from tests.protocol.message_vectors import STORE
from tests.store.support import BORN, HOST, StoreRig

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"


def traced(what: str) -> dict[str, Any]:
    """The record of a running broker that is described so."""
    found: dict[str, Any] = next(row for row in STORE["brokerTrace"] if what in row["what"])
    return found


def parked(row: dict[str, Any], topic: str) -> Parked:
    """A traced record as our reader reads it."""
    reader = ParkedReader(StoreRig().store.commit_log, topic, 0)
    place = Place(row["physicalOffset"], row["size"], row["queueOffset"])
    return reader.parse(bytes.fromhex(row["recordHex"]), place)


def record_of(inner: MessageInner, row: dict[str, Any]) -> str:
    """The record of a message that is stored where and when a traced one was."""
    return encode_record(
        queue_id=inner.queue_id,
        flag=inner.flag,
        queue_offset=row["queueOffset"],
        physical_offset=row["physicalOffset"],
        sys_flag=inner.sys_flag,
        born_timestamp=inner.born_timestamp,
        born_host=inner.born_host,
        store_timestamp=row["storeTimestamp"],
        store_host=inner.store_host,
        reconsume_times=inner.reconsume_times,
        prepared_transaction_offset=inner.prepared_transaction_offset,
        body=inner.body,
        topic=inner.topic.encode(),
        properties=inner.properties,
    ).hex()


def test_a_half_message_is_that_of_rocketmq() -> None:
    row = traced("half message")
    properties = dict(row["properties"])
    sent = {name: value for name, value in properties.items() if not name.startswith("REAL_")}
    text = "\x02".join(f"{name}\x01{value}" for name, value in sent.items()).encode()
    host = HostAddress(*row["storeHost"]).pack()
    inner = half_of(MessageInner("TopicTest", 1, b"txc", text, BORN, host, 1, sys_flag=4), 0)
    assert (inner.topic, inner.queue_id, inner.sys_flag) == (HALF, 0, row["sysFlag"])
    assert decode_properties(inner.properties.decode()) == properties


def test_the_final_message_is_that_of_rocketmq_byte_for_byte() -> None:
    half, row = traced("half message"), traced("committed transaction")
    inner = final_of(parked(half, HALF), half["physicalOffset"])
    assert record_of(inner, row) == row["recordHex"]
    assert inner.tags_code == row["tagsCode"]


@pytest.mark.parametrize(("what", "offset"), [("for the commit", 0), ("for the rollback", 1)])
def test_an_op_message_is_that_of_rocketmq_byte_for_byte(what: str, offset: int) -> None:
    row = traced(what)
    inner = op_of(offset, HostAddress(*row["storeHost"]).pack(), row["bornTimestamp"])
    assert record_of(inner, row) == row["recordHex"]
    assert inner.tags_code == row["tagsCode"]
    assert ended_by(parked(row, OP)) == [offset]


def half_record(properties: bytes, **changes: Any) -> Parked:
    values: dict[str, Any] = {
        "body": b"b", "born_timestamp": 1, "born_host": BORN, "store_timestamp": 2,
        "store_host": HOST, "flag": 5, "sys_flag": 1, "reconsume_times": 0, **changes,
    }  # fmt: skip
    return Parked(properties=properties, **values)


TARGET = b"REAL_TOPIC\x01T\x02REAL_QID\x013"


def test_a_renewed_one_counts_questions_and_names_its_first_place() -> None:
    once = renewed(half_record(TARGET), 7, 1)
    assert (once.topic, once.queue_id, once.flag, once.sys_flag) == (HALF, 0, 5, 1)
    assert once.properties == (
        TARGET + b"\x02TRANSACTION_CHECK_TIMES\x011\x02TRAN_PREPARED_QUEUE_OFFSET\x017"
    )
    twice = half_record(once.properties)
    assert first_offset_of(twice, 20) == 7
    assert renewed(twice, 7, 2).properties.endswith(
        b"TRANSACTION_CHECK_TIMES\x012\x02TRAN_PREPARED_QUEUE_OFFSET\x017"
    )
    again = decode_properties(resumed(twice).properties.decode())
    assert (again["TRANSACTION_CHECK_TIMES"], again["TRAN_PREPARED_QUEUE_OFFSET"]) == ("0", "7")
    assert given_up(twice).properties == once.properties


@pytest.mark.parametrize("first", [b"20", b"21", b"-1", b"x", b"9" * 30])
def test_a_first_place_that_can_not_be_is_none(first: bytes) -> None:
    assert first_offset_of(half_record(b"TRAN_PREPARED_QUEUE_OFFSET\x01" + first), 20) == 20


@pytest.mark.parametrize(
    ("body", "tags", "offsets"),
    [
        (b"7", b"d", [7]),
        (b"7,8,9", b"d", [7, 8, 9]),
        (b"7", b"e", []),
        (b"", b"d", []),
        (b"-7", b"d", []),
        (b"x,8", b"d", [8]),
        (b"9" * 40, b"d", []),
        (b"\xff" * 10, b"d", []),
    ],
)
def test_an_op_message_ends_what_it_names(body: bytes, tags: bytes, offsets: list[int]) -> None:
    assert ended_by(half_record(b"TAGS\x01" + tags, body=body)) == offsets


def test_any_bytes_are_read_without_a_fault() -> None:
    rng = random.Random(5)
    words = [
        b"TRANSACTION_CHECK_TIMES", b"TRAN_PREPARED_QUEUE_OFFSET", b"REAL_QID", b"REAL_TOPIC",
        b"CHECK_IMMUNITY_TIME_IN_SECONDS", b"TAGS", b"\x01", b"\x02", b"1", b"-", b",", b"\xff",
    ]  # fmt: skip
    for _ in range(500):
        properties = b"".join(rng.choices(words, k=rng.randrange(12)))
        half = half_record(properties, body=b"".join(rng.choices(words, k=4)))
        ended_by(half)
        first = first_offset_of(half, 9)
        assert 0 <= first <= 9
        renewed(half, first, 1)
        try:
            final_of(half, 0)
        except ValueError:
            continue
