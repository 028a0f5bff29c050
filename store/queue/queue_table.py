"""All consume queues by topic and queue id: publishing and reading units, removing queues.

Publishing touches memory only; `queue_flusher.py` brings units to the files, `queue_loader.py`
finds them there at a start.

Unlike RocketMQ, a queue exists only after a message was stored in it: asking for an unknown one
allocates nothing.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java (consumeQueueTable)
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from skylarkmq.common.errors import StoreError
from skylarkmq.common.worker import run_job
from skylarkmq.store.checkpoint import UNKNOWN
from skylarkmq.store.environment import Environment
from skylarkmq.store.log.mapped_file import file_name
from skylarkmq.store.queue.consume_queue import (
    PRE_BLANK_SIZE,
    TAIL_WRITE_COUNT,
    UNIT,
    UNIT_SIZE,
    ConsumeQueue,
    first_unit_at,
)
from skylarkmq.store.queue.extension import with_tags_codes
from skylarkmq.store.queue.queue_files import HandleCache, QueueReader
from skylarkmq.store.queue.queue_flusher import QueueFlusher, QueueKey

if TYPE_CHECKING:
    from skylarkmq.store.units import Units

EXTENSION_FILES = 64  # that are open at a time


class QueueTable:
    """The consume queues of a store. Loop thread, or the loading thread; its jobs: queues thread.

    Attributes:
        held: topics that are being removed: nothing of them goes to the disk.
        reader: reads units that are no longer in memory.
    """

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._file_size = env.config.mapped_file_size_consume_queue
        self.queues: dict[QueueKey, ConsumeQueue] = {}
        self.held: set[str] = set()
        self.reader = QueueReader(env.files, self._file_size)
        self._ext_handles = HandleCache(env.files, EXTENSION_FILES)
        self.flusher = QueueFlusher(env, self.queues)

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
            folder = folder or self._env.paths.queue_folder(topic, queue_id)
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
                self.flusher.add(queue)
            if queue.max_offset - queue.written >= TAIL_WRITE_COUNT and not self.flusher.writing:
                self.flusher.write()

    def pad(self, queue: ConsumeQueue, end: int) -> None:
        """Let the next message of a queue be number `end`; what is missing becomes padding."""
        while queue.max_offset < end:
            queue.append(0, PRE_BLANK_SIZE, 0)
        queue.next_offset = end
        if not queue.dirty:
            self.flusher.add(queue)

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
        return self.reader.units(queue.folder, offset, count)

    def first_at(self, queue: ConsumeQueue, physical_offset: int) -> int:
        """Return the queue offset of the first unit of a record at or after `physical_offset`."""
        return first_unit_at(
            lambda unit, count: self.stored_units(queue, unit, count),
            queue.first_offset,
            queue.max_offset,
            physical_offset,
        )

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
            queue.dirty = False
            if queue.unwritten_size:
                self.flusher.add(queue)

    def take_out(self, topic: str) -> None:
        """Forget the queues of a topic; who still has one may read it."""
        for queue in self._queues_of(topic):
            del self.queues[topic, queue.queue_id]
            queue.removed = queue.dirty = True
        self.flusher.drop_removed()

    def _queues_of(self, topic: str) -> list[ConsumeQueue]:
        return [queue for (name, _), queue in self.queues.items() if name == topic]

    def forget_read(self, paths: Iterable[Path]) -> None:
        """Close files that were removed."""
        for path in paths:
            self.reader.forget(path)
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
            return [path for path in paths if self.flusher.writer.remove(path)]

        try:
            removed = await run_job(self._env.workers.queues, job)
        except OSError:
            queue.first_offset, queue.ext = first_offset, ext  # may be asked for again
            raise
        self.forget_read(removed)
        return len(removed)

    # The calls below block

    def unload(self) -> None:
        """Forget what was loaded and written, to load it again; before any work of the loop."""
        self.close()
        self.queues.clear()
        self.flusher = QueueFlusher(self._env, self.queues)

    def close(self) -> None:
        self.flusher.writer.close()
        self.reader.close()
        self._ext_handles.close()
