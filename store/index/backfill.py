"""Reading the log again for the key index, a slice at a time.

The index follows the log live, by what is published in memory. Where it is behind (after a crash,
when it was deleted, when it fell too far behind) it reads the records themselves: here, without
their checksums, as the answer to a query is checked anyway. What is damaged is passed over, and the
next sound record is found by its magic and the offset that it carries.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java (ReputMessageService)
"""

from __future__ import annotations

from typing import Final, NamedTuple

from skylarkmq.protocol.record import (
    FIXED_IPV6,
    MESSAGE_MAGIC,
    RecordStatus,
    RecordView,
    read_record,
)
from skylarkmq.store.index.keys import Entry, record_entries
from skylarkmq.store.log.mapped_file import MappedFile

SLICE_SIZE: Final = 256 * 1024
SLICE_RECORDS: Final = 400
RECORD_MAX: Final = 32 << 20
"""Bytes that a record may have: no frame on the wire has more than half of it."""
RECORD_MIN: Final = FIXED_IPV6.size  # bytes without which a record may not show its size
_MAGIC: Final = (MESSAGE_MAGIC & 0xFFFFFFFF).to_bytes(4, "big")
_MAGIC_AT: Final = 4


class LogSlice(NamedTuple):
    """What a slice of the log says."""

    entries: list[Entry]
    next_offset: int  # where the next slice begins
    record_count: int
    passed_over: int  # bytes of damage


def read_slice(mapped: MappedFile, offset: int, end_offset: int) -> LogSlice:
    """Read the records of one file from `offset` on. Blocks; index thread.

    Args:
        mapped: the file that holds `offset`; its owner holds it meanwhile.
        end_offset: a record boundary behind `offset`, up to which the log is published.
    """
    position = offset - mapped.start_offset
    rest = min(end_offset - mapped.start_offset, mapped.size) - position
    data = mapped.file.pread(min(SLICE_SIZE, rest), position)
    entries: list[Entry] = []
    at = count = passed_over = 0
    while at < len(data) and count < SLICE_RECORDS:
        record = read_record(data, at, check_crc=False, physical_offset=offset + at)
        if record.status is RecordStatus.MESSAGE:
            entries += record_entries(record)
            at += record.size
            count += 1
        elif record.status is RecordStatus.BLANK:
            return LogSlice(entries, mapped.start_offset + mapped.size, count, passed_over)
        elif len(data) < min(rest, RECORD_MAX) and _is_cut(record, len(data) - at):
            if at:
                break  # the next slice begins with it
            data = mapped.file.pread(min(rest, RECORD_MAX, max(record.size, RECORD_MIN)), position)
        else:
            following = _next_candidate(data, at, at_end=len(data) == rest)
            passed_over += following - at
            at = following
    return LogSlice(entries, offset + at, count, passed_over)


def _is_cut(record: RecordView, remaining: int) -> bool:
    """Whether the record may be whole and only the bytes that were read end too early."""
    return remaining < RECORD_MIN or (
        record.status is RecordStatus.TORN and record.size > remaining
    )


def _next_candidate(data: bytes, at: int, *, at_end: bool) -> int:
    """The next place where a record may begin behind one that holds none."""
    found = data.find(_MAGIC, at + 1 + _MAGIC_AT)
    if found >= 0:
        return found - _MAGIC_AT
    if at_end:
        return len(data)
    return max(at + 1, len(data) - _MAGIC_AT - len(_MAGIC) + 1)
