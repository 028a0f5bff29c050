"""The table of the moves between the states of a delivery."""

from __future__ import annotations

from typing import Any

import pytest

from skylarkmq.broker.pop.deliveries import Delivery
from skylarkmq.broker.pop.states import (
    ACKNOWLEDGED,
    ACQUIRED,
    ALLOWED,
    ARCHIVED,
    MOVING,
    RELEASED,
    DeliveryState,
)

NOT_ALLOWED = [
    (one, other) for one in DeliveryState for other in DeliveryState if other not in ALLOWED[one]
]


def delivery(state: DeliveryState) -> Delivery:
    queue: Any = None
    made = Delivery(queue, "T", 0, 0, 1)
    made.state = state
    return made


@pytest.mark.parametrize(("one", "other"), NOT_ALLOWED)
def test_a_move_that_is_not_allowed_is_told_with_both_names(
    one: DeliveryState, other: DeliveryState
) -> None:
    moved = delivery(one)
    with pytest.raises(AssertionError, match=f"no move from {one.name} to {other.name}"):
        moved.move_to(other)
    assert moved.state is one


def test_what_is_done_stays_done_and_nobody_acknowledges_what_no_client_has() -> None:
    assert not ALLOWED[ARCHIVED]
    assert [one for one in DeliveryState if ACKNOWLEDGED in ALLOWED[one]] == [ACQUIRED]
    assert [one for one in DeliveryState if MOVING in ALLOWED[one]] == [RELEASED, ACQUIRED]


def test_a_delivery_begins_released() -> None:
    queue: Any = None
    new = Delivery(queue, "T", 0, 0, 1)
    assert new.state is RELEASED
    new.move_to(ACQUIRED)
    assert new.state is ACQUIRED
