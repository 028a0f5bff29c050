"""Sends over a broker's port: what a client of RocketMQ 5 sends, one of RocketMQ 4 reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from skylarkmq.broker.controller import BrokerController
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.record import decode_messages
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from skylarkmq.protocol.v5.schema_pb2 import (
    EndTransactionRequest,
    EndTransactionResponse,
    Message,
    RecallMessageRequest,
    RecallMessageResponse,
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
)
from tests.broker.grpc.rig import METADATA, SERVICE
from tests.broker.grpc.sending_rig import ID, TOPIC, half, message
from tests.support.live_broker import live_broker
from tests.support.patience import until


class Sender:
    """A client of a broker's port."""

    def __init__(self, broker: BrokerController, channel: grpc.aio.Channel) -> None:
        self.broker = broker
        self._channel = channel

    async def call(self, name: str, request: Any, answer: Any) -> Any:
        called = self._channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return await called(request, metadata=METADATA)

    async def send(self, *messages: Message) -> SendMessageResponse:
        request = SendMessageRequest(messages=messages)
        answer: SendMessageResponse = await self.call("SendMessage", request, SendMessageResponse)
        return answer

    async def send_one(self, sent: Message) -> SendResultEntry:
        answer = await self.send(sent)
        assert answer.status.code == Code.OK, answer
        return answer.entries[0]

    async def end(self, *, commits: bool) -> int:
        request = EndTransactionRequest(
            topic={"name": TOPIC},
            message_id=ID,
            transaction_id=ID,
            resolution=schema_pb2.COMMIT if commits else schema_pb2.ROLLBACK,
        )
        answer = await self.call("EndTransaction", request, EndTransactionResponse)
        return int(answer.status.code)

    async def recall(self, handle: str) -> int:
        request = RecallMessageRequest(topic={"name": TOPIC}, recall_handle=handle)
        answer = await self.call("RecallMessage", request, RecallMessageResponse)
        return int(answer.status.code)

    def seen(self, topic: str = TOPIC) -> list[MessageExt]:
        store, found = self.broker.parts.store, list[MessageExt]()
        for queue_id in range(4):
            offset = 0
            while offset < store.max_offset(topic, queue_id):
                result = store.get_message(topic, queue_id, offset, 32)
                found += decode_messages(b"".join(result.views))
                offset = result.next_begin_offset
        return found


@asynccontextmanager
async def sender(root: Path, **config: Any) -> AsyncIterator[Sender]:
    """A broker with the topic, and a client of its port."""
    async with live_broker(root, grpc_listen_port=0, **config) as broker:
        if TOPIC not in broker.parts.topics.table:
            topic = TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4)
            broker.parts.topics.update(topic)
            await broker.parts.topics.durable()
        assert broker.grpc_address is not None
        target = f"127.0.0.1:{broker.grpc_address[1]}"
        async with grpc.aio.insecure_channel(target) as channel:
            yield Sender(broker, channel)


async def test_messages_of_all_types_go_their_way(tmp_path: Path) -> None:
    async with sender(tmp_path, timer_precision_ms=100) as client:
        now_ms = client.broker.parts.context.clock.now_ms()
        await client.send_one(message(b"normal", tag="red"))
        await client.send_one(message(b"fifo", message_group="g"))
        await client.send_one(message(b"delay", deliver_ms=now_ms + 300))
        await client.send_one(half(b"paid"))
        assert await client.end(commits=True) == Code.OK
        await until(lambda: len(client.seen()) == 4)
        assert {found.body for found in client.seen()} == {b"normal", b"fifo", b"delay", b"paid"}
        assert {str(found.born_host.ip) for found in client.seen()} == {"127.0.0.1"}


async def test_what_one_broker_took_the_next_one_ends_and_takes_back(tmp_path: Path) -> None:
    async with sender(tmp_path) as client:
        await client.send_one(half(b"paid"))
        now_ms = client.broker.parts.context.clock.now_ms()
        entry = await client.send_one(message(message_id="late", deliver_ms=now_ms + 3_600_000))
    async with sender(tmp_path) as client:
        assert await client.end(commits=True) == Code.OK
        assert await client.end(commits=True) == Code.OK
        assert await client.end(commits=False) == Code.INVALID_TRANSACTION_ID
        assert await client.recall(entry.recall_handle) == Code.OK
        assert await client.recall("nonsense") == Code.BAD_REQUEST
        assert [found.body for found in client.seen()] == [b"paid"]


async def test_many_clients_at_a_time(tmp_path: Path) -> None:
    async with sender(tmp_path, flush_disk_type="SYNC_FLUSH") as client:
        answers = await asyncio.gather(
            *[client.send(message(b"%d" % number)) for number in range(200)]
        )
        assert {answer.status.code for answer in answers} == {Code.OK}
        assert sorted(int(found.body) for found in client.seen()) == [*range(200)]


async def test_a_body_of_four_mebibytes_and_one_more(tmp_path: Path) -> None:
    async with sender(tmp_path, mapped_file_size_commit_log=32 << 20) as client:
        await client.send_one(message(b"x" * 4_194_304))
        assert (await client.send(message(b"x" * 4_194_305))).status.code == (
            Code.MESSAGE_BODY_TOO_LARGE
        )
        assert [len(found.body) for found in client.seen()] == [4_194_304]


async def test_a_namespace_makes_no_other_topic(tmp_path: Path) -> None:
    """As RocketMQ's proxy of 5.3.3: who names one sends to the topic of the name alone."""
    sent = message(b"of a tenant")
    sent.topic.resource_namespace = "another-tenant"
    async with sender(tmp_path) as client:
        await client.send_one(sent)
        await client.send_one(message(b"of nobody"))
        assert sorted(found.body for found in client.seen()) == [b"of a tenant", b"of nobody"]
        assert not [name for name in client.broker.parts.topics.table if "another-tenant" in name]
