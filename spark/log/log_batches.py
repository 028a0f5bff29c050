# pyright: reportUnknownMemberType=false
"""The records of log files into Arrow batches, past damage or up to it, as it was asked for.

What comes to a place of a file, and what is done:

    a sound record             a row, when topic and time are asked for
    the blank rest of a file   its end
    zeros or a torn record,    the end of the log, where a broker writes or was killed
      nothing sound after it
    a hole between two files   damage, as
    anything else              damage: fail, skip to the next sound record, or stop

A body with a wrong checksum is damage under `verifyCrc`, else a row whose `crcOk` is false. Bodies
of records that were not asked for are not looked at.

In executors, one thread; no state outlives a reader.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from zlib import crc32

import pyarrow as pa

from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.message_view import OPENED_SIZE_MAX
from skylarkmq.common.crc import BODY_CRC_MASK
from skylarkmq.protocol.compression import decompress
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import MAX_TOPIC_SIZE, RMQ_SYS_TRANS_HALF_TOPIC, MessageSysFlag
from skylarkmq.protocol.record import (
    FIXED_IPV4_SIZE,
    PHYSICAL_OFFSET_POSITION,
    STORE_TIMESTAMP_POSITION_IPV4,
    SYS_FLAG_POSITION,
    RecordStatus,
)
from skylarkmq.spark.columns.gathered import (
    COMPRESSED,
    UNKNOWN,
    Gathered,
    Record,
    Topics,
    UnsoundRecordError,
    Wanted,
    gather,
    record_at,
)
from skylarkmq.spark.columns.property_columns import compute
from skylarkmq.spark.columns.record_columns import OF_PROPERTIES, build_batch, int64_column
from skylarkmq.spark.log.log_options import LogOptions
from skylarkmq.spark.schema import LOG_COLUMNS, arrow_schema
from skylarkmq.store.stopped.segments import Look, SegmentFile

LOGGER: Final = logging.getLogger(__name__)
_TOPICS_MAX: Final = 10_000
_QUIET: Final = (RecordStatus.UNWRITTEN, RecordStatus.TORN)
KINDS: Final = ("message", "prepared", "commit", "rollback")
"""By the transaction's two bits of the system flag."""
_KIND_BY_FLAG: Final = bytes(
    (flag & MessageSysFlag.TRANSACTION_MASK) // MessageSysFlag.TRANSACTION_PREPARED_TYPE
    for flag in range(256)
)


class DamagedLogError(RocketMQError):
    """A log file is damaged at a place."""

    def __init__(self, damage: Damage, hint: str = "") -> None:
        super().__init__(
            f"damaged log: {damage}",
            hint=hint
            or "To go on with the next sound record set onCorruption=skip, to end there "
            "onCorruption=stop; `skylarkmq store verify` lists all damage",
        )
        self.damage = damage


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """The records of one file that begin at [begin, end), byte places within it. Picklable.

    Attributes:
        path: of the file.
        base: physical offset of the file's first byte.
        is_cut: `end` is the begin of a record, which another range has.
        is_last: nothing was written after `end`.
        next_file: where the next file begins, a byte place as `end` is; None when none follows.
    """

    path: str
    base: int
    begin: int
    end: int
    is_cut: bool = False
    is_last: bool = False
    next_file: int | None = None


class Damage(NamedTuple):
    """A piece of a log file that holds no sound record, at byte places [position, end)."""

    path: str
    base: int
    position: int
    end: int
    why: str

    def __str__(self) -> str:
        """Return where it is and what it is."""
        return (
            f"{self.path} at byte {self.position} (physical offset {self.base + self.position}), "
            f"{self.end - self.position} bytes: {self.why}"
        )


class LogBatches:
    """Reads ranges of log files.

    Attributes:
        rows: records given so far.
        damages: what was passed over; under `stop` the one that ended it.
        stopped: damage was met under `stop`, so nothing after it counts.
    """

    def __init__(self, names: Sequence[str], options: LogOptions) -> None:
        """Make a reader of the columns of these names, in this order.

        Raises:
            SchemaError: a name is no column's.
        """
        self._schema: Final = arrow_schema(names, LOG_COLUMNS)
        self._options: Final = options
        self._topics: Topics = {}
        self._wanted: Final = Wanted(
            with_body="body" in names,
            with_properties=not OF_PROPERTIES.isdisjoint(names),
            check_crc=options.verify_crc or "crcOk" in names,
            bounded_at=STORE_TIMESTAMP_POSITION_IPV4,
            rows_max=options.batch_rows,
            size_max=options.batch_bytes,
            topics=self._topics,
        )
        self._gathered = Gathered(self._wanted)
        self._unsound: list[int] = []  # rows whose body has a wrong checksum
        self._fault = ""  # why the record that the walk stopped at is no good
        self.rows = 0
        self.damages: list[Damage] = []
        self.stopped = False

    def read(self, file: SegmentFile, span: SegmentRange) -> Iterator[pa.RecordBatch]:
        """Yield the records that begin in the range.

        Raises:
            DamagedLogError: under `fail` there is damage; or the range was cut at no record.
            OSError: the file cannot be read.
        """
        place = span.begin
        while place < span.end and not self.stopped:
            before = place
            data, begin = self._window(file, span, place)
            base, limit = file.base + begin, span.end - begin
            place = begin + self._walk(data, place - begin, base, limit)
            while self._gathered.is_full:
                yield self._flush(span)
                place = begin + self._walk(data, place - begin, base, limit)
            if place == before:
                place = self._settle(file, span, place)
            if self._gathered.is_full:
                yield self._flush(span)
        if self._gathered.count:
            yield self._flush(span)
        if span.is_cut and place > span.end:
            raise _misaligned(span)
        following = span.end if span.next_file is None else span.next_file
        if following != span.end and not self.stopped:
            self._meet(_unjoined(span, following))

    def miss(self, span: SegmentRange, why: str) -> None:
        """Deal with a range that cannot be read at all.

        Raises:
            DamagedLogError: the policy is `fail`.
        """
        self._meet(Damage(span.path, span.base, span.begin, span.end, why))

    def _walk(self, data: bytes, position: int, base: int, limit: int) -> int:
        """Gather the sound records that begin before `limit`, until the batch is full.

        Returns the place after the last one gathered or passed over.
        """
        rows, start_ms, last_ms = self._gathered, self._options.start_ms, self._options.end_ms - 1
        while True:
            position = gather(rows, data, position, limit, base, start_ms, last_ms, self._wanted)
            if rows.is_full or position >= limit:
                return position
            following = self._take_one(data, position, base)
            if following == position:
                return position
            position = following

    def _take_one(self, data: bytes, position: int, base: int, *, lenient: bool = False) -> int:
        """Gather the record at `position` when it is sound, and return the place after it.

        Returns `position` when it is not, or when there is no room for it in the batch. With
        `lenient` zeros in topic or properties are no damage: somebody has looked at them.
        """
        try:
            record = record_at(data, position)
        except UnsoundRecordError:
            return position
        if record.physical_offset != base + position:
            return position
        topic = self._topics.get(record.topic, UNKNOWN)
        if topic is UNKNOWN:
            topic = self._learn(record.topic, lenient)
        if topic is UNKNOWN or (record.properties.find(0) >= 0 and not lenient):
            return position
        following = position + record.size
        if topic is None:
            return following
        if not self._options.start_ms <= record.store_timestamp < self._options.end_ms:
            return following
        return following if self._take(record, topic) else position

    def _learn(self, key: bytes, lenient: bool) -> str | None:
        """Return the topic that follows its size byte, None when it is not asked for.

        `UNKNOWN` when the bytes are not a topic.
        """
        if len(key) > MAX_TOPIC_SIZE + 1 or (key.find(0, 1) >= 0 and not lenient):
            return UNKNOWN
        name = key[1:].decode("utf-8", "replace")
        topic = None if self._options.topics and name not in self._options.topics else name
        if not lenient:
            if len(self._topics) >= _TOPICS_MAX:
                self._topics.clear()
            self._topics[key] = topic
        return topic

    def _take(self, record: Record, topic: str) -> bool:
        """Gather a record; False when it is damaged or there is no room for it in the batch."""
        rows, wanted = self._gathered, self._wanted
        body: bytes | memoryview | None = None
        is_sound = not wanted.check_crc or crc32(record.body) & BODY_CRC_MASK == record.crc
        if not is_sound and self._options.verify_crc:
            return False
        if wanted.with_body:
            body = record.body
            if record.sys_flag & COMPRESSED:
                try:
                    body = decompress(bytes(body), record.sys_flag, OPENED_SIZE_MAX)
                except RemoteProtocolError as error:
                    sent_so = "; its checksum is right, so its producer sent it so"
                    self._fault = f"{error}{sent_so if wanted.check_crc else ''}"
                    return False
        if not rows.take(record, topic, body, wanted):
            return False
        if not is_sound:
            self._unsound.append(rows.count - 1)
        return True

    def _settle(self, file: SegmentFile, span: SegmentRange, place: int) -> int:
        """Deal with a place where no plainly sound record stands; return where to go on."""
        found = self._look(file, span, place)
        record = found.record
        if record.status is RecordStatus.BLANK and span.end == file.size:
            return span.end
        if record.status is RecordStatus.MESSAGE:
            reached = self._retake(found, file, place)
            if reached > place or self._gathered.is_full:
                return reached
            record = record._replace(why=self._fault)
        following = file.find_record(place + 1, span.end)
        if record.status is not RecordStatus.MESSAGE:
            again = self._look(file, span, place)
            if again.record.status is RecordStatus.MESSAGE:
                return place  # a broker has written on in the meantime
            if following is None and span.is_last and _is_end(found, place):
                return span.end
        end = span.end if following is None else following
        self._meet(Damage(span.path, span.base, place, end, record.why))
        return end

    def _retake(self, found: Look, file: SegmentFile, place: int) -> int:
        """Gather the one record that `read_record` took for sound; return the place after it."""
        at = place - found.begin
        return found.begin + self._take_one(found.data, at, file.base + found.begin, lenient=True)

    def _meet(self, damage: Damage) -> None:
        if self._options.on_corruption == "fail":
            raise DamagedLogError(damage)
        self.damages.append(damage)
        self.stopped = self._options.on_corruption == "stop"
        LOGGER.warning("damage %s: %s", "ends the log" if self.stopped else "passed over", damage)

    def _look(self, file: SegmentFile, span: SegmentRange, place: int) -> Look:
        with _named(span, place):
            return file.look(place, check_crc=self._options.verify_crc)

    def _window(self, file: SegmentFile, span: SegmentRange, place: int) -> tuple[bytes, int]:
        with _named(span, place):
            return file.window(place)

    def _flush(self, span: SegmentRange) -> pa.RecordBatch:
        rows, self._gathered = self._gathered, Gathered(self._wanted)
        unsound, self._unsound = self._unsound, []
        heads, count = rows.heads, rows.count
        self.rows += count
        base = pa.scalar(span.base, pa.int64())
        rows.extra = {
            "segment": pa.repeat(pa.scalar(span.path.rpartition("/")[2], pa.string()), count),
            "position": compute.subtract(
                int64_column(heads, PHYSICAL_OFFSET_POSITION, count), base
            ),
            "crcOk": pa.array([row not in unsound for row in range(count)], pa.bool_())
            if unsound
            else pa.repeat(True, count),
            "recordKind": kind_column(heads, rows.topics),
        }
        return build_batch(rows, self._schema)


def kind_column(heads: bytearray, topics: Sequence[str]) -> pa.Array[Any]:
    """Return message, prepared, commit or rollback for the fixed part of each row.

    RocketMQ takes the transaction's bits off a prepared message when it puts it into the topic of
    half messages, so the topic counts as well.
    Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../TransactionalMessageBridge.java
    (parseHalfMessageInner)
    """
    end = FIXED_IPV4_SIZE * len(topics)
    codes = heads[SYS_FLAG_POSITION + 3 : end : FIXED_IPV4_SIZE].translate(_KIND_BY_FLAG)
    indices = pa.Array.from_buffers(pa.int8(), len(codes), [None, pa.py_buffer(codes)])
    kinds: pa.Array[Any] = pa.array(KINDS, pa.string()).take(indices)
    if RMQ_SYS_TRANS_HALF_TOPIC not in topics:
        return kinds
    named = zip(kinds.to_pylist(), topics, strict=True)
    return pa.array(
        [KINDS[1] if topic == RMQ_SYS_TRANS_HALF_TOPIC else kind for kind, topic in named],
        pa.string(),
    )


def _is_end(found: Look, place: int) -> bool:
    """Return whether the log simply ends with what stands here, given that nothing follows.

    A broker that writes right now may have come as far as anywhere within the record: from there
    on stand zeros. A record whose lengths add up was written to its end, so it is damaged.
    """
    record = found.record
    if record.status in _QUIET:
        return True
    if record.size:
        return False
    at = place - found.begin
    if found.claimed:
        return found.data[at + found.claimed - 1 : at + found.claimed] == b"\0"
    return not any(found.data[at + FIXED_IPV4_SIZE :])


def _unjoined(span: SegmentRange, following: int) -> Damage:
    name = f"{span.base + following:020d}"
    why = (
        f"no file has them: this one is cut short, or one before {name} is missing"
        if following > span.end
        else f"file {name} begins within this one"
    )
    begin, end = sorted((span.end, following))
    return Damage(span.path, span.base, begin, end, why)


def _misaligned(span: SegmentRange) -> RocketMQError:
    return RocketMQError(
        f"{span.path} was cut at byte {span.end}, where no record begins: the body of a message "
        "looks like a record in its place",
        hint="Set maxBytesPerPartition=0, so that the file is not cut",
    )


@contextmanager
def _named(span: SegmentRange, place: int) -> Generator[None]:
    """Say which place of which file the disk cannot read."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        damage = Damage(span.path, span.base, place, span.end, f"the disk cannot read it ({error})")
        raise DamagedLogError(damage) from error
