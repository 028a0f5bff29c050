"""What a broker asks a member of a group for, mostly on behalf of an administrator.

    220  go on elsewhere          queues dropped, repositioned, the new offsets committed
    221  where are you            offsets by queue
    307  how are you              running_info.py
    309  handle this message now  through the handler of `run`; says what came of it

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/ClientRemotingProcessor.java,
client/.../impl/factory/MQClientInstance.java (resetOffset), client/.../impl/consumer/
ConsumeMessageConcurrentlyService.java (consumeMessageDirectly)
Unlike RocketMQ: a reset takes place at once. The Java client drops the queues and waits 10 s before
it stores the offsets, for handlers that may still acknowledge; here such an acknowledgement belongs
to the queue that was dropped, and changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from skylarkmq.client.config import ConsumerConfig
from skylarkmq.client.consumer.counters import ConsumerCounters, queue_body, running_info
from skylarkmq.client.consumer.handlers import Workers
from skylarkmq.client.consumer.offset_store import OffsetStore
from skylarkmq.client.consumer.process_queue import ProcessQueue
from skylarkmq.client.consumer.queue_locks import QueueLocks
from skylarkmq.client.consumer.rebalance import Rebalance
from skylarkmq.client.consumer.received_message import ReceivedMessage
from skylarkmq.client.consumer.retry_delay import RetryDelay
from skylarkmq.client.consumer.subscription import Subscription
from skylarkmq.client.namespace import Namespace
from skylarkmq.client.services import Services
from skylarkmq.protocol.bodies.group import (
    ConsumeMessageDirectlyResult,
    GetConsumerStatusBody,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from skylarkmq.protocol.bodies.text import MessageQueueBody, decode_body, encode_body
from skylarkmq.protocol.codes import CURRENT_VERSION, MQVersion, RequestCode, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.headers.fields import decode_fields
from skylarkmq.protocol.headers.group import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.record import decode_messages
from skylarkmq.protocol.remoting_command import RemotingCommand

log = logging.getLogger(__name__)

REMARK_MAX: Final = 512


@dataclass(frozen=True, slots=True)
class ConsumerPushes:
    """Answers for one started consumer. Loop thread."""

    services: Services
    config: ConsumerConfig
    subscriptions: Mapping[str, Subscription]
    offsets: OffsetStore
    rebalance: Rebalance
    counters: ConsumerCounters
    locks: QueueLocks | None

    async def answer(
        self, push: RemotingCommand, workers: Workers | None
    ) -> RemotingCommand | None:
        """Answer one push; None to those that want no answer.

        Args:
            workers: of `run`, None while it is not under way.

        Raises:
            RemoteProtocolError: the push cannot be read.
        """
        match push.code:
            case RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                await self._reset(push)
                return None
            case RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
                return self._status(push)
            case RequestCode.GET_CONSUMER_RUNNING_INFO:
                return self._running_info(push, workers)
            case RequestCode.CONSUME_MESSAGE_DIRECTLY:
                return await self._consume_directly(push, workers)
            case _:
                return None

    async def _reset(self, push: RemotingCommand) -> None:
        header = decode_fields(ResetOffsetRequestHeader, push.ext_fields)
        held = self.rebalance.assigned
        moved = {
            queue: offset
            for queue, offset in _offset_table(push.body).items()
            if queue.topic == header.topic and queue in held
        }
        log.info("group %s: a broker moves it to %s", self.config.group, moved)
        for queue, offset in moved.items():
            self.rebalance.reposition(queue, offset)
        for error in await self.offsets.commit(moved):
            log.warning("group %s: reset offset not committed: %s", self.config.group, error)
        for queue in moved:
            # What this member told of before may reach the broker's tables behind this commit, so
            # the next interval commits once more.
            self.offsets.forget(queue)

    def _status(self, push: RemotingCommand) -> RemotingCommand:
        header = decode_fields(GetConsumerStatusRequestHeader, push.ext_fields)
        rows = [
            (queue_body(queue), held.commit_offset)
            for queue, held in sorted(self.rebalance.assigned.items())
            if queue.topic == header.topic
        ]
        body = encode_body(GetConsumerStatusBody(message_queue_table=rows))
        return push.reply(ResponseCode.SUCCESS, body=body)

    def _running_info(self, push: RemotingCommand, workers: Workers | None) -> RemotingCommand:
        header = decode_fields(GetConsumerRunningInfoRequestHeader, push.ext_fields)
        queues = [
            (
                queue,
                self.counters.queue_info(
                    held,
                    self.offsets.known(queue) or 0,
                    self.locks is not None and self.locks.holds(queue),
                    self._locked_ms(queue),
                ),
            )
            for queue, held in self.rebalance.assigned.items()
        ]
        subscriptions = [each.data for each in self.subscriptions.values()]
        info = running_info(
            self.counters,
            queues,
            subscriptions,
            self._properties(workers),
            with_tasks=header.jstack_enable,
        )
        return push.reply(ResponseCode.SUCCESS, body=encode_body(info))

    def _locked_ms(self, queue: MessageQueue) -> int:
        return self.services.clock.now_ms() if self.locks and self.locks.holds(queue) else 0

    def _properties(self, workers: Workers | None) -> dict[str, str]:
        """Return what tools show; the first six names are those that they look for."""
        config = self.config
        return {
            "PROP_CLIENT_VERSION": MQVersion(CURRENT_VERSION).name,
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMEORDERLY": _text(config.orderly),
            "PROP_CONSUMER_START_TIMESTAMP": str(self.counters.started_ms),
            "PROP_NAMESERVER_ADDR": ";".join(self.services.config.name_servers),
            "PROP_THREADPOOL_CORE_SIZE": str(workers.concurrency if workers is not None else 0),
            "consumerGroup": config.group,
            "messageModel": config.model.upper(),
            "namespace": self.services.namespace.name,
            "pullBatchSize": str(config.batch_size),
            "pullThresholdForConsumer": str(config.prefetch),
            "consumeConcurrentlyMaxSpan": str(config.max_span),
        }

    async def _consume_directly(
        self, push: RemotingCommand, workers: Workers | None
    ) -> RemotingCommand:
        header = decode_fields(ConsumeMessageDirectlyResultRequestHeader, push.ext_fields)
        records = decode_messages(push.body)
        if not records:
            return push.reply(ResponseCode.SYSTEM_ERROR, "there is no message in it")
        if workers is None:
            remark = f"the consumer of group {self.config.group} has no handler: it is not in run()"
            return push.reply(ResponseCode.SYSTEM_ERROR, remark)
        record = records[0]
        queue = MessageQueue(record.topic, header.broker_name or "", record.queue_id)
        aside = ProcessQueue[ReceivedMessage](queue, record.queue_offset)
        message = ReceivedMessage(record, aside, _Aside(self.services))
        aside.add([message], record.queue_offset + 1)
        aside.take(1)
        clock = self.services.clock
        began_s = clock.monotonic()
        outcome, error = await workers.handle([message])
        results = {"ok": "CR_SUCCESS", "cancelled": "CR_THROW_EXCEPTION"}
        result = ConsumeMessageDirectlyResult(
            auto_commit=True,
            consume_result="CR_THROW_EXCEPTION" if error else results.get(outcome, "CR_LATER"),
            order=self.config.orderly,
            remark=f"{type(error).__name__}: {error}"[:REMARK_MAX] if error else None,
            spent_time_mills=int((clock.monotonic() - began_s) * 1000),
        )
        return push.reply(ResponseCode.SUCCESS, body=encode_body(result))


class _Aside:
    """Takes back a message that was handled outside its queue: nothing becomes of it."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @property
    def namespace(self) -> Namespace:
        return self._services.namespace

    @property
    def clock_s(self) -> float:
        return self._services.clock.monotonic()

    async def give_back(
        self, message: ReceivedMessage, delay: RetryDelay, reason: str | None = None
    ) -> None:
        message.finish("retry")

    async def retry(self, message: ReceivedMessage, reason: str | None) -> None:
        message.finish("retry")

    async def give_up(self, message: ReceivedMessage, reason: str | None) -> None:
        message.finish("dead_letter")


def _offset_table(body: bytes) -> dict[MessageQueue, int]:
    """Return the offsets of a reset; a C++ administrator has them sent as a list."""
    if not body:
        return {}
    try:
        rows = decode_body(ResetOffsetBody, body).offset_table
        return {_queue(queue): offset for queue, offset in rows}
    except RemoteProtocolError:
        listed = decode_body(ResetOffsetBodyForC, body).offset_table
        return {
            MessageQueue(row.topic, row.broker_name, row.queue_id): row.offset for row in listed
        }


def _queue(body: MessageQueueBody) -> MessageQueue:
    return MessageQueue(body.topic, body.broker_name, body.queue_id)


def _text(value: bool) -> str:
    return "true" if value else "false"
