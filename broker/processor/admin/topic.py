"""Administration of topics: creating and changing (17), all of them (21), deleting (215), those of
the broker itself (305), and what is left of others (316).

A request to change holds the topic's whole configuration, but for its attributes, of which it holds
changes (`protocol/topic_attributes.py`). Answers to changes come when they are on the disk; name
servers hear of them by the topic table's listeners. What deleting does is told in
`broker/topics/topic_deletion.py`.

Unlike RocketMQ, queue numbers, permission and filter type are checked, and the answers wait. A
topic is only deleted by its name: RocketMQ removes the messages of all topics that its table does
not name, each ten seconds and on request (316), which after a lost table are all that there are.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(updateAndCreateTopic, getAllTopicConfig, deleteTopic, getSystemTopicListFromBroker,
cleanUnusedTopic),
common/.../topic/TopicValidator.java (isSystemTopic)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from msgspec import UNSET

from skylarkmq.broker.config.settings import QUEUES_MAX
from skylarkmq.broker.net.handlers import Answer, Call, NoFields, Result, handles, refused
from skylarkmq.broker.requests.processor import Context, Processor, check_topic
from skylarkmq.broker.topics.deduplication import DeduplicationService
from skylarkmq.broker.topics.topic_config import REPLY_TOPIC_POSTFIX
from skylarkmq.broker.topics.topic_deletion import TopicDeletion
from skylarkmq.protocol.bodies.route import TopicList
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import shown
from skylarkmq.protocol.flags import PermName, is_system_topic
from skylarkmq.protocol.headers.topic import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicConfigRequestHeader,
)
from skylarkmq.protocol.topic_attributes import WrongAttributeError, changed_attributes

log = logging.getLogger(__name__)

FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
SHOWN_TOPICS: Final = 5
PERM_MAX: Final = PermName.PERM_READ | PermName.PERM_WRITE | PermName.PERM_INHERIT


class AdminTopicProcessor(Processor):
    """Serves administrators of topics. Loop thread."""

    def __init__(
        self, context: Context, deletion: TopicDeletion, deduplication: DeduplicationService
    ) -> None:
        super().__init__(context)
        name, cluster = context.config.broker_name, context.config.broker_cluster_name
        self._own_topics = {cluster, name, f"{cluster}_{REPLY_TOPIC_POSTFIX}"}
        self._deletion = deletion
        self._deduplication = deduplication

    @handles(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicRequestHeader)
    def update_and_create_topic(self, call: Call[CreateTopicRequestHeader]) -> Answer:
        """Create or replace a topic (17)."""
        header = call.header
        self._check(header)
        topic = TopicConfig(
            attributes=self._attributes(header) or UNSET,
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
        )
        why = self._deduplication.refusal(topic)
        if why is not None:
            raise refused(why)
        self._topics.update(topic)
        return Answer(after=(self._topics,))

    def _attributes(self, header: CreateTopicRequestHeader) -> dict[str, str]:
        """Return the topic's attributes with the changes of a request."""
        known = self._topics.get(header.topic)
        current: Mapping[str, str] = {} if known is None else known.attributes_map
        try:
            return changed_attributes(current, header.attributes or "")
        except WrongAttributeError as error:
            raise refused(str(error)) from error

    @handles(RequestCode.GET_ALL_TOPIC_CONFIG, NoFields)
    def get_all_topics(self, call: Call[NoFields]) -> Result:
        """Answer the whole table (21)."""
        return self._topics.body.answer(call.request)

    @handles(RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequestHeader)
    def get_topic(self, call: Call[GetTopicConfigRequestHeader]) -> Answer:
        """Answer one topic's configuration (351, of RocketMQ 5)."""
        name = call.header.topic
        topic = self._topics.get(name)
        if topic is None:
            raise refused(
                f"No topic in this broker. topic: {shown(name)}", ResponseCode.TOPIC_NOT_EXIST
            )
        return Answer(topic)

    @handles(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, NoFields)
    def get_system_topics(self, call: Call[NoFields]) -> Answer:
        """Answer the names of the broker's own topics (305)."""
        return Answer(TopicList(topic_list=[t for t in self._topics.table if self._is_own(t)]))

    @handles(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader)
    def delete_topic(
        self, call: Call[DeleteTopicRequestHeader]
    ) -> Coroutine[Any, Any, RemotingCommand]:
        """Delete a topic with its messages (215); one that does not exist is no error."""
        topic = call.header.topic
        check_topic(topic)
        self._refuse_own(topic)
        why = self._deletion.refusal(topic)
        if why is not None:
            raise refused(why)
        log.info("%s deletes topic %s", call.remote_address, topic)
        deleted = self._deletion.delete(topic)
        return self._answer_when_deleted(call.request, topic, deleted)

    @handles(RequestCode.CLEAN_UNUSED_TOPIC, NoFields)
    def clean_unused_topics(self, call: Call[NoFields]) -> Answer:
        """Answer that nothing is left of topics that are not there any more, or what is (316)."""
        unknown = self._deletion.unknown_topics()
        if unknown:
            raise refused(
                f"{len(unknown)} topics have messages and no settings ({_some(unknown)}), as when "
                "topics.json was lost: nothing was removed; put the file back, make the topics "
                "again, or delete each by its name (deleteTopic)"
            )
        return Answer()

    @staticmethod
    async def _answer_when_deleted(
        request: RemotingCommand, topic: str, deleted: asyncio.Task[BaseException | None]
    ) -> RemotingCommand:
        error = await asyncio.shield(deleted)
        if error is not None:
            raise refused(
                f"topic {topic} is gone, but the disk does not know yet: it is tried again, or "
                f"delete it again: {error}",
                ResponseCode.SERVICE_NOT_AVAILABLE,
            )
        return request.reply(ResponseCode.SUCCESS)

    def _is_own(self, topic: str) -> bool:
        return is_system_topic(topic) or topic in self._own_topics

    def _refuse_own(self, topic: str) -> None:
        if self._is_own(topic):
            raise refused(f"The topic[{topic}] is conflict with system topic.")

    def _check(self, header: CreateTopicRequestHeader) -> None:
        check_topic(header.topic)
        self._refuse_own(header.topic)
        for name, count in (
            ("readQueueNums", header.read_queue_nums),
            ("writeQueueNums", header.write_queue_nums),
        ):
            if not 1 <= count <= QUEUES_MAX:
                raise refused(f"{name} {count} is out of range: 1 to {QUEUES_MAX} are allowed")
        if not 0 <= header.perm <= PERM_MAX:
            raise refused(
                f"perm {header.perm} is no permission: it is the sum of 4 (read), 2 (write) and "
                "1 (inherit)"
            )
        if header.topic_filter_type not in FILTER_TYPES:
            raise refused(
                f"topicFilterType {shown(header.topic_filter_type)} is unknown, it is one of "
                + ", ".join(FILTER_TYPES)
            )


def _some(topics: list[str]) -> str:
    return ", ".join(topics[:SHOWN_TOPICS]) + (", ..." if len(topics) > SHOWN_TOPICS else "")
