"""The log of a slave: bytes of its master's log become records of this one, at the same places.

    bytes, cut anywhere  ->  whole records, checked  ->  a batch like any other  ->  stored, shown

What does not end yet waits in memory, so the log always ends with a whole record, and a slave may
become a master at any time. A record's sizes, magic, physical offset and body CRC are checked, as
recovery does, before it is stored. Blank records are stored as they came, so both logs agree byte
by byte.

Queue offsets are the master's; nothing is numbered here. A queue whose first record here is not its
first one begins there. Numbers that are missing become padding. A record whose number is taken
already gets no unit: at the master the topic was deleted and made again, and the queue's old units
go with the deletion here.

Unlike RocketMQ, whose slave stores what it gets without a look, record or not.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../CommitLog.java (appendData),
DefaultMessageStore.java (doReput)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple

from skylarkmq.common.errors import StoreError
from skylarkmq.kernel import twin
from skylarkmq.protocol.flags import RMQ_SYS_SCHEDULE_TOPIC, validate_topic
from skylarkmq.protocol.properties import TAGS_AND_SEPARATOR, find_property
from skylarkmq.protocol.record import (
    BLANK_MAGIC,
    HEAD,
    MESSAGE_MAGIC,
    MIN_BLANK_SIZE,
    RecordStatus,
    read_record,
)
from skylarkmq.protocol.tags_code import cached_tags_code
from skylarkmq.store.config import RECORD_OVERHEAD
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.environment import Environment
from skylarkmq.store.errors import StoreFullError
from skylarkmq.store.log.append import (
    TRANSACTION_BITS,
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
)
from skylarkmq.store.log.commit_log import CommitLog
from skylarkmq.store.log.log_walk import WalkedRecord, plain_records, sound_records
from skylarkmq.store.queue.consume_queue import ConsumeQueue
from skylarkmq.store.queue.queue_table import QueueTable
from skylarkmq.store.units import NO_QUEUE, Units

log = logging.getLogger(__name__)

RECORD_SIZE_MAX: Final = 64 << 20
"""Bytes of a record that a slave waits for, unless its own maxMessageSize allows more."""
GAP_MAX: Final = 1 << 16
"""Queue offsets that may be missing before a record."""
LEFT_OUT_TOLD: Final = 10
"""Records without a unit that the log names, of those since the start."""


class ReceivedError(StoreError):
    """What a master sends is not the rest of this log; cause and cure for the operator."""


class NotYetError(ReceivedError):
    """The next try will do: the disk is behind."""


class _Part(NamedTuple):
    """Records that lie one after the other in one file, and what follows them."""

    records: bytes
    units: Units
    newest_ms: int
    end: int  # place in the bytes after them
    gap: bool  # the next record leaves one in its queue
    watched: int  # size of the last record, if it is one of the watched topic


class ReceivedLog:
    """Takes the bytes of a master's log. Loop thread.

    Attributes:
        left_out: records that got no unit, because their queue offset was taken, or far too high.
    """

    def __init__(
        self,
        env: Environment,
        commit_log: CommitLog,
        queues: QueueTable,
        delay_levels: DelayLevels,
        store: Callable[[bytes, Units, int, bytes], bool],
    ) -> None:
        """Take the parts of a store.

        Args:
            store: commits records with their units, newest store time, and the blank record after
                them, which may be empty; False when the disk refused it.
        """
        self._log = commit_log
        self._queues = queues
        self._delay_levels = delay_levels
        self._store = store
        self._file_size = commit_log.file_size
        self._size_max = max(RECORD_SIZE_MAX, env.config.max_message_size + RECORD_OVERHEAD)
        self._parts: list[bytes] = []  # what came after the last whole record
        self._pending = 0  # bytes of them
        self._wanted = 0  # bytes of them with which the record may be whole
        # By topic and queue id; None for one that cannot have units.
        self._known: dict[tuple[bytes, int], ConsumeQueue | None] = {}
        # Of them those whose next record needs no second look.
        self._plain: dict[tuple[bytes, int], ConsumeQueue] = {}
        self._watched: bytes | None = None
        self._tell: Callable[[bytes], None] | None = None
        self.left_out = 0

    def watch(self, topic: str | None, tell: Callable[[bytes], None] | None) -> None:
        """Call `tell` with each record of a topic when it is stored, before any that follows it."""
        self._watched, self._tell = None if topic is None else topic.encode(), tell
        self._known.clear()
        self._plain.clear()

    @property
    def next_offset(self) -> int:
        """Where the next bytes belong."""
        return self._log.wrote_offset + self._pending

    def forget(self) -> None:
        """Drop the record that has not ended: the next bytes come from another connection."""
        self._parts.clear()
        self._pending = self._wanted = 0

    def take(self, offset: int, data: bytes) -> None:
        """Store what is whole with these bytes of the master's log.

        Raises:
            ReceivedError: they are no records that may stand there. What comes before is stored.
            StoreFullError, OSError: there is no next file; what comes before is stored.
        """
        if self._log.mapped_files.last is None:
            self._begin(offset)
        elif offset != self.next_offset:
            raise ReceivedError(f"bytes of offset {offset} came, where {self.next_offset} goes on")
        self._parts.append(data)
        self._pending += len(data)
        if self._pending < self._wanted:
            return
        whole = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self.forget()
        taken = self._take_whole(whole)
        if taken < len(whole):
            self._parts.append(whole[taken:] if taken else whole)
            self._pending = len(whole) - taken

    def _begin(self, offset: int) -> None:
        if offset % self._file_size:
            raise ReceivedError(
                f"the master's log begins at offset {offset}, where no file of "
                f"mappedFileSizeCommitLog={self._file_size} does: use the master's size"
            )
        self._log.start_at(offset)

    def _take_whole(self, data: bytes) -> int:
        """Store the whole records of some bytes; return how many bytes they have."""
        place, begin = 0, self._log.wrote_offset
        while place < len(data):
            offset = begin + place
            file_end = self._log.next_file_offset(offset) - begin
            part = self._read(data, place, min(len(data), file_end - MIN_BLANK_SIZE), begin)
            blank = b""
            if part.end < file_end and not part.gap:
                blank = self._blank(data, part.end, file_end)
            if part.end == place and not blank:
                if not part.gap:
                    self._check_unended(data, place, file_end, begin)
                    break
                self._fill_gap(data, place, begin)
                continue
            place = part.end + len(blank)
            try:
                stored = self._store(part.records, part.units, part.newest_ms, blank)
            except (StoreFullError, OSError):
                if self._log.wrote_offset == offset:
                    _give_back(part.units)
                raise
            if not stored:
                raise ReceivedError("the disk refused what the master sent")
            if part.watched and self._tell is not None:
                self._tell(data[part.end - part.watched : part.end])
        return place

    def _read(self, data: bytes, place: int, limit: int, begin: int) -> _Part:
        """Return the records that are whole and sound; stop where anything else stands."""
        units = Units()
        end, newest = next_units(data, place, limit, begin, self._plain, units)
        gap, watched_size = False, 0
        while records := plain_records(data, end, limit, begin, True) or list(
            islice(sound_records(data, end, limit, begin), 1)
        ):
            for record in records:
                gap = not self._take_record(record, units)
                if gap:
                    break
                newest = max(newest, record[5])
                end = record[0] + record[1] - begin
                if record[6] == self._watched:
                    watched_size = record[1]
                    break
            if gap or watched_size:
                break
            end, newest_ms = next_units(data, end, limit, begin, self._plain, units)
            newest = max(newest, newest_ms)
        whole = place == 0 and end == len(data)
        return _Part(data if whole else data[place:end], units, newest, end, gap, watched_size)

    def _take_record(self, record: WalkedRecord, units: Units) -> bool:
        """Add the unit of any record; False when it would leave a gap, and must wait."""
        offset, size, queue_id, queue_offset, flag, timestamp, topic, properties = record
        queue = self._known.get((topic, queue_id))
        if queue is None or queue.removed:
            queue = self._open(record)
        kind = flag & TRANSACTION_BITS
        if queue is None or kind == TRANSACTION_ROLLBACK:
            return True
        number = NO_QUEUE
        if kind in (0, TRANSACTION_COMMIT):
            if queue_offset != queue.next_offset and not self._begins(queue, queue_offset):
                if 0 < queue_offset - queue.next_offset <= GAP_MAX:
                    return False
                self._tell_left_out(queue, offset, queue_offset)
            else:
                number = queue_offset
                queue.next_offset = number + 1
        code = _code_of(properties)
        if queue.topic == RMQ_SYS_SCHEDULE_TOPIC:
            level = self._delay_levels.level_of(properties)
            code = self._delay_levels.due_time(level, timestamp) if level else code
        units.add(queue, number, offset, size, code, properties, timestamp)
        return True

    def _open(self, record: WalkedRecord) -> ConsumeQueue | None:
        """Return the queue of a record; None when no unit may speak of it."""
        _, _, queue_id, queue_offset, _, _, topic, _ = record
        name = topic.decode("ascii", "replace")
        if validate_topic(name) is not None or queue_id < 0 or queue_offset < 0:
            log.error("the record at offset %d has no usable topic or queue", record[0])
            return None
        queue = self._known[topic, queue_id] = self._queues.open(name, queue_id)
        if name != RMQ_SYS_SCHEDULE_TOPIC and topic != self._watched:
            self._plain[topic, queue_id] = queue
        return queue

    def _begins(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Let a queue without messages begin later: its first records are older than this log."""
        if queue.next_offset or not (self._log.min_offset or queue_offset > GAP_MAX):
            return False
        queue.reset(queue_offset)
        return True

    def _blank(self, data: bytes, place: int, file_end: int) -> bytes:
        """Return the blank record that stands at a place, empty when none does or it is not whole.

        Raises:
            ReceivedError: it does not reach to the end of the file.
        """
        if len(data) - place < MIN_BLANK_SIZE:
            return b""
        size, magic = HEAD.unpack_from(data, place)
        if magic != BLANK_MAGIC:
            return b""
        if place + size != file_end:
            raise ReceivedError(
                f"a file of the master ends {file_end - place - size} bytes before one of "
                f"mappedFileSizeCommitLog={self._file_size} does: use the master's size"
            )
        return data[place:file_end] if file_end <= len(data) else b""

    def _check_unended(self, data: bytes, place: int, file_end: int, begin: int) -> None:
        """Say with how many bytes the record that has begun may be whole.

        Raises:
            ReceivedError: no record can become of these bytes.
        """
        offset, left = begin + place, len(data) - place
        if left < MIN_BLANK_SIZE:
            self._wanted = MIN_BLANK_SIZE
            return
        size, magic = HEAD.unpack_from(data, place)
        if magic == MESSAGE_MAGIC and place + size + MIN_BLANK_SIZE > file_end:
            raise ReceivedError(
                f"the record at offset {offset} has {size} bytes and would not fit into a file of "
                f"mappedFileSizeCommitLog={self._file_size}: use the master's size"
            )
        found = read_record(data, place, physical_offset=offset)
        if found.status is not RecordStatus.TORN or size <= left:
            raise ReceivedError(f"what came for offset {offset} is no sound record: {found.why}")
        if size > self._size_max:
            raise ReceivedError(
                f"the record at offset {offset} has {size} bytes, more than {self._size_max}: "
                "raise maxMessageSize to the master's"
            )
        self._wanted = size

    def _fill_gap(self, data: bytes, place: int, begin: int) -> None:
        """Pad the queue whose next record leaves a gap.

        Raises:
            NotYetError: units of the queue wait for a sync, or a confirmation.
        """
        record = next(sound_records(data, place, len(data), begin))
        offset, _, queue_id, queue_offset, _, _, topic, _ = record
        queue = self._queues.open(topic.decode("ascii"), queue_id)
        if queue.max_offset != queue.next_offset:
            raise NotYetError(
                f"the record at offset {offset} is number {queue_offset} of {queue.topic}-"
                f"{queue_id}, and what is before it is not shown yet"
            )
        log.warning(
            "the master's log lacks messages %d to %d of %s-%d",
            queue.next_offset,
            queue_offset - 1,
            queue.topic,
            queue_id,
        )
        self._queues.pad(queue, queue_offset)

    def _tell_left_out(self, queue: ConsumeQueue, offset: int, queue_offset: int) -> None:
        self.left_out += 1
        if self.left_out <= LEFT_OUT_TOLD:
            log.warning(
                "the record at offset %d is number %d of %s-%d, which goes on with %d: it can be "
                "found by key alone (the topic was deleted at the master?)",
                offset,
                queue_offset,
                queue.topic,
                queue.queue_id,
                queue.next_offset,
            )


@twin
def next_units(
    data: bytes,
    position: int,
    end: int,
    base: int,
    queues: dict[tuple[bytes, int], ConsumeQueue],
    units: Units,
) -> tuple[int, int]:
    """Add the units of sound records that are next in their queues, and let these go on.

    It stops at anything else: another queue or queue offset, a half of a transaction, IPv6 hosts.

    Args:
        end: place in `data` where the bytes end that may be looked at.
        base: offset of the log of the first byte of `data`.
        queues: by topic and queue id.

    Returns:
        The place after their records, and the newest store time.
    """
    newest = 0
    while records := plain_records(data, position, end, base, True):
        for offset, size, queue_id, number, flag, timestamp, topic, properties in records:
            queue = queues.get((topic, queue_id))
            if (
                queue is None
                or queue.removed
                or number != queue.next_offset
                or flag & TRANSACTION_BITS not in (0, TRANSACTION_COMMIT)
            ):
                return position, newest
            code = _code_of(properties)
            units.add(queue, number, offset, size, code, properties, timestamp)
            newest = max(newest, timestamp)
            queue.next_offset = number + 1
            position = offset + size - base
    return position, newest


def _code_of(properties: bytes) -> int:
    tags = find_property(properties, TAGS_AND_SEPARATOR)
    return 0 if tags is None else cached_tags_code(tags)


def _give_back(units: Units) -> None:
    """Let the next records have the queue offsets of records that were not stored."""
    for queue, (number, _) in units.runs.items():
        queue.next_offset = number
