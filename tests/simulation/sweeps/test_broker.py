"""A broker whose machine is short of something at its n-th call, for every n: its tables, timers,
transactions and its journal of pop consumption.

Answers may be refusals meanwhile. When there is enough again it goes on, and what it acknowledged
comes after a kill. Where a sync or a write fails the broker may end, and the next one has it all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from copy import deepcopy
from random import Random
from typing import Any

import pytest

from skylarkmq.broker.pop import journal_folder
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.store.timer import index as index_module
from tests.simulation import test_broker_simulator, test_pop_simulator
from tests.support.broker_machine import BrokerMachine, CrashPoint
from tests.support.crash_states import CrashState, Keep
from tests.support.fault_sweep import (
    AMOUNTS,
    NO_BLOCKS,
    NO_DESCRIPTOR,
    NO_ROOM,
    PART,
    SYNC_FAILS,
    WRITE_FAILS,
    Case,
    Strike,
    cases,
    sweep_async,
)
from tests.support.pop_machine import LOOSE, ORDERED, PopMachine


@pytest.fixture(autouse=True)
def _small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timed messages fill runs, which are merged; the journal of pop changes its file."""
    monkeypatch.setattr(index_module, "MEMORY_MAX", 6)
    monkeypatch.setattr(index_module, "FAN_IN", 3)
    monkeypatch.setattr(journal_folder, "ALLOCATION", 512)
    monkeypatch.setattr(journal_folder, "RESERVE", 256)
    monkeypatch.setattr(journal_folder, "CHANGE_SIZE", 1500)
    monkeypatch.setattr(journal_folder, "CHANGE_TIMES", 2)


KILL = CrashState(Keep.KILL)
CUT = CrashState(Keep.NONE, names=Keep.NONE)
SAMPLE = (1, 2, 7)
SEED = 5


class ToleratesRefusals(BrokerMachine):
    """Applications that take a refusal for what it is: nothing was promised."""

    refused = 0

    def call(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b"",
        *, done: Callable[[RemotingCommand], None],
    ) -> None:  # fmt: skip
        def answered(answer: RemotingCommand) -> None:
            if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
                self.refused += 1
            else:
                done(answer)

        super().call(code, fields, body, done=answered)


class Broker(ToleratesRefusals):
    """Delays, timers, transactions, offsets, groups and topics."""

    async def use(self) -> None:
        for turn in range(5):
            self.send_plain()
            self.send_delayed()
            for _ in range(4):
                self.send_timed()
            self.send_half()
            await self.pump(0.3)
            self.decide()
            self.cancel()
            self.commit_offset()
            self.make_group()
            if turn % 2:
                self.make_topic()
            await self.pump(0.7)
        await self.pump(1.5)


class PopBroker(ToleratesRefusals, PopMachine):
    """Consumers by pop."""

    async def use(self) -> None:
        for _ in range(8):
            for _ in range(2):
                self.send_popped()
            await self.pump(0.1)
            for group in (LOOSE, ORDERED):
                self.begin_pop(group, 0.0, 2)
            await self.pump(0.2)
            self.ack()
            self.ack()
            self.change()
            self.forward()
            await self.pump(0.7)
        await self.pump(2.0)

    def raise_failures(self) -> None:
        for failure in self.failures:
            if not isinstance(failure, RemoteProtocolError):  # else it was told so
                raise failure


Recover = Callable[[bool, CrashPoint, CrashState, Random], Awaitable[Any]]


def _life(
    make: type[Broker] | type[PopBroker], recover: Recover, *, sync: bool, goes_on: bool
) -> Callable[[Strike], Awaitable[None]]:
    async def live(strike: Strike) -> None:
        machine = make(sync=sync, rng=Random(SEED))
        await machine.boot(watch=False)
        strike.arm(machine.disk.faults)
        try:
            await machine.use()
            machine.disk.faults.clear()
            machine.raise_failures()
            failure = machine.parts.store.failure
            if failure is None:
                await _check_goes_on(machine)
        finally:
            machine.close()
        ledger = deepcopy(machine.ledger)
        point = CrashPoint(machine.disk.snapshot(), ledger, machine.clock.now_ms())
        await recover(sync, point, KILL, Random(SEED))
        if goes_on:
            assert failure is None, f"the store ended: {failure}"
        else:
            await recover(sync, point, CUT, Random(SEED))

    return live


async def _check_goes_on(machine: ToleratesRefusals) -> None:
    """Nothing is refused any more, and all tables reach the disk."""
    await machine.pump(6.0)
    before = machine.refused
    machine.send_plain()
    machine.send_timed()
    machine.make_group()
    machine.make_topic()
    await machine.pump(0.5)
    assert machine.refused == before, "it refuses for good"
    assert machine.ledger.entries[-1].acked, "a send is not answered"


def _lives(
    make: type[Broker] | type[PopBroker], recover: Recover, *, goes_on: bool
) -> list[Callable[[Strike], Awaitable[None]]]:
    return [_life(make, recover, sync=sync, goes_on=goes_on) for sync in (True, False)]


def _brokers(*, goes_on: bool) -> list[Callable[[Strike], Awaitable[None]]]:
    return _lives(Broker, test_broker_simulator.recover, goes_on=goes_on)


def _pop_brokers(*, goes_on: bool) -> list[Callable[[Strike], Awaitable[None]]]:
    return _lives(PopBroker, test_pop_simulator.recover, goes_on=goes_on)


@AMOUNTS
@cases(
    Case(NO_DESCRIPTOR, "config/topics.json"),
    Case(NO_DESCRIPTOR, "config/subscriptionGroup.json"),
    Case(NO_DESCRIPTOR, "config/consumerOffset.json"),
    Case(NO_DESCRIPTOR, "config/delayOffset.json"),
    Case(NO_DESCRIPTOR, "skylarkmq/timer/0"),
    Case(PART, "config/"),
    Case(PART, "skylarkmq/timer/0"),
    Case(NO_ROOM, "config/topics.json"),
    Case(NO_ROOM, "config/subscriptionGroup.json"),
    Case(NO_ROOM, "config/consumerOffset.json"),
    Case(NO_ROOM, "config/delayOffset.json"),
    Case(NO_ROOM, "skylarkmq/timer/0"),
)
async def test_the_nth_call_is_refused(case: Case, whole: bool) -> None:
    await sweep_async(case, _brokers(goes_on=True), whole=whole, sample=SAMPLE)


@AMOUNTS
@cases(
    Case(NO_DESCRIPTOR, "skylarkmq/pop"),
    Case(NO_BLOCKS, "skylarkmq/pop"),
)
async def test_the_nth_call_of_the_journal_of_pop_is_refused(case: Case, whole: bool) -> None:
    await sweep_async(case, _pop_brokers(goes_on=True), whole=whole, sample=SAMPLE)


@AMOUNTS
@cases(
    Case(SYNC_FAILS, "config/"),
    Case(SYNC_FAILS, "skylarkmq/timer"),
    Case(WRITE_FAILS, "config/"),
    Case(WRITE_FAILS, "skylarkmq/timer"),
)
async def test_the_nth_call_fails_for_good(case: Case, whole: bool) -> None:
    await sweep_async(case, _brokers(goes_on=False), whole=whole, sample=SAMPLE[:2])


@AMOUNTS
@cases(Case(SYNC_FAILS, "skylarkmq/pop"), Case(WRITE_FAILS, "skylarkmq/pop"))
async def test_the_nth_call_of_the_journal_of_pop_fails_for_good(case: Case, whole: bool) -> None:
    await sweep_async(case, _pop_brokers(goes_on=False), whole=whole, sample=SAMPLE[:2])
