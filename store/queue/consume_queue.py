"""Consume queue: the index of one topic queue, a 20-byte unit a message.

    position  size  field          type
    0         8     commit_offset  int64 BE   where the record starts in the commit log, bytes
    8         4     record_size    int32 BE   the record's TOTALSIZE, bytes
    12        8     tags_code      int64 BE   hash of the tag; a due time, ms, on the delay topic

Unit n of the queue is at byte 20 * n of the logical file. A file's unused front is padded with
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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skylarkmq.store.queue.consume_queue_ext import ConsumeQueueExt

UNIT = struct.Struct(">qiq")
UNIT_SIZE = 20
assert UNIT.size == UNIT_SIZE
PRE_BLANK_SIZE = 0x7FFFFFFF
PRE_BLANK = UNIT.pack(0, PRE_BLANK_SIZE, 0)

# Unwritten units of a queue at which it does not wait for the next timed write: 8 KiB.
TAIL_WRITE_COUNT = 8192 // UNIT_SIZE
# Written bytes kept in memory for readers at the end of the queue.
TAIL_KEEP_SIZE = 4096


class ConsumeQueue:
    """State of one topic queue. Loop thread; reading old units is in `queue_files.py`."""

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
        self.tail = bytearray()
        # Invariant: True exactly while the queue table's list holds it, or it is never to be there.
        self.dirty = False
        self.removed = False  # with its topic; who still has it may read it, and writes nothing
        self.max_physical_offset = 0  # end of the newest record of this queue
        self.ext: ConsumeQueueExt | None = None  # with `enableConsumeQueueExt`
        self.reset(0)

    def reset(self, offset: int) -> None:
        """Make the queue empty, the next unit being number `offset`."""
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

    @property
    def unwritten_size(self) -> int:
        """Bytes of units that are in memory alone."""
        return (self.max_offset - self.written) * UNIT_SIZE

    def unwritten(self) -> bytes:
        """A copy of the units from `written` on."""
        return bytes(self.tail[(self.written - self.tail_start) * UNIT_SIZE :])

    def mark_written(self, offset: int) -> None:
        """Units below `offset` are in the file: keep only the newest of them in memory."""
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
        """Units from `offset` >= tail_start on, at most `max_count`, as they lie in the file."""
        start = (offset - self.tail_start) * UNIT_SIZE
        return bytes(self.tail[start : start + max_count * UNIT_SIZE])


def is_valid_unit(commit_offset: int, record_size: int) -> bool:
    """Whether something was written there (a padding unit counts)."""
    return commit_offset >= 0 and record_size > 0


def first_unit_at(read: Callable[[int], bytes], low: int, high: int, physical_offset: int) -> int:
    """The first of the units [low, high) whose record is at or behind a place of the log.

    Args:
        read: gives the bytes of one unit by its number.
    """
    middle = low  # mostly nothing has gone
    while low < high:
        commit_offset, record_size, _ = UNIT.unpack(read(middle))
        if commit_offset < physical_offset or record_size == PRE_BLANK_SIZE:
            low = middle + 1
        else:
            high = middle
        middle = (low + high) // 2
    return low
