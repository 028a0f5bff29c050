"""The topics of this broker: who may create them, and `config/topics.json`.

A topic that a send creates takes messages at once; the answers of those sends wait until the file
is on the disk, so that order holds and an acknowledged topic survives a power cut.
Unlike RocketMQ, which writes the file in the sender's thread, without a sync.

System topics are made at each start; what the file says of them wins.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../topic/TopicConfigManager.java
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from skylarkmq.broker.config.settings import QUEUES_MAX, READ_WRITE, BrokerConfig
from skylarkmq.broker.tables.config_table import ConfigTable
from skylarkmq.broker.tables.json_table import load_table
from skylarkmq.common.clock import Clock
from skylarkmq.common.files import Files
from skylarkmq.common.table_file import TableWriter
from skylarkmq.protocol.bodies.text import DataVersion
from skylarkmq.protocol.bodies.topic import TopicConfig, TopicConfigSerializeWrapper
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    RMQ_SYS_BENCHMARK_TOPIC,
    RMQ_SYS_OFFSET_MOVED_EVENT,
    RMQ_SYS_SCHEDULE_TOPIC,
    RMQ_SYS_SELF_TEST_TOPIC,
    PermName,
    is_inherited,
    validate_topic,
)

log = logging.getLogger(__name__)

TOPICS_FILE: Final = "topics.json"
SCHEDULE_QUEUE_COUNT: Final = 18
BENCHMARK_QUEUE_COUNT: Final = 1024
CLUSTER_QUEUE_COUNT: Final = 16
REPLY_TOPIC_POSTFIX: Final = "REPLY_TOPIC"

ChangeListener = Callable[[TopicConfig], None]
DeletionListener = Callable[[str], None]


class TopicConfigManager(ConfigTable[TopicConfig]):
    """The table of topics. Loop thread, but for `load`.

    Attributes:
        deleting: topics whose deletion is under way; they cannot be made before its end.
    """

    def __init__(
        self, config: BrokerConfig, files: Files, writer: TableWriter, clock: Clock
    ) -> None:
        super().__init__(TOPICS_FILE, "topicConfigTable", config, files, writer, clock)
        self.deleting: set[str] = set()
        self._listeners: list[ChangeListener] = []
        self._deletion_listeners: list[DeletionListener] = []
        self._reset_listeners: list[Callable[[], None]] = []

    def load(self) -> None:
        """Make the system topics and read the file. Blocks; before the broker serves.

        Raises:
            CorruptFileError: neither the file nor its `.bak` can be read.
        """
        self.table = {topic.topic_name: topic for topic in _system_topics(self._config)}
        loaded = load_table(self._files, self._path, TopicConfigSerializeWrapper)
        if loaded is None:
            return
        self.table |= topics_of(loaded, str(self._path))
        self.data_version = loaded.data_version

    def get(self, topic: str) -> TopicConfig | None:
        """Return a topic's configuration."""
        return self.table.get(topic)

    def create_in_send(
        self,
        topic: str,
        default_topic: str,
        default_queue_nums: int,
        remote_address: str,
    ) -> TopicConfig | None:
        """Return the topic that a message is sent to; make it when its default topic allows it.

        Args:
            default_topic: the topic whose configuration is inherited, normally TBW102.
            default_queue_nums: queues that the producer asks for.

        Raises:
            RemoteProtocolError: the name cannot be a topic, there is no room for another, its
                address makes too many, or the producer asks for no queue at all.
        """
        existing = self.table.get(topic)
        if existing is not None:
            return existing
        default = self.table.get(default_topic)
        if default is None or not self._may_inherit(default):
            return None
        queue_count = min(default_queue_nums, default.write_queue_nums, QUEUES_MAX)
        if queue_count < 1:
            raise RemoteProtocolError(
                ResponseCode.SYSTEM_ERROR,
                f"topic {topic} does not exist, and {queue_count} queues were asked for; "
                f"set defaultTopicQueueNums to 1 to {QUEUES_MAX}",
            )
        created = TopicConfig(
            topic_name=topic,
            read_queue_nums=queue_count,
            write_queue_nums=queue_count,
            perm=default.perm & ~PermName.PERM_INHERIT,
            topic_filter_type=default.topic_filter_type,
        )
        self._add(created, remote_address)
        log.info("topic %s with %d queues made for %s", topic, queue_count, remote_address)
        return created

    def create_in_send_back(
        self,
        topic: str,
        queue_nums: int,
        perm: int,
        topic_sys_flag: int = 0,
        remote_address: str = "",
    ) -> TopicConfig:
        """Return a topic of retries or dead letters; make it when it is not there.

        Args:
            remote_address: whose wish it is; empty for the broker's own.

        Raises:
            RemoteProtocolError: the name cannot be a topic, or there is no room for another.
        """
        existing = self.table.get(topic)
        if existing is not None:
            return existing
        created = TopicConfig(
            topic_name=topic,
            read_queue_nums=queue_nums,
            write_queue_nums=queue_nums,
            perm=perm,
            topic_sys_flag=topic_sys_flag,
        )
        self._add(created, remote_address)
        return created

    def update(self, topic: TopicConfig) -> None:
        """Create or replace a topic; the caller has checked who may do so.

        Raises:
            RemoteProtocolError: the name cannot be a topic, or there is no room for another.
        """
        if topic.topic_name in self.table:
            self._put_topic(topic)
        else:
            self._add(topic)

    def follow(self, topic: TopicConfig) -> None:
        """Create or replace a topic as another broker did, which has checked it."""
        self._put_topic(topic)

    def delete(self, topic: str) -> bool:
        """Forget a topic; False when there is none."""
        if not self._remove_row(topic):
            return False
        for listener in self._deletion_listeners:
            listener(topic)
        return True

    def take_over(self, rows: dict[str, TopicConfig], version: DataVersion) -> None:
        before = self.table
        super().take_over(rows, version)
        for name in [name for name in before if name not in rows]:
            for deleted in self._deletion_listeners:
                deleted(name)
        for name, topic in rows.items():
            if before.get(name) != topic:
                for listener in self._listeners:
                    listener(topic)

    def add_change_listener(self, listener: ChangeListener) -> None:
        """Call `listener` with each topic that is made or replaced."""
        self._listeners.append(listener)

    def add_deletion_listener(self, listener: DeletionListener) -> None:
        """Call `listener` with each topic that is forgotten."""
        self._deletion_listeners.append(listener)

    def add_reset_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` when all topics are to be told again."""
        self._reset_listeners.append(listener)

    def config_changed(self, keys: Collection[str]) -> None:
        """Follow keys of the configuration that have other values now."""
        if "autoCreateTopicEnable" in keys:
            for topic in _system_topics(self._config):
                if topic.topic_name not in self.table:
                    self._put_topic(topic)
        if "brokerPermission" in keys:  # it goes with every topic
            self.tell_again()

    def tell_again(self) -> None:
        """Have all topics told to name servers again, which take them for changed."""
        self._next_version()
        for listener in self._reset_listeners:
            listener()

    def _may_inherit(self, default: TopicConfig) -> bool:
        if (
            default.topic_name == AUTO_CREATE_TOPIC_KEY_TOPIC
            and not self._config.auto_create_topic_enable
        ):
            return False  # the file of an earlier start may still hold it
        return is_inherited(default.perm)

    def _add(self, topic: TopicConfig, remote_address: str = "") -> None:
        why = validate_topic(topic.topic_name)
        if why is None and len(self.table) >= self._config.max_topics:
            why = (
                f"no room for topic {topic.topic_name}: there are {len(self.table)}, "
                f"maxTopics={self._config.max_topics}"
            )
        if topic.topic_name in self.deleting:
            why = f"topic {topic.topic_name} is being deleted; try again, or delete it again"
        if why is not None:
            raise RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why)
        if remote_address:
            self._new_names.check(remote_address, topic.topic_name)
        self._put_topic(topic)

    def _put_topic(self, topic: TopicConfig) -> None:
        self._add_row(topic.topic_name, topic)
        for listener in self._listeners:
            listener(topic)


def topics_of(wrapper: TopicConfigSerializeWrapper, origin: str) -> dict[str, TopicConfig]:
    """Return the topics of a file or a body by name; what cannot be one is logged and left out."""
    topics: dict[str, TopicConfig] = {}
    for name, topic in wrapper.topic_config_table.items():
        why = validate_topic(name)
        if why is None:
            topics[name] = msgspec.structs.replace(topic, topic_name=name)
        else:
            log.error("%s: leaving out a topic: %s", origin, why)
    return topics


def _system_topics(config: BrokerConfig) -> list[TopicConfig]:
    inherit = PermName.PERM_INHERIT
    cluster_perm = READ_WRITE if config.cluster_topic_enable else 0
    broker_perm = READ_WRITE if config.broker_topic_enable else 0
    cluster = config.broker_cluster_name
    rows = [
        (RMQ_SYS_SELF_TEST_TOPIC, 1, READ_WRITE),
        (RMQ_SYS_BENCHMARK_TOPIC, BENCHMARK_QUEUE_COUNT, READ_WRITE),
        (RMQ_SYS_OFFSET_MOVED_EVENT, 1, READ_WRITE),
        (RMQ_SYS_SCHEDULE_TOPIC, SCHEDULE_QUEUE_COUNT, READ_WRITE),
        (cluster, CLUSTER_QUEUE_COUNT, cluster_perm | inherit),
        (config.broker_name, 1, broker_perm | inherit),
        (f"{cluster}_{REPLY_TOPIC_POSTFIX}", 1, READ_WRITE),
    ]
    if config.auto_create_topic_enable:
        queue_count = config.default_topic_queue_nums
        rows.append((AUTO_CREATE_TOPIC_KEY_TOPIC, queue_count, READ_WRITE | inherit))
    if config.trace_topic_enable:
        rows.append((config.msg_trace_topic_name, 1, READ_WRITE))
    topics: list[TopicConfig] = []
    for name, queue_count, perm in rows:
        why = validate_topic(name)
        if why is not None:  # a host or cluster name may hold a dot
            log.warning("no system topic for %s: %s", ascii(name), why)
            continue
        topics.append(
            TopicConfig(
                topic_name=name,
                read_queue_nums=queue_count,
                write_queue_nums=queue_count,
                perm=perm,
            )
        )
    return topics
