"""Every public call, cancelled at each of its suspension points: nothing is left behind, and what
it was called on works, or ends, as before."""

from __future__ import annotations

import pytest

from tests.client.cancel_consumes import CONSUMES
from tests.client.cancel_place import Row, swept
from tests.client.cancel_sends import SENDS
from tests.support.cancelling import Cut, Way

ROWS = [*SENDS, *CONSUMES]
POINTS_MAX = 400


async def points_of(row: Row, way: Way, stride: int) -> int:
    """Cut one point later each time, until the call ends before it; return how many there were."""
    first = 1 if way == "step" else 0  # before its first turn it has not even begun
    for count, at in enumerate(range(first, POINTS_MAX, stride)):
        if not (await swept(row, Cut(way, at))).reached:
            return count
    pytest.fail(f"{row.name} never ends")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_at_each_suspension_point(row: Row) -> None:
    for way in ("waiting", "woken", "timeout"):
        await points_of(row, way, 1)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_at_some_turns(row: Row) -> None:
    await points_of(row, "step", 7)


@pytest.mark.fault
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_at_every_turn(row: Row) -> None:
    await points_of(row, "step", 1)
