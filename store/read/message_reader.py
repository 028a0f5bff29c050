"""Reading messages back: by queue offset, by time, by physical offset.

`get_message` walks over queue units and hands out the records' own bytes; neighbours in the log
become one view. Its limits and its correction of wrong offsets are RocketMQ's, branch by branch.
What is too old to be in memory is read by `cold_reads.py`, which shares the walk.

Unlike RocketMQ, the checksum of a record that comes from the disk is checked before the record is
handed out: a damaged one is passed over, counted and logged. And a search by time goes over all
units of the queue, not over the one file whose modification time fits, so copied files do not
mislead it, and takes what a clock that was ahead has stamped as stored when the clock was set.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java (getMessage,
isTheBatchFull), ConsumeQueue.java (getOffsetInQueueByTime)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from skylarkmq.kernel import twin
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.record import (
    decode_message,
    intact_count,
    is_intact,
    store_timestamp_at,
)
from skylarkmq.store.environment import Environment
from skylarkmq.store.log.commit_log import CommitLog
from skylarkmq.store.log.mapped_file import MappedFile
from skylarkmq.store.queue.consume_queue import (
    PRE_BLANK_SIZE,
    UNIT,
    UNIT_SIZE,
    ConsumeQueue,
    ReadUnits,
    search_messages,
)
from skylarkmq.store.queue.extension import ADDRESS_MAX
from skylarkmq.store.queue.queue_table import QueueTable
from skylarkmq.store.read.filtering import FilteredTake, RecordFilter, Take
from skylarkmq.store.results import ConsumeQueueUnit, GetMessageResult, GetMessageStatus

log = logging.getLogger(__name__)


def nearest_in_time(
    read: ReadUnits, low: int, high: int, timestamp_ms: int, time_of: Callable[[bytes], int]
) -> int:
    """Return the offset in [low, high) of the message stored nearest to a time.

    On a tie it is the earlier one.

    Args:
        read: gives units, as `search_messages` takes them.
        time_of: gives the store time of a unit's message, -1 when its record is gone.
    """
    times: dict[int, int] = {}

    def is_late(number: int, unit: bytes) -> bool:
        times[number] = time_of(unit)
        return times[number] >= timestamp_ms

    before, after = search_messages(read, low, high, is_late)
    if before < 0 or after == high:
        return max(before, low) if after == high else after
    after_ms, before_ms = times[after] - timestamp_ms, timestamp_ms - times[before]
    return after if after_ms < before_ms or after_ms == 0 else before


Matches = Callable[[int], bool]  # tags code of a unit -> whether the reader wants the message
Locate = Callable[[int], tuple[MappedFile, int] | None]  # see `CommitLog.locate`
Filter = Matches | RecordFilter

SCANNED_UNITS_MIN = 800  # units looked at in one read, wanted or not
# A reader that asks for more at a time than RocketMQ's caps (5.x: maxMsgBytes).
BIG_PULL_BYTES = 4 << 20
BIG_PULL_COUNT = 1024

CORRUPT_LOGGED_MAX = 1000  # damaged records that get a line of their own in the log

_LIGHT_QUEUE_PREFIX = "%LMQ%"


# Records that are neighbours in the log: where they start and end there, and the place of the first
# among the units that were looked at.
Run = tuple[int, int, int]


@twin
def take_units(
    units: bytes, matches: Matches | None, count_max: int, size_max: int
) -> tuple[list[Run], int, int, int]:
    """Go over units and take the wanted ones up to the limits, the first one whatever its size.

    Returns:
        The runs that the records form; how many units were looked at, how many of them were taken,
        and the bytes of their records.
    """
    runs: list[Run] = []
    start = end = -1
    scanned = count = size = place = 0
    for commit_offset, record_size, tags_code in UNIT.iter_unpack(units):
        if count and (count >= count_max or size + record_size > size_max):
            break
        scanned += 1
        # An address that is still here could not be read: the client compares the tags.
        if matches is None or matches(tags_code) or tags_code <= ADDRESS_MAX:
            if commit_offset != end:
                if count:
                    runs.append((start, end, place))
                start, place = commit_offset, scanned - 1
            end = commit_offset + record_size
            count += 1
            size += record_size
    if count:
        runs.append((start, end, place))
    return runs, scanned, count, size


class Wanted(NamedTuple):
    """How much a reader takes: (messages, bytes) while in memory, and on the disk."""

    in_memory: tuple[int, int]
    on_disk: tuple[int, int]
    matches: Matches | None
    by_record: RecordFilter | None = None


class NearTerms(NamedTuple):
    """What a read of messages that are in memory keeps to."""

    floor: int  # place of the log: the first record must not lie below it
    verify_below: int  # see `MessageReader`
    only_kept: bool  # units that are in a file alone may have to come from the disk
    units_per_file: int
    count_max: int  # RocketMQ's caps
    size_max: int
    units_min: int  # looked at where not all are wanted
    big_count: int  # the caps where more than `size_max` bytes are asked for
    big_size: int


class MessageReader:
    """Reads from the log through the queues. An unknown queue allocates nothing. Loop thread.

    Attributes:
        verify_below: records below this place of the log were there before the start, so their
            bytes may come from the disk: their checksum is checked before they are handed out.
        shown_end: tells how far the log is shown, where what is durable is not enough.
    """

    def __init__(
        self, env: Environment, commit_log: CommitLog, queues: QueueTable, memory_size: int
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._config = env.config
        self._stats = env.stats
        # What lies further back from the end than this is taken to be only on the disk.
        self._memory_span = memory_size * env.config.access_message_in_memory_max_ratio // 100
        self._shows_durable = env.config.flush_disk_type == "SYNC_FLUSH"
        self._corrupt_logged: set[int] = set()
        self.verify_below = 0
        self.shown_end: Callable[[], int] | None = None

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int | None = None,
        matches: Filter | None = None,
    ) -> GetMessageResult:
        """Read messages of a queue from queue offset `offset` on.

        Args:
            max_bytes: None for RocketMQ's caps; a reader's own limit above them, in bytes.
            matches: called with the tags code of each unit, or a filter by properties; None takes
                all.

        Returns:
            FOUND with at least one record whatever its size, or why there is none and where to
            go on. The views stay readable after their file is removed.
        """
        queue = self._queues.get(topic, queue_id)
        outside = self.outside(queue, offset)
        if outside is not None or queue is None:
            return outside or GetMessageResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE)
        wanted = self.wanted(max_count, max_bytes, matches)
        by_record = wanted.by_record
        try:
            result = self._near(queue, offset, wanted, max_count) if by_record is None else None
            if result is not None:
                return result
            units = self._units(
                queue, offset, max(SCANNED_UNITS_MIN, max_count), resolved=by_record is None
            )
        except FileNotFoundError:
            units = b""
        if not units:
            return self.gone(queue, offset)
        gathered = _Gathered(self._log, self, queue)
        if by_record is None:
            result = self.walk(queue, offset, units, wanted, gathered)
        else:
            take = FilteredTake(by_record, self._log, gathered, self._stats)
            result = self.walk(queue, offset, units, wanted, take)
            take.finish(result)
        if result.count:
            result.views = gathered.finish()
        return result

    def _near(
        self, queue: ConsumeQueue, offset: int, wanted: Wanted, max_count: int
    ) -> GetMessageResult | None:
        """Read messages that are in memory; None for others, and when one is not sound.

        It does for them what `walk` does. Where all are wanted it reads no unit too many.
        """
        (count_max, size_max), _, matches, _ = wanted
        unit_count = count_max if matches is None else max(SCANNED_UNITS_MIN, max_count)
        units = self._units(queue, offset, unit_count, resolved=matches is not None)
        limits = count_max, size_max
        return near(queue, offset, units, matches, limits, self.near_terms(), self._log.locate)

    def near_terms(self) -> NearTerms:
        """Return what `near` keeps to now."""
        config, log_start, log_end = self._config, self._log.min_offset, self._log.max_offset
        cold_below = log_end - self._memory_span
        return NearTerms(
            max(log_start, cold_below),
            self.verify_below,
            log_start < cold_below,
            self._queues.units_per_file,
            config.max_transfer_count_on_message_in_memory,
            config.max_transfer_bytes_on_message_in_memory,
            SCANNED_UNITS_MIN,
            BIG_PULL_COUNT,
            BIG_PULL_BYTES,
        )

    def units_ahead(self, queue: ConsumeQueue, offset: int) -> bytes:
        """Return units of a queue for this read and the next ones.

        None when they have gone or the disk fails; `get_message` meets the same, and says it.
        """
        try:
            return self._units(queue, offset, SCANNED_UNITS_MIN, resolved=False)
        except OSError:
            return b""

    def outside(self, queue: ConsumeQueue | None, offset: int) -> GetMessageResult | None:
        """Return the answer for an offset at which a queue has no message; None when it has one."""
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
            return None
        return GetMessageResult(status, following, low, high)

    def gone(self, queue: ConsumeQueue, offset: int) -> GetMessageResult:
        """Return the answer when the queue file with the units at `offset` was removed."""
        per_file = self._queues.units_per_file
        return GetMessageResult(
            GetMessageStatus.OFFSET_FOUND_NULL,
            offset - offset % per_file + per_file,
            queue.min_offset,
            queue.max_offset,
        )

    def _units(self, queue: ConsumeQueue, offset: int, max_count: int, *, resolved: bool) -> bytes:
        """Return units up to the end of their file, from the file and from memory in one piece.

        Args:
            resolved: replace addresses of the extension by tags codes.
        """
        read = self._queues.units if resolved else self._queues.stored_units
        units = read(queue, offset, max_count)
        count = len(units) // UNIT_SIZE
        following = offset + count
        if not 0 < count < max_count or following % self._queues.units_per_file == 0:
            return units
        if queue.tail_start <= following < queue.max_offset:
            room = self._queues.units_per_file - following % self._queues.units_per_file
            units += read(queue, following, min(max_count - count, room))
        return units

    def walk(
        self, queue: ConsumeQueue, offset: int, units: bytes, wanted: Wanted, take: Take
    ) -> GetMessageResult:
        """Go over units and hand the wanted ones to `take`, up to the limits."""
        add = take.add
        in_memory, on_disk, matches, _ = wanted
        log_end = self._log.max_offset
        disk_below = log_end - self._memory_span
        scanned = missing_below = count = size = commit_offset = 0
        for commit_offset, record_size, tags_code in UNIT.iter_unpack(units):
            if commit_offset >= missing_below:
                count_max, size_max = on_disk if commit_offset < disk_below else in_memory
                if count and (count >= count_max or size + record_size > size_max):
                    break
                # An address that is still here could not be read: the client compares the tags.
                if matches is None or matches(tags_code) or tags_code <= ADDRESS_MAX:
                    if add(commit_offset, record_size, offset + scanned):
                        count += 1
                        size += record_size
                    elif commit_offset < self._log.min_offset:
                        missing_below = self._log.next_file_offset(commit_offset)
            scanned += 1
        status = GetMessageStatus.NO_MATCHED_MESSAGE
        if count:
            status = GetMessageStatus.FOUND
        elif missing_below:
            status = GetMessageStatus.MESSAGE_WAS_REMOVING
        result = GetMessageResult(status, offset + scanned, queue.min_offset, queue.max_offset)
        result.count, result.size = count, size
        result.suggest_pulling_from_slave = commit_offset < disk_below
        return result

    def wanted(self, max_count: int, max_bytes: int | None, wanted: Filter | None) -> Wanted:
        """Return the limits of a reader that asks for so much, and its filter.

        Args:
            max_bytes: above RocketMQ's own cap, the reader's own limits hold; None, or less, asks
                for RocketMQ's.
        """
        config = self._config
        by_record = wanted if isinstance(wanted, RecordFilter) else None
        matches = None if isinstance(wanted, RecordFilter) else wanted
        if max_bytes is not None and max_bytes > config.max_transfer_bytes_on_message_in_memory:
            big = min(max_count, BIG_PULL_COUNT), min(max_bytes, BIG_PULL_BYTES)
            return Wanted(big, big, matches, by_record)
        in_memory = (
            min(max_count, config.max_transfer_count_on_message_in_memory),
            config.max_transfer_bytes_on_message_in_memory,
        )
        on_disk = (
            min(max_count, config.max_transfer_count_on_message_in_disk),
            config.max_transfer_bytes_on_message_in_disk,
        )
        return Wanted(in_memory, on_disk, matches, by_record)

    def report_corrupt(self, mapped: MappedFile, physical_offset: int) -> None:
        """Count and log a damaged record that a reader wanted."""
        self._stats.corrupt_records += 1
        known = self._corrupt_logged
        if physical_offset not in known and len(known) < CORRUPT_LOGGED_MAX:
            known.add(physical_offset)
            log.error(
                "%s at byte %d: the record is damaged and is not handed out; "
                "`store verify` on the stopped store tells more",
                mapped.file.path,
                physical_offset - mapped.start_offset,
            )

    @property
    def has_cold(self) -> bool:
        """True while the log is longer than what memory is taken to hold."""
        return self._log.max_offset - self._log.min_offset > self._memory_span

    @property
    def cold_below(self) -> int:
        """Records below this place of the log are taken to be only on the disk."""
        return self._log.max_offset - self._memory_span

    def is_in_memory(self, physical_offset: int) -> bool:
        """Return whether a record is young enough to be taken as cached by the system."""
        return self._log.max_offset - physical_offset <= self._memory_span

    def queue_units(
        self, topic: str, queue_id: int, offset: int, max_count: int
    ) -> list[ConsumeQueueUnit]:
        """Return visible units from `offset` on, fewer at the end of the queue or a queue file."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return []
        data = self._queues.units(queue, offset, max_count)
        return [ConsumeQueueUnit(*unit) for unit in UNIT.iter_unpack(data)]

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first queue offset that can be read; 0 for an unknown queue."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the last visible message; 0 for an unknown queue."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def message_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the store time of one message in ms, -1 when it is not there."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return -1
        return self._time_of(self._queues.stored_units(queue, queue_offset, 1))

    def _time_of(self, unit: bytes) -> int:
        commit_offset, record_size, _ = UNIT.unpack(unit)
        found = None if record_size == PRE_BLANK_SIZE else self._log.locate(commit_offset)
        if found is None:
            return -1
        return store_timestamp_at(found[0].view, found[1])

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the queue offset of the message stored nearest to a time; on a tie the earlier.

        Before the first message it is the first, after the last the last one (not the end of the
        queue); 0 for an unknown or empty queue.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None or queue.min_offset >= queue.max_offset:
            return 0
        return nearest_in_time(
            lambda number, count: self._queues.stored_units(queue, number, count),
            queue.min_offset,
            queue.max_offset,
            timestamp_ms,
            self._rising_time_of,
        )

    def _rising_time_of(self, unit: bytes) -> int:
        commit_offset, _, _ = UNIT.unpack(unit)
        return self._log.clock_steps.bounded(commit_offset, self._time_of(unit))

    @property
    def visible_end(self) -> int:
        """The end of what reads by physical offset may show: under SYNC_FLUSH what is durable."""
        if self.shown_end is not None:
            return self.shown_end()
        return self._log.flushed_offset if self._shows_durable else self._log.max_offset

    def look_message(self, physical_offset: int) -> MessageExt | None:
        """Decode the record at a physical offset, None if no visible one starts there."""
        end_offset = self.visible_end
        if physical_offset < 0 or physical_offset >= end_offset:
            return None
        view = self._log.read(physical_offset)
        found = self._log.locate(physical_offset)
        if view is None or found is None or physical_offset + view.size > end_offset:
            return None
        return decode_message(found[0].view, found[1])


def owner_of(queue: ConsumeQueue) -> tuple[int, bytes] | None:
    """Return the queue id and topic of a queue's records.

    None for RocketMQ's light queues, which lead to records of other topics.
    """
    light = queue.topic.startswith(_LIGHT_QUEUE_PREFIX)
    return None if light else (queue.queue_id, queue.topic_part)


def near(
    queue: ConsumeQueue,
    offset: int,
    units: bytes,
    matches: Matches | None,
    limits: tuple[int, int],
    terms: NearTerms,
    locate: Locate,
) -> GetMessageResult | None:
    """Read messages whose units, from `offset` on, are at hand.

    Args:
        limits: messages, and bytes of them.

    Returns:
        None where the messages are not in memory, or one is not sound.
    """
    # Places in the log grow along a queue, so the first one tells.
    if not units or (first := UNIT.unpack_from(units)[0]) < terms.floor:
        return None
    runs, scanned, count, size = take_units(units, matches, *limits)
    views = _views(runs, locate)
    if views is None or (
        first < terms.verify_below and not _are_sound(queue, offset, runs, views, count)
    ):
        return None
    status = GetMessageStatus.FOUND if count else GetMessageStatus.NO_MATCHED_MESSAGE
    return GetMessageResult(
        status, offset + scanned, queue.min_offset, queue.max_offset, views, count, size
    )


def _views(runs: list[Run], locate: Locate) -> list[memoryview] | None:
    """Return the bytes of runs of the log; None when one is not there as a whole."""
    views: list[memoryview] = []
    view = memoryview(b"")
    file_start = file_end = 0
    for start, end, _ in runs:
        if not file_start <= start < end <= file_end:
            found = locate(start)
            if found is None or found[1] + end - start > found[0].committed_position:
                return None
            mapped = found[0]
            view, file_start = mapped.view, mapped.start_offset
            file_end = file_start + mapped.committed_position
        views.append(view[start - file_start : end - file_start])
    return views


def _are_sound(
    queue: ConsumeQueue, offset: int, runs: list[Run], views: list[memoryview], count: int
) -> bool:
    """Return whether runs hold the records that a queue says, so many and each of them sound.

    Args:
        offset: of the queue, where the units that were looked at begin.
    """
    owner = owner_of(queue)
    if owner is None:
        return False
    for (start, _, place), view in zip(runs, views, strict=True):
        sound = intact_count(view, 0, len(view), start, offset + place, owner)
        if sound < 0:
            return False
        count -= sound
    return count == 0


class _Gathered:
    """Records gathered for one reader, neighbours in the log as one view."""

    __slots__ = (
        "_end",
        "_file_end",
        "_file_start",
        "_log",
        "_queue",
        "_reader",
        "_start",
        "_verify_below",
        "_view",
        "_views",
    )

    def __init__(self, commit_log: CommitLog, reader: MessageReader, queue: ConsumeQueue) -> None:
        self._log = commit_log
        self._queue = queue
        self._reader = reader
        self._verify_below = reader.verify_below
        self._views: list[memoryview] = []
        self._view = memoryview(b"")
        # Invariant: [_start, _end) is the run under way and lies in [_file_start, _file_end), the
        # written part of the file that `_view` maps.
        self._start = self._end = self._file_start = self._file_end = 0

    def add(self, commit_offset: int, record_size: int, queue_offset: int) -> bool:
        """Take a record; False when it is not in the log anymore, or damaged."""
        if commit_offset < self._verify_below and not self._is_intact(
            commit_offset, record_size, queue_offset
        ):
            return False
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

    def _is_intact(self, commit_offset: int, record_size: int, queue_offset: int) -> bool:
        found = self._log.locate(commit_offset)
        if found is None:
            return False
        mapped, position = found
        owner = owner_of(self._queue)
        intact = is_intact(mapped.view, position, record_size, commit_offset, queue_offset, owner)
        if not intact:
            self._reader.report_corrupt(mapped, commit_offset)
        return intact

    def finish(self) -> list[memoryview]:
        """Hand over what was gathered."""
        self._close_run()
        return self._views

    def _close_run(self) -> None:
        start = self._file_start
        if self._end > self._start:
            self._views.append(self._view[self._start - start : self._end - start])
        self._start = self._end
