"""A slice packed at once gives the messages that its rows give one by one, or is not packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.protocol.batch import split_batch
from skylarkmq.protocol.compression import CompressionKind
from skylarkmq.protocol.properties import RESERVED_NAMES, decode_properties
from skylarkmq.spark.writing.packing import Items, Packed, Packer
from skylarkmq.spark.writing.rows import RowError, RowReader
from skylarkmq.spark.writing.sink_columns import SINK_TYPES, plan_rows
from skylarkmq.spark.writing.sink_options import SinkOptions
from skylarkmq.spark.writing.unique_keys import PlaceKeys
from tests.spark.writing.test_rows import OPTIONS, Row, batch_of

Message = tuple[object, ...]


class Both:
    """The two ways from rows to messages."""

    def __init__(self, batch: pa.RecordBatch, options: SinkOptions, **kinds: str) -> None:
        fields = [(name, kinds.get(name) or SINK_TYPES[name][0]) for name in batch.schema.names]
        plan = plan_rows(fields, has_topic=options.topic is not None, identity=options.identity)
        keys = PlaceKeys(("query", "7", 2))
        self._batch = batch
        self._reader = RowReader(plan, options, keys.key)
        self._packer = Packer(plan, options, keys.key, keys.runs)

    def one_by_one(self) -> list[Message]:
        """Row by row."""
        return [
            (
                item.topic, item.queue_id, item.broker_name, item.sharding_key,
                item.message.unique_key, item.message.flag, item.message.body,
                decode_properties(item.message.properties.decode()),
            )
            for item in self._reader.messages(self._batch)
        ]  # fmt: skip

    def packed(self) -> Packed | None:
        return self._packer.pack(self._batch, 0)

    def at_once(self) -> list[Message] | None:
        """All rows; None: not packed."""
        packed = self.packed()
        return None if packed is None else told(packed)


def told(packed: Packed) -> list[Message]:
    nothing = [None] * packed.count
    topics = packed.topics if isinstance(packed.topics, list) else [packed.topics] * packed.count
    places = zip(
        topics, packed.queue_ids or nothing, packed.broker_names or nothing,
        packed.sharding_keys or nothing, packed.key_texts(), strict=True,
    )  # fmt: skip
    items = messages(packed.all_items())
    assert len(items) == packed.count
    return [(*place, *item) for place, item in zip(places, items, strict=True)]


def messages(items: Items) -> list[Message]:
    found = split_batch(bytes(items.data[items.ends[0] : items.ends[-1]]))
    sizes = [end - begin for begin, end in zip(items.body_ends, items.body_ends[1:], strict=False)]
    assert [len(item.body) for item in found] == sizes
    ends = [22 + len(item.body) + len(item.properties) for item in found]
    assert [end - begin for begin, end in zip(items.ends, items.ends[1:], strict=False)] == ends
    return [(item.flag, item.body, decode_properties(item.properties.decode())) for item in found]


def both(rows: Sequence[Row], options: SinkOptions = OPTIONS, **kinds: str) -> Both:
    return Both(batch_of(rows, **kinds), options, **kinds)


def same(rows: Sequence[Row], options: SinkOptions = OPTIONS, **kinds: str) -> list[Message]:
    ways = both(rows, options, **kinds)
    found = ways.at_once()
    assert found is not None
    assert found == ways.one_by_one()
    return found


ANY_TOPIC = replace(OPTIONS, topic=None)
FULL: Row = {
    "body": b"a", "topic": "other", "keys": "k1 k2", "tags": "t", "queueId": 3,
    "brokerName": "b", "shardingKey": "s", "delayTimeLevel": None, "msgId": "M", "flag": -7,
    "priority": None,
    "properties": [("colour", "blue"), ("empty", ""), ("none", None), ("", "x"), ("TAGS", "u")],
}  # fmt: skip


def test_all_parts() -> None:
    bare = {**dict.fromkeys(FULL), "body": b"", "topic": "other", "msgId": "N"}
    assert len(same([FULL, bare, {**FULL, "topic": "third", "delayTimeLevel": 0}], ANY_TOPIC)) == 3


def test_text_goes_as_its_bytes() -> None:
    same([{"body": "Grüße", "tags": "ä"}], body="string")


def test_a_namespace_is_told() -> None:
    connection = replace(OPTIONS.connection, namespace="shop")
    same([{"body": b"a", "tags": "t"}, {"body": b"b"}], replace(OPTIONS, connection=connection))


@pytest.mark.parametrize(
    ("identity", "kind", "values"),
    [
        ("at", "timestamp", [1_700_000_000_000_000, 5]),
        ("number", "bigint", [1, None]),
        ("number", "tinyint", [1, 1]),
    ],
)
def test_columns_of_identity(identity: str, kind: str, values: list[object]) -> None:
    options = replace(OPTIONS, identity=("tags", identity))
    rows: list[Row] = [{"body": b"a", "tags": "t", identity: value} for value in values]
    same(rows, options, **{identity: kind})


def test_place_keys_across_a_change_of_their_front() -> None:
    keys = PlaceKeys(("query", "7", 2))
    start = 65_536 - int(keys.key("T", 0)[-4:], 16) - 3
    batch = pa.record_batch([pa.array([b"x"] * 9)], names=["body"])
    plan = plan_rows([("body", "binary")], has_topic=True)
    packed = Packer(plan, OPTIONS, keys.key, keys.runs).pack(batch, start)
    assert packed is not None
    assert packed.key_texts() == [keys.key("T", row) for row in range(start, start + 9)]
    assert len({key[:20] for key in packed.key_texts()}) == 2


def test_a_slice_of_a_batch() -> None:
    rows: list[Row] = [{**FULL, "flag": number, "msgId": f"M{number}"} for number in range(20)]
    rows[3]["properties"] = None
    rows[12]["properties"] = [("n", "12")]
    part = batch_of(rows).slice(10, 7)
    ways = Both(part, ANY_TOPIC)
    assert ways.at_once() == ways.one_by_one()


def test_some_rows() -> None:
    rows: list[Row] = [{"body": b"%d" % number, "tags": f"t{number}"} for number in range(50)]
    ways = both(rows)
    packed = ways.packed()
    assert packed is not None
    every = told(packed)
    chosen = [1, 2, 17, 49]
    assert messages(packed.some_items(chosen)) == [every[row][5:] for row in chosen]


@pytest.mark.parametrize(
    ("row", "options", "kinds"),
    [
        ({"delayTimeLevel": 3}, {}, {}),
        ({"priority": 0}, {}, {}),
        ({"keys": ["a", "b"]}, {}, {"keys": "array<string>"}),
        ({}, {"compression": CompressionKind.ZLIB}, {}),
        ({}, {"topic": "%RETRY%g"}, {}),
        ({"body": bytes(200)}, {"batch_size": 150}, {}),
        ({"properties": [("__SHARDINGKEY", "s")]}, {}, {}),
        ({"msgId": None}, {}, {}),
        ({"queueId": 1}, {"batch_size": 0}, {}),
    ],
)
def test_what_is_left_to_be_taken_row_by_row(
    row: Row, options: dict[str, object], kinds: dict[str, str]
) -> None:
    others: Row = {"body": b"a", "msgId": "M"} if "msgId" in row else {"body": b"a"}
    changed: SinkOptions = replace(OPTIONS, **options)  # type: ignore[arg-type]
    ways = both([others, {**others, **row}], changed, **kinds)
    assert ways.at_once() is None
    assert len(ways.one_by_one()) == 2


@pytest.mark.parametrize(
    "row",
    [
        {"body": None}, {"body": b"x" * 101}, {"tags": "a\x01b"}, {"keys": "\x02"},
        {"tags": "a\0b"}, {"keys": "\0"}, {"msgId": "\0"}, {"properties": [("a\0", "b")]},
        {"properties": [("a", "\0")]}, {"shardingKey": "\0"},
        {"msgId": "\x02"}, {"properties": [("a\x02", "b")]}, {"properties": [("a", "\x01")]},
        {"shardingKey": "\x01"}, {"tags": "é" * 16_384}, {"delayTimeLevel": -1}, {"queueId": -1},
        {"flag": 2**31}, {"priority": -1}, {"topic": None}, {"topic": "a b"}, {"topic": ""},
        {"topic": "rmq_sys_wheel_timer"},
    ],
)  # fmt: skip
def test_a_wrong_row_is_left_to_be_refused(row: Row) -> None:
    options = replace(ANY_TOPIC, max_message_size=100)
    good: Row = {"body": b"a", "topic": "T", "msgId": "M"}
    ways = both([good, {**good, **row}], options, flag="bigint")
    assert ways.at_once() is None
    with pytest.raises(RowError):
        ways.one_by_one()


def test_text_that_is_no_utf8() -> None:
    _, offsets, data = pa.array([b"\xff\xfe"], pa.binary()).buffers()
    assert offsets is not None
    assert data is not None
    text = pa.StringArray.from_buffers(1, offsets, data)
    plain = pa.array(["x"])
    kinds = {"body": "string"}
    assert Both(pa.record_batch([text], names=["body"]), OPTIONS, **kinds).at_once()
    for name in ("tags", "keys", "shardingKey", "msgId"):
        batch = pa.record_batch([plain, text], names=["body", name])
        assert Both(batch, OPTIONS, **kinds).at_once() is None


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0\x01\x02"), max_size=12)
NAMES = TEXT | st.sampled_from(sorted(RESERVED_NAMES - {"__SHARDINGKEY"}))
ROW = st.fixed_dictionaries(
    {"body": st.binary(max_size=50), "topic": st.sampled_from(["T", "U"])},
    optional={
        "tags": TEXT | st.none(), "keys": TEXT | st.none(), "shardingKey": TEXT | st.none(),
        "properties": st.none() | st.lists(
            st.tuples(NAMES, TEXT | st.none()), max_size=4, unique_by=lambda pair: pair[0]
        ),
        "delayTimeLevel": st.none() | st.just(0), "flag": st.none() | st.integers(-9, 9),
        "queueId": st.none() | st.integers(0, 9), "brokerName": st.none() | TEXT,
    },
)  # fmt: skip


@given(st.lists(ROW, min_size=1, max_size=20), st.booleans())
def test_whatever_is_in_the_rows(rows: list[Row], by_topic: bool) -> None:
    ways = both(rows, ANY_TOPIC if by_topic else OPTIONS)
    found = ways.at_once()
    assert found is not None
    nothing = [(*each[:2], each[2] or None, each[3] or None, *each[4:]) for each in found]
    assert nothing == ways.one_by_one()
