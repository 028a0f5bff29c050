"""All consume queues by topic and queue id: reading units, and what loading and recovery do.

Whatever blocks here for longer than a short `pread` belongs to loading and stopping; publishing and
writing in the background are in `queue_table.py`.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java (consumeQueueTable,
loadConsumeQueue, recoverConsumeQueue, truncateDirtyLogicFiles)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from skylarkmq.common.files import Files
from skylarkmq.store.checkpoint import Checkpoint, Marks
from skylarkmq.store.errors import StoreProfileError
from skylarkmq.store.folder import StorePaths
from skylarkmq.store.progress import Progress, no_progress
from skylarkmq.store.queue.consume_queue import (
    EXT_UNIT_MAX,
    LONG_MIN,
    PRE_BLANK_SIZE,
    UNIT,
    UNIT_SIZE,
    Bitmap,
    ConsumeQueue,
    ConsumeQueueExt,
    bitmaps,
    first_unit_at,
    is_address,
    unit_size_at,
    with_tags_codes,
)
from skylarkmq.store.queue.queue_files import QueueReader, QueueWrite, QueueWriter
from skylarkmq.store.queue.queue_scanner import QueueScanner
from skylarkmq.store.results import ConsumeQueueUnit

log = logging.getLogger(__name__)

QueueKey = tuple[str, int]
QueueEnd = tuple[ConsumeQueue, int, int]  # (queue, unit, byte of its extension) behind the last one
IsSound = Callable[[ConsumeQueue, int, ConsumeQueueUnit], bool]  # (queue, queue offset, unit)
LOAD_WRITE_SIZE = 8 << 20  # bytes of unwritten units, over all queues, that a rebuild may hold
EXT_SIZE = 50_331_648


class LoadedQueues:
    """The consume queues of a store. Loop thread, or the loading thread."""

    def __init__(
        self,
        files: Files,
        paths: StorePaths,
        file_size: int,
        *,
        ext_file_size: int = EXT_SIZE,
        write_ext: bool = False,
    ) -> None:
        self._files = files
        self._paths = paths
        self._file_size = file_size
        self._ext_file_size = ext_file_size
        self.writes_ext = write_ext
        self.checkpoint = Checkpoint(files, paths.checkpoint, paths.recovery_point)
        self.writer = QueueWriter(files, file_size)
        self.ext_writer = QueueWriter(files, ext_file_size)
        self._reader = QueueReader(files, file_size)
        self._ext_reader = QueueReader(files, ext_file_size)
        self.queues: dict[QueueKey, ConsumeQueue] = {}
        self.dirty: list[ConsumeQueue] = []
        self.held: set[str] = set()  # topics on their way out: nothing of them goes to the disk
        self._ext_topics: frozenset[str] = frozenset()  # with a folder of extensions, at the load
        self.lacking = False  # a queue has no unit for messages before others of it
        self._rebuilt_size = 0  # bytes of units built again and not written yet

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, None when nothing was ever stored in it."""
        return self.queues.get((topic, queue_id))

    def totals(self) -> tuple[int, int]:
        """How many queues have units, and the sum of their ends."""
        ends = [queue.max_offset for queue in self.queues.values() if queue.max_offset]
        return len(ends), sum(ends)

    def open(self, topic: str, queue_id: int, folder: Path | None = None) -> ConsumeQueue:
        """The queue, made when it is new. For writers, which have checked the topic."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            folder = folder or self._paths.queue_folder(topic, queue_id)
            queue = self.queues[topic, queue_id] = ConsumeQueue(topic, queue_id, folder)
            queue.dirty = topic in self.held
            if self.writes_ext:
                queue.ext = self._extension_of(queue)
        return queue

    def _extension_of(self, queue: ConsumeQueue) -> ConsumeQueueExt:
        folder = self._paths.queue_ext_folder(queue.topic, queue.queue_id)
        return ConsumeQueueExt(folder, self._ext_file_size)

    # Reading

    @property
    def units_per_file(self) -> int:
        return self._file_size // UNIT_SIZE

    def units(self, queue: ConsumeQueue, offset: int, max_count: int) -> bytes:
        """Bytes of published units from `offset` on; stops at the end of a queue file.

        Tags codes that lie in the extension are in their place. A read of units that are no longer
        in memory is a short `pread`.
        """
        return self.resolved(queue, self.stored_units(queue, offset, max_count))

    def resolved(self, queue: ConsumeQueue, units: bytes) -> bytes:
        """Units as they lie in the file, with the tags codes in the place of addresses."""
        return units if queue.ext is None else with_tags_codes(units, partial(self.read_ext, queue))

    def bitmaps(self, queue: ConsumeQueue, units: bytes) -> Iterator[Bitmap]:
        """Filter bitmaps of units as they lie in the file."""
        return iter(()) if queue.ext is None else bitmaps(units, partial(self.read_ext, queue))

    def stored_units(self, queue: ConsumeQueue, offset: int, max_count: int) -> bytes:
        """`units` as they lie in the file, with addresses of the extension."""
        if offset >= queue.tail_start:
            return queue.tail_units(offset, max_count)
        count = min(max_count, queue.written - offset)
        return self._reader.units(queue.folder, offset, count)

    def read_ext(self, queue: ConsumeQueue, position: int, size: int) -> bytes:
        """Bytes of a queue's extension; fewer at the end of a file, none when it is not there."""
        ext = queue.ext
        if ext is None or position >= ext.end_offset:
            return b""
        if position >= ext.written:
            start = position - ext.written
            return bytes(ext.tail[start : start + size])
        try:
            return self._ext_reader.read(ext.folder, position, min(size, ext.written - position))
        except FileNotFoundError:
            return b""

    def first_at(self, queue: ConsumeQueue, physical_offset: int) -> int:
        """Queue offset of the first unit whose record is at or behind `physical_offset`."""
        return first_unit_at(
            lambda unit: self.stored_units(queue, unit, 1),
            queue.first_offset,
            queue.max_offset,
            physical_offset,
        )

    # Loading and recovery: the calls below block

    def load(self, *, unclean: bool, progress: Progress = no_progress) -> None:
        """Open every queue that has files, its end where the written units end."""
        scanner = QueueScanner(self._files, self._file_size)
        topics = self._files.list(self._paths.consume_queue)
        self._ext_topics = frozenset(self._files.list(self._paths.consume_queue_ext))
        for number, topic in enumerate(topics):
            progress("opening the queues of topics", number, len(topics))
            for name in self._files.list(self._paths.consume_queue / topic):
                if not (name.isascii() and name.isdigit() and len(name) < 10):
                    path = self._paths.consume_queue / topic / name
                    raise StoreProfileError(f"{path} is not a queue; move it out of the folder")
                self._load_queue(scanner, topic, int(name), unclean=unclean)

    def _load_queue(
        self, scanner: QueueScanner, topic: str, queue_id: int, *, unclean: bool
    ) -> None:
        folder = self._paths.queue_folder(topic, queue_id)
        extent = scanner.scan(folder, unclean=unclean)
        if extent is None:
            return
        queue = self.open(topic, queue_id, folder)
        queue.found(extent.first_offset, extent.end_offset, extent.last_units)
        self._note_last(queue)
        if extent.has_gap:
            log.warning("%s lacks a file behind unit %d", folder, extent.end_offset)
            self.lacking = True
        self._load_extension(queue, unclean=unclean)

    def _load_extension(self, queue: ConsumeQueue, *, unclean: bool) -> None:
        """Find the end of the extension; units whose extension is gone are as good as lost."""
        end = None
        if queue.topic in self._ext_topics:
            folder = self._paths.queue_ext_folder(queue.topic, queue.queue_id)
            end = self._ext_scanner().extension_end(folder, unclean=unclean)
        if end is not None or self.writes_ext:
            queue.ext = self._extension_of(queue)
            queue.ext.reset(end or 0)
        if not self._trim_extension(queue):
            log.warning("the extension of %s ends before its units do", queue.folder)
            self.lacking = True

    def _ext_scanner(self) -> QueueScanner:
        return QueueScanner(self._files, self._ext_file_size, "mappedFileSizeConsumeQueueExt")

    def _trim_extension(self, queue: ConsumeQueue) -> bool:
        """Let the extension end behind the unit of the queue's last unit; False if it lacks it."""
        ext = queue.ext
        if queue.max_offset == queue.first_offset:
            if ext is not None:
                self._ext_reader.close()
                self._ext_scanner().remove_all(ext.folder)
                ext.reset(0)
            return True
        _, _, address = UNIT.unpack(self.stored_units(queue, queue.max_offset - 1, 1))
        if not is_address(address):
            return True
        position = address - LONG_MIN
        size = unit_size_at(self.read_ext(queue, position, EXT_UNIT_MAX), 0)
        if size <= 0:
            return False
        end = position + size
        if ext is not None and end < ext.end_offset:
            self._ext_reader.close()
            self._ext_scanner().cut(ext.folder, end)
            ext.reset(end)
        return True

    def _note_last(self, queue: ConsumeQueue) -> None:
        queue.max_physical_offset = 0
        if queue.max_offset > queue.first_offset:
            unit = self.stored_units(queue, queue.max_offset - 1, 1)
            commit_offset, record_size, _ = UNIT.unpack(unit)
            if record_size != PRE_BLANK_SIZE:
                queue.max_physical_offset = commit_offset + record_size

    def cut(self, physical_offset: int, is_sound: IsSound) -> None:
        """Remove the units of records at or behind `physical_offset` from every queue.

        A unit from there on may be torn, or a hole where its page was lost, and then it says
        nothing about where the others begin. So one stays only if the log confirms it.
        """
        for queue in list(self.queues.values()):
            end = self._confirmed_end(queue, physical_offset, is_sound)
            if end < queue.max_offset:
                self._cut_queue(queue, end)

    def clear(self, log_min_offset: int) -> None:
        """Remove the units of all records that the log holds, and what may hide behind them.

        The units of expired records stay: they tell which queue offsets were given out.
        """
        self.dirty.clear()
        self._rebuilt_size = 0
        self.lacking = False
        for queue in list(self.queues.values()):
            # Padding that a walk has put in for what is missing is in memory alone.
            self._cut_queue(queue, min(queue.written, self.first_at(queue, log_min_offset)))

    def _cut_queue(self, queue: ConsumeQueue, end: int) -> None:
        first_offset = queue.first_offset
        self._reader.close()
        QueueScanner(self._files, self._file_size).cut(queue.folder, end * UNIT_SIZE)
        queue.reset(end)
        queue.first_offset = queue.min_offset = first_offset
        if end == 0:
            del self.queues[queue.topic, queue.queue_id]
        self._note_last(queue)
        self._trim_extension(queue)

    def _confirmed_end(self, queue: ConsumeQueue, physical_offset: int, is_sound: IsSound) -> int:
        """Queue offset behind the last unit of a record below `physical_offset`."""
        # Invariant: units below `low` stay, units from `high` on go.
        low, high = queue.first_offset, queue.max_offset
        middle = high - 1  # mostly nothing has to go
        while low < high:
            unit = ConsumeQueueUnit(*UNIT.unpack(self.stored_units(queue, middle, 1)))
            if unit.record_size == PRE_BLANK_SIZE or (
                unit.commit_offset < physical_offset and is_sound(queue, middle, unit)
            ):
                low = middle + 1
            else:
                high = middle
            middle = (low + high) // 2
        return low

    def rebuild_unit(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        unit: tuple[int, int, int],
        store_timestamp: int = 0,
    ) -> None:
        """Put back the unit of a record found in the log, unless the queue has it.

        A queue that lost its files begins at this unit. A gap, which only damaged files leave, is
        filled with padding, so that every message keeps its queue offset (`Unlike RocketMQ`, which
        writes the unit at the wrong place). Both are noted in `lacking`.
        """
        queue = self.open(topic, queue_id)
        commit_offset, record_size, tags_code = unit
        record_end = commit_offset + record_size
        is_empty = queue.max_offset == queue.first_offset
        is_there = record_end <= queue.max_physical_offset or queue_offset < queue.max_offset
        if is_there and not is_empty:
            return
        if queue_offset != queue.max_offset:
            self.lacking = True
            if is_empty:
                self._move_start(queue, queue_offset)
        while queue.max_offset < queue_offset:
            queue.append(0, PRE_BLANK_SIZE, 0)
            self.count_rebuilt()
        if self.writes_ext and queue.ext is not None:
            tags_code = queue.ext.append(tags_code, store_timestamp)
        queue.append(commit_offset, record_size, tags_code)
        queue.next_offset = queue.max_offset
        self.count_rebuilt()

    def _move_start(self, queue: ConsumeQueue, offset: int) -> None:
        """Let a queue without units begin elsewhere; its empty file would leave a gap."""
        self._reader.close()
        QueueScanner(self._files, self._file_size).remove_all(queue.folder)
        queue.reset(offset)

    def count_rebuilt(self, count: int = 1) -> None:
        """Note units that a rebuild appended to queues; many of them are written."""
        self._rebuilt_size += count * UNIT_SIZE
        if self._rebuilt_size >= LOAD_WRITE_SIZE:
            self.write_now()

    def take_unwritten(self) -> tuple[list[QueueWrite], list[QueueWrite], list[QueueEnd]]:
        """Hand over what the dirty queues hold: units, extensions, and up to where they go."""
        dirty, self.dirty = self.dirty, []
        writes: list[QueueWrite] = []
        ext_writes: list[QueueWrite] = []
        ends: list[QueueEnd] = []
        for queue in dirty:
            starts_queue = queue.written == queue.first_offset
            position = queue.written * UNIT_SIZE
            writes.append(QueueWrite(queue.folder, position, queue.unwritten(), starts_queue))
            ext, ext_end = queue.ext, 0
            if ext is not None and ext.tail:
                ext_writes.append(QueueWrite(ext.folder, ext.written, bytes(ext.tail)))
                ext_end = ext.end_offset
            ends.append((queue, queue.max_offset, ext_end))
        return writes, ext_writes, ends

    def write_now(self, marks: Marks | None = None) -> None:
        """Write all units here and now; with `marks`, sync them and save the checkpoint."""
        # Of all queues, not of the dirty list alone: a job that was handed to a worker which had
        # ended took its queues off the list and never ran.
        self.dirty = [queue for queue in self.queues.values() if queue.unwritten_size]
        writes, ext_writes, ends = self.take_unwritten()
        self._rebuilt_size = 0
        try:
            self.ext_writer.write(ext_writes)
            self.writer.write(writes)
        except OSError:
            self.dirty = [queue for queue, _, _ in ends]
            for queue in self.dirty:
                queue.dirty = True
            raise
        for end in ends:
            mark_written(end)
            end[0].drop_tail()
            end[0].dirty = False
        if marks is not None:
            self.ext_writer.sync()
            self.writer.sync()
            self.checkpoint.save(marks)

    def correct_min_offsets(self, log_min_offset: int) -> None:
        """Move each queue's first readable unit up to the start of the log: the load is over."""
        for queue in self.queues.values():
            queue.min_offset = self.first_at(queue, log_min_offset)
            queue.drop_tail()

    def close(self) -> None:
        self.writer.close()
        self.ext_writer.close()
        self._reader.close()
        self._ext_reader.close()


def mark_written(end: QueueEnd) -> None:
    """The queue's units, and its extension, are in the files up to here."""
    queue, unit_end, ext_end = end
    if queue.ext is not None and ext_end:
        queue.ext.mark_written(ext_end)
    queue.mark_written(unit_end)
