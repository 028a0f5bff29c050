"""Reads of what is probably not in memory: the reads worker waits for the disk.

    1  worker  the queue's units, when its memory tail does not have them
    2  loop    the walk over them, by the same rules as a read from memory (`message_reader.py`);
               the log files of the wanted records are held, so that cleaning leaves them open
    3  worker  `pread` of the records, their checksums included; neighbours in one call
    4  loop    the files are let go, the answer is handed over

A record that turns out to be damaged is passed over: the answer has one message less and goes on
after it. A file that was removed between the steps answers as it does in memory.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java (getMessage,
checkInDiskByCommitOffset)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from skylarkmq.common.files import Files
from skylarkmq.common.refusal import refusal
from skylarkmq.common.worker import Done, run_job, start
from skylarkmq.protocol.record import (
    FIXED_IPV6,
    SYS_FLAG_POSITION,
    RecordStatus,
    is_intact,
    read_record,
    store_timestamp_at,
)
from skylarkmq.store.environment import Environment
from skylarkmq.store.log.commit_log import CommitLog
from skylarkmq.store.log.mapped_file import MappedFile
from skylarkmq.store.queue.consume_queue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE, ConsumeQueue
from skylarkmq.store.queue.queue_files import QueueReader
from skylarkmq.store.queue.queue_table import QueueTable
from skylarkmq.store.read.filtering import (
    ColdMatches,
    Place,
    RecordFilter,
    count_filtered,
    read_matching,
    runs,
    settle,
)
from skylarkmq.store.read.message_reader import (
    SCANNED_UNITS_MIN,
    Filter,
    MessageReader,
    Wanted,
    nearest_in_time,
    owner_of,
)
from skylarkmq.store.results import GetMessageResult

log = logging.getLogger(__name__)

GotMessages = Done[GetMessageResult]
GotRecords = Done[list[bytes | None]]
GotOffset = Callable[[int, BaseException | None], None]

RECORD_SIZE_MAX = 1 << 30
UNITS_AHEAD = 2048
"""Units, 40 KiB, that are read for the next reads of a queue, too."""
_ALL = 1 << 62, 1 << 62  # of what a walk may take, where the worker keeps the limits


class ColdReads:
    """Reads off the loop. Loop thread; `done` is called on it, never before a call returns."""

    def __init__(
        self, env: Environment, reader: MessageReader, commit_log: CommitLog, queues: QueueTable
    ) -> None:
        self._reader = reader
        self._log = commit_log
        self._queues = queues
        self._files = env.files
        self._worker = env.workers.reads
        self._stats = env.stats

    # Messages of a queue

    def is_cold(self, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether a read from this queue offset on may have to wait for the disk."""
        if not self._reader.has_cold:
            return False
        queue = self._queues.get(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return False
        if offset < queue.tail_start:
            return True  # its unit is in a file, which may be cold itself
        commit_offset, _, _ = UNIT.unpack(self._queues.stored_units(queue, offset, 1))
        return bool(commit_offset < self._reader.cold_below)

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int | None,
        matches: Filter | None,
        done: GotMessages,
    ) -> None:
        """See `MessageReader.get_message`; `done` gets the answer, or the disk's error."""
        self._stats.cold_reads += 1
        queue = self._queues.get(topic, queue_id)
        outside = self._reader.outside(queue, offset)
        wanted = self._reader.wanted(max_count, max_bytes, matches)
        if outside is not None or queue is None:
            self._worker.submit(lambda: outside, done)
        elif offset >= queue.tail_start:
            count = max(SCANNED_UNITS_MIN, max_count)
            units = self._queues.stored_units(queue, offset, count)
            self._walk(queue, offset, units, wanted, done)
        else:
            self._read_units(queue, offset, max(SCANNED_UNITS_MIN, max_count), wanted, done)

    def _read_units(
        self, queue: ConsumeQueue, offset: int, count: int, wanted: Wanted, done: GotMessages
    ) -> None:
        read_count = min(max(count, UNITS_AHEAD), queue.written - offset)
        file_size = self._queues.units_per_file * UNIT_SIZE

        def read() -> bytes:
            files = QueueReader(self._files, file_size, handle_limit=1)
            try:
                return files.units(queue.folder, offset, read_count)
            finally:
                files.close()

        def finished(units: bytes | None, error: BaseException | None) -> None:
            outside = self._reader.outside(queue, offset)
            if outside is not None:
                done(outside, None)  # it expired meanwhile
            elif isinstance(error, FileNotFoundError) or units == b"":
                done(self._reader.gone(queue, offset), None)
            elif units is None:
                done(None, error)
            else:
                kept = units

                def read_all(result: GetMessageResult | None, error: BaseException | None) -> None:
                    if result is not None:
                        result.units = kept
                    done(result, error)

                self._walk(queue, offset, units[: count * UNIT_SIZE], wanted, read_all)

        self._worker.submit(read, finished)

    def _walk(
        self, queue: ConsumeQueue, offset: int, units: bytes, wanted: Wanted, done: GotMessages
    ) -> None:
        by_record = wanted.by_record
        if by_record is not None:
            self._walk_filtered(queue, offset, units, wanted, by_record, done)
            return
        try:
            units = self._queues.resolved(queue, units)
        except OSError as error:  # of the extension
            self._worker.submit(partial(_raise, error), done)
            return
        take = _Held(self._log, queue)
        result = self._reader.walk(queue, offset, units, wanted, take)
        places = take.places

        def finished(records: list[bytes | None] | None, error: BaseException | None) -> None:
            for mapped in take.files:
                mapped.release()
            if records is None:
                done(None, error)
                return
            for place, record in zip(places, records, strict=True):
                if record is None:
                    self._report(place)
            settle(result, [record for record in records if record is not None])
            done(result, None)

        self._worker.submit(lambda: _read_places(places, take.owner), finished)

    def _walk_filtered(
        self,
        queue: ConsumeQueue,
        offset: int,
        units: bytes,
        wanted: Wanted,
        by_record: RecordFilter,
        done: GotMessages,
    ) -> None:
        """Hold all records that may be wanted; the worker finds out and keeps the limits."""
        take = _Held(self._log, queue)
        result = self._reader.walk(queue, offset, units, Wanted(_ALL, _ALL, None), take)
        places = take.places
        is_cold = bool(places) and places[0].commit_offset < self._reader.cold_below
        limits = wanted.on_disk if is_cold else wanted.in_memory

        def finished(found: ColdMatches | None, error: BaseException | None) -> None:
            for mapped in take.files:
                mapped.release()
            if found is None:
                done(None, error)
                return
            for place in found.damaged:
                self._report(place)
            count_filtered(self._stats, found.examined, len(found.records))
            settle(result, found.records)
            if found.stopped_at >= 0:
                result.next_begin_offset = found.stopped_at
            done(result, None)

        self._worker.submit(lambda: read_matching(places, take.owner, by_record, *limits), finished)

    def _report(self, place: Place) -> None:
        self._reader.report_corrupt(place.mapped, place.commit_offset)

    # Records by their place in the log

    def read_records(self, physical_offsets: list[int], done: GotRecords) -> None:
        """Read whole records by where they start; None where no sound, visible one starts.

        What a bad sector takes is its own record's. `done` gets an error when the machine refuses
        the read: nothing is known then of any of them.
        """
        end_offset = self._reader.visible_end
        found: list[tuple[MappedFile, int, int] | None] = []
        for physical_offset in physical_offsets:
            located = self._log.locate(physical_offset) if physical_offset >= 0 else None
            if located is None or physical_offset >= end_offset:
                found.append(None)
                continue
            mapped, position = located
            mapped.hold()
            limit = min(mapped.committed_position, end_offset - mapped.start_offset)
            found.append((mapped, position, limit))

        start(self._read_found(found), done)

    async def _read_found(
        self, found: list[tuple[MappedFile, int, int] | None]
    ) -> list[bytes | None]:
        """Read records at (file, position, limit) and let their files go."""

        def read() -> list[bytes | None]:
            return [None if place is None else _read_record(*place) for place in found]

        try:
            return await run_job(self._worker, read)
        finally:
            for place in found:
                if place is not None:
                    place[0].release()

    # Bytes for slaves

    def read_part(self, offset: int, size: int, done: Done[bytes]) -> None:
        """Read stored bytes as `CommitLog.part` tells them; none where it has none."""
        located = self._log.locate(offset)
        end_offset = min(offset + size, self._log.stored_offset)
        if located is None or end_offset <= offset:
            self._worker.submit(bytes, done)
            return
        mapped, position = located
        size = min(end_offset - mapped.start_offset, mapped.committed_position) - position
        mapped.hold()  # expired or not: it stays readable

        def finished(data: bytes | None, error: BaseException | None) -> None:
            mapped.release()
            done(data, error)

        self._worker.submit(lambda: mapped.file.pread(size, position), finished)

    # Time

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, done: GotOffset) -> None:
        """Find an offset as `MessageReader.offset_by_time`, through many places of the log."""
        queue = self._queues.get(topic, queue_id)
        if queue is not None and queue.min_offset >= queue.max_offset:
            queue = None

        def find(times: _Times) -> int:
            return nearest_in_time(times.units, times.low, times.high, timestamp_ms, times.rising)

        start(self._search(queue, find), lambda found, error: done(found or 0, error))

    def message_time(self, topic: str, queue_id: int, offset: int, done: GotOffset) -> None:
        """Find the store time of one message in ms, -1 when it is not there."""
        queue = self._queues.get(topic, queue_id)
        if queue is not None and not queue.min_offset <= offset < queue.max_offset:
            queue = None
        start(
            self._search(queue, lambda times: times.of(times.units(offset, 1))),
            lambda found, error: done(-1 if found is None else found, error),
        )

    async def _search(
        self, queue: ConsumeQueue | None, find: Callable[[_Times], int]
    ) -> int | None:
        """Return what a search through the times of a queue finds; None without a queue."""
        if queue is None:
            await run_job(self._worker, lambda: None)
            return None
        times = _Times(self._log, self._queues, queue, self._files)
        try:
            return await run_job(self._worker, lambda: times.search(find))
        finally:
            times.release()


class _Held:
    """Takes records by holding their files."""

    def __init__(self, commit_log: CommitLog, queue: ConsumeQueue) -> None:
        self._log = commit_log
        self.owner = owner_of(queue)
        self.places: list[Place] = []
        self.files: list[MappedFile] = []

    def add(self, commit_offset: int, record_size: int, queue_offset: int) -> bool:
        """Take a record; False when it is not in the log anymore."""
        found = self._log.locate(commit_offset)
        if found is None or found[1] + record_size > found[0].committed_position:
            return False
        mapped, position = found
        if not self.files or self.files[-1] is not mapped:
            mapped.hold()
            self.files.append(mapped)
        self.places.append(Place(mapped, position, record_size, queue_offset))
        return True


class _Times:
    """The store times of a queue's messages, for a worker."""

    def __init__(
        self, commit_log: CommitLog, queues: QueueTable, queue: ConsumeQueue, files: Files
    ) -> None:
        self.low, self.high = queue.min_offset, queue.max_offset
        self._folder: Path = queue.folder
        self._tail_start = queue.tail_start
        self._tail = queue.tail_units(queue.tail_start, queue.max_offset - queue.tail_start)
        self._units = QueueReader(files, queues.units_per_file * UNIT_SIZE, handle_limit=4)
        self._log_file_size = commit_log.file_size
        self._steps = commit_log.clock_steps
        self._first = commit_log.min_offset
        self._held = list(commit_log.mapped_files.mapped)
        for mapped in self._held:
            mapped.hold()

    def release(self) -> None:
        """Let the log's files go. Loop thread."""
        for mapped in self._held:
            mapped.release()

    def search(self, find: Callable[[_Times], int]) -> int:
        """Find something, and close the queue's files. Blocks; reads worker."""
        try:
            return find(self)
        finally:
            self._units.close()

    def units(self, offset: int, count: int) -> bytes:
        """Return units from an offset on, at most so many, at least one. Blocks."""
        if (place := offset - self._tail_start) >= 0:
            return self._tail[place * UNIT.size : (place + count) * UNIT.size]
        return self._units.units(self._folder, offset, min(count, -place))

    def of(self, unit: bytes) -> int:
        """Return the store time of a unit's message, -1 when its record is gone. Blocks."""
        commit_offset, record_size, _ = UNIT.unpack(unit)
        index: int = (commit_offset - self._first) // self._log_file_size
        if record_size == PRE_BLANK_SIZE or not 0 <= index < len(self._held):
            return -1
        mapped = self._held[index]
        head = mapped.file.pread(FIXED_IPV6.size, commit_offset - mapped.start_offset)
        return store_timestamp_at(head, 0)

    def rising(self, unit: bytes) -> int:
        """Return the same as `ClockSteps.bounded` has it. Blocks."""
        return self._steps.bounded(UNIT.unpack(unit)[0], self.of(unit))


def _read_places(places: list[Place], owner: tuple[int, bytes] | None) -> list[bytes | None]:
    """Return the bytes of each record, None for a damaged one; neighbours are read together."""
    records: list[bytes | None] = []
    for run in runs(places):
        first, last = run[0], run[-1]
        start = first.position
        data = first.mapped.file.pread(last.position + last.size - start, start)
        for place in run:
            at = place.position - start
            sound = is_intact(data, at, place.size, place.commit_offset, place.queue_offset, owner)
            records.append(data[at : at + place.size] if sound else None)
    return records


def _read_record(mapped: MappedFile, position: int, limit: int) -> bytes | None:
    try:
        return _whole_record(mapped, position, limit)
    except OSError as error:
        if refusal(error) is not None:
            raise
        log.error("the record at %d of %s cannot be read: %s", position, mapped.file.path, error)
        return None


def _whole_record(mapped: MappedFile, position: int, limit: int) -> bytes | None:
    size = int.from_bytes(mapped.file.pread(4, position), "big")
    if not SYS_FLAG_POSITION < size <= min(RECORD_SIZE_MAX, limit - position):
        return None
    data = mapped.file.pread(size, position)
    view = read_record(data, 0, physical_offset=mapped.start_offset + position)
    return data if view.status is RecordStatus.MESSAGE and view.size == size else None


def _raise(error: OSError) -> GetMessageResult:
    raise error
