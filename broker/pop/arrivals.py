"""Which queues may have something for receives, and who is woken for it."""

from __future__ import annotations

import asyncio

from skylarkmq.broker.pop.consumption import Consumption, PopGroup, Source
from skylarkmq.broker.pop.deliveries import PopQueue
from skylarkmq.broker.pop.registry import PopRegistry
from skylarkmq.store.message_store import MessageStore


class Arrivals:
    """Lists queues that may have something, and wakes receives that wait. Loop thread."""

    def __init__(self, store: MessageStore, registry: PopRegistry) -> None:
        self._store = store
        self._registry = registry
        self._listens = False
        self._to_wake: list[Consumption] = []
        self._is_waking = False

    def listen(self) -> None:
        """Hear of what the store publishes, from now on."""
        if not self._listens:
            self._listens = True
            self._store.add_arrival_listener(self._arrived)

    def has_more(self, queue: PopQueue) -> bool:
        """Return whether a queue may have something for the next receive."""
        if queue.is_reading or queue.is_full or (queue.is_fifo and queue.is_blocked):
            return False
        if queue.again:
            return True
        return queue.next_offset < self._store.max_offset(queue.source.topic, queue.queue_id)

    def relist(self, queue: PopQueue) -> None:
        """Let receives look at a queue again, if it has something for them."""
        if not queue.is_listed and self.has_more(queue):
            queue.source.list(queue)
            self._wake(queue.source)

    def wake(self, group: PopGroup, topic: str) -> None:
        """Wake who waits for messages of a topic, in the next turn: this may be a sender's."""
        consumption = group.consumptions.get(topic)
        if consumption is None or not consumption.line.count:
            return
        self._to_wake.append(consumption)
        if not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._wake_all)

    def _arrived(self, topic: str, queue_id: int, _max_offset: int) -> None:
        sources = self._registry.by_topic.get(topic)
        if sources is None:
            return
        for source in sources.values():
            if queue_id < len(source.queues):
                queue = source.queues[queue_id]
                if not (queue.is_listed or queue.is_full or queue.is_reading) and not (
                    queue.is_fifo and queue.is_blocked
                ):
                    source.list(queue)
                    self._wake(source)

    def _wake(self, source: Source) -> None:
        if source.asked_topic:
            self.wake(source.group, source.asked_topic)
        else:
            for topic in source.group.consumptions:
                self.wake(source.group, topic)

    def _wake_all(self) -> None:
        self._is_waking = False
        to_wake, self._to_wake = self._to_wake, []
        for consumption in dict.fromkeys(to_wake):
            consumption.line.wake()
