"""Many calls at a time: their order, their bound, their first error, their cancellation."""

from __future__ import annotations

import asyncio

import pytest

from skylarkmq.client.admin.base import CALLS_MAX, each


async def test_results_come_in_the_order_of_the_items() -> None:
    gates = [asyncio.Event() for _ in range(3)]

    async def work(index: int) -> int:
        await gates[index].wait()
        if index:
            gates[index - 1].set()
        return index * 10

    gates[2].set()
    assert await each(work, range(3)) == [0, 10, 20]
    assert await each(work, [1]) == [10]
    assert await each(work, []) == []


async def test_never_more_than_the_bound() -> None:
    running = peak = 0

    async def work(_: int) -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1

    await each(work, range(1000))
    assert peak == CALLS_MAX


async def test_the_first_error_ends_it_once_the_others_have_ended() -> None:
    begun: list[int] = []
    ended: list[int] = []

    async def work(index: int) -> None:
        begun.append(index)
        if index == 1:
            raise LookupError("no")
        for _ in range(5):
            await asyncio.sleep(0)
        ended.append(index)

    with pytest.raises(LookupError):
        await each(work, range(1000))
    assert len(begun) <= CALLS_MAX
    assert sorted(ended) == [index for index in begun if index != 1]


async def test_cancelled_it_cancels_the_calls() -> None:
    ended: list[int] = []

    async def work(index: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(index)

    task = asyncio.create_task(each(work, range(5)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == [0, 1, 2, 3, 4]
