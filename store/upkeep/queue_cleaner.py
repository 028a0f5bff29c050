"""Queues follow the start of the log: their first readable units, and files that are not needed.

    1  worker  for a slice of queues: the first unit whose record is still in the log
    2  loop    the queue's minimum moves there; units that are only in memory are searched here
    3  queues  its files before that unit are removed, never its last one; extensions likewise

Between two queues that lose files lie `deleteConsumeQueueFilesInterval` ms.

Crash story: the log files are gone durably before anything here begins. A minimum is found again at
the next start, and a file that comes back is removed with the next expiry.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../ConsumeQueue.java (correctMinOffset,
deleteExpiredFile), DefaultMessageStore.java (CleanConsumeQueueService)
"""

from __future__ import annotations

import logging
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

from skylarkmq.common.clock import TimerHandle
from skylarkmq.common.refusal import refusal
from skylarkmq.common.worker import Call, Done, run_job, start
from skylarkmq.store.environment import Environment
from skylarkmq.store.queue.consume_queue import UNIT_SIZE, ConsumeQueue, first_unit_at
from skylarkmq.store.queue.queue_files import QueueReader
from skylarkmq.store.queue.queue_table import QueueTable

log = logging.getLogger(__name__)

SLICE_QUEUES: Final = 64
SLICE_QUEUES_LOOKED_AT: Final = 1024


class _Part(NamedTuple):
    """The units of a queue that are searched in its files: [low, high)."""

    queue: ConsumeQueue
    folder: Path
    low: int
    high: int


class QueueCleaner:
    """Moves the starts of queues. Loop thread, except its jobs."""

    def __init__(self, env: Environment, queues: QueueTable) -> None:
        self._files = env.files
        self._worker = env.workers.tables
        self._clock = env.clock
        self._stats = env.stats
        self._fail = env.fail
        self._queues = queues
        self._interval_s = env.config.delete_consume_queue_files_interval / 1000
        self._wanted = 0  # log offset
        self._wait: TimerHandle | None = None
        self._ended = False
        self.running = False

    def expire(self, log_min_offset: int) -> None:
        """Let the queues follow, in the background, after the log begins at this offset."""
        self._wanted = max(self._wanted, log_min_offset)
        if not self.running and not self._ended:
            start(self._run())

    def end(self) -> None:
        """Start no more work."""
        self._ended = True
        if self._wait is not None:
            self._wait.cancel()

    async def _run(self) -> None:
        """Correct all minima first, so that they are soon right; then delete files."""
        self.running = True
        offset, left = self._wanted, deque(self._queues.queues.values())
        shrinking: deque[ConsumeQueue] = deque()  # have files that are not needed
        try:
            while not self._ended:
                if left:
                    shrinking += await self._correct_some(left, offset)
                elif self._wanted > offset:
                    offset, left = self._wanted, deque(self._queues.queues.values())
                elif not shrinking or not await self._shrink(shrinking.popleft()):
                    break
        finally:
            self.running = False

    async def _correct_some(self, left: deque[ConsumeQueue], offset: int) -> list[ConsumeQueue]:
        """Correct the minima of the next queues; return those that have files to remove."""
        parts: list[_Part] = []
        for _ in range(SLICE_QUEUES_LOOKED_AT):
            if not left or len(parts) == SLICE_QUEUES:
                break
            queue = left.popleft()
            if queue.min_physical_offset < offset and queue.min_offset < queue.max_offset:
                parts.append(_Part(queue, queue.folder, queue.min_offset, queue.written))
        file_size = self._queues.units_per_file * UNIT_SIZE

        def search() -> list[int]:
            reader = QueueReader(self._files, file_size, handle_limit=1)
            try:
                return [_search(reader, part, offset) for part in parts]
            finally:
                reader.close()

        try:
            minima = await run_job(self._worker, search)
        except Exception as error:
            log.error("queues cannot be searched: %s", error)
            return []
        for part, minimum in zip(parts, minima, strict=True):
            self._correct(part, minimum, offset)
        queues = [part.queue for part in parts]
        return [queue for queue in queues if self._may_shrink(queue, offset)]

    def _correct(self, part: _Part, minimum: int, offset: int) -> None:
        queue = part.queue
        if queue.removed:
            return
        if minimum >= part.high:  # all that was in the files is expired

            def tail_units(number: int, count: int) -> bytes:
                return self._queues.stored_units(queue, number, count)

            low = max(minimum, queue.min_offset)
            minimum = first_unit_at(tail_units, low, queue.max_offset, offset)
        if minimum >= queue.min_offset:
            queue.min_offset = minimum
            queue.min_physical_offset = offset

    def _may_shrink(self, queue: ConsumeQueue, offset: int) -> bool:
        return (
            not queue.removed
            and queue.min_physical_offset == offset
            and self._queues.expired_end(queue) > queue.first_offset
        )

    async def _shrink(self, queue: ConsumeQueue) -> bool:
        """Remove the files that a queue does not need; False when the disk refused or failed."""
        if queue.removed:
            return True
        try:
            count = await self._queues.remove_expired(queue)
        except Exception as error:
            if refusal(error) is not None:
                log.warning("expired files of queues stay for now: %s", error)
            elif not self._ended:
                self._fail(error)
            return False
        self._stats.queue_files_deleted += count
        if count and not self._ended:
            await Call(self._pause)
        return True

    def _pause(self, done: Done[None]) -> None:
        when_s = self._clock.monotonic() + self._interval_s
        self._wait = self._clock.call_at(when_s, done, None, None)


def _search(reader: QueueReader, part: _Part, offset: int) -> int:
    """Return the first unit of a part whose record is at or after `offset`. Blocks."""
    try:
        return first_unit_at(
            lambda unit, count: reader.units(part.folder, unit, count),
            part.low,
            part.high,
            offset,
        )
    except OSError as error:
        log.error("%s cannot be read, its first offset stays: %s", part.folder, error)
        return part.low
