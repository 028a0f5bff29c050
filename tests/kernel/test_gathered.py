"""Records into the rows of a batch: the kernel gathers the same rows as Python, and stops there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq import kernel

pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

import pyarrow as pa

from skylarkmq.protocol.compression import CompressionKind, compress, compression_flags
from skylarkmq.protocol.record import (
    FIXED_IPV4_SIZE,
    QUEUE_OFFSET_POSITION,
    STORE_TIMESTAMP_POSITION_IPV4,
)
from skylarkmq.spark.batches import BatchBuilder, CorruptRecordError
from skylarkmq.spark.columns import property_columns, record_columns
from skylarkmq.spark.columns.gathered import Gathered, Wanted
from skylarkmq.spark.columns.property_columns import PropertyColumns
from skylarkmq.spark.schema import names
from tests.spark.support.records import (
    INT64,
    PROPERTY_BYTES,
    RECORDS,
    V6,
    Written,
    block,
)
from tests.support.amounts import examples

compiled: Any = kernel.compiled
pytestmark = pytest.mark.skipif(compiled is None, reason=kernel.why_pure)

BASE = 4096
TOPICS = {b"\7flights": "flights", b"\0": "", b"\x7f" + b"t" * 127: None, b"\2\xc3\xa9": "é"}
TAGS = st.none() | st.frozensets(st.sampled_from([b"late", b"a", b"\xff"]))


@st.composite
def runs(draw: st.DrawFn) -> bytes:
    """Records back to back, most of them where their physical offset says; some are damaged."""
    data = bytearray()
    for record in draw(st.lists(RECORDS, max_size=6)):
        flags = draw(st.sampled_from([0, 0, 0, 1]))
        record.sys_flag |= flags
        if draw(st.integers(0, 9)):
            record.numbers = {**record.numbers, "physical": BASE + len(data)}
        data += record.encode()
    if data and draw(st.integers(0, 2)) == 0:
        place = draw(st.integers(0, min(len(data), 250) - 1) | st.integers(0, len(data) - 1))
        data[place] ^= draw(st.integers(1, 255))
    if data and draw(st.integers(0, 4)) == 0:
        del data[draw(st.integers(0, len(data) - 1)) :]
    return bytes(data)


WANTED = st.builds(
    Wanted,
    with_body=st.booleans(),
    with_properties=st.booleans(),
    check_crc=st.booleans(),
    bounded_at=st.sampled_from([QUEUE_OFFSET_POSITION, STORE_TIMESTAMP_POSITION_IPV4, 0, 80]),
    rows_max=st.integers(1, 8),
    size_max=st.sampled_from([1, 100, 300, 1000, 4096]),
    topics=st.just(TOPICS),
    tags=TAGS,
)


def rows_of(rows: Gathered) -> tuple[Any, ...]:
    """All that was gathered; what lies in the room after it does not count."""
    return (
        rows.count, rows.size, rows.is_full, rows.heads[: rows.count * FIXED_IPV4_SIZE],
        rows.long_hosts, rows.topics, bytes(rows.bodies)[: rows.bodies_size],
        rows.body_ends[: 4 * rows.count + 4], rows.properties,
    )  # fmt: skip


@examples(60, 800)
@given(runs(), WANTED, st.sampled_from([-1, BASE]), INT64 | st.just(-(2**63)), st.data())
def test_the_rows_and_where_they_end(
    data: bytes, wanted: Wanted, base: int, low: int, more: st.DataObject
) -> None:
    last = more.draw(st.sampled_from([2**63 - 1, 2**63 - 2]) | st.integers(-(2**63), 2**63 - 1))
    limit = more.draw(st.sampled_from([len(data), len(data) + 9, len(data) // 2, -1]))
    both = Gathered(wanted), Gathered(wanted)
    roads = compiled.gather, kernel.twins["gather"]
    first, second = (
        road(rows, data, 0, limit, base, low, last, wanted)
        for road, rows in zip(roads, both, strict=True)
    )
    assert first == second
    assert rows_of(both[0]) == rows_of(both[1])
    # A second piece goes on in the same batch.
    more_data = block(Written(1, body=b"x" * 50), Written(2, born=V6))
    again = [
        road(rows, more_data, 0, len(more_data), -1, -(2**63), last, wanted)
        for road, rows in zip(roads, both, strict=True)
    ]
    assert again[0] == again[1]
    assert rows_of(both[0]) == rows_of(both[1])


@pytest.mark.parametrize("count", [1, 5])
def test_it_stops_where_there_is_no_room(count: int) -> None:
    """The readers make room, row by row; a record is larger than any room at first, too."""
    wanted = Wanted(True, True, True, QUEUE_OFFSET_POSITION, 10**6, 10**6, TOPICS)
    data = block(*[Written(number, body=bytes([number]) * 700) for number in range(count + 1)])
    for road in (compiled.gather, kernel.twins["gather"]):
        rows = Gathered(wanted)
        rows.bodies = pa.allocate_buffer(700 * count + 699)
        assert road(rows, data, 0, len(data), -1, 0, 99, wanted) == len(data) // (count + 1) * count
        rows = Gathered(wanted)
        rows.heads = bytearray(FIXED_IPV4_SIZE * count)
        assert road(rows, data, 0, len(data), -1, 0, 99, wanted) == len(data) // (count + 1) * count
        assert (rows.count, rows.is_full) == (count, False)


@pytest.mark.parametrize("with_body", [True, False])
@pytest.mark.parametrize("less", [0, 1])
def test_a_batch_may_be_full_to_the_byte(with_body: bool, less: int) -> None:
    data = block(Written(0), Written(1))
    size = len(data) - (0 if with_body else 10) - less
    wanted = Wanted(with_body, True, True, QUEUE_OFFSET_POSITION, 9, size, TOPICS)
    for road in (compiled.gather, kernel.twins["gather"]):
        rows = Gathered(wanted)
        end = road(rows, data, 0, len(data), -1, 0, 9, wanted)
        assert (rows.count, rows.is_full, end) == (2 - less, True, len(data) // (1 + less))


def test_places_outside_of_their_bounds() -> None:
    wanted = Wanted(True, True, True, 81, 9, 9, TOPICS)
    data = Written(0).encode()
    with pytest.raises(ValueError, match="bounds"):
        compiled.gather(Gathered(wanted), data, 0, len(data), -1, 0, 9, wanted)
    with pytest.raises(ValueError, match="bounds"):
        compiled.gather(Gathered(wanted), data, -1, 9, -1, 0, 9, wanted._replace(bounded_at=20))
    for position, size, count in ((85, 4, 1), (-1, 4, 1), (0, 4, 2), (0, 8, -1)):
        with pytest.raises(ValueError, match="bounds"):
            compiled.numbers(bytearray(FIXED_IPV4_SIZE), position, size, count)
    with pytest.raises(ValueError, match="4 or 8"):
        compiled.numbers(bytearray(FIXED_IPV4_SIZE), 0, 2, 1)
    with pytest.raises(ValueError, match="bounds"):
        compiled.offset_ids(bytearray(FIXED_IPV4_SIZE), 2)


@given(st.binary(max_size=5 * FIXED_IPV4_SIZE), st.data())
def test_numbers_and_ids(data: bytes, more: st.DataObject) -> None:
    heads = bytearray(data)
    count = more.draw(st.integers(0, len(heads) // FIXED_IPV4_SIZE))
    size = more.draw(st.sampled_from([4, 8]))
    position = more.draw(st.integers(0, FIXED_IPV4_SIZE - size))
    expected = kernel.twins["numbers"](heads, position, size, count)
    assert compiled.numbers(heads, position, size, count) == expected
    assert compiled.offset_ids(heads, count) == kernel.twins["offset_ids"](heads, count)


MANY = b"\x02".join(b"%d\x01%d" % (number, number) for number in range(65))
TEXTS = PROPERTY_BYTES | st.sampled_from(
    [
        "é\x01€\x02TAGS\x01ü".encode(),
        b"TAGS\x01\xc3",
        b"\xa9\x01b",
        b"TAGS\x01a\x02TAGS\x01\x02TAGS\x01b\x02x\x01y\x02TAGS\x01",
        b"a\x01b\x01c\x02\x02\x01\x02TAGS\x01\x01",
        MANY,
        MANY[: MANY.rindex(b"\x02")],
        b"a\x01b\x02" * 70,
        b"p" * 32767,
        b"a\0\x01\0b",
    ]
)


@examples(60, 300)
@given(st.lists(TEXTS, max_size=6), st.lists(st.sampled_from(["TAGS", "a", "é", "64"]), max_size=3))
def test_properties(texts: list[bytes], wanted: list[str]) -> None:
    made = PropertyColumns(texts, wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(property_columns, "compiled", None)
        expected = PropertyColumns(texts, wanted)
    made.maps.validate(full=True)
    assert made.maps == expected.maps
    assert made.values == expected.values


def test_the_kernel_leaves_what_is_unusual() -> None:
    usual = b"TAGS\x01a"
    for text in (b"TAGS\x01\xc3", MANY, b"\xff"):
        assert compiled.split_pairs([usual, text], (b"TAGS",)) is None
    assert compiled.split_pairs([usual], (b"TAGS",) * 9) is None
    for text in (usual, MANY[: MANY.rindex(b"\x02")], b"", "é\x01ü".encode()):
        assert compiled.split_pairs([usual, text], (b"TAGS",)) is not None


def batches(data: bytes, columns: tuple[str, ...], **settings: Any) -> list[Any] | str:
    """The batches of a block, or how its first fault is told."""
    builder = BatchBuilder(columns, **settings)
    try:
        found = builder.add(data, broker_name="a", start=-(2**63), end=2**63 - 1)
        last = builder.finish()
    except CorruptRecordError as error:
        return str(error)
    return [*found, *([last] if last is not None else []), builder.skipped, builder.bytes]


@examples(40, 300)
@given(
    runs(),
    st.permutations(names()),
    st.integers(1, 21),
    st.sampled_from(["fail", "skip", "raw"]),
    st.integers(1, 5),
    st.sampled_from([100, 500, 10**6]),
)
def test_both_roads_give_the_same_batches(
    data: bytes, order: list[str], count: int, policy: str, rows: int, size: int
) -> None:
    chosen = {"on_corruption": policy, "max_rows": rows, "max_bytes": size}
    columns = tuple(order[:count])
    made = batches(data, columns, **chosen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skylarkmq.spark.batches.gather", kernel.twins["gather"])
        patch.setattr(property_columns, "compiled", None)
        for name in ("numbers", "offset_ids"):
            patch.setattr(record_columns, name, kernel.twins[name])
        expected = batches(data, columns, **chosen)
    assert made == expected


def test_every_system_flag_is_seen_alike() -> None:
    packed = compress(b"b" * 99, CompressionKind.ZLIB)
    for flag in range(2048):
        record = Written(
            flag,
            body=packed if flag & 1 else b"plain",
            sys_flag=(flag & ~0x700) | (compression_flags(CompressionKind.ZLIB) if flag & 1 else 0),
            born=V6 if flag & 0x10 else Written.born,
            store=V6 if flag & 0x20 else Written.store,
        )
        made = batches(record.encode(), ("body", "sysFlag", "bornHost", "storeHost"))
        assert isinstance(made, list)
        row = made[0].to_pylist()[0]
        assert row["body"] == (b"b" * 99 if flag & 1 else b"plain")
        assert row["bornHost"] == str(record.born) and row["storeHost"] == str(record.store)
