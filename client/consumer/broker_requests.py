"""What a broker asks a member of a group for, mostly for an administrator.

    220  go on elsewhere          queues dropped, repositioned, the new offsets committed
    221  where are you            offsets by queue
    307  how are you              counters, queues, settings, tasks
    309  handle this message now  through the handler of `run`; says what came of it

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/ClientRemotingProcessor.java,
client/.../impl/factory/MQClientInstance.java (resetOffset), client/.../impl/consumer/
ConsumeMessageConcurrentlyService.java (consumeMessageDirectly)
Unlike RocketMQ: a reset takes place at once. The Java client drops the queues and waits 10 s before
it stores the offsets, for handlers that may still acknowledge; here such an acknowledgement belongs
to the queue that was dropped, and changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from skylarkmq.client.consumer.config import ConsumerConfig
from skylarkmq.client.consumer.handlers import Workers
from skylarkmq.client.consumer.local_offsets import queue_body, queue_of
from skylarkmq.client.consumer.offset_store import OffsetStore
from skylarkmq.client.consumer.pull_service import PullService
from skylarkmq.client.consumer.queue_locks import QueueLocks
from skylarkmq.client.consumer.rebalance import Rebalance
from skylarkmq.client.received_message import ProcessQueue, ReceivedMessage, Redelivery
from skylarkmq.client.services import Services
from skylarkmq.protocol.bodies.group import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ProcessQueueInfo,
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
from skylarkmq.protocol.record import QUEUE_ID, QUEUE_OFFSET, TOPIC, split_records
from skylarkmq.protocol.remoting_command import RemotingCommand

log = logging.getLogger(__name__)

REMARK_MAX: Final = 512
TASKS_SHOWN_MAX: Final = 200
FRAMES_SHOWN_MAX: Final = 8


class BrokerRequests:
    """Answers for one started consumer. Loop thread."""

    def __init__(
        self,
        services: Services,
        config: ConsumerConfig,
        offsets: OffsetStore,
        pulls: PullService,
        rebalance: Rebalance,
        locks: QueueLocks | None,
    ) -> None:
        self.workers: Workers | None = None
        """Of `run`, while it is under way."""
        self._services = services
        self._config = config
        self._offsets = offsets
        self._pulls = pulls
        self._rebalance = rebalance
        self._locks = locks

    async def answer(self, push: RemotingCommand) -> RemotingCommand | None:
        """Answer one request; None to those that want no answer.

        Raises:
            RemoteProtocolError: the request cannot be read.
        """
        match push.code:
            case RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                await self._reset(push)
                return None
            case RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
                return self._status(push)
            case RequestCode.GET_CONSUMER_RUNNING_INFO:
                return self._running_info(push)
            case RequestCode.CONSUME_MESSAGE_DIRECTLY:
                return await self._consume_directly(push)
            case _:
                return None

    async def _reset(self, push: RemotingCommand) -> None:
        header = decode_fields(ResetOffsetRequestHeader, push.ext_fields)
        held = self._rebalance.assigned
        moved = {
            queue: offset
            for queue, offset in _offset_table(push.body).items()
            if queue.topic == header.topic and queue in held
        }
        log.info("group %s: a broker moves it to %s", self._config.group, moved)
        for queue, offset in moved.items():
            self._rebalance.reposition(queue, offset)
        for error in await self._offsets.commit(moved):
            log.warning("group %s: reset offset not committed: %s", self._config.group, error)
        for queue in moved:
            # An earlier commit of this member may reach the broker's tables after this one, so the
            # next interval commits once more.
            self._offsets.forget(queue)

    def _status(self, push: RemotingCommand) -> RemotingCommand:
        header = decode_fields(GetConsumerStatusRequestHeader, push.ext_fields)
        rows = [
            (queue_body(queue), held.commit_offset)
            for queue, held in sorted(self._rebalance.assigned.items())
            if queue.topic == header.topic
        ]
        body = encode_body(GetConsumerStatusBody(message_queue_table=rows))
        return push.reply(ResponseCode.SUCCESS, body=body)

    def _running_info(self, push: RemotingCommand) -> RemotingCommand:
        header = decode_fields(GetConsumerRunningInfoRequestHeader, push.ext_fields)
        counters, locks = self._pulls.counters, self._locks
        rows: list[tuple[MessageQueueBody, ProcessQueueInfo]] = []
        for queue, held in sorted(self._rebalance.assigned.items(), key=lambda item: item[0]):
            locked = locks is not None and locks.holds(queue)
            locked_ms = self._services.clock.now_ms() if locked else 0
            known = self._offsets.known(queue) or 0
            rows.append((queue_body(queue), counters.queue_info(held, known, locked, locked_ms)))
        wanted = [each.data for each in self._pulls.subscriptions.values()]
        wanted.sort(key=lambda data: data.topic)
        info = ConsumerRunningInfo(
            # In place of Java's threads: the tasks of the loop and where each of them waits.
            jstack=task_stacks() if header.jstack_enable else None,
            mq_table=rows,
            properties=self._properties(),
            status_table={data.topic: counters.status(data.topic) for data in wanted},
            subscription_set=wanted,
        )
        return push.reply(ResponseCode.SUCCESS, body=encode_body(info))

    def _properties(self) -> dict[str, str]:
        """Return what tools show; the first six names are those that they look for."""
        config, workers = self._config, self.workers
        return {
            "PROP_CLIENT_VERSION": MQVersion(CURRENT_VERSION).name,
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMEORDERLY": "true" if config.orderly else "false",
            "PROP_CONSUMER_START_TIMESTAMP": str(self._pulls.counters.started_ms),
            "PROP_NAMESERVER_ADDR": ";".join(self._services.config.name_servers),
            "PROP_THREADPOOL_CORE_SIZE": str(workers.concurrency if workers is not None else 0),
            "consumerGroup": config.group,
            "messageModel": config.model.upper(),
            "namespace": self._services.namespace.name,
            "pullBatchSize": str(config.batch_size),
            "pullThresholdForConsumer": str(config.prefetch),
            "consumeConcurrentlyMaxSpan": str(config.max_span),
        }

    async def _consume_directly(self, push: RemotingCommand) -> RemotingCommand:
        header = decode_fields(ConsumeMessageDirectlyResultRequestHeader, push.ext_fields)
        records = split_records(push.body)
        if not records:
            return push.reply(ResponseCode.SYSTEM_ERROR, "there is no message in it")
        workers = self.workers
        if workers is None:
            remark = (
                f"the consumer of group {self._config.group} has no handler: it is not in run()"
            )
            return push.reply(ResponseCode.SYSTEM_ERROR, remark)
        record = records[0]
        queue = MessageQueue(record[TOPIC], header.broker_name or "", record[QUEUE_ID])
        clock = self._services.clock
        aside = ProcessQueue(queue, record[QUEUE_OFFSET])
        message = ReceivedMessage(record, aside, Redelivery(clock, self._services.namespace))
        aside.add([message], record[QUEUE_OFFSET] + 1)
        aside.take(1)
        began_s = clock.monotonic()
        outcome, error = await workers.handle([message], began_s)
        results = {"ok": "CR_SUCCESS", "cancelled": "CR_THROW_EXCEPTION"}
        result = ConsumeMessageDirectlyResult(
            auto_commit=True,
            consume_result="CR_THROW_EXCEPTION" if error else results.get(outcome, "CR_LATER"),
            order=self._config.orderly,
            remark=f"{type(error).__name__}: {error}"[:REMARK_MAX] if error else None,
            spent_time_mills=int((clock.monotonic() - began_s) * 1000),
        )
        return push.reply(ResponseCode.SUCCESS, body=encode_body(result))


def task_stacks() -> str:
    """Return the loop's tasks as text: names and places in the code, no values."""
    lines: list[str] = []
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name())[:TASKS_SHOWN_MAX]:
        lines.append(f"TASK {task.get_name()}")
        for frame in task.get_stack(limit=FRAMES_SHOWN_MAX):
            code = frame.f_code
            lines.append(f"    {code.co_filename}:{frame.f_lineno} {code.co_qualname}")
    return "\n".join(lines)


def _offset_table(body: bytes) -> dict[MessageQueue, int]:
    """Return the offsets of a reset; a C++ administrator has them sent as a list."""
    if not body:
        return {}
    try:
        rows = decode_body(ResetOffsetBody, body).offset_table
        return {queue_of(queue): offset for queue, offset in rows}
    except RemoteProtocolError:
        listed = decode_body(ResetOffsetBodyForC, body).offset_table
        return {
            MessageQueue(row.topic, row.broker_name, row.queue_id): row.offset for row in listed
        }
