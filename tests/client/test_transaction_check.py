"""How a client answers the broker's questions about transactions."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from skylarkmq.client.config import ClientConfig
from skylarkmq.client.errors import ConnectionFailed
from skylarkmq.client.producer import checks
from skylarkmq.client.producer.checks import Check, Checks, HalfMessage, TransactionState
from skylarkmq.client.services import Services
from skylarkmq.client.wire.pushes import CheckRouter
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.properties import encode_properties
from skylarkmq.protocol.record import encode_record
from skylarkmq.protocol.remoting_command import RemotingCommand
from tests.support.fake_cluster import HOST
from tests.support.manual_clock import ManualClock, settle
from tests.support.scripted_stream import ScriptedNetwork

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


class FakeConnection:
    """Keeps what it is to send."""

    address = "broker-a:10911"

    def __init__(self) -> None:
        self.posted: list[RemotingCommand] = []
        self.closed = False

    def post(self, command: RemotingCommand) -> None:
        if self.closed:
            raise ConnectionFailed(self.address, "gone")
        self.posted.append(command)


class Rig:
    """A client's router with the checks of one producer."""

    def __init__(self, check: Check | None = None, group: str = "P") -> None:
        self.clock = ManualClock()
        config = ClientConfig("n:9876")
        self.services = Services(config, ScriptedNetwork(), self.clock, Random(1))
        self.router: CheckRouter = self.services.check_listeners
        self.checks = Checks(self.services, group, check)
        self.router.join(self.checks)
        self.connection: Any = FakeConnection()

    def ask(self, unique_id: str = "M1", group: str = "P", offset: int = 7, **more: str) -> None:
        """The broker asks."""
        properties = {
            "UNIQ_KEY": unique_id, "PGROUP": group, "TRAN_MSG": "true", "KEYS": "k",
            "TRANSACTION_CHECK_TIMES": "2",
        }  # fmt: skip
        body = encode_record(
            queue_id=1, flag=3, queue_offset=offset, physical_offset=offset * 100, sys_flag=0,
            born_timestamp=1, born_host=HOST, store_timestamp=2, store_host=HOST,
            reconsume_times=0, prepared_transaction_offset=0, body=b"half", topic=b"orders",
            properties=encode_properties(properties).encode(),
        )  # fmt: skip
        fields = {
            "tranStateTableOffset": str(offset), "commitLogOffset": str(offset * 100),
            "msgId": unique_id, "transactionId": unique_id, "offsetMsgId": "OFF", **more,
        }  # fmt: skip
        code = RequestCode.CHECK_TRANSACTION_STATE
        self.router.take(self.connection, RemotingCommand.request(code, fields, body, oneway=True))

    def verdicts(self) -> list[int]:
        """What it was told."""
        return [int(each.ext_fields["commitOrRollback"]) for each in self.connection.posted]


def always(state: object) -> Check:
    async def check(half: HalfMessage) -> Any:
        await asyncio.sleep(0)
        return state

    return check


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        (TransactionState.COMMIT, COMMIT),
        (TransactionState.ROLLBACK, ROLLBACK),
        (TransactionState.UNKNOWN, UNKNOWN),
        (None, UNKNOWN),
        (True, UNKNOWN),
    ],
)
async def test_the_check_decides(state: object, verdict: int) -> None:
    rig = Rig(always(state))
    rig.ask(bname="broker-a")
    await settle(8)
    assert rig.verdicts() == [verdict]
    (command,) = rig.connection.posted
    assert command.code == RequestCode.END_TRANSACTION
    assert command.is_oneway
    assert command.ext_fields == {
        "producerGroup": "P", "tranStateTableOffset": "7", "commitLogOffset": "700",
        "commitOrRollback": str(verdict), "fromTransactionCheck": "true", "msgId": "M1",
        "transactionId": "M1", "bname": "broker-a",
    }  # fmt: skip


async def test_what_a_check_is_given() -> None:
    seen: list[HalfMessage] = []

    def check(half: HalfMessage) -> TransactionState:
        seen.append(half)
        return TransactionState.COMMIT

    rig = Rig(check)
    rig.ask()
    await settle(8)
    (half,) = seen
    assert (half.topic, half.body, half.keys, half.flag) == ("orders", b"half", "k", 3)
    assert (half.msg_id, half.transaction_id, half.check_count) == ("M1", "M1", 2)
    assert rig.verdicts() == [COMMIT]


async def test_a_check_that_fails_or_hangs_is_not_known() -> None:
    async def check(half: HalfMessage) -> TransactionState:
        if half.msg_id == "hangs":
            await asyncio.Event().wait()
        if half.msg_id == "cancels":
            raise asyncio.CancelledError
        raise RuntimeError("no database")

    rig = Rig(check)
    rig.ask("fails")
    rig.ask("cancels")
    await settle(8)
    assert rig.verdicts() == [UNKNOWN, UNKNOWN]
    rig.ask("hangs")
    await settle(8)
    rig.clock.advance(checks.CHECK_TIMEOUT_S)
    await settle(8)
    assert rig.verdicts() == [UNKNOWN] * 3
    assert rig.clock.pending_count == 0


async def test_an_open_transaction_is_not_given_away() -> None:
    rig = Rig(always(TransactionState.ROLLBACK))
    rig.checks.open["M1"] = None
    rig.ask()
    assert rig.verdicts() == [UNKNOWN]
    rig.checks.remember("M1", TransactionState.COMMIT)
    rig.ask()  # the verdict was lost: it is given again, without the check
    assert rig.verdicts() == [UNKNOWN, COMMIT]


async def test_a_check_of_its_own_goes_before_that_of_all() -> None:
    rig = Rig(always(TransactionState.ROLLBACK))
    rig.checks.open["M1"] = always(TransactionState.COMMIT)
    rig.checks.remember("M1", TransactionState.UNKNOWN)
    rig.ask("M1")
    rig.ask("M2")
    await settle(8)
    assert rig.verdicts() == [COMMIT, ROLLBACK]


async def test_the_producer_that_began_it_is_asked() -> None:
    rig = Rig(always(TransactionState.ROLLBACK))
    other = Checks(rig.services, "P", None)
    rig.router.join(other)
    other.open["M1"] = None
    other.remember("M1", TransactionState.COMMIT)
    rig.ask("M1")
    assert rig.verdicts() == [COMMIT]
    rig.router.leave(other)
    rig.ask("M1")
    await settle(8)
    assert rig.verdicts() == [COMMIT, ROLLBACK]


async def test_questions_for_nobody_and_questions_of_nonsense() -> None:
    rig = Rig(None)
    rig.ask()
    rig.ask(group="elsewhere")
    rig.ask(tranStateTableOffset="x")
    rig.router.leave(rig.checks)
    rig.ask()
    await settle(8)
    assert rig.verdicts() == []


async def test_checks_run_side_by_side_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "WAITING_MAX", 50)
    running = most = 0
    gate = asyncio.Event()

    async def check(half: HalfMessage) -> TransactionState:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1
        return TransactionState.COMMIT

    rig = Rig(check)
    before = len(asyncio.all_tasks())
    for number in range(100):
        rig.ask(f"M{number}")
        if number == 20:
            await settle(8)
    assert len(asyncio.all_tasks()) - before == checks.CHECKS_AT_ONCE
    assert rig.checks.dropped_count == 100 - 50 - checks.CHECKS_AT_ONCE
    rig.ask("M40", offset=9)  # the same one has moved: the place is the new one
    gate.set()
    await settle(400)
    assert most == checks.CHECKS_AT_ONCE
    assert len(asyncio.all_tasks()) == before
    told = [each.ext_fields for each in rig.connection.posted]
    assert len({fields["msgId"] for fields in told}) == len(told) == 66
    assert [f["commitLogOffset"] for f in told if f["msgId"] == "M40"] == ["900"]


async def test_a_check_that_hangs_holds_up_no_other_and_a_verdict_of_this_process_comes_first() -> (
    None
):
    gate = asyncio.Event()

    async def check(half: HalfMessage) -> TransactionState:
        if half.msg_id == "M1":
            await gate.wait()
        return TransactionState.ROLLBACK

    rig = Rig(check)
    rig.checks.remember("M1", TransactionState.UNKNOWN)
    rig.ask("M1")
    await settle()
    rig.ask("M2")
    await settle()
    assert rig.verdicts() == [ROLLBACK]
    rig.checks.remember("M1", TransactionState.COMMIT)
    gate.set()
    await settle()
    assert rig.verdicts() == [ROLLBACK, COMMIT]


async def test_a_question_in_the_very_turn_in_which_the_last_check_ends_is_answered() -> None:
    for turns in range(8):
        rig = Rig(always(TransactionState.COMMIT))
        rig.ask("M1")
        for _ in range(turns):
            await asyncio.sleep(0)
        rig.ask("M2")
        await settle()
        assert rig.verdicts() == [COMMIT, COMMIT], turns


async def test_a_connection_that_is_gone_and_a_producer_that_stops() -> None:
    rig = Rig(always(TransactionState.COMMIT))
    rig.connection.closed = True
    rig.ask()
    await settle(8)
    rig.connection.closed = False

    async def endless(half: HalfMessage) -> TransactionState:
        return await asyncio.get_running_loop().create_future()

    rig.checks.check = endless
    before = len(asyncio.all_tasks())
    rig.ask()
    await settle(8)
    await rig.checks.stop()
    assert len(asyncio.all_tasks()) == before
    assert rig.verdicts() == []
    assert rig.clock.pending_count == 0


async def test_a_check_that_does_not_end_when_cancelled_does_not_hold_up_the_stop() -> None:
    gate = asyncio.Event()

    async def stubborn(half: HalfMessage) -> TransactionState:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        return TransactionState.COMMIT

    rig = Rig(stubborn)
    rig.ask()
    await settle()
    stopping = asyncio.create_task(rig.checks.stop())
    await settle()
    rig.clock.advance(checks.STOP_TIMEOUT_S)
    await settle()
    assert stopping.done()
    gate.set()
    await settle()


async def test_what_is_remembered_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "REMEMBERED_MAX", 10)
    rig = Rig(always(TransactionState.ROLLBACK))
    for number in range(12):
        rig.checks.remember(f"M{number}", TransactionState.COMMIT)
    rig.ask("M1")
    rig.ask("M2")
    await settle(8)
    assert rig.verdicts() == [COMMIT, ROLLBACK]  # M2 at once; M1 by the check
