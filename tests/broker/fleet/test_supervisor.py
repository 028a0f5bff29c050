"""When a member is started again, on a clock of the test's own."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from typing import Any

import pytest

from skylarkmq.broker.fleet.child import Child
from skylarkmq.broker.fleet.supervisor import (
    NAMESRV_STOP_LIMIT_S,
    SERVED_S,
    ProcessSlot,
    StartFailedError,
    Supervisor,
)
from tests.support.manual_clock import ManualClock


class Script:
    """A `Child` that does what the test says."""

    def __init__(self, pid: int, *, is_ready: bool = True) -> None:
        self.pid = pid
        self.reports: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.signals: list[int] = []
        self.ignores = self.hangs = False
        if is_ready:
            self.reports.put_nowait({"event": "ready"})

    def end(self, code: int) -> None:
        self.reports.put_nowait(None)
        self.code.set_result(code)

    async def report(self) -> Mapping[str, Any] | None:
        return await self.reports.get()

    async def ended(self) -> int:
        return await self.code

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)
        if not self.code.done() and (number == signal.SIGKILL or not self.ignores):
            self.end(-number if number == signal.SIGKILL else 0)

    def ask(self) -> None:
        if not self.hangs:
            self.reports.put_nowait({"event": "alive"})

    def name_server_is_new(self) -> None:
        """It is not asked for here."""

    def hand_over(self, connection: object) -> None:
        raise OSError("no pages")


class Rig:
    """A process slot whose processes are scripts."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.lives: list[Script] = []
        self.are_ready = True
        self.supervisor = Supervisor(self.clock)
        self.slot = ProcessSlot("a", self._launch, self.clock)

    async def _launch(self) -> Child:
        self.lives.append(Script(len(self.lives), is_ready=self.are_ready))
        return self.lives[-1]

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def end(self, code: int) -> None:
        self.lives[-1].end(code)
        await self.settle()

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.settle()


async def test_it_waits_longer_after_each_end_and_forgets_after_a_minute_of_service() -> None:
    rig = Rig()
    assert await rig.supervisor.start_brokers([rig.slot])
    for wait_s in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        await rig.end(-9)
        lives = len(rig.lives)
        await rig.pass_time(wait_s - 0.01)
        assert len(rig.lives) == lives and rig.slot.fields is None
        await rig.pass_time(0.02)
        assert len(rig.lives) == lives + 1 and rig.slot.fields is not None
    await rig.pass_time(SERVED_S)
    await rig.end(74)
    lives = len(rig.lives)
    await rig.pass_time(0.51)
    assert len(rig.lives) == lives + 1 == rig.slot.restart_count + 1
    assert await rig.supervisor.drain() == 0
    assert rig.lives[-1].signals == [signal.SIGTERM]


@pytest.mark.parametrize("code", [1, 2])
async def test_a_start_that_would_fail_again_ends_all_with_its_reason(code: int) -> None:
    rig = Rig()
    rig.are_ready = False
    start = asyncio.ensure_future(rig.supervisor.start_brokers([rig.slot]))
    await rig.settle()
    rig.lives[0].reports.put_nowait({"event": "failed", "why": "port taken"})
    await rig.end(code)
    with pytest.raises(StartFailedError, match="a: port taken") as raised:
        await start
    assert raised.value.code == code and len(rig.lives) == 1
    assert await rig.supervisor.drain() == 0


async def test_a_start_that_was_killed_is_tried_again() -> None:
    rig = Rig()
    rig.are_ready = False
    start = asyncio.ensure_future(rig.supervisor.start_brokers([rig.slot]))
    await rig.settle()
    rig.are_ready = True
    await rig.end(-9)
    await rig.pass_time(0.51)
    assert await start
    await rig.supervisor.drain()


async def test_after_the_first_readiness_no_code_ends_all() -> None:
    rig = Rig()
    await rig.supervisor.start_brokers([rig.slot])
    await rig.end(2)
    await rig.pass_time(0.51)
    assert len(rig.lives) == 2
    await rig.supervisor.drain()


@pytest.mark.parametrize("by", ["second signal", "limit"])
async def test_who_does_not_stop_is_killed(by: str) -> None:
    rig = Rig()
    await rig.supervisor.start_brokers([rig.slot])
    rig.lives[0].ignores = True
    rig.supervisor.stop()
    drain = asyncio.ensure_future(rig.supervisor.drain())
    await rig.settle()
    assert rig.lives[0].signals == [signal.SIGTERM]
    if by == "limit":
        await rig.pass_time(60)
    else:
        rig.supervisor.stop()
    assert await drain == 1
    assert rig.lives[0].signals == [signal.SIGTERM, signal.SIGKILL]


async def test_the_second_signal_leaves_the_name_server_its_time_to_stop() -> None:
    rig = Rig()
    names = Rig()
    await rig.supervisor.start_namesrv(names.slot)
    await rig.supervisor.start_brokers([rig.slot])
    rig.lives[0].ignores = names.lives[0].ignores = True
    rig.supervisor.stop()
    drain = asyncio.ensure_future(rig.supervisor.drain())
    await rig.settle()
    rig.supervisor.stop()
    await rig.settle()
    assert rig.lives[0].signals[-1] == signal.SIGKILL
    assert names.lives[0].signals == [signal.SIGTERM]
    await rig.pass_time(NAMESRV_STOP_LIMIT_S + 0.1)
    assert await drain == 1
    assert names.lives[0].signals == [signal.SIGTERM, signal.SIGKILL]


async def test_a_stop_ends_the_wait_for_the_next_start() -> None:
    rig = Rig()
    await rig.supervisor.start_brokers([rig.slot])
    await rig.end(-9)
    assert await rig.supervisor.drain() == 0
    assert len(rig.lives) == 1
