"""The key index: the compiled functions do to the byte what those in Python do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq import kernel
from skylarkmq.protocol.tags_code import topic_prefix_code
from skylarkmq.store.index import file as index_file
from skylarkmq.store.index import keys
from skylarkmq.store.index.file import HEADER_SIZE, ITEM_SIZE, SLOT_SIZE
from skylarkmq.store.index.keys import ENTRY

assert keys.add_entries and index_file.put_entries, "the twins are known once they are imported"
compiled: Any = kernel.compiled
pytestmark = pytest.mark.skipif(compiled is None, reason=kernel.why_pure)

INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.sampled_from(["UNIQ_KEY", "KEYS", "XUNIQ_KEY", "KEYS2", "TAGS", "UNIQ_KEY\x01KEYS", ""])
TEXTS = st.text("0ANaz ~\x01é\u20ac\U0001f600\ud7ff", max_size=80)
PAIRS = st.builds(lambda name, value: f"{name}\x01{value}", NAMES, TEXTS)
PROPERTIES = st.one_of(
    st.lists(PAIRS | TEXTS, max_size=4).map(lambda pairs: "\x02".join(pairs).encode()),
    st.binary(max_size=60).map(lambda data: b"UNIQ_KEY\x01" + data + b"\x02KEYS\x01" + data),
)
PREFIX_CODES = [topic_prefix_code(name) for name in ("T", "%RETRY%group", "a" * 127)]


@given(
    st.lists(st.tuples(st.sampled_from(PREFIX_CODES), PROPERTIES, INT64), max_size=6),
    st.binary(max_size=30),
    INT64,
)
def test_entries_of_records(
    keyed: list[tuple[int, bytes, int]], before: bytes, timestamp: int
) -> None:
    made = [bytearray(before), bytearray(before)]
    compiled.add_entries(made[0], keyed, timestamp)
    kernel.twins["add_entries"](made[1], keyed, timestamp)
    assert made[0] == made[1]


SLOTS, ITEMS = 5, 12
SIZE = HEADER_SIZE + SLOT_SIZE * SLOTS + ITEM_SIZE * ITEMS
ENTRIES = st.lists(
    st.tuples(st.integers(0, 2**31 - 1), INT64, INT64 | st.integers(0, 10_000)),
    min_size=1,
    max_size=ITEMS - 1,
)
SLOT_BYTES = st.binary(min_size=SLOT_SIZE * SLOTS, max_size=SLOT_SIZE * SLOTS) | st.just(
    bytes(SLOT_SIZE * SLOTS)
)


@given(st.data(), ENTRIES, SLOT_BYTES, INT64 | st.integers(0, 5_000), INT64)
def test_items_and_slots(
    data: st.DataObject,
    entries: list[tuple[int, int, int]],
    slots: bytes,
    begin_timestamp: int,
    begin_offset: int,
) -> None:
    start = data.draw(st.integers(0, len(entries) - 1))
    stop = data.draw(st.integers(start + 1, len(entries)))
    count = data.draw(st.integers(1, ITEMS - (stop - start)))
    packed = b"".join([ENTRY.pack(*entry) for entry in entries])
    results: list[tuple[object, bytes]] = []
    for put in (compiled.put_entries, kernel.twins["put_entries"]):
        written = bytearray(SIZE)
        written[HEADER_SIZE : HEADER_SIZE + len(slots)] = slots
        view = memoryview(written)
        header = put(view, packed, start, stop, SLOTS, begin_timestamp, begin_offset, 7, count)
        results.append((header, bytes(written)))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("size", "start", "stop", "slots", "count"),
    [
        (SIZE - 1, 0, 1, SLOTS, ITEMS - 1),
        (SIZE, 0, 1, SLOTS, ITEMS),
        (SIZE, 0, 2, SLOTS, 1),
        (SIZE, 1, 1, SLOTS, 1),
        (SIZE, -1, 1, SLOTS, 1),
        (SIZE, 0, 1, 0, 1),
        (SIZE, 0, 1, SLOTS, 0),
        (SIZE, 0, 1, 2**31, 1),
    ],
)
def test_nothing_is_stored_outside_of_the_file(
    size: int, start: int, stop: int, slots: int, count: int
) -> None:
    view = memoryview(bytearray(size))
    with pytest.raises(ValueError, match="do not fit"):
        compiled.put_entries(view, ENTRY.pack(1, 2, 3), start, stop, slots, 0, 0, 0, count)
    assert not any(view)
