"""What clients of RocketMQ 5 send to a store of the test's own; nothing moves by itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterable
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from skylarkmq.broker.grpc.calls import Call, RpcRefused, failure, rpc_table
from skylarkmq.broker.grpc.recall import RecallHandlers
from skylarkmq.broker.grpc.sending import SendHandlers
from skylarkmq.broker.grpc.transactions import TransactionHandlers
from skylarkmq.broker.processor.send import SendProcessor
from skylarkmq.broker.processor.send_checks import SendChecks
from skylarkmq.broker.timer.service import TimerMessageService
from skylarkmq.common.table_file import TableWriter
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.schema_pb2 import (
    COMMIT,
    ROLLBACK,
    EndTransactionRequest,
    EndTransactionResponse,
    Message,
    RecallMessageRequest,
    RecallMessageResponse,
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
)
from tests.broker.transaction_rig import TransactionRig
from tests.store.support import HOST
from tests.support.crash_disk import CrashDisk

TOPIC = "orders"
PEER = "192.0.2.7:4711"
ID = "01AABBCCDDEEFF0001020304050000000001"
TRANSACTION_ID = f"{ID}@broker-a"


def message(
    body: bytes = b"body",
    topic: str = TOPIC,
    message_id: str = ID,
    *,
    properties: dict[str, str] | None = None,
    born_ms: int | None = None,
    deliver_ms: int | None = None,
    recovery_s: int | None = None,
    **system: Any,
) -> Message:
    """A message as a client makes it."""
    made = Message(topic={"name": topic}, body=body, user_properties=properties or {})
    keys = system.pop("keys", ())
    made.system_properties.keys.extend(keys)
    made.system_properties.message_id = message_id
    for name, value in system.items():
        setattr(made.system_properties, name, value)
    if born_ms is not None:
        made.system_properties.born_timestamp.CopyFrom(time_of(born_ms))
    if deliver_ms is not None:
        made.system_properties.delivery_timestamp.CopyFrom(time_of(deliver_ms))
    if recovery_s is not None:
        made.system_properties.orphaned_transaction_recovery_duration.CopyFrom(
            Duration(seconds=recovery_s)
        )
    return made


def half(body: bytes = b"body", message_id: str = ID, **changes: Any) -> Message:
    """The first half of a transaction."""
    return message(body, message_id=message_id, message_type=schema_pb2.TRANSACTION, **changes)


def time_of(ms: int) -> Timestamp:
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


class SendingRig(TransactionRig):
    """Sends, transactions and timers over one store."""

    def _build(self) -> None:
        super()._build()
        checks = SendChecks(self.config, self.topics, self.groups, random.Random(1))
        self.send = SendProcessor(
            self.config, self.store, self.topics, checks, self.counts, HOST, self.ledger.expect
        )
        writer = TableWriter(self.files, self.workers.tables, self.store.fail)
        self.timer = TimerMessageService(
            self.store, self.files, self.clock, self.workers.timer, writer
        )
        self.rpcs = rpc_table(
            [
                SendHandlers(self.context, self.send, self.ledger),
                TransactionHandlers(self.verdicts, self.config.broker_name),
                RecallHandlers(self.context, HOST),
            ]
        )
        self.caller = Call("client@1", peer=PEER)

    def start(self) -> SendingRig:
        self.store.load()
        self.timer.load()
        self.store.start()
        self.topics.load()
        self.groups.load()
        self.offsets.load()
        self.timer.start()
        return self

    async def _stop_services(self) -> None:
        await self.timer.stop()
        await super()._stop_services()

    def add_topic(
        self, name: str = TOPIC, kind: str = "MIXED", queues: int = 4, perm: int = 6
    ) -> None:
        """Make a topic for messages of a type, durable."""
        self.topics.update(
            TopicConfig(
                topic_name=name,
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=perm,
                attributes={"message.type": kind},
            )
        )
        self.workers.run_all()

    def begin(self, name: str, request: Any) -> asyncio.Task[Any]:
        """Make a call; the workers do nothing yet."""
        rpc = self.rpcs[name]
        answer: Coroutine[Any, Any, Any] = self._answer(name, rpc.handler(self.caller, request))
        return asyncio.ensure_future(answer)

    async def _answer(self, name: str, handled: Any) -> Any:
        """The answer, or the status of a refusal, as the endpoint makes it."""
        try:
            return await handled
        except (RpcRefused, RemoteProtocolError) as error:
            return self.rpcs[name].answer(failure(error, name, self.caller))

    async def call(self, name: str, request: Any) -> Any:
        task = self.begin(name, request)
        await self.work()
        assert task.done(), "the answer never comes"
        return task.result()

    async def send_all(self, messages: Iterable[Message]) -> SendMessageResponse:
        answer: SendMessageResponse = await self.call(
            "SendMessage", SendMessageRequest(messages=messages)
        )
        return answer

    async def send_one(self, sent: Message) -> SendResultEntry:
        """Send a message that is taken."""
        answer = await self.send_all([sent])
        assert answer.status.code == 20000, answer
        (entry,) = answer.entries
        return entry

    async def refused(self, *sent: Message) -> tuple[int, str]:
        """Send what is refused; return why."""
        before = self.store.commit_log.wrote_offset
        answer = await self.send_all(sent)
        assert not answer.entries and self.store.commit_log.wrote_offset == before
        return answer.status.code, answer.status.message

    async def end_key(
        self, message_id: str = ID, *, commits: bool = True, topic: str = TOPIC, **changes: Any
    ) -> tuple[int, str]:
        """End a transaction."""
        request = EndTransactionRequest(
            topic={"name": topic},
            message_id=message_id,
            transaction_id=message_id,
            resolution=COMMIT if commits else ROLLBACK,
        )
        for name, value in changes.items():
            setattr(request, name, value)
        answer: EndTransactionResponse = await self.call("EndTransaction", request)
        return answer.status.code, answer.status.message

    async def recall(self, handle: str, topic: str = TOPIC) -> RecallMessageResponse:
        """Take a message back."""
        request = RecallMessageRequest(topic={"name": topic}, recall_handle=handle)
        answer: RecallMessageResponse = await self.call("RecallMessage", request)
        return answer

    def all_seen(self, topic: str = TOPIC) -> list[MessageExt]:
        """What consumers see of a topic, queue by queue."""
        config = self.topics.table[topic]
        return [found for at in range(config.write_queue_nums) for found in self.seen(topic, at)]


async def sending_rig(files: CrashDisk | None = None, **config: Any) -> SendingRig:
    """A rig that works."""
    config.setdefault("message_index_enable", False)
    rig = SendingRig(files, mapped_file_size_consume_queue=200_000, **config)
    await rig.go()
    return rig
