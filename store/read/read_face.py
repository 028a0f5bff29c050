"""The store's face for readers; `message_reader.py` does the work."""

from __future__ import annotations

from collections.abc import Callable

from skylarkmq.protocol.message import MessageExt
from skylarkmq.store.log.commit_log import CommitLog
from skylarkmq.store.queue.queue_table import QueueTable
from skylarkmq.store.read.cold_reads import ColdReads, GotMessages, GotOffset, GotRecords, GotTime
from skylarkmq.store.read.message_reader import Filter, MessageReader
from skylarkmq.store.results import ConsumeQueueUnit, GetMessageResult


class ReadFace:
    """Reads by queue, time and place. Unknown queues answer and allocate nothing. Loop thread."""

    def __init__(
        self,
        commit_log: CommitLog,
        queues: QueueTable,
        reader: MessageReader,
        cold: ColdReads,
        *,
        durable_only: bool,
    ) -> None:
        self.commit_log = commit_log
        self.queues = queues
        self._reader = reader
        self._cold = cold
        self._durable_only = durable_only

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int | None = None,
        matches: Filter | None = None,
    ) -> GetMessageResult:
        """Read messages from a queue offset on."""
        return self._reader.get_message(topic, queue_id, offset, max_count, max_bytes, matches)

    def is_cold(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a read from this queue offset on may wait for the disk: use the next one."""
        return self._cold.is_cold(topic, queue_id, offset)

    def get_message_cold(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int | None,
        matches: Filter | None,
        done: GotMessages,
    ) -> None:
        """Read messages off the loop; `done` gets the answer on it, or the disk's error."""
        self._cold.get_message(topic, queue_id, offset, max_count, max_bytes, matches, done)

    def read_records(self, physical_offsets: list[int], done: GotRecords) -> None:
        """Read whole records by place, off the loop; None where none is to be seen.

        Under SYNC_FLUSH one is seen only once it is durable.
        """
        self._cold.read_records(physical_offsets, self._visible_end, done)

    def read_record(self, physical_offset: int, done: Callable[[bytes | None], None]) -> None:
        """Read one record by place, off the loop."""
        self.read_records([physical_offset], lambda records: done(records[0]))

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset behind the last visible message; 0 for an unknown queue."""
        queue = self.queues.get(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first queue offset that can be read; 0 for an unknown queue."""
        queue = self.queues.get(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Queue offset of the message stored nearest to a time."""
        return self._reader.offset_by_time(topic, queue_id, timestamp_ms)

    @property
    def has_cold(self) -> bool:
        """Whether the log is longer than what memory is taken to hold."""
        return self._reader.has_cold

    def offset_by_time_cold(
        self, topic: str, queue_id: int, timestamp_ms: int, done: GotOffset
    ) -> None:
        """`offset_by_time` off the loop."""
        self._cold.offset_by_time(topic, queue_id, timestamp_ms, done)

    def message_time_cold(
        self, topic: str, queue_id: int, queue_offset: int, done: GotTime
    ) -> None:
        """`message_time` off the loop."""
        self._cold.message_time(topic, queue_id, queue_offset, done)

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """Store time of the first message in ms, -1 when there is none."""
        return self.message_time(topic, queue_id, self.min_offset(topic, queue_id))

    def message_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Store time of one message in ms, -1 when it is not there."""
        queue = self.queues.get(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return -1
        return self._reader.message_time(queue, queue_offset)

    def is_in_memory(self, physical_offset: int) -> bool:
        """Whether the record is young enough to be cached by the system."""
        return self._reader.is_in_memory(physical_offset)

    def look_message(self, physical_offset: int) -> MessageExt | None:
        """The message at a physical offset; under SYNC_FLUSH only once it is durable."""
        return self._reader.look_message(physical_offset, self._visible_end)

    @property
    def _visible_end(self) -> int:
        log = self.commit_log
        return log.flushed_offset if self._durable_only else log.max_offset

    def queue_units(
        self, topic: str, queue_id: int, from_offset: int, max_count: int
    ) -> list[ConsumeQueueUnit]:
        """Visible queue units; fewer than asked at the end of a queue file."""
        return self._reader.units(topic, queue_id, from_offset, max_count)
