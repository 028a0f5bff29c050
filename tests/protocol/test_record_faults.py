"""What the log holds where no sound record stands: unwritten, torn, corrupt, and never mixed up."""

import struct
from typing import Any

import pytest

from skylarkmq.protocol import record
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.record import (
    RecordStatus,
    RecordView,
    decode_message,
    encode_blank,
    encode_record,
    read_record,
)
from tests.protocol.message_vectors import PLAIN_RECORD, STORE, record_fields

SECTOR = 512


def a_record(body: bytes, physical_offset: int = 0, **changes: Any) -> bytes:
    fields: dict[str, Any] = {**record_fields(STORE["messages"][0]), **changes}
    fields["body"] = body
    fields["physical_offset"] = physical_offset
    return encode_record(**fields)


def a_file(*records: bytes, front: int = 0, size: int = 16 * SECTOR) -> bytearray:
    return bytearray((b"\xee" * front + b"".join(records)).ljust(size, b"\x00"))


def read(file: bytearray, position: int, **options: Any) -> RecordView:
    return read_record(memoryview(file), position, **options)


@pytest.mark.parametrize("left", [0, 1, 7, 8, 87, 88, 4000])
def test_zeros_were_never_written(left: int) -> None:
    view = read_record(bytes(100 + left), 100)
    assert (view.status, view.size) == (RecordStatus.UNWRITTEN, 0)


def test_what_follows_an_unwritten_head_is_not_looked_at() -> None:
    assert read_record(bytes(8) + PLAIN_RECORD, 0).status is RecordStatus.UNWRITTEN


def test_a_position_at_or_behind_the_limit_is_unwritten() -> None:
    for position in (0, 10, 300):
        assert read_record(PLAIN_RECORD, position, limit=0).status is RecordStatus.UNWRITTEN


@pytest.mark.parametrize("lost", range(1, 8))
def test_a_lost_sector_inside_a_record_is_a_torn_write(lost: int) -> None:
    file = a_file(a_record(bytes(range(1, 256)) * 16, physical_offset=100), front=100)
    file[lost * SECTOR : (lost + 1) * SECTOR] = bytes(SECTOR)
    view = read(file, 100, physical_offset=100)
    assert view.status is RecordStatus.TORN
    assert view.size == len(a_record(bytes(range(1, 256)) * 16))


def test_damage_without_a_lost_sector_is_corrupt() -> None:
    file = a_file(a_record(bytes(range(1, 256)) * 16, physical_offset=100), front=100)
    file[1000] ^= 4
    assert read(file, 100, physical_offset=100).status is RecordStatus.CORRUPT


def test_a_sector_of_zeros_in_a_sound_body_is_sound() -> None:
    file = a_file(a_record(bytes(3000)))
    assert read(file, 0).status is RecordStatus.MESSAGE


def test_zeros_that_fill_no_sector_are_no_lost_sector() -> None:
    file = a_file(a_record(b"x" * 600 + bytes(511) + b"y" * 600))
    file[100] ^= 1
    assert read(file, 0).status is RecordStatus.CORRUPT


def test_a_lost_last_sector_takes_the_lengths_with_it() -> None:
    data = a_record(b"x" * (2 * SECTOR - record.FIXED_IPV4_SIZE - 10))
    file = a_file(data)
    assert len(data) > 2 * SECTOR
    file[2 * SECTOR :] = bytes(len(file) - 2 * SECTOR)
    assert read(file, 0).status is RecordStatus.TORN


def test_a_last_sector_shared_with_a_later_record_was_not_lost() -> None:
    data = a_record(b"x" * (2 * SECTOR - record.FIXED_IPV4_SIZE - 10))
    file = a_file(data, a_record(b"next"))
    file[2 * SECTOR : len(data)] = bytes(len(data) - 2 * SECTOR)
    assert read(file, 0).status is RecordStatus.CORRUPT


@pytest.mark.parametrize("front", range(SECTOR - 87, SECTOR))
def test_a_head_across_a_lost_sector_is_torn_or_unwritten(front: int) -> None:
    whole = a_record(b"body", physical_offset=front)
    behind_lost = a_file(whole, front=front)
    behind_lost[SECTOR:] = bytes(len(behind_lost) - SECTOR)
    view = read(behind_lost, front, physical_offset=front)
    expected = RecordStatus.TORN if any(behind_lost[front : front + 8]) else RecordStatus.UNWRITTEN
    assert view.status is expected
    front_lost = a_file(whole, front=front)
    front_lost[front:SECTOR] = bytes(SECTOR - front)
    view = read(front_lost, front, physical_offset=front)
    if SECTOR - front >= 8:
        assert view.status is RecordStatus.UNWRITTEN
    elif SECTOR - front >= 4:
        assert view.status is RecordStatus.TORN
    else:
        # The high bytes of a small size are zeros anyway: whole, or a size that does not add up.
        assert view.status in (RecordStatus.MESSAGE, RecordStatus.CORRUPT)
        assert (view.status is RecordStatus.MESSAGE) == (front_lost == a_file(whole, front=front))


@pytest.mark.parametrize("magic", [0, 1, -1, 0xDAA320AB - (1 << 32), 0x7FFFFFFF])
def test_another_magic_is_corrupt(magic: int) -> None:
    file = a_file(PLAIN_RECORD, size=204)
    struct.pack_into(">i", file, record.MAGIC_POSITION, magic)
    view = read(file, 0)
    assert (view.status, view.size) == (RecordStatus.CORRUPT, 0)
    assert f"{magic & 0xFFFFFFFF:#010x}" in view.why


@pytest.mark.parametrize("size", [-(1 << 31), -1, 1, 8, 87, 88, 90, 91, 203, 205])
def test_a_size_that_is_not_the_sum_of_the_parts_is_corrupt(size: int) -> None:
    file = a_file(PLAIN_RECORD, b"\xdd" * 512, size=204 + 512)
    struct.pack_into(">i", file, 0, size)
    view = read(file, 0)
    assert (view.status, view.size) == (RecordStatus.CORRUPT, 0)


@pytest.mark.parametrize("size", [205, 500, 0x7FFFFFFF])
@pytest.mark.parametrize("rest", [0, 1, 100])
def test_a_promise_that_the_parts_deny_is_corrupt(size: int, rest: int) -> None:
    file = a_file(PLAIN_RECORD, b"\xdd" * rest, size=204 + rest)
    struct.pack_into(">i", file, 0, size)
    assert read(file, 0).status is RecordStatus.CORRUPT


@pytest.mark.parametrize("body_size", [-1, -(1 << 31), 101, 102, 0x7FFFFFFF])
@pytest.mark.parametrize("visible", [150, 204])
def test_a_body_larger_than_its_record_is_corrupt(body_size: int, visible: int) -> None:
    file = a_file(PLAIN_RECORD, size=204)
    struct.pack_into(">i", file, record.FIXED_IPV4_SIZE - 4, body_size)
    if body_size == 101:
        # The largest that leaves room for the two lengths, which are then read in the wrong place.
        assert len(PLAIN_RECORD) - record.FIXED_IPV4_SIZE - body_size > 2
    view = read(file, 0, limit=visible)
    if visible == 150 and body_size in (101, 102):
        assert view.status is RecordStatus.TORN
    else:
        assert view.status is RecordStatus.CORRUPT


@pytest.mark.parametrize("size", [128, 200, 255])
def test_a_topic_longer_than_a_signed_byte_is_corrupt(size: int) -> None:
    # Its lengths add up; RocketMQ would read the size as negative.
    fixed = bytearray(a_record(b"", topic=b"", properties=b"")[: record.FIXED_IPV4_SIZE])
    struct.pack_into(">i", fixed, 0, record.MIN_RECORD_SIZE + size)
    data = bytes(fixed) + bytes([size]) + b"t" * size + b"\x00\x00"
    assert read_record(data, 0).status is RecordStatus.CORRUPT
    with pytest.raises(RemoteProtocolError):
        decode_message(data)


def test_a_negative_body_that_adds_up_is_corrupt() -> None:
    # The tail would begin inside the fixed fields, where a number was made to look like one.
    data = bytearray(a_record(b"", topic=b"", properties=b"p" * 20))
    start = record.FIXED_IPV4_SIZE - 12
    struct.pack_into(">i", data, record.FIXED_IPV4_SIZE - 4, -12)
    struct.pack_into(">bh", data, start, 0, len(data) - start - 3)
    assert read_record(bytes(data), 0, check_crc=False).status is RecordStatus.CORRUPT
    with pytest.raises(RemoteProtocolError):
        decode_message(bytes(data), check_crc=False)


@pytest.mark.parametrize("behind", [0, 1, 40])
@pytest.mark.parametrize("hosts", [0x10, 0x20, 0x30])
def test_a_record_too_short_for_the_hosts_it_claims_is_corrupt(behind: int, hosts: int) -> None:
    data = bytearray(a_record(b"", topic=b"", properties=b"") + b"\xdd" * behind)
    data[record.SYS_FLAG_POSITION + 3] |= hosts
    view = read(data, 0)
    assert (view.status, view.size) == (RecordStatus.CORRUPT, 0)
    with pytest.raises(RemoteProtocolError):
        decode_message(bytes(data))


@pytest.mark.parametrize("shared", [1, 2, 3])
def test_the_zeros_of_a_size_in_a_shared_sector_are_no_loss(shared: int) -> None:
    front = SECTOR - shared
    file = a_file(a_record(b"", physical_offset=front), b"\xdd" * 600, front=front)
    assert not any(file[front : SECTOR - (shared == 3)])
    file[front + record.MAGIC_POSITION] ^= 1
    assert read(file, front).status is RecordStatus.CORRUPT


def test_a_leftover_of_an_older_file_is_corrupt_and_a_torn_head_is_not() -> None:
    front = SECTOR - record.PHYSICAL_OFFSET_POSITION - 4
    leftover = a_file(a_record(bytes(3000), physical_offset=9999), front=front)
    view = read(leftover, front, physical_offset=front)
    assert view.status is RecordStatus.CORRUPT
    assert view.physical_offset == 9999
    torn = a_file(a_record(b"x" * 900, physical_offset=1 << 40), front=front)
    torn[SECTOR : 2 * SECTOR] = bytes(SECTOR)
    assert read(torn, front, physical_offset=1 << 40).status is RecordStatus.TORN


@pytest.mark.parametrize("size", [-1, 0, 1, 7])
def test_a_blank_smaller_than_its_mark_is_corrupt(size: int) -> None:
    data = struct.pack(">ii", size, record.BLANK_MAGIC) + b"\xdd" * 8
    assert read_record(data, 0).status is RecordStatus.CORRUPT


def test_a_blank_longer_than_its_file_is_torn() -> None:
    view = read_record(encode_blank(100) + bytes(91), 0)
    assert (view.status, view.size) == (RecordStatus.TORN, 100)
    assert read_record(encode_blank(100) + bytes(92), 0).status is RecordStatus.BLANK


def test_fewer_bytes_than_a_head_are_torn() -> None:
    view = read_record(b"\x00\x00\x00\x01", 0)
    assert (view.status, view.size) == (RecordStatus.TORN, 0)


def a_record_with_properties_over(boundary: int) -> tuple[bytes, int]:
    """A record whose properties cross `boundary`, and where they begin."""
    value = "v" * 900
    record = a_record(b"b" * (boundary - 300), properties=f"KEYS\x01{value}\x02".encode())
    start = record.index(b"KEYS")
    assert start < boundary < len(record)
    return record, start


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_properties_in_a_lost_sector_are_a_torn_write_though_the_body_is_sound(lost: int) -> None:
    record, start = a_record_with_properties_over(SECTOR)
    assert start < SECTOR
    file = a_file(record)
    for sector in range(lost, 3):
        file[sector * SECTOR : (sector + 1) * SECTOR] = bytes(SECTOR)
    status = RecordStatus.TORN if lost * SECTOR < len(record) else RecordStatus.MESSAGE
    assert read(file, 0, physical_offset=0).status is status


def test_properties_cut_at_any_byte_are_a_torn_write() -> None:
    record, start = a_record_with_properties_over(SECTOR)
    for cut in range(start, len(record), 7):
        assert read(a_file(record[:cut]), 0).status is RecordStatus.TORN


def test_zeros_in_properties_with_something_behind_are_what_was_stored() -> None:
    record = a_record(b"body", properties=b"KEYS\x01a\x00\x00b\x02")
    assert read(a_file(record), 0).status is RecordStatus.MESSAGE
    ending = a_record(b"body", properties=b"KEYS\x01a\x00")
    assert read(a_file(ending, record), 0).status is RecordStatus.MESSAGE
