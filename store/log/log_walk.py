"""Going over the log's records from a place on, quickly and in bounded memory.

Recovery, and tools that rebuild files from the log, read all of it, record by record. So this
is written for speed: a slice of the file is read, and sound records of it are found with one unpack
each. What does not look like one at first sight is judged by `read_record` on the whole file,
which tells the end of the log from a torn write and from damage.

Reads go by `pread` and not through the mapping, whose pages would stay in the process's memory:
a walk over a 1 GiB file needs a slice of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

from skylarkmq.common.crc import body_crc
from skylarkmq.kernel import twin
from skylarkmq.protocol.flags import MAX_TOPIC_SIZE
from skylarkmq.protocol.record import (
    FIXED_IPV4_SIZE,
    HOSTS_BITS,
    LENGTHS_SIZE,
    MESSAGE_MAGIC,
    MIN_RECORD_SIZE,
    SECTOR_SIZE,
    WALK_IPV4,
    RecordStatus,
    RecordView,
    read_record,
)
from skylarkmq.store.log.mapped_file import MappedFile
from skylarkmq.store.log.mapped_file_queue import MappedFileQueue
from skylarkmq.store.progress import Progress

SLICE_SIZE: Final = 1 << 20
RUN_MAX: Final = 256
"""Records that are looked at before the first of them is handed out."""
_SIZE = struct.Struct(">i")

WalkedRecord = tuple[int, int, int, int, int, int, bytes, bytes]
"""(physical offset, size, queue id, queue offset, system flag, store timestamp, topic, properties)
"""


class LogWalk:
    """One walk. Blocks; any thread that may read the files.

    Attributes:
        end_offset: the end of the last sound record, or the start of the file after it.
        reached: `end_offset`, or the end of the last file when a blank record leads there.
        stop: what stands at `end_offset` when the log does not simply end with its last file.
    """

    def __init__(
        self,
        files: MappedFileQueue,
        *,
        check_crc: bool,
        what: str = "reading the log",
        progress: Progress | None = None,
    ) -> None:
        self._files = files
        self._check_crc = check_crc
        self._what = what
        self._progress = progress
        self._begin = 0
        self._stopped = 0  # place in the slice after its last record
        self.end_offset = 0
        self.reached = 0
        self.stop: RecordView | None = None

    def records(self, begin: int) -> Iterator[WalkedRecord]:
        """Yield the sound records from offset `begin` on, where one must stand, or none does."""
        self._begin = self.end_offset = self.reached = begin
        while (mapped := self._files.find(self.end_offset)) is not None:
            yield from self._in_file(mapped)
            position = self.end_offset - mapped.start_offset
            record = read_record(
                mapped.view,
                position,
                check_crc=self._check_crc,
                physical_offset=self.end_offset,
            )
            if record.status is RecordStatus.MESSAGE:
                self.end_offset = self.reached = self.end_offset + record.size
                yield _walked(record)
            elif record.status is RecordStatus.BLANK:
                self.reached = mapped.start_offset + mapped.size
                if self._files.find(self.reached) is None:
                    return  # the log ends before the blank record
                self.end_offset = self.reached
            else:
                self.stop = record
                return

    def _in_file(self, mapped: MappedFile) -> Iterator[WalkedRecord]:
        """Yield the records of a file from `end_offset` on, as far as they are plainly sound."""
        size, wanted = mapped.size, SLICE_SIZE
        position = self.end_offset - mapped.start_offset
        while size - position >= MIN_RECORD_SIZE:
            begin = position - position % SECTOR_SIZE
            data = mapped.file.pread(min(wanted, size - begin), begin)
            yield from self._in_slice(data, position - begin, mapped.start_offset + begin)
            self._tell_progress()
            if self._stopped > position - begin:
                position, wanted = begin + self._stopped, SLICE_SIZE
                continue
            if len(data) - (position - begin) < MIN_RECORD_SIZE:
                return  # the file is shorter than it was
            claimed: int = _SIZE.unpack_from(data, position - begin)[0]
            needed = position - begin + claimed
            needed += -needed % SECTOR_SIZE
            if not len(data) < min(needed, size - begin):
                return
            wanted = needed

    def _in_slice(self, data: bytes, position: int, base: int) -> Iterator[WalkedRecord]:
        """Yield the records that lie whole in a slice, which begins at offset `base`."""
        self._stopped = position
        for record in sound_records(data, position, len(data), base, check_crc=self._check_crc):
            self.end_offset = self.reached = record[0] + record[1]
            self._stopped = self.end_offset - base
            yield record

    def _tell_progress(self) -> None:
        last = self._files.last
        if self._progress is not None and last is not None:
            total = last.start_offset + last.size - self._begin
            self._progress(self._what, self.end_offset - self._begin, total)


def sound_records(
    data: bytes, position: int, end: int, base: int, *, check_crc: bool = True
) -> Iterator[WalkedRecord]:
    """Yield the sound records that follow each other from a position on.

    Args:
        end: place in `data` where the bytes end that may be looked at.
        base: offset of the log of the first byte of `data`.
    """
    while True:
        records = plain_records(data, position, end, base, check_crc)
        if records:
            yield from records
            position = records[-1][0] + records[-1][1] - base
            if len(records) == RUN_MAX:
                continue
        if position > end - MIN_RECORD_SIZE:
            break
        record = read_record(
            data, position, limit=end, check_crc=check_crc, physical_offset=base + position
        )
        if record.status is not RecordStatus.MESSAGE:
            break
        position += record.size
        yield _walked(record)


@twin
def plain_records(
    data: bytes, position: int, end: int, base: int, check_crc: bool
) -> list[WalkedRecord]:
    """Return the sound records without IPv6 hosts from a position on, at most RUN_MAX.

    It stops at anything else; see `sound_records`.
    """
    view, records = memoryview(data), list[WalkedRecord]()
    last = end - MIN_RECORD_SIZE
    unpack: Callable[[bytes, int], tuple[int, ...]] = WALK_IPV4.unpack_from
    while position <= last and len(records) < RUN_MAX:
        size, magic, crc, queue_id, queue_offset, offset, sys_flag, timestamp, body_size = unpack(
            data, position
        )
        stop: int = position + size
        tail: int = position + FIXED_IPV4_SIZE + body_size
        if (
            magic != MESSAGE_MAGIC
            or offset != base + position
            or stop > end
            or body_size < 0
            or tail + LENGTHS_SIZE > stop
            or sys_flag & HOSTS_BITS
        ):
            break
        topic_end: int = tail + 1 + data[tail]
        if topic_end - tail > MAX_TOPIC_SIZE + 1 or topic_end + 2 > stop:
            break
        topic, properties = data[tail + 1 : topic_end], data[topic_end + 2 : stop]
        if data[topic_end] << 8 | data[topic_end + 1] != len(properties):
            break
        if check_crc and (
            body_crc(view[tail - body_size : tail]) != crc or 0 in properties or 0 in topic
        ):
            break
        records.append(
            (offset, size, queue_id, queue_offset, sys_flag, timestamp, topic, properties)
        )
        position = stop
    return records


def _walked(record: RecordView) -> WalkedRecord:
    return (
        record.physical_offset,
        record.size,
        record.queue_id,
        record.queue_offset,
        record.sys_flag,
        record.store_timestamp,
        record.topic,
        record.properties,
    )


def bytes_after(files: MappedFileQueue, offset: int) -> int:
    """Return the bytes from `offset` up to the last one that is not zero."""
    last, zeros = offset, bytes(SLICE_SIZE)
    for mapped in files.mapped:
        position = max(0, offset - mapped.start_offset)
        while position < mapped.size:
            position = mapped.file.data_start(position)
            data = mapped.file.pread(SLICE_SIZE, position)
            if not data:
                break
            if not zeros.startswith(data):
                last = max(last, mapped.start_offset + position + len(data.rstrip(b"\0")))
            position += SLICE_SIZE
    return last - offset
