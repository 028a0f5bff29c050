"""What others change while messages are in hand: an administrator's offsets, topics, groups.

The change wins. Of what it concerns nothing is in flight any more, and handles from before say
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from skylarkmq.broker.base.waiting import result_of
from skylarkmq.broker.pop.consumption import Consumption, let_go
from skylarkmq.broker.pop.deliveries import Lapses, PopQueue
from skylarkmq.broker.pop.handles import OLD_RETRY
from skylarkmq.broker.pop.moves import Moves
from skylarkmq.broker.pop.registry import PopRegistry
from skylarkmq.broker.pop.taking import Taker
from skylarkmq.broker.requests.processor import Context
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.flags import RETRY_GROUP_TOPIC_PREFIX
from skylarkmq.store.pop.journal_records import Forgot, Moved

log = logging.getLogger(__name__)


class Journal(Protocol):
    """Where a change is written down; see `PopJournal`."""

    def note(self, record: Forgot | Moved) -> None: ...

    def after(
        self, done: Callable[[BaseException | None], None], *, is_synced: bool = False
    ) -> None: ...


class Pop(Protocol):
    """What is changed; see `PopService`."""

    registry: PopRegistry
    lapses: Lapses
    taker: Taker
    moves: Moves

    @property
    def journal(self) -> Journal: ...

    def relist(self, queue: PopQueue) -> None: ...

    def unblock(self, queue: PopQueue) -> None: ...


class Outside:
    """Follows the tables of topics, groups and offsets. Loop thread."""

    def __init__(self, context: Context, pop: Pop) -> None:
        self._pop = pop
        self._has_reset = False  # and the journal may not have it yet
        context.topics.add_change_listener(self._topic_changed)
        context.topics.add_deletion_listener(self._topic_deleted)
        context.groups.deletion_listeners.append(self._group_deleted)
        context.offsets.on_set = self._offset_set
        context.offsets.before_write = self._resets_kept

    def _topic_changed(self, config: TopicConfig) -> None:
        """Read new queues, and a topic of retries that 4.x consumers have had made."""
        topic = config.topic_name
        group = self._pop.registry.groups.get(topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX))
        grown = {source.group for source in self._pop.registry.by_topic.get(topic, {}).values()}
        if group is not None and topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            grown.add(group)
        for found in grown:
            for consumption in found.consumptions.values():
                self._pop.registry.extend(consumption)

    def _offset_set(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Follow an administrator, or whoever else, who moves a group."""
        source = self._pop.registry.by_topic.get(topic, {}).get(group)
        if source is None or queue_id >= len(source.queues):
            return
        queue = source.queues[queue_id]
        if offset == queue.next_offset and not queue.in_flight:
            return
        log.log(
            logging.INFO if queue.in_flight else logging.DEBUG,
            "group %s goes on at %d in queue %d of %s, with nothing in flight of %d",
            group,
            offset,
            queue_id,
            topic,
            len(queue.in_flight),
        )
        self._drop(queue)
        queue.reset(offset)
        self._pop.journal.note(Moved(queue.key, offset))
        self._has_reset = True
        self._pop.relist(queue)

    async def _resets_kept(self) -> None:
        """Return when the journal has all resets on the disk, before the table of offsets has.

        Else a start after a power cut would take the journal's older word for a newer one.

        Raises:
            OSError, StoreError: the disk does not take it.
        """
        if not self._has_reset:
            return
        self._has_reset, after = False, self._pop.journal.after
        try:
            await result_of(lambda done: after(lambda error: done(None, error), is_synced=True))
        except Exception:
            self._has_reset = True
            raise

    def _drop(self, queue: PopQueue) -> None:
        """Forget what is in flight of a queue."""
        group = queue.source.group
        for delivery in queue.in_flight.values():
            self._pop.lapses.release(delivery)
            let_go(delivery)
        group.in_flight -= len(queue.in_flight)
        self._pop.taker.in_flight -= len(queue.in_flight)
        self._pop.taker.full.discard(queue)
        queue.reset(queue.next_offset)
        if queue.source.kind == OLD_RETRY:
            group.unpark(queue)
        for full in list(self._pop.taker.full):
            self._pop.unblock(full)

    def _group_deleted(self, name: str) -> None:
        group = self._pop.registry.groups.get(name)
        if group is None:
            return
        for consumption in list(group.consumptions.values()):
            self._forget(consumption)
        self._pop.journal.note(Forgot(name, None))

    def _topic_deleted(self, topic: str) -> None:
        for group in self._pop.registry.groups.values():
            for delivery in group.parked.pop(topic, ()):
                delivery.to_dead_letters = True
                self._pop.moves.add(delivery)
        for source in list(self._pop.registry.by_topic.get(topic, {}).values()):
            group = source.group
            if source.asked_topic == topic:
                self._forget(group.consumptions[topic])
                self._pop.journal.note(Forgot(group.name, topic))
                continue
            for queue in source.queues:
                self._drop(queue)
                self._pop.journal.note(Moved(queue.key, 0))
            self._pop.registry.forget_source(source)

    def _forget(self, consumption: Consumption) -> None:
        for source in consumption.sources():
            if source.asked_topic or len(consumption.group.consumptions) == 1:
                for queue in source.queues:
                    self._drop(queue)
        self._pop.registry.forget(consumption)
        consumption.line.wake_all()
