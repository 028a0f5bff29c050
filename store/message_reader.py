"""Reading messages back: by queue offset, by time, by physical offset.

`get_message` walks queue units and hands out the records' own bytes; neighbours in the log become
one view. Its limits and its correction of wrong offsets are RocketMQ's, branch by branch.

Unlike RocketMQ, a search by time goes over all units of the queue, not over the one file whose
modification time fits, so copied files do not mislead it.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java (getMessage,
isTheBatchFull), ConsumeQueue.java (getOffsetInQueueByTime)
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.record import SYS_FLAG_POSITION, decode_message
from skylarkmq.store.commit_log import CommitLog
from skylarkmq.store.config import StoreConfig
from skylarkmq.store.consume_queue import UNIT, ConsumeQueue
from skylarkmq.store.queue_table import QueueTable
from skylarkmq.store.results import ConsumeQueueUnit, GetMessageResult, GetMessageStatus

Matches = Callable[[int], bool]  # tags code of a unit -> whether the reader wants the message

SCANNED_UNITS_MIN = 800  # units looked at in one read, wanted or not
SCANNED_UNITS_PER_WANTED = 1
# A reader that asks for more at a time than RocketMQ's caps (5.x: maxMsgBytes).
BIG_PULL_BYTES = 4 << 20
BIG_PULL_COUNT = 1024

_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_BORN_HOST_IPV6 = 0x10
_STORE_TIMESTAMP_POSITION = 56  # with an IPv4 born host
_IPV6_EXTRA = 12


class MessageReader:
    """Reads from the log through the queues. Loop thread."""

    def __init__(
        self, log: CommitLog, queues: QueueTable, config: StoreConfig, memory_size: int
    ) -> None:
        self._log = log
        self._queues = queues
        self._config = config
        # What lies further back than this from the end is taken to be on the disk alone.
        self._memory_span = memory_size * config.access_message_in_memory_max_ratio // 100

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int | None = None,
        matches: Matches | None = None,
    ) -> GetMessageResult:
        """Read messages of a queue from queue offset `offset` on.

        Args:
            max_bytes: None for RocketMQ's caps; a reader's own limit above them, in bytes.
            matches: called with the tags code of each unit; None takes all.

        Returns:
            FOUND with at least one record whatever its size, or why there is none and where to
            go on. The views stay readable after their file is removed.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return GetMessageResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE)
        low, high = queue.min_offset, queue.max_offset
        if high == 0:
            status, following = GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0
        elif offset < low:
            status, following = GetMessageStatus.OFFSET_TOO_SMALL, low
        elif offset == high:
            status, following = GetMessageStatus.OFFSET_OVERFLOW_ONE, offset
        elif offset > high:
            status, following = GetMessageStatus.OFFSET_OVERFLOW_BADLY, high
        else:
            return self._scan(queue, offset, max_count, max_bytes, matches)
        return GetMessageResult(status, following, low, high)

    def _scan(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_count: int,
        max_bytes: int | None,
        matches: Matches | None,
    ) -> GetMessageResult:
        result = GetMessageResult(
            GetMessageStatus.NO_MATCHED_MESSAGE, offset, queue.min_offset, queue.max_offset
        )
        try:
            units = self._queues.units(queue, offset, max(SCANNED_UNITS_MIN, max_count))
        except FileNotFoundError:
            units = b""
        if not units:
            per_file = self._queues.units_per_file
            result.status = GetMessageStatus.OFFSET_FOUND_NULL
            result.next_begin_offset = offset - offset % per_file + per_file
            return result
        gathered = _Gathered(self._log)
        add = gathered.add
        in_memory, on_disk = self._limits(max_count, max_bytes)
        disk_below = self._log.max_offset - self._memory_span
        scanned = missing_below = count = size = 0
        for commit_offset, record_size, tags_code in UNIT.iter_unpack(units):
            if commit_offset >= missing_below:
                count_max, size_max = on_disk if commit_offset < disk_below else in_memory
                if count and (count >= count_max or size + record_size > size_max):
                    break
                if matches is None or matches(tags_code):
                    if add(commit_offset, record_size):
                        count += 1
                        size += record_size
                    else:
                        missing_below = self._log.next_file_offset(commit_offset)
            scanned += 1
        if count:
            result.status = GetMessageStatus.FOUND
            result.views = gathered.finish()
            result.count, result.size = count, size
        elif missing_below:
            result.status = GetMessageStatus.MESSAGE_WAS_REMOVING
        result.next_begin_offset = offset + scanned
        return result

    def _limits(
        self, max_count: int, max_bytes: int | None
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """(count, bytes) in memory, and on the disk."""
        config = self._config
        if max_bytes is not None and max_bytes > config.max_transfer_bytes_on_message_in_memory:
            big = min(max_count, BIG_PULL_COUNT), min(max_bytes, BIG_PULL_BYTES)
            return big, big
        in_memory = (
            min(max_count, config.max_transfer_count_on_message_in_memory),
            config.max_transfer_bytes_on_message_in_memory,
        )
        on_disk = (
            min(max_count, config.max_transfer_count_on_message_in_disk),
            config.max_transfer_bytes_on_message_in_disk,
        )
        return in_memory, on_disk

    def is_in_memory(self, physical_offset: int) -> bool:
        """Whether a record is young enough to be taken as cached by the system."""
        return self._log.max_offset - physical_offset <= self._memory_span

    def units(
        self, topic: str, queue_id: int, offset: int, max_count: int
    ) -> list[ConsumeQueueUnit]:
        """Visible units from `offset` on, fewer at the end of the queue or of a queue file."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return []
        data = self._queues.units(queue, offset, max_count)
        return [ConsumeQueueUnit(*unit) for unit in UNIT.iter_unpack(data)]

    def message_time(self, queue: ConsumeQueue, offset: int) -> int:
        """Store time of a visible message in ms, -1 when its record is gone."""
        commit_offset, _, _ = UNIT.unpack(self._queues.units(queue, offset, 1))
        found = self._log.locate(commit_offset)
        if found is None:
            return -1
        mapped, position = found
        (sys_flag,) = _INT.unpack_from(mapped.view, position + SYS_FLAG_POSITION)
        position += _STORE_TIMESTAMP_POSITION
        if sys_flag & _BORN_HOST_IPV6:
            position += _IPV6_EXTRA
        timestamp: int = _LONG.unpack_from(mapped.view, position)[0]
        return timestamp

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Queue offset of the message stored nearest to a time, the earlier one on a tie.

        Before the first message it is the first, after the last the last one (not the end of the
        queue); 0 for an unknown or empty queue.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None or queue.min_offset >= queue.max_offset:
            return 0
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            if self.message_time(queue, middle) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        if low == queue.max_offset:
            return low - 1
        if low == queue.min_offset:
            return low
        after = self.message_time(queue, low) - timestamp_ms
        before = timestamp_ms - self.message_time(queue, low - 1)
        return low if after < before or after == 0 else low - 1

    def look_message(self, physical_offset: int, end_offset: int) -> MessageExt | None:
        """Decode the record at a physical offset below `end_offset`, None if none starts there."""
        if physical_offset < 0 or physical_offset >= end_offset:
            return None
        view = self._log.read(physical_offset)
        found = self._log.locate(physical_offset)
        if view is None or found is None or physical_offset + view.size > end_offset:
            return None
        return decode_message(found[0].view, found[1])


class _Gathered:
    """Records gathered for one reader, neighbours in the log as one view."""

    __slots__ = ("_end", "_file_end", "_file_start", "_log", "_start", "_view", "_views")

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._views: list[memoryview] = []
        self._view = memoryview(b"")
        # Invariant: [_start, _end) is the run under way and lies in [_file_start, _file_end), the
        # written part of the file that `_view` maps.
        self._start = self._end = self._file_start = self._file_end = 0

    def add(self, commit_offset: int, record_size: int) -> bool:
        """Take a record; False when it is not in the log any more."""
        record_end = commit_offset + record_size
        if commit_offset == self._end and record_end <= self._file_end:
            self._end = record_end
            return True
        self._close_run()
        if not self._file_start <= commit_offset < record_end <= self._file_end:
            found = self._log.locate(commit_offset)
            if found is None or found[1] + record_size > found[0].committed_position:
                return False
            mapped = found[0]
            self._view = mapped.view
            self._file_start = mapped.start_offset
            self._file_end = mapped.start_offset + mapped.committed_position
        self._start = commit_offset
        self._end = record_end
        return True

    def finish(self) -> list[memoryview]:
        """Hand over what was gathered."""
        self._close_run()
        return self._views

    def _close_run(self) -> None:
        start = self._file_start
        if self._end > self._start:
            self._views.append(self._view[self._start - start : self._end - start])
        self._start = self._end
