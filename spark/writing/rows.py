"""Rows, as Spark hands them to a sink in Arrow batches, become messages ready for the wire.

Properties of a message, later ones going before earlier ones of the same name:

    map `properties`   without the names below, and without pairs whose value is null or empty
    columns            keys, tags, shardingKey, delayTimeLevel, priority
    here               UNIQ_KEY, and INSTANCE_ID with a namespace

Names of the map that RocketMQ keeps for a message's way (UNIQ_KEY, WAIT, DELAY, REAL_TOPIC,
RECONSUME_TIME and so on) are taken out, because they tell of another send: a row that was read
from a topic can be sent as it is. KEYS, TAGS and __SHARDINGKEY of the map stand in for columns that
are missing or null. _SYS_MSG_PRIORITY_ of the map is the row's priority where its topic has such,
and elsewhere means nothing; column `priority` asks for such a topic.

Row by row: for those rows that `packing` leaves, which takes a slice at once.
Runs in a Spark worker, one object per task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from skylarkmq.client.config import MIB
from skylarkmq.client.errors import RocketMQError
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.compression import compress, compression_flags
from skylarkmq.protocol.flags import is_retry_topic
from skylarkmq.protocol.properties import MAX_PROPERTIES_SIZE, encode_properties
from skylarkmq.spark.writing.sink_columns import RowPlan
from skylarkmq.spark.writing.sink_options import SinkOptions, check_topic
from skylarkmq.spark.writing.unique_keys import Value, key_of_values
from skylarkmq.spark.writing.window import Outgoing

if TYPE_CHECKING:
    import pyarrow as pa

SLICE_SIZE: Final = 4 * MIB
"""Bytes of rows that are turned into Python values at once; one larger row goes alone."""
SLICE_ROWS: Final = 2048
TOPICS_MAX: Final = 4096
_INT32_MAX: Final = 2**31 - 1
TAKEN_OUT: Final = (names.RESERVED_NAMES - {names.KEYS, names.TAGS}) | {
    names.TRANSACTION_ID,
    names.TRANSACTION_CHECK_TIMES,
    names.TRAN_PREPARED_QUEUE_OFFSET,
    names.CHECK_IMMUNITY_TIME_IN_SECONDS,
    names.TIMER_DELIVER_MS,
    names.TIMER_DELAY_MS,
    names.TIMER_DELAY_SEC,
    names.TIMER_DEL_UNIQKEY,
    names.TIMER_OUT_MS,
    names.TIMER_ENQUEUE_MS,
    names.TIMER_DEQUEUE_MS,
    names.TIMER_ROLL_TIMES,
    names.INNER_MULTI_DISPATCH,
}
"""Names of a map `properties` that do not travel on."""


class RowError(RocketMQError):
    """A row cannot be a message; the text names the row, its topic and column, and the cure."""


class Addressed(NamedTuple):
    """A message and what says where it goes."""

    topic: str
    message: Outgoing
    queue_id: int | None
    """The queue that the row names."""
    broker_name: str | None
    sharding_key: str | None
    """Chooses the queue where none is named; None: any queue."""
    alone: bool
    """It may stand in no batch: delayed, compressed, for a retry topic, or with a priority."""
    by_priority: bool = False
    """Column `priority` chooses the queue: its broker finds it."""


def slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the parts of a batch, so that bodies of megabytes are not all in memory twice."""
    count = batch.num_rows
    if count > SLICE_ROWS or (count > 1 and batch.nbytes > SLICE_SIZE):
        # By halves, for a few rows may have most of the bytes.
        half = count // 2
        yield from slices(batch.slice(0, half))
        yield from slices(batch.slice(half))
    elif count:
        yield batch


def values_of(batch: pa.RecordBatch, place: int) -> Sequence[Any]:
    """Return the values of a column; those of instants and windows as identity takes them.

    Raises:
        UnicodeDecodeError: a text is none.
    """
    column = cast("Any", batch.column(place))
    kind = str(column.type)
    if kind.startswith("timestamp"):  # an instant, whatever the session's zone
        column = column.cast("int64")
    elif kind.startswith("struct"):  # a window, by both its ends
        ends = [end.cast("int64").to_pylist() for end in column.flatten()]
        return [
            None if start is None else f"{start} {end}" for start, end in zip(*ends, strict=True)
        ]
    return cast("list[Any]", column.to_pylist())


class RowReader:
    """Turns a task's batches into messages; counts its rows. One thread."""

    def __init__(
        self,
        plan: RowPlan,
        options: SinkOptions,
        key_of_row: Callable[[str, int], str],
        partition: int = 0,
    ) -> None:
        """Take what a task knows.

        Args:
            key_of_row: makes the unique key of a row of this task by its topic and number.
            partition: for the texts of errors.
        """
        self.row_count = 0
        self._plan = plan
        self._options = options
        self._key_of_row = key_of_row
        self._partition = partition
        self._topics: set[str] = set()
        namespace = options.connection.namespace
        self._own = {names.INSTANCE_ID: namespace} if namespace else {}
        # Without a map and a namespace, the text is put together without a dict a message.
        self._plain = plan.properties is None and not self._own

    def messages(self, batch: pa.RecordBatch) -> Iterator[Addressed]:
        """Yield the messages of a batch in its order.

        Raises:
            RowError: a row cannot be a message; those before it were yielded.
        """
        for part in slices(batch):
            yield from self._slice(part)

    # Inside

    def _slice(self, batch: pa.RecordBatch) -> Iterator[Addressed]:
        plan = self._plan
        nothing: list[Any] = [None] * batch.num_rows

        def column(place: int | None) -> Sequence[Any]:
            return nothing if place is None else self._values(batch, place)

        # The body's bytes, also where they are no UTF-8.
        bodies = cast("Any", batch.column(plan.body)).cast("binary").to_pylist()
        identity = [column(place) for place in plan.identity]
        for index, (
            body, topic, keys, tags, more, queue_id, broker, key, delay, priority, flag, given
        ) in enumerate(
            zip(
                bodies, column(plan.topic), column(plan.keys), column(plan.tags),
                column(plan.properties), column(plan.queue_id), column(plan.broker_name),
                column(plan.sharding_key), column(plan.delay_level), column(plan.priority),
                column(plan.flag), column(plan.msg_id), strict=True,
            )
        ):  # fmt: skip
            topic = self._options.topic or topic
            if topic not in self._topics:
                self._check_topic(topic)
            body, sys_flag = self._body(body, topic)
            unique_key = given or (
                self._key(topic, [values[index] for values in identity])
                if identity
                else self._key_of_row(topic, self.row_count)
            )
            if keys is not None and not isinstance(keys, str):
                keys = self._joined_keys(keys, topic)
            by_priority = priority is not None
            if self._plain and not key and not delay and not by_priority:
                text = self._plain_text(topic, unique_key, tags, keys)
            else:
                pairs = self._pairs(topic, unique_key, more, tags, keys, key, delay)
                key = pairs.get(names.SHARDING_KEY)
                if by_priority:
                    self._check_priority(topic, priority, queue_id, key)
                    pairs[names.PRIORITY] = str(priority)
                text = encode_properties(pairs)
            properties = self._encoded(text, topic)
            if flag and not -_INT32_MAX - 1 <= flag <= _INT32_MAX:
                raise self.error(topic, f"column flag is {flag}, beyond 32 bits")
            if queue_id is not None and queue_id < 0:
                raise self.error(
                    topic,
                    f"column queueId is {queue_id}",
                    "A queue's number is 0 or more; null lets the sink choose",
                )
            message = Outgoing(body, properties, unique_key, flag or 0, sys_flag)
            alone = bool(delay) or sys_flag != 0 or by_priority or is_retry_topic(topic)
            yield Addressed(
                topic, message, queue_id, broker or None, key or None, alone, by_priority
            )
            self.row_count += 1

    def error(self, topic: str | None, why: str, hint: str = "") -> RowError:
        """Return the error for the row that is being read, counted from 0 in its partition."""
        to = f", to topic {topic[:128]}" if topic else ""
        text = f"row {self.row_count} of partition {self._partition}{to}: {why}"
        return RowError(text, hint=hint)

    def _values(self, batch: pa.RecordBatch, place: int) -> Sequence[Any]:
        try:
            return values_of(batch, place)
        except UnicodeDecodeError as error:
            name = batch.schema.names[place]
            raise RowError(
                f"partition {self._partition}, from row {self.row_count} on: column {name} holds "
                f"bytes that are no UTF-8 ({error.reason})",
                hint="Make the text with decode(bytes, 'UTF-8'), or put the bytes into body",
            ) from error

    def _check_topic(self, topic: str | None) -> None:
        if not topic:
            raise self.error(None, "column topic is null or empty", "Fill it, or give option topic")
        if (why := check_topic(topic)) is not None:
            raise self.error(topic, f"column topic: {why}")
        if len(self._topics) < TOPICS_MAX:
            self._topics.add(topic)

    def _body(self, given: object, topic: str) -> tuple[bytes, int]:
        """Return the body as it is stored, and its system flag."""
        if given is None:
            raise self.error(topic, "column body is null", "Filter such rows out, or use COALESCE")
        body = cast("bytes", given)
        limit = self._options.max_message_size
        if len(body) > limit:
            raise self.error(
                topic,
                f"the body has {len(body)} bytes, over the limit of {limit}",
                "Raise option maxMessageSize if the broker's own maxMessageSize allows it, or "
                "filter by length(body)",
            )
        kind = self._options.compression
        if kind is not None and len(body) >= self._options.compress_over:
            packed = compress(body, kind)
            if len(packed) < len(body):
                return packed, compression_flags(kind)
        return body, 0

    def _key(self, topic: str, values: Sequence[Value]) -> str:
        if all(value is None for value in values):
            raise self.error(
                topic,
                "all columns of option idempotencyColumns are null, so all such rows would be one "
                "message",
                "Name a column that every row has",
            )
        return key_of_values(values)

    def _joined_keys(self, keys: Sequence[str | None], topic: str) -> str:
        listed = [key for key in keys if key]
        for key in listed:
            if key.split() != [key]:
                raise self.error(
                    topic,
                    f"the key {key[:64]!a} of column keys holds a blank, which parts keys",
                    "Replace blanks in keys, or make keys one text",
                )
        return names.KEY_SEPARATOR.join(listed)

    def _plain_text(self, topic: str, unique_key: str, tags: str | None, keys: str | None) -> str:
        text = f"{names.UNIQ_KEY}\x01{unique_key}"
        if tags:
            text = f"{text}\x02{names.TAGS}\x01{tags}"
        if keys:
            text = f"{text}\x02{names.KEYS}\x01{keys}"
        # A separator inside a value shows in the count of them; zeros have no place at all.
        separators = 1 + 2 * bool(tags) + 2 * bool(keys)
        if text.count("\x01") + text.count("\x02") != separators or "\0" in text:
            self._find_forbidden(topic, {"msgId": unique_key, "tags": tags, "keys": keys})
        return text

    def _pairs(
        self,
        topic: str,
        unique_key: str,
        more: Sequence[tuple[str, str | None]] | None,
        tags: str | None,
        keys: str | None,
        sharding_key: str | None,
        delay_level: int | None,
    ) -> dict[str, str]:
        pairs = {names.UNIQ_KEY: unique_key}
        for name, value in more or ():
            if value and name and name not in TAKEN_OUT:
                pairs[name] = value
        if tags:
            pairs[names.TAGS] = tags
        if keys:
            pairs[names.KEYS] = keys
        if sharding_key:
            pairs[names.SHARDING_KEY] = sharding_key
        if delay_level:
            if delay_level < 0:
                raise self.error(topic, f"column delayTimeLevel is {delay_level}, below 0")
            pairs[names.DELAY] = str(delay_level)
        pairs.update(self._own)
        for name, value in pairs.items():
            if names.is_forbidden(value) or names.is_forbidden(name):
                self._find_forbidden(topic, {f"property {name[:64]!a}": f"{name}{value}"})
        return pairs

    def _check_priority(
        self, topic: str, priority: int, queue_id: int | None, sharding_key: str | None
    ) -> None:
        """Refuse what the SDK's messages refuse."""
        what = f"column priority is {priority}"
        if not 0 <= priority <= names.PRIORITY_MAX:
            hint = f"A priority is 0 to {names.PRIORITY_MAX}; null is none"
            raise self.error(topic, what, hint)
        if queue_id is not None:
            why = f"{what}, and column queueId is {queue_id}: both choose the queue"
            raise self.error(topic, why, "Drop queueId, which rows that were read have")
        if sharding_key:
            why = f"{what}, and a sharding key is there, too: both choose the queue"
            raise self.error(topic, why, "Drop it, also __SHARDINGKEY of column properties")

    def _find_forbidden(self, topic: str, parts: dict[str, str | None]) -> None:
        for what, text in parts.items():
            if text and names.is_forbidden(text):
                raise self.error(
                    topic,
                    f"{what} holds a character 0x00, 0x01 or 0x02, which no property may",
                    "Take such characters out with translate() or regexp_replace()",
                )

    def _encoded(self, text: str, topic: str) -> bytes:
        data = text.encode()
        if len(data) > MAX_PROPERTIES_SIZE:
            raise self.error(
                topic,
                f"tags, keys and properties have {len(data)} bytes together, over the limit of "
                f"{MAX_PROPERTIES_SIZE}",
                "Put large values into the body",
            )
        return data
