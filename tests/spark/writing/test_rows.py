"""Rows become messages: each part where it belongs, and errors that name row, topic and cure."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.protocol.compression import CompressionKind
from skylarkmq.protocol.properties import RESERVED_NAMES, decode_properties
from skylarkmq.spark.settings import ConnectionSettings
from skylarkmq.spark.writing import rows as rows_module
from skylarkmq.spark.writing.rows import Addressed, RowError, RowReader
from skylarkmq.spark.writing.sink_columns import SINK_TYPES, plan_rows
from skylarkmq.spark.writing.sink_options import SinkOptions
from skylarkmq.spark.writing.unique_keys import key_of_values
from skylarkmq.spark.writing.window import Outgoing

WINDOW = "struct<start:timestamp,end:timestamp>"
TYPES: dict[str, pa.DataType] = {
    "binary": pa.binary(), "string": pa.string(), "int": pa.int32(), "bigint": pa.int64(),
    "tinyint": pa.int8(), "smallint": pa.int16(), "array<string>": pa.list_(pa.string()),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "timestamp": pa.timestamp("us", tz="America/New_York"),
    WINDOW: pa.struct([(end, pa.timestamp("us", tz="UTC")) for end in ("start", "end")]),
}  # fmt: skip
OPTIONS = SinkOptions(ConnectionSettings(name_servers=("127.0.0.1:9876",)), topic="T")
Row = dict[str, object]


def batch_of(rows: Sequence[Row], **kinds: str) -> pa.RecordBatch:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    fields: list[tuple[str, pa.DataType]] = [
        (name, TYPES[kinds.get(name) or SINK_TYPES[name][0]]) for name in columns
    ]
    return pa.RecordBatch.from_pylist([*rows], pa.schema(fields))


def messages(rows: Sequence[Row], options: SinkOptions = OPTIONS, **kinds: str) -> list[Addressed]:
    batch = batch_of(rows, **kinds)
    fields = [(name, kinds.get(name) or SINK_TYPES[name][0]) for name in batch.schema.names]
    plan = plan_rows(fields, has_topic=options.topic is not None, identity=options.identity)
    reader = RowReader(plan, options, lambda topic, row: f"K{row}", partition=3)
    found = list(reader.messages(batch))
    assert reader.row_count == len(rows)
    return found


def properties(message: Addressed) -> dict[str, str]:
    return decode_properties(message.message.properties.decode())


def refused(row: Row, options: SinkOptions = OPTIONS, **kinds: str) -> str:
    with pytest.raises(RowError) as caught:
        messages([{**dict.fromkeys(row), "body": b"x"}, {"body": b"x", **row}], options, **kinds)
    text = str(caught.value)
    assert "row 1 of partition 3" in text
    return text


def test_a_plain_row() -> None:
    found = messages([{"body": b"a"}, {"body": b""}])
    assert found == [
        Addressed("T", Outgoing(b"a", b"UNIQ_KEY\x01K0", "K0", 0, 0), None, None, None, False),
        Addressed("T", Outgoing(b"", b"UNIQ_KEY\x01K1", "K1"), None, None, None, False),
    ]


def test_all_parts() -> None:
    row: Row = {
        "body": b"a", "topic": "other", "keys": "k1 k2", "tags": "t", "queueId": 3,
        "brokerName": "b", "shardingKey": "s", "delayTimeLevel": 4, "msgId": "M", "flag": -7,
        "properties": [("colour", "blue"), ("empty", ""), ("none", None), ("", "x")],
    }  # fmt: skip
    (found,) = messages([row], replace(OPTIONS, topic=None))
    assert (found.topic, found.queue_id, found.broker_name) == ("other", 3, "b")
    assert (found.sharding_key, found.alone, found.message.flag) == ("s", True, -7)
    assert found.message.unique_key == "M"
    assert properties(found) == {
        "UNIQ_KEY": "M", "colour": "blue", "KEYS": "k1 k2", "TAGS": "t", "__SHARDINGKEY": "s",
        "DELAY": "4",
    }  # fmt: skip


def test_a_priority_chooses_the_queue() -> None:
    stored = [("_SYS_MSG_PRIORITY_", "3"), ("mine", "1")]
    rows: list[Row] = [{"body": b"a", "priority": at, "properties": stored} for at in (7, 0, None)]
    urgent, lowest, none = messages(rows)
    for found, priority in ((urgent, "7"), (lowest, "0")):
        assert found.alone and found.by_priority
        assert properties(found) == {
            "UNIQ_KEY": found.message.unique_key, "mine": "1", "_SYS_MSG_PRIORITY_": priority
        }  # fmt: skip
    assert not (none.alone or none.by_priority)  # as it was read
    assert properties(none)["_SYS_MSG_PRIORITY_"] == "3"


def test_text_goes_as_its_bytes() -> None:
    assert messages([{"body": "Grüße"}], body="string")[0].message.body == "Grüße".encode()


def test_text_that_is_no_utf8() -> None:
    _, offsets, data = pa.array([b"\xff\xfe"], pa.binary()).buffers()
    assert offsets is not None
    assert data is not None
    text = pa.StringArray.from_buffers(1, offsets, data)
    reader = RowReader(
        plan_rows([("body", "string")], has_topic=True), OPTIONS, lambda topic, row: str(row)
    )
    (found,) = reader.messages(pa.record_batch([text], names=["body"]))
    assert found.message.body == b"\xff\xfe"
    fields = [("body", "string"), ("tags", "string")]
    reader = RowReader(plan_rows(fields, has_topic=True), OPTIONS, lambda topic, row: str(row))
    with pytest.raises(RowError, match="column tags holds bytes that are no UTF-8"):
        list(reader.messages(pa.record_batch([text, text], names=["body", "tags"])))


def test_several_keys() -> None:
    (found,) = messages([{"body": b"a", "keys": ["k1", None, "", "k2"]}], keys="array<string>")
    assert properties(found)["KEYS"] == "k1 k2"


def test_a_row_that_was_read_can_be_sent_again() -> None:
    stored = [(name, "1") for name in sorted(RESERVED_NAMES)]
    stored += [("TIMER_DELIVER_MS", "1"), ("__SHARDINGKEY", "s"), ("mine", "2")]
    stored += [("_SYS_MSG_PRIORITY_", "7")]
    (found,) = messages([{"body": b"a", "properties": stored}])
    assert properties(found) == {
        "UNIQ_KEY": "K0", "KEYS": "1", "TAGS": "1", "__SHARDINGKEY": "s", "mine": "2",
        "_SYS_MSG_PRIORITY_": "7",
    }  # fmt: skip
    assert found.sharding_key == "s"
    assert not found.alone
    row: Row = {
        "body": b"a", "properties": stored, "keys": "k", "tags": "t", "shardingKey": "z"
    }  # fmt: skip
    (found,) = messages([row])
    assert properties(found)["KEYS"] == "k"
    assert properties(found)["TAGS"] == "t"
    assert found.sharding_key == properties(found)["__SHARDINGKEY"] == "z"


def test_a_namespace_is_told() -> None:
    connection = replace(OPTIONS.connection, namespace="shop")
    (found,) = messages([{"body": b"a"}], replace(OPTIONS, connection=connection))
    assert properties(found) == {"UNIQ_KEY": "K0", "INSTANCE_ID": "shop"}


def test_columns_of_identity_make_the_key() -> None:
    options = replace(OPTIONS, identity=("brokerName", "queueOffset"))
    row: Row = {"body": b"a", "brokerName": "b", "queueOffset": 17, "msgId": "not this"}
    (found,) = messages([row], options, queueOffset="bigint", brokerName="string")
    assert found.message.unique_key == key_of_values(["b", 17])
    row = {"body": b"a", "brokerName": None, "queueOffset": None}
    with pytest.raises(RowError, match="all columns of option idempotencyColumns are null"):
        messages([row], options, queueOffset="bigint", brokerName="string")


def test_an_instant_is_the_same_in_any_zone() -> None:
    options = replace(OPTIONS, identity=("at",))
    (found,) = messages([{"body": b"a", "at": 1_700_000_000_000_000}], options, at="timestamp")
    assert found.message.unique_key == key_of_values([1_700_000_000_000_000])


def test_a_window_is_known_by_both_its_ends() -> None:
    options = replace(OPTIONS, identity=("window", "tags"))
    windows = [(0, 60), (0, 120), (60, 120), (0, 60), None]
    rows: list[Row] = [
        {"body": b"a", "tags": "t", "window": at and dict(zip(("start", "end"), at, strict=True))}
        for at in windows
    ]
    keys = [found.message.unique_key for found in messages(rows, options, window=WINDOW)]
    assert keys[0] == keys[3]
    assert len(set(keys)) == 4
    with pytest.raises(RowError, match="all columns of option idempotencyColumns are null"):
        messages([{**rows[4], "tags": None}], options, window=WINDOW)


def test_compression() -> None:
    options = replace(OPTIONS, compression=CompressionKind.ZLIB, compress_over=100)
    big, noise, small = messages(
        [{"body": b"a" * 1000}, {"body": bytes(range(100))}, {"body": b"a" * 99}], options
    )
    assert zlib.decompress(big.message.body) == b"a" * 1000
    assert (big.message.sys_flag, big.alone) == (0x301, True)
    assert [(each.message.sys_flag, each.alone) for each in (noise, small)] == [(0, False)] * 2


def test_retry_topics_take_no_batches() -> None:
    assert messages([{"body": b"a"}], replace(OPTIONS, topic="%RETRY%g"))[0].alone


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"body": None}, "to topic T: column body is null.*COALESCE"),
        ({"body": b"x" * 4_194_305}, "has 4194305 bytes, over the limit of 4194304.*maxMessage"),
        ({"tags": "a\x01b"}, "tags holds a character 0x00, 0x01 or 0x02, .*translate"),
        ({"tags": "a\0b"}, "tags holds a character 0x00, 0x01 or 0x02, .*translate"),
        ({"keys": "\0"}, "keys holds a character 0x00"),
        ({"msgId": "\0"}, "msgId holds a character 0x00"),
        ({"properties": [("a\0", "b")]}, "property 'a.x00' holds a character 0x00"),
        ({"properties": [("a", "\0")]}, "property 'a' holds a character 0x00"),
        ({"keys": "\x02"}, "keys holds a character 0x00"),
        ({"msgId": "\x02"}, "msgId holds a character 0x00"),
        ({"properties": [("a\x02", "b")]}, "property 'a.x02' holds a character 0x00"),
        ({"properties": [("a", "\x01")]}, "property 'a' holds a character 0x00"),
        ({"shardingKey": "\x01"}, "__SHARDINGKEY' holds a character 0x00"),
        ({"tags": "é" * 16_384}, "tags, keys and properties have 32[0-9]+ bytes together"),
        ({"delayTimeLevel": -1}, "delayTimeLevel is -1, below 0"),
        ({"queueId": -1}, "column queueId is -1.*null lets the sink choose"),
        ({"priority": -1}, "column priority is -1. A priority is 0 to 2147483647; null is none"),
        ({"priority": 0, "queueId": 0}, "priority is 0, and column queueId .*Drop queueId"),
        ({"priority": 1, "shardingKey": "s"}, "priority is 1, and a sharding key .*Drop it"),
        (
            {"priority": 1, "properties": [("__SHARDINGKEY", "s")]},
            "and a sharding key .*properties",
        ),
    ],
)
def test_refused(row: Row, text: str) -> None:
    assert re.search(text, refused(row))


def test_topics_of_rows_are_checked() -> None:
    options = replace(OPTIONS, topic=None)
    with pytest.raises(RowError, match=r"row 0.*column topic is null or empty.*option topic"):
        messages([{"body": b"a", "topic": None}], options)
    with pytest.raises(RowError, match=r"to topic a b: column topic: .*illegal"):
        messages([{"body": b"a", "topic": "a b"}], options)
    with pytest.raises(RowError, match="belongs to the broker"):
        messages([{"body": b"a", "topic": "rmq_sys_wheel_timer"}], options)


def test_a_key_with_a_blank() -> None:
    assert "'a b' of column keys holds a blank" in refused(
        {"keys": ["ok", "a b"]}, keys="array<string>"
    )


def test_a_large_flag() -> None:
    assert "flag is 2147483648, beyond 32 bits" in refused({"flag": 2**31}, flag="bigint")


def test_a_large_priority() -> None:
    assert "priority is 2147483648. " in refused({"priority": 2**31}, priority="bigint")


def test_a_few_large_bodies_among_many_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    original = RowReader._slice

    def watched(self: RowReader, batch: pa.RecordBatch) -> Iterator[Addressed]:
        sizes.append(batch.nbytes)
        return original(self, batch)

    monkeypatch.setattr(rows_module, "SLICE_SIZE", 1000)
    monkeypatch.setattr(RowReader, "_slice", watched)
    bodies = [b"x"] * 900 + [bytes(300)] * 50 + [b"y"] * 50
    found = messages([{"body": body} for body in bodies])
    assert [each.message.body for each in found] == bodies
    assert [each.message.unique_key for each in found] == [f"K{row}" for row in range(1000)]
    assert max(sizes) <= 1000


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0\x01\x02"), max_size=12)
ROW = st.fixed_dictionaries(
    {"body": st.binary(max_size=50)},
    optional={
        "tags": TEXT | st.none(), "keys": TEXT | st.none(), "shardingKey": TEXT | st.none(),
        "properties": st.none() | st.lists(
            st.tuples(TEXT | st.sampled_from(sorted(RESERVED_NAMES)), TEXT | st.none()),
            max_size=4, unique_by=lambda pair: pair[0],
        ),
        "delayTimeLevel": st.none() | st.integers(0, 18), "flag": st.none() | st.integers(-9, 9),
        "msgId": st.none() | TEXT,
    },
)  # fmt: skip


@given(st.lists(ROW, min_size=1, max_size=20))
def test_whatever_is_in_the_rows(rows: list[Row]) -> None:
    found = messages(rows)
    assert [each.message.body for each in found] == [row["body"] for row in rows]
    for index, (row, each) in enumerate(zip(rows, found, strict=True)):
        wanted = {
            name: value
            for name, value in row.get("properties") or ()  # type: ignore[attr-defined]
            if name and value and (name not in RESERVED_NAMES or name in ("KEYS", "TAGS"))
        }
        columns = {"TAGS": "tags", "KEYS": "keys", "__SHARDINGKEY": "shardingKey"}
        wanted |= {name: row[key] for name, key in columns.items() if row.get(key)}
        wanted |= {"DELAY": str(row["delayTimeLevel"])} if row.get("delayTimeLevel") else {}
        wanted |= {"UNIQ_KEY": row.get("msgId") or f"K{index}"}
        assert properties(each) == wanted
        assert each.message.unique_key == wanted["UNIQ_KEY"]
        assert each.message.flag == (row.get("flag") or 0)
        assert each.alone == ("DELAY" in wanted)
