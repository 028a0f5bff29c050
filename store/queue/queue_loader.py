"""Loading queues at a start, and what recovery does to them: cutting, and building units again.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java (loadConsumeQueue,
recoverConsumeQueue, truncateDirtyLogicFiles)
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from skylarkmq.store.environment import Environment
from skylarkmq.store.errors import StoreProfileError
from skylarkmq.store.log.mapped_file import is_file_name
from skylarkmq.store.progress import Progress, no_progress
from skylarkmq.store.queue.consume_queue import (
    PRE_BLANK,
    PRE_BLANK_SIZE,
    UNIT,
    UNIT_SIZE,
    ConsumeQueue,
    search_messages,
)
from skylarkmq.store.queue.extension import Extension, is_address
from skylarkmq.store.queue.queue_scanner import QueueScanner
from skylarkmq.store.queue.queue_table import QueueTable
from skylarkmq.store.results import ConsumeQueueUnit

log = logging.getLogger(__name__)

IsSound = Callable[[ConsumeQueue, int, ConsumeQueueUnit], bool]  # (queue, queue offset, unit)
LOAD_WRITE_SIZE = 8 << 20  # bytes of unwritten units, over all queues, that a rebuild may hold


class QueueLoader:
    """One load of a table. Blocks; loading thread.

    Attributes:
        table: the queues.
        lacking: a queue has no unit for messages before others of it; it is to be built again.
    """

    def __init__(self, env: Environment, table: QueueTable) -> None:
        self._files = env.files
        self._paths = env.paths
        self.table = table
        self._scanner = QueueScanner(env.files, env.config.mapped_file_size_consume_queue)
        self._ext_topics: frozenset[str] = frozenset()  # with a folder of extensions
        self._rebuilt_size = 0  # bytes of units built again and not written yet
        self.lacking = False

    def load(self, *, unclean: bool, progress: Progress = no_progress) -> None:
        """Open every queue that has files, its end where the written units end."""
        topics = self._files.list(self._paths.consume_queue)
        self._ext_topics = frozenset(self._files.list(self._paths.consume_queue_ext))
        for number, topic in enumerate(topics):
            progress("opening the queues of topics", number, len(topics))
            for name in self._files.list(self._paths.consume_queue / topic):
                if not (name.isascii() and name.isdigit() and len(name) < 10):
                    path = self._paths.consume_queue / topic / name
                    raise StoreProfileError(f"{path} is not a queue; move it out of the folder")
                self._load_queue(topic, int(name), unclean=unclean)

    def _load_queue(self, topic: str, queue_id: int, *, unclean: bool) -> None:
        folder = self._paths.queue_folder(topic, queue_id)
        extent = self._scanner.scan(folder, unclean=unclean)
        if extent is None:
            return
        queue = self.table.open(topic, queue_id, folder)
        queue.found(extent.first_offset, extent.end_offset, extent.last_units)
        self._note_last(queue)
        if extent.has_gap:
            log.warning("%s lacks a file after unit %d", folder, extent.end_offset)
            self.lacking = True
        self._load_extension(queue)

    def _load_extension(self, queue: ConsumeQueue) -> None:
        """Find the files of the extension; units whose extension is gone are as good as lost."""
        if queue.topic in self._ext_topics:
            folder = self._paths.queue_ext_folder(queue.topic, queue.queue_id)
            starts = sorted(int(name) for name in self._files.list(folder) if is_file_name(name))
            if starts:
                queue.ext = Extension(folder, starts, queue.max_offset)
        if queue.max_offset > queue.first_offset:
            _, _, code = UNIT.unpack(self.table.units(queue, queue.max_offset - 1, 1))
            if is_address(code):
                log.warning("the extension of %s ends before its units do", queue.folder)
                self.lacking = True

    def _note_last(self, queue: ConsumeQueue) -> None:
        queue.max_physical_offset = 0
        if queue.max_offset > queue.first_offset:
            unit = self.table.stored_units(queue, queue.max_offset - 1, 1)
            commit_offset, record_size, _ = UNIT.unpack(unit)
            if record_size != PRE_BLANK_SIZE:
                queue.max_physical_offset = commit_offset + record_size

    def cut(self, physical_offset: int, is_sound: IsSound) -> None:
        """Remove the units of records at or after `physical_offset` from every queue.

        A unit from there on may be torn, or a hole where its page was lost, and then it says
        nothing about where the others begin. So one stays only if the log confirms it.
        """
        for queue in list(self.table.queues.values()):
            end = self._confirmed_end(queue, physical_offset, is_sound)
            if end < queue.max_offset:
                self._cut_queue(queue, end)

    def clear(self, log_min_offset: int) -> None:
        """Remove the units of all records that the log holds, and what may come after them.

        The units of expired records stay: they tell which queue offsets were given out.
        """
        self.table.flusher.dirty.clear()
        self._rebuilt_size = 0
        self.lacking = False
        for queue in list(self.table.queues.values()):
            # Padding that a walk has put in for what is missing is only in memory.
            self._cut_queue(queue, min(queue.written, self.table.first_at(queue, log_min_offset)))

    def _cut_queue(self, queue: ConsumeQueue, end: int) -> None:
        first_offset = queue.first_offset
        self.table.reader.close()
        self._scanner.cut(queue.folder, end * UNIT_SIZE)
        queue.reset(end)
        queue.first_offset = queue.min_offset = first_offset
        if end == 0:
            del self.table.queues[queue.topic, queue.queue_id]
        self._note_last(queue)

    def _confirmed_end(self, queue: ConsumeQueue, physical_offset: int, is_sound: IsSound) -> int:
        """Return the queue offset of the first unit that no record below `physical_offset` has."""

        def has_to_go(number: int, data: bytes) -> bool:
            unit = ConsumeQueueUnit(*UNIT.unpack(data))
            return unit.commit_offset >= physical_offset or not is_sound(queue, number, unit)

        def read(number: int, count: int) -> bytes:
            return self.table.stored_units(queue, number, count)

        low, high = queue.first_offset, queue.max_offset
        last = read(high - 1, 1) if low < high else PRE_BLANK
        if last != PRE_BLANK and not has_to_go(high - 1, last):
            return high  # mostly nothing has to go
        return search_messages(read, low, high, has_to_go)[1]

    def rebuild_unit(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        unit: tuple[int, int, int],
    ) -> None:
        """Put back the unit of a record found in the log, unless the queue has it.

        A queue that lost its files begins at this unit. A gap, which only damaged files leave, is
        filled with padding, so that every message keeps its queue offset (`Unlike RocketMQ`, which
        writes the unit at the wrong place). Both are noted in `lacking`.
        """
        queue = self.table.open(topic, queue_id)
        commit_offset, record_size, tags_code = unit
        record_end = commit_offset + record_size
        is_empty = queue.max_offset == queue.first_offset
        is_there = record_end <= queue.max_physical_offset or queue_offset < queue.max_offset
        if is_there and not is_empty:
            return
        if queue_offset != queue.max_offset:
            self.lacking = True
            if is_empty:
                self._move_start(queue, queue_offset)
        while queue.max_offset < queue_offset:
            queue.append(0, PRE_BLANK_SIZE, 0)
            self.count_rebuilt()
        queue.append(commit_offset, record_size, tags_code)
        queue.next_offset = queue.max_offset
        self.count_rebuilt()

    def _move_start(self, queue: ConsumeQueue, offset: int) -> None:
        """Let a queue without units begin elsewhere; its empty file would leave a gap."""
        self.table.reader.close()
        self._scanner.remove_all(queue.folder)
        queue.reset(offset)

    def count_rebuilt(self, count: int = 1) -> None:
        """Note units that a rebuild appended to queues; many of them are written."""
        self._rebuilt_size += count * UNIT_SIZE
        if self._rebuilt_size >= LOAD_WRITE_SIZE:
            self._rebuilt_size = 0
            self.table.flusher.write_now()

    def correct_min_offsets(self, log_min_offset: int) -> None:
        """Move each queue's first readable unit up to the start of the log: the load is over."""
        for queue in self.table.queues.values():
            queue.min_offset = self.table.first_at(queue, log_min_offset)
            queue.drop_tail()
