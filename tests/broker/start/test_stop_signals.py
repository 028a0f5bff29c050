"""A second signal ends a process that does not stop, whatever holds it up."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from skylarkmq.broker.start.stop_signals import SAME_S, StopSignals
from tests.support.manual_clock import ManualClock
from tests.support.patience import LIMIT_S, until_sync


def test_the_first_one_asks_and_a_later_one_ends(caplog: pytest.LogCaptureFixture) -> None:
    clock, asked, ended = ManualClock(), list[str](), list[int]()
    signals = StopSignals(clock, lambda: asked.append("stop"), end=ended.append)
    signals.came(signal.SIGTERM, None)
    signals.came(signal.SIGTERM, None)
    clock.advance(SAME_S / 2)
    signals.came(signal.SIGINT, None)
    assert (asked, ended, caplog.messages) == (["stop"], [], []), "these are one signal"
    clock.advance(SAME_S)
    signals.came(signal.SIGINT, None)
    assert (asked, ended) == (["stop"], [130])
    (line,) = caplog.messages
    assert line.startswith("SIGINT again: the process ends at once, as by kill -9")


def test_a_log_that_nobody_reads_holds_up_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its line stands still in the middle, and is left there by the third signal."""
    clock, ended = ManualClock(), list[int]()
    signals = StopSignals(clock, end=ended.append)

    class Stuck(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            signals.came(signal.SIGTERM, None)

    logger = logging.getLogger("stuck")
    logger.addHandler(Stuck())
    monkeypatch.setattr("skylarkmq.broker.start.stop_signals.log", logger)
    signals.came(signal.SIGTERM, None)
    clock.advance(SAME_S)
    signals.came(signal.SIGTERM, None)
    assert ended == [143, 143]


def test_a_member_leaves_the_second_one_to_its_supervisor() -> None:
    clock, ended = ManualClock(), list[int]()
    signals = StopSignals(clock, has_supervisor=True, end=ended.append)
    for _ in range(3):
        signals.came(signal.SIGTERM, None)
        clock.advance(SAME_S)
    assert not ended


@pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.SelectorEventLoop])
def test_the_loop_hears_of_the_first_one(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """While it sleeps, for it has nothing to do."""

    async def hear() -> None:
        signals = StopSignals(ManualClock()).install()
        sender = asyncio.create_task(asyncio.to_thread(os.kill, os.getpid(), signal.SIGTERM))
        async with asyncio.timeout(LIMIT_S):
            await signals.asked.wait()
        await sender

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(hear())


# The command, whose stop hangs: in the loop, or on it, so that nothing else gets a turn.
HANGS = """
import asyncio, sys
from pathlib import Path
from skylarkmq.broker import controller
from skylarkmq.broker.start import stop_signals
from skylarkmq.broker.cli import broker
how, sign = sys.argv[1:3]
async def stop(self):
    Path(sign).touch()
    while how == "held":
        pass
    await asyncio.get_running_loop().create_future()
controller.BrokerController.stop = stop
stop_signals.SAME_S = 0.0
broker(sys.argv[3:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["held", "waiting"])
def test_a_stop_that_hangs_is_ended_by_the_second_signal(tmp_path: Path, how: str) -> None:
    keys = {"storePathRootDir": tmp_path / "store", "mappedFileSizeCommitLog": 1 << 20}
    keys |= {"maxMessageSize": 32_768, "bindAddress": "127.0.0.1"}
    keys |= dict.fromkeys(("listenPort", "metricsPromExporterPort"), 0)
    words = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    sign = tmp_path / "stopping"
    child = subprocess.Popen(
        [sys.executable, "-c", HANGS, how, str(sign), *words, "--log-format", "json"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stderr is not None
        assert any('"event": "ready"' in line or '"event":"ready"' in line for line in child.stderr)
        child.terminate()
        until_sync(sign.exists, "its stop has begun")
        child.terminate()
        _, said = child.communicate(timeout=LIMIT_S)
    finally:
        child.kill()
        child.communicate()
    assert child.returncode == 128 + signal.SIGTERM
    assert "SIGTERM again: the process ends at once" in said.splitlines()[-1]
