"""Warm-up of the mapped road: pages ahead of the write position are present before their store.

A store into a page that no mapping has seen costs the loop 2.5 us and now and then milliseconds of
waiting for the file system. So a window of one to two steps ahead of the write position is made
present on the prepare thread.

Unlike RocketMQ, which writes zeros over a whole new file and locks it in memory: zero pages of a
large file are written back long before the messages come, and a store after write-back costs the
same fault again, locked or not.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../MappedFile.java (warmMappedFile)
"""

from __future__ import annotations

import logging

from skylarkmq.common.worker import Worker
from skylarkmq.store.log import page_cache
from skylarkmq.store.log.mapped_file import MappedFile

log = logging.getLogger(__name__)


class WarmUp:
    """Keeps the window ahead of the write position warm. Loop thread, but for `first_step`."""

    def __init__(self, worker: Worker, step_size: int) -> None:
        self._worker = worker
        self._step_size = step_size  # bytes warmed in one go
        self._file: MappedFile | None = None
        self._warm_end = 0  # position in the file up to which pages were asked for
        self._running = False

    def first_step(self, mapped: MappedFile) -> None:
        """Warm the beginning of a file that is new. Blocks; any thread."""
        if mapped.target is not None:
            page_cache.populate(mapped.target, 0, min(self._step_size, mapped.size))

    def resume(self, mapped: MappedFile) -> None:
        """Go on in a file of an earlier run, of which nothing is warm."""
        self._file = mapped
        self._warm_end = mapped.wrote_position
        self.wrote(mapped)

    def wrote(self, mapped: MappedFile) -> None:
        """The write position of the last file has moved, or there is a new one."""
        if mapped is not self._file:
            self._file = mapped
            self._warm_end = self._step_size  # the first step was done when it was made
        target, start = mapped.target, self._warm_end
        if (
            self._running
            or target is None
            or start >= mapped.size
            or start - mapped.wrote_position >= self._step_size
        ):
            return
        start = max(start, mapped.wrote_position)
        stop = self._warm_end = min(start + self._step_size, mapped.size)
        self._running = True
        self._worker.submit(lambda: page_cache.populate(target, start, stop), self._warmed)

    def _warmed(self, _: None, error: BaseException | None) -> None:
        self._running = False
        if error is not None:  # the pages come with their stores instead
            log.error("warming a log file failed", exc_info=error)
