"""A consumer gives a message back (36): it comes again later, or goes to the dead letters.

    record at `offset` --> %RETRY%group, through the schedule topic     while attempts are left
                       --> %DLQ%group queue 0                           after the last attempt, or
                                                                        with a negative delay level

The stored copy has the record's body, flag, born data and store host, one more attempt in
`reconsumeTimes`, the topic it first came from in RETRY_TOPIC and its first offset id in
ORIGIN_MESSAGE_ID. The answer comes when the copy is as durable as the flush mode makes it, and the
tables of a topic or group that was made for it are on the disk. Behind a gate
(`MessageStore.gate`) a copy that is not confirmed in time counts as refused.

Unlike RocketMQ, whose answer does not wait for the sync (the copy says WAIT=false), and which would
hand a parked or half message to any client that knows its offset.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AbstractSendMessageProcessor.java,
SendMessageProcessor.java (asyncConsumerSendMsgBack)
"""

from __future__ import annotations

import random
from collections.abc import Coroutine
from typing import Any, Final

from skylarkmq.broker.access.accounts import SUB, Kind
from skylarkmq.broker.access.control import ensure
from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.config.settings import READ_WRITE
from skylarkmq.broker.net.handlers import Answer, Call, handles, refused
from skylarkmq.broker.processor.send_answers import remark_of
from skylarkmq.broker.processor.send_checks import DLQ_QUEUE_NUMS, attempts_of, check_busy
from skylarkmq.broker.requests.processor import Context, Processor, check_group
from skylarkmq.broker.tables.persist import durable
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.bodies.group import SubscriptionGroupConfig
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.flags import (
    RMQ_SYS_SCHEDULE_TOPIC,
    RMQ_SYS_TRANS_HALF_TOPIC,
    RMQ_SYS_TRANS_OP_HALF_TOPIC,
    RMQ_SYS_WHEEL_TIMER_TOPIC,
    TopicSysFlag,
    dlq_topic,
    is_retry_topic,
    is_writeable,
    retry_topic,
)
from skylarkmq.protocol.headers.fields import INT_MAX
from skylarkmq.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.properties import encode_properties
from skylarkmq.protocol.tags_code import tags_code
from skylarkmq.store.results import TAKEN, MessageInner

FIRST_RETRY_LEVEL: Final = 3
"""Delay level of a message's first return, unless the consumer names one; each more adds one."""

_HIDDEN_TOPICS: Final = frozenset(
    {
        RMQ_SYS_SCHEDULE_TOPIC,
        RMQ_SYS_TRANS_HALF_TOPIC,
        RMQ_SYS_TRANS_OP_HALF_TOPIC,
        RMQ_SYS_WHEEL_TIMER_TOPIC,
    }
)


class SendBackProcessor(Processor):
    """Stores what consumers give back. Loop thread."""

    def __init__(self, context: Context, rng: random.Random, stats: BrokerStats) -> None:
        super().__init__(context)
        self._rng = rng
        self._stats = stats

    @handles(RequestCode.CONSUMER_SEND_MSG_BACK, ConsumerSendMsgBackRequestHeader)
    def consumer_send_msg_back(
        self, call: Call[ConsumerSendMsgBackRequestHeader]
    ) -> Answer | Coroutine[Any, Any, RemotingCommand]:
        """Check, make the copy, store it (36)."""
        header, request = call.header, call.request
        check_busy(self._store)
        group = self._find_group(header.group, call.remote_address)
        if not is_writeable(self._config.broker_permission):
            raise refused(
                f"the broker[{self._config.broker_name}] sending message is forbidden",
                ResponseCode.NO_PERMISSION,
            )
        if group.retry_queue_nums <= 0:
            return Answer()  # the group wants no message twice
        message = self._message_at(header.offset)
        origin = message.properties.get(names.RETRY_TOPIC, message.topic)
        ensure(request, Kind.TOPIC, message.topic, SUB)
        if is_retry_topic(message.topic):
            ensure(request, Kind.TOPIC, origin, SUB)
        flag = TopicSysFlag.FLAG_UNIT_SUB if header.unit_mode else 0
        config = self._open_topic(retry_topic(header.group), group.retry_queue_nums, flag)
        # Unlike RocketMQ, which draws from the group's number: a topic that has fewer queues keeps
        # them when that is raised, and no consumer would read the others.
        queue_id = self._rng.randrange(max(1, min(config.read_queue_nums, config.write_queue_nums)))
        limit = attempts_of(group, request.version, header.max_reconsume_times)
        level = header.delay_level or FIRST_RETRY_LEVEL + max(0, message.reconsume_times)
        if message.reconsume_times >= limit or level < 0:
            config = self._open_topic(dlq_topic(header.group), DLQ_QUEUE_NUMS)
            queue_id = level = 0
        inner = _copy(message, config.topic_name, queue_id, level)
        if level > 0:
            inner = self._store.delay_levels.redirect(inner, level)
        return self._store_and_answer(request, inner, (origin, header.group), is_last=not level)

    def _find_group(self, name: str, remote_address: str) -> SubscriptionGroupConfig:
        check_group(name)
        group = self._groups.find(name, remote_address)
        if group is None:
            raise refused(
                f"subscription group not exist, {name} (autoCreateSubscriptionGroup is false)",
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            )
        return group

    def _open_topic(self, name: str, queue_nums: int, sys_flag: int = 0) -> TopicConfig:
        topic = self._topics.create_in_send_back(name, queue_nums, READ_WRITE, sys_flag)
        if not is_writeable(topic.perm):
            raise refused(
                f"the topic[{name}] sending message is forbidden", ResponseCode.NO_PERMISSION
            )
        return topic

    def _message_at(self, physical_offset: int) -> MessageExt:
        message = self._store.look_message(physical_offset)
        if message is None or message.topic in _HIDDEN_TOPICS:
            raise refused(f"look message by offset failed, {physical_offset}")
        return message

    async def _store_and_answer(
        self,
        request: RemotingCommand,
        inner: MessageInner,
        origin: tuple[str, str],
        *,
        is_last: bool,
    ) -> RemotingCommand:
        result = await self._put(inner)
        # When a failover may take the copy back, the consumer keeps the message: the worst that
        # comes of that is a second copy.
        if result.status not in TAKEN:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark_of(result))
        counter = self._stats.topic_back(*origin)
        counter.count += 1
        counter.bytes += len(inner.body)
        if is_last:
            counter = self._stats.dead_letter(*origin)
            counter.count += 1
            counter.bytes += len(inner.body)
        await durable(self._groups, self._topics)
        return request.reply(ResponseCode.SUCCESS)


def _copy(message: MessageExt, topic: str, queue_id: int, level: int) -> MessageInner:
    """Return the message as it is tried again, before a delay parks it."""
    properties = dict(message.properties)
    properties.setdefault(names.RETRY_TOPIC, message.topic)
    properties.setdefault(names.ORIGIN_MESSAGE_ID, message.offset_msg_id)
    properties[names.WAIT] = "false"
    properties[names.DELAY] = str(level)
    return MessageInner(
        topic=topic,
        queue_id=queue_id,
        body=message.body,
        properties=encode_properties(properties).encode(),
        born_host=message.born_host.pack(),
        store_host=message.store_host.pack(),
        born_timestamp=message.born_timestamp,
        tags_code=tags_code(message.tags or ""),
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=min(message.reconsume_times + 1, INT_MAX),
        is_copy=True,
    )
