"""The commit log: one endless sequence of records in files of one size, shared by all topics.

Written once for each batch, read through mappings, synced on the flush thread. A reader
sees what is committed; under SYNC_FLUSH the queues show a record only after it is synced
(`message_writer.py`). How a batch reaches its file is the write mode's (`log_writer.py`):

    transientStorePoolEnable            pool
    else commitLogWriteMode=mapped      mapped, warmed with warmMapedFileEnable
    else                                pwrite

    offset             end of what is
    wrote_offset       handed in
    written_offset     in its file, or in a buffer of the pool
    max_offset         committed without a gap: readable, and what a flush syncs
    flushed_offset     on the disk

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../CommitLog.java, MappedFileQueue.java,
config/MessageStoreConfig.java
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from skylarkmq.protocol.record import RecordStatus, RecordView, read_record
from skylarkmq.store.environment import Environment
from skylarkmq.store.log.allocate_service import PATIENCE_S, AllocateService
from skylarkmq.store.log.append import AppendBatch, DueTime
from skylarkmq.store.log.clock_steps import BACK_MAX_MS, ClockSteps
from skylarkmq.store.log.flushed_offset import FlushedOffset
from skylarkmq.store.log.log_writer import LogWriter, Piece
from skylarkmq.store.log.mapped_file import MappedFile
from skylarkmq.store.log.mapped_file_queue import MappedFileQueue
from skylarkmq.store.log.mapped_writer import MappedWriter, WarmedWriter
from skylarkmq.store.log.pool_writer import PoolWriter
from skylarkmq.store.log.pwrite_writer import PwriteWriter
from skylarkmq.store.log.transient_store_pool import TransientStorePool

log = logging.getLogger(__name__)

PAGE_SIZE = 4096  # what the keys that count dirty pages mean by one

# Room that a new log file needs beside itself: queue units and index items of its messages.
_SIDE_BYTES_PER_MESSAGE = 3 * 20  # a unit, and the items of two keys
_RECORD_SIZE_GUESS = 1024  # bytes, as long as nothing was appended


class CommitRequest(NamedTuple):
    """What a commit has to write from memory to files, and the log's end after it."""

    pieces: list[Piece]
    end_offset: int
    store_timestamp: int  # of the last record before end_offset, ms

    def run(self) -> None:
        """Write the bytes, older ones first. Blocks; commit thread, or flush thread."""
        for piece in self.pieces:
            piece.mapped.file.pwrite(piece.data, piece.position)


class FlushRequest(NamedTuple):
    """What a flush has to sync: files with unsynced bytes, and the log's synced end after it."""

    files: list[MappedFile]
    end_offset: int
    store_timestamp: int  # of the last record before end_offset, ms
    commit: CommitRequest | None  # to be done first
    flushed: FlushedOffset

    def run(self) -> None:
        """Sync the files, older ones first, then say so. Blocks; flush thread."""
        if self.commit is not None:
            self.commit.run()
        for mapped in self.files:
            mapped.file.datasync()
        self.flushed.write(self.end_offset)


class CommitLog:
    """Append, read and flush bookkeeping of the log. Loop thread.

    Its size is one idea: one sequence of bytes, and how far each thing has come in it.
    """

    def __init__(self, env: Environment, due_time: DueTime) -> None:
        """Make the log of a store's folder; nothing is touched yet."""
        config = env.config
        self._env = env
        self.file_size = file_size = config.mapped_file_size_commit_log
        self._syncs = config.flush_disk_type == "SYNC_FLUSH"
        writer = self.writer = log_writer(env)
        self.mapped_files = MappedFileQueue(env.files, env.paths.commit_log, file_size)
        self._allocate = AllocateService(env, equip=writer.prepare, room=self._room)
        self.batch = AppendBatch(file_size, writer, self._next_file, self._join, due_time)
        self._ahead: list[MappedFile] = []  # that the open batch rolled into, not of the log yet
        self._first_offset = 0  # where a log without files begins
        self.flushed_offset = 0
        self.store_timestamp = 0  # of the newest record
        self.clock_steps = ClockSteps()  # where it went back
        # Of the last record that is committed, or older; kept up to date by commits and syncs.
        self._committed_timestamp = 0
        self._flushed = FlushedOffset(env.files, env.paths.flushed_offset)
        self._unready: MappedFile | None = None  # the last file of an earlier run, not allocated

    @property
    def min_offset(self) -> int:
        return self.mapped_files.min_offset

    @property
    def max_offset(self) -> int:
        """End of what is committed and readable."""
        return self.writer.committed_offset

    @property
    def pool(self) -> TransientStorePool | None:
        """The buffers of write mode pool; None in the others."""
        return self.writer.pool

    @property
    def no_room(self) -> str:
        """Why the last request for the next log file was refused; empty if it was not."""
        return self._allocate.no_room

    @property
    def wrote_offset(self) -> int:
        """End of what was handed in."""
        last = self.mapped_files.last
        return last.start_offset + last.wrote_position if last else 0

    @property
    def written_offset(self) -> int:
        """End of what was handed in and did not leave the loop: in a file, or in a buffer."""
        later = self.writer.later
        return later[0].offset if later else self.wrote_offset

    def begin(self, newest_ms: int | None = None) -> AppendBatch:
        """Start a batch. The store time is taken here, once; see `clock_steps.py` if it goes back.

        Args:
            newest_ms: the newest store time of records that another broker has laid out; None: the
                batch gets the time of now.
        """
        now_ms = self._env.clock.now_ms() if newest_ms is None else newest_ms
        if now_ms > self.store_timestamp:
            if now_ms > self.clock_steps.open_ms:
                self.clock_steps.rise(self.store_timestamp, now_ms)
            self.store_timestamp = now_ms
        elif self.store_timestamp - now_ms > BACK_MAX_MS:
            self._go_back(now_ms, is_own=newest_ms is None)
        last = self.mapped_files.last if self._unready is None else None
        self.batch.begin(last, self.store_timestamp)
        return self.batch

    def _go_back(self, now_ms: int, *, is_own: bool) -> None:
        before_ms, self.store_timestamp = self.store_timestamp, now_ms
        self.clock_steps.add(self.wrote_offset, now_ms, before_ms)
        if is_own:
            self._env.stats.clock_steps += 1
            log.warning(
                "the clock is %d s behind the newest message: it was ahead before, or is behind "
                "now. Messages from offset %d of the log on get its time; for searches by time "
                "those before were stored now at the latest. Look at the machine's time service",
                (before_ms - now_ms) // 1000,
                self.wrote_offset,
            )

    # Files to write to

    def open_first(self) -> None:
        """Make a file to write to, and ask for the next one; before the store serves.

        Raises:
            StoreFullError, OSError: the file could not be made.
        """
        self._unready = self.mapped_files.last
        if self._unready is None or self._unready.wrote_position == self.file_size:
            self._unready = None
            self._next_file(None)
            self._join()
        else:
            self._resume(self._unready, None)

    def start_at(self, offset: int) -> None:
        """Let a log without files begin elsewhere than at 0: it is the copy of another one.

        Args:
            offset: where a file starts.

        Raises:
            StoreFullError, OSError: the file could not be made, or is not ready yet; ask again.
        """
        assert self.mapped_files.last is None and offset % self.file_size == 0
        self._first_offset = self.flushed_offset = offset
        self._next_file()
        self.writer.rewind(offset)
        self._join()

    def _resume(self, mapped: MappedFile, patience_s: float | None) -> MappedFile:
        """Make the last file of an earlier run ready; a Java broker leaves it without blocks."""
        self._allocate.resume(mapped, patience_s)
        try:
            self.writer.resume(mapped)
        except OSError as error:
            raise self._allocate.refused(error) from error
        self._unready = None
        self.writer.enter(mapped)
        self._allocate.prepare(mapped.start_offset + self.file_size)
        return mapped

    def _next_file(self, patience_s: float | None = PATIENCE_S) -> MappedFile:
        if self._unready is not None:
            return self._resume(self._unready, patience_s)
        self.writer.check_next()
        last = self._ahead[-1] if self._ahead else self.mapped_files.last
        start_offset = self._first_offset if last is None else last.start_offset + self.file_size
        mapped = self._allocate.take(start_offset, patience_s)
        self.writer.enter(mapped)
        self._ahead.append(mapped)
        self._allocate.prepare(start_offset + self.file_size)
        return mapped

    def _join(self) -> None:
        """Let the files that a batch rolled into be the log's: all before them is written.

        Sooner, a sync that ended while the batch was open would take the rest of the old file,
        which lay in the batch, for synced.
        """
        for mapped in self._ahead:
            self.mapped_files.add(mapped)
        self._ahead.clear()

    def _room(self) -> int:
        """Return the bytes that must be free for a new file, its queue units and index items."""
        count = self._env.stats.messages_appended
        record_size = self._env.stats.bytes_appended // count if count else _RECORD_SIZE_GUESS
        return self.file_size + self.file_size // record_size * _SIDE_BYTES_PER_MESSAGE

    # Reading

    @property
    def stored_offset(self) -> int:
        """End of what the flush mode calls stored: synced under SYNC_FLUSH, else in the files.

        It is the end of a record. What a master sends to its slaves lies below it, and so does what
        a slave confirms: a power cut takes nothing of that under SYNC_FLUSH.
        """
        return self.flushed_offset if self._syncs else self.max_offset

    def part(self, offset: int, size: int) -> memoryview:
        """Return stored bytes from `offset` on, whatever they are: at most `size`, of one file.

        Empty at the end of what is stored, and where the log has no file.
        """
        mapped = self.mapped_files.find(offset)
        if mapped is None:
            return memoryview(b"")
        position = offset - mapped.start_offset
        stored = self.stored_offset - mapped.start_offset
        end = min(position + size, mapped.committed_position, stored)
        return mapped.view[position : max(position, end)]

    def record(self, physical_offset: int, size: int) -> memoryview | None:
        """Return the bytes of a record, None when its file is gone or it is not written."""
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
        """Return file and position of a byte of the log, None when it is not written or is gone."""
        mapped = self.mapped_files.find(physical_offset)
        if mapped is None or physical_offset - mapped.start_offset >= mapped.committed_position:
            return None
        return mapped, physical_offset - mapped.start_offset

    def next_file_offset(self, physical_offset: int) -> int:
        """Return the start of the file after the one that the offset falls into."""
        return physical_offset - physical_offset % self.file_size + self.file_size

    # Committing what waits in memory

    def commit_request(self, least_pages: int = 0) -> CommitRequest | None:
        """Return what lies only in memory; None when that is nothing, or touches too few pages.

        Args:
            least_pages: pages that buffers must have for a commit; what left the loop is always
                due.
        """
        start_offset, end_offset = self.max_offset, self.wrote_offset
        least_pages = 0 if self.writer.later else least_pages
        if not _is_due(start_offset, end_offset, least_pages, self.file_size):
            return None
        return CommitRequest(self.writer.pieces(), end_offset, self.store_timestamp)

    def mark_committed(self, request: CommitRequest) -> None:
        """Note that the request's bytes are in the files."""
        self.writer.committed(request.pieces)
        self._committed_timestamp = request.store_timestamp

    def _files_from(self, offset: int) -> list[MappedFile]:
        first = self.mapped_files.find(offset)
        mapped = self.mapped_files.mapped
        return mapped if first is None else mapped[mapped.index(first) :]

    # Flushing

    def flush_request(self, least_pages: int = 0, *, commit: bool = False) -> FlushRequest | None:
        """Return what is not synced; None when that is nothing, or touches too few pages.

        Args:
            commit: include what lies only in memory.
        """
        request = self.commit_request() if commit else None
        if request is not None:
            end_offset, timestamp = request.end_offset, request.store_timestamp
        else:
            end_offset, timestamp = self.max_offset, self.store_timestamp
            if end_offset < self.wrote_offset:
                timestamp = self._committed_timestamp
        if not _is_due(self.flushed_offset, end_offset, least_pages, self.file_size):
            return None
        committing = {piece[0] for piece in request.pieces} if request is not None else ()
        files = [
            mapped
            for mapped in self._files_from(self.flushed_offset)
            if mapped.committed_position > mapped.flushed_position or mapped in committing
        ]
        return FlushRequest(files, end_offset, timestamp, request, self._flushed)

    def mark_flushed(self, request: FlushRequest) -> None:
        """Note that the request's sync succeeded: everything below its end is on the disk."""
        if request.commit is not None:
            self.mark_committed(request.commit)
        for mapped in request.files:
            end = min(request.end_offset - mapped.start_offset, mapped.size)
            mapped.flushed_position = max(mapped.flushed_position, end)
        self.flushed_offset = request.end_offset
        self._committed_timestamp = request.store_timestamp

    def synced_end(self) -> int:
        """Return where the synced part ended, as our last run noted it; -1 is unknown. Blocks."""
        return self._flushed.load()

    def lower_synced_end(self, end_offset: int) -> None:
        """Say, durably, that no more than this was synced: the rest is about to go. Blocks."""
        if self._flushed.load() > end_offset:
            self._flushed.open(end_offset)
            self._flushed.close()

    def rewind(self, end_offset: int, store_timestamp: int) -> None:
        """Take over the end of the log that recovery found; all below it is synced. Blocks."""
        self._flushed.open(end_offset)
        self.flushed_offset = end_offset
        self.writer.rewind(end_offset)
        self.store_timestamp = self._committed_timestamp = store_timestamp

    def unload(self) -> None:
        """Let the loaded files go, to load them again; before `open_first`."""
        self._flushed.close()
        self.mapped_files.close()

    def forget_end(self) -> None:
        """Take back what `rewind` noted: the log's empty file goes. Blocks."""
        self._flushed.close()
        self.rewind(0, 0)

    def close(self) -> None:
        """Delete the file made ahead, unmap the rest. Blocks; after the workers have ended."""
        self._allocate.discard()
        self._flushed.close()
        for mapped in self._ahead:
            mapped.close()
        self.mapped_files.close()
        self.writer.close()


def log_writer(env: Environment) -> LogWriter:
    """Return the strategy of the write mode that the configuration asks for."""
    config = env.config
    if config.transient_store_pool_enable:
        pool = TransientStorePool(
            config.mapped_file_size_commit_log, config.transient_store_pool_size
        )
        return PoolWriter(pool, fails_without_buffer=config.fast_fail_if_no_buffer_in_store_pool)
    if config.commit_log_write_mode == "pwrite":
        return PwriteWriter()
    if config.warm_maped_file_enable:
        step_size = config.flush_least_pages_when_warm_maped_file * PAGE_SIZE
        return WarmedWriter(env.workers.prepare, step_size)
    return MappedWriter()


def _is_due(start: int, end: int, least_pages: int, file_size: int) -> bool:
    """Return whether [start, end) of the log touches enough pages, or fills a file."""
    if least_pages == 0 or start // file_size < end // file_size:
        return end > start
    return end // PAGE_SIZE - start // PAGE_SIZE >= least_pages
