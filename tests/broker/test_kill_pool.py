"""Fault test S2: kills of a broker whose messages wait in the transient pool, under ASYNC_FLUSH.

An acknowledged message is in the memory of the process until the next commit, so a kill may take
it. What it may not do: take one that a reader was shown, or one that stands in front of another
that is still there; leave a hole or bytes that nobody sent; bring back what it took.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from pathlib import Path
from random import Random

import pytest

from skylarkmq.protocol.codes import ResponseCode
from tests.support.amounts import slow
from tests.support.broker_process import WRITE_MODES, BrokerProcess
from tests.support.frame_load import FrameLoad, Shown, read_back
from tests.support.patience import LIMIT_S
from tests.support.send_history import Outcome, SendHistory

CONNECTIONS = 8
POOL: dict[str, object] = {**WRITE_MODES["pool"], "flushDiskType": "ASYNC_FLUSH"}
# Nothing leaves the pool but with a full file, and that waits for a minute as well.
NEVER: dict[str, object] = {
    **POOL,
    "commitIntervalCommitLog": 60_000,
    "commitCommitLogThoroughInterval": 60_000,
    "commitCommitLogLeastPages": 1_000_000,
}


def _rng() -> Random:
    return Random(int(os.environ.get("SKYLARKMQ_SEED", "1")))


async def _life(
    root: Path,
    settings: dict[str, object],
    history: SendHistory,
    shown: Shown,
    rng: Random,
    acks: int,
    *,
    wait_until_shown: bool = True,
) -> int:
    """Start, check what is there, send, and kill. Returns how many acknowledged ones were gone."""
    process = await (await BrokerProcess.spawn(root, settings)).ready()
    watching: asyncio.Task[None] | None = None
    try:
        lost = await read_back(process.address, history, shown=shown)
        load = FrameLoad(history, rng)
        await load.start(process.address, CONNECTIONS)
        watching = asyncio.ensure_future(shown.watch(process.address))
        known = sum(shown.max_offsets.values())
        async with asyncio.timeout(LIMIT_S):
            await load.acked(acks)
            while wait_until_shown and sum(shown.max_offsets.values()) <= known:
                await load.acked(load.acks + 1)
    finally:
        await process.kill()
        if watching is not None:
            await watching
    await load.ended()
    assert {code for code, _ in load.bad_codes} <= {ResponseCode.SYSTEM_BUSY}
    return lost


async def _last(root: Path, history: SendHistory, shown: Shown) -> int:
    """Start once more, and read everything twice."""
    process = await (await BrokerProcess.spawn(root, POOL)).ready()
    try:
        lost = await read_back(process.address, history, shown=shown)
        again = SendHistory()
        again.attempts = history.attempts
        await read_back(process.address, again)
    finally:
        await process.kill()
    return lost


@pytest.mark.parametrize("kills", [slow(2), pytest.param(10, marks=pytest.mark.fault)])
async def test_a_kill_takes_at_most_what_was_not_committed(tmp_path: Path, kills: int) -> None:
    rng, history, shown = _rng(), SendHistory(), Shown()
    lost = 0
    for life in range(kills):
        acks = rng.randrange(50 if life else 1200, 3000)
        lost += await _life(tmp_path, POOL, history, shown, rng, acks)
    lost += await _last(tmp_path, history, shown)
    outcomes = history.outcomes
    assert outcomes[Outcome.LOST] == lost
    assert outcomes[Outcome.OK] >= 50 * kills
    assert len(list((tmp_path / "commitlog").iterdir())) > 2, "the log never rolled"


@pytest.mark.slow
async def test_the_promise_of_the_other_write_modes_would_not_hold(tmp_path: Path) -> None:
    """Commits that never come: the check of the other write modes notices, and so does this file's.

    A busy machine may lose nothing: no buffer was ready for the first file, or a slow append had
    what it left written at once. That life counts for nothing.
    """
    async with asyncio.timeout(LIMIT_S):
        for life in itertools.count():
            if await _is_noticed(tmp_path / str(life)):
                break


async def _is_noticed(root: Path) -> bool:
    """Whether a kill took acknowledged messages; then also that both checks say so."""
    history, shown = SendHistory(), Shown()
    await _life(root, NEVER, history, shown, _rng(), 100, wait_until_shown=False)
    process = await (await BrokerProcess.spawn(root, POOL)).ready()
    try:
        try:
            await read_back(process.address, history)
        except AssertionError as error:
            assert re.match(r"I1: message .* was acknowledged", str(error))
        else:
            return False
        claimed = Shown()
        claimed.max_offsets = {attempt.queue: 10**6 for attempt in history.attempts}
        with pytest.raises(AssertionError, match=r"I1: .* showed 1000000, \d+ are left"):
            await read_back(process.address, history, shown=claimed)
        assert await read_back(process.address, history, shown=shown) >= 1
        return True
    finally:
        await process.kill()
