"""All consume queues by topic and queue id: publishing units, writing them in the background.

Publishing touches memory only. Each `flushIntervalConsumeQueue` (and sooner when a queue has much
unwritten) the new units of all queues go to their files; each `flushConsumeQueueThoroughInterval`
those files are synced and the checkpoint follows. Both run on the queues thread, one job at a time.

Unlike RocketMQ, a queue exists only once a message was stored in it: asking for an unknown one
allocates nothing.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java (consumeQueueTable,
FlushConsumeQueueService)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from skylarkmq.store.checkpoint import Checkpoint, Marks
from skylarkmq.store.consume_queue import (
    PRE_BLANK_SIZE,
    TAIL_WRITE_COUNT,
    UNIT,
    UNIT_SIZE,
    ConsumeQueue,
)
from skylarkmq.store.errors import StoreProfileError
from skylarkmq.store.files import Files, is_no_space
from skylarkmq.store.paths import StorePaths
from skylarkmq.store.queue_files import QueueReader, QueueScanner, QueueWrite, QueueWriter
from skylarkmq.store.results import ConsumeQueueUnit
from skylarkmq.store.worker import Worker

if TYPE_CHECKING:
    from skylarkmq.store.append import Unit

log = logging.getLogger(__name__)

QueueKey = tuple[str, int]
IsSound = Callable[[ConsumeQueue, int, ConsumeQueueUnit], bool]  # (queue, queue offset, unit)
LOAD_WRITE_SIZE = 1 << 20  # bytes of unwritten units, over all queues, that a rebuild may hold


class QueueTable:
    """The consume queues of a store. Loop thread, but for the jobs it hands to the worker."""

    def __init__(
        self,
        files: Files,
        worker: Worker,
        paths: StorePaths,
        file_size: int,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._files = files
        self._worker = worker
        self._paths = paths
        self._file_size = file_size
        self._on_failure = on_failure
        self._checkpoint = Checkpoint(files, paths.checkpoint)
        self._writer = QueueWriter(files, file_size)
        self._reader = QueueReader(files, file_size)
        self.queues: dict[QueueKey, ConsumeQueue] = {}
        self._dirty: list[ConsumeQueue] = []
        self._cooling: list[ConsumeQueue] = []  # written at the last turn, maybe idle now
        self._writing = False
        self._sync_wanted: Marks | None = None
        self._ended = False
        self.disk_full = False
        self.lacking = False  # a rebuilt queue had no unit for messages before the rebuilt ones

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, None when nothing was ever stored in it."""
        return self.queues.get((topic, queue_id))

    def open(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made when it is new. For writers, which have checked the topic."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            folder = self._paths.queue_folder(topic, queue_id)
            queue = self.queues[topic, queue_id] = ConsumeQueue(topic, queue_id, folder)
        return queue

    def publish(self, units: Iterable[Unit]) -> None:
        """Make stored records visible in their queues."""
        for queue, queue_offset, physical_offset, record_size, tags_code, _, _ in units:
            if queue_offset < 0:
                continue
            queue.append(physical_offset, record_size, tags_code)
            if not queue.dirty:
                queue.dirty = True
                self._dirty.append(queue)
            if queue.max_offset - queue.written >= TAIL_WRITE_COUNT and not self._writing:
                self.write()

    def units(self, queue: ConsumeQueue, offset: int, max_count: int) -> bytes:
        """Bytes of published units from `offset` on; stops at the end of a queue file.

        A read of units that are no longer in memory is a short `pread`.
        """
        if offset >= queue.tail_start:
            return queue.tail_units(offset, max_count)
        count = min(max_count, queue.written - offset)
        return self._reader.units(queue.folder, offset, count)

    @property
    def units_per_file(self) -> int:
        return self._file_size // UNIT_SIZE

    # Writing in the background

    def tick(self) -> None:
        """Write what is unwritten, and free the memory of queues that fell idle."""
        cooling, self._cooling = self._cooling, []
        for queue in cooling:
            if not queue.dirty:
                queue.drop_tail()
        self.write()

    def write(self) -> None:
        """Start writing the unwritten units, unless a write is under way."""
        if self._dirty and not self._writing:
            self._start(None)

    def sync(self, marks: Marks) -> None:
        """Write and sync all units published so far, then save the checkpoint.

        Args:
            marks: what the checkpoint may say once that is done.
        """
        if self._writing:
            self._sync_wanted = marks
        else:
            self._start(marks)

    def end(self) -> None:
        """Start no more writes in the background, and drop the one that is wanted."""
        self._ended = True

    def _start(self, marks: Marks | None) -> None:
        if self._ended:
            return
        writes, ends = self._take_unwritten()
        self._writing = True

        def job() -> None:
            self._writer.write(writes)
            if marks is not None:
                self._writer.sync()
                self._checkpoint.save(marks)

        def finished(_: None, error: BaseException | None) -> None:
            self._writing = False
            self._finish(ends, error)
            wanted, self._sync_wanted = self._sync_wanted, None
            if wanted is not None and error is None:
                self._start(wanted)

        self._worker.submit(job, finished)

    def _take_unwritten(self) -> tuple[list[QueueWrite], list[tuple[ConsumeQueue, int]]]:
        dirty, self._dirty = self._dirty, []
        writes: list[QueueWrite] = []
        ends: list[tuple[ConsumeQueue, int]] = []
        for queue in dirty:
            starts_queue = queue.written == queue.first_offset
            writes.append(QueueWrite(queue.folder, queue.written, queue.unwritten(), starts_queue))
            ends.append((queue, queue.max_offset))
        return writes, ends

    def _finish(self, ends: list[tuple[ConsumeQueue, int]], error: BaseException | None) -> None:
        if error is not None:
            self._dirty += [queue for queue, _ in ends]
            self.disk_full = is_no_space(error)
            if self.disk_full:
                log.warning(
                    "no room for consume queues, writes are refused until there is: %s", error
                )
            else:
                self._on_failure(error)
            return
        self.disk_full = False
        for queue, end in ends:
            queue.mark_written(end)
            if queue.unwritten_size:
                self._dirty.append(queue)
            else:
                queue.dirty = False
                self._cooling.append(queue)

    # Loading and stopping: the calls below block

    def load(self, *, unclean: bool) -> None:
        """Open every queue that has files, its end where the written units end."""
        scanner = QueueScanner(self._files, self._file_size)
        for topic in self._files.list(self._paths.consume_queue):
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
        queue = self.open(topic, queue_id)
        queue.reset(extent.end_offset)
        queue.first_offset = queue.min_offset = extent.first_offset
        self._note_last(queue)

    def _note_last(self, queue: ConsumeQueue) -> None:
        queue.max_physical_offset = 0
        if queue.max_offset > queue.first_offset:
            commit_offset, record_size, _ = UNIT.unpack(self.units(queue, queue.max_offset - 1, 1))
            if record_size != PRE_BLANK_SIZE:
                queue.max_physical_offset = commit_offset + record_size

    def cut(self, physical_offset: int, is_sound: IsSound) -> None:
        """Remove the units of records at or behind `physical_offset` from every queue.

        A unit from there on may be torn, or a hole where its page was lost, and then it says
        nothing about where the others begin. So one stays only if the log confirms it.
        """
        scanner = QueueScanner(self._files, self._file_size)
        for queue in list(self.queues.values()):
            first_offset = queue.first_offset
            end = self._confirmed_end(queue, physical_offset, is_sound)
            if end == queue.max_offset:
                continue
            self._reader.close()
            scanner.cut(queue.folder, end)
            queue.reset(end)
            queue.first_offset = queue.min_offset = first_offset
            if end <= first_offset:
                del self.queues[queue.topic, queue.queue_id]
            else:
                self._note_last(queue)

    def clear(self) -> None:
        """Remove all units of all queues; the first file of each keeps its place, empty."""
        scanner = QueueScanner(self._files, self._file_size)
        self._reader.close()
        self._dirty.clear()
        for queue in self.queues.values():
            start = queue.first_offset - queue.first_offset % self.units_per_file
            scanner.cut(queue.folder, start)
        self.queues.clear()

    def _confirmed_end(self, queue: ConsumeQueue, physical_offset: int, is_sound: IsSound) -> int:
        """Queue offset behind the last unit of a record below `physical_offset`."""
        # Invariant: units below `low` stay, units from `high` on go.
        low, high = queue.first_offset, queue.max_offset
        middle = high - 1  # mostly nothing has to go
        while low < high:
            unit = ConsumeQueueUnit(*UNIT.unpack(self.units(queue, middle, 1)))
            if unit.record_size == PRE_BLANK_SIZE or (
                unit.commit_offset < physical_offset and is_sound(queue, middle, unit)
            ):
                low = middle + 1
            else:
                high = middle
            middle = (low + high) // 2
        return low

    def first_at(self, queue: ConsumeQueue, physical_offset: int) -> int:
        """Queue offset of the first unit whose record is at or behind `physical_offset`."""
        low, high = queue.first_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            commit_offset, record_size, _ = UNIT.unpack(self.units(queue, middle, 1))
            if commit_offset < physical_offset or record_size == PRE_BLANK_SIZE:
                low = middle + 1
            else:
                high = middle
        return low

    def rebuild_unit(
        self, topic: str, queue_id: int, queue_offset: int, unit: tuple[int, int, int]
    ) -> None:
        """Put back the unit of a record found in the log, unless the queue has it.

        A queue that lost its files begins at this unit. A gap, which only damaged files leave, is
        filled with padding, so that every message keeps its queue offset (`Unlike RocketMQ`, which
        writes the unit at the wrong place). Both are noted in `lacking`.
        """
        queue = self.open(topic, queue_id)
        if unit[0] + unit[1] <= queue.max_physical_offset or queue_offset < queue.max_offset:
            return
        self.lacking |= queue_offset > queue.max_offset
        if queue.max_offset == queue.first_offset:
            queue.reset(queue_offset)
        while queue.max_offset < queue_offset:
            queue.append(0, PRE_BLANK_SIZE, 0)
        queue.append(*unit)
        queue.next_offset = queue.max_offset
        if not queue.dirty:
            queue.dirty = True
            self._dirty.append(queue)
        if queue.unwritten_size >= LOAD_WRITE_SIZE:
            self.write_now()

    def write_now(self, marks: Marks | None = None) -> None:
        """Write all units here and now; with `marks`, sync them and save the checkpoint."""
        # Of all queues, not of the dirty list alone: a job that was handed to a worker which had
        # ended took its queues off the list and never ran.
        self._dirty = [queue for queue in self.queues.values() if queue.unwritten_size]
        writes, ends = self._take_unwritten()
        try:
            self._writer.write(writes)
        except OSError:
            self._dirty = [queue for queue, _ in ends]
            for queue in self._dirty:
                queue.dirty = True
            raise
        for queue, end in ends:
            queue.mark_written(end)
            queue.drop_tail()
            queue.dirty = False
        if marks is not None:
            self._writer.sync()
            self._checkpoint.save(marks)

    def correct_min_offsets(self, log_min_offset: int) -> None:
        """Move each queue's first readable unit up to the start of the log."""
        for queue in self.queues.values():
            queue.min_offset = self.first_at(queue, log_min_offset)

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
