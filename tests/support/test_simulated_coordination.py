"""What the simulated engine adds to the contract: its clock, and a way that delays and loses."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from random import Random

import pytest

from skylarkmq.broker.replication.failover.coordination import (
    Change,
    Condition,
    CoordinationError,
    LeaseEndedError,
    Swapped,
)
from tests.support.manual_clock import ManualClock, advance_async
from tests.support.simulated_coordination import Engine, Faults, SimulatedCoordination

STATE = [Change("state", b"1")]


def rig(faults: Faults | None = None) -> tuple[ManualClock, Engine, SimulatedCoordination]:
    clock = ManualClock()
    engine = Engine(clock)
    return clock, engine, SimulatedCoordination(engine, "a", clock, Random(1), faults)


def test_a_lease_lives_for_its_time_after_each_renewal() -> None:
    clock, engine, _ = rig()
    lease = engine.grant(10)
    engine.swap("a", [], [Change("master", b"x", lease)])
    clock.advance(9)
    assert engine.renew(lease)
    clock.advance(9.9)
    assert "master" in engine.read("a").entries
    clock.advance(0.1)
    assert engine.read("a").entries == {}
    assert not engine.renew(lease)
    assert clock.pending_count == 0
    with pytest.raises(LeaseEndedError):
        engine.swap("a", [], [Change("master", b"x", lease)])


def test_a_lease_may_end_late_but_not_soon() -> None:
    clock = ManualClock()
    engine = Engine(clock, late_s=lambda: 3)
    lease = engine.grant(10)
    clock.advance(12.9)
    assert engine.renew(lease)
    clock.advance(13)
    assert not engine.renew(lease)


async def test_a_lost_answer_leaves_open_what_happened() -> None:
    clock, engine, way = rig(Faults(lost_answer=1))
    swap = asyncio.ensure_future(way.swap([], STATE))
    read = asyncio.ensure_future(way.read())
    await advance_async(clock, 1.9)
    assert not swap.done()
    await advance_async(clock, 0.1)
    assert await swap is Swapped.UNKNOWN
    assert engine.read("a").entries["state"].value == b"1"
    with pytest.raises(CoordinationError, match="no answer"):
        await read


async def test_a_lost_request_happens_never() -> None:
    clock, engine, way = rig(Faults(lost_request=1))
    swap = asyncio.ensure_future(way.swap([], STATE))
    await advance_async(clock, 100)
    assert await swap is Swapped.UNKNOWN
    assert engine.read("a").entries == {}


async def test_an_engine_that_is_not_reached_changed_nothing() -> None:
    clock, engine, way = rig(Faults(unreachable=1))
    with pytest.raises(CoordinationError, match="cannot be reached"):
        await way.swap([], STATE)
    await advance_async(clock, 100)
    assert engine.read("a").entries == {}


async def test_a_swap_may_happen_after_its_caller_gave_up() -> None:
    clock, engine, way = rig(Faults(delay_max_s=1000))
    swap = asyncio.ensure_future(way.swap([], STATE))
    await advance_async(clock, 2)
    assert await swap is Swapped.UNKNOWN
    assert engine.read("a").entries == {}
    await advance_async(clock, 1000)
    assert engine.read("a").entries["state"].value == b"1"


async def test_a_late_swap_and_the_next_one_exclude_each_other() -> None:
    clock, engine, way = rig(Faults(delay_max_s=1000))
    late = [Condition("state", 0)]
    swap = asyncio.ensure_future(way.swap(late, STATE))
    await advance_async(clock, 2)
    assert await swap is Swapped.UNKNOWN
    assert engine.swap("a", late, [Change("state", b"2")]) is Swapped.DONE
    await advance_async(clock, 1000)
    assert engine.read("a").entries["state"].value == b"2"


async def test_a_network_that_is_cut_in_one_direction() -> None:
    clock, engine, way = rig()
    way.hears = False
    swap = asyncio.ensure_future(way.swap([], STATE))
    await advance_async(clock, 2)
    assert await swap is Swapped.UNKNOWN
    assert "state" in engine.read("a").entries
    way.hears, way.sends = True, False
    swap = asyncio.ensure_future(way.swap([], [Change("state", b"2")]))
    await advance_async(clock, 2)
    assert await swap is Swapped.UNKNOWN
    assert engine.read("a").entries["state"].value == b"1"
    way.sends = True
    read = asyncio.ensure_future(way.read())
    await advance_async(clock, 0)
    assert (await read).entries["state"].value == b"1"


@pytest.mark.parametrize("how", ["by the seed", "by a cut"])
async def test_a_watch_is_lost(how: str) -> None:
    clock, engine, way = rig()
    async with aclosing(way.watch(1)) as watch:
        waiting = asyncio.ensure_future(anext(watch))
        await advance_async(clock, 0)
        way.faults = Faults(lost_watch=1) if how == "by the seed" else Faults()
        way.hears = how != "by a cut"
        engine.swap("a", [], STATE)
        await advance_async(clock, 2)
        with pytest.raises(CoordinationError, match="read again"):
            await waiting
    assert not engine.listeners


async def test_a_seed_has_the_same_run_again() -> None:
    def faults() -> Faults:
        return Faults(delay_max_s=1.2, unreachable=0.1, lost_request=0.1, lost_answer=0.1)

    async def run(seed: int) -> list[str]:
        clock, seen = ManualClock(), list[str]()
        engine = Engine(clock)

        async def increase(name: str, random: Random) -> None:
            way = SimulatedCoordination(engine, "a", clock, random, faults())
            for _ in range(20):
                try:
                    entry = (await way.read()).entries.get("state")
                    value = int(entry.value) + 1 if entry else 1
                    condition = Condition("state", entry.revision if entry else 0)
                    end = await way.swap([condition], [Change("state", b"%d" % value)])
                    seen.append(f"{name} {value} {end.name}")
                except CoordinationError as error:
                    seen.append(f"{name} {error}")

        tasks = [asyncio.ensure_future(increase(name, Random(f"{seed} {name}"))) for name in "xyz"]
        await advance_async(clock, 1000)
        await asyncio.gather(*tasks)
        done = sum("DONE" in line for line in seen)
        possible = done + sum("UNKNOWN" in line for line in seen)
        assert done <= int(engine.read("a").entries["state"].value) <= possible
        return seen

    first = await run(7)
    assert any("DONE" in line for line in first)
    assert any("REFUSED" in line for line in first)
    assert any("UNKNOWN" in line for line in first)
    assert await run(7) == first
    assert await run(8) != first
