"""What others change while messages are in hand: an administrator's offsets, topics, groups.

The change wins. Of what it concerns nothing is in flight any more, and handles from before say
nothing.
"""

from __future__ import annotations

import logging

from skylarkmq.broker.base.waiting import result_of
from skylarkmq.broker.pop.consumption import Consumption
from skylarkmq.broker.pop.in_flight import InFlight
from skylarkmq.broker.pop.moves import Moves
from skylarkmq.broker.pop.registry import PopRegistry
from skylarkmq.broker.pop.states import MOVING
from skylarkmq.broker.requests.processor import Context
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.flags import RETRY_GROUP_TOPIC_PREFIX
from skylarkmq.store.pop.journal_records import Forgot, Moved

log = logging.getLogger(__name__)


class AdminChanges:
    """Follows the tables of topics, groups and offsets. Loop thread."""

    def __init__(
        self, context: Context, registry: PopRegistry, in_flight: InFlight, moves: Moves
    ) -> None:
        self._journal = in_flight.journal
        self._registry = registry
        self._in_flight = in_flight
        self._moves = moves
        self._has_reset = False  # and the journal may not have it yet
        context.topics.add_change_listener(self._topic_changed)
        context.topics.add_deletion_listener(self._topic_deleted)
        context.groups.deletion_listeners.append(self._group_deleted)
        context.offsets.on_set = self._offset_set
        context.offsets.before_write = self._resets_kept

    def _topic_changed(self, config: TopicConfig) -> None:
        """Read new queues, and a topic of retries that 4.x consumers have had made."""
        topic = config.topic_name
        group = self._registry.groups.get(topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX))
        grown = {source.group for source in self._registry.by_topic.get(topic, {}).values()}
        if group is not None and topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            grown.add(group)
        for found in grown:
            for consumption in found.consumptions.values():
                self._registry.extend(consumption)

    def _offset_set(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Follow an administrator, or whoever else, who moves a group."""
        source = self._registry.by_topic.get(topic, {}).get(group)
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
        self._in_flight.drop_all(queue)
        queue.reset(offset)
        self._journal.note(Moved(queue.key, offset))
        self._has_reset = True
        self._in_flight.arrivals.relist(queue)

    async def _resets_kept(self) -> None:
        """Return when the journal has all resets on the disk, before the table of offsets has.

        Else a start after a power cut would take the journal's older word for a newer one.

        Raises:
            OSError, StoreError: the disk does not take it.
        """
        if not self._has_reset:
            return
        self._has_reset, after = False, self._journal.after
        try:
            await result_of(lambda done: after(lambda error: done(None, error), is_synced=True))
        except Exception:
            self._has_reset = True
            raise

    def _group_deleted(self, name: str) -> None:
        group = self._registry.groups.get(name)
        if group is None:
            return
        for consumption in list(group.consumptions.values()):
            self._forget(consumption)
        self._journal.note(Forgot(name, None))

    def _topic_deleted(self, topic: str) -> None:
        for group in self._registry.groups.values():
            for delivery in group.parked.pop(topic, ()):
                delivery.move_to(MOVING)
                delivery.to_dead_letters = True
                self._moves.add(delivery)
        for source in list(self._registry.by_topic.get(topic, {}).values()):
            group = source.group
            if source.asked_topic == topic:
                self._forget(group.consumptions[topic])
                self._journal.note(Forgot(group.name, topic))
                continue
            for queue in source.queues:
                self._in_flight.drop_all(queue)
                self._journal.note(Moved(queue.key, 0))
            self._registry.forget_source(source)

    def _forget(self, consumption: Consumption) -> None:
        for source in consumption.sources():
            if source.asked_topic or len(consumption.group.consumptions) == 1:
                for queue in source.queues:
                    self._in_flight.drop_all(queue)
        self._registry.forget(consumption)
        consumption.line.wake_all()
