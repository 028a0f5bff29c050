# pyright: reportUnknownMemberType=false
"""Records back to back, as a pull answer holds them, into Arrow batches bounded by rows and bytes.

Only the columns that were asked for are decoded; the structure of every record is checked, and a
body that is asked for against its checksum. A body that cannot be read, because its checksum is
wrong or because it is flagged as compressed and is not, ends the read, or the message is left out,
or the body stays as it is stored: as `on_corruption` says.

Of a record the walk keeps slices alone; the columns are made when a batch is full
(`record_columns.py`). In executors, one thread; no state outlives a builder.
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
from skylarkmq.protocol.flags import MAX_TOPIC_SIZE, MessageSysFlag
from skylarkmq.protocol.properties import TAGS_AND_SEPARATOR, find_property
from skylarkmq.protocol.record import (
    FIXED_IPV4_SIZE,
    HOSTS_BITS,
    LENGTHS_SIZE,
    MESSAGE_MAGIC,
    MIN_RECORD_SIZE,
    decode_message,
    read_record,
)
from skylarkmq.spark.columns.record_columns import OF_PROPERTIES, Gathered, build_batch, narrowed
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
# Size, magic, CRC, queue offset, system flag, body size; see `protocol/record.py`.
_WALK: Final = struct.Struct(">iii8xq8xi44xi")
assert _WALK.size == FIXED_IPV4_SIZE
_fields: Final[Callable[[bytes, int], tuple[int, ...]]] = _WALK.unpack_from
# Queue id, queue offset, physical offset.
_PLACE: Final = struct.Struct(">12xi4xqq")
_COMPRESSED: Final = MessageSysFlag.COMPRESSED_FLAG


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
            hint=hint
            or f"{DISK}; to read on without this record start after its offset (startingOffsets; "
            "a stream with a new checkpoint)",
        )
        self.broker_name = broker_name
        self.topic = topic
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.physical_offset = physical_offset


class _Block(NamedTuple):
    """What is asked of one block: its bytes, twice, and which of its records count."""

    data: bytes
    view: memoryview
    broker_name: str
    start: int
    end: int
    wanted: frozenset[bytes] | None


class BatchBuilder:
    """Takes blocks of records and gives batches.

    Attributes:
        rows: records taken so far, over all batches.
        skipped: records left out because their bodies cannot be read.
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
        self._max_rows: Final = max_rows
        self._max_bytes: Final = max_bytes
        self._with_body: Final = "body" in names
        self._with_properties: Final = not OF_PROPERTIES.isdisjoint(names)
        self._gathered = Gathered()
        self._size = 0  # bytes of the batch in hand
        self._topic_name: Final = topic_name
        self._topic = b"\0"  # the last topic, after its size byte
        self._topic_text = ""
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
            CorruptRecordError: a record is damaged or cut; with the policy `fail` also when only
                its body cannot be read.
            CompressionUnavailableError: the library for a body's format is not installed; not with
                the policy `raw`.
        """
        data = records if isinstance(records, bytes) else bytes(records)
        wanted = None if tags is None else frozenset(tag.encode() for tag in tags)
        block = _Block(data, memoryview(data), broker_name, start, end, wanted)
        full: list[pa.RecordBatch] = []
        position = 0
        while position < len(data):
            before = len(self._gathered.heads)
            position = self._walk(block, position)
            count = len(self._gathered.heads)
            self._gathered.brokers.append((broker_name, count - before))
            self.rows += count - before
            if position < len(data) or count >= self._max_rows or self._size >= self._max_bytes:
                full.append(self._flush())
        return full

    def finish(self) -> pa.RecordBatch | None:
        """Return the batch of what is left, None when nothing is."""
        return self._flush() if self._gathered.heads else None

    # Long, for a call a record would cost as much as the record.
    def _walk(self, block: _Block, position: int) -> int:
        """Gather records from `position` on until the batch is full.

        Returns the place after the last record gathered or passed over.
        """
        data, view, _, start, end, wanted = block
        rows, stop, with_body = self._gathered, len(data), self._with_body
        heads, topics, bodies, properties = rows.heads, rows.topics, rows.bodies, rows.properties
        with_properties, limit, kept = self._with_properties, self._max_bytes, self._size
        topic, room = self._topic, self._max_rows - len(heads)
        at, is_plain = len(topic), wanted is None
        while position < stop and room:
            if stop - position < MIN_RECORD_SIZE:
                raise self._fault(block, position, "it is cut")
            size, magic, crc, queue_offset, sys_flag, body_size = _fields(data, position)
            body_start, hosts = position + FIXED_IPV4_SIZE, None
            head = data[position:body_start]
            if sys_flag & HOSTS_BITS:
                head, hosts, body_start, body_size = narrowed(data, position, sys_flag)
            following, tail = position + size, body_start + body_size
            if magic != MESSAGE_MAGIC or size < MIN_RECORD_SIZE or following > stop:
                raise self._fault(block, position, "its size or its magic is wrong, or it is cut")
            if body_size < 0 or tail + LENGTHS_SIZE > following:
                raise self._fault(block, position, "the body is larger than the record")
            text = data[tail:following]
            if not text.startswith(topic):
                topic = self._take_topic(block, position, text)
                at = len(topic)
            encoded = text[at + 2 :]
            if len(text) < at + 2 or text[at] << 8 | text[at + 1] != len(encoded):
                raise self._fault(block, position, "topic and properties do not add up")
            if not (start <= queue_offset < end and (is_plain or _has_tag(encoded, wanted))):
                position = following
                continue
            gain = size - body_size
            if with_body:
                stored = view[body_start:tail]
                body: bytes | memoryview | None = stored
                if crc32(stored) & BODY_CRC_MASK != crc:
                    why = "the body's checksum is wrong"
                    body = self._unread(block, position, stored, why, DISK)
                elif sys_flag & _COMPRESSED:
                    body = self._opened(block, position, stored, sys_flag)
                if body is None:
                    position = following
                    continue
                gain += len(body)
                if kept + gain > limit and heads:
                    break
                bodies.append(body)
            elif kept + gain > limit and heads:
                break
            kept += gain
            room -= 1
            position = following
            if hosts is not None:
                rows.long_hosts[len(heads)] = hosts
            heads.append(head)
            topics.append(self._topic_text)
            if with_properties:
                properties.append(encoded)
        self._size = kept
        return position

    def _take_topic(self, block: _Block, position: int, text: bytes) -> bytes:
        """Remember the topic that a record's tail begins with, and return it with its size."""
        if text[0] > MAX_TOPIC_SIZE:
            raise self._fault(block, position, "topic and properties do not add up")
        self._topic = text[: text[0] + 1]
        self._topic_text = self._topic_name(self._topic[1:].decode("utf-8", "replace"))
        return self._topic

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

    def _fault(self, block: _Block, position: int, why: str) -> CorruptRecordError:
        return fault_of(block.data, position, why, broker_name=block.broker_name)

    def _flush(self) -> pa.RecordBatch:
        rows, self._gathered = self._gathered, Gathered()
        self.bytes += self._size
        self._size = 0
        return build_batch(rows, self._schema)


def _has_tag(encoded: bytes, wanted: frozenset[bytes] | None) -> bool:
    return wanted is None or find_property(encoded, TAGS_AND_SEPARATOR) in wanted


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
