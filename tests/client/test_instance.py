"""Client: its name, its heartbeats, its settings, its end."""

from __future__ import annotations

import asyncio
import re
from random import Random
from typing import Any

import pytest

from skylarkmq.client import (
    Admin,
    Client,
    ConnectionFailed,
    Consumer,
    IllegalState,
    Message,
    Producer,
)
from skylarkmq.client.config import ClientConfig, ProducerConfig
from skylarkmq.client.consumer.config import ConsumerConfig
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.remoting_command import RemotingCommand
from tests.support.fake_cluster import FakeCluster
from tests.support.manual_clock import ManualClock, advance_async, settle


def client_of(cluster: FakeCluster, clock: ManualClock, **settings: Any) -> Client:
    settings.setdefault("codec", "json")
    return Client(
        cluster.namesrv, network=cluster.network, clock=clock, random=Random(1), **settings
    )


async def test_the_client_id_tells_host_process_and_unit() -> None:
    for settings, expected in (
        ({}, r"192\.0\.2\.1@\d+#[0-9a-f]+"),
        ({"client_ip": "10.1.2.3", "instance_name": "i", "unit_name": "u"}, "10.1.2.3@i@u"),
    ):
        client = client_of(FakeCluster(), ManualClock(), **settings)
        async with client:
            assert re.fullmatch(expected, client.client_id)
            address = "C0000201" if not settings else "0A010203"
            assert services_of(client).unique_ids.next().startswith(address)


async def test_two_clients_of_one_process_differ() -> None:
    cluster, clock = FakeCluster(), ManualClock()
    clients = [Client(cluster.namesrv, network=cluster.network, clock=clock) for _ in "ab"]
    for client in clients:
        await client.start()
    assert len({client.client_id for client in clients}) == 2
    assert len({services_of(client).unique_ids.next() for client in clients}) == 2
    for client in clients:
        await client.stop()
    assert clock.pending_count == 0


async def test_the_address_map_decides_what_is_dialled() -> None:
    cluster, clock = FakeCluster(), ManualClock()
    broker = cluster.broker("broker-a", {"orders": 1})
    cluster.network.listen("tunnel:1", broker)
    cluster.network._peers.pop(broker.address)
    mapping = {broker.address: "tunnel:1"}
    for address_map in (mapping, lambda address: mapping.get(address, address)):
        async with (
            client_of(cluster, clock, address_map=address_map) as client,
            Producer(client=client) as producer,
        ):
            await producer.send(Message("orders", b"x"))
    assert len(broker.bodies("orders")) == 2


async def test_an_address_map_that_fails_is_the_error_of_the_send() -> None:
    cluster, clock = FakeCluster(), ManualClock()
    cluster.broker("broker-a", {"orders": 1})

    def mapped(address: str) -> str:
        raise KeyError(address)

    async with (
        client_of(cluster, clock, address_map=mapped) as client,
        Producer(client=client) as producer,
    ):
        with pytest.raises(IllegalState, match="address_map failed for broker-a"):
            await producer.send(Message("orders", b"x"))


async def test_a_silent_broker_loses_its_connection_and_a_slow_one_keeps_it() -> None:
    cluster, clock = FakeCluster(), ManualClock()
    broker = cluster.broker("broker-a", {"orders": 1})
    async with client_of(cluster, clock) as client, Producer(client=client) as producer:
        await producer.send(Message("orders", b"x"))
        await advance_async(clock, 1)
        broker.silent = True
        services_of(client).beat_wanted.set()
        await advance_async(clock, 2)
        for stream in broker.streams:  # something else still comes: slow, not gone
            stream.say(
                RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, oneway=True)
            )
        await advance_async(clock, 2)
        assert broker.connect_count == 1
        assert broker.streams
        services_of(client).beat_wanted.set()
        await advance_async(clock, 4)
        assert not broker.streams
        broker.silent = False
        await producer.send(Message("orders", b"y"))
        assert broker.connect_count == 2


async def test_heartbeats_come_each_interval_and_wishes_are_merged() -> None:
    cluster, clock = FakeCluster(), ManualClock()
    broker = cluster.broker("broker-a", {"orders": 1})
    async with (
        client_of(cluster, clock, heartbeat_interval=10) as client,
        Producer(client=client, group="pg") as producer,
    ):
        await producer.send(Message("orders", b"x"))
        await advance_async(clock, 1)
        assert len(broker.heartbeats) == 1
        for _ in range(5):
            services_of(client).beat_wanted.set()
        await advance_async(clock, 1)
        assert len(broker.heartbeats) == 2
        await advance_async(clock, 30)
        assert len(broker.heartbeats) == 5


async def test_unknown_pushes_are_left_unanswered() -> None:
    cluster, clock = FakeCluster(), ManualClock()
    broker = cluster.broker("broker-a", {"orders": 1})
    async with client_of(cluster, clock) as client, Producer(client=client) as producer:
        await producer.send(Message("orders", b"x"))
        before = len(broker.requests)
        broker.push(RemotingCommand.request(31_999))
        await settle()
        assert len(broker.requests) == before
        assert services_of(client).remoting.ready(broker.address) is not None


async def test_start_may_be_tried_again_and_close_is_final() -> None:
    cluster, clock = FakeCluster(), ManualClock()
    cluster.name_server.connect_error = ConnectionRefusedError("down")
    client = client_of(cluster, clock)
    with pytest.raises(ConnectionFailed):
        await client.start()
    with pytest.raises(IllegalState, match="not started"):
        _ = services_of(client)
    cluster.name_server.connect_error = None
    clock.advance(5)
    await asyncio.gather(client.start(), client.start())
    await client.stop()
    await client.stop()
    with pytest.raises(IllegalState, match="has stopped"):
        await client.start()
    assert clock.pending_count == 0
    assert cluster.name_server.streams == []


def test_name_servers_are_parted_by_semicolons_or_commas() -> None:
    assert ClientConfig("a:1; b:2,c:3").name_servers == ["a:1", "b:2", "c:3"]


def test_the_environment_names_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "env:1")
    assert Client()._config.name_servers == ["env:1"]
    monkeypatch.delenv("NAMESRV_ADDR")
    assert Client()._config.name_servers == ["127.0.0.1:9876"]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ClientConfig(" ; "),
        lambda: ClientConfig("a:1", codec="xml"),  # type: ignore[arg-type]
        lambda: ClientConfig("a:1", request_timeout=0),
        lambda: ProducerConfig(retries=-1),
        lambda: ProducerConfig(max_in_flight=0),
        lambda: ProducerConfig(max_message_size=17 * 1024 * 1024),
        lambda: ProducerConfig(max_in_flight_bytes=1),
        lambda: ConsumerConfig(group="g", batch_size=0),
        lambda: ConsumerConfig(group="g", ack="never"),  # type: ignore[arg-type]
        lambda: Producer(namesrv_addr="a:1", compression="rar"),  # type: ignore[arg-type]
        lambda: Producer(namesrv_addr="a:1", group="no blank"),
    ],
)
def test_settings_are_checked(wrong: Any) -> None:
    with pytest.raises(ValueError):
        wrong()


@pytest.mark.parametrize("kind", [Producer, Admin, lambda **to: Consumer(group="g", **to)])
async def test_a_client_is_shared_or_its_own(kind: Any) -> None:
    with pytest.raises(ValueError, match="client= or namesrv_addr=, not both"):
        kind(client=Client("a:1"), namesrv_addr="b:1")
    with pytest.raises(TypeError, match="go into namesrv_addr="):
        kind(client="a:1")


async def test_an_address_in_the_place_of_a_topic_is_told_from_one() -> None:
    with pytest.raises(ValueError, match="go into namesrv_addr="):
        Consumer("127.0.0.1:9876", "orders", group="g")
