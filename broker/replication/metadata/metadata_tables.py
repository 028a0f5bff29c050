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
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from skylarkmq.broker.delay.delay_offsets import DelayOffsetTable
from skylarkmq.broker.groups.consumer_offset import TOPIC_GROUP_SEPARATOR, ConsumerOffsetManager
from skylarkmq.broker.groups.subscription_group import SubscriptionGroupManager
from skylarkmq.broker.replication.metadata.metadata_record import DELETING
from skylarkmq.broker.tables.config_table import ConfigTable, Row
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
T = TypeVar("T")


class MetadataTable(Protocol):
    """One table. Loop thread."""

    @property
    def name(self) -> str: ...

    def connect(self, changed: Callable[[], None], journal: Journal | None) -> None:
        """Follow the table's changes from now on, or no more.

        Args:
            changed: called after a change that must not wait for the table's file.
            journal: for the table's file; None: follow no more.
        """

    def touched(self) -> Collection[str]:
        """Return the keys that changed since the last call."""
        ...

    def value(self, key: str) -> Any:
        """Return a row; None: there is none."""

    def taken(self) -> Iterator[tuple[str, Any]]:
        """Return all rows as they are now, whatever changes before they are read."""
        ...

    def put(self, key: str, value: msgspec.Raw) -> None:
        """Have a row as the master has it.

        Raises:
            msgspec.MsgspecError: it is no such row.
        """

    def remove(self, key: str) -> None:
        """Have no such row any more."""

    def replace(self, rows: Rows) -> None:
        """Have these rows and no others."""


def _replace(table: MetadataTable, rows: Rows) -> None:
    for key in [key for key, _ in table.taken() if key not in rows]:
        table.remove(key)
    for key, value in rows.items():
        table.put(key, value)


class _Keys:
    """The keys that were touched."""

    def __init__(self) -> None:
        self._keys: dict[str, None] = {}

    def add(self, *keys: str) -> None:
        self._keys.update(dict.fromkeys(keys))

    def taken(self) -> Collection[str]:
        keys, self._keys = self._keys, {}
        return keys


class _NamedRows(Generic[Row]):
    """The rows of a table of the configuration, by name."""

    def __init__(self, table: ConfigTable[Row]) -> None:
        self._table = table
        self._keys = _Keys()

    def connect(self, changed: Callable[[], None], journal: Journal | None) -> None:
        def row_changed(name: str) -> None:
            self._keys.add(name)
            changed()

        self._keys.taken()
        self._table.row_changed = None if journal is None else row_changed
        self._table.journal = journal

    def touched(self) -> Collection[str]:
        return self._keys.taken()

    def value(self, key: str) -> Row | None:
        return self._table.table.get(key)

    def taken(self) -> Iterator[tuple[str, Row]]:
        return iter(self._table.table.copy().items())


class TopicRows(_NamedRows[TopicConfig]):
    """Topics by name."""

    name = "topics"

    def __init__(self, topics: TopicConfigManager) -> None:
        super().__init__(topics)
        self._topics = topics

    def put(self, key: str, value: msgspec.Raw) -> None:
        topic = msgspec.json.decode(value, type=TopicConfig)
        if _is_name("topic", validate_topic(key)) and topic != self.value(key):
            self._topics.follow(msgspec.structs.replace(topic, topic_name=key))

    def remove(self, key: str) -> None:
        self._topics.delete(key)

    def replace(self, rows: Rows) -> None:
        _replace(self, rows)


class GroupRows(_NamedRows[SubscriptionGroupConfig]):
    """Consumer groups by name."""

    name = "groups"

    def __init__(self, groups: SubscriptionGroupManager) -> None:
        super().__init__(groups)
        self._groups = groups

    def put(self, key: str, value: msgspec.Raw) -> None:
        group = msgspec.json.decode(value, type=SubscriptionGroupConfig)
        if _is_name("group", validate_group(key)) and group != self.value(key):
            self._groups.follow(msgspec.structs.replace(group, group_name=key))

    def remove(self, key: str) -> None:
        self._groups.delete(key)

    def replace(self, rows: Rows) -> None:
        _replace(self, rows)


class OffsetRows:
    """Consumers' offsets by `topic@group`: queue id -> next queue offset."""

    name = "offsets"

    def __init__(self, offsets: ConsumerOffsetManager) -> None:
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

    def replace(self, rows: Rows) -> None:
        _replace(self, rows)


class _Compared(Generic[T]):
    """Rows of a small table, and which of them differ from those that were told last."""

    def __init__(self) -> None:
        self._told: dict[str, T] = {}

    def touched(self, rows: dict[str, T]) -> Collection[str]:
        told, self._told = self._told, rows
        return [key for key in {**told, **rows} if told.get(key) != rows.get(key)]


class DelayRows:
    """The next queue offset to deliver by delay level."""

    name = "delay"

    def __init__(self, offsets: DelayOffsetTable) -> None:
        self._offsets = offsets
        self._compared = _Compared[int]()

    def connect(self, changed: Callable[[], None], journal: Journal | None) -> None:
        self._compared.touched(self._rows())  # a snapshot tells them
        self._offsets.journal = journal

    def _rows(self) -> dict[str, int]:
        return {str(level): offset for level, offset in self._offsets.rows().items()}

    def touched(self) -> Collection[str]:
        return self._compared.touched(self._rows())

    def value(self, key: str) -> int | None:
        return self._rows().get(key)

    def taken(self) -> Iterator[tuple[str, int]]:
        return iter(self._rows().items())

    def put(self, key: str, value: msgspec.Raw) -> None:
        self._offsets.set(int(key), msgspec.json.decode(value, type=int))

    def remove(self, key: str) -> None:
        self._offsets.forget(int(key))

    def replace(self, rows: Rows) -> None:
        _replace(self, rows)


class TimerRows:
    """How far timed messages are done with: one row."""

    name = "timer"
    KEY: Final = "progress"

    def __init__(self, timer: TimerMessageService) -> None:
        self._timer = timer
        self._last: TimerProgress | None = None  # that is known: of the master, or of this broker
        self._compared = _Compared[TimerProgress]()

    def connect(self, changed: Callable[[], None], journal: Journal | None) -> None:
        self._compared.touched(self._rows())  # a snapshot tells them
        self._timer.file.journal = journal

    def _rows(self) -> dict[str, TimerProgress]:
        self._last = self._timer.progress() or self._last
        return {} if self._last is None else {self.KEY: self._last}

    def touched(self) -> Collection[str]:
        return self._compared.touched(self._rows())

    def value(self, key: str) -> TimerProgress | None:
        return self._rows().get(key)

    def taken(self) -> Iterator[tuple[str, TimerProgress]]:
        return iter(self._rows().items())

    def put(self, key: str, value: msgspec.Raw) -> None:
        self._last = msgspec.json.decode(value, type=TimerProgress)

    def remove(self, key: str) -> None:
        self._last = None

    def replace(self, rows: Rows) -> None:
        self._last = None
        _replace(self, rows)

    def follow(self, follows: bool) -> None:
        """Let the log's files go as another master says, or not."""
        self._timer.follows = follows

    def take_over(self) -> None:
        """Deliver from where the master was, when `TimerMessageService.start` is called."""
        self._timer.take_over(self._last)


class ConfigRows:
    """Live keys of the configuration that were set while a broker ran: key -> text."""

    name = "config"

    def __init__(self, live: LiveConfig) -> None:
        self._live = live
        self._keys = _Keys()
        self._writing: set[asyncio.Task[str]] = set()

    def connect(self, changed: Callable[[], None], journal: Journal | None) -> None:
        def kept_changed(keys: frozenset[str]) -> None:
            self._keys.add(*sorted(keys))
            changed()

        self._keys.taken()
        self._live.kept_changed = None if journal is None else kept_changed
        self._live.journal = journal

    def touched(self) -> Collection[str]:
        return self._keys.taken()

    def value(self, key: str) -> str | None:
        return self._live.kept.get(key)

    def taken(self) -> Iterator[tuple[str, str]]:
        return iter(dict(self._live.kept).items())

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

    def replace(self, rows: Rows) -> None:
        _replace(self, rows)


class DeletingRows:
    """Topics whose settings are gone and whose queues are still there; the value is nothing."""

    name = DELETING

    def __init__(self, deletion: TopicDeletion, topics: TopicConfigManager) -> None:
        self._deletion = deletion
        self._topics = topics
        self._keys = _Keys()

    def connect(self, changed: Callable[[], None], journal: Journal | None) -> None:
        self._keys.taken()

    def begun(self, topic: str) -> None:
        """Note a topic whose deletion has begun."""
        self._keys.add(topic)

    def touched(self) -> Collection[str]:
        return self._keys.taken()

    def value(self, key: str) -> bool | None:
        return True if key in self._deletion.begun else None

    def taken(self) -> Iterator[tuple[str, bool]]:
        return iter(dict.fromkeys(self._deletion.begun, True).items())

    def put(self, key: str, value: msgspec.Raw) -> None:
        if _is_name("topic", validate_topic(key)):
            self._deletion.begun.add(key)
            self._topics.deleting.add(key)

    def remove(self, key: str) -> None:
        self._deletion.begun.discard(key)
        self._topics.deleting.discard(key)

    def replace(self, rows: Rows) -> None:
        _replace(self, rows)

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
