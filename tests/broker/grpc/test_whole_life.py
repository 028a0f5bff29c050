"""A client of RocketMQ 5 from its start to its end, over a broker's port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from skylarkmq.broker.controller import BrokerController
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from tests.broker.grpc.rig import METADATA, Client
from tests.broker.grpc.session_rig import GROUP, TOPIC, publishing, resource, subscription
from tests.support.heartbeats import consumer_data, heartbeat
from tests.support.heartbeats import subscription as wanted
from tests.support.live_broker import live_broker
from tests.support.patience import LIMIT_S, until
from tests.support.raw_client import RawClient, pull_fields, send_fields

pytestmark = pytest.mark.timing


def metadata(client_id: str) -> Any:
    return (("x-mq-client-id", client_id), *METADATA[1:])


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerController]:
    async with live_broker(tmp_path, grpc_listen_port=0) as controller:
        controller.parts.topics.update(
            TopicConfig(topic_name=TOPIC, read_queue_nums=2, write_queue_nums=2)
        )
        yield controller


@pytest.fixture
async def channel(broker: BrokerController) -> AsyncIterator[grpc.aio.Channel]:
    assert broker.grpc_address is not None
    async with grpc.aio.insecure_channel(f"127.0.0.1:{broker.grpc_address[1]}") as opened:
        yield opened


class Sdk(Client):
    """Does what an SDK does, in its order."""

    def __init__(self, channel: grpc.aio.Channel, client_id: str, port: int) -> None:
        super().__init__(channel, metadata(client_id))
        self.endpoints = schema_pb2.Endpoints(
            scheme=schema_pb2.IPv4, addresses=[schema_pb2.Address(host="127.0.0.1", port=port)]
        )
        self.stream: Any = None

    async def start(self, settings: schema_pb2.Settings) -> schema_pb2.Settings:
        """The settings that come back."""
        request = schema_pb2.QueryRouteRequest(topic=resource(TOPIC), endpoints=self.endpoints)
        route = await self.call("QueryRoute", request)
        assert [queue.id for queue in route.message_queues] == [0, 1]
        assert route.message_queues[0].broker.endpoints == self.endpoints
        self.stream = self.telemetry()
        await self.stream.write(schema_pb2.TelemetryCommand(settings=settings))
        command: schema_pb2.TelemetryCommand = await self.command()
        assert command.status.code == Code.OK
        return command.settings

    async def command(self) -> schema_pb2.TelemetryCommand:
        read: Any = await asyncio.wait_for(self.stream.read(), LIMIT_S)
        assert isinstance(read, schema_pb2.TelemetryCommand), read
        return read

    async def stop(self) -> None:
        await self.call("NotifyClientTermination", schema_pb2.NotifyClientTerminationRequest())
        await self.stream.done_writing()
        last = await asyncio.wait_for(self.stream.read(), LIMIT_S)
        assert not isinstance(last, schema_pb2.TelemetryCommand)

    async def received(self) -> list[schema_pb2.Message]:
        request = schema_pb2.ReceiveMessageRequest(
            group=resource(GROUP),
            message_queue=schema_pb2.MessageQueue(topic=resource(TOPIC), id=-1),
            batch_size=32,
        )
        request.invisible_duration.seconds = 30
        request.long_polling_timeout.nanos = 100_000_000
        answers = [answer async for answer in self.receive(request)]
        (status,) = [each.status for each in answers if each.HasField("status")]
        if status.code not in (Code.OK, Code.MESSAGE_NOT_FOUND):
            raise AssertionError(status)
        return [each.message for each in answers if each.HasField("message")]


def sdk(broker: BrokerController, channel: grpc.aio.Channel, client_id: str) -> Sdk:
    assert broker.grpc_address is not None
    return Sdk(channel, client_id, broker.grpc_address[1])


async def test_from_the_start_to_the_end(
    broker: BrokerController, channel: grpc.aio.Channel
) -> None:
    parts = broker.parts
    producer = sdk(broker, channel, "p@1")
    settings = await producer.start(publishing(TOPIC))
    assert settings.publishing.max_body_size == 4 << 20
    consumer = sdk(broker, channel, "c@1")
    await consumer.start(subscription())
    request = schema_pb2.QueryAssignmentRequest(topic=resource(TOPIC), group=resource(GROUP))
    answer = await consumer.call("QueryAssignment", request)
    assert [each.message_queue.id for each in answer.assignments] == [-1]
    assert await consumer.received() == []
    message = schema_pb2.Message(topic=resource(TOPIC), body=b"hello")
    message.system_properties.message_id = "01" + "0" * 32
    sent = await producer.call("SendMessage", schema_pb2.SendMessageRequest(messages=[message]))
    assert sent.status.code == Code.OK
    (received,) = await consumer.received()
    assert received.body == b"hello"
    assert list(parts.producers.groups) == [TOPIC]
    assert [each.client_id for each in parts.consumers.clients(GROUP).values()] == ["c@1"]
    for client in (producer, consumer):
        beat = schema_pb2.HeartbeatRequest(client_type=schema_pb2.PRODUCER)
        assert (await client.call("Heartbeat", beat)).status.code == Code.OK
        await client.stop()
    assert not parts.producers.groups
    assert parts.consumers.group(GROUP) is None


async def test_an_administrator_asks_a_client(
    broker: BrokerController, channel: grpc.aio.Channel
) -> None:
    consumer = sdk(broker, channel, "c@1")
    await consumer.start(subscription())
    admin = await RawClient.open(broker.listen_address)
    fields = {"consumerGroup": GROUP, "clientId": "c@1", "jstackEnable": "true"}
    asking = asyncio.ensure_future(admin.call(RequestCode.GET_CONSUMER_RUNNING_INFO, fields))
    command = await consumer.command()
    stacks = schema_pb2.ThreadStackTrace(
        nonce=command.print_thread_stack_trace_command.nonce, thread_stack_trace="main"
    )
    await consumer.stream.write(schema_pb2.TelemetryCommand(thread_stack_trace=stacks))
    assert json.loads((await asking).body)["jstack"] == "main"
    await admin.close()


async def test_the_group_is_consumed_in_one_way_at_a_time(
    broker: BrokerController, channel: grpc.aio.Channel
) -> None:
    old = await RawClient.open(broker.listen_address)
    await old.call(RequestCode.SEND_MESSAGE_V2, send_fields(TOPIC), b"0")
    beat = heartbeat("old@1", consumer_data(GROUP, wanted(TOPIC)))
    assert (await old.call(RequestCode.HEART_BEAT, {}, beat)).code == ResponseCode.SUCCESS
    consumer = sdk(broker, channel, "c@1")
    await consumer.start(subscription())
    with pytest.raises(AssertionError, match="has members that pull"):
        await consumer.received()
    request = schema_pb2.QueryAssignmentRequest(topic=resource(TOPIC), group=resource(GROUP))
    answer = await consumer.call("QueryAssignment", request)
    assert answer.status.code == Code.FORBIDDEN
    assert "old@1" in answer.status.message
    await old.call(RequestCode.UNREGISTER_CLIENT, {"clientID": "old@1", "consumerGroup": GROUP})
    assert len(await consumer.received()) == 1
    refused = await old.call(RequestCode.HEART_BEAT, {}, beat)
    assert refused.code == ResponseCode.NO_PERMISSION
    fields = {**pull_fields(TOPIC, sysFlag="0"), "consumerGroup": GROUP}
    assert (await old.call(RequestCode.PULL_MESSAGE, fields)).code == ResponseCode.NO_PERMISSION
    await old.close()


async def test_a_lost_stream_is_opened_again(
    broker: BrokerController, channel: grpc.aio.Channel
) -> None:
    consumer = sdk(broker, channel, "c@1")
    await consumer.start(subscription())
    (peer,) = broker.parts.consumers.members(GROUP)
    consumer.stream.cancel()
    await until(lambda: bool(peer.paused_since_s))
    assert broker.parts.consumers.members(GROUP) == [peer]
    await consumer.start(subscription())
    assert not peer.paused_since_s
    await consumer.stop()
