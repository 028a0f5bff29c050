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

from skylarkmq.common.errors import StoreError
from skylarkmq.common.files import Files
from skylarkmq.common.worker import Done, Worker
from skylarkmq.store.checkpoint import UNKNOWN, Marks
from skylarkmq.store.folder import StorePaths
from skylarkmq.store.log.mapped_file import file_name
from skylarkmq.store.queue.consume_queue import (
    LONG_MIN,
    TAIL_WRITE_COUNT,
    UNIT,
    UNIT_SIZE,
    ConsumeQueue,
    is_address,
)
from skylarkmq.store.queue.loaded_queues import EXT_SIZE, LoadedQueues
from skylarkmq.store.queue.queue_flush import QueueFlushService

if TYPE_CHECKING:
    from skylarkmq.store.log.append import Unit

LEAST_PAGES = 2


class QueueTable(LoadedQueues):
    """The consume queues of a store. Loop thread, but for the jobs it hands to the worker.

    Attributes:
        bitmap_of: gives the filter bitmap of a message of a topic with these encoded properties,
            for the extension; None while nothing computes bitmaps.
    """

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
        self.bitmap_of: Callable[[str, bytes], bytes] | None = None
        self._flush = QueueFlushService(self, worker, on_failure, least_pages=least_pages)

    def publish(self, units: Iterable[Unit]) -> None:
        """Make stored records visible in their queues.

        Raises:
            StoreError: a unit is not the next one of its queue; it is in no queue then.
        """
        writes_ext, bitmap_of, dirty = self.writes_ext, self.bitmap_of, self.dirty
        for queue, queue_offset, physical_offset, record_size, tags_code, text, timestamp in units:
            if queue_offset != queue.max_offset:
                if queue_offset < 0:
                    continue
                raise StoreError(
                    f"message {queue_offset} of {queue.topic}-{queue.queue_id} would be shown as "
                    f"message {queue.max_offset}"
                )
            if writes_ext and queue.ext is not None:
                bitmap = b"" if bitmap_of is None else bitmap_of(queue.topic, text)
                tags_code = queue.ext.append(tags_code, timestamp, bitmap)
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
        """What the newest checkpoint says, when this run wrote it or trusts it; else None."""
        return self._flush.covered

    @covered.setter
    def covered(self, marks: Marks) -> None:
        self._flush.covered = marks

    def write_now(self, marks: Marks | None = None) -> None:
        """Write all units here and now; with `marks`, sync them and save the checkpoint."""
        super().write_now(marks)
        if marks is not None:
            self.covered = marks

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
        if not self.held or not any(topic in self.held for topic, _ in self.queues):
            self._flush.sync(marks)

    def end(self) -> None:
        """Start no more writes in the background, and drop the one that is wanted."""
        self._flush.end()

    # Removal of topics: see `topic_removal.py`

    def totals(self) -> tuple[int, int]:
        """How many queues have units, and the sum of their ends; unknown while a topic goes."""
        return (UNKNOWN, UNKNOWN) if self.held else super().totals()

    def hold(self, topic: str) -> None:
        """Keep what is put into a topic's new queues in memory."""
        self.held.add(topic)

    def let_go(self, topic: str) -> None:
        """The topic's old files are gone: new ones may be written."""
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
        self._flush.forget_totals()

    def _queues_of(self, topic: str) -> list[ConsumeQueue]:
        return [queue for (name, _), queue in self.queues.items() if name == topic]

    def forget_written(self, path: Path) -> None:
        """A file, or a folder, is on its way out. Queues thread."""
        self.writer.forget(path)
        self.ext_writer.forget(path)

    def forget_read(self, paths: Iterable[Path]) -> None:
        """Files are gone."""
        for path in paths:
            self._reader.forget(path)
            self._ext_reader.forget(path)

    # Expiry: see `queue_cleaner.py`

    def expired_end(self, queue: ConsumeQueue) -> int:
        """Queue offset in front of which no file is needed: never the last file, nor its units."""
        per_file = self.units_per_file
        last_unit = max(queue.first_offset, queue.written - 1)
        return min(queue.min_offset, last_unit) // per_file * per_file

    def remove_expired(self, queue: ConsumeQueue, done: Done[int]) -> None:
        """Delete the files that are not needed, of a queue and its extension, the oldest first.

        Args:
            done: gets the count, or the error of a failed sync.
        """
        per_file, end = self.units_per_file, self.expired_end(queue)
        first = queue.first_offset // per_file * per_file
        paths = [queue.folder / file_name(unit * UNIT_SIZE) for unit in range(first, end, per_file)]
        queue.first_offset = max(queue.first_offset, end)
        ext, ext_end = queue.ext, self._expired_ext_end(queue)
        ext_size = self._ext_file_size

        def job() -> tuple[list[Path], list[Path]]:
            ext_paths: list[Path] = []
            if ext is not None and ext_end:
                names = [name for name in self._files.list(ext.folder) if name.isdigit()]
                ext_paths = [ext.folder / name for name in names if int(name) + ext_size <= ext_end]
            return (
                [path for path in paths if self.writer.remove(path)],
                [path for path in ext_paths if self.ext_writer.remove(path)],
            )

        def removed(
            found: tuple[list[Path], list[Path]] | None, error: BaseException | None
        ) -> None:
            if found is None:
                done(None, error)
                return
            for path in found[0]:
                self._reader.forget(path)
            for path in found[1]:
                self._ext_reader.forget(path)
            done(len(found[0]) + len(found[1]), None)

        self._worker.submit(job, removed)

    def _expired_ext_end(self, queue: ConsumeQueue) -> int:
        """Byte offset in front of which no file of the extension is needed, but for the last."""
        ext = queue.ext
        if ext is None:
            return 0
        end = max(0, ext.written - 1)
        if queue.min_offset < queue.max_offset:
            _, _, address = UNIT.unpack(self.stored_units(queue, queue.min_offset, 1))
            end = min(end, address - LONG_MIN) if is_address(address) else 0
        return end // ext.file_size * ext.file_size
