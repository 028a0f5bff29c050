# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# mypy: disable-error-code="no-untyped-call"
"""What the Kombu connections of one process to one cluster share: client, producer, sources.

    source   one AMQP queue that is consumed here: threads take its messages from the SDK and put
             them where `drain_events` finds them; those of a queue with priorities one by one, see
             `popped.py`
    held     a message that was taken and is not acknowledged at the broker

A message that is not acknowledged when its process dies goes to another member of the queue's
group. After a fork the child has the hub without its sources; the SDK connects anew there.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID
from weakref import WeakSet

from kombu.transport import virtual
from kombu.utils.json import loads
from kombu.utils.uuid import uuid

from skylarkmq.client import (
    IllegalState,
    Message,
    MessageIllegal,
    NotFound,
    RouteNotFound,
    StartFrom,
    Tag,
)
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.sync import Admin, Client, Consumer, PeekReader, Producer, SimpleConsumer
from skylarkmq.integrations.kombu.popped import AGAIN_S, HIDDEN_S, Delivery, PoppedFeed
from skylarkmq.integrations.kombu.topics import (
    EXCHANGE,
    encoded,
    exchange_topic,
    group_of,
    queue_of,
    topic_of,
)
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.topic_attributes import MessageType, has_priorities

log = logging.getLogger(__name__)

QUEUES: Final = 8
"""Of a topic that is made here, on each broker: so many worker processes share it at most."""
CONSUMER: Final[Mapping[str, Any]] = {"max_span": 20_000, "commit_interval": 1.0}
"""Settings of the SDK's consumers: so many messages may be done while a long task before them is
not; and what was acknowledged in the last second before a kill comes again."""
REOPEN_S: Final = 1.0
TRANSIENT_MAX: Final = 10_000
"""Messages that wait for a queue that goes with its connection; beyond that the oldest go."""

Wanted = Callable[[Mapping[str, Any]], bool]


@dataclass(eq=False)
class Held:
    """One message that was taken from the SDK."""

    source: Source
    payload: dict[str, Any]
    received: Delivery | None
    """None when nothing needs to be acknowledged."""

    def ack(self) -> None:
        """It is done."""
        self._settle(lambda received: received.ack())

    def reject(self, reason: str = "rejected") -> None:
        """It is given up: a dead letter of the queue's group."""
        self._settle(lambda received: received.dead_letter(reason))

    def requeue(self) -> None:
        """Let it be handed out again here, before the others; elsewhere if this process ends."""
        self.payload["redelivered"] = True
        self.source.put_back(self)

    def _settle(self, settle: Callable[[Delivery], object]) -> None:
        received = self.received
        self.source.settle(lambda: None if received is None else settle(received))


class Source:
    """One AMQP queue that is consumed in this process. Any thread."""

    def __init__(self, hub: Hub, queue: str, transient: bool) -> None:
        self.users = 0
        """Consumers of it in this process."""
        self.cancelled = False
        """The last of them has gone."""
        self._hub = hub
        self._queue = queue
        self._ready: deque[Held] = deque(maxlen=TRANSIENT_MAX if transient else None)
        self._lock = threading.Lock()
        self._filled = threading.Event()
        self._waited = False
        self._out = 0
        self._untold: list[Callable[[], object]] = []
        self._closed = False
        self._consumer: Consumer | None = None
        self._popped: PoppedFeed | None = None
        self._readers: dict[str, PeekReader] = {}

    # What it reads

    def consume(self, fanouts: Iterable[str]) -> None:
        """Begin as a member of the queue's group."""
        names = [topic_of(self._queue), *(exchange_topic(name) for name in fanouts)]
        for name in names:
            self._hub.ensure_topic(name)
        if self._hub.has_priorities(names[0]):
            self._pop(names)
            return
        self._consumer = consumer = Consumer(
            *names,
            client=self._hub.client,
            group=group_of(self._queue),
            start_from=StartFrom.FIRST,
            ack="manual",
            on_revoked=self._revoked,
            **{**CONSUMER, **self._hub.consumer},
        )
        consumer.start()
        self._thread(self._feed, consumer)

    def _pop(self, names: list[str]) -> None:
        group = group_of(self._queue)
        self._hub.begin_group(group, names[0])
        consumer = SimpleConsumer(
            *names, client=self._hub.client, group=group, invisible_duration=HIDDEN_S
        )
        consumer.start()
        self._popped = popped = PoppedFeed(
            consumer, self._arrived, lambda: self._hub.fail(self._queue)
        )
        self._thread(popped.run)
        self._thread(popped.renew)

    def read(
        self, exchange: str, tag: str | None, wanted: Wanted | None = None, pattern: str = ""
    ) -> None:
        """Begin to read an exchange's topic from now on; returns when it does.

        Args:
            tag: a routing key; None is all.
            wanted: chooses among them, by `pattern`.
        """
        name = exchange_topic(exchange)
        self._hub.ensure_topic(name)
        selector = None if tag is None else Tag(encoded(tag))
        key = f"{name} {tag} {pattern}"
        if key in self._readers:
            return

        def opened() -> PeekReader:
            reader = PeekReader(
                name, client=self._hub.client, start=StartFrom.NOW, selector=selector
            )
            reader.start()
            with self._lock:
                if not self._closed:
                    self._readers[key] = reader
                    return reader
            reader.stop()
            return reader

        self._thread(self._follow, opened(), opened, wanted)

    # What is taken from it

    def take(self) -> Held | None:
        """Return the next message, None when there is none at the moment."""
        return self._next(wants=self._popped)

    def _next(self, wants: PoppedFeed | None = None) -> Held | None:
        with self._lock:
            if not self._ready:
                if wants is not None:
                    wants.is_wanted.set()
                return None
            self._out += 1
            self._waited = True
            held = self._ready.popleft()
            if not self._ready:
                self._filled.clear()
            return held

    def put_back(self, held: Held) -> None:
        """Hand a message out again."""
        with self._lock:
            if not self._closed:
                self._ready.appendleft(held)
                self._filled.set()
        self.settled()

    def settled(self) -> None:
        """Count a message that was taken as done; the last one ends a source without users."""
        with self._lock:
            self._out -= 1
        self._hub.wake()
        self._hub.end_unused(self._queue)

    def settle(self, tell: Callable[[], object]) -> None:
        """Tell a broker what became of a message; again and again while it cannot be told."""
        if not self._is_told(tell, logging.WARNING):
            with self._lock:
                self._untold.append(tell)
                is_first = len(self._untold) == 1
            if is_first:
                self._thread(self._tell_later)

    @property
    def unused(self) -> bool:
        """True when the last consumer has gone, and nothing that was taken is open."""
        return self.cancelled and not self.users and not self._out

    def wait_first(self, timeout_s: float) -> None:
        """Wait, in the first call alone, until a message is here: it takes a moment to come.

        In each call where messages are popped: none is here before it is wanted.
        """
        if self._popped is not None:
            with self._lock:
                if not self._ready:
                    self._popped.is_wanted.set()
            self._waited = False
        waited, self._waited = self._waited, True
        if not waited:
            self._filled.wait(timeout_s)

    def clear(self) -> int:
        """Acknowledge what waits here; return how many that were."""
        count = 0
        while (held := self._next()) is not None:
            held.ack()
            count += 1
        return count

    def close(self) -> None:
        """End it: what is not acknowledged goes to other members of the group."""
        with self._lock:
            self._closed = True
            self._ready.clear()
        if self._consumer is not None:
            self._consumer.stop()
        if self._popped is not None:
            self._popped.stop()
        for reader in list(self._readers.values()):
            reader.stop()

    def forked(self) -> None:
        """It is the parent's, and so is what was taken from it."""
        self._lock = threading.Lock()
        self._closed = True

    # Inside

    def _thread(self, work: Callable[..., None], *args: object) -> None:
        name = f"skylarkmq-kombu-{self._queue}"
        threading.Thread(target=work, args=args, name=name, daemon=True).start()

    def _feed(self, consumer: Consumer) -> None:
        try:
            for message in consumer:
                self._arrived(message.body, message)
        except IllegalState:  # the program ends
            return
        except RocketMQError:
            log.exception("queue %s is consumed no more", self._queue)
            self._hub.fail(self._queue)

    def _follow(
        self, reader: PeekReader, opened: Callable[[], PeekReader], wanted: Wanted | None
    ) -> None:
        level = logging.WARNING
        while not self._closed:
            try:
                for message in reader:
                    level = logging.WARNING
                    self._arrived(message.body, None, wanted)
            except IllegalState:  # the program ends
                return
            except RocketMQError as error:
                log.log(level, "queue %s misses messages, it is read anew: %s", self._queue, error)
                level = logging.DEBUG  # of one outage one line
            if self._closed or self._hub.closed.wait(REOPEN_S):
                return
            try:
                reader.stop()
                reader = opened()
            except RocketMQError as error:
                log.debug("queue %s is tried again: %s", self._queue, error)

    def _is_told(self, tell: Callable[[], object], level: int) -> bool:
        try:
            tell()
        except IllegalState as error:  # it has ended
            log.warning("queue %s: a message is done, and may come again: %s", self._queue, error)
        except RocketMQError as error:
            log.log(level, "queue %s: a broker is told later what is done: %s", self._queue, error)
            return False
        self.settled()
        return True

    def _tell_later(self) -> None:
        is_left = True
        while is_left and not self._hub.closed.wait(AGAIN_S):
            for tell in list(self._untold):
                if self._is_told(tell, logging.DEBUG):
                    with self._lock:
                        self._untold.remove(tell)
                        is_left = bool(self._untold)

    def _arrived(
        self, body: bytes, received: Delivery | None, wanted: Wanted | None = None
    ) -> None:
        try:
            payload: dict[str, Any] = loads(body)
            if wanted is not None and not wanted(payload):
                return
            # A message may come twice, and each time is a delivery of its own.
            payload["properties"]["delivery_tag"] = uuid()
        except (ValueError, KeyError, TypeError):
            log.exception("a message of queue %s is none of Kombu's", self._queue)
            with self._lock:
                self._out += 1
            Held(self, {}, received).reject("no message of Kombu's")
            return
        if received is not None and received.reconsume_times:
            payload["redelivered"] = True
        with self._lock:
            if self._closed:
                return
            self._ready.append(Held(self, payload, received))
            if self._popped is not None:
                self._popped.is_wanted.clear()
            self._filled.set()
        self._hub.wake()

    def _revoked(self, queues: list[MessageQueue]) -> None:
        """Hand out nothing of queues that another member has now."""
        gone = set(queues)
        with self._lock:
            kept = [
                held
                for held in self._ready
                if held.received is None or held.received.queue not in gone
            ]
            self._ready.clear()
            self._ready.extend(kept)


@dataclass(frozen=True)
class Declared:
    """A queue as it was declared, with its bindings to exchanges that this process knows."""

    transient: bool
    fanouts: set[str] = field(default_factory=set[str])


class Hub:
    """The connection of this process to one cluster. Any thread."""

    def __init__(
        self, settings: Mapping[str, Any], queues: int, consumer: Mapping[str, Any]
    ) -> None:
        self.state: Any = virtual.BrokerState()
        self.client = Client(**settings)
        self.consumer = consumer
        self.declared: dict[str, Declared] = {}
        self.closed = threading.Event()
        self._queues = queues
        self._producer = Producer(client=self.client)
        self._admin = Admin(client=self.client)
        self._lock = threading.RLock()
        self._sources: dict[str, Source] = {}
        self._topics: set[str] = set()
        self._priorities: dict[str, bool] = {}
        self._wakers: WeakSet[threading.Event] = WeakSet()
        self._wakers_lock = threading.Lock()
        self._failed = False

    def start(self) -> None:
        """Connect.

        Raises:
            RocketMQError: no name server can be reached.
        """
        try:
            self.client.start()
            self._producer.start()
            self._admin.start()
        except BaseException:
            self.client.stop()
            raise

    def close(self) -> None:
        """End all sources and close the connection."""
        self.closed.set()
        with self._lock:
            sources, self._sources = list(self._sources.values()), {}
        try:
            for source in sources:
                source.close()
        finally:
            self._producer.stop()
            self._admin.stop()
            self.client.stop()

    def forked(self) -> None:
        """Begin anew in the child of a fork: its threads and what they held are the parent's."""
        self._lock, self._wakers_lock = threading.RLock(), threading.Lock()
        self.closed = threading.Event()
        sources, self._sources = self._sources, {}
        for source in sources.values():
            source.forked()

    def wakes(self, waker: threading.Event) -> None:
        """Set this whenever there is something to look for."""
        with self._wakers_lock:
            self._wakers.add(waker)

    def wake(self) -> None:
        """Let all connections look for messages."""
        with self._wakers_lock:
            for waker in self._wakers:
                waker.set()

    def fail(self, queue: str) -> None:
        """Let a connection raise: a queue is refused for good."""
        with self._lock:
            source = self._sources.pop(queue, None)
        if source is not None:
            source.close()
        self._failed = True
        self.wake()

    def check(self) -> None:
        """Raise what `fail` noted, once.

        Raises:
            ConnectionError: it did.
        """
        if self._failed:
            self._failed = False
            raise ConnectionError("a queue is consumed no more; the log has the reason")

    # Topics

    def ensure_topic(self, topic: str, levels: int = 0) -> None:
        """Make a topic that is not there; an exchange's has one queue, for the order.

        Args:
            levels: of priority; 0: none.
        """
        if topic not in self._topics:
            queues = levels or (1 if topic.startswith(EXCHANGE) else self._queues)
            kind: MessageType | None = "PRIORITY" if levels else None
            self._admin.create_topic(topic, queues=queues, message_type=kind, exist_ok=True)
            self._topics.add(topic)
        if levels and not self.has_priorities(topic):
            log.warning(
                "queue %s has no priorities: its topic was there before, without them, or its "
                "brokers do not know them",
                queue_of(topic),
            )

    def has_priorities(self, topic: str) -> bool:
        """Return whether a topic has priorities, on a broker at least."""
        found = self._priorities.get(topic)
        if found is None:
            attributes = self._admin.topic_attributes(topic)
            found = self._priorities[topic] = any(map(has_priorities, attributes.values()))
        return found

    def begin_group(self, group: str, topic: str) -> None:
        """Let a group that is new to a topic have all that is there, also what is old."""
        if group not in self._admin.topic_groups(topic):
            self._admin.create_group(group, exist_ok=True)
            self._admin.reset_offset(group, topic, when="begin")

    def bind_group(self, queue: str, exchange: str) -> None:
        """Let a queue have what a fanout exchange gets from now on, consumed or not."""
        group, topic = group_of(queue), exchange_topic(exchange)
        self.ensure_topic(topic)
        if group not in self._admin.topic_groups(topic):
            self._admin.create_group(group, exist_ok=True)
            self._admin.reset_offset(group, topic, when="end")

    def has_queue(self, queue: str) -> bool:
        """Return whether a queue has a topic; the name server is asked while it is not known.

        Reply queues, which are named by a UUID, have none unless this process knows better.
        """
        topic = topic_of(queue)
        if topic not in self._topics and not _is_uuid(queue):
            self._topics.update(self._admin.list_topics())
        return topic in self._topics

    def send(self, topic: str, body: str, **options: Any) -> None:
        """Store a message."""
        self._producer.send(Message(topic, body, **options))

    def send_at(self, topic: str, body: str, when: datetime | None, **options: Any) -> None:
        """Store a message for a time; if that is too far ahead, at once: the worker waits."""
        if when is not None:
            try:
                return self.send(topic, body, deliver_at=when, **options)
            except MessageIllegal as error:
                log.info("the broker does not delay a message: %s", error)
        return self.send(topic, body, **options)

    def size(self, queue: str) -> int:
        """Return how many messages of a queue are not done."""
        if (known := self.declared.get(queue)) is not None and known.transient:
            return 0
        try:
            return self._admin.progress(group_of(queue), topic_of(queue)).lag
        except NotFound:  # nobody has consumed it yet
            return self._admin.describe_topic(topic_of(queue)).message_count
        except RouteNotFound:
            return 0

    def purge(self, queue: str) -> int:
        """Skip what waits; return how many messages that were."""
        count = self.size(queue)
        source = self._sources.get(queue)
        if source is not None:
            source.clear()
        if count:
            self._admin.create_group(group_of(queue), exist_ok=True)
            self._admin.reset_offset(group_of(queue), topic_of(queue), when="end")
        return count

    def delete(self, queue: str) -> None:
        """Forget a queue, and delete its topic."""
        known = self.declared.pop(queue, None)
        with self._lock:
            source = self._sources.pop(queue, None)
        if source is not None:
            source.close()
        if known is None or not known.transient:
            self._admin.delete_topic(topic_of(queue))
            self._topics.discard(topic_of(queue))
            self._priorities.pop(topic_of(queue), None)

    # Sources

    def source(self, queue: str) -> Source:
        """Return the source of a queue; the first call makes it."""
        with self._lock:
            source = self._sources.get(queue)
            if source is None:
                known = self.declared.get(queue, Declared(transient=False))
                source = self._sources[queue] = Source(self, queue, known.transient)
                try:
                    if known.transient:
                        source.read("", queue)
                    else:
                        source.consume(sorted(known.fanouts))
                except BaseException:
                    del self._sources[queue]
                    raise
            return source

    def use(self, queue: str) -> None:
        """Count a consumer of a queue."""
        with self._lock:
            self.source(queue).users += 1

    def leave(self, queue: str) -> None:
        """Count a consumer of a queue as gone; after the last one its source ends."""
        with self._lock:
            source = self._sources.get(queue)
            if source is None:
                return
            source.users -= 1
            source.cancelled = True
        self.end_unused(queue)

    def end_unused(self, queue: str) -> None:
        """End the source of a queue that is not used any more; transient queues go with it."""
        with self._lock:
            source = self._sources.get(queue)
            if source is None or not source.unused:
                return
            del self._sources[queue]
        source.close()


def _is_uuid(name: str) -> bool:
    try:
        UUID(name)
    except ValueError:
        return False
    return True


@dataclass
class _Shared:
    hub: Hub
    users: int = 0


_hubs: dict[Any, _Shared] = {}
_lock = threading.Lock()


def join(key: Any, make: Callable[[], Hub]) -> Hub:
    """Return the hub of a cluster and an account, started; the first one to join makes it."""
    with _lock:
        shared = _hubs.get(key)
        if shared is None:
            hub = make()
            hub.start()
            shared = _hubs[key] = _Shared(hub)
        shared.users += 1
        return shared.hub


def leave(hub: Hub) -> None:
    """Use a hub no more; the last one to leave closes it."""
    with _lock:
        for key, shared in list(_hubs.items()):
            if shared.hub is hub:
                shared.users -= 1
                if shared.users:
                    return
                del _hubs[key]
    hub.close()


def _forked() -> None:
    global _lock
    _lock = threading.Lock()
    for shared in _hubs.values():
        shared.hub.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
