"""Bringing the units of all queues to their files. The queues thread does it, one job at a time:

    tick    each `flushIntervalConsumeQueue`: write what is unwritten, sync the files that have
            `flushConsumeQueueLeastPages` unsynced pages or more
    write   sooner, when a queue has much unwritten
    sync    each `flushConsumeQueueThoroughInterval`: write and sync all, then save the checkpoint

A sync is cut into jobs of a bounded number of files, and each takes along what has to be written
meanwhile. So ten thousand queues that need a sync do not delay the units of others.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java
(FlushConsumeQueueService)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from skylarkmq.common.refusal import Refusal, refusal
from skylarkmq.store.checkpoint import Checkpoint, Marks
from skylarkmq.store.environment import Environment
from skylarkmq.store.queue.consume_queue import UNIT_SIZE, ConsumeQueue
from skylarkmq.store.queue.queue_files import QueueWrite, QueueWriter

log = logging.getLogger(__name__)

QueueKey = tuple[str, int]
QueueEnd = tuple[ConsumeQueue, int]  # (queue, next unit)
PAGE_SIZE = 4096
SYNC_SLICE = 64  # files and folders synced by one job


class QueueFlusher:
    """Writes and syncs queues. Loop thread, or the loading thread; its jobs: queues thread.

    Its size is one idea: one job at a time, and what is due when it has ended.

    Attributes:
        dirty: queues with unwritten units.
        writing: a job is under way.
        refused: why queue files cannot grow, since their last write; messages are refused then.
        covered: what the newest checkpoint says, when this run wrote it or trusts it; else None.
    """

    def __init__(self, env: Environment, queues: Mapping[QueueKey, ConsumeQueue]) -> None:
        config, files = env.config, env.files
        self._worker = env.workers.queues
        self._fail = env.fail
        self._queues = queues
        self.checkpoint = Checkpoint(files, env.paths.checkpoint, env.paths.recovery_point)
        self.writer = QueueWriter(files, config.mapped_file_size_consume_queue)
        self.dirty: list[ConsumeQueue] = []
        self._least_size = config.flush_consume_queue_least_pages * PAGE_SIZE
        self._cooling: list[ConsumeQueue] = []  # written at the last turn, maybe idle now
        self._write_due = False
        self._wrote = False  # since the last tick
        self._full_due = False  # a sync of files that have many unsynced pages
        self._full_left = False  # more such files than one job syncs
        self.writing = False
        self._syncing: Marks | None = None  # of the sync that is under way
        self._sync_begins = False
        self._sync_wanted: Marks | None = None  # of the next sync
        self._ended = False
        self.refused: Refusal | None = None
        self.covered: Marks | None = None

    def add(self, queue: ConsumeQueue) -> None:
        """Note that a queue has unwritten units, which was not `dirty`."""
        queue.dirty = True
        self.dirty.append(queue)

    def drop_removed(self) -> None:
        """Forget queues whose topic goes."""
        self.dirty = [queue for queue in self.dirty if not queue.removed]
        # A sync that began before must not say how many units there are.
        if self._syncing is not None:
            self._syncing = self._syncing.without_totals()
        if self._sync_wanted is not None:
            self._sync_wanted = self._sync_wanted.without_totals()

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
        if self.writing and self._syncing is None:
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
        if self.writing or self._ended:
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
        self.writing = True
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
            self.writing = False
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

    def write_now(self, marks: Marks | None = None) -> None:
        """Write all units here and now; with `marks`, sync them and save the checkpoint."""
        # Of all queues, not only of the dirty list: a job that was handed to a worker which had
        # ended took its queues off the list and never ran.
        self.dirty = [queue for queue in self._queues.values() if queue.unwritten_size]
        writes, ends = self._take_unwritten()
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
