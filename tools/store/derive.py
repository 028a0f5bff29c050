"""Building queues and key index again from the log's records, in the store's own files.

The units of expired messages stay at the front of a queue, because they tell which queue offsets
were given out; everything after them is cut off and written anew. A hole between two messages,
which damage leaves, is filled with padding, so that every message keeps its queue offset. Nothing
is durable before `finish`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from skylarkmq.common.errors import StoreError
from skylarkmq.common.files import Files
from skylarkmq.protocol.record import RecordView
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.folder import StorePaths
from skylarkmq.store.index.builder import next_name
from skylarkmq.store.index.file import IndexFile, IndexShape
from skylarkmq.store.index.keys import ENTRY, ENTRY_SIZE, record_entries
from skylarkmq.store.queue.consume_queue import PRE_BLANK, UNIT, UNIT_SIZE, first_unit_at
from skylarkmq.store.queue.queue_files import QueueWrite, QueueWriter
from skylarkmq.store.queue.queue_scanner import QueueScanner
from skylarkmq.store.queue.topic_removal import RemovedTopics
from skylarkmq.store.stopped.reader import QueueFolder, QueueKey, StoppedStore
from skylarkmq.tools.store.queue_places import QueuePlace, queue_places

WRITE_SIZE: Final = 4 << 20
"""Bytes of units, over all queues, that are kept in memory."""
HOLE_MAX: Final = 1_000_000
"""Padding units between two messages; a greater distance is no hole but a wrong number."""
_ENTRIES_SIZE_MAX: Final = 8192 * ENTRY_SIZE


@dataclass(slots=True)
class _Queue:
    folder: Path
    next_offset: int
    position: int  # of the first byte that is not written
    starts: bool  # no file is there yet
    data: bytearray = field(default_factory=bytearray)


class QueueBuilder:
    """Writes the queues of one store, which `old` describes as it was before; None: a new one."""

    def __init__(
        self,
        files: Files,
        paths: StorePaths,
        file_size: int,
        levels: DelayLevels,
        old: StoppedStore | None = None,
        removed: RemovedTopics | None = None,
    ) -> None:
        self.units = 0
        self.passed_over = 0  # messages that no queue can take
        self.queue_count = 0
        self._files = files
        self._paths = paths
        self._levels = levels
        self._old = old
        self._removed = removed
        self._writer = QueueWriter(files, file_size)
        self._scanner = QueueScanner(files, file_size)
        self._queues: dict[QueueKey, _Queue | None] = {}
        self._size = 0

    def add(self, record: RecordView) -> None:
        """Append the units of a message to its queues."""
        for place in queue_places(record, self._levels, self._removed):
            self._add(place, record)

    def _add(self, place: QueuePlace, record: RecordView) -> None:
        key = place.topic, place.queue_id
        queue = self._queues[key] if key in self._queues else self._open(place)
        if queue is not None and place.queue_offset == 0 and queue.next_offset > 0:
            queue = self._restart(key, queue)  # the topic was deleted and made again
        hole = place.queue_offset - queue.next_offset if queue is not None else -1
        if queue is None or not 0 <= hole <= HOLE_MAX:
            self.passed_over += 1
            return
        queue.data += PRE_BLANK * hole
        queue.data += UNIT.pack(record.physical_offset, record.size, place.tags_code)
        queue.next_offset = place.queue_offset + 1
        self.units += 1
        self._size += UNIT_SIZE * (hole + 1)
        if self._size >= WRITE_SIZE:
            self._write()

    def _open(self, place: QueuePlace) -> _Queue | None:
        """Begin a queue; None when its name cannot be one."""
        key = place.topic, place.queue_id
        try:
            folder = self._paths.queue_folder(*key)
        except StoreError:
            self._queues[key] = None
            return None
        begin = self._keep_expired(key, folder, place.queue_offset)
        queue = _Queue(folder, begin, begin * UNIT_SIZE, not self._files.list(folder))
        self._queues[key] = queue
        return queue

    def _restart(self, key: QueueKey, queue: _Queue) -> _Queue:
        self._write()
        self._writer.close()
        self._scanner.remove_all(queue.folder)
        made = self._queues[key] = _Queue(queue.folder, 0, 0, True)
        return made

    def _keep_expired(self, key: QueueKey, folder: Path, queue_offset: int) -> int:
        """Cut a queue after its expired units; return where the next one goes."""
        old = None if self._old is None else self._old.queues.get(key)
        if self._old is None or old is None or not old.files:
            return queue_offset
        first = old.files[0].start // UNIT_SIZE
        end = min(expired_end(self._old, old), queue_offset)
        if end <= first:
            self._scanner.remove_all(folder)
            return queue_offset
        self._scanner.cut(folder, end * UNIT_SIZE)
        return end

    def _write(self) -> None:
        writes: list[QueueWrite] = []
        for queue in self._queues.values():
            if queue is not None and queue.data:
                writes.append(
                    QueueWrite(queue.folder, queue.position, bytes(queue.data), queue.starts)
                )
                queue.position += len(queue.data)
                queue.data.clear()
                queue.starts = False
        self._writer.write(writes)
        self._size = 0

    def finish(self) -> None:
        """Write what is left, cut the queues that have no message any more, and sync."""
        self._write()
        for key, old in ({} if self._old is None else self._old.queues).items():
            if self._old is not None and key not in self._queues:
                _, end = self._old.bounds(old)
                self._keep_expired(key, self._paths.queue_folder(*key), end)
        self._writer.sync()
        self._writer.close()
        self.queue_count = len([queue for queue in self._queues.values() if queue is not None])


def expired_end(store: StoppedStore, queue: QueueFolder, log_offset: int | None = None) -> int:
    """Return the queue offset after the units of messages that lie before a place of the log.

    Args:
        log_offset: the place; where the log begins when None.
    """
    border = store.min_offset if log_offset is None else log_offset

    def read(number: int, _: int) -> bytes:
        unit = store.unit(queue, number)
        return PRE_BLANK if unit is None else UNIT.pack(*unit)

    return first_unit_at(read, *store.bounds(queue), border)


class IndexWriter:
    """Writes index files after those that are kept."""

    def __init__(
        self,
        files: Files,
        folder: Path,
        shape: IndexShape,
        names: list[str],
        kept: IndexFile | None = None,
    ) -> None:
        """Take the names that the files had; more are made of the messages' store times.

        Args:
            kept: the last file that stays, full or not; its own writing goes on in it.
        """
        self.entries = 0
        self.end_timestamp = 0
        self._files = files
        self._folder = folder
        self._shape = shape
        self._names = names
        self._last_name = "" if kept is None else kept.name
        self._file = kept
        self._pending = bytearray()  # entries

    def add(self, record: RecordView, skip: int = 0) -> None:
        """Add the entries of a message but for the first `skip`."""
        self._pending += record_entries(record)[skip * ENTRY_SIZE :]
        if len(self._pending) >= _ENTRIES_SIZE_MAX:
            self._put()

    def _put(self) -> None:
        added, count = 0, len(self._pending) // ENTRY_SIZE
        while added < count:
            store_timestamp = ENTRY.unpack_from(self._pending, added * ENTRY_SIZE)[2]
            added = self._writable(store_timestamp).put(self._pending, added)
        self.entries += added
        self._pending.clear()

    def _writable(self, store_timestamp: int) -> IndexFile:
        last = self._file
        if last is not None and not last.is_full:
            return last
        header = None if last is None else last.header
        self._close_file()
        name = self._names.pop(0) if self._names else next_name(store_timestamp, self._last_name)
        self._file = IndexFile.create(self._files, self._folder / name, self._shape, header)
        self._last_name = name
        return self._file

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.file.datasync()
            self.end_timestamp = self._file.header.end_timestamp
            self._file.let_go()

    def finish(self) -> None:
        """Write and sync what is left."""
        self._put()
        self._close_file()
        self._file = None


def remove_files(files: Files, paths: list[Path]) -> None:
    """Remove files of one folder, the last one first, durably."""
    for path in reversed(paths):
        files.unlink(path)
    if paths:
        files.sync_folder(paths[0].parent)
