"""All consume queues by topic and queue id: publishing and reading units, writing them, loading.

Publishing touches memory only. The queues thread brings units to the files, one job at a time:

    tick    each `flushIntervalConsumeQueue`: write what is unwritten, sync the files that have
            `flushConsumeQueueLeastPages` unsynced pages or more
    write   sooner, when a queue has much unwritten
    sync    each `flushConsumeQueueThoroughInterval`: write and sync all, then save the checkpoint

A sync is cut into jobs of a bounded number of files, and each takes along what has to be written
meanwhile. So ten thousand queues that need a sync do not delay the units of others.

Unlike RocketMQ, a queue exists only after a message was stored in it: asking for an unknown one
allocates nothing.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java (consumeQueueTable,
loadConsumeQueue, recoverConsumeQueue, truncateDirtyLogicFiles, FlushConsumeQueueService)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from skylarkmq.common.errors import StoreError
from skylarkmq.common.refusal import Refusal, refusal
from skylarkmq.common.worker import run_job
from skylarkmq.store.checkpoint import UNKNOWN, Checkpoint, Marks
from skylarkmq.store.environment import Environment
from skylarkmq.store.errors import StoreProfileError
from skylarkmq.store.log.mapped_file import file_name, is_file_name
from skylarkmq.store.progress import Progress, no_progress
from skylarkmq.store.queue.consume_queue import (
    PRE_BLANK,
    PRE_BLANK_SIZE,
    TAIL_WRITE_COUNT,
    UNIT,
    UNIT_SIZE,
    ConsumeQueue,
    first_unit_at,
    search_messages,
)
from skylarkmq.store.queue.extension import Extension, is_address, with_tags_codes
from skylarkmq.store.queue.queue_files import HandleCache, QueueReader, QueueWrite, QueueWriter
from skylarkmq.store.queue.queue_scanner import QueueScanner
from skylarkmq.store.results import ConsumeQueueUnit

if TYPE_CHECKING:
    from skylarkmq.store.units import Units

log = logging.getLogger(__name__)

QueueKey = tuple[str, int]
QueueEnd = tuple[ConsumeQueue, int]  # (queue, next unit)
IsSound = Callable[[ConsumeQueue, int, ConsumeQueueUnit], bool]  # (queue, queue offset, unit)
LOAD_WRITE_SIZE = 8 << 20  # bytes of unwritten units, over all queues, that a rebuild may hold
PAGE_SIZE = 4096
SYNC_SLICE = 64  # files and folders synced by one job
EXTENSION_FILES = 64  # that are open at a time


class QueueTable:
    """The consume queues of a store. Loop thread, or the loading thread; its jobs: queues thread.

    Attributes:
        dirty: queues with unwritten units.
        held: topics that are being removed: nothing of them goes to the disk.
        lacking: a queue has no unit for messages before others of it; it is to be built again.
        refused: why queue files cannot grow, since their last write; messages are refused then.
        covered: what the newest checkpoint says, when this run wrote it or trusts it; else None.
    """

    def __init__(self, env: Environment) -> None:
        config, files = env.config, env.files
        self._files = files
        self._paths = env.paths
        self._worker = env.workers.queues
        self._fail = env.fail
        self._file_size = config.mapped_file_size_consume_queue
        self.checkpoint = Checkpoint(files, env.paths.checkpoint, env.paths.recovery_point)
        self.writer = QueueWriter(files, self._file_size)
        self._reader = QueueReader(files, self._file_size)
        self._ext_handles = HandleCache(files, EXTENSION_FILES)
        self.queues: dict[QueueKey, ConsumeQueue] = {}
        self.dirty: list[ConsumeQueue] = []
        self.held: set[str] = set()
        # Loading
        self._ext_topics: frozenset[str] = frozenset()  # with a folder of extensions, at the load
        self.lacking = False
        self._rebuilt_size = 0  # bytes of units built again and not written yet
        # Background work
        self._least_size = config.flush_consume_queue_least_pages * PAGE_SIZE
        self._cooling: list[ConsumeQueue] = []  # written at the last turn, maybe idle now
        self._write_due = False
        self._wrote = False  # since the last tick
        self._full_due = False  # a sync of files that have many unsynced pages
        self._full_left = False  # more such files than one job syncs
        self._writing = False  # a job is under way
        self._syncing: Marks | None = None  # of the sync that is under way
        self._sync_begins = False
        self._sync_wanted: Marks | None = None  # of the next sync
        self._ended = False
        self.refused: Refusal | None = None
        self.covered: Marks | None = None

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, None when nothing was ever stored in it."""
        return self.queues.get((topic, queue_id))

    def totals(self) -> tuple[int, int]:
        """Return how many queues have units, and the sum of their ends; unknown while one goes."""
        if self.held:
            return UNKNOWN, UNKNOWN
        ends = [queue.max_offset for queue in self.queues.values() if queue.max_offset]
        return len(ends), sum(ends)

    def open(self, topic: str, queue_id: int, folder: Path | None = None) -> ConsumeQueue:
        """Return the queue, made when it is new. For writers, which have checked the topic."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            folder = folder or self._paths.queue_folder(topic, queue_id)
            queue = self.queues[topic, queue_id] = ConsumeQueue(topic, queue_id, folder)
            queue.dirty = topic in self.held
        return queue

    def publish(self, units: Units) -> None:
        """Make stored records visible in their queues.

        Raises:
            StoreError: a unit is not the next one of its queue; it is in no queue then.
        """
        for queue, (offset, run) in units.runs.items():
            if offset != queue.max_offset:
                raise StoreError(
                    f"message {offset} of {queue.topic}-{queue.queue_id} would be shown as "
                    f"message {queue.max_offset}"
                )
            queue.extend(run)
            if not queue.dirty:
                queue.dirty = True
                self.dirty.append(queue)
            if queue.max_offset - queue.written >= TAIL_WRITE_COUNT and not self._writing:
                self.write()

    def pad(self, queue: ConsumeQueue, end: int) -> None:
        """Let the next message of a queue be number `end`; what is missing becomes padding."""
        while queue.max_offset < end:
            queue.append(0, PRE_BLANK_SIZE, 0)
        queue.next_offset = end
        if not queue.dirty:
            queue.dirty = True
            self.dirty.append(queue)

    # Reading

    @property
    def units_per_file(self) -> int:
        return self._file_size // UNIT_SIZE

    def units(self, queue: ConsumeQueue, offset: int, max_count: int) -> bytes:
        """Return published units from `offset` on; stop at the end of a queue file.

        Tags codes that lie in the extension are in their place. A read of units that are no longer
        in memory is a short `pread`.
        """
        return self.resolved(queue, self.stored_units(queue, offset, max_count))

    def resolved(self, queue: ConsumeQueue, units: bytes) -> bytes:
        """Return units of a file with tags codes in the place of addresses."""
        if queue.ext is None:
            return units
        return with_tags_codes(units, partial(queue.ext.read, self._ext_handles))

    def stored_units(self, queue: ConsumeQueue, offset: int, max_count: int) -> bytes:
        """Return units as they lie in the file, with addresses of the extension; see `units`."""
        if offset >= queue.tail_start:
            return queue.tail_units(offset, max_count)
        count = min(max_count, queue.written - offset)
        return self._reader.units(queue.folder, offset, count)

    def first_at(self, queue: ConsumeQueue, physical_offset: int) -> int:
        """Return the queue offset of the first unit of a record at or after `physical_offset`."""
        return first_unit_at(
            lambda unit, count: self.stored_units(queue, unit, count),
            queue.first_offset,
            queue.max_offset,
            physical_offset,
        )

    # Background work

    def tick(self) -> None:
        """Write what is unwritten, and free the memory of queues that fell idle."""
        cooling, self._cooling = self._cooling, []
        for queue in cooling:
            if not queue.dirty:
                queue.drop_tail()
        self._full_due = self._wrote or bool(self.dirty)
        self._wrote = False
        self.write()
        self._go_on()

    def write(self) -> None:
        """Start writing the unwritten units, unless a write is under way."""
        if self._writing and self._syncing is None:
            return
        if self.dirty or self.refused is not None:
            self._write_due = True
            self._go_on()

    def sync(self, marks: Marks) -> None:
        """Write and sync all units published so far, then save the checkpoint.

        Args:
            marks: what the checkpoint may say once that is done.
        """
        self._sync_wanted = marks
        self._go_on()

    def end(self) -> None:
        """Start no more work, and drop what is wanted."""
        self._ended = True

    def _go_on(self) -> None:
        if self._writing or self._ended:
            return
        if self._syncing is None and self._sync_wanted is not None:
            self._syncing, self._sync_wanted = self._sync_wanted, None
            self._sync_begins = self._write_due = True
        if self._write_due or self._full_due or self._syncing is not None:
            self._start()

    def _start(self) -> None:
        writes: list[QueueWrite] = []
        ends: list[QueueEnd] = []
        if self._write_due:
            self._write_due = False
            writes, ends = self._take_unwritten()
            self._wrote = True
        marks, begins = self._syncing, self._sync_begins
        syncs_full, self._full_due = self._full_due, False
        self._sync_begins = False
        self._writing = True
        writer = self.writer

        def job() -> bool:
            """Return whether a sync has come to its end."""
            writer.write(writes)
            if marks is None:
                if syncs_full:
                    self._full_left = not writer.sync_full(self._least_size, SYNC_SLICE)
                return False
            if begins:
                writer.begin_sync()
            if not writer.sync_some(SYNC_SLICE):
                return False
            self.checkpoint.save(marks)
            return True

        def finished(synced: bool | None, error: BaseException | None) -> None:
            self._writing = False
            self._full_due, self._full_left = self._full_due or self._full_left, False
            self._finish(ends, error)
            if error is not None:
                self._syncing = self._sync_wanted = None
            elif synced:
                self.covered, self._syncing = marks, None
            self._go_on()

        self._worker.submit(job, finished)

    def _take_unwritten(self) -> tuple[list[QueueWrite], list[QueueEnd]]:
        """Hand over the units that the dirty queues hold, and up to where they go."""
        dirty, self.dirty = self.dirty, []
        writes: list[QueueWrite] = []
        ends: list[QueueEnd] = []
        for queue in dirty:
            starts_queue = queue.written == queue.first_offset
            position = queue.written * UNIT_SIZE
            writes.append(QueueWrite(queue.folder, position, queue.unwritten(), starts_queue))
            ends.append((queue, queue.max_offset))
        return writes, ends

    def _finish(self, ends: list[QueueEnd], error: BaseException | None) -> None:
        if error is not None:
            self.dirty += [queue for queue, _ in ends if not queue.removed]
            before, self.refused = self.refused, refusal(error)
            if self.refused is None:
                self._fail(error)
            elif before is None:
                log.warning(
                    "no room for consume queues, writes are refused until there is: %s", error
                )
            return
        self.refused = None
        for queue, end in ends:
            queue.mark_written(end)
            if queue.removed:
                continue
            if queue.unwritten_size:
                self.dirty.append(queue)
            else:
                queue.dirty = False
                self._cooling.append(queue)

    # Removal of topics: see `topic_removal.py`

    def hold(self, topic: str) -> None:
        """Keep what is put into a topic's new queues in memory, until `let_go`."""
        self.held.add(topic)

    @property
    def held_from(self) -> int | None:
        """Where in the log the first record lies whose unit is kept in memory; None without one."""
        held = [queue for (topic, _), queue in self.queues.items() if topic in self.held]
        firsts = [self.stored_units(queue, queue.first_offset, 1) for queue in held]
        return min((UNIT.unpack(unit)[0] for unit in firsts if unit), default=None)

    def let_go(self, topic: str) -> None:
        """Write the topic's new units again: its old files are gone."""
        self.held.discard(topic)
        for queue in self._queues_of(topic):
            queue.dirty = queue.unwritten_size > 0
            if queue.dirty:
                self.dirty.append(queue)

    def take_out(self, topic: str) -> None:
        """Forget the queues of a topic; who still has one may read it."""
        for queue in self._queues_of(topic):
            del self.queues[topic, queue.queue_id]
            queue.removed = queue.dirty = True
        self.dirty = [queue for queue in self.dirty if not queue.removed]
        # A sync that began before must not say how many units there are.
        if self._syncing is not None:
            self._syncing = self._syncing.without_totals()
        if self._sync_wanted is not None:
            self._sync_wanted = self._sync_wanted.without_totals()

    def _queues_of(self, topic: str) -> list[ConsumeQueue]:
        return [queue for (name, _), queue in self.queues.items() if name == topic]

    def forget_written(self, path: Path) -> None:
        """Forget a file or folder that is about to be removed. Queues thread."""
        self.writer.forget(path)

    def forget_read(self, paths: Iterable[Path]) -> None:
        """Close files that were removed."""
        for path in paths:
            self._reader.forget(path)
            self._ext_handles.forget(path)

    # Expiry: see `queue_cleaner.py`

    def expired_end(self, queue: ConsumeQueue) -> int:
        """Return the queue offset before which no file is needed; the last one always is."""
        per_file = self.units_per_file
        last_unit = max(queue.first_offset, queue.written - 1)
        return min(queue.min_offset, last_unit) // per_file * per_file

    async def remove_expired(self, queue: ConsumeQueue) -> int:
        """Delete the files that a queue and its extension do not need, the oldest first.

        Returns:
            How many files were deleted.

        Raises:
            OSError: a sync failed, or the machine refused a descriptor.
        """
        per_file, end = self.units_per_file, self.expired_end(queue)
        first_offset = queue.first_offset
        first = first_offset // per_file * per_file
        paths = [queue.folder / file_name(unit * UNIT_SIZE) for unit in range(first, end, per_file)]
        queue.first_offset = max(queue.first_offset, end)
        ext = queue.ext
        if ext is not None and queue.min_offset >= ext.end:
            paths += ext.paths
            queue.ext = None

        def job() -> list[Path]:
            return [path for path in paths if self.writer.remove(path)]

        try:
            removed = await run_job(self._worker, job)
        except OSError:
            queue.first_offset, queue.ext = first_offset, ext  # may be asked for again
            raise
        self.forget_read(removed)
        return len(removed)

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
            log.warning("%s lacks a file after unit %d", folder, extent.end_offset)
            self.lacking = True
        self._load_extension(queue)

    def _load_extension(self, queue: ConsumeQueue) -> None:
        """Find the files of the extension; units whose extension is gone are as good as lost."""
        if queue.topic in self._ext_topics:
            folder = self._paths.queue_ext_folder(queue.topic, queue.queue_id)
            starts = sorted(int(name) for name in self._files.list(folder) if is_file_name(name))
            if starts:
                queue.ext = Extension(folder, starts, queue.max_offset)
        if queue.max_offset > queue.first_offset:
            _, _, code = UNIT.unpack(self.units(queue, queue.max_offset - 1, 1))
            if is_address(code):
                log.warning("the extension of %s ends before its units do", queue.folder)
                self.lacking = True

    def _note_last(self, queue: ConsumeQueue) -> None:
        queue.max_physical_offset = 0
        if queue.max_offset > queue.first_offset:
            unit = self.stored_units(queue, queue.max_offset - 1, 1)
            commit_offset, record_size, _ = UNIT.unpack(unit)
            if record_size != PRE_BLANK_SIZE:
                queue.max_physical_offset = commit_offset + record_size

    def cut(self, physical_offset: int, is_sound: IsSound) -> None:
        """Remove the units of records at or after `physical_offset` from every queue.

        A unit from there on may be torn, or a hole where its page was lost, and then it says
        nothing about where the others begin. So one stays only if the log confirms it.
        """
        for queue in list(self.queues.values()):
            end = self._confirmed_end(queue, physical_offset, is_sound)
            if end < queue.max_offset:
                self._cut_queue(queue, end)

    def clear(self, log_min_offset: int) -> None:
        """Remove the units of all records that the log holds, and what may come after them.

        The units of expired records stay: they tell which queue offsets were given out.
        """
        self.dirty.clear()
        self._rebuilt_size = 0
        self.lacking = False
        for queue in list(self.queues.values()):
            # Padding that a walk has put in for what is missing is only in memory.
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

    def _confirmed_end(self, queue: ConsumeQueue, physical_offset: int, is_sound: IsSound) -> int:
        """Return the queue offset of the first unit that no record below `physical_offset` has."""

        def has_to_go(number: int, data: bytes) -> bool:
            unit = ConsumeQueueUnit(*UNIT.unpack(data))
            return unit.commit_offset >= physical_offset or not is_sound(queue, number, unit)

        def read(number: int, count: int) -> bytes:
            return self.stored_units(queue, number, count)

        low, high = queue.first_offset, queue.max_offset
        last = read(high - 1, 1) if low < high else PRE_BLANK
        if last != PRE_BLANK and not has_to_go(high - 1, last):
            return high  # mostly nothing has to go
        return search_messages(read, low, high, has_to_go)[1]

    def rebuild_unit(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        unit: tuple[int, int, int],
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

    def write_now(self, marks: Marks | None = None) -> None:
        """Write all units here and now; with `marks`, sync them and save the checkpoint."""
        # Of all queues, not only of the dirty list: a job that was handed to a worker which had
        # ended took its queues off the list and never ran.
        self.dirty = [queue for queue in self.queues.values() if queue.unwritten_size]
        writes, ends = self._take_unwritten()
        self._rebuilt_size = 0
        try:
            self.writer.write(writes)
        except OSError:
            self.dirty = [queue for queue, _ in ends]
            for queue in self.dirty:
                queue.dirty = True
            raise
        for queue, end in ends:
            queue.mark_written(end)
            queue.drop_tail()
            queue.dirty = False
        if marks is not None:
            self.writer.sync()
            self.checkpoint.save(marks)
            self.covered = marks

    def correct_min_offsets(self, log_min_offset: int) -> None:
        """Move each queue's first readable unit up to the start of the log: the load is over."""
        for queue in self.queues.values():
            queue.min_offset = self.first_at(queue, log_min_offset)
            queue.drop_tail()

    def unload(self) -> None:
        """Forget what was loaded and written, to load it again; before any work of the loop."""
        self.close()
        self.writer = QueueWriter(self._files, self._file_size)
        self.queues.clear()
        self.dirty.clear()
        self.lacking, self.refused = False, None
        self._rebuilt_size = 0
        self.covered = None

    def close(self) -> None:
        self.writer.close()
        self._reader.close()
        self._ext_handles.close()
