"""What a started client knows: what its brokers are, that one came back, whose namespace it is."""

from __future__ import annotations

import asyncio
import socket
from random import Random
from typing import Any, Literal

import pytest

from skylarkmq.client import Client, ConnectionFailed
from skylarkmq.client.config import Codec
from skylarkmq.client.instance import services_of
from skylarkmq.client.observe.hooks import ClientHook
from skylarkmq.protocol.codes import MQVersion
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.connection import Peer
from skylarkmq.remoting.stream import AsyncioNetwork
from tests.support.fake_cluster import FakeBroker, FakeCluster
from tests.support.manual_clock import ManualClock, settle
from tests.support.scripted_stream import ScriptedStream


def client_of(cluster: FakeCluster, **settings: Any) -> Client:
    settings.setdefault("clock", ManualClock())
    return Client(cluster.namesrv, network=cluster.network, random=Random(1), **settings)


def claim(broker: FakeBroker, version: int) -> None:
    """Let the broker say that it is of that release."""
    respond = broker.respond

    def aged(request: RemotingCommand, stream: ScriptedStream) -> Any:
        answer = respond(request, stream)
        if isinstance(answer, RemotingCommand):
            answer.version = version
        return answer

    broker.respond = aged  # type: ignore[method-assign]


# What a broker is


@pytest.mark.parametrize("codec", ["auto", "json", "rocketmq"])
@pytest.mark.parametrize(
    ("version", "ours", "has_timers", "release"),
    [
        (MQVersion.V4_9_8, False, False, "RocketMQ 4.9.8"),
        (MQVersion.V5_3_3, False, True, "RocketMQ 5.3.3"),
        (480, False, True, "RocketMQ 5.3.3 or later"),
        (0, False, False, "RocketMQ unknown or later"),
        (MQVersion.V4_9_8, True, True, "SkylarkMQ"),
    ],
)
async def test_a_broker_is_asked_what_it_is(
    codec: Codec, version: int, *, ours: bool, has_timers: bool, release: str
) -> None:
    cluster = FakeCluster()
    broker = cluster.broker("broker-a", {"orders": 1})
    broker.echo_codec = ours
    claim(broker, version)
    async with client_of(cluster, codec=codec) as client:
        services = services_of(client)
        assert services.known_peer(broker.address) is None
        peer = await services.peer(broker.address)
        assert peer == Peer(version, ours)
        assert (peer.has_timers, peer.release) == (has_timers, release)
        assert services.known_peer(broker.address) == peer
        assert (await services.peer(broker.address)).version == version
        (asked,) = broker.requests
        assert asked.serialize_type == SerializeType.JSON, "which brokers of ours look for"
        (question,) = broker.heartbeats
        assert question.client_id == client.client_id
        assert not question.consumer_data_set
        assert not question.producer_data_set
        connection = services.remoting.ready(broker.address)
        assert connection is not None
        kinds = {"auto": SerializeType.MSGPACK if ours else SerializeType.JSON}
        expected = kinds.get(codec, SerializeType[codec.upper()] if codec != "auto" else None)
        assert connection.serialize_type == expected, "the question changes no codec"


async def test_with_the_offer_under_way_the_question_is_asked_all_the_same() -> None:
    cluster = FakeCluster()
    broker = cluster.broker("broker-a", {"orders": 1})
    broker.echo_codec = True
    async with client_of(cluster) as client:
        connection = await services_of(client).remoting.connection(broker.address)
        broker.script = [None]
        first = asyncio.create_task(connection.call(RemotingCommand.request(15), 3.0))
        await settle()
        assert (await services_of(client).peer(broker.address)).ours
        first.cancel()


async def test_what_is_known_goes_with_the_connection() -> None:
    cluster = FakeCluster()
    broker = cluster.broker("broker-a", {"orders": 1})
    claim(broker, MQVersion.V5_3_3)
    async with client_of(cluster) as client:
        assert (await services_of(client).peer(broker.address)).has_timers
        claim(broker, MQVersion.V4_9_7)  # replaced by an older one
        broker.lose_all()
        await settle()
        assert services_of(client).known_peer(broker.address) is None
        assert not (await services_of(client).peer(broker.address)).has_timers


async def test_nobody_there_is_an_error() -> None:
    async with client_of(FakeCluster()) as client:
        with pytest.raises(ConnectionFailed, match="nobody listens"):
            await services_of(client).peer("away:10911")


# Connections that come back


class Returns(ClientHook):
    """Counts what came back."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def reconnected(self, peer_kind: Literal["broker", "namesrv"]) -> None:
        self.kinds.append(peer_kind)
        raise RuntimeError("a hook that fails changes nothing")


async def test_hooks_hear_of_connections_that_stand_again() -> None:
    cluster = FakeCluster()
    broker = cluster.broker("broker-a", {"orders": 1})
    async with client_of(cluster) as client:
        hook = Returns()
        services_of(client).hooks.append(hook)
        await services_of(client).peer(broker.address)
        await services_of(client).routes.refresh("orders")
        assert hook.kinds == [], "the first time is none"
        for peer in (broker, cluster.name_server):
            peer.lose_all()
        await settle()
        await services_of(client).peer(broker.address)
        await services_of(client).routes.refresh("orders")
        assert hook.kinds == ["broker", "namesrv"]


# Names


async def test_the_namespace_is_there_before_the_start_and_after() -> None:
    client = client_of(FakeCluster(), namespace="shop")
    assert client.namespace == "shop"
    async with client:
        assert services_of(client).namespace.wrap("orders") == "shop%orders"
    with pytest.raises(ValueError, match="is no namespace"):
        client_of(FakeCluster(), namespace="a%b")


async def test_a_host_name_serves_as_client_ip() -> None:
    async with client_of(FakeCluster(), client_ip="pod-7", instance_name="i") as client:
        assert client.client_id == "pod-7@i"
        assert services_of(client).unique_ids.next().startswith("C0000201"), (
            "this side's real address"
        )


# The real network


class Silent:
    """A receiver for connections that only stand."""

    def data_received(self, data: bytes) -> None: ...
    def connection_lost(self, error: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


async def test_host_names_are_resolved_at_each_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver: asyncio.Protocol = Silent()
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    asked: list[str] = []
    loop = asyncio.get_running_loop()

    async def resolve(host: str, port: int, **_: object) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(loop, "getaddrinfo", resolve)
    for _ in range(2):
        stream = await AsyncioNetwork().connect(f"broker-a.example:{port}", receiver)
        assert stream.local_ip == "127.0.0.1"
        stream.abort()
    assert asked == ["broker-a.example"] * 2
    server.close()
