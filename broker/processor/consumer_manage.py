"""A group's offsets (14, 15) and its members (38).

Unlike RocketMQ, which stores any offset under any name, an offset is taken for a queue that
exists and up to its end only: names that nobody made must not fill the table, and what is yet to be
stored is not consumed. Queries of unknown names
answer what RocketMQ answers, and allocate nothing.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/ConsumerManageProcessor.java
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from skylarkmq.broker.groups.consumer_manager import ConsumerManager
from skylarkmq.broker.groups.consumer_offset import ConsumerOffsetManager
from skylarkmq.broker.groups.subscription_group import SubscriptionGroupManager
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.router import Handler
from skylarkmq.broker.processor.name_checks import check_group, check_offset_group, check_topic
from skylarkmq.broker.tables.persist import durable
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.protocol.bodies.group import GetConsumerListByGroupResponseBody
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields
from skylarkmq.protocol.headers.group import (
    GetConsumerListByGroupRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from skylarkmq.store.message_store import MessageStore


class ConsumerManageProcessor:
    """Answers what consumers ask of their group. Loop thread."""

    def __init__(
        self,
        consumers: ConsumerManager,
        offsets: ConsumerOffsetManager,
        groups: SubscriptionGroupManager,
        topics: TopicConfigManager,
        store: MessageStore,
        *,
        replays_young: bool = True,
    ) -> None:
        """Take the parts.

        Args:
            replays_young: whether a new group reads a young queue from its first message, as in
                RocketMQ; else its client's wish counts.
        """
        self._replays_young = replays_young
        self._consumers = consumers
        self._offsets = offsets
        self._groups = groups
        self._topics = topics
        self._store = store

    def handlers(self) -> dict[int, Handler]:
        """The codes that this processor answers."""
        return {
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.get_consumer_list_by_group,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update_consumer_offset,
            RequestCode.QUERY_CONSUMER_OFFSET: self.query_consumer_offset,
        }

    def get_consumer_list_by_group(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """List the members of a group (38), SYSTEM_ERROR when there is none."""
        header = decode_fields(GetConsumerListByGroupRequestHeader, request.ext_fields)
        check_group(header.consumer_group)
        client_ids = self._consumers.client_ids(header.consumer_group)
        if not client_ids:
            return request.reply(
                ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}"
            )
        body = encode_body(GetConsumerListByGroupResponseBody(consumer_id_list=client_ids))
        return request.reply(ResponseCode.SUCCESS, body=body)

    def update_consumer_offset(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Coroutine[Any, Any, RemotingCommand]:
        """Take a group's offset in a queue (15); a smaller one than before is taken too.

        A group that is not there is made, as by a pull: administrators' tools give a new group its
        offsets so. One-way requests make none: they may come from a member of a group that was
        deleted.
        """
        header = decode_fields(UpdateConsumerOffsetRequestHeader, request.ext_fields)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        check_offset_group(group)
        check_topic(topic)
        config = self._topics.get(topic)
        if config is None:
            raise RemoteProtocolError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!"
            )
        queue_nums = max(config.read_queue_nums, config.write_queue_nums)
        if not 0 <= queue_id < queue_nums:
            raise RemoteProtocolError(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{queue_id}] is illegal, topic[{topic}] has {queue_nums} queues",
            )
        if header.commit_offset < 0:
            raise RemoteProtocolError(
                ResponseCode.SYSTEM_ERROR, f"the offset {header.commit_offset} is negative"
            )
        is_known = group in self._groups.table
        who = connection.remote_address
        if not is_known and (request.is_oneway or self._groups.find(group, who) is None):
            raise RemoteProtocolError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}"
            )
        if not self._offsets.commit(who, group, topic, queue_id, header.commit_offset):
            raise RemoteProtocolError(
                ResponseCode.SYSTEM_ERROR,
                f"the offset {header.commit_offset} is above the end of queue {queue_id} of "
                f"topic[{topic}], {self._store.max_offset(topic, queue_id)}",
            )
        if not is_known:
            return self._answer_when_durable(request)
        return request.reply(ResponseCode.SUCCESS)

    async def _answer_when_durable(self, request: RemotingCommand) -> RemotingCommand:
        await durable(self._groups)
        return request.reply(ResponseCode.SUCCESS)

    def query_consumer_offset(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Say where a group stands in a queue (14).

        A group that never committed starts at 0 where the queue's very first message is still in
        memory, and where nothing is known of the queue; else, and for a client that wants no such
        zero (5.x's setZeroIfNotFound=false), QUERY_NOT_FOUND leaves the choice to the client.
        """
        header = decode_fields(QueryConsumerOffsetRequestHeader, request.ext_fields)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        check_group(group)
        check_topic(topic)
        offset = self._offsets.query(group, topic, queue_id)
        if offset < 0:
            if header.set_zero_if_not_found is False or not (
                self._replays_young and self._is_young(topic, queue_id)
            ):
                return request.reply(
                    ResponseCode.QUERY_NOT_FOUND,
                    "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
                )
            offset = 0
        fields = encode_fields(QueryConsumerOffsetResponseHeader(offset=offset))
        return request.reply(ResponseCode.SUCCESS, ext_fields=fields)

    def _is_young(self, topic: str, queue_id: int) -> bool:
        if self._store.min_offset(topic, queue_id) > 0:
            return False
        units = self._store.queue_units(topic, queue_id, 0, 1)
        return not units or self._store.is_in_memory(units[0].commit_offset)
