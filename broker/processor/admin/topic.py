"""Administration of topics: creating and changing (17), all of them (21), deleting (215), and those
of the broker itself (305).

A request to change holds the topic's whole configuration. Answers to changes come when they are on
the disk; name servers hear of them by the topic table's listeners. What deleting does is told in
`broker/topics/topic_deletion.py`.

Unlike RocketMQ, queue numbers, permission and filter type are checked, and the answers wait.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(updateAndCreateTopic, getAllTopicConfig, deleteTopic, getSystemTopicListFromBroker),
common/.../topic/TopicValidator.java (isSystemTopic)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from skylarkmq.broker.config.settings import QUEUES_MAX, BrokerConfig
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.router import Handler
from skylarkmq.broker.processor.name_checks import check_topic
from skylarkmq.broker.tables.json_table import Answer
from skylarkmq.broker.tables.persist import durable
from skylarkmq.broker.topics.topic_config import REPLY_TOPIC_POSTFIX, TopicConfigManager
from skylarkmq.broker.topics.topic_deletion import TopicDeletion
from skylarkmq.protocol.bodies.route import TopicList
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.flags import PermName, is_system_topic
from skylarkmq.protocol.headers.fields import decode_fields
from skylarkmq.protocol.headers.topic import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
)

log = logging.getLogger(__name__)

FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
PERM_MAX: Final = PermName.PERM_READ | PermName.PERM_WRITE | PermName.PERM_INHERIT


class AdminTopicProcessor:
    """Serves administrators of topics. Loop thread."""

    def __init__(
        self, config: BrokerConfig, topics: TopicConfigManager, deletion: TopicDeletion
    ) -> None:
        cluster = config.broker_cluster_name
        self._own_topics = {cluster, config.broker_name, f"{cluster}_{REPLY_TOPIC_POSTFIX}"}
        self._topics = topics
        self._deletion = deletion

    def handlers(self) -> dict[int, Handler]:
        """The codes that this processor answers."""
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update_and_create_topic,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.get_all_topics,
            RequestCode.GET_TOPIC_CONFIG: self.get_topic,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.get_system_topics,
        }

    def update_and_create_topic(
        self, connection: Connection, request: RemotingCommand
    ) -> Coroutine[Any, Any, RemotingCommand]:
        """Create or replace a topic (17)."""
        header = decode_fields(CreateTopicRequestHeader, request.ext_fields)
        self._check(header)
        self._topics.update(
            TopicConfig(
                topic_name=header.topic,
                read_queue_nums=header.read_queue_nums,
                write_queue_nums=header.write_queue_nums,
                perm=header.perm,
                topic_filter_type=header.topic_filter_type,
                topic_sys_flag=header.topic_sys_flag or 0,
                order=header.order,
            )
        )
        return self._answer_when_durable(request)

    async def _answer_when_durable(self, request: RemotingCommand) -> RemotingCommand:
        await durable(self._topics)
        return request.reply(ResponseCode.SUCCESS)

    def get_all_topics(self, connection: Connection, request: RemotingCommand) -> Answer:
        """Answer the whole table (21)."""
        return self._topics.body.answer(request)

    def get_topic(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer one topic's configuration (351, of RocketMQ 5)."""
        name = decode_fields(GetTopicConfigRequestHeader, request.ext_fields).topic
        topic = self._topics.get(name)
        if topic is None:
            raise RemoteProtocolError(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {shown(name)}"
            )
        return request.reply(ResponseCode.SUCCESS, body=encode_body(topic))

    def get_system_topics(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Answer the names of the broker's own topics (305)."""
        topics = [name for name in self._topics.table if self._is_own(name)]
        return request.reply(ResponseCode.SUCCESS, body=encode_body(TopicList(topic_list=topics)))

    def delete_topic(
        self, connection: Connection, request: RemotingCommand
    ) -> Coroutine[Any, Any, RemotingCommand]:
        """Delete a topic with its messages (215); one that does not exist is no error."""
        header = decode_fields(DeleteTopicRequestHeader, request.ext_fields)
        check_topic(header.topic)
        self._refuse_own(header.topic)
        why = self._deletion.refusal(header.topic)
        if why is not None:
            raise _refused(why)
        log.info("%s deletes topic %s", connection.remote_address, header.topic)
        deleted = self._deletion.delete(header.topic)
        return self._answer_when_deleted(request, header.topic, deleted)

    @staticmethod
    async def _answer_when_deleted(
        request: RemotingCommand, topic: str, deleted: asyncio.Task[BaseException | None]
    ) -> RemotingCommand:
        error = await asyncio.shield(deleted)
        if error is not None:
            raise RemoteProtocolError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"topic {topic} is gone, but the disk does not know; delete it again: {error}",
            )
        return request.reply(ResponseCode.SUCCESS)

    def _is_own(self, topic: str) -> bool:
        return is_system_topic(topic) or topic in self._own_topics

    def _refuse_own(self, topic: str) -> None:
        if self._is_own(topic):
            raise _refused(f"The topic[{topic}] is conflict with system topic.")

    def _check(self, header: CreateTopicRequestHeader) -> None:
        check_topic(header.topic)
        self._refuse_own(header.topic)
        for name, count in (
            ("readQueueNums", header.read_queue_nums),
            ("writeQueueNums", header.write_queue_nums),
        ):
            if not 1 <= count <= QUEUES_MAX:
                raise _refused(f"{name} {count} is out of range: 1 to {QUEUES_MAX} are allowed")
        if not 0 <= header.perm <= PERM_MAX:
            raise _refused(
                f"perm {header.perm} is no permission: it is the sum of 4 (read), 2 (write) and "
                "1 (inherit)"
            )
        if header.topic_filter_type not in FILTER_TYPES:
            raise _refused(
                f"topicFilterType {shown(header.topic_filter_type)} is unknown, it is one of "
                + ", ".join(FILTER_TYPES)
            )


def _refused(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why)
