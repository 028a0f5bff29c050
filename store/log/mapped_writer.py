"""Write mode mapped: each batch is stored into a mapping of the file, as RocketMQ does.

With warmMapedFileEnable pages ahead of the write position are made present, on the prepare thread.
A store into a page that no mapping has seen costs the loop 2.5 us, and now and then milliseconds of
waiting for the file system. So one to two steps ahead of the write position are made present.

Unlike RocketMQ, which writes zeros over a whole new file and locks it in memory: the zero pages of
a large file are written back long before the messages come, and a store after write-back costs the
same fault again, locked or not.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../MappedFile.java (appendMessage,
warmMappedFile)
"""

from __future__ import annotations

import logging

from skylarkmq.common.worker import Worker
from skylarkmq.store.log import memory
from skylarkmq.store.log.log_writer import LogWriter
from skylarkmq.store.log.mapped_file import MappedFile

log = logging.getLogger(__name__)


class MappedWriter(LogWriter):
    """Stores into mappings."""

    def prepare(self, mapped: MappedFile) -> None:
        mapped.map_for_stores()

    def resume(self, mapped: MappedFile) -> None:
        mapped.map_for_stores()

    def append(self, mapped: MappedFile, data: bytes, *, to_end: bool) -> None:
        assert mapped.target is not None, "the file was made ready"
        start = mapped.wrote_position
        end = start + len(data)
        mapped.target[start:end] = data
        if to_end:
            end = mapped.size
        mapped.wrote_position = mapped.committed_position = end
        self.committed_offset = mapped.start_offset + end


class WarmedWriter(MappedWriter):
    """Stores into mappings whose pages are made present before."""

    def __init__(self, worker: Worker, step_size: int) -> None:
        """Make it.

        Args:
            step_size: bytes warmed in one go.
        """
        super().__init__()
        self._worker = worker
        self._step_size = step_size
        self._file: MappedFile | None = None
        self._warm_end = 0  # position in the file up to which pages were asked for
        self._running = False

    def prepare(self, mapped: MappedFile) -> None:
        super().prepare(mapped)
        if mapped.target is not None:
            memory.populate(mapped.target, 0, min(self._step_size, mapped.size))

    def resume(self, mapped: MappedFile) -> None:
        super().resume(mapped)
        self._file = mapped  # none of its pages are present
        self._warm_end = mapped.wrote_position
        self._go_on(mapped)

    def append(self, mapped: MappedFile, data: bytes, *, to_end: bool) -> None:
        super().append(mapped, data, to_end=to_end)
        if not to_end:
            self._go_on(mapped)

    def _go_on(self, mapped: MappedFile) -> None:
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
        self._worker.submit(lambda: memory.populate(target, start, stop), self._warmed)

    def _warmed(self, _: None, error: BaseException | None) -> None:
        self._running = False
        if error is not None:  # the pages come with their stores instead
            log.error("warming a log file failed", exc_info=error)
