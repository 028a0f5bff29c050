"""Where topics live: routes from the name server, turned into queues and addresses, remembered.

A topic that no broker has yet borrows the route of TBW102, whose brokers create topics on demand;
such a route is marked `borrowed` and is replaced at the next refresh. A route once known stays when
the name server is away or has lost it: the brokers may be there all the same.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/factory/MQClientInstance.java
(updateTopicRouteInfoFromNameServer, topicRouteData2TopicPublishInfo,
topicRouteData2TopicSubscribeInfo)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from skylarkmq.client.errors import RocketMQError, RouteNotFound
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.bodies.route import QueueData, TopicRouteData
from skylarkmq.protocol.flags import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    MASTER_ID,
    is_readable,
    is_writeable,
)
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.remoting.client import SingleFlight

log = logging.getLogger(__name__)

EMPTY_MAX_AGE_S = 1.0
"""How soon a sender asks again for a route that has no queue to write to."""


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """One topic's queues and the brokers that hold them."""

    topic: str
    publish_queues: tuple[MessageQueue, ...]
    """Writable queues of brokers with a master, in the order of Java's producers."""
    subscribe_queues: tuple[MessageQueue, ...]
    """Readable queues."""
    brokers: dict[str, dict[int, str]] = field(hash=False)
    """Broker name to broker id to the address to dial; id 0 is the master."""
    borrowed: bool = False


class RouteSource(Protocol):
    """Whom to ask where topics live: name servers, or brokers that are named one by one."""

    @property
    def text(self) -> str:
        """Its addresses, for messages to people."""
        ...

    async def route(self, topic: str) -> TopicRouteData | None:
        """Return where `topic` lives, None when there is no such topic; raises RocketMQError."""
        ...

    async def broker_names(self) -> list[str]:
        """Return the names of the brokers that there are; raises RocketMQError."""
        ...


class RouteTable:
    """The routes of one client. Loop thread."""

    def __init__(
        self,
        name_servers: RouteSource,
        mapped: Callable[[str], str],
        clock: Clock,
        on_change: Callable[[str], None],
    ) -> None:
        self._name_servers = name_servers
        self._on_change = on_change
        self._clock = clock
        self._mapped = mapped
        self._routes: dict[str, TopicRoute] = {}
        # The newest addresses of each broker that a route names: the routes of other topics may
        # still have those of a master that has been replaced.
        self._addresses: dict[str, dict[int, str]] = {}
        self._asked_s: dict[str, float] = {}
        self._fetches: SingleFlight[TopicRoute | None] = SingleFlight("route")
        self.known: Final[Callable[[str], TopicRoute | None]] = self._routes.get
        """Return the route if it is known already; no I/O."""
        # Topics that someone uses; the refresh asks for these.
        self._wanted: set[str] = set()

    def fresh(self, topic: str, max_age_s: float) -> TopicRoute | None:
        """Return the route if it is known and was asked for within `max_age_s`; no I/O."""
        asked_s = self._asked_s.get(topic)
        if asked_s is None or self._clock.monotonic() - asked_s >= max_age_s:
            return None
        return self._routes.get(topic)

    def age(self, topic: str, age_s: float) -> None:
        """Take the route for `age_s` old from now on, unless it is older."""
        asked_s = self._asked_s.get(topic)
        if asked_s is not None:
            self._asked_s[topic] = min(asked_s, self._clock.monotonic() - age_s)

    @property
    def topics(self) -> set[str]:
        """Topics in use, with a route or without."""
        return set(self._wanted)

    def brokers(self) -> dict[str, dict[int, str]]:
        """Return all brokers of the known routes: name to id to address."""
        return dict(self._addresses)

    def broker(self, broker_name: str) -> dict[int, str]:
        """Return the addresses of that broker by id; none when no known route names it."""
        return self._addresses.get(broker_name, {})

    def master_address(self, broker_name: str) -> str | None:
        """Return the address of that broker's master, None when no known route names it."""
        return self._addresses.get(broker_name, {}).get(MASTER_ID)

    async def for_publish(self, topic: str, default_queue_count: int) -> TopicRoute:
        """Return a route with queues to send to, asking the name server if need be.

        Args:
            default_queue_count: how many queues a topic created on demand is to have.

        Raises:
            RouteNotFound: no broker takes messages of this topic.
            RocketMQError: no name server answered.
        """
        route = self._routes.get(topic)
        if route is None:
            route = await self.refresh(topic)
        elif not route.publish_queues:  # its master may be back before the next refresh
            route = await self.refresh(topic, max_age_s=EMPTY_MAX_AGE_S) or route
        if route is None:
            route = await self._borrow(topic, default_queue_count)
        if not route.publish_queues:
            raise RouteNotFound(topic, "no_broker", "No broker with a master takes writes for it")
        return route

    async def refresh(self, topic: str, *, max_age_s: float = 0.0) -> TopicRoute | None:
        """Ask the name server for the topic now; None when it does not know the topic.

        Args:
            max_age_s: an answer that is younger is good enough.

        Raises:
            RocketMQError: no name server answered.
        """
        self._wanted.add(topic)
        asked_s = self._asked_s.get(topic)
        if asked_s is not None and self._clock.monotonic() - asked_s < max_age_s:
            return self._routes.get(topic)
        return await self._fetches.run(topic, lambda: self._fetch(topic))

    async def refresh_all(self, *, missing_only: bool = False) -> None:
        """Ask for every topic in use again; failures are logged and leave the old route.

        Args:
            missing_only: pass over the topics that have a route of their own.
        """
        for topic in sorted(self._wanted):
            route = self._routes.get(topic)
            if missing_only and route is not None and not route.borrowed:
                continue
            try:
                await self.refresh(topic)
            except RocketMQError as error:
                log.warning("route of %s not refreshed: %s", topic, error)

    def forget(self, topic: str) -> None:
        """Stop refreshing that topic; what is known of it goes."""
        self._wanted.discard(topic)
        self._asked_s.pop(topic, None)
        gone = self._routes.pop(topic, None)
        if gone is not None:
            self._forget_brokers(gone.brokers.keys())

    def cancel(self) -> None:
        """End the calls under way."""
        self._fetches.cancel()

    async def stop(self) -> None:
        """End the calls under way, and wait for their end."""
        await self._fetches.stop()

    async def _fetch(self, topic: str) -> TopicRoute | None:
        data = await self._name_servers.route(topic)
        self._asked_s[topic] = self._clock.monotonic()
        if data is None:
            return None
        route = parse_route(topic, data, self._mapped)
        before = self._routes.get(topic)
        if route == before:
            self._addresses.update(route.brokers)
        else:
            self._put(topic, route)
            if before is not None:
                self._forget_brokers(before.brokers.keys() - route.brokers.keys())
            self._on_change(topic)
        return route

    def _put(self, topic: str, route: TopicRoute) -> None:
        self._routes[topic] = route
        self._addresses.update(route.brokers)

    def _forget_brokers(self, names: Iterable[str]) -> None:
        """Forget the addresses of those brokers that no route names any more."""
        for name in names:
            if not any(name in route.brokers for route in self._routes.values()):
                self._addresses.pop(name, None)

    async def _borrow(self, topic: str, queue_count: int) -> TopicRoute:
        """Return the default topic's route under the name of `topic`."""
        data = await self._name_servers.route(AUTO_CREATE_TOPIC_KEY_TOPIC)
        if data is None:
            raise await self._missing(topic)
        route = replace(
            parse_route(topic, data, self._mapped, queue_count), subscribe_queues=(), borrowed=True
        )
        if topic in self._routes:  # one that arrived in the meantime is better
            return self._routes[topic]
        self._put(topic, route)
        self._on_change(topic)
        return route

    async def _missing(self, topic: str) -> RouteNotFound:
        servers = self._name_servers
        if not await servers.broker_names():
            return RouteNotFound(
                topic, "no_broker", f"No broker is registered with name server {servers.text}"
            )
        return RouteNotFound(
            topic,
            "auto_create_off",
            "The topic does not exist and brokers create none on demand: create it first, "
            "or set autoCreateTopicEnable=true on a broker",
        )


def parse_route(
    topic: str,
    data: TopicRouteData,
    mapped: Callable[[str], str],
    queue_count_max: int | None = None,
) -> TopicRoute:
    """Return the queues and addresses that `data` describes, in the order that Java makes.

    Args:
        mapped: the address to dial for an advertised one.
        queue_count_max: bounds the queues of each broker, for a borrowed route.
    """
    brokers = {
        broker.broker_name: {
            broker_id: mapped(address) for broker_id, address in broker.broker_addrs.items()
        }
        for broker in data.broker_datas
    }
    ordered = sorted(data.queue_datas, key=lambda queue_data: queue_data.broker_name)
    subscribe = [
        MessageQueue(topic, queue_data.broker_name, queue_id)
        for queue_data in ordered
        if is_readable(queue_data.perm)
        for queue_id in range(queue_data.read_queue_nums)
    ]
    counts = _write_counts(data.order_topic_conf, ordered, brokers, queue_count_max)
    publish = [
        MessageQueue(topic, broker_name, queue_id)
        for broker_name, count in counts
        for queue_id in range(count)
    ]
    return TopicRoute(topic, tuple(publish), tuple(subscribe), brokers)


def _write_counts(
    order_conf: str | None,
    queue_datas: list[QueueData],
    brokers: dict[str, dict[int, str]],
    queue_count_max: int | None,
) -> list[tuple[str, int]]:
    """Return broker names with the number of queues to write to.

    An order topic names them itself, `broker-a:4;broker-b:4`, and keeps them while a broker is
    away, so that a key always finds the same queue.
    """
    if order_conf:
        pairs = [part.rpartition(":") for part in order_conf.split(";") if part.strip()]
        return [(name, int(count)) for name, _, count in pairs if count.strip().isdecimal()]
    return [
        (
            queue_data.broker_name,
            min(queue_data.write_queue_nums, queue_count_max or queue_data.write_queue_nums),
        )
        for queue_data in queue_datas
        if is_writeable(queue_data.perm) and MASTER_ID in brokers.get(queue_data.broker_name, {})
    ]
