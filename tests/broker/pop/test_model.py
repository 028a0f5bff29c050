"""Whatever a client does: `model.py`; and each rule taken away, which the model must notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from skylarkmq.broker.pop import consumption as consumptions
from skylarkmq.broker.pop import service as services
from skylarkmq.broker.pop import taking
from skylarkmq.broker.pop.consumption import Consumption
from skylarkmq.broker.pop.deliveries import Delivery, PopQueue
from skylarkmq.broker.pop.handles import Receipt
from skylarkmq.broker.pop.service import PopService
from skylarkmq.broker.pop.taking import Taker
from tests.broker.pop.model import run

SEEDS = 12
STEPS = 80


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("is_fifo", [False, True], ids=["ordinary", "ordered"])
async def test_nothing_is_lost_nothing_comes_back(seed: int, is_fifo: bool) -> None:
    await run(seed, STEPS, is_fifo=is_fifo)


def _mark_ahead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PopQueue, "mark", property(lambda queue: queue.next_offset))


def _any_serial(patch: pytest.MonkeyPatch) -> None:
    def find(consumption: Consumption, receipt: Receipt) -> Delivery | None:
        queue = consumption.queue_of(receipt.kind, receipt.queue_id)
        return None if queue is None else queue.in_flight.get(receipt.offset)

    patch.setattr(services, "_find", find)


def _not_noted(patch: pytest.MonkeyPatch) -> None:
    def done(pop: Any, _: object, delivery: Delivery) -> None:
        pop.taker.end(delivery)

    patch.setattr(PopService, "_done", done)


def _given_back_counts(patch: pytest.MonkeyPatch) -> None:
    def rest(pop: Any, delivery: Delivery) -> None:
        consumptions.let_go(delivery)
        delivery.attempt += 1
        pop._hold(delivery, 1000)

    patch.setattr(PopService, "_rest", rest)


def _lapsed_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def lapse(pop: Any, delivery: Delivery) -> None:
        pop._done(None, delivery)

    patch.setattr(PopService, "_lapse", lapse)


def _not_counted(patch: pytest.MonkeyPatch) -> None:
    def lapse(pop: Any, delivery: Delivery) -> None:
        consumptions.let_go(delivery)
        pop._come_again(delivery)

    patch.setattr(PopService, "_lapse", lapse)


def _never_blocked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PopQueue, "is_blocked", property(lambda queue: False))


def _acknowledged_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PopService, "_acknowledge", PopService._done)


def _acknowledged_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Taker, "_put_in_order", lambda *_: None)


def _acknowledged_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """At a start."""
    patch.setattr(taking, "ACKNOWLEDGED", None)


def _taken_twice(patch: pytest.MonkeyPatch) -> None:
    use = Taker.use

    def use_again(taker: Taker, queue: PopQueue, *args: Any) -> None:
        before = queue.next_offset
        use(taker, queue, *args)
        if queue.next_offset > before + 1 and not queue.is_fifo:
            queue.next_offset -= 1

    patch.setattr(Taker, "use", use_again)


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
