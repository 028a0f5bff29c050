"""Cancelling a coroutine at a chosen point of its way, by a clock that a test holds.

    await drive(clock, work, Cut("waiting", 3))     cancelled where it waits for the fourth time
    await drive(clock, work, Cut("woken", 3))       cancelled when that wait has just ended, and its
                                                    outcome is on its way: the moment of lost wakes
    await drive(clock, work, Cut("timeout", 3))     the same place, by `asyncio.timeout`
    await drive(clock, work, Cut("step", 17))       after 17 turns of the loop, wherever it is then

Turns count only while something is to be done: when the loop is idle, the clock moves on to its
next timer, so that the work goes through all waiting that it has, too.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.patience import LIMIT_S

Way = Literal["waiting", "woken", "timeout", "step"]
STEPS_MAX = 20_000
IDLE_TURNS = 3
"""Empty turns before the clock moves on."""
TURNS_MAX = 120


class Cut(NamedTuple):
    """Where and how to cancel."""

    way: Way
    at: int


@dataclass
class Driven:
    """How it came out."""

    reached: bool
    """Whether the work came as far as the cut; else it ended before."""
    error: BaseException | None
    result: Any
    seconds: float
    """Of the clock."""
    waits: int
    """How many times it waited."""


class _Tracked:
    """Counts the suspensions of one coroutine and cancels it at one of them."""

    def __init__(self, cut: Cut | None, scope: asyncio.Timeout | None) -> None:
        self.cut = cut
        self.scope = scope
        self.waits = 0
        self.reached = False

    @types.coroutine
    def run(self, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Pass everything on between `work` and its task."""
        step = work.send
        argument: Any = None
        while True:
            try:
                waited_for = step(argument)
            except StopIteration as end:
                return end.value
            if self.cut is not None and self.waits == self.cut.at and not self.reached:
                self._cancel(waited_for)
            self.waits += 1
            try:
                argument = yield waited_for
                step = work.send
            except BaseException as error:
                argument = error
                step = work.throw

    def _cancel(self, waited_for: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        assert self.cut is not None
        match self.cut.way:
            case "waiting":
                task.cancel()
            case "woken" if isinstance(waited_for, asyncio.Future):
                waited_for.add_done_callback(lambda _: task.cancel())
            case "woken":
                asyncio.get_running_loop().call_soon(task.cancel)
            case "timeout":
                assert self.scope is not None
                self.scope.reschedule(asyncio.get_running_loop().time() - 1)
            case "step":
                return
        self.reached = True


def is_idle() -> bool:
    """Whether nothing is left to be done in this turn or the next."""
    return not asyncio.get_running_loop()._ready  # type: ignore[attr-defined]


async def go_on(clock: ManualClock, idle_turns: int) -> int:
    """Let one turn pass, or time when nothing else would happen; return how many were idle."""
    await asyncio.sleep(0)
    if not is_idle():
        return 0
    if idle_turns < IDLE_TURNS:
        return idle_turns + 1
    due_s = clock.next_timer_s()
    assert due_s is not None, "it waits for nothing that could ever come"
    clock.advance(max(0.0, due_s - clock.monotonic()))
    return 0


async def drive(
    clock: ManualClock | None, work: Coroutine[Any, Any, Any], cut: Cut | None = None
) -> Driven:
    """Run `work` to its end, cancelled at `cut`; never raises what it raises.

    Args:
        clock: None when time and the network are real; then no cuts by steps.
    """
    by_timeout = cut is not None and cut.way == "timeout"
    scope = asyncio.timeout(None) if by_timeout else None
    tracked = _Tracked(cut, scope)

    async def bounded() -> Any:
        if scope is None:
            return await tracked.run(work)
        async with scope:
            return await tracked.run(work)

    began_s = 0.0 if clock is None else clock.monotonic()
    task = asyncio.create_task(bounded())
    steps = idle = 0
    if clock is None:
        await asyncio.wait([task], timeout=LIMIT_S)
        assert task.done(), "it never ends"
    while clock is not None and not task.done():
        if cut is not None and cut.way == "step" and steps == cut.at:
            tracked.reached = True
            task.cancel()
        idle = await go_on(clock, idle)
        steps += 1
        assert steps < STEPS_MAX, "it never ends"
    error: BaseException | None = None
    result: Any = None
    try:
        result = task.result()
    except BaseException as failure:
        error = failure
    if not isinstance(error, asyncio.CancelledError) and not (tracked.reached and not by_timeout):
        assert task.cancelling() == 0, "a cancellation of its own was left standing"
    seconds = 0.0 if clock is None else clock.monotonic() - began_s
    return Driven(tracked.reached, error, result, seconds, tracked.waits)


async def cancelled_after(turns: int, work: Coroutine[Any, Any, Any]) -> bool:
    """Run `work` for that many turns, then cancel it; True when it was done before."""
    task = asyncio.create_task(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    ended = task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return ended


async def sweep(run: Callable[[int], Coroutine[Any, Any, bool]]) -> None:
    """Cancel one turn later each time, until the work is quicker than the cancellation."""
    for turns in range(TURNS_MAX):
        if await run(turns):
            assert turns > 1, "nothing was cancelled"
            return
    pytest.fail("the work never ended")


def left_over() -> list[str]:
    """Return the names of the SDK's tasks."""
    return [task.get_name() for task in asyncio.all_tasks() if "skylarkmq" in task.get_name()]
