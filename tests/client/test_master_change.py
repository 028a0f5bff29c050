"""A producer whose broker's name gets another master: what is under way goes on there."""

from __future__ import annotations

import asyncio

import pytest

from skylarkmq.client import Message, RequestTimeout, RouteNotFound, ServiceNotAvailable, SystemBusy
from skylarkmq.client.instance import services_of
from skylarkmq.client.producer.checks import TransactionState
from skylarkmq.client.services import DOUBT_AGE_S
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.flags import reply_topic
from tests.client.support import Setting
from tests.client.test_departures import hang
from tests.support.fake_cluster import FakeBroker
from tests.support.manual_clock import advance_async, settle

SEND = RequestCode.SEND_MESSAGE_V2
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
CLUSTER_TOPIC = reply_topic("DefaultCluster")


async def warm(it: Setting) -> tuple[FakeBroker, FakeBroker]:
    """Return the master of the one broker name, which the producer knows, and a successor."""
    master = it.cluster.broker("broker-a", {"orders": 2, CLUSTER_TOPIC: 1})
    await it.producer.send(Message("orders", b"first"))
    await advance_async(it.clock, 5)
    return master, it.cluster.successor(master)


def die(broker: FakeBroker) -> None:
    broker.connect_error = ConnectionRefusedError("down")
    broker.lose_all()


def bodies(broker: FakeBroker) -> set[bytes]:
    return set(broker.bodies("orders"))


@pytest.mark.parametrize("retries", [0, 2])
async def test_a_send_finds_the_successor_of_a_master_that_died(retries: int) -> None:
    async with Setting(retries=retries) as it:
        master, successor = await warm(it)
        die(master)
        await settle()
        sends = [it.producer.send_nowait(Message("orders", b"%d" % n)) for n in range(20)]
        await advance_async(it.clock, 1.9)
        assert not any(send.done() for send in sends)
        assert len(it.cluster.name_server.of_code(ROUTE)) <= 1 + 1 + 1.9 / DOUBT_AGE_S
        it.cluster.take_over(successor, master)
        await advance_async(it.clock, 1.0)
        assert all(send.done() for send in sends), "a second before their time is up"
        assert {send.result().unknown_tries for send in sends} == {0}
        assert len(successor.of_code(SEND)) == 20
        await advance_async(it.clock, 0.3)
        assert len(successor.heartbeats) == 1, "it may be asked about this group's transactions"


async def test_a_send_outlasts_a_master_that_does_not_lead_any_more() -> None:
    async with Setting(retries=1) as it:
        master, successor = await warm(it)
        master.refuse(SEND, *[ResponseCode.SERVICE_NOT_AVAILABLE] * 100)
        send = it.producer.send_nowait(Message("orders", b"x"))
        await advance_async(it.clock, 1.9)
        assert not send.done()
        assert 4 <= len(master.of_code(SEND)) - 1 <= 8, "with a pause that grows"
        it.cluster.take_over(successor, master)
        await advance_async(it.clock, 1.0)
        assert send.result().unknown_tries == 0
        assert len(successor.of_code(SEND)) == 1


async def test_refusals_for_want_of_a_master_leave_the_retries_for_other_errors() -> None:
    async with Setting(retries=1) as it:
        master, _ = await warm(it)
        away, busy = ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY
        master.refuse(SEND, away, away, away, busy)
        send = it.producer.send_nowait(Message("orders", b"x"))
        await advance_async(it.clock, 2.5)
        send.result()
        master.refuse(SEND, away, busy, busy)
        lost = it.producer.send_nowait(Message("orders", b"x"))
        await advance_async(it.clock, 2.5)
        assert isinstance(lost.exception(), SystemBusy)


async def test_without_a_master_a_send_ends_in_time_and_says_why() -> None:
    async with Setting() as it:
        master, _ = await warm(it)
        master.refuse(SEND, *[ResponseCode.SERVICE_NOT_AVAILABLE] * 100)
        refused = it.producer.send_nowait(Message("orders", b"x"), timeout=2)
        await advance_async(it.clock, 2.01)
        assert isinstance(refused.exception(), ServiceNotAvailable)
        die(master)
        await settle()
        dead = it.producer.send_nowait(Message("orders", b"x"), timeout=2)
        await advance_async(it.clock, 2.01)
        assert isinstance(dead.exception(), RouteNotFound)


async def test_a_send_does_not_wait_for_the_dial_of_a_machine_that_is_gone() -> None:
    async with Setting(send_timeout=2) as it:
        master, successor = await warm(it)
        master.lose_all()
        await settle()
        released = hang(it, master)
        it.cluster.take_over(successor, master)
        sends = [it.producer.send_nowait(Message("orders", b"%d" % n)) for n in range(20)]
        await advance_async(it.clock, 0.4)
        assert not any(send.done() for send in sends)
        await advance_async(it.clock, 0.3)
        assert all(send.done() for send in sends)
        assert len(successor.of_code(SEND)) == 20
        released.set()


async def test_a_send_does_not_wait_for_the_answer_of_a_machine_that_is_gone() -> None:
    async with Setting() as it:
        master, successor = await warm(it)
        master.silent = True
        lost = it.producer.send_nowait(Message("orders", b"lost"), timeout=1)
        patient = it.producer.send_nowait(Message("orders", b"patient"), timeout=5)
        it.cluster.take_over(successor, master)
        await advance_async(it.clock, 1.01)
        assert isinstance(lost.exception(), RequestTimeout)
        later = it.producer.send_nowait(Message("orders", b"later"))
        await settle()
        assert later.done(), "the one before it has found out"
        assert not patient.done(), "the old master may still answer"
        await advance_async(it.clock, 1.2)
        assert patient.result().unknown_tries == 1
        assert bodies(successor) == {b"first", b"later", b"patient"}


async def test_an_old_master_that_follows_keeps_its_connection() -> None:
    async with Setting() as it:
        master, successor = await warm(it)
        (stream,) = master.streams
        it.cluster.take_over(successor, master)
        successor.slaves = {1: master}
        services_of(it.client).doubt("orders")
        await advance_async(it.clock, 5)
        await it.producer.send(Message("orders", b"x"))
        assert stream.open and len(successor.of_code(SEND)) == 1


async def test_a_transaction_ends_at_the_successor() -> None:
    async def check(_: object) -> TransactionState:
        raise AssertionError("nobody asks")

    async with Setting(group="P", check=check) as it:
        master, successor = await warm(it)
        async with it.producer.transaction(Message("orders", b"x")) as transaction:
            die(master)
            committing = asyncio.create_task(transaction.commit())
            await advance_async(it.clock, 1)
            assert not committing.done()
            it.cluster.take_over(successor, master)
            await advance_async(it.clock, 1.5)
            await committing
        (end,) = successor.of_code(RequestCode.END_TRANSACTION)
        assert end.ext_fields["commitOrRollback"] == "8"
        assert successor.producers, "and it would be asked about others"


@pytest.mark.parametrize("known", [True, False], ids=["known before", "a new client"])
async def test_what_begins_while_nobody_leads_waits_within_its_time(known: bool) -> None:
    async with Setting() as it:
        master = it.cluster.broker("broker-a", {"orders": 2})
        it.cluster.slave(master)
        if known:
            await it.producer.send(Message("orders", b"first"))
        master.has_master = False
        await advance_async(it.clock, 31)
        keyed = Message("orders", b"keyed", sharding_key="k")
        calls = [
            it.producer.send(Message("orders", b"plain")),
            it.producer.send(keyed),
            it.producer.send_many([keyed]),
            it.producer.send_oneway(Message("orders", b"oneway")),
        ]
        sends = [asyncio.ensure_future(call) for call in calls]
        await advance_async(it.clock, 1.5)
        assert not any(send.done() for send in sends)
        master.has_master = True
        await advance_async(it.clock, 1.4)
        results = [send.result() for send in sends]
        assert not isinstance(results[2][0], Exception)
        assert bodies(master) >= {b"plain", b"keyed", b"oneway"}


async def test_without_a_new_master_it_says_so_when_its_time_is_over() -> None:
    async with Setting() as it:
        master = it.cluster.broker("broker-a", {"orders": 2})
        it.cluster.slave(master)
        master.has_master = False
        send = it.producer.send_nowait(Message("orders", b"x"))
        await advance_async(it.clock, 2.9)
        assert not send.done()
        await advance_async(it.clock, 0.2)
        with pytest.raises(RouteNotFound, match="no_broker"):
            await send
