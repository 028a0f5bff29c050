"""What is checked before a message is stored, for all paths that store one.

In a topic of type PRIORITY a queue is a level: a message goes to the queue of its priority, or to
the last one if that is beyond it, whatever queue was asked for.

Unlike RocketMQ, where a message without a priority goes to the queue that was asked for, whose
level may be any; here it has the lowest one. A delayed or transactional message keeps its priority.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AbstractSendMessageProcessor.java
(msgCheck), SendMessageProcessor.java (handleRetryAndDLQ)
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from skylarkmq.broker.config.settings import READ_WRITE, BrokerConfig
from skylarkmq.broker.groups.subscription_group import SubscriptionGroupManager
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.bodies.group import SubscriptionGroupConfig
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import MQVersion, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import (
    NOT_ALLOWED_SEND_TOPICS,
    RETRY_GROUP_TOPIC_PREFIX,
    MessageSysFlag,
    dlq_topic,
    is_writeable,
    validate_topic,
)
from skylarkmq.protocol.headers.send import SendMessageRequestHeader
from skylarkmq.protocol.properties import find_property
from skylarkmq.protocol.topic_attributes import has_priorities
from skylarkmq.store.message_store import MessageStore

DLQ_QUEUE_NUMS = 1
_ORIGIN = names.RETRY_TOPIC.encode() + b"\x01"
_PRIORITY = names.PRIORITY.encode() + b"\x01"

BUSY = "[REJECTREQUEST]system busy, start flow control for a while"


def check_busy(store: MessageStore) -> None:
    """Refuse what comes while the disk cannot keep up, and count it; clients try elsewhere."""
    busy = store.why_busy()
    if busy is not None:
        store.stats.busy_refusals[busy.cause] += 1
        raise RemoteProtocolError(ResponseCode.SYSTEM_BUSY, f"{BUSY}, {busy.figures}")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a message goes, and whether acknowledging it must wait for the topic table."""

    topic: str
    queue_id: int
    config: TopicConfig
    fresh: bool  # the topic was made for this message
    to_dlq: bool = False
    has_priorities: bool = False  # the queue is that of the message's priority


class SendChecks:
    """Finds the target of a message or refuses it. Loop thread."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        rng: random.Random,
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._rng = rng

    def target(self, header: SendMessageRequestHeader, remote_address: str) -> Target:
        """Return where an ordinary message goes, its topic made on demand.

        Raises:
            RemoteProtocolError: with RocketMQ's code for what is wrong.
        """
        topic = header.topic
        why = validate_topic(topic)
        if why is not None:
            raise RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why)
        if topic in NOT_ALLOWED_SEND_TOPICS:
            raise RemoteProtocolError(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
            )
        config = self._topics.table.get(topic)
        has_levels = config is not None and has_priorities(config.attributes_map)
        if header.queue_id < 0 and not has_levels and names.PRIORITY in (header.properties or ""):
            raise _illegal(  # our SDK asks so, to be told before a topic is made
                f"topic {topic} has no priorities; one that was created with --message-type "
                "PRIORITY has"
            )
        fresh = config is None
        if config is None:
            config = self._create(header, remote_address)
        if not is_writeable(self._config.broker_permission) and config.order:
            raise RemoteProtocolError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_name}] sending message is forbidden",
            )
        queue_id = header.queue_id
        if has_levels:
            queue_id = level_of((header.properties or "").encode(errors="replace"), config)
            return Target(topic, queue_id, config, fresh, has_priorities=True)
        if queue_id < 0:  # any
            queue_id = self._rng.randrange(max(1, config.write_queue_nums))
        elif queue_id >= max(config.read_queue_nums, config.write_queue_nums):
            raise RemoteProtocolError(
                ResponseCode.SYSTEM_ERROR,
                f"request queueId[{queue_id}] is illegal, topic {topic} has "
                f"{config.read_queue_nums} read and {config.write_queue_nums} write queues",
            )
        return Target(topic, queue_id, config, fresh)

    def _create(self, header: SendMessageRequestHeader, remote_address: str) -> TopicConfig:
        topic = header.topic
        config: TopicConfig | None
        if topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            config = self._topics.create_in_send_back(
                topic, 1, READ_WRITE, remote_address=remote_address
            )
        else:
            config = self._topics.create_in_send(
                topic, header.default_topic, header.default_topic_queue_nums, remote_address
            )
        if config is None:
            raise RemoteProtocolError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{topic}] not exist, apply first please! (autoCreateTopicEnable is "
                f"{str(self._config.auto_create_topic_enable).lower()})",
            )
        return config

    def retry_target(
        self, target: Target, version: int, reconsume_times: int, max_reconsume_times: int | None
    ) -> Target:
        """Move a message that a consumer gave up to the group's dead-letter topic.

        Args:
            target: queue of a `%RETRY%group` topic.
            version: the sender's.
        """
        group = target.topic[len(RETRY_GROUP_TOPIC_PREFIX) :]
        settings = self._groups.find(group)
        if settings is None:
            raise RemoteProtocolError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group}",
            )
        if reconsume_times < attempts_of(settings, version, max_reconsume_times):
            return target
        topic = dlq_topic(group)
        fresh = topic not in self._topics.table
        config = self._topics.create_in_send_back(topic, DLQ_QUEUE_NUMS, READ_WRITE)
        return Target(topic, 0, config, fresh or target.fresh, to_dlq=True)

    def origin_of(self, properties: bytes, retry_topic: str) -> str:
        """Return the topic that a message came from first; its retry topic if that is unknown."""
        named = find_property(properties, _ORIGIN)
        topic = (named or b"").decode("utf-8", "replace")
        return topic if topic in self._topics.table else retry_topic


def level_of(properties: bytes, config: TopicConfig) -> int:
    """Return the queue of a message in a topic of type PRIORITY.

    Raises:
        RemoteProtocolError: MESSAGE_ILLEGAL, its priority is none.
    """
    text = find_property(properties, _PRIORITY)
    if text is None:
        return 0
    try:
        priority = names.parse_priority(text.decode("utf-8", "replace"))
    except ValueError as error:
        raise _illegal(str(error)) from error
    return min(priority, max(config.write_queue_nums, 1) - 1)


def _illegal(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(ResponseCode.MESSAGE_ILLEGAL, why)


def attempts_of(
    group: SubscriptionGroupConfig, version: int, max_reconsume_times: int | None
) -> int:
    """Return how often a group tries a message; a client since 3.4.9 may name another number."""
    if version >= MQVersion.V3_4_9 and max_reconsume_times is not None:
        return max_reconsume_times
    return group.retry_max_times


def multi_tag_flag(config: TopicConfig) -> int:
    """Return the system flag of a topic's messages, from the topic's filter type."""
    if config.topic_filter_type == "MULTI_TAG":
        return MessageSysFlag.MULTI_TAGS_FLAG
    return 0
