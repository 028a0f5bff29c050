"""Replicas of one broker whose endpoints forward calls: a client of one that follows, at failover.

Its transaction is open while the lead goes over; whoever leads then asks it how it ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.record import decode_messages
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from tests.broker.forwarding.cluster_rig import TOPIC, Endpoint, open_endpoint
from tests.broker.grpc.sending_rig import ID, half, message
from tests.broker.grpc.session_rig import publishing, resource
from tests.broker.replication.replica_rig import ReplicaSet, replica_set
from tests.support.patience import LIMIT_S, until

pytestmark = pytest.mark.timing

BEAT_S = 0.2


class Producer:
    """A client that opens its stream again whenever it ends, and beats."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.asked: asyncio.Queue[schema_pb2.RecoverOrphanedTransactionCommand] = asyncio.Queue()
        self.is_settled = asyncio.Event()

    async def listen(self) -> None:
        while True:
            stream = self.endpoint.telemetry()
            try:
                await stream.write(schema_pb2.TelemetryCommand(settings=publishing(TOPIC)))
                async for command in stream:
                    if command.HasField("settings"):
                        self.is_settled.set()
                    elif command.HasField("recover_orphaned_transaction_command"):
                        self.asked.put_nowait(command.recover_orphaned_transaction_command)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await asyncio.sleep(BEAT_S)

    async def beat(self) -> None:
        while True:
            await self.succeeds("Heartbeat", schema_pb2.HeartbeatRequest())
            await asyncio.sleep(BEAT_S)

    async def next_asked(self) -> schema_pb2.RecoverOrphanedTransactionCommand:
        return await asyncio.wait_for(self.asked.get(), LIMIT_S)

    async def succeeds(self, name: str, request: Any) -> Any:
        """The answer of a call, or None where it fails."""
        try:
            answer = await self.endpoint.call(name, request)
        except grpc.aio.AioRpcError:
            return None
        return answer if answer.status.code == Code.OK else None

    async def send(self, sent: schema_pb2.Message) -> None:
        request = schema_pb2.SendMessageRequest(messages=[sent])
        await until(lambda: self.succeeds("SendMessage", request), "a send")

    async def commit(self, asked: schema_pb2.RecoverOrphanedTransactionCommand) -> None:
        request = schema_pb2.EndTransactionRequest(
            topic=resource(TOPIC),
            message_id=ID,
            transaction_id=asked.transaction_id,
            resolution=schema_pb2.COMMIT,
            source=schema_pb2.SOURCE_SERVER_CHECK,
        )
        await until(lambda: self.succeeds("EndTransaction", request), "its end")


@asynccontextmanager
async def producer_at(replicas: ReplicaSet, number: int) -> AsyncGenerator[Producer]:
    """A producer of the topic at one replica's endpoint."""
    leader = replicas.leader()
    assert leader is not None
    topic = TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4)
    replicas.replicas[leader].life.parts.topics.update(topic)
    address = replicas.replicas[number].life.grpc_address
    assert address is not None
    async with open_endpoint(f"127.0.0.1:{address[1]}") as endpoint:
        producer = Producer(endpoint)
        asked = schema_pb2.QueryRouteRequest(topic=resource(TOPIC))
        route = await until(lambda: producer.succeeds("QueryRoute", asked), "a route")
        places = {
            (queue.broker.name, queue.broker.endpoints.addresses[0].port)
            for queue in route.message_queues
        }
        assert places == {("broker-a", address[1])}
        tasks = [asyncio.ensure_future(work()) for work in (producer.listen, producer.beat)]
        try:
            await asyncio.wait_for(producer.is_settled.wait(), LIMIT_S)
            yield producer
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def bodies(replicas: ReplicaSet) -> list[bytes]:
    """What the master's readers see."""
    leader = replicas.leader()
    if leader is None:
        return []
    store = replicas.replicas[leader].life.parts.store
    return sorted(
        decoded.body
        for queue_id in range(4)
        for offset in range(0, store.max_offset(TOPIC, queue_id), 32)
        for view in store.get_message(TOPIC, queue_id, offset, 32).views
        for decoded in decode_messages(bytes(view))
    )


def open_set(folder: Path, **config: Any) -> Any:
    often = {"transaction_check_interval": 200, "transaction_time_out": 200}
    return replica_set(folder, grpc_listen_port=0, grpc_proxy_mode="CLUSTER", **often, **config)


@pytest.mark.slow
async def test_the_replica_of_the_endpoint_comes_to_lead(tmp_path: Path) -> None:
    async with open_set(tmp_path) as replicas:
        for number in (1, 2):
            await replicas.start(number)
        first = await replicas.led()
        await replicas.in_sync(1, 2)
        async with producer_at(replicas, 3 - first) as producer:
            await producer.send(message(b"before"))
            await producer.send(half(b"half"))
            assert (await producer.next_asked()).transaction_id == f"{ID}@broker-a"
            await replicas.kill(first)
            await until(lambda: replicas.leader() == 3 - first, "its replica leads")
            while not producer.asked.empty():
                producer.asked.get_nowait()
            await producer.commit(await producer.next_asked())
            await producer.send(message(b"after"))
            await until(lambda: bodies(replicas) == [b"after", b"before", b"half"])


@pytest.mark.slow
async def test_a_third_replica_comes_to_lead(tmp_path: Path) -> None:
    async with open_set(tmp_path) as replicas:
        first = await replicas.three()
        near, far = (number for number in (1, 2, 3) if number != first)
        async with producer_at(replicas, near) as producer:
            await producer.send(half(b"half"))
            assert (await producer.next_asked()).transaction_id == f"{ID}@broker-a"
            await replicas.replicas[first].admin.switch_over(replicas.replicas[far].driver.me)
            await until(lambda: replicas.leader() == far, "the third leads")
            while not producer.asked.empty():
                producer.asked.get_nowait()
            await producer.commit(await producer.next_asked())
            await producer.send(message(b"after"))
            await until(lambda: bodies(replicas) == [b"after", b"half"])


@pytest.mark.slow
async def test_what_was_sent_by_one_that_follows_outlives_its_master(tmp_path: Path) -> None:
    async with open_set(tmp_path) as replicas:
        first = await replicas.three()
        near = min({1, 2, 3} - {first})
        async with producer_at(replicas, near) as producer:
            acknowledged: list[bytes] = []

            async def send_on(number: int) -> None:
                while len(acknowledged) < 300 or replicas.leader() in (None, first):
                    body = b"%d-%d" % (number, len(acknowledged))
                    sent = schema_pb2.SendMessageRequest(messages=[message(body)])
                    if await producer.succeeds("SendMessage", sent):
                        acknowledged.append(body)
                    else:
                        await asyncio.sleep(0.05)

            senders = [asyncio.ensure_future(send_on(number)) for number in range(4)]
            await until(lambda: len(acknowledged) > 100)
            await replicas.kill(first)
            await asyncio.gather(*senders)
            await until(lambda: set(acknowledged) <= set(bodies(replicas)), "all messages")


@pytest.mark.slow
async def test_a_topic_that_is_asked_for_at_one_that_follows_is_made_by_its_master(
    tmp_path: Path,
) -> None:
    async with open_set(tmp_path, grpc_auto_create_topic_enable=True) as replicas:
        for number in (1, 2):
            await replicas.start(number)
        first = await replicas.led()
        await replicas.in_sync(1, 2)
        other = 3 - first
        async with producer_at(replicas, other) as producer:
            asked = schema_pb2.QueryRouteRequest(topic=resource("Fresh"))
            route = await until(lambda: producer.succeeds("QueryRoute", asked), "a route")
            assert [queue.broker.name for queue in route.message_queues] == ["broker-a"] * 8
            address = replicas.replicas[other].life.grpc_address
            assert address is not None
            ports = {queue.broker.endpoints.addresses[0].port for queue in route.message_queues}
            assert ports == {address[1]}, "not the master's"
            assert replicas.replicas[first].life.parts.topics.get("Fresh") is not None
