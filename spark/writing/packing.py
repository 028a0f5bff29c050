# pyright: reportUnknownMemberType=false
"""Rows to messages, a slice of an Arrow batch at once, by Arrow's own functions.

    columns  --`pack`-->  items of a batch (protocol/batch.py), one after the other in one buffer

So there is no Python work per row, which otherwise takes most of a task's time. What a slice may
hold: bodies, topics, texts, maps of properties, queues, sharding keys, flags. A slice with anything
else (delays, priorities, compression, arrays of keys, rows too large for a batch, retry topics) and
one with a row that is wrong is left to `rows`, which takes it row by row and words the refusal.

Both give the same messages; only the order of a message's properties may differ.
Runs in a Spark worker.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute

from skylarkmq.protocol import properties as names
from skylarkmq.protocol.batch import MIN_BATCH_ITEM_SIZE
from skylarkmq.protocol.flags import is_retry_topic
from skylarkmq.protocol.properties import MAX_PROPERTIES_SIZE
from skylarkmq.spark.writing.rows import TAKEN_OUT, values_of
from skylarkmq.spark.writing.sink_columns import RowPlan
from skylarkmq.spark.writing.sink_options import SinkOptions, check_topic
from skylarkmq.spark.writing.unique_keys import keys_of_columns

_HEAD_SIZE: Final = 20
_LENGTH_SIZE: Final = 2
assert _HEAD_SIZE + _LENGTH_SIZE == MIN_BATCH_ITEM_SIZE
_BINARY: Final = pa.binary()
_TEXT: Final = pa.string()
_INT: Final = pa.int32()
_NOTHING: Final = pa.scalar(b"", _BINARY)
_TAKEN_OUT: Final = pa.array([name.encode() for name in sorted(TAKEN_OUT)], _BINARY)
_ENDS_OF_KEYS: Final = pa.array([b"%04X" % number for number in range(1 << 16)], _BINARY)

Column = Any
"""An Arrow array: checkers cannot follow types through the functions of pyarrow.compute."""
pc: Final[Any] = pyarrow.compute


class Items(NamedTuple):
    """Messages of one target, as they stand in a batch."""

    data: memoryview
    ends: Sequence[int]
    """Where each begins in `data`, and where the last ends."""
    body_ends: Sequence[int]
    """The same of their bodies, as if they stood alone."""
    keys: Column
    """Their unique keys."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A slice of rows as messages."""

    items: Column
    body_sizes: Column
    keys: Column
    topics: list[str] | str
    """Of each row, or of all."""
    queue_ids: list[int | None] | None
    broker_names: list[str | None] | None
    sharding_keys: list[str | None] | None

    @property
    def count(self) -> int:
        """Rows in it."""
        return len(self.keys)

    def key_texts(self) -> list[str]:
        """Return the unique keys."""
        return cast("list[str]", _texts(self.keys))

    def all_items(self) -> Items:
        """Return all messages."""
        return _items(self.items, self.body_sizes, self.keys)

    def some_items(self, rows: list[int]) -> Items:
        """Return the messages of some rows, in their order."""
        taken = pa.array(rows, _INT)
        return _items(self.items.take(taken), self.body_sizes.take(taken), self.keys.take(taken))


class _NotPackedError(Exception):
    """The slice has a row that is not like most."""


class Packer:
    """Packs the slices of one task. One thread."""

    def __init__(
        self,
        plan: RowPlan,
        options: SinkOptions,
        key_of_row: Callable[[str, int], str],
        runs_of_keys: Callable[[str, int, int], list[tuple[str, int, int]]] | None,
    ) -> None:
        """Take what a task knows.

        Args:
            key_of_row: as for `RowReader`.
            runs_of_keys: `PlaceKeys.runs`; None where a row's place gives no key.
        """
        self._plan = plan
        self._options = options
        self._key_of_row = key_of_row
        self._runs_of_keys = runs_of_keys
        namespace = options.connection.namespace
        own = f"\x02{names.INSTANCE_ID}\x01{namespace}" if namespace else ""
        self._own = pa.scalar(own.encode(), _BINARY)

    def pack(self, batch: pa.RecordBatch, first_row: int) -> Packed | None:
        """Return a slice's messages; None when it is to be taken row by row.

        Args:
            first_row: its first row's number in the task.
        """
        if self._options.compression is not None or not batch.num_rows:
            return None
        try:
            return self._pack(batch, first_row)
        except (_NotPackedError, pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError):
            return None

    # Inside

    def _pack(self, batch: pa.RecordBatch, first_row: int) -> Packed:
        plan, options = self._plan, self._options
        _require(not _any(_number(batch, plan.delay_level), lambda levels: pc.not_equal(levels, 0)))
        _require(not _any(_number(batch, plan.priority), pc.is_valid))
        body = cast("Column", batch.column(plan.body)).cast(_BINARY)
        _require(not body.null_count)
        topics = self._topics(batch)
        keys = self._keys(batch, topics, first_row)
        sharding = _text(batch, plan.sharding_key)
        properties = self._properties(batch, keys, sharding)
        body_sizes = pc.binary_length(body)
        items = _join_items(body, body_sizes, properties, self._flags(batch))
        _require(pc.max(pc.binary_length(items)).as_py() <= options.batch_size)
        _require(pc.max(body_sizes).as_py() <= options.max_message_size)
        queue_ids = _number(batch, plan.queue_id)
        _require(not _any(queue_ids, lambda ids: pc.less(ids, 0)))
        return Packed(
            items,
            body_sizes,
            keys,
            topics,
            None if queue_ids is None else queue_ids.to_pylist(),
            _texts(_text(batch, plan.broker_name)),
            _texts(sharding),
        )

    def _topics(self, batch: pa.RecordBatch) -> str | list[str]:
        if self._options.topic is not None:
            found: str | list[str] = self._options.topic
            distinct = {self._options.topic}
        else:
            column: Column = _text(batch, self._plan.topic)
            _require(not column.null_count)
            distinct = set(_texts(column.unique()))
            found = distinct.copy().pop() if len(distinct) == 1 else _texts(column)
        for topic in distinct:
            _require(check_topic(topic) is None and not is_retry_topic(topic))
        return found

    def _keys(self, batch: pa.RecordBatch, topics: str | list[str], first_row: int) -> Column:
        """Return the unique keys of the rows."""
        plan, count = self._plan, batch.num_rows
        if plan.identity:
            columns = [values_of(batch, place) for place in plan.identity]
            keys = pa.array(keys_of_columns(columns), _TEXT).cast(_BINARY)
            _require(not keys.null_count)
            return keys
        given = _text(batch, plan.msg_id)
        if given is not None and given.null_count < count:
            _require(not given.null_count)
            return given
        if not isinstance(topics, str):
            rows = enumerate(topics, first_row)
            return pa.array([self._key_of_row(topic, row) for row, topic in rows]).cast(_BINARY)
        _require(self._runs_of_keys is not None)
        assert self._runs_of_keys is not None
        parts = [
            pc.binary_join_element_wise(
                pa.scalar(front.encode(), _BINARY), _ENDS_OF_KEYS.slice(end, length), _NOTHING
            )
            for front, end, length in self._runs_of_keys(topics, first_row, count)
        ]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def _properties(self, batch: pa.RecordBatch, keys: Column, sharding: Column) -> Column:
        """Return the encoded properties of the rows."""
        plan = self._plan
        columns = {
            names.TAGS: _text(batch, plan.tags),
            names.KEYS: _text(batch, plan.keys),
            names.SHARDING_KEY: sharding,
        }
        parts: list[Column] = [pa.scalar(f"{names.UNIQ_KEY}\x01".encode(), _BINARY), keys]
        if plan.properties is not None:
            parts.append(_pairs_of_map(cast("Column", batch.column(plan.properties)), columns))
        for name, column in columns.items():
            if column is not None:
                front = pa.scalar(f"\x02{name}\x01".encode(), _BINARY)
                parts.append(pc.binary_join_element_wise(front, column, _NOTHING))
        _require_plain(keys, *columns.values())
        joined = pc.binary_join_element_wise(
            *parts, self._own, _NOTHING, null_handling="replace", null_replacement=""
        )
        _require(pc.max(pc.binary_length(joined)).as_py() <= MAX_PROPERTIES_SIZE)
        return joined

    def _flags(self, batch: pa.RecordBatch) -> array[int] | None:
        flags = _number(batch, self._plan.flag)
        if flags is None or flags.null_count == len(flags):
            return None
        return _ints(flags.cast(_INT).fill_null(0))


def _require(is_so: bool) -> None:
    if not is_so:
        raise _NotPackedError


def _any(column: Column, is_so: Callable[[Column], Column]) -> bool:
    """Return whether something holds for a value of a column that is there."""
    return column is not None and bool(pc.any(is_so(column)).as_py())


def _number(batch: pa.RecordBatch, place: int | None) -> Column:
    """Return a column of whole numbers, None where there is none."""
    return None if place is None else cast("Column", batch.column(place))


def _text(batch: pa.RecordBatch, place: int | None) -> Column:
    """Return a column of texts as bytes, null where a text is empty; None where there is none."""
    if place is None:
        return None
    column = cast("Column", batch.column(place))
    _require("string" in str(column.type) and "list" not in str(column.type))
    column.validate(full=True)  # UTF-8
    column = column.cast(_BINARY)
    empty = pc.equal(pc.binary_length(column), 0)
    if pc.any(empty).as_py():
        column = pc.if_else(empty, pa.scalar(None, _BINARY), column)
    return column


def _texts(column: Column) -> Any:
    return None if column is None else column.cast(_TEXT).to_pylist()


def _require_plain(*columns: Column) -> None:
    """Refuse characters that no property may hold."""
    for column in columns:
        for character in names.FORBIDDEN:
            found = partial(pc.match_substring, pattern=character)
            _require(not _any(column, found))


def _pairs_of_map(column: Column, columns: dict[str, Column]) -> Column:
    """Return the properties of each row's map, each after a separator; see `rows` for which."""
    column.validate(full=True)
    offsets = column.offsets
    first, end = offsets[0].as_py(), offsets[-1].as_py()
    keys = column.keys.slice(first, end - first).cast(_BINARY)
    values = column.items.slice(first, end - first).cast(_BINARY)
    # The queue hangs on it.
    _require(not _any(keys, lambda found: pc.equal(found, names.SHARDING_KEY.encode())))
    _require_plain(keys, values)
    offsets = pc.subtract(offsets, first).cast(_INT)
    kept = pc.and_(
        pc.invert(pc.is_in(keys, value_set=_TAKEN_OUT)), pc.greater(pc.binary_length(values), 0)
    )
    kept = pc.and_(kept, pc.greater(pc.binary_length(keys), 0)).fill_null(False)
    rows = None
    for name in (names.TAGS, names.KEYS):
        given = columns[name]
        if given is None:
            continue
        if rows is None:
            rows = pc.list_parent_indices(pa.ListArray.from_arrays(offsets, keys))
        replaced = pc.and_(pc.equal(keys, name.encode()), pc.is_valid(given).take(rows))
        kept = pc.and_(kept, pc.invert(replaced))
    before, between = (
        pa.scalar(each.encode(), _BINARY)
        for each in (names.PROPERTY_SEPARATOR, names.NAME_SEPARATOR)
    )
    pairs = pc.binary_join_element_wise(before, keys, between, values, _NOTHING)
    pairs = pc.if_else(kept, pairs, _NOTHING)
    return pc.binary_join(pa.ListArray.from_arrays(offsets, pairs), _NOTHING)


def _join_items(
    body: Column, body_sizes: Column, properties: Column, flags: array[int] | None
) -> Column:
    """Return messages as they stand in a batch."""
    count, lengths = len(body), pc.binary_length(properties)
    heads = array("i", bytes(_HEAD_SIZE * count))
    fixed = pa.scalar(MIN_BATCH_ITEM_SIZE, _INT)
    heads[0::5] = _ints(pc.add(pc.add(lengths, body_sizes), fixed))
    if flags is not None:
        heads[3::5] = flags
    heads[4::5] = _ints(body_sizes)
    sizes = array("H", _ints(lengths))
    if sys.byteorder == "little":
        heads.byteswap()
        sizes.byteswap()
    return pc.binary_join_element_wise(
        _fixed(heads, _HEAD_SIZE, count), body, _fixed(sizes, _LENGTH_SIZE, count), properties,
        _NOTHING,
    )  # fmt: skip


def _fixed(data: array[int], size: int, count: int) -> Column:
    """Return values of one size each."""
    offsets = pa.py_buffer(array("i", range(0, size * count + 1, size)))
    return pa.Array.from_buffers(_BINARY, count, [None, offsets, pa.py_buffer(data)])


def _ints(column: Column) -> array[int]:
    """Return the 32-bit numbers of a column without nulls."""
    numbers = array("i")
    data = memoryview(column.buffers()[1]).cast("B")
    numbers.frombytes(data[4 * column.offset : 4 * (column.offset + len(column))])
    return numbers


def _items(items: Column, body_sizes: Column, keys: Column) -> Items:
    _, offsets, data = items.buffers()
    ends = memoryview(offsets).cast("B").cast("i")[items.offset : items.offset + len(items) + 1]
    sums = array("i", (0,))
    sums.extend(_ints(pc.cumulative_sum(body_sizes)))
    return Items(memoryview(data), ends, sums, keys)
