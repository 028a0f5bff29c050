"""The tables that go over to a successor by way of the log, each seen as rows: key -> value, JSON.

    what                home                        goes over
    messages, queues,   commit log, and what is     the log itself
      key index           built from it
    topics              topics.json                 table "topics"
    groups              subscriptionGroup.json      table "groups"
    deleted topics      removed-topics, a place of  table "deleting", then a record at the place
                          the log each                where the queues end (`TopicDeletion`)
    consumers' offsets  consumerOffset.json         table "offsets", each time before the file is
                                                      written (`flushConsumerOffsetInterval`)
    delay levels        delayOffset.json            table "delay", with the file
                                                      (`flushDelayOffsetInterval`)
    timed messages      timer/: checkpoint, runs    table "timer": how far the queue is done with,
                                                      with the checkpoint (`timerFlushIntervalMs`);
                                                      the runs are built again from the queue
    transactions        half and op topic; where to both topics, and table "offsets"
                          begin is an offset of
                          CID_RMQ_SYS_TRANS
    live configuration  the file of -c              table "config": what was set while a broker ran
    SQL92 filters       memory                      not: the next heartbeat brings them
    members, locks of   memory                      not: clients come to the new master by
      queues, held pulls                              themselves, as after a restart
    KV, order           the name servers' own       not: the tools write them to every name server
      configuration       tables and files
    accounts (ACL)      plain_acl.yml               not: each machine has its own files, which the
                                                      tools write to every broker

There are no per-message acknowledgements beside consumers' offsets. Without its row a table would
say at a successor: no topics, no groups, consumers begin where consumeFromWhere says, and every
delayed or timed message that is still in the log is delivered once more. With it a failover repeats
what a crash repeats today: what was done since the file was written last.

A table here is the broker's own: what a follower applies is at once what its broker answers.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, Final

import msgspec

from skylarkmq.broker.delay.delay_offsets import DelayOffsetTable
from skylarkmq.broker.groups.consumer_offset import TOPIC_GROUP_SEPARATOR, ConsumerOffsetManager
from skylarkmq.broker.groups.subscription_group import SubscriptionGroupManager
from skylarkmq.broker.replication.metadata.metadata_record import DELETING
from skylarkmq.broker.tables.live_config import LiveConfig
from skylarkmq.broker.tables.persist import Journal
from skylarkmq.broker.timer.service import TimerMessageService
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.broker.topics.topic_deletion import DeletionJournal, TopicDeletion
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.protocol.bodies.group import SubscriptionGroupConfig
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.flags import validate_group, validate_topic
from skylarkmq.store.timer.checkpoint import TimerProgress

log = logging.getLogger(__name__)

Rows = Mapping[str, msgspec.Raw]


class MetadataTable(ABC):
    """One table. Loop thread."""

    name: ClassVar[str]

    def __init__(self) -> None:
        self._touched: dict[str, None] = {}

    @abstractmethod
    def connect(self, changed: Callable[[], None], journal: Journal | None) -> None:
        """Follow the table's changes from now on, or no more.

        Args:
            changed: called after a change that must not wait for the table's file.
            journal: for the table's file; None: follow no more.
        """

    def _rows(self) -> Mapping[str, Any]:
        """Return all rows, for `value` and `taken`; the table's own, or a copy."""
        raise NotImplementedError

    def _touch(self, *keys: str) -> None:
        self._touched.update(dict.fromkeys(keys))

    def touched(self) -> Collection[str]:
        """Return the keys that changed since the last call."""
        keys, self._touched = self._touched, {}
        return keys

    def value(self, key: str) -> Any:
        """Return a row; None: there is none."""
        return self._rows().get(key)

    def taken(self) -> Iterator[tuple[str, Any]]:
        """Return all rows as they are now, whatever changes before they are read."""
        return iter(dict(self._rows()).items())

    @abstractmethod
    def put(self, key: str, value: msgspec.Raw) -> None:
        """Have a row as the master has it.

        Raises:
            msgspec.MsgspecError: it is no such row.
        """

    @abstractmethod
    def remove(self, key: str) -> None:
        """Have no such row any more."""

    def replace(self, rows: Rows) -> None:
        """Have these rows and no others."""
        for key in [key for key, _ in self.taken() if key not in rows]:
            self.remove(key)
        for key, value in rows.items():
            self.put(key, value)


class _NamedRows(MetadataTable):
    """The rows of a table of the configuration, by name."""

    def __init__(self, table: TopicConfigManager | SubscriptionGroupManager) -> None:
        super().__init__()
        self._table = table

    def connect(self, changed: Callable[[], None], journal: Journal | None) -> None:
        def row_changed(name: str) -> None:
            self._touch(name)
            changed()

        self.touched()
        self._table.row_changed = None if journal is None else row_changed
        self._table.journal = journal

    def _rows(self) -> Mapping[str, Any]:
        return self._table.table

    def remove(self, key: str) -> None:
        self._table.delete(key)


class TopicRows(_NamedRows):
    """Topics by name."""

    name = "topics"

    def __init__(self, topics: TopicConfigManager) -> None:
        super().__init__(topics)
        self._topics = topics

    def put(self, key: str, value: msgspec.Raw) -> None:
        topic = msgspec.json.decode(value, type=TopicConfig)
        if _is_name("topic", validate_topic(key)) and topic != self.value(key):
            self._topics.follow(msgspec.structs.replace(topic, topic_name=key))


class GroupRows(_NamedRows):
    """Consumer groups by name."""

    name = "groups"

    def __init__(self, groups: SubscriptionGroupManager) -> None:
        super().__init__(groups)
        self._groups = groups

    def put(self, key: str, value: msgspec.Raw) -> None:
        group = msgspec.json.decode(value, type=SubscriptionGroupConfig)
        if _is_name("group", validate_group(key)) and group != self.value(key):
            self._groups.follow(msgspec.structs.replace(group, group_name=key))


class OffsetRows(MetadataTable):
    """Consumers' offsets by `topic@group`: queue id -> next queue offset."""

    name = "offsets"

    def __init__(self, offsets: ConsumerOffsetManager) -> None:
        super().__init__()
        self._offsets = offsets

    def connect(self, changed: Callable[[], None], journal: Journal | None) -> None:
        self._offsets.touched = None if journal is None else set()
        self._offsets.journal = journal

    def touched(self) -> Collection[str]:
        touched = self._offsets.touched
        if not touched:
            return ()
        self._offsets.touched = set()
        return [f"{topic}{TOPIC_GROUP_SEPARATOR}{group}" for topic, group in touched]

    def value(self, key: str) -> dict[int, int] | None:
        topic, _, group = key.partition(TOPIC_GROUP_SEPARATOR)
        return self._offsets.of(group, topic) or None

    def taken(self) -> Iterator[tuple[str, dict[int, int]]]:
        return self._offsets.rows()

    def put(self, key: str, value: msgspec.Raw) -> None:
        topic, _, group = key.partition(TOPIC_GROUP_SEPARATOR)
        offsets = msgspec.json.decode(value, type=dict[int, int])
        if _is_name("row", validate_topic(topic) or validate_group(group)):
            self._offsets.follow(topic, group, offsets)

    def remove(self, key: str) -> None:
        topic, _, group = key.partition(TOPIC_GROUP_SEPARATOR)
        self._offsets.follow(topic, group, {})


class _ComparedRows(MetadataTable):
    """A small table; those of its rows have changed that differ from what was told last."""

    def __init__(self) -> None:
        super().__init__()
        self._told: Mapping[str, Any] = {}

    def touched(self) -> Collection[str]:
        told, self._told = self._told, self._rows()
        rows = self._told
        return [key for key in {**told, **rows} if told.get(key) != rows.get(key)]


class DelayRows(_ComparedRows):
    """The next queue offset to deliver by delay level."""

    name = "delay"

    def __init__(self, offsets: DelayOffsetTable) -> None:
        super().__init__()
        self._offsets = offsets

    def connect(self, changed: Callable[[], None], journal: Journal | None) -> None:
        self.touched()  # a snapshot tells them
        self._offsets.journal = journal

    def _rows(self) -> Mapping[str, int]:
        return {str(level): offset for level, offset in self._offsets.rows().items()}

    def put(self, key: str, value: msgspec.Raw) -> None:
        self._offsets.set(int(key), msgspec.json.decode(value, type=int))

    def remove(self, key: str) -> None:
        self._offsets.forget(int(key))


class TimerRows(_ComparedRows):
    """How far timed messages are done with: one row."""

    name = "timer"
    KEY: Final = "progress"

    def __init__(self, timer: TimerMessageService) -> None:
        super().__init__()
        self._timer = timer
        self._last: TimerProgress | None = None  # that is known: of the master, or of this broker

    def connect(self, changed: Callable[[], None], journal: Journal | None) -> None:
        self.touched()  # a snapshot tells them
        self._timer.file.journal = journal

    def _rows(self) -> Mapping[str, TimerProgress]:
        self._last = self._timer.progress() or self._last
        return {} if self._last is None else {self.KEY: self._last}

    def put(self, key: str, value: msgspec.Raw) -> None:
        self._last = msgspec.json.decode(value, type=TimerProgress)

    def remove(self, key: str) -> None:
        self._last = None

    def replace(self, rows: Rows) -> None:
        self._last = None
        super().replace(rows)

    def follow(self, follows: bool) -> None:
        """Let the log's files go as another master says, or not."""
        self._timer.follows = follows

    def take_over(self) -> None:
        """Deliver from where the master was, when `TimerMessageService.start` is called."""
        self._timer.take_over(self._last)


class ConfigRows(MetadataTable):
    """Live keys of the configuration that were set while a broker ran: key -> text."""

    name = "config"

    def __init__(self, live: LiveConfig) -> None:
        super().__init__()
        self._live = live
        self._writing: set[asyncio.Task[str]] = set()

    def connect(self, changed: Callable[[], None], journal: Journal | None) -> None:
        def kept_changed(keys: frozenset[str]) -> None:
            self._touch(*sorted(keys))
            changed()

        self.touched()
        self._live.kept_changed = None if journal is None else kept_changed
        self._live.journal = journal

    def _rows(self) -> Mapping[str, str]:
        return self._live.kept

    def put(self, key: str, value: msgspec.Raw) -> None:
        texts = {key: msgspec.json.decode(value, type=str)}
        try:
            if not self._live.differs(texts):
                self._live.kept.update(texts)
                return
            writing = asyncio.get_running_loop().create_task(self._live.update(texts))
        except ConfigError as error:
            log.error("what the master has in force is not taken here: %s", error)
            return
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)

    def remove(self, key: str) -> None:
        self._live.forget(key)


class DeletingRows(MetadataTable):
    """Topics whose settings are gone and whose queues are still there; the value is nothing."""

    name = DELETING

    def __init__(self, deletion: TopicDeletion, topics: TopicConfigManager) -> None:
        super().__init__()
        self._deletion = deletion
        self._topics = topics

    def connect(self, changed: Callable[[], None], journal: Journal | None) -> None:
        self.touched()

    def begun(self, topic: str) -> None:
        """Note a topic whose deletion has begun."""
        self._touch(topic)

    def _rows(self) -> Mapping[str, bool]:
        return dict.fromkeys(self._deletion.begun, True)

    def put(self, key: str, value: msgspec.Raw) -> None:
        if _is_name("topic", validate_topic(key)):
            self._deletion.begun.add(key)
            self._topics.deleting.add(key)

    def remove(self, key: str) -> None:
        self._deletion.begun.discard(key)
        self._topics.deleting.discard(key)

    def removed(self, topic: str) -> None:
        """Remove the queues of a topic, as the master has done at this place of its log."""
        if _is_name("topic", validate_topic(topic)):
            self._deletion.remove_queues(topic)

    def lead(self, journal: DeletionJournal | None) -> None:
        """Make deletions known from now on; None: no more."""
        self._deletion.journal = journal

    def finish(self, more: Collection[str]) -> None:
        """Go on with what the last master has begun; this broker is the master now.

        Args:
            more: deleted topics whose queues a crash has kept here.
        """
        for topic in sorted({*self._deletion.begun, *more}):
            log.warning("finishing the deletion of topic %s", topic)
            self._deletion.delete(topic)


def _is_name(kind: str, why: str | None) -> bool:
    """Return whether a row has a name that may be one; it comes from outside."""
    if why is not None:
        log.error("leaving out a %s of the master: %s", kind, why)
    return why is None
