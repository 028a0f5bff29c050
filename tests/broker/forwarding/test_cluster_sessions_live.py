"""Clients of two brokers behind one endpoint, over real ports: their lives, and what ends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.grpc.peer import GrpcPeer
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from tests.broker.forwarding.cluster_rig import (
    GROUP,
    TOPIC,
    Cluster,
    Endpoint,
    open_cluster,
    open_endpoint,
)
from tests.broker.grpc.sending_rig import ID, half, message
from tests.broker.grpc.session_rig import publishing, resource, subscription
from tests.support.live_broker import live_broker, namesrv_of
from tests.support.patience import LIMIT_S, until

pytestmark = pytest.mark.timing


class Telemetry:
    """A client's stream of telemetry."""

    def __init__(self, client: Endpoint) -> None:
        self.call = client.telemetry()

    async def settle(self, settings: schema_pb2.Settings) -> schema_pb2.TelemetryCommand:
        await self.says(settings=settings)
        return await self.next()

    async def says(self, **command: Any) -> None:
        await self.call.write(schema_pb2.TelemetryCommand(**command))

    async def next(self) -> schema_pb2.TelemetryCommand:
        command: schema_pb2.TelemetryCommand = await asyncio.wait_for(self.call.read(), LIMIT_S)
        return command


def consumer(broker: BrokerController) -> GrpcPeer | None:
    """The only client of the group."""
    for peer in broker.parts.consumers.members(GROUP):
        assert isinstance(peer, GrpcPeer)
        return peer
    return None


@asynccontextmanager
async def two_brokers(root: Path, **config: Any) -> AsyncGenerator[tuple[Cluster, Endpoint]]:
    """Two brokers, and a client of the first one's endpoint."""
    async with open_cluster(root, "CLUSTER", "LOCAL", **config) as cluster, cluster.client() as one:
        yield cluster, one


async def halves(client: Endpoint, count: int) -> None:
    """Send halves of transactions, each to the next broker."""
    for number in range(count):
        await client.send_one(half(f"half-{number}".encode(), f"{ID[:-1]}{number}"))


async def test_each_broker_asks_about_its_transactions(tmp_path: Path) -> None:
    often: dict[str, Any] = {"transaction_check_interval": 200, "transaction_time_out": 200}
    async with two_brokers(tmp_path, **often) as (cluster, client):
        stream = Telemetry(client)
        assert (await stream.settle(publishing(TOPIC))).HasField("settings")
        await halves(client, 2)
        asked: dict[str, str] = {}
        while len(asked) < 2:
            question = (await stream.next()).recover_orphaned_transaction_command
            asked[question.transaction_id] = question.message.system_properties.message_id
        assert sorted(each.partition("@")[2] for each in asked) == ["broker-a", "broker-b"]
        for transaction_id, message_id in asked.items():
            assert await client.end(transaction_id, message_id) == Code.OK
        for number in (0, 1):
            await until(lambda at=number: cluster.bodies(at), "what was committed")


async def test_a_client_is_asked_by_another_broker(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (cluster, client):
        stream = Telemetry(client)
        await stream.settle(subscription(TOPIC, group=GROUP))
        peer = await until(lambda: consumer(cluster.brokers[1]), "the client at the other broker")
        assert peer is not None and peer.client_id == "host@1@0@abc"
        assert peer.remote_address.startswith("127.0.0.1:")
        fields = {"consumerGroup": GROUP, "clientId": peer.client_id, "jstackEnable": "true"}
        question = RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
        asking = asyncio.ensure_future(peer.call(question, LIMIT_S))
        nonce = (await stream.next()).print_thread_stack_trace_command.nonce
        stacks = schema_pb2.ThreadStackTrace(nonce=nonce, thread_stack_trace="main: waits")
        await stream.says(thread_stack_trace=stacks, status=schema_pb2.Status(code=Code.OK))
        assert b"main: waits" in (await asking).body


async def test_what_a_client_holds_is_free_when_it_leaves(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (cluster, client), cluster.client(0, "other@1") as other:
        await Telemetry(client).settle(subscription(TOPIC, group=GROUP))
        await until(lambda: consumer(cluster.brokers[1]), "the client at the other broker")
        await client.send(message(b"1"))
        await client.send(message(b"2"))
        held: list[schema_pb2.Message] = []

        async def holds_one() -> bool:
            held.extend(await client.take("broker-b", auto_renew=True))
            return bool(held)

        await until(holds_one)
        assert await other.take("broker-b") == []
        asked = schema_pb2.HeartbeatRequest(group=resource(GROUP))
        assert (await client.call("Heartbeat", asked)).status.code == Code.OK
        left = schema_pb2.NotifyClientTerminationRequest(group=resource(GROUP))
        assert (await client.call("NotifyClientTermination", left)).status.code == Code.OK
        peer = consumer(cluster.brokers[1])
        assert peer is not None and peer.client_id == "other@1", "who has received as well"
        assert [each.body for each in await other.taken("broker-b")] == [held[0].body]


@pytest.mark.slow
async def test_a_broker_that_starts_again_knows_the_client(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, "CLUSTER") as cluster, cluster.client() as client:
        config: dict[str, Any] = {
            "broker_name": "broker-b",
            "namesrv_addr": namesrv_of(cluster.brokers[0]),
            "grpc_listen_port": 0,
        }
        stream = Telemetry(client)
        topic = TopicConfig(topic_name="Far", read_queue_nums=1, write_queue_nums=1)
        async with live_broker(tmp_path / "b", **config) as broker:
            broker.parts.topics.update(topic)
            await until(lambda: is_known(cluster.brokers[0], "Far"), "the topic")
            await stream.settle(subscription("Far", group=GROUP))
            await until(lambda: consumer(broker), "the client")
        async with live_broker(tmp_path / "b", **config) as broker:

            async def is_known_again() -> bool:
                await client.call("Heartbeat", schema_pb2.HeartbeatRequest(group=resource(GROUP)))
                return consumer(broker) is not None

            await until(is_known_again, "the client, at a new address")
            await stream.call.write(
                schema_pb2.TelemetryCommand(settings=subscription("Far", group=GROUP))
            )
            assert (await stream.next()).HasField("settings")
            await stream.call.done_writing()
            await until(lambda: not open_calls(broker), "the end of its stream")


def is_known(broker: BrokerController, topic: str) -> bool:
    assert broker.namesrv is not None
    return broker.namesrv.routes.topic_route(topic) is not None


def open_calls(broker: BrokerController) -> int:
    assert broker.parts.grpc is not None
    return broker.parts.grpc.open_calls.count


async def test_a_slave_hands_everything_to_its_master(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, "LOCAL") as cluster:
        (master,) = cluster.brokers
        slave: dict[str, Any] = {"broker_role": "SLAVE", "broker_id": 1}
        mode: dict[str, Any] = {"grpc_listen_port": 0, "grpc_proxy_mode": "CLUSTER"}
        address = namesrv_of(master)
        async with live_broker(tmp_path / "s", namesrv_addr=address, **slave, **mode) as broker:
            assert broker.grpc_address is not None
            async with open_endpoint(f"127.0.0.1:{broker.grpc_address[1]}") as client:
                stream = Telemetry(client)
                answer = await stream.settle(subscription(TOPIC, group=GROUP))
                assert answer.settings.subscription.receive_batch_size
                await until(lambda: consumer(master), "the client at the master")
                await client.send_one(message(b"1"))
                (taken,) = await client.taken("broker-a")
                assert (await client.done([taken])).status.code == Code.OK
                assert cluster.mark(0) == 1
