"""Name servers: whatever one of them does, the next answers; and what it costs when none does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from skylarkmq.client.errors import (
    BrokerError,
    ConnectionFailed,
    ProtocolError,
    RequestTimeout,
    RocketMQError,
)
from skylarkmq.client.wire.nameserver import PATIENCE_S, NameServers
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.remoting.client import CONNECT_TIMEOUT_S, RemotingClient
from tests.support.fake_cluster import NAMESRV, FakeCluster
from tests.support.manual_clock import ManualClock, advance_async, settle
from tests.support.scripted_stream import EOF, ScriptedPeer, ScriptedStream

BAD = "bad:9876"
TIMEOUT_S = 3.0


class Sick:
    """A cluster with a second name server, which is ill, and is asked first."""

    def __init__(self, *addresses: str) -> None:
        self.cluster = FakeCluster()
        self.cluster.broker("broker-a", {"orders": 2})
        self.clock = ManualClock()
        self.bad = self.cluster.network.listen(BAD)
        self.black_holes: set[str] = set()
        self._connect = self.cluster.network.connect
        self.remoting = RemotingClient(self, self.clock, Random(1), "json", lambda *_: None)
        addresses = addresses or (BAD, NAMESRV)
        self.servers = NameServers(self.remoting, addresses, TIMEOUT_S, First(), self.clock)

    async def connect(self, address: str, receiver: asyncio.Protocol) -> ScriptedStream:
        if address in self.black_holes:
            await asyncio.Event().wait()
        return await self._connect(address, receiver)

    async def route_within(self, seconds: float) -> object:
        """Ask for a route and let at most that time pass."""
        asking = asyncio.create_task(self.servers.route("orders"))
        await settle()
        for _ in range(20):
            if asking.done():
                break
            await advance_async(self.clock, seconds / 20 + 0.001)
        assert asking.done(), f"not done after {seconds} s"
        return await asking

    async def stop(self) -> None:
        await self.remoting.stop()
        assert self.clock.pending_count == 0


class First(Random):
    """Starts with the first name server."""

    def randrange(self, *_: object, **__: object) -> int:
        return 0


def refused(peer: ScriptedPeer) -> None:
    peer.connect_error = ConnectionRefusedError("nobody")


def silent(peer: ScriptedPeer) -> None:
    peer.silent = True


def closing(peer: ScriptedPeer) -> None:
    peer.script = [EOF] * 5


def wrong_protocol(peer: ScriptedPeer) -> None:
    peer.script = [b"HTTP/1.1 400 Bad Request\r\n\r\n"] * 5


def bad_body(peer: ScriptedPeer) -> None:
    peer.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda r: r.reply(0, body=b"{nonsense"))


def a_broker(peer: ScriptedPeer) -> None:
    peer.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda r: r.reply(3, "type 105 not supported"))


def not_ready(peer: ScriptedPeer) -> None:
    peer.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda r: r.reply(1, "name server not ready"))


ILLNESSES: list[tuple[Callable[[ScriptedPeer], None], type[RocketMQError], str]] = [
    (refused, ConnectionFailed, "nobody"),
    (silent, RequestTimeout, "did not answer"),
    (closing, ConnectionFailed, "closed the connection"),
    (wrong_protocol, ProtocolError, "no frame of the protocol"),
    (bad_body, ProtocolError, "body that cannot be read"),
    (a_broker, BrokerError, "It may be a broker"),
    (not_ready, BrokerError, "not ready"),
]


@pytest.mark.parametrize(("illness", "kind", "words"), ILLNESSES)
async def test_the_next_one_answers_and_is_asked_first_from_then_on(
    illness: Callable[[ScriptedPeer], None], kind: type[RocketMQError], words: str
) -> None:
    it = Sick()
    illness(it.bad)
    assert await it.route_within(TIMEOUT_S + 0.1) is not None
    asked = len(it.bad.requests), it.bad.connect_count
    for _ in range(3):
        assert await it.route_within(0.1) is not None
    assert (len(it.bad.requests), it.bad.connect_count) == asked
    await it.stop()


@pytest.mark.parametrize(("illness", "kind", "words"), ILLNESSES)
async def test_alone_it_is_an_error_that_names_address_and_cause(
    illness: Callable[[ScriptedPeer], None], kind: type[RocketMQError], words: str
) -> None:
    it = Sick(BAD)
    illness(it.bad)
    with pytest.raises(kind, match=words) as caught:
        await it.route_within(TIMEOUT_S + 0.1)
    assert BAD in str(caught.value)
    await it.stop()


async def test_a_black_hole_costs_half_a_second_once() -> None:
    it = Sick()
    it.black_holes = {BAD}
    assert await it.route_within(PATIENCE_S) is not None
    assert await it.route_within(0.0) is not None
    await it.stop()


async def test_a_black_hole_alone_costs_the_connect_time_out() -> None:
    it = Sick(BAD)
    it.black_holes = {BAD}
    with pytest.raises(ConnectionFailed, match="no connection within 3 s"):
        await it.route_within(CONNECT_TIMEOUT_S)
    await it.stop()


async def test_one_that_connects_slowly_is_waited_for_when_the_others_are_dead() -> None:
    it = Sick("dead:1", NAMESRV)
    opened = asyncio.Event()
    connect = it._connect

    async def slowly(address: str, receiver: asyncio.Protocol) -> ScriptedStream:
        if address == NAMESRV:
            await opened.wait()
        return await connect(address, receiver)

    it._connect = slowly  # type: ignore[method-assign]
    asking = asyncio.create_task(it.servers.route("orders"))
    await settle()
    await advance_async(it.clock, 2.0)
    assert not asking.done()
    opened.set()
    assert await asking is not None
    await it.stop()


async def test_callers_at_the_same_time_all_move_on_to_the_good_one() -> None:
    it = Sick()
    it.bad.silent = True
    asking = [asyncio.create_task(it.servers.route("orders")) for _ in range(4)]
    await settle()
    await advance_async(it.clock, TIMEOUT_S)
    assert all(await asyncio.gather(*asking))
    before = len(it.bad.requests)
    assert await it.route_within(0.1) is not None
    assert len(it.bad.requests) == before
    await it.stop()


async def test_when_all_are_ill_the_error_has_every_cause() -> None:
    it = Sick("dead:1", BAD)
    it.bad.silent = True
    with pytest.raises(RequestTimeout) as caught:
        await it.route_within(TIMEOUT_S + 0.1)
    assert "dead:1: nobody listens" in str(caught.value)
    assert f"{BAD} did not answer" in str(caught.value)
    await it.stop()


async def test_at_the_start_all_causes_are_told_and_what_to_do() -> None:
    it = Sick("dead:1", "dead:2")
    with pytest.raises(ConnectionFailed) as caught:
        await it.servers.connect()
    assert "dead:1" in str(caught.value)
    assert "dead:2" in str(caught.value)
    assert "NAMESRV_ADDR" in str(caught.value)


async def test_an_unknown_topic_is_no_failure() -> None:
    it = Sick(NAMESRV)
    assert await it.servers.route("unknown") is None
    assert await it.servers.broker_names() == ["broker-a"]
    assert await it.servers.clusters() == {"DefaultCluster"}
    await it.stop()


def empty(peer: ScriptedPeer) -> None:
    peer.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda r: r.reply(17, "no route"))


async def test_one_that_was_started_again_does_not_hide_a_topic() -> None:
    it = Sick()
    empty(it.bad)
    assert await it.route_within(0.1) is not None
    asked = len(it.bad.requests)
    assert await it.route_within(0.1) is not None
    assert len(it.bad.requests) == asked == 1, "the one that knew it is asked first"
    await it.stop()


async def test_a_topic_that_no_name_server_knows_is_missing_though_one_is_ill() -> None:
    it = Sick(NAMESRV, BAD)
    empty(it.cluster.network.listen(NAMESRV))
    refused(it.bad)
    assert await it.route_within(0.1) is None
    assert it.bad.connect_count == 1
    await it.stop()
