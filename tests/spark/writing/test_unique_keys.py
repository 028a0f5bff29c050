"""Keys that a repeated task makes again, and that no other row gets."""

import datetime
import decimal
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.spark.writing.unique_keys import (
    KEY_LENGTH,
    PlaceKeys,
    Value,
    key_of_values,
    keys_of_columns,
)

VALUES = st.one_of(
    st.none(),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.dates(),
)


def place(write_id: str = "query", batch_id: str = "7", partition: int = 2) -> PlaceKeys:
    return PlaceKeys((write_id, batch_id, partition))


def test_a_row_gets_its_key_again() -> None:
    assert [place().key("T", row) for row in range(100)] == [
        place().key("T", row) for row in range(100)
    ]


def test_keys_stay_what_they_were() -> None:
    """A newer release must give rows of a batch that it repeats the keys of the older one."""
    assert place().key("T", 0) == "416647E8CE89DED39783000000006232"
    assert key_of_values(["T", "broker-a", 0, 17]) == "60AC53463A380BC0498900000000FF07"


def test_every_place_has_its_own_key() -> None:
    places = [
        place(), place("other"), place(batch_id="8"), place(partition=3),
        place("que", "ry7"), place("query7", ""), place("query", "72", 0),
    ]  # fmt: skip
    keys = [each.key("T", row) for each in places for row in range(300)]
    assert len(set(keys)) == len(keys)


def test_the_form_of_a_producers_id() -> None:
    for key in (place().key("T", 0), key_of_values(["a", 1])):
        assert re.fullmatch(r"[0-9A-F]{32}", key)
        assert len(key) == KEY_LENGTH
        assert key[20:28] == "00000000"  # Java's tools search from the month's first day on


@given(st.lists(VALUES, max_size=4), st.lists(VALUES, max_size=4))
def test_other_values_other_keys(one: list[Value], two: list[Value]) -> None:
    same = [(type(value), value) for value in one] == [(type(value), value) for value in two]
    assert (key_of_values(one) == key_of_values(two)) == same


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (["ab", "c"], ["a", "bc"]),
        (["1"], [1]),
        ([1], [True]),
        ([None], [""]),
        (["a"], [b"a"]),
        (["s1:a"], ["s", "1:a"]),
        ([datetime.date(2020, 1, 2)], ["2020-01-02"]),
    ],
)
def test_values_that_look_alike(one: list[Value], two: list[Value]) -> None:
    assert key_of_values(one) != key_of_values(two)


def test_a_number_is_the_same_in_any_type() -> None:
    assert key_of_values([decimal.Decimal("1.50")]) == key_of_values([decimal.Decimal("1.5")])
    assert key_of_values([decimal.Decimal(100)]) == key_of_values([100])


def test_what_has_no_one_spelling() -> None:
    with pytest.raises(TypeError, match="float"):
        key_of_values([0.1])  # type: ignore[list-item]


def test_what_else_tells_rows_apart_is_asked_once_a_topic() -> None:
    asked: list[str] = []

    def more(topic: str) -> tuple[str, ...]:
        asked.append(topic)
        return topic, "name"

    keys = PlaceKeys(("query", "7", 2), more)
    found = {keys.key(topic, row) for topic in ("T", "U") for row in range(10)}
    assert len(found) == 20
    assert asked == ["T", "U"]
    assert keys.topics == {"T", "U"}
    assert place().key("T", 0) not in found


def test_runs_are_the_keys_of_their_rows() -> None:
    keys = place()
    for row, count in ((0, 1), (65_500, 100), (5, 200_000)):
        found = [
            f"{front}{end + number:04X}"
            for front, end, length in keys.runs("T", row, count)
            for number in range(length)
        ]
        assert len(found) == count
        wanted = [0, 1, 77, count // 2, count - 1]
        for number in (number for number in wanted if number < count):
            assert found[number] == keys.key("T", row + number)
        assert len(set(found)) == count


@given(st.lists(st.tuples(VALUES, VALUES, VALUES), max_size=8), st.integers(1, 3))
def test_keys_of_columns_are_those_of_rows(rows: list[tuple[Value, ...]], width: int) -> None:
    kinds = [type(value) for value in rows[0]] if rows else []
    rows = [
        tuple(
            v if isinstance(v, kind) or v is None else None
            for v, kind in zip(row, kinds, strict=True)
        )
        for row in rows
    ]  # a column has one type
    columns = [[row[at] for row in rows] for at in range(width)]
    assert keys_of_columns(columns) == [
        None if row[:width] == (None,) * width else key_of_values(row[:width]) for row in rows
    ]
