"""Creating and changing topics (17).

The request holds the topic's whole configuration. The answer comes when `topics.json` is on the
disk; name servers hear of the change by the topic table's listener.

Unlike RocketMQ, queue numbers, permission and filter type are checked, and the answer waits.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(updateAndCreateTopic), common/.../topic/TopicValidator.java (isSystemTopic)
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from skylarkmq.broker.config import QUEUES_MAX, BrokerConfig
from skylarkmq.broker.connection import Connection
from skylarkmq.broker.durable import durable
from skylarkmq.broker.processor.name_checks import check_topic
from skylarkmq.broker.router import Handler
from skylarkmq.broker.topic_config import REPLY_TOPIC_POSTFIX, TopicConfigManager
from skylarkmq.protocol.bodies.topic_config import TopicConfig
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.flags import PermName, is_system_topic
from skylarkmq.protocol.headers.admin import CreateTopicRequestHeader
from skylarkmq.protocol.headers.fields import decode_fields

FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
PERM_MAX: Final = PermName.PERM_READ | PermName.PERM_WRITE | PermName.PERM_INHERIT


class AdminTopicProcessor:
    """Serves administrators of topics. Loop thread."""

    def __init__(self, config: BrokerConfig, topics: TopicConfigManager) -> None:
        cluster = config.broker_cluster_name
        self._own_topics = {cluster, config.broker_name, f"{cluster}_{REPLY_TOPIC_POSTFIX}"}
        self._topics = topics

    def handlers(self) -> dict[int, Handler]:
        """The codes that this processor answers."""
        return {RequestCode.UPDATE_AND_CREATE_TOPIC: self.update_and_create_topic}

    def update_and_create_topic(
        self, connection: Connection, request: RemotingCommand
    ) -> Coroutine[Any, Any, RemotingCommand]:
        """Create or replace a topic."""
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

    def _check(self, header: CreateTopicRequestHeader) -> None:
        check_topic(header.topic)
        if is_system_topic(header.topic) or header.topic in self._own_topics:
            raise _refused(f"The topic[{header.topic}] is conflict with system topic.")
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
