"""The demo on a few thousand made-up flights; `make demo` runs it on the real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.flights import Figures, Flights, check, run
from skylarkmq.protocol.message import MessageQueue


def flights(count: int) -> Flights:
    return Flights(
        [
            {"carrier": "AB"[row % 2], "flight": row, "tailnum": None if row % 9 else f"N{row}"}
            for row in range(count)
        ]
    )


@pytest.mark.slow
async def test_a_killed_broker_loses_nothing(tmp_path: Path) -> None:
    source = flights(3000)
    figures, wrong = await run(source, tmp_path, "ASYNC_FLUSH")
    assert wrong == []
    assert figures.kills == 1
    assert figures.deliveries >= len(figures.stored) >= 3000


def test_what_does_not_hold_is_told() -> None:
    source = flights(4)
    queue = MessageQueue("flights", "broker-a", 0)
    figures = Figures()
    for offset, row in enumerate((0, 2, 1)):
        figures.take(queue, offset, row, "AB"[row % 2])
    figures.take(queue, 4, 2, "A")
    assert check(source, figures) == [
        "1 rows were not processed",
        "1 second copies, 0 rows sent again",
        "the counts by carrier differ from the source",
        "the rows of queue 0 do not rise",
        "queue 0 has holes",
    ]


def test_a_flight_without_a_tail_number_has_one_key() -> None:
    source = flights(10)
    assert source.message(9).keys == "9 N9"
    assert source.message(1).keys == "1"
    assert source.message(1).tags == "B"
