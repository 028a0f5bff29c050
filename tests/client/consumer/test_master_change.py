"""Consumers whose broker's name gets another master: members, pulls, offsets, locks follow."""

from __future__ import annotations

import asyncio

from skylarkmq.client import Consumer
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.client.consumer.support import GROUP, Group
from tests.client.consumer.test_orderly import Ordered
from tests.support.fake_cluster import FakeBroker
from tests.support.fake_locks import LockingBroker

PULL = RequestCode.PULL_MESSAGE
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET
LOCK = RequestCode.LOCK_BATCH_MQ


def die(broker: FakeBroker) -> None:
    broker.connect_error = ConnectionRefusedError("down")
    broker.lose_all()
    broker.held.clear()


async def _receives(it: Group, consumer: Consumer, broker: FakeBroker, body: bytes) -> None:
    waiting = asyncio.create_task(consumer.getone())
    broker.add("orders", 0, body)
    message = await it.wait(waiting)
    assert message.body == body
    await message.ack()


async def test_a_group_goes_on_at_the_successor_of_a_master_that_died() -> None:
    it = Group({"orders": 1})
    consumer = await it.consumer(commit_interval=2)
    await _receives(it, consumer, it.broker, b"0")
    await it.pass_time(10)
    successor = it.cluster.successor(it.broker)
    successor.offsets = {}  # the last ones are lost
    die(it.broker)
    await it.pass_time(3)
    it.cluster.take_over(successor, it.broker)
    await it.pass_time(2)
    assert list(successor.clients[GROUP]), "it is a member there"
    assert successor.of_code(PULL)
    await it.pass_time(2)
    assert successor.offsets[GROUP, "orders", 0] == 1, "what was committed, too"
    await _receives(it, consumer, successor, b"1")
    it.broker = successor
    await it.stop(consumer)


async def test_a_pull_that_is_refused_for_want_of_a_master_finds_the_new_one() -> None:
    it = Group({"orders": 1})
    consumer = await it.consumer()
    await it.pass_time(10)
    successor = it.cluster.successor(it.broker)
    for code in (PULL, COMMIT):
        it.broker.refuse(code, *[ResponseCode.SERVICE_NOT_AVAILABLE] * 50)
    it.broker.release_pulls()
    await it.pass_time(3)
    assert 2 <= len(it.broker.of_code(PULL)) <= 9
    it.cluster.take_over(successor, it.broker)
    await it.pass_time(2.5)
    await _receives(it, consumer, successor, b"0")
    it.broker = successor
    await it.stop(consumer)


async def test_a_pull_that_a_silent_master_holds_moves_once_another_one_is_known() -> None:
    it = Group({"orders": 1})
    consumer = await it.consumer(commit_interval=2)
    await _receives(it, consumer, it.broker, b"0")
    await it.pass_time(0.1)
    successor = it.cluster.successor(it.broker)
    it.broker.silent = True
    it.cluster.take_over(successor, it.broker)
    it.broker.add("orders", 0, b"1")
    it.broker.held.clear()
    await it.pass_time(12)
    assert successor.of_code(PULL)
    message = await it.wait(consumer.getone())
    assert message.body == b"1", "its commits without an answer have told"
    it.broker = successor
    await it.stop(consumer)


async def test_a_consumer_at_a_slave_looks_for_the_new_master() -> None:
    it = Group({"orders": 1})
    slave = it.cluster.slave(it.broker)
    consumer = await it.consumer()
    await it.pass_time(5)
    it.broker.has_master = False
    die(it.broker)
    await it.pass_time(5)
    for _ in range(2):
        before = len(it.cluster.name_server.of_code(RequestCode.GET_ROUTEINFO_BY_TOPIC))
        slave.release_pulls()
        await it.pass_time(1.5)
        asked = it.cluster.name_server.of_code(RequestCode.GET_ROUTEINFO_BY_TOPIC)[before:]
        assert "orders" in {request.ext_fields["topic"] for request in asked}
    it.cluster.take_over(slave, it.broker)
    slave.release_pulls()
    await it.pass_time(1.5)
    await _receives(it, consumer, slave, b"0")
    it.broker = slave
    await it.stop(consumer)


async def test_locks_are_taken_at_the_new_master_at_once() -> None:
    it = Ordered({"orders": 2})
    consumer = await it.consumer()
    await it.pass_time(5)
    old = it.broker
    successor = it.cluster.successor(old)
    assert isinstance(successor, LockingBroker)
    successor.clock, successor.owners = it.clock, {}
    die(old)
    await it.pass_time(2)
    it.cluster.take_over(successor, old)
    await it.pass_time(2.5)
    it.broker = successor
    assert {it.owner(0), it.owner(1)} == {consumer._client.client_id}
    await _receives(it, consumer, successor, b"0")
    await it.stop(consumer)
