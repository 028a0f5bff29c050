"""What is checked before a message is stored, for all roads that store one.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AbstractSendMessageProcessor.java
(msgCheck), SendMessageProcessor.java (handleRetryAndDLQ)
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.groups.subscription_group import SubscriptionGroupManager
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import MQVersion, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import (
    NOT_ALLOWED_SEND_TOPICS,
    RETRY_GROUP_TOPIC_PREFIX,
    MessageSysFlag,
    PermName,
    dlq_topic,
    is_writeable,
    validate_topic,
)
from skylarkmq.store.message_store import MessageStore

DLQ_QUEUE_NUMS = 1
PERM_READ_WRITE = PermName.PERM_READ | PermName.PERM_WRITE

BUSY = "[REJECTREQUEST]system busy, start flow control for a while"


def check_busy(store: MessageStore) -> None:
    """Refuse what comes while the disk is behind, and count it; clients try elsewhere."""
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

    def target(
        self,
        topic: str,
        queue_id: int,
        default_topic: str,
        default_queue_nums: int,
        remote_address: str,
        topic_sys_flag: int = 0,
    ) -> Target:
        """Return where an ordinary message goes, its topic made on demand.

        Raises:
            RemoteProtocolError: with RocketMQ's code for what is wrong.
        """
        self.check_sendable(topic)
        fresh = False
        config = self._topics.table.get(topic)
        if config is None:
            config = self._create(
                topic, default_topic, default_queue_nums, remote_address, topic_sys_flag
            )
            fresh = True
        if not is_writeable(self._config.broker_permission) and config.order:
            raise RemoteProtocolError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_name}] sending message is forbidden",
            )
        return Target(topic, self.queue(config, queue_id), config, fresh)

    def check_sendable(self, topic: str) -> None:
        """Refuse names that are no topic, and topics that nobody may send to."""
        why = validate_topic(topic)
        if why is not None:
            raise RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why)
        if topic in NOT_ALLOWED_SEND_TOPICS:
            raise RemoteProtocolError(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
            )

    def queue(self, config: TopicConfig, queue_id: int) -> int:
        """Return the queue to use; a negative one means any."""
        if queue_id < 0:
            return self._rng.randrange(max(1, config.write_queue_nums))
        if queue_id >= max(config.read_queue_nums, config.write_queue_nums):
            raise RemoteProtocolError(
                ResponseCode.SYSTEM_ERROR,
                f"request queueId[{queue_id}] is illegal, topic {config.topic_name} has "
                f"{config.read_queue_nums} read and {config.write_queue_nums} write queues",
            )
        return queue_id

    def _create(
        self,
        topic: str,
        default_topic: str,
        default_queue_nums: int,
        remote_address: str,
        topic_sys_flag: int,
    ) -> TopicConfig:
        config: TopicConfig | None
        if topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            config = self._topics.create_in_send_back(
                topic, 1, PERM_READ_WRITE, remote_address=remote_address
            )
        else:
            config = self._topics.create_in_send(
                topic, default_topic, default_queue_nums, remote_address, topic_sys_flag
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
            version: the sender's; only clients since 3.4.9 say how many attempts they want.
        """
        group = target.topic[len(RETRY_GROUP_TOPIC_PREFIX) :]
        settings = self._groups.find(group)
        if settings is None:
            raise RemoteProtocolError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group}",
            )
        limit = settings.retry_max_times
        if version >= MQVersion.V3_4_9 and max_reconsume_times is not None:
            limit = max_reconsume_times
        if reconsume_times < limit:
            return target
        topic = dlq_topic(group)
        fresh = topic not in self._topics.table
        config = self._topics.create_in_send_back(topic, DLQ_QUEUE_NUMS, PERM_READ_WRITE)
        return Target(topic, 0, config, fresh or target.fresh, to_dlq=True)


def multi_tag_flag(config: TopicConfig) -> int:
    """The system flag of messages of a topic, from the topic's filter type."""
    if config.topic_filter_type == "MULTI_TAG":
        return MessageSysFlag.MULTI_TAGS_FLAG
    return 0
