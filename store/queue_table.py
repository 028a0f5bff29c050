"""The consume queues of a running store: publishing units, and the face of their background work.

Publishing touches memory only. Each `flushIntervalConsumeQueue` (and sooner when a queue has much
unwritten) the new units of all queues go to their files; each `flushConsumeQueueThoroughInterval`
those files are synced and the checkpoint follows. Both run on the queues thread, one job at a time
(`queue_flush.py`).

Unlike RocketMQ, a queue exists only once a message was stored in it: asking for an unknown one
allocates nothing.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java (consumeQueueTable)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from skylarkmq.store.checkpoint import Marks
from skylarkmq.store.consume_queue import TAIL_WRITE_COUNT
from skylarkmq.store.files import Files
from skylarkmq.store.loaded_queues import EXT_SIZE, LoadedQueues
from skylarkmq.store.paths import StorePaths
from skylarkmq.store.queue_flush import QueueFlushService
from skylarkmq.store.worker import Done, Worker

if TYPE_CHECKING:
    from skylarkmq.store.append import Unit

LEAST_PAGES = 2


class QueueTable(LoadedQueues):
    """The consume queues of a store. Loop thread, but for the jobs it hands to the worker."""

    def __init__(
        self,
        files: Files,
        worker: Worker,
        paths: StorePaths,
        file_size: int,
        on_failure: Callable[[BaseException], None],
        *,
        least_pages: int = LEAST_PAGES,
        ext_file_size: int = EXT_SIZE,
        write_ext: bool = False,
    ) -> None:
        super().__init__(files, paths, file_size, ext_file_size=ext_file_size, write_ext=write_ext)
        self._worker = worker
        self._flush = QueueFlushService(self, worker, on_failure, least_pages=least_pages)

    def publish(self, units: Iterable[Unit]) -> None:
        """Make stored records visible in their queues."""
        writes_ext, dirty = self.writes_ext, self.dirty
        for queue, queue_offset, physical_offset, record_size, tags_code, _, timestamp in units:
            if queue_offset < 0:
                continue
            if writes_ext and queue.ext is not None:
                tags_code = queue.ext.append(tags_code, timestamp)
            queue.append(physical_offset, record_size, tags_code)
            if not queue.dirty:
                queue.dirty = True
                dirty.append(queue)
            if queue.max_offset - queue.written >= TAIL_WRITE_COUNT and not self._flush.writing:
                self._flush.write()
                dirty = self.dirty

    # Background work: see `queue_flush.py`

    @property
    def disk_full(self) -> bool:
        """Whether the last write of queue files found no room; writes are refused then."""
        return self._flush.disk_full

    @disk_full.setter
    def disk_full(self, value: bool) -> None:
        self._flush.disk_full = value

    @property
    def covered(self) -> Marks | None:
        """What the newest checkpoint of this run says; None before the first one."""
        return self._flush.covered

    def tick(self) -> None:
        """Write what is unwritten, and free the memory of queues that fell idle."""
        self._flush.tick()

    def write(self) -> None:
        """Start writing the unwritten units."""
        self._flush.write()

    def sync(self, marks: Marks) -> None:
        """Write and sync all units published so far, then save the checkpoint.

        Args:
            marks: what the checkpoint may say once that is done.
        """
        self._flush.sync(marks)

    def end(self) -> None:
        """Start no more writes in the background, and drop the one that is wanted."""
        self._flush.end()

    def remove_files(self, paths: list[Path], ext_paths: list[Path], done: Done[int]) -> None:
        """Delete expired files of one queue, the oldest first, never its last one.

        Readers that still hold one keep it. `done` gets the count.
        """
        for path in paths:
            self._reader.forget(path)
        for path in ext_paths:
            self._ext_reader.forget(path)
        units, extensions = self.writer, self.ext_writer

        def job() -> int:
            for path in paths:
                units.remove(path)
            for path in ext_paths:
                extensions.remove(path)
            return len(paths) + len(ext_paths)

        self._worker.submit(job, done)
