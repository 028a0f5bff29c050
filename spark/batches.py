# pyright: reportUnknownMemberType=false
"""Records back to back, as a pull answer holds them, into Arrow batches bounded by rows and bytes.

Only the columns that were asked for are decoded; the structure of every record is checked, and a
body that is asked for against its checksum. A body that cannot be read, because its checksum is
wrong or because it is flagged as compressed and is not, ends the read, or the message is left out,
or the body stays as it is stored: as `on_corruption` says. A damaged record is left out under
`skip` alone.

Plain records are gathered in one pass (`columns/gathered.py`); here is what becomes of the others.
The columns are made when a batch is full (`columns/record_columns.py`). In executors, one thread;
no state outlives a builder.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple
from zlib import crc32

import pyarrow as pa

from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.message_view import OPENED_SIZE_MAX
from skylarkmq.common.crc import BODY_CRC_MASK
from skylarkmq.protocol.compression import CompressionUnavailableError, decompress
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import MAX_TOPIC_SIZE
from skylarkmq.protocol.record import (
    MIN_RECORD_SIZE,
    QUEUE_OFFSET_POSITION,
    decode_message,
    read_record,
)
from skylarkmq.spark.columns.gathered import (
    COMPRESSED,
    Gathered,
    Record,
    Topics,
    UnsoundRecordError,
    Wanted,
    gather,
    has_tag,
    record_at,
)
from skylarkmq.spark.columns.record_columns import OF_PROPERTIES, build_batch
from skylarkmq.spark.options import OnCorruption
from skylarkmq.spark.schema import COLUMNS, arrow_schema

log = logging.getLogger(__name__)

WITHOUT: Final = (
    "To read on without this message set onCorruption=skip; onCorruption=raw gives its body as it "
    "is stored"
)
DISK: Final = "Check the broker's disk (on a copy: skylarkmq store verify)"
MAX_ROWS: Final = 2048
MAX_BYTES: Final = 4 * 1024 * 1024
# Queue id, queue offset, physical offset.
_PLACE: Final = struct.Struct(">12xi4xqq")
_size_at: Final = struct.Struct(">i").unpack_from
_NO_LOG: Final = -1
_TOPICS_MAX: Final = 1000


class CorruptRecordError(RocketMQError):
    """A record is damaged, so its message cannot be read.

    The offsets are what the record says of itself, None where it cannot be read at all.
    """

    def __init__(
        self,
        why: str,
        *,
        broker_name: str = "",
        topic: str | None = None,
        queue_id: int | None = None,
        queue_offset: int | None = None,
        physical_offset: int | None = None,
        hint: str = "",
    ) -> None:
        place = ", ".join(
            f"{name} {value}"
            for name, value in (
                ("broker", broker_name or None),
                ("topic", topic),
                ("queue", queue_id),
                ("queue offset", queue_offset),
                ("physical offset", physical_offset),
            )
            if value is not None
        )
        super().__init__(
            f"corrupt record ({place or 'of an unknown place'}): {why}",
            hint=hint or f"{DISK}; to read on without damaged messages set onCorruption=skip",
        )
        self.broker_name = broker_name
        self.topic = topic
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.physical_offset = physical_offset


class _Block(NamedTuple):
    """What is asked of one block: its bytes, and which of its records count."""

    data: bytes
    broker_name: str
    start: int
    end: int
    wanted: Wanted


class BatchBuilder:
    """Takes blocks of records and gives batches.

    Attributes:
        rows: records taken so far, over all batches.
        skipped: records left out because they, or their bodies, cannot be read.
        bytes: their sizes as far as they were kept, bodies decompressed.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        topic_name: Callable[[str], str] = str,
        on_corruption: OnCorruption = "fail",
    ) -> None:
        """Make a builder of the columns of these names, in this order.

        Args:
            max_rows: of a batch, at least 1.
            max_bytes: of a batch's records; a single larger one makes a batch alone.
            topic_name: makes the column of a record's topic, for instance without its namespace.

        Raises:
            SchemaError: a name is no column's.
        """
        self._schema: Final = arrow_schema(names, COLUMNS)
        self._topics: Topics = {}
        with_body = "body" in names
        self._wanted: Final = Wanted(
            with_body=with_body,
            with_properties=not OF_PROPERTIES.isdisjoint(names),
            check_crc=with_body,
            bounded_at=QUEUE_OFFSET_POSITION,
            rows_max=max_rows,
            size_max=max_bytes,
            topics=self._topics,
        )
        self._gathered = Gathered(self._wanted)
        self._topic_name: Final = topic_name
        self._on_corruption: Final = on_corruption
        self.rows = 0
        self.skipped = 0
        self.bytes = 0

    def add(
        self,
        records: bytes | memoryview,
        *,
        broker_name: str,
        start: int,
        end: int,
        tags: frozenset[str] | None = None,
    ) -> list[pa.RecordBatch]:
        """Take the records of a block and return the batches that became full.

        Args:
            records: whole records back to back.
            start: queue offset of the first record wanted.
            end: queue offset after the last one wanted.
            tags: when given, records with any other tag are left out, and those without one.

        Raises:
            CorruptRecordError: a record is damaged and the policy is not `skip`, or so that it
                hides where the next one begins; with `fail` also when only a body cannot be read.
            CompressionUnavailableError: the library for a body's format is not installed; not with
                the policy `raw`.
        """
        data = records if isinstance(records, bytes) else bytes(records)
        wanted = self._wanted
        if tags is not None:
            wanted = wanted._replace(tags=frozenset(tag.encode() for tag in tags))
        block = _Block(data, broker_name, start, end, wanted)
        full: list[pa.RecordBatch] = []
        position = 0
        while position < len(data):
            rows = self._gathered
            before = rows.count
            position = gather(rows, data, position, len(data), _NO_LOG, start, end - 1, wanted)
            if position < len(data) and not rows.is_full:
                position = self._settle(block, position)
            rows.brokers.append((broker_name, rows.count - before))
            self.rows += rows.count - before
            if rows.is_full:
                full.append(self._flush())
        return full

    def finish(self) -> pa.RecordBatch | None:
        """Return the batch of what is left, None when nothing is."""
        return self._flush() if self._gathered.count else None

    def _settle(self, block: _Block, position: int) -> int:
        """Deal with the record at `position`, which is not a plain one.

        Returns the place after it; `position` when there is no room for it in the batch.
        """
        try:
            record = record_at(block.data, position)
        except UnsoundRecordError as error:
            return self._without(block, position, str(error))
        topic = self._topics.get(record.topic)
        if topic is None:
            if len(record.topic) > MAX_TOPIC_SIZE + 1:
                return self._without(block, position, "topic and properties do not add up")
            topic = self._learn(record.topic)
        following = position + record.size
        if not block.start <= record.queue_offset < block.end:
            return following
        if not has_tag(record.properties, block.wanted.tags):
            return following
        body = None
        if block.wanted.with_body:
            body = self._body(block, position, record)
            if body is None:
                return following
        return following if self._gathered.take(record, topic, body, block.wanted) else position

    def _without(self, block: _Block, position: int, why: str) -> int:
        """Return the place after a damaged record, which is left out.

        Raises:
            CorruptRecordError: the policy is another one, or the record's size is damaged too.
        """
        error = fault_of(block.data, position, why, broker_name=block.broker_name)
        left = len(block.data) - position
        size = _size_at(block.data, position)[0] if left >= MIN_RECORD_SIZE else 0
        if self._on_corruption != "skip" or not MIN_RECORD_SIZE <= size <= left:
            raise error
        log.warning("onCorruption=skip, going on: %s", error)
        at = error.queue_offset
        if at is None or block.start <= at < block.end:
            self.skipped += 1
        return position + size

    def _learn(self, key: bytes) -> str:
        """Remember the topic that stands in a record after its size, and return its name."""
        if len(self._topics) >= _TOPICS_MAX:
            self._topics.clear()
        topic = self._topics[key] = self._topic_name(key[1:].decode("utf-8", "replace"))
        return topic

    def _body(self, block: _Block, position: int, record: Record) -> bytes | memoryview | None:
        """Return a body as it is shown; None: leave the message out.

        Raises:
            CorruptRecordError: it cannot be read, and the policy is `fail`.
        """
        if crc32(record.body) & BODY_CRC_MASK != record.crc:
            return self._unread(block, position, record.body, "the body's checksum is wrong", DISK)
        if record.sys_flag & COMPRESSED:
            return self._opened(block, position, record.body, record.sys_flag)
        return record.body

    def _opened(
        self, block: _Block, position: int, body: memoryview, sys_flag: int
    ) -> bytes | memoryview | None:
        """Return a body opened; one that cannot be is the producer's doing, its checksum is right.

        None: leave the message out.
        """
        try:
            return decompress(bytes(body), sys_flag, OPENED_SIZE_MAX)
        except RemoteProtocolError as error:
            sender = decode_message(block.data, position, check_crc=False).born_host
            why = f"{error}; its checksum is right, so the producer at {sender} sent it so"
            return self._unread(block, position, body, why, f"Find the producer at {sender}")
        except CompressionUnavailableError as error:
            # Nothing is wrong with the message, so to leave it out is no answer.
            if self._on_corruption != "raw":
                raise
            return self._unread(block, position, body, str(error), "Install it")

    def _unread(
        self, block: _Block, position: int, body: memoryview, why: str, cure: str
    ) -> memoryview | None:
        """Return what stands for a body that cannot be read; None: leave the message out.

        Raises:
            CorruptRecordError: the policy is `fail`.
        """
        broker_name, hint = block.broker_name, f"{cure}. {WITHOUT}"
        error = fault_of(block.data, position, why, broker_name=broker_name, hint=hint)
        if self._on_corruption == "fail":
            raise error
        log.warning("onCorruption=%s, going on: %s", self._on_corruption, error)
        if self._on_corruption == "raw":
            return body
        self.skipped += 1
        return None

    def _flush(self) -> pa.RecordBatch:
        rows, self._gathered = self._gathered, Gathered(self._wanted)
        self.bytes += rows.size
        return build_batch(rows, self._schema)


def fault_of(
    data: bytes | memoryview, position: int, why: str, *, broker_name: str = "", hint: str = ""
) -> CorruptRecordError:
    """Return the error of the record at `position`, with what it says of its own place."""
    read = read_record(data, position, check_crc=False)
    if read.size > 0 and read.topic:
        return CorruptRecordError(
            why,
            broker_name=broker_name,
            topic=read.topic.decode("utf-8", "replace"),
            queue_id=read.queue_id,
            queue_offset=read.queue_offset,
            physical_offset=read.physical_offset,
            hint=hint,
        )
    if len(data) - position >= MIN_RECORD_SIZE:
        queue_id, queue_offset, physical_offset = _PLACE.unpack_from(data, position)
        return CorruptRecordError(
            why,
            broker_name=broker_name,
            queue_id=queue_id,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
        )
    return CorruptRecordError(why, broker_name=broker_name)
