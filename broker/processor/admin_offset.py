"""Moving groups: reset (222), clone (314); looking where they are: status (223), time spans (303).

A reset by time needs the group's offsets and, as in RocketMQ, its members: the broker works out
where each queue goes on and tells the members (220), who drop what they hold, commit the new
offsets and go on there. Without a member the answer is CONSUMER_NOT_ONLINE, and an administrator
writes the offsets itself (15). A reset that names an `offset` moves a group without members too:
the broker changes its table, which is on the disk before the answer.

What accumulated is skipped by a forced reset to the time -1, the queues' ends.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../client/net/Broker2Client.java (resetOffset,
getConsumeStatus), broker/.../processor/AdminBrokerProcessor.java (resetOffset,
cloneGroupOffset, queryConsumeTimeSpan); `offset` and `queueId` of a reset from
apache/rocketmq@rocketmq-all-5.3.3 remoting/.../header/ResetOffsetRequestHeader.java
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Final

from skylarkmq.broker import cold_reads
from skylarkmq.broker.connection import Connection
from skylarkmq.broker.consumer_manager import ConsumerGroupInfo, ConsumerManager
from skylarkmq.broker.consumer_offset import NO_OFFSET, ConsumerOffsetManager
from skylarkmq.broker.durable import durable
from skylarkmq.broker.pending_calls import ConnectionClosedError
from skylarkmq.broker.processor.name_checks import check_group, check_topic
from skylarkmq.broker.router import Handler
from skylarkmq.broker.subscription_group import SubscriptionGroupManager
from skylarkmq.broker.topic_config import TopicConfigManager
from skylarkmq.protocol import lenient_json
from skylarkmq.protocol.bodies.lock import MessageQueueBody
from skylarkmq.protocol.bodies.push import (
    GetConsumerStatusBody,
    MessageQueueForC,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from skylarkmq.protocol.bodies.text import decode_body, encode_body
from skylarkmq.protocol.bodies.topic_config import TopicConfig
from skylarkmq.protocol.clock import Clock
from skylarkmq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.headers.consumer import (
    CloneGroupOffsetRequestHeader,
    GetConsumerStatusRequestHeader,
    InvokeBrokerToResetOffsetRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    ResetOffsetRequestHeader,
)
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields
from skylarkmq.protocol.version import MQVersion
from skylarkmq.store.message_store import MessageStore

STATUS_TIMEOUT_S: Final = 5.0
NEWEST: Final = -1
"""The time that means the end of each queue."""

OffsetTable = list[tuple[MessageQueueBody, int]]


class AdminOffsetProcessor:
    """Serves administrators of consumption. Loop thread."""

    def __init__(
        self,
        broker_name: str,
        store: MessageStore,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        offsets: ConsumerOffsetManager,
        consumers: ConsumerManager,
        clock: Clock,
    ) -> None:
        self._broker_name = broker_name
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._consumers = consumers
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        """The codes that this processor answers."""
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset_offset,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.get_consumer_status,
            RequestCode.CLONE_GROUP_OFFSET: self.clone_group_offset,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.query_consume_time_span,
        }

    # Reset

    async def reset_offset(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Move a group in a topic (222)."""
        header = decode_fields(InvokeBrokerToResetOffsetRequestHeader, request.ext_fields)
        check_group(header.group)
        config = self._find_topic(header.topic, "[reset-offset] reset offset failed, no topic")
        by_offset = header.offset is not None and header.offset >= 0
        queues = self._queues_of(header, config)
        table: OffsetTable = []
        for queue_id in queues:
            target = await self._target(header, queue_id, by_offset=by_offset)
            queue = MessageQueueBody(
                broker_name=self._broker_name, queue_id=queue_id, topic=header.topic
            )
            table.append((queue, target))
        info = self._consumers.group(header.group)
        if info is not None:
            self._push_reset(info, request, header, table)
        elif by_offset:
            await self._write(connection, header.group, header.topic, table)
        else:
            raise RemoteProtocolError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} "
                f"Topic: {header.topic} Timestamp: {header.timestamp}",
            )
        return request.reply(
            ResponseCode.SUCCESS, body=encode_body(ResetOffsetBody(offset_table=table))
        )

    @staticmethod
    def _queues_of(
        header: InvokeBrokerToResetOffsetRequestHeader, config: TopicConfig
    ) -> Sequence[int]:
        if header.queue_id < 0:
            return range(config.write_queue_nums)
        if header.queue_id >= config.write_queue_nums:
            raise _refused(
                f"queueId[{header.queue_id}] is illegal, topic[{header.topic}] has "
                f"{config.write_queue_nums} write queues"
            )
        return (header.queue_id,)

    async def _target(
        self, header: InvokeBrokerToResetOffsetRequestHeader, queue_id: int, *, by_offset: bool
    ) -> int:
        """Where a queue is to go on."""
        store, topic = self._store, header.topic
        end = store.max_offset(topic, queue_id)
        if by_offset:
            assert header.offset is not None
            return min(max(header.offset, store.min_offset(topic, queue_id)), end)
        place = self._offsets.query(header.group, topic, queue_id)
        if place == NO_OFFSET:
            raise _refused(f"THe consumer group <{header.group}> not exist")
        if header.timestamp == NEWEST:
            target = end
        elif store.has_cold:
            target = await cold_reads.offset_by_time(store, topic, queue_id, header.timestamp)
        else:
            target = store.offset_by_time(topic, queue_id, header.timestamp)
        target = max(0, target)
        return target if header.is_force else min(target, place)

    def _push_reset(
        self,
        info: ConsumerGroupInfo,
        request: RemotingCommand,
        header: InvokeBrokerToResetOffsetRequestHeader,
        table: OffsetTable,
    ) -> None:
        """Tell all members (220), or none when one of them would not understand."""
        _check_versions(info)
        fields = encode_fields(
            ResetOffsetRequestHeader(
                topic=header.topic,
                group=header.group,
                timestamp=header.timestamp,
                is_force=header.is_force,
            )
        )
        if request.language == LanguageCode.CPP:
            body = encode_body(ResetOffsetBodyForC(offset_table=[_for_c(*row) for row in table]))
        else:
            body = encode_body(ResetOffsetBody(offset_table=table))
        for member in info.channels:
            push = RemotingCommand.request(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body, oneway=True
            )
            member.push(push)

    async def _write(
        self, connection: Connection, group: str, topic: str, table: OffsetTable
    ) -> None:
        """Move a group without members."""
        self._check_known(group)
        for queue, target in table:
            self._offsets.commit(connection.remote_address, group, topic, queue.queue_id, target)
        await durable(self._offsets)

    # Status

    async def get_consumer_status(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Ask the members which offsets they hold (223 by 221)."""
        header = decode_fields(GetConsumerStatusRequestHeader, request.ext_fields)
        check_group(header.group)
        info = self._consumers.group(header.group)
        if info is None:
            raise _refused(f"No Any Consumer online in the consumer group: [{header.group}]")
        _check_versions(info)
        fields = encode_fields(
            GetConsumerStatusRequestHeader(topic=header.topic, group=header.group)
        )
        table: dict[str, Any] = {}
        for member, client in list(info.channels.items()):
            if header.client_addr and header.client_addr != client.client_id:
                continue
            asked = RemotingCommand.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields)
            try:
                answer = await member.call(asked, STATUS_TIMEOUT_S)
            except (TimeoutError, ConnectionClosedError):
                continue  # the answer tells of those that answered
            if answer.code == ResponseCode.SUCCESS:
                held = decode_body(GetConsumerStatusBody, answer.body)
                table[client.client_id] = _by_queue(held.message_queue_table)
        body = lenient_json.dumps({"consumerTable": table})
        return request.reply(ResponseCode.SUCCESS, body=body)

    # Clone

    def clone_group_offset(
        self, connection: Connection, request: RemotingCommand
    ) -> Coroutine[Any, Any, RemotingCommand]:
        """Let one group stand where another does (314)."""
        header = decode_fields(CloneGroupOffsetRequestHeader, request.ext_fields)
        source, target = header.src_group, header.dest_group
        check_group(source)
        check_group(target)
        self._check_known(target)
        topics = [header.topic] if header.topic else self._offsets.topics_of(source)
        info = self._consumers.group(source)
        for topic in topics:
            if self._topics.get(topic) is None:
                continue
            if (
                not header.offline
                and info is not None
                and info.subscriptions
                and topic not in info.subscriptions
            ):
                continue
            for queue_id, offset in self._offsets.of(source, topic).items():
                self._offsets.commit(connection.remote_address, target, topic, queue_id, offset)
        return self._answer_when_durable(request)

    async def _answer_when_durable(self, request: RemotingCommand) -> RemotingCommand:
        await durable(self._groups, self._offsets)
        return request.reply(ResponseCode.SUCCESS)

    # Time spans

    async def query_consume_time_span(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Answer from when to when the queues are, and where the group is (303)."""
        header = decode_fields(QueryConsumeTimeSpanRequestHeader, request.ext_fields)
        check_group(header.group)
        topic = header.topic
        config = self._topics.get(topic)
        if config is None:
            raise RemoteProtocolError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{shown(topic)}] not exist"
            )
        spans = [
            await self._span(header.group, topic, queue_id)
            for queue_id in range(config.write_queue_nums)
        ]
        body = encode_body(QueryConsumeTimeSpanBody(consume_time_span_set=spans))
        return request.reply(ResponseCode.SUCCESS, body=body)

    async def _span(self, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
        store = self._store
        first = store.min_offset(topic, queue_id)
        end = store.max_offset(topic, queue_id)
        place = self._offsets.query(group, topic, queue_id)
        begin_ms = await self._time(topic, queue_id, first)
        waiting_ms = await self._time(topic, queue_id, place) if place < end else -1
        return QueueTimeSpan(
            consume_time_stamp=(
                await self._time(topic, queue_id, place - 1) if place > 0 else begin_ms
            ),
            delay_time=self._clock.now_ms() - waiting_ms if waiting_ms >= 0 else 0,
            max_time_stamp=await self._time(topic, queue_id, end - 1),
            message_queue=MessageQueueBody(
                broker_name=self._broker_name, queue_id=queue_id, topic=topic
            ),
            min_time_stamp=begin_ms,
        )

    async def _time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time of a message, ms; -1 when it is not there."""
        if offset < 0:
            return -1
        if self._store.is_cold(topic, queue_id, offset):
            return await cold_reads.message_time(self._store, topic, queue_id, offset)
        return self._store.message_time(topic, queue_id, offset)

    # Checks

    def _find_topic(self, topic: str, why: str) -> TopicConfig:
        check_topic(topic)
        config = self._topics.get(topic)
        if config is None:
            raise _refused(f"{why} in this broker. topic={topic}")
        return config

    def _check_known(self, group: str) -> None:
        if group not in self._groups.table:
            raise RemoteProtocolError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group}; create it first",
            )


def _check_versions(info: ConsumerGroupInfo) -> None:
    for client in info.channels.values():
        if client.version < MQVersion.V3_0_7_SNAPSHOT:
            raise _refused(
                f"the client does not support this feature. version={client.version}, "
                f"{shown(client.client_id)}"
            )


def _for_c(queue: MessageQueueBody, offset: int) -> MessageQueueForC:
    return MessageQueueForC(
        broker_name=queue.broker_name, offset=offset, queue_id=queue.queue_id, topic=queue.topic
    )


def _by_queue(table: OffsetTable) -> dict[Any, int]:
    return {
        lenient_json.freeze(
            {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
        ): offset
        for queue, offset in table
    }


def _refused(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why)
