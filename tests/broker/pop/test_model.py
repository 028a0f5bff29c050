"""Whatever a client does: `model.py`; and each rule taken away, which the model must notice."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from skylarkmq.broker.pop import moves, settlement
from skylarkmq.broker.pop.consumption import Consumption
from skylarkmq.broker.pop.deliveries import Delivery, PopQueue
from skylarkmq.broker.pop.delivering import Deliverer
from skylarkmq.broker.pop.handles import Receipt
from skylarkmq.broker.pop.in_flight import InFlight
from skylarkmq.broker.pop.settlement import Settlement
from skylarkmq.broker.pop.states import ACKNOWLEDGED, ACQUIRED, RELEASED
from skylarkmq.broker.pop.taking import Taker
from tests.broker.pop.model import run

SEEDS = 12
STEPS = 80


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("is_fifo", [False, True], ids=["ordinary", "ordered"])
async def test_nothing_is_lost_nothing_comes_back(seed: int, is_fifo: bool) -> None:
    await run(seed, STEPS, is_fifo=is_fifo)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_the_highest_priority_goes_first(seed: int) -> None:
    await run(seed, STEPS, is_fifo=False, has_priorities=True)


def _mark_ahead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PopQueue, "mark", property(lambda queue: queue.next_offset))


def _any_serial(patch: pytest.MonkeyPatch) -> None:
    def find(consumption: Consumption, receipt: Receipt) -> Delivery | None:
        queue = consumption.queue_of(receipt.kind, receipt.queue_id)
        delivery = None if queue is None else queue.in_flight.get(receipt.offset)
        return delivery if delivery is not None and delivery.state is ACQUIRED else None

    patch.setattr(settlement, "_find", find)


def _not_noted(patch: pytest.MonkeyPatch) -> None:
    end = InFlight._end

    def unnoted(it: Any, delivery: Delivery) -> None:
        journal = it.journal
        it.journal = SimpleNamespace(note=lambda _: None)
        end(it, delivery)
        it.journal = journal

    patch.setattr(InFlight, "_end", unnoted)


def _given_back_counts(patch: pytest.MonkeyPatch) -> None:
    rest = InFlight.rest

    def counted(it: InFlight, delivery: Delivery) -> None:
        delivery.attempt += 1
        rest(it, delivery)

    patch.setattr(InFlight, "rest", counted)


def _lapsed_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def expire(it: Any, delivery: Delivery) -> None:
        it._in_flight.drop(delivery)

    patch.setattr(Settlement, "_expire", expire)


def _not_counted(patch: pytest.MonkeyPatch) -> None:
    def expire(it: Any, delivery: Delivery) -> None:
        delivery.let_go(RELEASED)
        it._in_flight.come_again(delivery)

    patch.setattr(Settlement, "_expire", expire)


def _never_blocked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PopQueue, "is_blocked", property(lambda queue: False))


def _acknowledged_at_once(patch: pytest.MonkeyPatch) -> None:
    def acknowledge(it: Any, consumption: Consumption, delivery: Delivery) -> None:
        delivery.move_to(ACKNOWLEDGED)
        it._done(consumption, delivery)

    patch.setattr(InFlight, "acknowledge", acknowledge)


def _acknowledged_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Taker, "_put_in_order", lambda *_: None)


def _acknowledged_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """At a start."""
    revive = InFlight.revive

    def forgotten(it: InFlight, delivery: Delivery, serial: int, _: int) -> None:
        revive(it, delivery, serial, 0)

    patch.setattr(InFlight, "revive", forgotten)


def _taken_twice(patch: pytest.MonkeyPatch) -> None:
    deliver = Deliverer.deliver_new

    def deliver_twice(it: Deliverer, queue: PopQueue, *args: Any) -> None:
        before = queue.next_offset
        deliver(it, queue, *args)
        if queue.next_offset > before + 1 and not queue.is_fifo:
            queue.next_offset -= 1

    patch.setattr(Deliverer, "deliver_new", deliver_twice)


def _in_turn(patch: pytest.MonkeyPatch) -> None:
    def take(it: Any, take: Any) -> None:
        it._take_source(take.consumption.main, take, -1)

    patch.setattr(Taker, "_take_by_priority", take)


def _retries_last(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(moves, "_levels", lambda _: 0)


@pytest.mark.parametrize("take_away", [_in_turn, _retries_last])
async def test_the_model_notices_who_goes_first(
    take_away: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    take_away(monkeypatch)
    for seed in range(SEEDS):
        try:
            await run(seed, STEPS, is_fifo=False, has_priorities=True)
        except AssertionError:
            return
    pytest.fail("nobody noticed")


@pytest.mark.parametrize(
    ("take_away", "is_fifo"),
    [
        (_mark_ahead, False),
        (_any_serial, False),
        (_not_noted, False),
        (_given_back_counts, False),
        (_lapsed_is_forgotten, False),
        (_not_counted, False),
        (_taken_twice, False),
        (_never_blocked, True),
        (_not_counted, True),
        (_any_serial, True),
        (_acknowledged_at_once, True),
        (_acknowledged_stays, True),
        (_acknowledged_is_forgotten, True),
    ],
)
async def test_the_model_notices(
    take_away: Callable[[pytest.MonkeyPatch], None],
    is_fifo: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take_away(monkeypatch)
    for seed in range(SEEDS):
        try:
            await run(seed, STEPS, is_fifo=is_fifo)
        except AssertionError:
            return
    pytest.fail("nobody noticed")
