"""Queues follow the start of the log: their first readable units, and files that nobody needs.

    1  worker  for a slice of queues: the first unit whose record is still in the log
    2  loop    the queue's minimum moves there; units that are in memory alone are looked at here
    3  queues  its files in front of that unit are removed, never its last one; extensions likewise

Between two queues that lose files lie `deleteConsumeQueueFilesInterval` ms.

Crash story: the log files are gone durably before anything here begins. A minimum is found again at
the next start, and a file that comes back is removed with the next expiry.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../ConsumeQueue.java (correctMinOffset,
deleteExpiredFile), DefaultMessageStore.java (CleanConsumeQueueService)
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.common.files import Files
from skylarkmq.common.worker import Worker
from skylarkmq.store.queue.consume_queue import UNIT_SIZE, ConsumeQueue, first_unit_at
from skylarkmq.store.queue.queue_files import QueueReader
from skylarkmq.store.queue.queue_table import QueueTable
from skylarkmq.store.stats import StoreStats

log = logging.getLogger(__name__)

SLICE_QUEUES: Final = 64
SLICE_QUEUES_LOOKED_AT: Final = 1024


class _Part(NamedTuple):
    """The units of a queue that are looked through in its files: [low, high)."""

    queue: ConsumeQueue
    folder: Path
    low: int
    high: int


class QueueCleaner:
    """Moves the starts of queues. Loop thread, but for its jobs."""

    def __init__(
        self,
        files: Files,
        worker: Worker,
        clock: Clock,
        stats: StoreStats,
        queues: QueueTable,
        *,
        interval_s: float,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._files = files
        self._worker = worker
        self._clock = clock
        self._stats = stats
        self._queues = queues
        self._interval_s = interval_s
        self._on_failure = on_failure
        self._wanted = 0  # log offset
        self._offset = 0  # of the run that is under way
        self._left: deque[ConsumeQueue] = deque()
        self._shrinking: deque[ConsumeQueue] = deque()  # have files that nobody needs
        self._timer: TimerHandle | None = None
        self._ended = False
        self.running = False

    def expire(self, log_min_offset: int) -> None:
        """The log begins at this offset now; the queues follow in the background."""
        self._wanted = max(self._wanted, log_min_offset)
        if not self.running and not self._ended:
            self._begin()

    def end(self) -> None:
        """Start no more work."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        self.running = True
        self._offset = self._wanted
        self._left = deque(self._queues.queues.values())
        self._correct_some()

    def _go_on(self) -> None:
        """What to do after a step: the minima of all queues first, so that they are soon right."""
        self._timer = None
        if self._ended:
            self.running = False
        elif self._left:
            self._correct_some()
        elif self._wanted > self._offset:
            self._begin()
        elif self._shrinking:
            self._shrink(self._shrinking.popleft())
        else:
            self.running = False

    # Minima

    def _correct_some(self) -> None:
        parts: list[_Part] = []
        for _ in range(SLICE_QUEUES_LOOKED_AT):
            if not self._left or len(parts) == SLICE_QUEUES:
                break
            queue = self._left.popleft()
            if queue.min_physical_offset < self._offset and queue.min_offset < queue.max_offset:
                parts.append(_Part(queue, queue.folder, queue.min_offset, queue.written))
        offset, file_size = self._offset, self._queues.units_per_file * UNIT_SIZE

        def search() -> list[int]:
            reader = QueueReader(self._files, file_size, handle_limit=1)
            try:
                return [_search(reader, part, offset) for part in parts]
            finally:
                reader.close()

        def found(minima: list[int] | None, error: BaseException | None) -> None:
            if minima is None:
                log.error("queues cannot be looked through: %s", error)
            else:
                for part, minimum in zip(parts, minima, strict=True):
                    self._correct(part, minimum)
            self._go_on()

        self._worker.submit(search, found)

    def _correct(self, part: _Part, minimum: int) -> None:
        queue, offset = part.queue, self._offset
        if queue.removed:
            return
        if minimum >= part.high:  # all that was in the files is expired

            def tail_unit(number: int) -> bytes:
                return self._queues.stored_units(queue, number, 1)

            low = max(minimum, queue.min_offset)
            minimum = first_unit_at(tail_unit, low, queue.max_offset, offset)
        if minimum < queue.min_offset:
            return
        queue.min_offset = minimum
        queue.min_physical_offset = offset
        if self._queues.expired_end(queue) > queue.first_offset:
            self._shrinking.append(queue)

    # Files

    def _shrink(self, queue: ConsumeQueue) -> None:
        if queue.removed:
            self._go_on()
            return

        def removed(count: int | None, error: BaseException | None) -> None:
            if count is None:
                if error is not None and not self._ended:
                    self._on_failure(error)
                self.running = False
                return
            self._stats.queue_files_deleted += count
            if self._ended or not count:
                self._go_on()
            else:
                when_s = self._clock.monotonic() + self._interval_s
                self._timer = self._clock.call_at(when_s, self._go_on)

        self._queues.remove_expired(queue, removed)


def _search(reader: QueueReader, part: _Part, offset: int) -> int:
    """The first unit of a part whose record is at or behind `offset`. Blocks."""
    try:
        return first_unit_at(
            lambda unit: reader.units(part.folder, unit, 1), part.low, part.high, offset
        )
    except OSError as error:
        log.error("%s cannot be read, its first offset stays: %s", part.folder, error)
        return part.low
