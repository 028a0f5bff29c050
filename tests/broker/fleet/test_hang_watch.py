"""Which processes are killed because they do not answer, on a clock of the test's own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from skylarkmq.broker.fleet.hang_watch import FORGOTTEN_S, STACKS_S, HangWatch, why_spared
from tests.broker.fleet.test_supervisor import Rig

KILLED = [signal.SIGABRT, signal.SIGKILL]


class WatchedRig(Rig):
    """A member that is ready and watched; `spared` says why it is left alone."""

    spared = ""

    @classmethod
    @asynccontextmanager
    async def started(cls, limit_s: float) -> AsyncIterator[WatchedRig]:
        rig = cls()
        await rig.supervisor.start_brokers([rig.slot])
        watch = HangWatch(lambda: rig.supervisor.slots, limit_s, rig.clock, lambda _: rig.spared)
        task = asyncio.create_task(watch.run())
        await rig.settle()
        try:
            yield rig
        finally:
            task.cancel()
            await rig.supervisor.drain()

    async def pass_seconds(self, seconds: int) -> None:
        for _ in range(seconds):
            await self.pass_time(1.0)

    async def seconds_until_killed(self) -> int:
        """Let the present process hang, and return after how long it is told to end."""
        life = self.lives[-1]
        life.hangs = life.ignores = True
        seconds = 0
        while signal.SIGABRT not in life.signals:
            await self.pass_time(1.0)
            seconds += 1
            assert seconds < 10_000
        await self.pass_seconds(int(STACKS_S) + 2)
        assert life.signals == KILLED and self.lives[-1] is not life
        return seconds


async def test_one_that_does_not_answer_for_the_limit_is_killed_and_started_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with WatchedRig.started(60) as rig:
        await rig.pass_seconds(600)
        assert not rig.lives[0].signals
        assert 60 <= await rig.seconds_until_killed() <= 70
        assert len(rig.lives) == 2 and rig.slot.aborted_count == 1 == rig.slot.restart_count
        assert "killed by signal 9: it had not answered for 60 s" in caplog.text
        await rig.pass_seconds(600)
        assert not rig.lives[1].signals


async def test_one_that_answers_in_time_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with WatchedRig.started(60) as rig:
        for _ in range(3):
            rig.lives[0].hangs = True
            await rig.pass_seconds(50)
            rig.lives[0].hangs = False
            await rig.pass_seconds(10)
        assert not rig.lives[0].signals
        assert caplog.text.count("a answers again") == 3


async def test_one_that_hangs_again_and_again_gets_more_time_each_time() -> None:
    async with WatchedRig.started(60) as rig:
        waits = [await rig.seconds_until_killed() for _ in range(6)]
        for wait_s, factor in zip(waits, (1, 2, 4, 8, 16, 16), strict=True):
            assert 60 * factor <= wait_s <= 60 * factor + 10
        await rig.pass_seconds(int(FORGOTTEN_S))
        assert 60 <= await rig.seconds_until_killed() <= 70


async def test_a_supervisor_that_was_stopped_itself_blames_nobody() -> None:
    async with WatchedRig.started(60) as rig:
        rig.lives[0].hangs = True
        await rig.pass_seconds(6)  # one question is on its way
        await rig.pass_time(10_000)
        assert not rig.lives[0].signals


async def test_one_that_waits_for_the_disk_is_left_alone_and_gets_its_time_afterwards(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with WatchedRig.started(60) as rig:
        rig.spared = "the disk"
        rig.lives[0].hangs = True
        await rig.pass_seconds(615)
        assert not rig.lives[0].signals
        assert "left alone: the disk" in caplog.text
        rig.spared = ""
        await rig.pass_seconds(30)
        assert not rig.lives[0].signals
        await rig.pass_seconds(45)
        assert rig.lives[0].signals[:2] == KILLED


async def test_with_a_limit_of_0_it_is_told_once_and_a_page_says_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with WatchedRig.started(0) as rig:
        rig.lives[0].hangs = True
        await rig.pass_seconds(600)
        assert not rig.lives[0].signals
        assert caplog.text.count("hungProcessTimeoutSeconds is 0") == 1
        assert "does not answer" in rig.slot.hung
        rig.lives[0].hangs = False
        await rig.pass_seconds(12)
        assert not rig.slot.hung


async def test_a_start_may_take_any_time_while_it_answers_and_is_killed_when_it_hangs() -> None:
    async with WatchedRig.started(60) as rig:
        rig.are_ready = False
        await rig.end(-9)
        await rig.pass_seconds(3600)
        assert len(rig.lives) == 2 and not rig.lives[1].signals and rig.slot.fields is None
        assert 60 <= await rig.seconds_until_killed() <= 70


@pytest.mark.timing
def test_a_process_is_spared_while_it_is_traced() -> None:
    assert not why_spared(os.getpid())
    assert not why_spared(1 << 30)  # no such process
    traced = "import ctypes, os; ctypes.CDLL(None).ptrace(0, 0, 0, 0); os.write(1, b'.'); input()"
    with subprocess.Popen(
        [sys.executable, "-c", traced], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stdout.read(1) == b"."
        assert f"process {os.getpid()}, a debugger" in why_spared(child.pid)
        child.kill()
