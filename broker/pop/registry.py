"""Which groups pop which topics: checks of a receive, and the sources that are read for it.

A group's state in a topic is made by its first receive. Its first offset in a queue: where it has
none in the table of consumer offsets, 0 when the queue's very first message is there and in memory,
else the last message, as RocketMQ's.

Source: apache/rocketmq@rocketmq-all-5.3.3 broker/.../processor/PopMessageProcessor.java
(processRequest, getInitOffset)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from skylarkmq.broker.net.handlers import refused
from skylarkmq.broker.pop.consumption import Consumption, PopGroup, Source, pop_retry_topic
from skylarkmq.broker.pop.deliveries import PopQueue
from skylarkmq.broker.pop.handles import OLD_RETRY, PLUS_RETRY, RETRY
from skylarkmq.broker.pop.requests import PopRequest
from skylarkmq.broker.requests.processor import Context
from skylarkmq.broker.requests.read_checks import check_read
from skylarkmq.protocol.bodies.group import GroupRetryPolicy
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.flags import RETRY_GROUP_TOPIC_PREFIX, retry_topic
from skylarkmq.protocol.topic_attributes import has_priorities
from skylarkmq.store.pop.journal_records import Key

log = logging.getLogger(__name__)

RETRY_WAIT_MAX_MS: Final = 12 * 3_600_000
QUEUES_MAX: Final = 200_000
"""Source queues of all groups together; what is idle goes first."""


class PopRegistry:
    """The groups that pop, and what they read. Loop thread.

    It is one class, although large: four tables that name the same sources change together.

    Attributes:
        groups: by name.
        by_topic: topic of the store -> the sources that read it.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._config = context.config
        self._store = context.store
        self._topics = context.topics
        self._groups = context.groups
        self._offsets = context.offsets
        self.groups: dict[str, PopGroup] = {}
        self.by_topic: dict[str, dict[str, Source]] = {}
        self._consumptions: dict[tuple[str, str], Consumption] = {}
        self._queue_count = 0
        self._warned: set[str] = set()  # names that several have

    def find(self, group: str, topic: str) -> Consumption | None:
        """Return a group in a topic, as far as it pops."""
        return self._consumptions.get((group, topic))

    def all(self) -> Iterator[Consumption]:
        """Yield every group in every topic."""
        yield from self._consumptions.values()

    def open(self, request: PopRequest, remote_address: str) -> Consumption:
        """Return where a receive looks, made on demand.

        Raises:
            RemoteProtocolError: the receive is refused.
        """
        found = self._consumptions.get((request.group, request.topic))
        checked = self._state()
        if found is None or found.checked != checked:
            if self._store.follows:
                raise refused("a slave hands out nothing by pop; ask its master")
            check_read(self._context, request.group, request.topic, remote_address)
            if found is None:
                found = self.make(request.group, request.topic)
            self.extend(found, from_min=request.from_min)
            found.checked = self._state()
        return found

    def _state(self) -> tuple[int, int, int]:
        """Return what is another one when a receive may be refused that was not before."""
        return self._topics.changes, self._groups.changes, self._config.broker_permission

    def attempts_max(self, group: str) -> int:
        """Return how often a message is handed out before it is a dead letter."""
        settings = self._groups.table.get(group)
        return 1 if settings is None else max(1, settings.retry_max_times + 1)

    def retry_wait_ms(self, group: str, attempt: int) -> int:
        """Return how long a group waits after an attempt."""
        settings = self._groups.table.get(group)
        waits = GroupRetryPolicy() if settings is None else settings.retry_policy
        return min(waits.waits.wait_ms(attempt), RETRY_WAIT_MAX_MS)

    def make(self, group: str, topic: str) -> Consumption:
        """Make the state of a group in a topic; nobody has checked that these exist.

        Raises:
            RemoteProtocolError: SYSTEM_BUSY, there is no room for another.
        """
        if self._queue_count >= QUEUES_MAX:
            self._forget_idle()
        if self._queue_count >= QUEUES_MAX:
            raise refused("too many queues are consumed by pop", ResponseCode.SYSTEM_BUSY)
        of_group = self.groups.setdefault(group, PopGroup(group))
        made = Consumption(of_group, topic)
        self._consumptions[group, topic] = of_group.consumptions[topic] = made
        self.by_topic.setdefault(topic, {})[group] = made.main
        return made

    def extend(self, consumption: Consumption, *, from_min: bool = False) -> None:
        """Have the queues and topics of retries that there are now."""
        config = self._topics.get(consumption.topic)
        if config is not None:
            levels = config.read_queue_nums if has_priorities(config.attributes_map) else 0
            consumption.levels = levels
            self.add_queues(consumption.main, config.read_queue_nums, from_min=from_min)
        for kind in (RETRY, PLUS_RETRY):
            name = pop_retry_topic(consumption.group.name, consumption.topic, kind)
            config = self._topics.get(name)
            if config is not None:
                source = consumption.retries.get(kind)
                if source is None:
                    source = Source(consumption.group, consumption.topic, kind, name)
                    consumption.retries[kind] = source
                    self.by_topic.setdefault(name, {})[consumption.group.name] = source
                    self._warn_of_shared(source)
                self.add_queues(source, config.read_queue_nums, from_min=True)
        self._open_old_retry(consumption.group)

    def is_shared(self, source: Source) -> bool:
        """Return whether a topic of retries has what other groups wait for, too, by its name."""
        if source.kind != RETRY:
            return False
        group = source.topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX)
        return group in self._groups.table or len(self.by_topic.get(source.topic, ())) > 1

    def _warn_of_shared(self, source: Source) -> None:
        if self.is_shared(source) and source.topic not in self._warned:
            self._warned.add(source.topic)
            log.warning(
                "%s is the topic of retries of group %s in %s and of another group: consumers that "
                "pull from it get messages of both; set enableRetryTopicV2=true, or rename a group",
                source.topic,
                source.group.name,
                source.asked_topic,
            )

    def has_topic(self, name: str) -> bool:
        """Return whether there is a topic."""
        return name in self._topics.table

    def _open_old_retry(self, group: PopGroup) -> None:
        """Read `%RETRY%group` too, if there is one."""
        name = retry_topic(group.name)
        config = self._topics.get(name)
        if config is None:
            return
        if group.old_retry is None:
            group.old_retry = Source(group, "", OLD_RETRY, name)
            self.by_topic.setdefault(name, {})[group.name] = group.old_retry
        self.add_queues(group.old_retry, config.read_queue_nums, from_min=True)

    def topics_of_retries(self, name: str) -> list[str]:
        """Return the topics whose messages wait for another pop in a topic of retries."""
        sources = self.by_topic.get(name, {}).values()
        return [source.asked_topic for source in sources if source.kind == RETRY]

    def queues(self) -> Iterator[PopQueue]:
        """Yield every source queue."""
        for group in self.groups.values():
            for consumption in group.consumptions.values():
                for source in consumption.own_sources():
                    yield from source.queues
            if group.old_retry is not None:
                yield from group.old_retry.queues

    def queue_of(self, key: Key) -> PopQueue | None:
        """Return a source queue by its name in the journal."""
        group = self.groups.get(key.group)
        if group is None:
            return None
        source = group.old_retry
        if key.kind != OLD_RETRY:
            consumption = group.consumptions.get(key.topic)
            if consumption is None:
                return None
            source = consumption.source_of(key.kind)
        if source is None or key.queue_id >= len(source.queues):
            return None
        return source.queues[key.queue_id]

    def revive(self, key: Key) -> PopQueue | None:
        """Make a source queue that the journal names; None when group or topic are no more."""
        if key.group not in self._groups.table:
            return None
        if key.kind == OLD_RETRY:
            self._open_old_retry(self.groups.setdefault(key.group, PopGroup(key.group)))
        elif key.topic not in self._topics.table:
            return None
        else:
            found = self.find(key.group, key.topic) or self.make(key.group, key.topic)
            self.extend(found)
        return self.queue_of(key)

    def is_ordered(self, group: str) -> bool:
        """Return whether a group consumes in order."""
        settings = self._groups.table.get(group)
        return settings is not None and settings.is_orderly

    def add_queues(self, source: Source, count: int, *, from_min: bool) -> None:
        """Let a source have at least so many queues."""
        for queue_id in range(len(source.queues), count):
            group, topic = source.group.name, source.topic
            end = self._store.max_offset(topic, queue_id)
            offset = self._offsets.query(group, topic, queue_id)
            if offset < 0:
                offset = self._first_offset(topic, queue_id, from_min=from_min)
                self._offsets.advance(group, topic, queue_id, offset)
            queue = PopQueue(source, queue_id, min(offset, end))
            source.queues.append(queue)
            self._queue_count += 1
            if queue.next_offset < end:
                source.list(queue)

    def _first_offset(self, topic: str, queue_id: int, *, from_min: bool) -> int:
        store = self._store
        low = store.min_offset(topic, queue_id)
        if from_min:
            return low
        units = store.queue_units(topic, queue_id, 0, 1) if low <= 0 else []
        if low <= 0 and (not units or store.is_in_memory(units[0].commit_offset)):
            return 0
        return max(0, store.max_offset(topic, queue_id) - 1)

    def forget(self, consumption: Consumption) -> None:
        """Forget a group in a topic; the caller has seen to what is in flight."""
        group = consumption.group
        self._consumptions.pop((group.name, consumption.topic), None)
        group.consumptions.pop(consumption.topic, None)
        for source in consumption.own_sources():
            self._drop(source)
        if not group.consumptions:
            if group.old_retry is not None:
                self._drop(group.old_retry)
            self.groups.pop(group.name, None)

    def forget_source(self, source: Source) -> None:
        """Forget a topic of retries that was deleted; the caller has seen to what is in flight."""
        if source is source.group.old_retry:
            source.group.old_retry = None
        else:
            del source.group.consumptions[source.asked_topic].retries[source.kind]
        self._drop(source)

    def _drop(self, source: Source) -> None:
        self._queue_count -= len(source.queues)
        of_topic = self.by_topic.get(source.topic)
        if of_topic is not None and of_topic.get(source.group.name) is source:
            del of_topic[source.group.name]
            if not of_topic:
                del self.by_topic[source.topic]

    def _forget_idle(self) -> None:
        """Forget what says no more than the table of offsets does."""
        for consumption in list(self.all()):
            group = consumption.group
            if consumption.is_idle and (len(group.consumptions) > 1 or not group.in_flight):
                self.forget(consumption)
