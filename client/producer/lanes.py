"""Lanes: which queue a message goes to, the broker of that queue, and a template for its frames.

Queues take turns unless a key, a selector or the caller chooses. With `latency_fault` the producer
avoids slow and failing brokers for a while:

    the try took at least, ms    50  100    550   1000    2000    3000   15000
    the broker is avoided for, s  0    0     30     60     120     180     600

A failed try counts as one of 30 s. While every broker of a topic is avoided, the quicker half of
those known takes turns. This holds for all messages of the producer, while the switch to another
broker after a failed try holds for one message. Keyed and chosen queues stay as they are.

Loop thread. Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/producer/
TopicPublishInfo.java (selectOneMessageQueue), client/.../producer/selector/
SelectMessageQueueByHash.java, client/.../latency/MQFaultStrategy.java,
LatencyFaultToleranceImpl.java
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from random import Random
from typing import Final, NamedTuple

from skylarkmq.client.config import ProducerConfig
from skylarkmq.client.errors import IllegalState, RouteNotFound
from skylarkmq.client.namespace import Namespace
from skylarkmq.client.wire.api_send import SendTemplate
from skylarkmq.client.wire.route import TopicRoute
from skylarkmq.protocol.flags import MASTER_ID
from skylarkmq.protocol.message import Message, MessageQueue
from skylarkmq.protocol.tags_code import java_string_hash

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Gets the topic's writable queues and a message; returns the queue that the message goes to."""
TOPICS_MAX: Final = 4096
LATENCY_MS: Final = (50, 100, 550, 1000, 2000, 3000, 15000)
AVOIDED_S: Final = (0, 0, 30, 60, 120, 180, 600)
assert len(LATENCY_MS) == len(AVOIDED_S)
FAILED_MS: Final = 30_000
BROKERS_MAX: Final = 1024
Choice = Callable[[Sequence[MessageQueue]], MessageQueue]
"""Picks the queue of one message; None in its place means: in turn."""
LANES_MAX: Final = 65_536


class RoundRobin:
    """Takes a topic's queues in turn, each topic from a random start."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._next: dict[str, int] = {}

    def select(
        self,
        topic: str,
        queues: Sequence[MessageQueue],
        accepts: Callable[[MessageQueue], bool],
    ) -> MessageQueue:
        """Return the next queue that `accepts` takes, or the next one when it accepts none."""
        index = self._next.get(topic)
        if index is None:
            if len(self._next) >= TOPICS_MAX:
                self._next.clear()
            index = self._random.randrange(len(queues))
        count = len(queues)
        for step in range(count):
            if accepts(queues[(index + step) % count]):
                index += step
                break
        self._next[topic] = index + 1
        return queues[index % count]


class _Fault(NamedTuple):
    latency_ms: float
    until_s: float


class LatencyFaults:
    """What the last try at each broker was like. Loop thread."""

    def __init__(self) -> None:
        self._faults: dict[str, _Fault] = {}
        self._turn = 0

    def ended(self, broker_name: str, took_s: float, now_s: float, *, failed: bool) -> None:
        """Note a try that took `took_s` seconds and ended at `now_s`, monotonic."""
        took_ms = took_s * 1000
        avoided_s = avoided_for_s(FAILED_MS if failed else took_ms)
        if broker_name not in self._faults and len(self._faults) >= BROKERS_MAX:
            del self._faults[next(iter(self._faults))]
        self._faults[broker_name] = _Fault(took_ms, now_s + avoided_s)

    def is_available(self, broker_name: str, now_s: float) -> bool:
        """Return whether messages go there now."""
        fault = self._faults.get(broker_name)
        return fault is None or now_s >= fault.until_s

    def least_bad(self, broker_names: Iterable[str], now_s: float) -> str | None:
        """Return the broker to use when all are avoided; None when no try at them is known.

        Available ones first, then by latency, then by the end of their time.
        """
        known = [(name, self._faults[name]) for name in broker_names if name in self._faults]
        if not known:
            return None
        known.sort(
            key=lambda item: (now_s < item[1].until_s, item[1].latency_ms, item[1].until_s, item[0])
        )
        self._turn += 1
        return known[self._turn % max(len(known) // 2, 1)][0]


class Lane(NamedTuple):
    """The way to one queue; `shown` is the queue by the application's name of the topic."""

    route: TopicRoute
    shown: MessageQueue
    address: str
    template: SendTemplate


class Turns:
    """Whose turn it is among the queues of a topic that has one route, and their lanes so far."""

    __slots__ = ("index", "lanes", "route", "take")

    def __init__(self, route: TopicRoute, index: int) -> None:
        self.route = route
        self.index = index
        self.lanes: list[Lane | None] = [None] * len(route.publish_queues)
        self.take: Callable[[], Lane] | None = None
        """Returns the next lane without a step in Python; None until all lanes are known."""

    def note(self, index: int, lane: Lane) -> None:
        """Take note of a lane that has its turn now."""
        self.lanes[index] = lane
        known = [lane for lane in self.lanes if lane is not None]
        if len(known) == len(self.lanes):
            self.take = cycle(known[index + 1 :] + known[: index + 1]).__next__


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
        self._turns: Final[dict[str, Turns]] = {}
        self.turns: Final[Callable[[str], Turns | None]] = self._turns.get
        """Return whose turn it is among the queues of a topic, if that is known."""

    def next(self, topic: str, route: TopicRoute) -> Lane:
        """Return the lane to the queue whose turn it is, for a message that may go to any.

        Raises:
            RouteNotFound: no broker of these queues has a master.
        """
        turns = self._turns.get(topic)
        if turns is None or turns.route is not route:
            turns = self._new_turns(topic, route)
        if turns.take is not None:
            return turns.take()
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
            failed_broker: where the last try of this message failed.

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

    def _next_with_master(self, turns: Turns, index: int, route: TopicRoute) -> Lane:
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
                lane = self._lane(queues[place], route)
                turns.note(place, lane)
                return lane
        return self._lane(queues[index], route)

    def _new_turns(self, topic: str, route: TopicRoute) -> Turns:
        if len(self._turns) >= TOPICS_MAX:
            self._turns.clear()
        start = self._random.randrange(len(route.publish_queues))
        turns = self._turns[topic] = Turns(route, start)
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


def by_hash(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """Return the queue of `key`: the one that Java's SelectMessageQueueByHash takes."""
    code = java_string_hash(key)
    # Java's % keeps the sign of the hash and abs is taken afterwards.
    return queues[abs(code) % len(queues)]


def checked(
    selector: QueueSelector, queues: Sequence[MessageQueue], message: Message
) -> MessageQueue:
    """Return what the user's selector chose.

    Raises:
        IllegalState: that is none of the queues, or the selector failed.
    """
    try:
        chosen = selector(queues, message)
    except Exception as error:  # the user's code; the send ends with it, the producer goes on
        raise IllegalState(f"the selector failed: {error!r}") from error
    if chosen not in queues:
        raise IllegalState(f"the selector returned {chosen!r}, which is none of the queues")
    return chosen


def avoided_for_s(latency_ms: float) -> int:
    """Return for how long a broker with such a latency is avoided, seconds."""
    index = bisect_right(LATENCY_MS, latency_ms) - 1
    return AVOIDED_S[index] if index >= 0 else 0
