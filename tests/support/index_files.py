"""RocketMQ 4.9's index files by their description alone; shares no code with the product.

`build` makes the files that a log's records must have, byte for byte, by the plainest road: one key
after the other. `check` holds a file against its own rules.
Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../index/IndexFile.java, IndexService.java
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.support.store_files import FormatError, LogRecord

ROLLBACK = 0xC


def key_hash(text: str) -> int:
    """abs(String.hashCode) in 32 bits; the least integer becomes 0."""
    units = text.encode("utf-16-be")
    code = 0
    for at in range(0, len(units), 2):
        code = (31 * code + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    if code >> 31:
        code = (1 << 32) - code
    return 0 if code >> 31 else code


@dataclass(slots=True)
class PlainIndexFile:
    """One file as numbers."""

    slot_count: int
    item_count: int
    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    used: int = 0
    slots: dict[int, int] = field(default_factory=dict[int, int])
    items: list[tuple[int, int, int, int]] = field(default_factory=list[tuple[int, int, int, int]])

    @property
    def count(self) -> int:
        return len(self.items) + 1

    def put(self, key: str, offset: int, timestamp: int) -> bool:
        if self.count >= self.item_count:
            return False
        hashed = key_hash(key)
        slot = hashed % self.slot_count
        previous = self.slots.get(slot, 0)
        seconds = (timestamp - self.begin_timestamp) // 1000
        if self.begin_timestamp <= 0 or seconds < 0:
            seconds = 0
        self.items.append((hashed, offset, min(seconds, 2**31 - 1), previous))
        self.slots[slot] = self.count - 1
        if self.count == 2:
            self.begin_timestamp, self.begin_offset = timestamp, offset
        self.used += previous == 0
        self.end_timestamp, self.end_offset = timestamp, offset
        return True

    def data(self) -> bytes:
        slots = bytearray(4 * self.slot_count)
        for slot, number in self.slots.items():
            struct.pack_into(">i", slots, 4 * slot, number)
        items = bytearray(20 * self.item_count)
        for number, item in enumerate(self.items, 1):
            struct.pack_into(">iqii", items, 20 * number, *item)
        head = struct.pack(
            ">qqqqii", self.begin_timestamp, self.end_timestamp, self.begin_offset,
            self.end_offset, self.used, self.count,
        )  # fmt: skip
        return head + bytes(slots) + bytes(items)


def keys_of(record: LogRecord) -> list[str]:
    """What the record is found by."""
    if record.sys_flag & ROLLBACK == ROLLBACK:
        return []
    unique = record.properties.get("UNIQ_KEY")
    keys = [unique] if unique else []
    return keys + [key for key in record.properties.get("KEYS", "").split(" ") if key]


def build(records: Iterable[LogRecord], slot_count: int, item_count: int) -> list[bytes]:
    """The files that RocketMQ makes of these records."""
    files: list[PlainIndexFile] = []
    for record in records:
        for key in keys_of(record):
            full = not files or files[-1].count >= item_count
            if full:
                made = PlainIndexFile(slot_count, item_count)
                if files:
                    made.begin_timestamp = made.end_timestamp = files[-1].end_timestamp
                    made.begin_offset = made.end_offset = files[-1].end_offset
                files.append(made)
            text = f"{record.topic}#{key}"
            assert files[-1].put(text, record.physical_offset, record.store_timestamp)
    return [file.data() for file in files]


def check(data: bytes, slot_count: int, item_count: int) -> int:
    """Hold a file against the rules that every reader relies on; return its number of items.

    Raises:
        FormatError: a number that RocketMQ would never have written.
    """
    if len(data) != 40 + 4 * slot_count + 20 * item_count:
        raise FormatError(f"an index file of {len(data)} bytes")
    begin, end, begin_offset, end_offset, used, count = struct.unpack_from(">qqqqii", data)
    if not 1 <= count <= item_count:
        raise FormatError(f"an index file with {count} as its next item")
    slots = struct.unpack_from(f">{slot_count}i", data, 40)
    newest: dict[int, int] = {}
    offsets: list[int] = []
    for number in range(1, count):
        hashed, offset, seconds, previous = struct.unpack_from(
            ">iqii", data, 40 + 4 * slot_count + 20 * number
        )
        slot = hashed % slot_count
        if hashed < 0 or seconds < 0 or previous != newest.get(slot, 0):
            raise FormatError(f"item {number} is {hashed}, {offset}, {seconds}, {previous}")
        newest[slot] = number
        offsets.append(offset)
    if offsets != sorted(offsets) or offsets[:1] + offsets[-1:] != (
        [begin_offset, end_offset] if offsets else []
    ):
        raise FormatError(
            f"items from {begin_offset} to {end_offset} have offsets {offsets[:9]}..."
        )
    if {slot: number for slot, number in enumerate(slots) if number} != newest:
        raise FormatError("the slots do not name the newest items")
    # The times may fall: the clock of who wrote them was set back, as RocketMQ's may be.
    if used != len(newest) or min(begin, end) < 0:
        raise FormatError(f"{used} slots used from {begin} to {end}")
    if any(data[40 + 4 * slot_count + 20 * count :]):
        raise FormatError("something stands behind the last item")
    return count - 1
