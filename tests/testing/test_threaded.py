"""A broker in a thread of its own: from any loop, and from none."""

from __future__ import annotations

import asyncio
import inspect
import threading
import unittest

import pytest

from skylarkmq.client import Client as AsyncClient
from skylarkmq.client import ConnectionFailed, Message, StartFrom
from skylarkmq.client import Producer as AsyncProducer
from skylarkmq.client.sync import Consumer, Producer
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.testing import RunningBroker, SyncBroker, run_broker_in_thread, run_broker_sync
from tests.support.patience import LIMIT_S, until_sync

pytestmark = pytest.mark.timing

TOPIC = "orders"


async def send(address: str, *bodies: bytes) -> None:
    async with AsyncProducer(namesrv_addr=address, retries=0) as producer:
        for body in bodies:
            await producer.send(Message(TOPIC, body))


def test_code_without_a_loop_has_the_same_methods() -> None:
    with run_broker_sync() as broker:
        address = broker.namesrv_addr
        broker.create_topic(TOPIC, queues=1)
        asyncio.run(send(address, b"one"))
        with broker.faults.fail(RequestCode.SEND_MESSAGE) as fault:
            with pytest.raises(Exception, match="a fault that a test has set"):
                asyncio.run(send(address, b"refused"))
            assert fault.hits == 1
        broker.faults.close_connections()
        before = broker.now()
        broker.advance(60)
        assert (broker.now() - before).total_seconds() >= 60
        broker.restart(kill=True)
        assert broker.namesrv_addr == address
        asyncio.run(send(address, b"two"))
        assert [message.body for message in broker.messages(TOPIC)] == [b"one", b"two"]
        assert broker.lag("nobody") is None
        with pytest.raises(TimeoutError):
            broker.wait_lag("nobody", timeout=0)
        assert "topic orders: 0: 0..2" in broker.dump()
        assert broker.root.is_dir()
    assert not broker.root.exists()


def test_a_blocking_client_on_the_test_s_own_thread() -> None:
    with run_broker_sync() as broker, broker.client(instance_name="mine") as client:
        with Producer(client=client) as producer:
            producer.send(Message(TOPIC, b"hello", delay_level=5))
        broker.advance(61)
        consumer = Consumer(TOPIC, client=client, group="g", start_from=StartFrom.FIRST)
        with consumer:
            message = consumer.getone(timeout=LIMIT_S)
            message.ack()
        assert message.body == b"hello"
        broker.wait_lag("g")


def test_one_broker_serves_one_loop_after_the_other() -> None:
    with run_broker_in_thread() as broker:

        async def use(number: int) -> int:
            await broker.create_topic(TOPIC, queues=1)
            await send(broker.namesrv_addr, b"%d" % number)
            await broker.advance(1)
            return len(await broker.messages(TOPIC))

        assert [asyncio.run(use(number)) for number in range(3)] == [1, 2, 3]


def test_a_wait_that_is_cancelled_ends_in_the_broker_too() -> None:
    with run_broker_in_thread() as broker:

        async def main() -> None:
            waiting = asyncio.ensure_future(broker.wait_lag("nobody", timeout=3600))
            await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

        async def tasks() -> int:
            return len(asyncio.all_tasks())

        asyncio.run(main())
        until_sync(
            lambda: asyncio.run_coroutine_threadsafe(tasks(), broker.home).result(LIMIT_S) == 2
        )


def test_a_broker_that_can_not_start_says_why_and_leaves_no_thread() -> None:
    count = threading.active_count()
    with (
        pytest.raises(ConfigError, match="listenPort"),
        run_broker_sync(settings={"listenPort": 99_999}),
    ):
        pass
    until_sync(lambda: threading.active_count() == count)


def test_a_broker_that_has_gone_is_gone() -> None:
    with run_broker_in_thread() as broker:
        pass

    async def connect() -> None:
        async with AsyncClient(broker.namesrv_addr, start_timeout=0):
            pass

    with pytest.raises(ConnectionFailed):
        asyncio.run(connect())


class TestUnittest(unittest.TestCase):
    """The standard library's way."""

    def setUp(self) -> None:
        self.broker = self.enterContext(run_broker_sync())

    def test_a_message(self) -> None:
        asyncio.run(send(self.broker.namesrv_addr, b"hello"))
        self.assertEqual([m.body for m in self.broker.messages(TOPIC)], [b"hello"])


def test_the_two_faces_are_alike() -> None:
    """Names and arguments of SyncBroker are those of RunningBroker."""
    own = {"start", "stop", "controller", "disk", "broker"}
    faces = [
        {name for name in dir(face) if not name.startswith("_")} - own
        for face in (RunningBroker, SyncBroker)
    ]
    assert faces[1] - {"namesrv_addr", "root", "faults"} == faces[0]
    for name in faces[0]:
        signatures = [
            inspect.signature(getattr(face, name)) for face in (RunningBroker, SyncBroker)
        ]
        assert signatures[0].parameters == signatures[1].parameters, name
