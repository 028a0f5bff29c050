"""The commit log: one endless sequence of records in files of one size, shared by all topics.

Written by one `pwrite` for each read of a socket, read through mappings, synced on the flush
thread. A reader sees what is written; under SYNC_FLUSH the queues show a record only once it is
synced (`message_store.py`).

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../CommitLog.java
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from skylarkmq.protocol.clock import Clock
from skylarkmq.protocol.record import RecordStatus, RecordView, read_record
from skylarkmq.store.allocate_service import AllocateService
from skylarkmq.store.append import AppendBatch, DueTime
from skylarkmq.store.files import Files
from skylarkmq.store.mapped_file import MappedFile
from skylarkmq.store.mapped_file_queue import MappedFileQueue
from skylarkmq.store.stats import StoreStats
from skylarkmq.store.worker import Worker


class FlushRequest(NamedTuple):
    """What a flush has to sync: files with unsynced bytes, and the end they stand for."""

    files: list[MappedFile]
    end_offset: int
    store_timestamp: int  # of the last record before end_offset, ms

    def run(self) -> None:
        """Sync the files, older ones first. Blocks; flush thread."""
        for mapped in self.files:
            mapped.file.datasync()


class CommitLog:
    """Append, read and flush bookkeeping of the log. Loop thread."""

    def __init__(
        self,
        files: Files,
        worker: Worker,
        clock: Clock,
        stats: StoreStats,
        folder: Path,
        file_size: int,
        due_time: DueTime,
    ) -> None:
        self._clock = clock
        self.file_size = file_size
        self.mapped_files = MappedFileQueue(files, folder, file_size)
        self._allocate = AllocateService(files, worker, clock, stats, folder, file_size)
        self.batch = AppendBatch(file_size, self._next_file, due_time)
        self.flushed_offset = 0
        self.store_timestamp = 0  # of the newest record; never goes back within a run

    @property
    def min_offset(self) -> int:
        return self.mapped_files.min_offset

    @property
    def max_offset(self) -> int:
        """End of what is written and readable."""
        return self.mapped_files.max_offset

    def begin(self) -> AppendBatch:
        """Start the batch of one read. The store time is taken here, once, and is monotonic."""
        now_ms = self._clock.now_ms()
        if now_ms > self.store_timestamp:
            self.store_timestamp = now_ms
        self.batch.begin(self.mapped_files.last, self.store_timestamp)
        return self.batch

    def open_first(self) -> None:
        """Have a file to write to before serving, and the next one on its way.

        Raises:
            StoreFullError, OSError: the file could not be made.
        """
        last = self.mapped_files.last
        if last is None:
            self._next_file()
        else:
            self._allocate.prepare(last.start_offset + self.file_size)

    def _next_file(self) -> MappedFile:
        last = self.mapped_files.last
        start_offset = 0 if last is None else last.start_offset + self.file_size
        mapped = self._allocate.take(start_offset)
        self.mapped_files.add(mapped)
        self._allocate.prepare(start_offset + self.file_size)
        return mapped

    # Reading

    def record(self, physical_offset: int, size: int) -> memoryview | None:
        """The bytes of a record, None when its file is gone or it is not written."""
        mapped = self.mapped_files.find(physical_offset)
        if mapped is None:
            return None
        position = physical_offset - mapped.start_offset
        if position + size > mapped.committed_position:
            return None
        return mapped.view[position : position + size]

    def read(self, physical_offset: int) -> RecordView | None:
        """Check and parse the record that starts at `physical_offset`, None if none does."""
        found = self.locate(physical_offset)
        if found is None:
            return None
        mapped, position = found
        view = read_record(
            mapped.view, position, limit=mapped.committed_position, physical_offset=physical_offset
        )
        return view if view.status is RecordStatus.MESSAGE else None

    def locate(self, physical_offset: int) -> tuple[MappedFile, int] | None:
        """File and position of a byte of the log that is written."""
        mapped = self.mapped_files.find(physical_offset)
        if mapped is None or physical_offset - mapped.start_offset >= mapped.committed_position:
            return None
        return mapped, physical_offset - mapped.start_offset

    def next_file_offset(self, physical_offset: int) -> int:
        """Start of the file behind the one that the offset falls into."""
        return physical_offset - physical_offset % self.file_size + self.file_size

    # Flushing

    def flush_request(self) -> FlushRequest | None:
        """What is written and not synced, None when nothing is."""
        end_offset = self.max_offset
        if end_offset == self.flushed_offset:
            return None
        first = self.mapped_files.find(self.flushed_offset) or self.mapped_files.mapped[0]
        index = self.mapped_files.mapped.index(first)
        files = [
            mapped
            for mapped in self.mapped_files.mapped[index:]
            if mapped.committed_position > mapped.flushed_position
        ]
        return FlushRequest(files, end_offset, self.store_timestamp)

    def mark_flushed(self, request: FlushRequest) -> None:
        """The request's sync succeeded: everything below its end is on the disk."""
        for mapped in request.files:
            end = min(request.end_offset - mapped.start_offset, mapped.size)
            mapped.flushed_position = max(mapped.flushed_position, end)
        self.flushed_offset = request.end_offset

    def rewind(self, end_offset: int, store_timestamp: int) -> None:
        """Recovery found the end of the log; all below it is synced."""
        self.flushed_offset = end_offset
        self.store_timestamp = store_timestamp

    def close(self) -> None:
        """Delete the file made ahead, unmap the rest. Blocks; after the workers have ended."""
        self._allocate.discard()
        self.mapped_files.close()
