"""Batch bodies against RocketMQ's, and every way in which one can lie about its lengths."""

import struct

import pytest

from skylarkmq.protocol.batch import (
    MIN_BATCH_ITEM_SIZE,
    BatchItem,
    encode_batch,
    has_more_items,
    split_batch,
)
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import LocalProtocolError, RemoteProtocolError
from skylarkmq.protocol.message import Message
from skylarkmq.protocol.properties import decode_properties, find_property, join_properties
from skylarkmq.protocol.record import encode_record
from tests.protocol.message_vectors import FRAMES, STORE, record_fields

BATCH = STORE["batch"]
BODY = bytes.fromhex(BATCH["requestBodyHex"])
ITEMS = [
    BatchItem(3, b"one", b"TAGS\x01a"),
    BatchItem(-1, b"", b""),
    BatchItem(0, b"\x00" * 300, b"n\x01" + b"v" * 32765),
]


def refused(body: bytes) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as caught:
        split_batch(body)
    assert caught.value.response_code == ResponseCode.MESSAGE_ILLEGAL
    return caught.value


def test_rocketmqs_batch_both_ways() -> None:
    items = split_batch(BODY)
    assert [item.body for item in items] == [b"batch-0", b"batch-1", b"batch-2"]
    assert [item.flag for item in items] == [0, 0, 0]
    assert [decode_properties(item.properties.decode()) for item in items] == [
        {"KEYS": f"BK{number}", "WAIT": "true", "TAGS": "BT"} for number in range(3)
    ]
    assert encode_batch(items) == BODY


def test_a_batch_becomes_rocketmqs_records() -> None:
    level = "\x02".join("\x01".join(pair) for pair in BATCH["batchLevelProperties"]).encode()
    for item, stored in zip(split_batch(BODY), BATCH["stored"], strict=True):
        fields = record_fields(stored)
        fields["flag"] = item.flag
        fields["body"] = item.body
        fields["properties"] = join_properties(item.properties, level)
        assert encode_record(**fields).hex() == stored["recordHex"]
        assert find_property(fields["properties"], b"CLUSTER\x01") == b"DefaultCluster"


def test_the_batch_inside_the_java_encoders_frame() -> None:
    vector = FRAMES["send_batch_rocketmq"]
    frame = bytes.fromhex(vector["hex"])
    header_size = int.from_bytes(frame[5:8], "big")
    items = split_batch(frame[8 + header_size :])
    expected = [
        (inner["flag"], inner["body_utf8"].encode()) for inner in vector["decoded"]["inner"]
    ]
    assert [(item.flag, item.body) for item in items] == expected
    assert encode_batch(items) == frame[8 + header_size :]


def test_messages_become_items() -> None:
    message = Message("T", b"body", tags="a", keys="k", flag=7)
    (item,) = split_batch(encode_batch([message]))
    assert item == BatchItem.of(message)
    assert (item.flag, item.body) == (7, b"body")
    assert decode_properties(item.properties.decode()) == {"TAGS": "a", "KEYS": "k"}
    named = BatchItem.of(message, {"UNIQ_KEY": "u"})
    assert find_property(named.properties, b"UNIQ_KEY\x01") == b"u"


def test_items_of_every_size() -> None:
    assert split_batch(encode_batch(ITEMS)) == ITEMS
    for count in range(1, len(ITEMS)):
        assert split_batch(encode_batch(ITEMS[:count])) == ITEMS[:count]


def test_an_empty_batch_is_refused() -> None:
    assert encode_batch([]) == b""
    refused(b"")


def test_a_cut_batch_is_refused_at_every_byte() -> None:
    ends = {len(encode_batch(split_batch(BODY)[:count])) for count in (1, 2)}
    for size in range(len(BODY)):
        if size in ends:
            assert len(split_batch(BODY[:size])) == size // 55
        else:
            refused(BODY[:size])


@pytest.mark.parametrize("tail", [b"\x00", b"\x00" * 21, b"\x00" * 22, b"\xff" * 100])
def test_bytes_behind_a_batch_are_refused(tail: bytes) -> None:
    assert "message 3 " in refused(BODY + tail).remark


@pytest.mark.parametrize("size", [-(1 << 31), -1, 0, 1, 21, 22, 54, 56, 110, 111, 0x7FFFFFFF])
def test_a_wrong_size_is_refused(size: int) -> None:
    refused(struct.pack(">i", size) + BODY[4:])


@pytest.mark.parametrize("size", [-(1 << 31), -23, -1, 0, 6, 8, 32, 33, 34, 0x7FFFFFFF])
def test_a_wrong_body_size_is_refused(size: int) -> None:
    refused(BODY[:16] + struct.pack(">i", size) + BODY[20:])


@pytest.mark.parametrize("size", [0, 25, 27, 0x7FFF, 0x8000, 0xFFFF])
def test_a_wrong_properties_size_is_refused(size: int) -> None:
    refused(BODY[:27] + struct.pack(">H", size) + BODY[29:])


def test_properties_whose_size_would_be_negative_are_refused() -> None:
    properties = b"p" * 0x8000
    front = struct.pack(">iiiii", MIN_BATCH_ITEM_SIZE + len(properties), 0, 0, 0, 0)
    refused(front + struct.pack(">H", len(properties)) + properties)


def test_nothing_is_returned_of_a_batch_with_a_bad_end() -> None:
    good = encode_batch(ITEMS[:2])
    assert "message 3 " in refused(good + good[:-1]).remark
    assert "message 2 " in refused(good + b"\x00").remark


def test_no_flipped_bit_lets_another_error_out() -> None:
    for position in range(len(BODY)):
        for bit in range(8):
            flipped = bytearray(BODY)
            flipped[position] ^= 1 << bit
            try:
                items = split_batch(bytes(flipped))
            except RemoteProtocolError:
                continue
            assert len(encode_batch(items)) == len(BODY)


def test_what_fits_into_no_batch_is_a_local_error() -> None:
    with pytest.raises(LocalProtocolError):
        encode_batch([BatchItem(0, b"", b"p" * 32768)])
    with pytest.raises(LocalProtocolError):
        encode_batch([BatchItem(1 << 31, b"", b"")])


@pytest.mark.parametrize("count", [1, 2, 7, 50])
@pytest.mark.parametrize("size", [0, 1, 300])
def test_the_count_is_known_before_the_messages(count: int, size: int) -> None:
    body = encode_batch([BatchItem(0, bytes(size), b"A\x01b") for _ in range(count)])
    for bound in (-1, 0, count - 1):
        assert has_more_items(body, bound)
    for bound in (count, count + 1, 1000):
        assert not has_more_items(body, bound)


@pytest.mark.parametrize("size", [-1, 0, 21, 2**31 - 1])
def test_sizes_that_cannot_be_end_the_count(size: int) -> None:
    body = size.to_bytes(4, "big", signed=True) + bytes(1000)
    assert not has_more_items(body, 5)
    with pytest.raises(RemoteProtocolError):
        split_batch(body)
