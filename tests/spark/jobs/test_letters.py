"""What a copy of a dead letter carries, and where it goes."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.client.producer.lanes import by_hash
from skylarkmq.protocol.compression import CompressionKind, compression_flags, decompress
from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.properties import decode_properties
from skylarkmq.spark.jobs.redrive import (
    Letter,
    age_of,
    choose_queue,
    copied_properties,
    copy_of,
)
from skylarkmq.spark.jobs.redrive_ledger import LetterKey

QUEUES = [MessageQueue("orders", broker, queue) for broker in "ab" for queue in range(3)]


def letter(offset: int = 0, sys_flag: int = 0, **properties: str) -> Letter:
    key = LetterKey("b", 0, offset, "ID")
    return Letter(key, b"x" * 100, {"RETRY_TOPIC": "orders", **properties}, 5, 7, sys_flag, 16)


def test_counters_go_and_the_rest_stays() -> None:
    given_up = letter(
        UNIQ_KEY="ID", KEYS="k", TAGS="T", own="yes", ORIGIN_MESSAGE_ID="O", RECONSUME_TIME="3",
        MAX_RECONSUME_TIMES="16", DELAY="18", REAL_TOPIC="%DLQ%g", REAL_QID="0", PGROUP="p",
        TRAN_MSG="true", CONSUME_START_TIME="1", __SHARDINGKEY="s",
    )  # fmt: skip
    assert copied_properties(given_up) == {
        "UNIQ_KEY": "ID",
        "KEYS": "k",
        "TAGS": "T",
        "own": "yes",
        "ORIGIN_MESSAGE_ID": "O",
        "__SHARDINGKEY": "s",
        "STORE_AGAIN": "true",
    }


def test_a_letter_without_an_id_gets_one_of_its_own() -> None:
    ids = {copied_properties(letter(offset))["UNIQ_KEY"] for offset in (0, 0, 1)}
    assert len(ids) == 2


def test_a_sharding_key_decides_as_at_its_producer() -> None:
    keyed = letter(__SHARDINGKEY="customer-7")
    assert choose_queue(keyed, QUEUES) == by_hash(QUEUES, "customer-7")


@given(st.integers(0, 1000))
def test_without_one_its_own_broker_in_turn(offset: int) -> None:
    chosen = choose_queue(letter(offset), QUEUES)
    assert (chosen.broker_name, chosen.queue_id) == ("b", offset % 3)
    assert choose_queue(letter(offset), QUEUES[:3]).broker_name == "a"


@pytest.mark.parametrize("kind", [None, *CompressionKind])
def test_a_body_is_compressed_as_it_was(kind: CompressionKind | None) -> None:
    old = 0 if kind is None else compression_flags(kind)
    more = MessageSysFlag.TRANSACTION_COMMIT_TYPE | MessageSysFlag.BORNHOST_V6_FLAG
    header, body = copy_of(letter(sys_flag=old | more), QUEUES[0])
    assert header.sys_flag == old
    assert decompress(body, header.sys_flag, 1000) == b"x" * 100
    assert (len(body) < 100) == (kind is not None)


def test_an_old_compression_keeps_its_bits() -> None:
    header, body = copy_of(letter(sys_flag=MessageSysFlag.COMPRESSED_FLAG), QUEUES[0])
    assert header.sys_flag == MessageSysFlag.COMPRESSED_FLAG
    assert zlib.decompress(body) == b"x" * 100


def test_the_header_of_a_copy() -> None:
    header, _ = copy_of(letter(UNIQ_KEY="ID"), QUEUES[4])
    assert (header.topic, header.broker_name, header.queue_id) == ("orders", "b", 1)
    assert (header.born_timestamp, header.flag, header.reconsume_times) == (5, 7, 0)
    assert decode_properties(header.properties or "") == {
        "UNIQ_KEY": "ID",
        "STORE_AGAIN": "true",
    }


@pytest.mark.parametrize(
    ("hours", "name"),
    [
        (-1, "under 1 hour"),
        (0, "under 1 hour"),
        (1, "under 1 day"),
        (24, "under 3 days"),
        (72, "under 7 days"),
        (168, "7 days and more"),
    ],
)
def test_ages(hours: int, name: str) -> None:
    assert age_of(hours * 3_600_000) == name
