"""A client that starts before its cluster waits for it, and says for whom."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine
from random import Random
from traceback import format_exception
from typing import Any

import pytest

from skylarkmq.client import (
    AuthError,
    Client,
    ConnectionFailed,
    Consumer,
    IllegalState,
    Message,
    Producer,
    TlsError,
    sync,
)
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.remoting.stream import AsyncioNetwork, Network
from skylarkmq.remoting.tls import TlsFailure
from tests.support.fake_cluster import FakeCluster
from tests.support.manual_clock import ManualClock, advance_async, settle


class Away:
    """A network on which a first connection succeeds when a test lets it."""

    def __init__(self, network: Network, error: OSError | None = None) -> None:
        self.error = error or ConnectionRefusedError("connection refused")
        self.is_here = False
        self.tries_count = 0
        self._network = network

    async def connect(self, address: str, receiver: asyncio.Protocol) -> Any:
        self.tries_count += 1
        if not self.is_here:
            raise self.error
        return await self._network.connect(address, receiver)


class Starting:
    """A client whose cluster comes later."""

    def __init__(self, error: OSError | None = None, **settings: Any) -> None:
        self.cluster, self.clock = FakeCluster(), ManualClock()
        self.network = Away(self.cluster.network, error)
        self.client = Client(
            self.cluster.namesrv,
            network=self.network,
            clock=self.clock,
            random=Random(1),
            **{"start_timeout": 20.0, **settings},
        )

    async def begun(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        await settle()
        return task


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_producer_and_a_consumer_of_one_client_wait_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = Starting()
    it.cluster.broker("broker-a", {"orders": 1})
    producer = Producer(client=it.client)
    consumer = Consumer("orders", group="billing", client=it.client)
    tasks = [await it.begun(producer.start()), await it.begun(consumer.start())]
    await advance_async(it.clock, 10)
    assert not any(task.done() for task in tasks)
    it.network.is_here = True
    await advance_async(it.clock, 5)
    for task in tasks:
        await task
    expected = f"waiting for name server {it.cluster.namesrv}, up to 20 s (start_timeout)"
    assert lines(caplog) == [expected]
    sending = asyncio.create_task(producer.send(Message("orders", b"x")))
    await advance_async(it.clock, 1)
    assert (await sending).queue_offset == 0
    stopping = asyncio.gather(consumer.stop(), producer.stop())
    await advance_async(it.clock, 40)
    await stopping
    await it.client.stop()
    assert it.clock.pending_count == 0


async def test_the_wait_ends_for_all_who_wait_and_a_later_start_waits_anew() -> None:
    it = Starting()
    tasks = [await it.begun(it.client.start()) for _ in "ab"]
    await advance_async(it.clock, 20.5)
    for task in tasks:
        with pytest.raises(ConnectionFailed) as caught:
            await task
        address = it.cluster.namesrv
        assert str(caught.value) == (
            f"no name server reached: {address}: connection refused. Is the name server running "
            "there? Set namesrv_addr or NAMESRV_ADDR"
        )
        assert caught.value.__cause__ is None, "a worker's log has it in its text alone"
    again = await it.begun(it.client.start())
    it.cluster.broker()
    it.network.is_here = True
    await advance_async(it.clock, 3)
    await again
    await it.client.stop()
    assert it.clock.pending_count == 0


async def test_it_waits_for_a_broker_to_register(caplog: pytest.LogCaptureFixture) -> None:
    it = Starting()
    it.network.is_here = True
    task = await it.begun(it.client.start())
    await advance_async(it.clock, 5)
    assert not task.done()
    it.cluster.broker()
    await advance_async(it.clock, 1)
    await task
    assert len(lines(caplog)) == 1
    assert "waiting for a broker at name server" in lines(caplog)[0]
    await it.client.stop()


async def test_it_says_that_a_name_server_does_not_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A consumer does not ask it for routes first, each of which would take a time-out more."""
    it = Starting()
    it.cluster.broker()
    it.network.is_here = it.cluster.name_server.silent = True
    task = await it.begun(Consumer("orders", group="billing", client=it.client).start())
    await advance_async(it.clock, 19.9)
    assert not task.done()
    await advance_async(it.clock, 0.6)
    assert task.done()
    with pytest.raises(
        ConnectionFailed, match=r"no name server reached: .*Is the name server runn"
    ):
        await task
    who = f"an answer of name server {it.cluster.namesrv}"
    assert lines(caplog)[0].startswith(f"waiting for {who}, up to 17 s")
    assert not any("no route" in line for line in lines(caplog))
    assert it.clock.pending_count == 0


async def test_a_name_server_that_did_not_answer_at_first_is_enough(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = Starting()
    it.network.is_here = it.cluster.name_server.silent = True
    task = await it.begun(it.client.start())
    await advance_async(it.clock, 5)
    it.cluster.name_server.silent = False
    await advance_async(it.clock, 20)
    await task
    assert "a broker at name server" in lines(caplog)[-1]
    await it.client.stop()


@pytest.mark.parametrize("connects", [True, False])
async def test_a_look_takes_no_longer_than_the_wait(connects: bool) -> None:
    it = Starting(start_timeout=2)
    it.network.is_here = it.cluster.name_server.silent = True
    if not connects:
        it.network.connect = lambda *_: asyncio.Event().wait()  # type: ignore[method-assign]
    task = await it.begun(it.client.start())
    await advance_async(it.clock, 1.9)
    assert not task.done()
    await advance_async(it.clock, 0.2)
    what = "answer" if connects else "connection"
    with pytest.raises(ConnectionFailed, match=rf"reached: .*: no {what} within 2 s"):
        await task
    await it.client.stop()
    assert it.clock.pending_count == 0


async def test_a_silent_name_server_leaves_time_to_ask_the_next_one() -> None:
    class First(Random):
        def randrange(self, *_: object, **__: object) -> int:
            return 0

    it = Starting()
    it.cluster.broker()
    it.cluster.network.listen("silent:9876").silent = True
    it.client = Client(
        f"silent:9876;{it.cluster.namesrv}",
        network=it.cluster.network,
        clock=it.clock,
        random=First(1),
        start_timeout=2,
    )
    task = await it.begun(it.client.start())
    await advance_async(it.clock, 1.1)
    assert task.done()
    await task
    await it.client.stop()


async def test_the_wait_is_told_as_it_was_set(caplog: pytest.LogCaptureFixture) -> None:
    it = Starting(start_timeout=1)
    failing = it.network.connect

    async def slowly(address: str, receiver: asyncio.Protocol) -> Any:
        it.clock.advance(0.001)
        return await failing(address, receiver)

    it.network.connect = slowly  # type: ignore[method-assign]
    task = await it.begun(it.client.start())
    await it.client.stop()
    assert "up to 1 s (start_timeout)" in lines(caplog)[0]
    with pytest.raises(IllegalState):
        await task


async def test_it_goes_on_without_a_broker_that_does_not_come(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = Starting()
    it.network.is_here = True
    task = await it.begun(it.client.start())
    await advance_async(it.clock, 21)
    await task
    assert "has not come, going on without it" in lines(caplog)[1]
    await it.client.stop()


async def test_a_name_server_that_does_not_tell_of_brokers_is_enough() -> None:
    it = Starting()
    it.network.is_here = True
    code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    it.cluster.name_server.on(
        RequestCode.GET_BROKER_CLUSTER_INFO, lambda request: request.reply(code, "no")
    )
    await (await it.begun(it.client.start()))
    await it.client.stop()


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (TlsFailure("the certificate has expired", "renew it"), TlsError, "expired"),
        (socket.gaierror(socket.EAI_NONAME, "unknown: mq"), ConnectionFailed, "unknown: mq"),
    ],
)
async def test_what_waiting_does_not_mend_is_told_at_once(
    error: OSError, kind: type[Exception], text: str
) -> None:
    it = Starting(error)
    with pytest.raises(kind, match=text):
        await (await it.begun(it.client.start()))


async def test_a_wrong_account_is_told_at_once() -> None:
    it = Starting()
    it.network.is_here = True
    remark = "org.apache.rocketmq.acl.common.AclException: No accessKey is configured"
    it.cluster.name_server.on(
        RequestCode.GET_BROKER_CLUSTER_INFO, lambda request: request.reply(1, remark)
    )
    with pytest.raises(AuthError, match="No accessKey"):
        await (await it.begun(it.client.start()))


async def test_a_name_that_may_be_known_soon_is_waited_for() -> None:
    it = Starting(socket.gaierror(socket.EAI_AGAIN, "temporary failure"))
    it.cluster.broker()
    task = await it.begun(it.client.start())
    it.network.is_here = True
    await advance_async(it.clock, 3)
    await task
    await it.client.stop()


async def test_0_looks_once_and_asks_for_no_brokers() -> None:
    it = Starting(start_timeout=0)
    with pytest.raises(ConnectionFailed):
        await (await it.begun(it.client.start()))
    assert it.network.tries_count == 1
    other = Starting(start_timeout=0)
    other.network.is_here = True
    await (await other.begun(other.client.start()))
    await other.client.stop()


async def test_a_start_that_waits_can_be_cancelled_and_repeated() -> None:
    it = Starting()
    first, second = [await it.begun(it.client.start()) for _ in "ab"]
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    it.cluster.broker()
    it.network.is_here = True
    await advance_async(it.clock, 3)
    await second
    await it.client.stop()
    assert it.clock.pending_count == 0


async def test_a_stop_ends_the_wait() -> None:
    it = Starting()
    task = await it.begun(it.client.start())
    await it.client.stop()
    with pytest.raises(IllegalState, match="the client has stopped"):
        await task
    assert it.clock.pending_count == 0


@pytest.mark.parametrize("wrong", [-1, float("nan")])
def test_other_times_are_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="start_timeout"):
        Client("a:1", start_timeout=wrong)


def test_a_blocking_client_does_not_wait_with_0(unused_tcp_port: int) -> None:
    client = sync.Client(f"localhost:{unused_tcp_port}", start_timeout=0)
    with pytest.raises(ConnectionFailed, match="connection refused") as caught:
        client.start()
    assert "another exception" not in (said := "".join(format_exception(caught.value)))
    assert "direct cause" not in said
    client.stop()


async def test_a_refusal_and_an_unknown_host_are_told_in_words(unused_tcp_port: int) -> None:
    receiver = asyncio.Protocol()
    with pytest.raises(OSError, match=r"^connection refused$|^.*address.*refused$"):
        await AsyncioNetwork().connect(f"localhost:{unused_tcp_port}", receiver)
    with pytest.raises(socket.gaierror, match=r"a\.\.b"):
        await AsyncioNetwork().connect("a..b:1", receiver)
