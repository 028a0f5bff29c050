"""Moving a group to another place in a topic: by time, or to an exact offset (222 by 220).

A reset by time needs the group's offsets and, as in RocketMQ, its members: the broker works out
where each queue goes on and tells the members (220), who drop what they hold, commit the new
offsets and go on there. Without a member the answer is CONSUMER_NOT_ONLINE, and an administrator
writes the offsets itself (15). A reset that names an `offset` moves a group without members too:
the broker changes its table, which is on the disk before the answer.

What accumulated is skipped by a forced reset to the time -1, the queues' ends.

Unlike RocketMQ, where the language of who asks decides how all members are told, each member is
told in the form that clients of its language read; and none is told when one of them is too old.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../client/net/Broker2Client.java (resetOffset);
`offset` and `queueId` from apache/rocketmq@rocketmq-all-5.3.3
remoting/.../protocol/header/ResetOffsetRequestHeader.java
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from skylarkmq.broker.groups.consumer_manager import ConsumerGroupInfo, ConsumerManager
from skylarkmq.broker.groups.consumer_offset import NO_OFFSET, ConsumerOffsetManager
from skylarkmq.broker.groups.subscription_group import SubscriptionGroupManager
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.router import Handler
from skylarkmq.broker.processor.admin.offset import OffsetTable, check_versions, unknown_group
from skylarkmq.broker.processor.name_checks import check_group, check_topic
from skylarkmq.broker.pulling import cold_reads
from skylarkmq.broker.tables.persist import durable
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.protocol.bodies.group import MessageQueueForC, ResetOffsetBody, ResetOffsetBodyForC
from skylarkmq.protocol.bodies.text import MessageQueueBody, encode_body
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields
from skylarkmq.protocol.headers.group import (
    InvokeBrokerToResetOffsetRequestHeader,
    ResetOffsetRequestHeader,
)
from skylarkmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

NEWEST: Final = -1
"""The time that means the end of each queue."""
QUEUES_SLICE: Final = 64
"""Queues looked at in one turn of the loop."""


class ResetOffsetProcessor:
    """Serves administrators who move groups. Loop thread."""

    def __init__(
        self,
        broker_name: str,
        store: MessageStore,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        offsets: ConsumerOffsetManager,
        consumers: ConsumerManager,
    ) -> None:
        self._broker_name = broker_name
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._consumers = consumers

    def handlers(self) -> dict[int, Handler]:
        """The codes that this processor answers."""
        return {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset_offset}

    async def reset_offset(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Move a group in a topic (222)."""
        header = decode_fields(InvokeBrokerToResetOffsetRequestHeader, request.ext_fields)
        check_group(header.group)
        config = self._find_topic(header.topic)
        by_offset = header.offset is not None and header.offset >= 0
        queues = self._queues_of(header, config)
        table: OffsetTable = []
        for queue_id in queues:
            if len(table) % QUEUES_SLICE == QUEUES_SLICE - 1:
                await asyncio.sleep(0)
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
        check_versions(info)
        fields = encode_fields(
            ResetOffsetRequestHeader(
                topic=header.topic,
                group=header.group,
                timestamp=header.timestamp,
                is_force=header.is_force,
            )
        )
        by_queue = encode_body(ResetOffsetBody(offset_table=table))
        as_list = encode_body(ResetOffsetBodyForC(offset_table=[_for_c(*row) for row in table]))
        asked_for_c = request.language == LanguageCode.CPP
        for member, client in info.channels.items():
            is_c = client.language == LanguageCode.CPP or (
                asked_for_c and client.language != LanguageCode.JAVA
            )
            push = RemotingCommand.request(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                fields,
                as_list if is_c else by_queue,
                oneway=True,
            )
            member.push(push)

    async def _write(
        self, connection: Connection, group: str, topic: str, table: OffsetTable
    ) -> None:
        """Move a group without members."""
        if group not in self._groups.table:
            raise unknown_group(group)
        self._find_topic(topic)  # it may have been deleted while its queues were looked at
        for queue, target in table:
            self._offsets.commit(connection.remote_address, group, topic, queue.queue_id, target)
        log.info(
            "%s sets the offsets of group %s in %d queues of %s",
            connection.remote_address,
            group,
            len(table),
            topic,
        )
        await durable(self._offsets)

    def _find_topic(self, topic: str) -> TopicConfig:
        check_topic(topic)
        config = self._topics.get(topic)
        if config is None:
            raise _refused(
                f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}"
            )
        return config


def _for_c(queue: MessageQueueBody, offset: int) -> MessageQueueForC:
    return MessageQueueForC(
        broker_name=queue.broker_name, offset=offset, queue_id=queue.queue_id, topic=queue.topic
    )


def _refused(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why)
