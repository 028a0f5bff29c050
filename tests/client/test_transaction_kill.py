"""Processes killed at each step of a transaction: what consumers get is what was done, in the end.

The check of another process of the group, asked by the broker, settles what the dead left open.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from skylarkmq.client import (
    Client,
    Consumer,
    HalfMessage,
    Producer,
    ReceivedMessage,
    StartFrom,
    TransactionState,
)
from tests.client.transaction_child import GROUP, STEPS, TOPIC
from tests.support.live_broker import live_broker, namesrv_of
from tests.support.patience import LIMIT_S

pytestmark = pytest.mark.timing

CHILD = Path(__file__).with_name("transaction_child.py")
ROOT = Path(__file__).parents[2]
LOOPS = 6
PATIENT = {
    "transaction_time_out": 100,
    "transaction_check_interval": 100,
    "transaction_check_max": 100_000,
}
"""Questions at once, and no end of them."""


class Bank:
    """Children on one folder, and what is left of them."""

    def __init__(self, folder: Path, namesrv: str) -> None:
        self.folder = folder
        self.namesrv = namesrv
        self.asked: set[str] = set()
        for name in ("begun", "done"):
            (folder / name).mkdir()

    def ids(self, name: str) -> set[str]:
        """Transactions that have begun, or are done."""
        return set(os.listdir(self.folder / name))

    async def child(self, step: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, str(CHILD), self.namesrv, str(self.folder), step),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    async def begun(self, count: int) -> None:
        """Wait until so many transactions have begun."""
        async with asyncio.timeout(LIMIT_S):
            while len(self.ids("begun")) < count:  # noqa: ASYNC110 - processes give no sign
                await asyncio.sleep(0.002)

    async def check(self, half: HalfMessage) -> TransactionState:
        """Everybody else is dead: what is not done never will be."""
        self.asked.add(half.transaction_id)
        done = half.transaction_id in self.ids("done")
        return TransactionState.COMMIT if done else TransactionState.ROLLBACK

    async def settle(self, open_count: int) -> list[str]:
        """Answer for the dead; return what consumers got."""
        got: list[str] = []
        async with (
            asyncio.timeout(LIMIT_S),
            Client(self.namesrv) as client,
            Producer(client=client, group=GROUP, check=self.check),
            Consumer(
                TOPIC, client=client, group="auditors", start_from=StartFrom.FIRST
            ) as consumer,
        ):
            while not {*got} >= self.ids("done") or len(self.asked) < open_count:
                found = await consumer.getmany(timeout=0.1)
                got += [message.msg_id for messages in found.values() for message in messages]
        return got


@pytest.mark.slow
async def test_killed_at_each_step(tmp_path: Path) -> None:
    async with live_broker(tmp_path / "store", **PATIENT) as broker:
        bank = Bank(tmp_path, namesrv_of(broker))
        children = await asyncio.gather(*(bank.child(step) for step in STEPS))
        codes = await asyncio.gather(*(child.wait() for child in children))
        assert codes == [-signal.SIGKILL] * len(STEPS)
        assert len(bank.ids("begun")) == 3 * len(STEPS)
        assert len(bank.ids("done")) == 2 * len(STEPS) + 2  # those that died behind the local one
        # The last to be asked about: half-written, half-stored, local-done.
        got = await bank.settle(open_count=3)
        assert sorted(got) == sorted(bank.ids("done"))
        assert len(bank.asked) in (3, 4)  # the end of the last one may have got lost


@pytest.mark.fault
@pytest.mark.parametrize("seed", range(4))
async def test_killed_at_any_time(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    async with live_broker(
        tmp_path / "store", **{**PATIENT, "transaction_time_out": 1000}
    ) as broker:
        bank = Bank(tmp_path, namesrv_of(broker))
        for _ in range(LOOPS):
            children = await asyncio.gather(*(bank.child("loop") for _ in range(2)))
            await bank.begun(len(bank.ids("begun")) + random.randrange(4, 60))
            for child in children:
                child.kill()
            await asyncio.gather(*(child.wait() for child in children))
        got = await bank.settle(open_count=0)
        await asyncio.sleep(1)  # a wrong verdict would come within a round of questions
        late = Consumer(TOPIC, namesrv_addr=bank.namesrv, group="late", start_from=StartFrom.FIRST)
        async with late:
            again = {message.msg_id async for message in _all(late)}
        assert {*got} == again == bank.ids("done"), f"seed {seed}"


async def _all(consumer: Consumer) -> AsyncIterator[ReceivedMessage]:
    while found := await consumer.getmany(timeout=1):
        for messages in found.values():
            for message in messages:
                yield message
