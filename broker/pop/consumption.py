"""What one group has of pop consumption: its topics, their queues, and the receives that wait.

    PopGroup       one consumer group
    Consumption    the group in one topic; receives ask for that
    Source         a topic of the store that is read for it: the topic itself, `%RETRY%group_topic`
                   and `%RETRY%group+topic`, and for all topics of the group `%RETRY%group`
    WaitingLine    receives that found nothing, first come first served

When something arrives, the first in the line is woken. It takes what it wants and wakes the next
one while something is left. So an arrival costs as many turns as it serves receives, whatever
number waits.

Loop thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from skylarkmq.broker.pop.deliveries import Delivery, PopQueue
from skylarkmq.broker.pop.handles import MAIN, OLD_RETRY, PLUS_RETRY, RETRY, Receipt
from skylarkmq.broker.pop.requests import PopRequest
from skylarkmq.protocol.flags import retry_topic as old_retry_topic
from skylarkmq.protocol.flags import validate_topic

ENDED_MAX: Final = 256
"""Acknowledged receipts that are remembered, so that a repeated acknowledgement is no error."""


class Source:
    """A topic of the store that a group's receives read.

    Attributes:
        topic: in the store.
        asked_topic: that receives ask for; "" where it is read for all topics of the group.
        ready: queues that may have something; each is there once (`PopQueue.is_listed`).
    """

    __slots__ = ("asked_topic", "group", "kind", "queues", "ready", "topic")

    def __init__(self, group: PopGroup, asked_topic: str, kind: int, topic: str) -> None:
        self.group = group
        self.asked_topic = asked_topic
        self.kind = kind
        self.topic = topic
        self.queues: list[PopQueue] = []
        self.ready: deque[PopQueue] = deque()

    def list(self, queue: PopQueue) -> None:
        """Note that a queue may have something."""
        if not queue.is_listed:
            queue.is_listed = True
            self.ready.append(queue)

    def unlist(self, queue: PopQueue) -> None:
        """Note that a queue is being looked at."""
        if queue.is_listed:
            queue.is_listed = False
            self.ready.remove(queue)


class PopGroup:
    """One consumer group.

    Attributes:
        in_flight: messages that are not done, in all its topics.
        clients: client id -> what it has in hand.
        parked: what waits in `%RETRY%group` for a receive of its own topic, by that.
    """

    __slots__ = ("clients", "consumptions", "in_flight", "name", "old_retry", "parked")

    def __init__(self, name: str) -> None:
        self.name = name
        self.in_flight = 0
        self.consumptions: dict[str, Consumption] = {}
        self.clients: dict[str, dict[Delivery, None]] = {}
        self.old_retry: Source | None = None
        self.parked: dict[str, deque[Delivery]] = {}

    def took(self, delivery: Delivery) -> None:
        """Note that a client has a message."""
        held = self.clients.get(delivery.client_id)
        if held is None:
            self.clients[delivery.client_id] = {delivery: None}
        else:
            held[delivery] = None

    def park(self, delivery: Delivery) -> None:
        """Let a message of `%RETRY%group` wait for a receive of its own topic."""
        self.parked.setdefault(delivery.topic, deque()).append(delivery)

    def unpark(self, queue: PopQueue) -> None:
        """Forget what waits so of one queue."""
        for topic, waiting in list(self.parked.items()):
            rest = deque(delivery for delivery in waiting if delivery.queue is not queue)
            if rest:
                self.parked[topic] = rest
            else:
                del self.parked[topic]

    def let_go(self, delivery: Delivery) -> None:
        """Note that a client has a message no more."""
        held = self.clients.get(delivery.client_id)
        if held is not None:
            held.pop(delivery, None)
            if not held:
                del self.clients[delivery.client_id]


class Consumption:
    """A group in one topic.

    Attributes:
        retries: its topics of retries that there are, by their kinds.
        has_retries: False where their names would be too long, and messages come again in place.
        attempts: attempt id -> the queues whose open batch it got.
        ended: the last receipts that were acknowledged.
        redelivered: messages that were handed out again, since the start.
        levels: of priority, each a queue, the last one the highest; 0: the topic has none.
        checked: what the last check of topic and group has seen; another value: check again.
    """

    __slots__ = ("attempts", "checked", "ended", "group", "has_retries", "levels", "line",
                 "main", "redelivered", "retries", "topic", "turns")  # fmt: skip

    def __init__(self, group: PopGroup, topic: str) -> None:
        self.group = group
        self.topic = topic
        self.has_retries = validate_topic(pop_retry_topic(group.name, topic)) is None
        self.main = Source(group, topic, MAIN, topic)
        self.retries: dict[int, Source] = {}
        self.line = WaitingLine(self.has_ready)
        self.attempts: dict[str, list[PopQueue]] = {}
        self.ended: deque[Receipt] = deque(maxlen=ENDED_MAX)
        self.turns = 0
        self.redelivered = 0
        self.levels = 0
        self.checked: object = None

    def sources(self) -> list[Source]:
        """Return what is read for it, the topic itself first."""
        shared = self.group.old_retry
        return [*self.own_sources(), *(() if shared is None else (shared,))]

    def own_sources(self) -> list[Source]:
        """Return those that are read for it alone, the topic itself first."""
        return [self.main, *self.retries.values()]

    def queue_of(self, kind: int, queue_id: int) -> PopQueue | None:
        """Return a source queue, as a receipt names it."""
        source = self.source_of(kind)
        if source is None or not 0 <= queue_id < len(source.queues):
            return None
        return source.queues[queue_id]

    def source_of(self, kind: int) -> Source | None:
        """Return what is read for it of a kind."""
        if kind == MAIN:
            return self.main
        return self.group.old_retry if kind == OLD_RETRY else self.retries.get(kind)

    def has_ready(self, request: PopRequest) -> bool:
        """Return whether a receive may find something; it may be wrong about yes."""
        if not request.is_fifo:
            for retries in self.retries.values():
                if retries.ready:
                    return True
            group = self.group
            if (
                group.old_retry is not None and group.old_retry.ready
            ) or self.topic in group.parked:
                return True
        if request.queue_id < 0:
            return bool(self.main.ready)
        queues = self.main.queues
        return request.queue_id < len(queues) and queues[request.queue_id].is_listed

    def open_batch(self, queue: PopQueue, attempt_id: str) -> None:
        """Note whose attempt has an ordered queue's messages in hand, in place of another's."""
        self.close_batch(queue)
        queue.attempt_id = attempt_id
        if attempt_id:
            self.attempts.setdefault(attempt_id, []).append(queue)

    def close_batch(self, queue: PopQueue) -> None:
        """Forget whose attempt has a queue's messages."""
        queues = self.attempts.get(queue.attempt_id)
        if queues is not None:
            if queue in queues:
                queues.remove(queue)
            if not queues:
                del self.attempts[queue.attempt_id]
        queue.attempt_id = ""

    def take_back(self, delivery: Delivery) -> None:
        """Let an acknowledgement count no more: a message before it comes again."""
        kind, queue_id = delivery.queue.source.kind, delivery.queue.queue_id
        with suppress(ValueError):
            self.ended.remove(Receipt(kind, queue_id, delivery.offset, delivery.serial))

    @property
    def in_flight(self) -> int:
        """How many messages are not done, of the topic and of its retries."""
        return sum(len(queue.in_flight) for source in self.own_sources() for queue in source.queues)

    @property
    def is_idle(self) -> bool:
        """True when nothing is in flight and nobody waits: it may be forgotten."""
        if self.line.count:
            return False
        return not any(
            queue.in_flight or queue.is_reading
            for source in self.own_sources()
            for queue in source.queues
        )


class Waiter:
    """A receive that waits."""

    __slots__ = ("following", "is_over", "is_woken", "network", "previous", "request", "woken")

    def __init__(self, request: PopRequest, network: bytes = b"") -> None:
        self.request = request
        self.network = network  # the address that waits
        self.is_woken = False  # it is its turn
        self.is_over = False  # it is to wait no longer, whatever time it has
        self.woken: asyncio.Future[bool] | None = None
        self.previous: Waiter | None = None
        self.following: Waiter | None = None

    async def wait(self) -> bool:
        """Return True when it is its turn, False when its time is over."""
        if self.is_woken or self.is_over:
            return self.is_woken
        self.woken = asyncio.get_running_loop().create_future()
        try:
            return await self.woken
        finally:
            self.woken = None

    def end(self) -> None:
        """Have it wait no longer, also where it looks for messages just now."""
        self.is_over = True
        self.tell(False)

    def tell(self, is_turn: bool) -> None:
        """End the wait."""
        if self.woken is not None and not self.woken.done():
            self.woken.set_result(is_turn)


class WaitingLine:
    """Receives in the order in which they came; at most one has its turn."""

    __slots__ = ("_first", "_has_ready", "_is_serving", "_last", "_wake_again", "count")

    def __init__(self, has_ready: Callable[[PopRequest], bool]) -> None:
        """Begin with an empty line.

        Args:
            has_ready: tells whether a receive may find something.
        """
        self.count = 0
        self._has_ready = has_ready
        self._first: Waiter | None = None
        self._last: Waiter | None = None
        self._is_serving = False
        self._wake_again = False  # something came while one had its turn

    def add(self, waiter: Waiter) -> None:
        """Put a receive at the end of the line."""
        waiter.previous = self._last
        if self._last is None:
            self._first = waiter
        else:
            self._last.following = waiter
        self._last = waiter
        self.count += 1

    def wake(self) -> None:
        """Let the first one look whom what is there may serve."""
        if self._first is None:
            return
        if self._is_serving:
            self._wake_again = True
        else:
            self._serve(self._first)

    def wake_all(self) -> None:
        """Let all look: there is nothing to wait for any more."""
        waiter = self._first
        while waiter is not None:
            waiter.tell(False)
            waiter = waiter.following

    def end_all(self) -> None:
        """Let nobody wait any longer who waits now."""
        waiter = self._first
        while waiter is not None:
            waiter.end()
            waiter = waiter.following

    def pass_on(self, waiter: Waiter) -> None:
        """End a turn: it is that of the next one whom what is left may serve."""
        if waiter.is_woken:
            waiter.is_woken = False
            self._serve(waiter.following)

    def leave(self, waiter: Waiter) -> None:
        """Leave the line, and pass on the turn."""
        previous, following = waiter.previous, waiter.following
        if previous is None:
            self._first = following
        else:
            previous.following = following
        if following is None:
            self._last = previous
        else:
            following.previous = previous
        self.count -= 1
        self.pass_on(waiter)

    def _serve(self, waiter: Waiter | None) -> None:
        has_ready = self._has_ready
        while waiter is not None and not has_ready(waiter.request):
            waiter = waiter.following
        if waiter is None and self._wake_again:
            self._wake_again = False
            waiter = self._first
            while waiter is not None and not has_ready(waiter.request):
                waiter = waiter.following
        self._is_serving = waiter is not None
        if waiter is not None:
            waiter.is_woken = True
            waiter.tell(True)


def pop_retry_topic(group: str, topic: str, kind: int = RETRY) -> str:
    """Return where a group's messages of a topic wait for another try, as RocketMQ 5 names it."""
    return f"{old_retry_topic(group)}{'+' if kind == PLUS_RETRY else '_'}{topic}"
