"""What records add to queues and key index, laid out as on disk."""

from __future__ import annotations

from pathlib import Path

from skylarkmq.store.index.keys import ENTRY
from skylarkmq.store.queue.consume_queue import UNIT, ConsumeQueue
from skylarkmq.store.units import NO_QUEUE, Units
from tests.support.index_files import key_hash


def test_units_are_gathered_by_queue_and_entries_stay_in_log_order() -> None:
    one, other = (ConsumeQueue(topic, 0, Path("/nowhere")) for topic in ("One", "Other"))
    numbers = [(one, 7), (other, 0), (one, 8), (one, NO_QUEUE), (other, 1)]
    units = Units()
    for place, (queue, number) in enumerate(numbers):
        units.add(queue, number, 100 * place, 90, place, b"KEYS\x01k", 1000 + place)
    assert units.runs == {
        one: (7, UNIT.pack(0, 90, 0) + UNIT.pack(200, 90, 2)),
        other: (0, UNIT.pack(100, 90, 1) + UNIT.pack(400, 90, 4)),
    }
    assert [*ENTRY.iter_unpack(units.entries)] == [
        (key_hash(f"{queue.topic}#k"), 100 * place, 1000 + place)
        for place, (queue, _) in enumerate(numbers)
    ]
    assert (units.count, units.store_timestamp) == (5, 1000)
