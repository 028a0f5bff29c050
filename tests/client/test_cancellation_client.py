"""Asking brokers and name servers, cancelled after every number of loop turns: nothing is left."""

from __future__ import annotations

import asyncio
from random import Random

from skylarkmq.client import Client, Credentials
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.client import RemotingClient
from skylarkmq.remoting.connection import Connection
from tests.client.test_nameserver import BAD, Sick
from tests.support.cancelling import cancelled_after, left_over, sweep
from tests.support.fake_cluster import FakeCluster
from tests.support.manual_clock import ManualClock, advance_async, settle


class Place:
    """A cluster with a client that is not started."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.broker = self.cluster.broker("broker-a", {"orders": 1})
        self.clock = ManualClock()
        self.client = Client(
            self.cluster.namesrv,
            network=self.cluster.network,
            clock=self.clock,
            random=Random(1),
            credentials=Credentials("key", "secret"),
        )

    async def end(self) -> None:
        closing = asyncio.create_task(self.client.stop())
        await advance_async(self.clock, 5)
        await closing
        await settle()
        assert left_over() == []
        assert self.clock.pending_count == 0
        assert not self.broker.streams
        assert not self.cluster.name_server.streams


async def test_asking_what_a_broker_is() -> None:
    async def run(turns: int) -> bool:
        it = Place()
        await it.client.start()
        services = services_of(it.client)
        ended = await cancelled_after(turns, services.peer(it.broker.address))
        connection = services.remoting.ready(it.broker.address)
        assert connection is None or connection.pending_count == 0
        assert not (await services.peer(it.broker.address)).ours
        await it.end()
        return ended

    await sweep(run)


async def test_asking_a_name_server_behind_a_black_hole() -> None:
    async def run(turns: int) -> bool:
        it = Sick()
        it.black_holes = {BAD}

        async def ask() -> None:
            asking = asyncio.ensure_future(it.servers.route("orders"))
            try:
                await settle(2)
                await advance_async(it.clock, 0.6)
                await asking
            finally:
                asking.cancel()

        ended = await cancelled_after(turns, ask())
        await settle()
        assert await it.route_within(1.0) is not None
        await it.stop()
        assert left_over() == []
        return ended

    await sweep(run)


async def test_a_call_that_waits_for_a_slow_reader() -> None:
    async def run(turns: int) -> bool:
        it = Place()
        remoting = RemotingClient(it.cluster.network, it.clock, Random(1), "json", lambda *_: None)
        connection = await remoting.connection(it.broker.address)
        ended = await cancelled_after(turns, slow_call(connection))
        connection.resume_writing()
        assert connection.pending_count == 0
        assert (await connection.call(question(), 3.0)).code == 0
        await remoting.stop()
        await settle()
        assert it.clock.pending_count == 0
        return ended

    await sweep(run)


def question() -> RemotingCommand:
    fields = {"topic": "orders", "queueId": "0"}
    return RemotingCommand.request(RequestCode.GET_MAX_OFFSET, fields)


async def slow_call(connection: Connection) -> None:
    connection.pause_writing()
    call = asyncio.ensure_future(connection.call(question(), 3.0))
    try:
        await settle(2)
        connection.resume_writing()
        await call
    finally:
        call.cancel()
