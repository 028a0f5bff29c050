"""Records into Arrow batches, against the protocol's own decoder. No JVM."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.protocol.compression import (
    CompressionKind,
    CompressionUnavailableError,
    compress,
    compression_flags,
)
from skylarkmq.protocol.record import decode_messages
from skylarkmq.spark.batches import BatchBuilder, CorruptRecordError
from skylarkmq.spark.schema import COLUMNS, arrow_schema, names
from tests.spark.support.records import RECORDS, V6, Written, block, row_of, rows_in, sane_time
from tests.support.amounts import examples

ALL = names()


def built(data: bytes, chosen: tuple[str, ...] = ALL, **options: Any) -> list[dict[str, Any]]:
    builder = BatchBuilder(chosen, **options)
    batches = builder.add(data, broker_name="broker-a", start=-(2**63), end=2**63 - 1)
    last = builder.finish()
    batches += [] if last is None else [last]
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == arrow_schema(chosen)
    assert builder.rows == sum(batch.num_rows for batch in batches)
    return [row for batch in batches for row in rows_in(batch)]


@examples(30, 100)
@given(st.lists(RECORDS, max_size=8), st.permutations(COLUMNS), st.integers(1, 21))
def test_rows_are_those_of_the_protocols_decoder(
    records: list[Written], order: list[Any], count: int
) -> None:
    chosen = tuple(column.name for column in order[:count])
    data = block(*[record for record in records if record.queue_offset != 2**63 - 1])
    expected = [sane_time(row_of(message)) for message in decode_messages(data)]
    assert built(data, chosen) == [{name: row[name] for name in chosen} for row in expected]


def batch_sizes(builder: BatchBuilder, data: bytes, **span: Any) -> list[int]:
    given = {"broker_name": "broker-a", "start": 0, "end": 10**6, **span}
    sizes = [batch.num_rows for batch in builder.add(data, **given)]
    last = builder.finish()
    return sizes + ([] if last is None else [last.num_rows])


@pytest.mark.parametrize(
    ("count", "max_rows", "sizes"),
    [(0, 3, []), (1, 3, [1]), (3, 3, [3]), (7, 3, [3, 3, 1]), (2, 1, [1, 1])],
)
def test_a_batch_is_full_by_rows(count: int, max_rows: int, sizes: list[int]) -> None:
    data = block(*[Written(number) for number in range(count)])
    builder = BatchBuilder(ALL, max_rows=max_rows)
    assert batch_sizes(builder, data) == sizes
    assert builder.rows == count


def test_a_batch_is_full_by_bytes_and_a_larger_record_stands_alone() -> None:
    bodies = [b"x" * size for size in (100, 100, 5000, 100, 3000)]
    data = block(*[Written(number, body=body) for number, body in enumerate(bodies)])
    assert batch_sizes(BatchBuilder(("body",), max_bytes=2000), data) == [2, 1, 1, 1]
    without_bodies = BatchBuilder(("queueOffset",), max_bytes=2000)
    assert batch_sizes(without_bodies, data) == [5]
    assert without_bodies.bytes < 1000


def test_bytes_count_what_a_body_opens_to() -> None:
    packed = compress(bytes(4000), CompressionKind.ZLIB)
    flags = compression_flags(CompressionKind.ZLIB)
    records = [Written(number, body=packed, sys_flag=flags) for number in range(4)]
    assert batch_sizes(BatchBuilder(("body",), max_bytes=9000), block(*records)) == [2, 2]
    assert [row["body"] for row in built(block(*records), ("body",))] == [bytes(4000)] * 4


def test_batches_go_on_over_blocks() -> None:
    builder = BatchBuilder(("queueOffset", "brokerName"), max_rows=5)
    rows: list[dict[str, Any]] = []
    for first, broker_name in ((0, "a"), (3, "b"), (6, "b"), (9, "a")):
        data = block(*[Written(number) for number in range(first, first + 3)])
        for batch in builder.add(data, broker_name=broker_name, start=0, end=100):
            rows += rows_in(batch)
    last = builder.finish()
    assert last is not None and builder.finish() is None
    rows += rows_in(last)
    assert [row["queueOffset"] for row in rows] == list(range(12))
    assert [row["brokerName"] for row in rows] == ["a"] * 3 + ["b"] * 6 + ["a"] * 3


@given(st.integers(0, 12), st.integers(0, 12))
def test_only_offsets_of_the_range_count(start: int, end: int) -> None:
    data = block(*[Written(number) for number in range(10)])
    builder = BatchBuilder(("queueOffset",))
    full = builder.add(data, broker_name="a", start=start, end=end)
    last = builder.finish()
    assert not full
    found = [] if last is None else last.column("queueOffset").to_pylist()
    assert found == list(range(start, min(end, 10)))
    assert builder.rows == len(found)


def test_tags_are_compared_as_texts() -> None:
    # "AaBB" and "BBAa" have one Java hash, so a broker takes the one for the other.
    texts = [b"TAGS\x01AaBB", b"TAGS\x01BBAa", b"", b"a\x01TAGS", b"KEYS\x01AaBB", b"TAGS\x01x"]
    data = block(*[Written(number, properties=text) for number, text in enumerate(texts)])
    builder = BatchBuilder(("queueOffset",))
    builder.add(data, broker_name="a", start=0, end=9, tags=frozenset({"AaBB", "x"}))
    last = builder.finish()
    assert last is not None
    assert last.column("queueOffset").to_pylist() == [0, 5]


def test_views_are_taken_as_bytes_are() -> None:
    data = block(*[Written(number) for number in range(3)])
    builder = BatchBuilder(ALL)
    builder.add(memoryview(bytearray(data)), broker_name="broker-a", start=0, end=9)
    last = builder.finish()
    assert last is not None
    assert rows_in(last) == built(data)


def test_of_names_that_repeat_the_last_value_counts() -> None:
    texts = [b"WAIT\x01true\x02a\x011\x02WAIT\x01false", b"a\x012", b"WAIT\x01x\x02WAIT\x01y"]
    rows = built(block(*[Written(properties=text) for text in texts]), ("properties",))
    assert [row["properties"] for row in rows] == [
        {"a": "1", "WAIT": "false"},
        {"a": "2"},
        {"WAIT": "y"},
    ]


def test_properties_that_are_no_text() -> None:
    texts = [b"a\x01\xff\xfe\x02TAGS\x01t", b"a\x01b\x02TAGS\x01u"]
    rows = built(block(*[Written(properties=text) for text in texts]), ("properties", "tags"))
    assert [row["tags"] for row in rows] == ["t", "u"]
    assert [row["properties"]["a"] for row in rows] == ["\ufffd\ufffd", "b"]


@pytest.mark.parametrize("end", [b"", b"\x02"])
@pytest.mark.parametrize("count", [1, 5])
def test_rows_of_one_shape_and_of_many(end: bytes, count: int) -> None:
    texts = [f"TAGS\x01t{n}\x02b\x01{n}".encode() + end for n in range(count)]
    texts += [b"b\x01z\x02TAGS\x01u" + end, b"", b"c\x01" + "é€".encode() + end]
    rows = built(
        block(*[Written(properties=text) for text in texts]), ("tags", "properties", "keys")
    )
    assert [row["tags"] for row in rows] == [f"t{n}" for n in range(count)] + ["u", None, None]
    assert rows[-1]["properties"] == {"c": "é€"}
    assert all(row["keys"] is None for row in rows)


def corrupt(kind: str) -> tuple[bytes, str]:
    """A block whose second record is damaged, and what the error must say."""
    good, bad = Written(16).encode(), bytearray(Written(17).encode())
    if kind == "body":
        bad[88] ^= 1
        return good + bytes(bad), "the body's checksum is wrong"
    if kind == "magic":
        bad[4] ^= 1
    elif kind == "size":
        bad[:4] = (50).to_bytes(4, "big")
    elif kind == "longer":
        bad[:4] = (5000).to_bytes(4, "big")
    elif kind == "body size":
        bad[84:88] = (-5).to_bytes(4, "big", signed=True)
        return good + bytes(bad), "the body is larger than the record"
    elif kind == "topic size":
        bad[93] = 200
        return good + bytes(bad), "topic and properties do not add up"
    elif kind == "properties size":
        bad[102] ^= 1
        return good + bytes(bad), "topic and properties do not add up"
    elif kind == "cut":
        return good + bytes(bad[:60]), "it is cut"
    return good + bytes(bad), "its size or its magic is wrong"


KINDS = ["body", "magic", "size", "longer", "body size", "topic size", "properties size", "cut"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_record_is_left_out_where_the_next_one_can_be_found(kind: str) -> None:
    data, _ = corrupt(kind)
    builder = BatchBuilder(ALL, on_corruption="skip")
    if kind in ("size", "longer", "cut"):  # nobody knows where the next one begins
        with pytest.raises(CorruptRecordError):
            builder.add(data, broker_name="broker-a", start=0, end=100)
        return
    after = Written(18).encode()
    full = builder.add(data + after, broker_name="broker-a", start=0, end=100)
    last = builder.finish()
    batches = [*full, *([] if last is None else [last])]
    assert [row["queueOffset"] for batch in batches for row in batch.to_pylist()] == [16, 18]
    assert (builder.rows, builder.skipped) == (2, 1)
    with pytest.raises(CorruptRecordError):
        raw = BatchBuilder(ALL, on_corruption="raw" if kind != "body" else "fail")
        raw.add(data, broker_name="broker-a", start=0, end=100)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_told_with_its_place(kind: str) -> None:
    data, why = corrupt(kind)
    builder = BatchBuilder(ALL)
    with pytest.raises(CorruptRecordError) as caught:
        builder.add(data, broker_name="broker-a", start=0, end=100)
    text = str(caught.value)
    assert why in text and "broker broker-a" in text
    assert "onCorruption=skip" in text
    if kind != "cut":
        assert "queue 3, queue offset 17, physical offset 5796" in text
    if kind == "body":
        assert "topic flights" in text
        assert caught.value.queue_offset == 17


def test_a_checksum_costs_only_whoever_asks_for_bodies() -> None:
    data, _ = corrupt("body")
    assert [row["queueOffset"] for row in built(data, ("queueOffset",))] == [16, 17]


def test_a_body_that_cannot_be_opened() -> None:
    bad = Written(5, body=b"no zlib", sys_flag=compression_flags(CompressionKind.ZLIB))
    with pytest.raises(CorruptRecordError, match=r"queue offset 5.*the zlib body is damaged"):
        built(bad.encode())
    assert built(bad.encode(), ("queueOffset",)) == [{"queueOffset": 5}]


ZLIB = compression_flags(CompressionKind.ZLIB)


def test_the_producer_is_blamed_for_a_body_whose_checksum_is_right() -> None:
    with pytest.raises(CorruptRecordError) as caught:
        built(Written(5, body=b"no zlib", sys_flag=ZLIB).encode())
    text = str(caught.value)
    assert "its checksum is right, so the producer at 10.1.2.3:10911 sent it so" in text
    assert "onCorruption=skip" in text and "onCorruption=raw" in text and "disk" not in text
    data, _ = corrupt("body")
    with pytest.raises(CorruptRecordError, match=r"broker's disk.*onCorruption=skip"):
        built(data)


@pytest.mark.parametrize("policy", ["skip", "raw"])
def test_bodies_that_cannot_be_read_may_be_left_out_or_stay_as_stored(
    policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = bytearray(Written(2, body=b"hello").encode())
    damaged[88] ^= 1
    packed = compress(b"sound", CompressionKind.ZLIB)
    records = [
        Written(0).encode(),
        Written(1, body=b"no zlib", sys_flag=ZLIB).encode(),
        bytes(damaged),
        Written(3, body=packed, sys_flag=ZLIB).encode(),
    ]
    builder = BatchBuilder(("queueOffset", "body"), on_corruption=policy)
    assert not builder.add(b"".join(records), broker_name="broker-a", start=0, end=100)
    last = builder.finish()
    assert last is not None
    found = {row["queueOffset"]: row["body"] for row in rows_in(last)}
    assert {0: b"hello", 3: b"sound"}.items() <= found.items()
    assert len(found) == builder.rows
    if policy == "raw":
        assert (found[1], found[2][1:], builder.skipped) == (b"no zlib", b"ello", 0)
    else:
        assert (set(found), builder.skipped) == ({0, 3}, 2)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "queue offset 1" in told[0] and "the producer at" in told[0]
    assert "queue offset 2" in told[1] and "checksum is wrong" in told[1]


@pytest.mark.parametrize("policy", ["fail", "skip", "raw"])
def test_without_the_library_of_a_format_only_raw_reads_on(
    policy: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kind = CompressionKind.LZ4
    packed = compress(b"sound", kind)
    record = Written(1, body=packed, sys_flag=compression_flags(kind)).encode()
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    if policy != "raw":
        with pytest.raises(CompressionUnavailableError, match=r"\[compression\]"):
            built(record, on_corruption=policy)
        return
    assert built(record, ("body",), on_corruption=policy) == [{"body": packed}]
    assert "LZ4 bodies need a library" in caplog.text


@given(st.data())
def test_no_damage_raises_anything_else(data: st.DataObject) -> None:
    sound = block(Written(0), Written(1, born=V6, store=V6), Written(2))
    damaged = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(sound) - 1))] = data.draw(st.integers(0, 255))
    piece = bytes(damaged[: data.draw(st.integers(0, len(sound)))])
    try:
        rows = built(piece, tuple(data.draw(st.permutations(ALL))[:5]))
    except CorruptRecordError:
        return
    assert len(rows) == len(decode_messages(piece, check_crc=False))
