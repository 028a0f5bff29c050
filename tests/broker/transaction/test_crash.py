"""Transactions through kills and power cuts, wherever they come.

What is committed is seen, in the end; what is rolled back, or not decided, never is (I9).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest

from skylarkmq.broker.transaction.verdicts import UnknownTransactionError
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from tests.broker.transaction_rig import (
    COMMIT,
    GROUP,
    ROLLBACK,
    TOPIC,
    UNKNOWN,
    Half,
    Producer,
    TransactionRig,
)
from tests.support.crash_disk import CrashDisk
from tests.support.manual_clock import settle

CONFIG: dict[str, Any] = {
    "transaction_check_interval": 2000,
    "transaction_time_out": 1000,
    "transaction_check_max": 1000,
    "flush_consumer_offset_interval": 1000,
    "message_index_enable": False,
}

SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.fault) for seed in range(3, 40))]


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def flush(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["by place", "by key"])
def kind(request: pytest.FixtureRequest) -> type[Machine]:
    """How the producer names its transactions: as RocketMQ 4's clients, or as those of 5."""
    return Machine if request.param == "by place" else KeyedMachine


@dataclass
class Entry:
    """One transaction, as its producer knows it."""

    body: bytes
    half: Half | None = None  # None: it is not acknowledged
    decision: int = UNKNOWN
    acked: bool = False


@dataclass
class Ledger:
    """All transactions."""

    entries: list[Entry] = field(default_factory=list)

    def bodies(self, decision: int) -> set[bytes]:
        return {entry.body for entry in self.entries if entry.decision == decision}


class Machine:
    """A broker with one producer that does random things."""

    group = GROUP

    def __init__(self, rng: random.Random, rig: TransactionRig, ledger: Ledger) -> None:
        self.rng = rng
        self.rig = rig
        self.ledger = ledger
        self.producer: Producer = rig.producer(group=self.group)
        self._ends: list[tuple[Entry, asyncio.Future[Any]]] = []
        self.points: list[tuple[CrashDisk, Ledger]] = []
        self._steps = 0
        self._points_max = 0

    def keep_points(self, count: int) -> None:
        """Keep so many of the moments before a step of the disk, each as likely as the others."""
        self._points_max = count
        self.rig.files.before_step = self._before

    def _before(self, _op: str, _path: object) -> None:
        self._steps += 1
        if len(self.points) < self._points_max:
            self.points.append((self.rig.files.snapshot(), deepcopy(self.ledger)))
        elif self.rng.random() * self._steps < self._points_max:
            at = self.rng.randrange(self._points_max)
            self.points[at] = self.rig.files.snapshot(), deepcopy(self.ledger)

    async def run(self, count: int) -> None:
        for _ in range(count):
            action = self.rng.random()
            if action < 0.4:
                self.send()
            elif action < 0.7:
                self.decide()
            elif action < 0.8:
                await self.rig.work()
            elif action < 0.87:
                await self._sync_late()
            else:
                await self.rig.advance(self.rng.choice((0.5, 1.0, 2.5)))
            self._answer(likely=0.5)
            self._collect()

    async def _sync_late(self) -> None:
        """Ends go on and tables are written, while the disk takes its time with the log."""
        for _ in range(30):
            self.rig.clock.advance(0.1)
            await settle(4)
            self.rig.workers.tables.run_all()

    def send(self) -> None:
        body = b"%d" % len(self.ledger.entries)
        entry = Entry(body)
        self.ledger.entries.append(entry)
        entry.half = self.rig.half(body)

    def decide(self) -> None:
        open_ones = [entry for entry in self.ledger.entries if entry.decision == UNKNOWN]
        if not open_ones:
            return
        entry = self.rng.choice(open_ones[-20:])
        entry.decision = self.rng.choice((COMMIT, COMMIT, ROLLBACK))
        if self.rng.random() < 0.7 and entry.half is not None:
            self._end(entry, entry.half)

    def _end(self, entry: Entry, half: Half) -> None:
        self._ends.append((entry, self.rig.begin_end(half, entry.decision)))

    def _answer(self, likely: float) -> int:
        """Answer what the producer was asked, unless the answer gets lost; return how many."""
        questions = self.producer.questions()
        for half, message in questions:
            entry = self.ledger.entries[int(message.body)]
            if entry.decision != UNKNOWN and self.rng.random() < likely:
                self._end(entry, half)
        return len(questions)

    def _collect(self) -> None:
        for entry, task in self._ends:
            if task.done() and task.result().code == ResponseCode.SUCCESS:
                entry.acked = True
        self._ends = [(entry, task) for entry, task in self._ends if not task.done()]

    async def settle(self) -> None:
        """Let checks and answers go on until every decision has arrived."""
        for _ in range(12):
            await self.rig.advance(1)
            self._answer(likely=1)
            await self.rig.work()
            self._collect()

    async def abandon(self) -> None:
        """Forget what was not answered."""
        await settle(3)
        for _, task in self._ends:
            task.cancel()


class KeyedMachine(Machine):
    """One whose producer names no places."""

    group = TOPIC

    def send(self) -> None:
        body = b"%d" % len(self.ledger.entries)
        entry = Entry(body)
        self.ledger.entries.append(entry)
        entry.half = self.rig.half(body, f"PGROUP\x01{TOPIC}".encode())
        self.rig.ledger.keys.note(TOPIC, body.hex(), entry.half.queue_offset)

    def _end(self, entry: Entry, half: Half) -> None:
        self._ends.append((entry, asyncio.ensure_future(self._end_key(entry))))

    async def _end_key(self, entry: Entry) -> RemotingCommand:
        commits, answer = entry.decision == COMMIT, RemotingCommand.request(0)
        try:
            await self.rig.verdicts.end_key(TOPIC, entry.body.hex(), commits=commits)
        except UnknownTransactionError:
            answer.code = ResponseCode.SYSTEM_ERROR
        return answer


async def life(kind: type[Machine], seed: int, flush: str, steps: int = 60) -> Machine:
    rng = random.Random(seed)
    rig = TransactionRig(flush_disk_type=flush, **CONFIG)
    machine = kind(rng, rig, Ledger())
    await rig.go()
    machine.keep_points(3)
    await machine.run(steps)
    rig.files.before_step = None
    await machine.abandon()
    return machine


async def check_after(
    kind: type[Machine], disk: CrashDisk, ledger: Ledger, flush: str, *, lossless: bool
) -> int:
    """Start on what a crash left, and hold the promises; return how many were seen twice."""
    rig = TransactionRig(disk, flush_disk_type=flush, **CONFIG)
    rig.clock.step_wall(3600)
    await rig.go()
    at_once = Counter(rig.bodies())
    stored = {message.body for message in rig.halves()}
    if lossless:
        assert stored >= {entry.body for entry in ledger.entries if entry.half is not None}
        for entry in ledger.entries:
            if entry.acked and entry.decision == COMMIT:
                assert at_once[entry.body], "an acknowledged commit is gone"
    machine = kind(random.Random(1), rig, ledger)
    asked = rig.ledger.stats
    await machine.settle()
    seen = Counter(rig.bodies())
    assert ledger.bodies(COMMIT) & stored <= seen.keys(), "a committed message is not seen"
    assert not seen.keys() - ledger.bodies(COMMIT), "what was not committed is seen"
    undecided = ledger.bodies(UNKNOWN) & stored
    assert rig.ledger.pending_count == len(undecided)
    assert asked.asked >= len(undecided)
    await rig.stop_all()
    again = await TransactionRig(disk, flush_disk_type=flush, **CONFIG).go()
    assert again.ledger.pending_count == len(undecided)
    assert Counter(again.bodies()) == seen
    return sum(count - 1 for count in seen.values())


@pytest.mark.parametrize("seed", SEEDS)
async def test_after_a_kill_at_any_step_nothing_is_lost_or_shown_twice(
    kind: type[Machine], seed: int, flush: str
) -> None:
    machine = await life(kind, seed, flush)
    assert machine.points
    for disk, ledger in machine.points:
        # Only a write that the kill has cut in two, between message and op message, is repeated.
        assert await check_after(kind, disk, ledger, flush, lossless=True) <= 1


@pytest.mark.parametrize("seed", SEEDS)
async def test_after_a_power_cut_acknowledged_ends_stand(
    kind: type[Machine], seed: int, flush: str
) -> None:
    machine = await life(kind, 100 + seed, flush)
    rng = machine.rng
    for disk, ledger in machine.points:
        for state in disk.crash_states(rng, 2):
            after = disk.crash(state, rng)
            is_lossless = flush == "SYNC_FLUSH"
            await check_after(kind, after, deepcopy(ledger), flush, lossless=is_lossless)
