"""Messages of chance for every call of a live broker: a status each, no traceback, nothing kept."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import grpc
import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.broker.access.rpc_rights import RPCS
from skylarkmq.broker.controller import BrokerController
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from tests.broker.grpc.rig import METADATA, Client
from tests.support.live_broker import live_broker
from tests.support.patience import until

pytestmark = pytest.mark.timing

CALLS = 200
TEXTS = (
    "", "T", "G", "%RETRY%G", "%DLQ%G", "TBW102", "RMQ_SYS_TRACE_TOPIC", "SCHEDULE_TOPIC_XXXX",
    "a/b", "\x00", "é" * 300, "x" * 5000, "*", "a || b", "a > 1 AND", "s1.0.0.0.1.1",
    "s1.9.99999999999.-1.x.y", "0 1 2 3 4 5 6 7 8 9", "djEgYiBjIGQgZQ==",
    "01" * 17, "127.0.0.1", "\u202e", "\U0001f600" * 50,
)  # fmt: skip
NUMBERS = (0, 1, -1, 2, 7, 32, 1000, 2**31 - 1, -(2**31), 40402)
LONG_NUMBERS = (*NUMBERS, 2**63 - 1, -(2**63), 253402300799, 253402300800, 10**12)


def fill(chance: random.Random, message: Any) -> None:
    """Set fields of a message, each to something unpleasant or usual."""
    for field in message.DESCRIPTOR.fields:
        if field.full_name == "skylarkmq.v5.Resource.name" and chance.random() < 0.9:
            message.name = "T"  # topic and group
            continue
        if chance.random() < 0.25:
            continue
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            for _ in range(chance.randrange(3)):
                getattr(message, field.name)[chance.choice(TEXTS)] = chance.choice(TEXTS)
        elif inner is not None and field.is_repeated:
            for _ in range(chance.randrange(3)):
                fill(chance, getattr(message, field.name).add())
        elif inner is not None:
            getattr(message, field.name).SetInParent()
            fill(chance, getattr(message, field.name))
        else:
            values = {
                field.TYPE_STRING: TEXTS,
                field.TYPE_BYTES: (b"", b"body", bytes(5000)),
                field.TYPE_BOOL: (False, True),
                field.TYPE_FLOAT: (0.0, -1.0, 2.0, float("inf"), float("nan")),
                field.TYPE_INT64: LONG_NUMBERS,
                field.TYPE_INT32: NUMBERS,
                field.TYPE_ENUM: (0, 1, 2, 3, 4, 99, -1),
            }[field.type]
            if field.is_repeated:
                getattr(message, field.name).extend(chance.choices(values, k=2))
            else:
                setattr(message, field.name, chance.choice(values))


def written(chance: random.Random, name: str) -> bytes:
    """A request: mostly whole, sometimes cut or with a wrong byte."""
    request = getattr(schema_pb2, f"{name}Request")()
    fill(chance, request)
    data = bytearray(request.SerializeToString())
    if data and chance.random() < 0.1:
        data[chance.randrange(len(data))] = chance.randrange(256)
    if chance.random() < 0.05:
        del data[chance.randrange(len(data) + 1) :]
    return bytes(data)


async def told(client: Client, name: str, data: bytes) -> list[int]:
    """The status codes of an answer."""
    if name != "ReceiveMessage":
        return [(await client.call(name, data)).status.code]
    method = client.channel.unary_stream(f"/apache.rocketmq.v2.MessagingService/{name}")
    answer = method(data, metadata=METADATA, timeout=0.3)
    parts = [schema_pb2.ReceiveMessageResponse.FromString(part) async for part in answer]
    return [part.status.code for part in parts if part.HasField("status")]


@pytest.fixture
def errors(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO)
    yield caplog
    faults = [each for each in caplog.records if each.exc_info or each.levelno >= logging.ERROR]
    assert not faults, [each.getMessage() for each in faults]


@pytest.mark.parametrize("name", sorted(RPCS.keys() - {"Telemetry"}))
async def test_a_request_of_chance_gets_a_status(tmp_path: Path, name: str, errors: Any) -> None:
    chance = random.Random(name)
    known = {int(code) for code in Code} - {int(Code.UNSPECIFIED)}
    changes = {"grpc_listen_port": 0, "grpc_auto_create_topic_enable": True, "max_topics": 100}
    async with live_broker(tmp_path, **changes) as broker:
        async with channel_to(broker) as channel:
            client = Client(channel)
            await has_messages(client)
            for _ in range(CALLS):
                data = written(chance, name)
                try:
                    codes = await told(client, name, data)
                except grpc.aio.AioRpcError as error:
                    assert name == "ReceiveMessage", (error, data.hex())
                    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED, (error, data.hex())
                    continue
                assert len(codes) == 1 and codes[0] in known, (codes, data.hex())
        await until(lambda: broker.parts.grpc and not broker.parts.grpc.open_calls.count)


async def has_messages(client: Client) -> None:
    """Make a topic with some messages, and its group."""
    topic = schema_pb2.Resource(name="T")
    route = await client.call("QueryRoute", schema_pb2.QueryRouteRequest(topic=topic))
    assert route.status.code == Code.OK
    properties = schema_pb2.SystemProperties(message_id="01" * 17)
    message = schema_pb2.Message(topic=topic, system_properties=properties, body=b"body")
    for _ in range(50):
        sent = await client.call("SendMessage", schema_pb2.SendMessageRequest(messages=[message]))
        assert sent.status.code == Code.OK, sent
    queue = schema_pb2.MessageQueue(topic=topic, id=-1)
    request = schema_pb2.ReceiveMessageRequest(group=topic, message_queue=queue, batch_size=1)
    request.invisible_duration.seconds = 30
    assert await told(client, "ReceiveMessage", request.SerializeToString()) == [Code.OK]


def channel_to(broker: BrokerController) -> grpc.aio.Channel:
    assert broker.grpc_address is not None
    return grpc.aio.insecure_channel(f"127.0.0.1:{broker.grpc_address[1]}")


async def test_commands_of_chance(tmp_path: Path, errors: Any) -> None:
    """They are answered, or end their stream with a cause."""
    chance = random.Random("Telemetry")
    async with live_broker(tmp_path, grpc_listen_port=0) as broker:
        async with channel_to(broker) as channel:
            for _ in range(CALLS):
                command = schema_pb2.TelemetryCommand()
                fill(chance, command)
                stream = Client(channel).telemetry()
                await stream.write(command)
                await stream.done_writing()
                try:
                    answers = [answer async for answer in stream]
                    assert all(answer.status.code for answer in answers)
                except grpc.aio.AioRpcError as error:
                    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
                    assert error.details()
        await until(lambda: broker.parts.grpc and not broker.parts.grpc.open_calls.count)
