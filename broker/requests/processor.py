"""What request processors share: the broker's state as they see it, and checks of names.

A group name is checked wherever it enters, because `%RETRY%` and the group become a topic, and a
topic a folder. A name that is refused is echoed shortened, so a remark stays small.
Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../topic/TopicValidator.java
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from skylarkmq.broker.base.waiting import put, records, result_of
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.groups.consumer_manager import ConsumerManager
from skylarkmq.broker.groups.consumer_offset import ConsumerOffsetManager
from skylarkmq.broker.groups.earlier_lives import EarlierLives
from skylarkmq.broker.groups.producer_manager import ProducerManager
from skylarkmq.broker.groups.subscription_group import SubscriptionGroupManager
from skylarkmq.broker.net.handlers import Handlers, refused
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.bodies.text import MessageQueueBody
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import shown
from skylarkmq.protocol.flags import (
    CID_RMQ_SYS_TRANS_GROUP,
    validate_group,
    validate_producer_group,
    validate_topic,
)
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.results import MessageInner, PutMessageResult

CLIENT_ID_SIZE_MAX: Final = 255
"""Characters of a client id, which the client makes of its address and a name."""


@dataclass(frozen=True, slots=True)
class Context:
    """The broker's state, as most processors need it. Loop thread."""

    config: BrokerConfig
    clock: Clock
    store: MessageStore
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager
    consumers: ConsumerManager
    producers: ProducerManager
    earlier: EarlierLives


class Processor(Handlers):
    """Handles a family of request codes over the broker's state. Loop thread."""

    def __init__(self, context: Context) -> None:
        self._config = context.config
        self._clock = context.clock
        self._store = context.store
        self._topics = context.topics
        self._groups = context.groups
        self._offsets = context.offsets
        self._consumers = context.consumers
        self._producers = context.producers
        self._earlier = context.earlier

    def _queue(self, topic: str, queue_id: int) -> MessageQueueBody:
        """Return a queue of this broker as bodies name it."""
        return MessageQueueBody(
            broker_name=self._config.broker_name, queue_id=queue_id, topic=topic
        )

    async def _message_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of a message, ms; -1 when it is not there.

        Raises:
            OSError: the disk failed.
        """
        if offset < 0:
            return -1
        if self._store.is_cold(topic, queue_id, offset):
            read = self._store.message_time_cold
            return await result_of(lambda done: read(topic, queue_id, offset, done))
        return self._store.message_time(topic, queue_id, offset)

    async def _offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the queue offset of the message stored nearest to a time.

        Raises:
            OSError: the disk failed.
        """
        if self._store.has_cold:
            search = self._store.offset_by_time_cold
            return await result_of(lambda done: search(topic, queue_id, timestamp_ms, done))
        return self._store.offset_by_time(topic, queue_id, timestamp_ms)

    async def _read_records(self, physical_offsets: list[int]) -> list[bytes | None]:
        """Return the records at places in the log, None where there is none."""
        return await result_of(records(self._store, physical_offsets))

    async def _put(self, inner: MessageInner) -> PutMessageResult:
        """Store a message; return when it is as durable as the flush mode makes it."""
        (result,) = await result_of(put(self._store, (inner,)))
        return result

    def _find_topic(self, name: str) -> TopicConfig:
        """Return a topic's settings.

        Raises:
            RemoteProtocolError: TOPIC_NOT_EXIST.
        """
        topic = self._topics.get(name)
        if topic is None:
            raise refused(f"topic[{shown(name)}] not exist", ResponseCode.TOPIC_NOT_EXIST)
        return topic


def check_topic(topic: str) -> None:
    """Refuse what cannot be a topic, with SYSTEM_ERROR and the reason."""
    _check(validate_topic(topic))


def check_group(group: str) -> None:
    """Refuse what cannot be a consumer group, with SYSTEM_ERROR and the reason."""
    _check(validate_group(group))


def check_offset_group(group: str) -> None:
    """Refuse what cannot be a consumer group, and those whose offsets are the broker's own."""
    check_group(group)
    if group == CID_RMQ_SYS_TRANS_GROUP:
        raise refused(f"the offsets of {group} are the broker's own", ResponseCode.NO_PERMISSION)


def check_producer_group(group: str) -> None:
    """Refuse what cannot be a producer group, with SYSTEM_ERROR and the reason."""
    _check(validate_producer_group(group))


def _check(why: str | None) -> None:
    if why is not None:
        raise refused(why)
