"""Writes the units of all queues in the background, and syncs them for the checkpoint.

    tick    each `flushIntervalConsumeQueue`: write what is unwritten, sync the files that have
            `flushConsumeQueueLeastPages` unsynced pages or more
    write   sooner, when a queue has much unwritten
    sync    each `flushConsumeQueueThoroughInterval`: write and sync all, then save the checkpoint

One job at a time is under way on the queues thread. A sync is cut into jobs of a bounded number of
files, and each takes along what has to be written meanwhile, so ten thousand queues that want
syncing do not hold up the units of others.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java
(FlushConsumeQueueService)
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from skylarkmq.common.files import is_no_space
from skylarkmq.common.worker import Worker
from skylarkmq.store.checkpoint import Marks
from skylarkmq.store.queue.consume_queue import ConsumeQueue
from skylarkmq.store.queue.loaded_queues import LoadedQueues, QueueEnd, mark_written
from skylarkmq.store.queue.queue_files import QueueWrite

log = logging.getLogger(__name__)

PAGE_SIZE = 4096
SYNC_SLICE = 64  # files and folders synced by one job


class QueueFlushService:
    """The background work of a queue table. Loop thread, but for its jobs."""

    def __init__(
        self,
        queues: LoadedQueues,
        worker: Worker,
        on_failure: Callable[[BaseException], None],
        *,
        least_pages: int,
    ) -> None:
        self._queues = queues
        self._worker = worker
        self._on_failure = on_failure
        self._least_size = least_pages * PAGE_SIZE
        self._cooling: list[ConsumeQueue] = []  # written at the last turn, maybe idle now
        self._write_due = False
        self._syncing: Marks | None = None  # of the sync that is under way
        self._sync_begins = False
        self._sync_wanted: Marks | None = None  # of the one after it
        self._ended = False
        self.writing = False
        self.disk_full = False
        self.covered: Marks | None = None  # what the checkpoint says, saved by this run

    def tick(self) -> None:
        """Write what is unwritten, and free the memory of queues that fell idle."""
        cooling, self._cooling = self._cooling, []
        for queue in cooling:
            if not queue.dirty:
                queue.drop_tail()
        self.write()

    def write(self) -> None:
        """Start writing the unwritten units, unless a write is under way."""
        if self.writing and self._syncing is None:
            return
        if self._queues.dirty or self.disk_full:
            self._write_due = True
            self._go_on()

    def sync(self, marks: Marks) -> None:
        """Write and sync all units published so far, then save the checkpoint.

        Args:
            marks: what the checkpoint may say once that is done.
        """
        self._sync_wanted = marks
        self._go_on()

    def forget_totals(self) -> None:
        """No sync that began before a queue left may say how many units there are."""
        if self._syncing is not None:
            self._syncing = self._syncing.without_totals()
        if self._sync_wanted is not None:
            self._sync_wanted = self._sync_wanted.without_totals()

    def end(self) -> None:
        """Start no more work, and drop what is wanted."""
        self._ended = True

    def _go_on(self) -> None:
        if self.writing or self._ended:
            return
        if self._syncing is None and self._sync_wanted is not None:
            self._syncing, self._sync_wanted = self._sync_wanted, None
            self._sync_begins = self._write_due = True
        if self._write_due or self._syncing is not None:
            self._start()

    def _start(self) -> None:
        writes: list[QueueWrite] = []
        ext_writes: list[QueueWrite] = []
        ends: list[QueueEnd] = []
        if self._write_due:
            self._write_due = False
            writes, ext_writes, ends = self._queues.take_unwritten()
        marks, begins = self._syncing, self._sync_begins
        self._sync_begins = False
        self.writing = True
        units, extensions = self._queues.writer, self._queues.ext_writer

        def job() -> bool:
            """Return whether a sync has come to its end."""
            extensions.write(ext_writes)  # first: no unit may point to what was never written
            units.write(writes)
            if marks is None:
                extensions.sync_full(self._least_size, SYNC_SLICE)
                units.sync_full(self._least_size, SYNC_SLICE)
                return False
            if begins:
                extensions.begin_sync()
                units.begin_sync()
            if not (extensions.sync_some(SYNC_SLICE) and units.sync_some(SYNC_SLICE)):
                return False
            self._queues.checkpoint.save(marks)
            return True

        def finished(synced: bool | None, error: BaseException | None) -> None:
            self.writing = False
            self._finish(ends, error)
            if error is not None:
                self._syncing = self._sync_wanted = None
            elif synced:
                self.covered, self._syncing = marks, None
            self._go_on()

        self._worker.submit(job, finished)

    def _finish(self, ends: list[QueueEnd], error: BaseException | None) -> None:
        if error is not None:
            self._queues.dirty += [queue for queue, _, _ in ends if not queue.removed]
            was_full, self.disk_full = self.disk_full, is_no_space(error)
            if not self.disk_full:
                self._on_failure(error)
            elif not was_full:
                log.warning(
                    "no room for consume queues, writes are refused until there is: %s", error
                )
            return
        self.disk_full = False
        for end in ends:
            mark_written(end)
            queue = end[0]
            if queue.removed:
                continue
            if queue.unwritten_size:
                self._queues.dirty.append(queue)
            else:
                queue.dirty = False
                self._cooling.append(queue)
