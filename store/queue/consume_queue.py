"""Consume queue: the index of one topic queue, a 20-byte unit for each message.

    position  size  field          type
    0         8     commit_offset  int64 BE   where the record starts in the commit log, bytes
    8         4     record_size    int32 BE   the record's TOTALSIZE, bytes
    12        8     tags_code      int64 BE   hash of the tag; a due time, ms, on the delay topic;
                                              or an address, see `extension.py`

Unit n of the queue is at byte 20 * n of the logical file. The unused front of a file is padded with
(0, 0x7FFFFFFF, 0). No checksum: rebuilt from the commit log.

New units are published in memory and written to the file in the background, which costs a send one
`bytearray` append; a crash loses nothing that the log cannot give back.

    first_offset <= min_offset <= max_offset, written <= max_offset <= next_offset
    first_offset   the first unit of the oldest file
    min_offset     the first unit whose record is still in the log
    tail           the units [tail_start, max_offset), always reaching down to `written` at least
    written        units below it are in the file (page cache)
    max_offset     units below it are visible; the next one to be published
    next_offset    the next queue offset to hand out: ahead of max_offset while a sync flush runs

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../ConsumeQueue.java
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from skylarkmq.protocol.tags_code import topic_prefix_code

if TYPE_CHECKING:
    from skylarkmq.store.queue.extension import Extension

UNIT = struct.Struct(">qiq")
UNIT_SIZE = 20
assert UNIT.size == UNIT_SIZE
PRE_BLANK_SIZE = 0x7FFFFFFF
PRE_BLANK = UNIT.pack(0, PRE_BLANK_SIZE, 0)
SKIPPED_UNITS: Final = 4096
"""Padding is passed over in steps of so many."""
ReadUnits = Callable[[int, int], bytes]

# A queue with so many unwritten units (64 KiB) does not wait for the next timed write.
TAIL_WRITE_COUNT = 65_536 // UNIT_SIZE
# Written bytes kept in memory for readers at the end of the queue.
TAIL_KEEP_SIZE = 4096


class ConsumeQueue:
    """State of one topic queue. Loop thread; reading old units is in `queue_files.py`.

    Its size is one idea: an attribute is one fact about the queue.
    """

    __slots__ = (
        "dirty",
        "ext",
        "first_offset",
        "folder",
        "max_offset",
        "max_physical_offset",
        "min_offset",
        "min_physical_offset",
        "next_offset",
        "prefix_code",
        "queue_id",
        "removed",
        "tail",
        "tail_start",
        "topic",
        "topic_part",
        "written",
    )

    def __init__(self, topic: str, queue_id: int, folder: Path) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.folder = folder
        encoded = topic.encode("ascii")
        self.topic_part = bytes((len(encoded),)) + encoded  # as it stands in a record
        self.prefix_code = topic_prefix_code(topic)  # of its keys in the key index
        self.tail = bytearray()
        # Invariant: True exactly while the queue table's list holds it, or it is never to be there.
        self.dirty = False
        self.removed = False  # with its topic; who still has it may read it, and writes nothing
        self.max_physical_offset = 0  # end of the newest record of this queue
        self.ext: Extension | None = None  # where RocketMQ wrote one
        self.reset(0)

    def reset(self, offset: int) -> None:
        """Make the queue empty; the next unit is number `offset`."""
        self.tail.clear()
        self.min_offset = self.first_offset = offset
        self.min_physical_offset = 0  # no record of a unit from min_offset on lies below it
        self.tail_start = self.written = self.max_offset = self.next_offset = offset

    def found(self, first_offset: int, end_offset: int, last_units: bytes) -> None:
        """Take over what the files hold; the last units stay in memory until the load is over."""
        self.reset(end_offset)
        self.first_offset = self.min_offset = first_offset
        self.tail += last_units
        self.tail_start = end_offset - len(last_units) // UNIT_SIZE

    def append(self, commit_offset: int, record_size: int, tags_code: int) -> None:
        """Publish the next unit."""
        self.tail += UNIT.pack(commit_offset, record_size, tags_code)
        self.max_offset += 1
        self.max_physical_offset = commit_offset + record_size

    def extend(self, units: bytes | bytearray) -> None:
        """Publish the next units."""
        self.tail += units
        self.max_offset += len(units) // UNIT_SIZE
        commit_offset, record_size, _ = UNIT.unpack_from(units, len(units) - UNIT_SIZE)
        self.max_physical_offset = commit_offset + record_size

    @property
    def unwritten_size(self) -> int:
        """Bytes of units that are only in memory."""
        return (self.max_offset - self.written) * UNIT_SIZE

    def unwritten(self) -> bytes:
        """Return a copy of the units from `written` on."""
        return bytes(self.tail[(self.written - self.tail_start) * UNIT_SIZE :])

    def mark_written(self, offset: int) -> None:
        """Note that units below `offset` are in the file; keep only the newest in memory."""
        self.written = offset
        keep_from = max(self.tail_start, self.max_offset - TAIL_KEEP_SIZE // UNIT_SIZE)
        keep_from = min(keep_from, offset)
        del self.tail[: (keep_from - self.tail_start) * UNIT_SIZE]
        self.tail_start = keep_from

    def drop_tail(self) -> None:
        """Forget the written units of an idle queue."""
        del self.tail[: (self.written - self.tail_start) * UNIT_SIZE]
        self.tail_start = self.written

    def tail_units(self, offset: int, max_count: int) -> bytes:
        """Return units from `offset` >= tail_start on, at most `max_count`, as in the file."""
        start = (offset - self.tail_start) * UNIT_SIZE
        return bytes(self.tail[start : start + max_count * UNIT_SIZE])


def is_valid_unit(commit_offset: int, record_size: int) -> bool:
    """Return whether a unit was written there; a padding unit counts."""
    return commit_offset >= 0 and record_size > 0


def first_unit_at(read: ReadUnits, low: int, high: int, physical_offset: int) -> int:
    """Return the first of the units [low, high) whose record is at or after a place of the log."""
    return search_messages(
        read, low, high, lambda _, unit: UNIT.unpack(unit)[0] >= physical_offset
    )[1]


def search_messages(
    read: ReadUnits, low: int, high: int, is_late: Callable[[int, bytes], bool]
) -> tuple[int, int]:
    """Return the last message of the units [low, high) that is not late, and the first that is.

    -1 and `high` stand for none. Padding is passed over: it lies nowhere, and says nothing.

    Args:
        read: gives the bytes of units from a number on, at most so many, and at least one.
        is_late: says it by number and unit; once a message is, all after it are.
    """
    before, after = -1, high
    middle = low  # mostly nothing has gone
    while low < high:
        found, unit = _next_message(read, middle, high)
        if unit and not is_late(found, unit):
            low, before = found + 1, found
        else:
            after = found if unit else after
            high = middle
        middle = (low + high) // 2
    return before, after


def _next_message(read: ReadUnits, low: int, high: int) -> tuple[int, bytes]:
    """Return the first of the units [low, high) that is no padding; no bytes when all are."""
    wanted = 1
    while low < high and (units := read(low, min(wanted, high - low))):
        count = len(units) // UNIT_SIZE
        if units != PRE_BLANK * count:
            parts = (units[at : at + UNIT_SIZE] for at in range(0, len(units), UNIT_SIZE))
            return next((low + n, unit) for n, unit in enumerate(parts) if unit != PRE_BLANK)
        low += count
        wanted = SKIPPED_UNITS
    return high, b""
