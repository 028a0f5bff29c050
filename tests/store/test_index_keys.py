"""What a message is found by."""

from __future__ import annotations

import random

import pytest

from skylarkmq.protocol.record import encode_record, read_record
from skylarkmq.protocol.tags_code import index_key_hash, topic_prefix_code
from skylarkmq.store.index.keys import ENTRY, ENTRY_SIZE, add_entries, message_keys, record_entries
from tests.protocol.message_vectors import STORE
from tests.store.support import BORN, HOST
from tests.support.index_files import key_hash


def entries_of(properties: bytes, topic: str = "T") -> bytearray:
    entries = bytearray()
    add_entries(entries, [(topic_prefix_code(topic), properties, 7)], 1234)
    return entries


def hashes(properties: bytes, topic: str = "T") -> list[int]:
    return [code for code, _, _ in ENTRY.iter_unpack(entries_of(properties, topic))]


@pytest.mark.parametrize(
    ("properties", "keys"),
    [
        (b"", []),
        (b"TAGS\x01a\x02", []),
        (b"UNIQ_KEY\x017F00\x02", [b"7F00"]),
        (b"UNIQ_KEY\x017F00", [b"7F00"]),
        (b"KEYS\x01one\x02UNIQ_KEY\x017F00\x02", [b"7F00", b"one"]),
        (b"KEYS\x01one two  one \x02", [b"one", b"two", b"one"]),
        (b"KEYS\x01\x02UNIQ_KEY\x01\x02", []),
        (b"KEYS\x01 \x02", []),
        (b"MYKEYS\x01no\x02", []),
        (b"MY_UNIQ_KEY\x01no\x02KEYS\x01yes", [b"yes"]),
        (b"KEYS\x01one\x02XKEYS\x01no\x02", [b"one"]),
        (b"NOTE\x01KEYS\x02KEYS\x01k", [b"k"]),
        ("KEYS\x01订单-1 \U0001f600\x02".encode(), ["订单-1".encode(), "\U0001f600".encode()]),
    ],
)
def test_keys_of_live_and_of_read_messages_are_the_same(
    properties: bytes, keys: list[bytes]
) -> None:
    assert message_keys(properties) == keys
    assert hashes(properties) == [key_hash(f"T#{key.decode()}") for key in keys]
    record = bytearray(encode_record(
        queue_id=0, flag=0, queue_offset=0, physical_offset=7, sys_flag=0, born_timestamp=1,
        born_host=BORN, store_timestamp=1234, store_host=HOST, reconsume_times=0,
        prepared_transaction_offset=0, body=b"x", topic=b"T", properties=properties,
    ))  # fmt: skip
    assert record_entries(read_record(record, 0)) == entries_of(properties)


@pytest.mark.parametrize(("sys_flag", "count"), [(0, 1), (4, 1), (8, 1), (12, 0)])
def test_a_rollback_is_not_found_but_a_half_message_is(sys_flag: int, count: int) -> None:
    record = encode_record(
        queue_id=0, flag=0, queue_offset=0, physical_offset=0, sys_flag=sys_flag, born_timestamp=1,
        born_host=BORN, store_timestamp=1234, store_host=HOST, reconsume_times=0,
        prepared_transaction_offset=0, body=b"x", topic=b"T", properties=b"KEYS\x01k",
    )  # fmt: skip
    assert len(record_entries(read_record(record, 0))) == count * ENTRY_SIZE


def test_golden_hashes() -> None:
    for golden in STORE["javaStringHash"]:
        assert key_hash(golden["text"]) == golden["indexKeyHash"], "the tests' own"
        topic, cut, key = golden["text"].partition("#")
        if cut:
            assert hashes(b"KEYS\x01" + key.encode(), topic) == [golden["indexKeyHash"]]
            assert hashes(b"UNIQ_KEY\x01" + key.encode(), topic) == [golden["indexKeyHash"]]


def test_hashes_of_any_key_are_those_of_the_plain_definition() -> None:
    rng = random.Random(11)
    alphabets = "0123456789ABCDEF", "ON0:@_-az~", "é订\U0001f600x", "\x00\x7f K"
    for number in range(600):
        size = rng.choice((1, 2, 31, 32, 33, 63, 64, 65, 255, 256, 257, 700))
        key = "".join(rng.choices(alphabets[number % 4], k=size)).replace(" ", "_")
        expected = key_hash(f"topic%#{key}")
        assert index_key_hash("topic%", key) == expected, key
        assert hashes(b"KEYS\x01" + key.encode(), "topic%") == [expected], key
        assert hashes(b"UNIQ_KEY\x01" + key.encode(), "topic%") == [expected], key
