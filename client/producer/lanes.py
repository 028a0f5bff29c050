"""The ways to the queues: which queue is next, which broker holds it, and frames made ready for it.

Loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

from skylarkmq.client.config import ProducerConfig
from skylarkmq.client.errors import RouteNotFound
from skylarkmq.client.namespace import Namespace
from skylarkmq.client.producer.latency_fault import LatencyFaults
from skylarkmq.client.producer.queue_selector import TOPICS_MAX, RoundRobin
from skylarkmq.client.producer.send import Choice
from skylarkmq.client.wire.api_send import SendTemplate
from skylarkmq.client.wire.route import MASTER_ID, TopicRoute
from skylarkmq.protocol.message import MessageQueue

LANES_MAX: Final = 65_536


class Lane(NamedTuple):
    """The way to one queue; `shown` is the queue by the application's name of the topic."""

    route: TopicRoute
    shown: MessageQueue
    address: str
    template: SendTemplate


class _Turns:
    """Whose turn it is among the queues of a topic that has one route, and their lanes so far."""

    __slots__ = ("index", "lanes", "route")

    def __init__(self, route: TopicRoute, index: int) -> None:
        self.route = route
        self.index = index
        self.lanes: list[Lane | None] = [None] * len(route.publish_queues)


class Lanes:
    """The lanes of one producer, remembered as long as their routes are the same."""

    def __init__(
        self,
        config: ProducerConfig,
        namespace: Namespace,
        monotonic: Callable[[], float],
        random: Random,
    ) -> None:
        self.faults = LatencyFaults() if config.latency_fault else None
        self._config = config
        self._namespace = namespace
        self._monotonic = monotonic
        self._select = RoundRobin(random).select
        self._random = random
        self._lanes: dict[MessageQueue, Lane] = {}
        self._turns: dict[str, _Turns] = {}

    def next(self, topic: str, route: TopicRoute) -> Lane:
        """Return the lane to the queue whose turn it is, for a message that may go to any.

        Raises:
            RouteNotFound: no broker of these queues has a master.
        """
        turns = self._turns.get(topic)
        if turns is None or turns.route is not route:
            turns = self._new_turns(topic, route)
        index = turns.index
        lanes = turns.lanes
        turns.index = index + 1 if index + 1 < len(lanes) else 0
        lane = lanes[index]
        return self._next_with_master(turns, index, route) if lane is None else lane

    def pick(
        self, topic: str, route: TopicRoute, choice: Choice | None, failed_broker: str | None = None
    ) -> Lane:
        """Return the lane for the next message of `topic`, whatever there is to heed.

        Args:
            route: has queues.
            failed_broker: where the last try of this message came to nothing.

        Raises:
            RouteNotFound: the broker of the chosen queue has no master.
            IllegalState: the selector failed.
        """
        if choice is not None:
            queue = choice(route.publish_queues)
        elif self.faults is not None:
            queue = self._quick(self.faults, topic, route)
        elif failed_broker is None:
            return self.next(topic, route)
        else:
            queue = self._select(
                topic, route.publish_queues, lambda queue: queue.broker_name != failed_broker
            )
        return self._lane(queue, route)

    def to(self, shown: MessageQueue | None) -> Lane | None:
        """Return the lane to a queue that was picked before, if it is still remembered."""
        return None if shown is None else self._lanes.get(self._namespace.wrap_queue(shown))

    def _next_with_master(self, turns: _Turns, index: int, route: TopicRoute) -> Lane:
        """Return the lane at `index`, or the next one; ordered topics keep queues without master.

        Raises:
            RouteNotFound: none has a master.
        """
        queues = route.publish_queues
        count = len(queues)
        for step in range(count):
            place = (index + step) % count
            if MASTER_ID in route.brokers.get(queues[place].broker_name, {}):
                turns.index = (place + 1) % count
                lane = turns.lanes[place] = self._lane(queues[place], route)
                return lane
        return self._lane(queues[index], route)

    def _new_turns(self, topic: str, route: TopicRoute) -> _Turns:
        if len(self._turns) >= TOPICS_MAX:
            self._turns.clear()
        start = self._random.randrange(len(route.publish_queues))
        turns = self._turns[topic] = _Turns(route, start)
        return turns

    def _lane(self, queue: MessageQueue, route: TopicRoute) -> Lane:
        known = self._lanes.get(queue)
        if known is not None and known.route is route:
            return known
        address = route.brokers.get(queue.broker_name, {}).get(MASTER_ID)
        if address is None:
            why = f"Broker {queue.broker_name} has no master at the moment"
            raise RouteNotFound(queue.topic, "no_broker", why)
        if len(self._lanes) >= LANES_MAX:
            self._lanes.clear()
        template = SendTemplate(self._config.group, queue, self._config.default_topic_queues)
        lane = Lane(route, self._namespace.unwrap_queue(queue), address, template)
        self._lanes[queue] = lane
        return lane

    def _quick(self, faults: LatencyFaults, topic: str, route: TopicRoute) -> MessageQueue:
        queues = route.publish_queues
        now_s = self._monotonic()
        queue = self._select(
            topic, queues, lambda queue: faults.is_available(queue.broker_name, now_s)
        )
        if faults.is_available(queue.broker_name, now_s):
            return queue
        best = faults.least_bad({queue.broker_name for queue in queues}, now_s)
        return self._select(topic, queues, lambda queue: queue.broker_name == best)
