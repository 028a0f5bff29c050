"""The records of the tables, byte by byte, and what some of them in a row say."""

from __future__ import annotations

from typing import Any

import pytest

from skylarkmq.broker.replication.metadata.metadata_record import (
    DELETING,
    NO_BASE,
    REMOVED,
    Change,
    MetadataError,
    MetadataFold,
    MetadataRecord,
    begin_of,
    decode_metadata,
    encode_metadata,
    encode_value,
    in_parts,
)


def change(*rows: tuple[str, str, Any], **values: Any) -> MetadataRecord:
    return MetadataRecord(kind="change", term=1, rows=changes(*rows), **values)


def part(number: int, begin: int, *rows: tuple[str, str, Any], last: bool = False) -> Any:
    return MetadataRecord(
        kind="snapshot", term=1, rows=changes(*rows), begin=begin, part=number, is_last=last
    )


def changes(*rows: tuple[str, str, Any]) -> list[Change]:
    return [Change(table, key, encode_value(value)) for table, key, value in rows]


def plain(fold: MetadataFold) -> dict[str, dict[str, bytes]]:
    return {
        name: {key: bytes(value) for key, value in rows.items()}
        for name, rows in fold.tables.items()
    }


def folded(*records: MetadataRecord) -> MetadataFold:
    fold = MetadataFold()
    for offset, record in enumerate(records):
        fold.take(offset, decode_metadata(encode_metadata(record)))
    return fold


def test_the_bytes_of_a_record() -> None:
    record = change(("topics", "T", {"perm": 6}), ("groups", "g", None), base=7, log_begin=100)
    assert encode_metadata(record) == (
        b'{"kind":"change","term":1,"base":7,"logBegin":100,'
        b'"rows":[["topics","T",{"perm":6}],["groups","g",null]]}'
    )
    last = part(2, 40, last=True)
    assert encode_metadata(last) == (
        b'{"kind":"snapshot","term":1,"begin":40,"part":2,"isLast":true}'
    )


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"kind":"other","term":1}', b"\xff"])
def test_what_is_no_record_is_refused(body: bytes) -> None:
    with pytest.raises(MetadataError, match="no metadata"):
        decode_metadata(body)


def test_a_later_form_is_refused_and_unknown_fields_are_not() -> None:
    with pytest.raises(MetadataError, match="update"):
        decode_metadata(b'{"kind":"new","version":2}')
    assert decode_metadata(b'{"kind":"change","term":3,"more":1}').term == 3


def test_parts_keep_the_order_and_the_bound() -> None:
    rows = changes(*(("topics", f"T{number}", "x" * 90) for number in range(50)))
    parts = list(in_parts(rows, 1000))
    assert [row.key for some in parts for row in some] == [row.key for row in rows]
    assert all(1 < len(some) <= 8 for some in parts)
    assert list(in_parts([], 1000)) == [[]]
    assert len(list(in_parts(rows[:3], 10))) == 3  # each row is larger


def test_a_snapshot_forgets_what_it_does_not_name() -> None:
    fold = folded(
        change(("t", "old", 1)),
        part(0, NO_BASE, ("t", "a", 1), ("t", "b", 1)),
        change(("t", "b", None), ("t", "c", 3)),
        part(1, 1, ("t", "c", 1), ("t", "d", 1), last=True),
        change(("t", "d", 5)),
    )
    assert fold.is_whole
    assert fold.base == 1
    assert plain(fold) == {"t": {"a": b"1", "c": b"3", "d": b"5"}}


def test_a_snapshot_that_never_became_whole_counts_for_nothing() -> None:
    fold = folded(
        part(0, NO_BASE, ("t", "a", 1), last=True),
        part(0, NO_BASE, ("t", "x", 1)),  # its master dies
        part(0, NO_BASE, ("t", "a", 2)),
        part(1, 1, ("t", "y", 1), last=True),  # of the first
        part(1, 2, ("t", "b", 2), last=True),
    )
    assert plain(fold) == {"t": {"a": b"2", "b": b"2"}}
    assert fold.base == 2
    half = folded(part(1, 0, ("t", "a", 1), last=True))
    assert not half.is_whole
    assert half.base == NO_BASE


def test_where_a_fold_begins() -> None:
    assert begin_of(change(base=4), 9) == 4
    assert begin_of(part(1, 6), 9) == NO_BASE
    assert begin_of(part(1, 6, last=True), 9) == 6
    assert begin_of(part(0, NO_BASE, last=True), 9) == 9


def test_removed_queues_end_a_deletion() -> None:
    fold = folded(part(0, NO_BASE, (DELETING, "T", True), last=True), change((REMOVED, "T", 123)))
    assert plain(fold) == {DELETING: {}}
