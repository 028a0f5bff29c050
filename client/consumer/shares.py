"""Which queues of a topic are this member's: by the group's division, all of them, or as assigned.

    clustering    GroupShares   the members (38) and the route's queues, through a strategy
    broadcasting  AllShares     every queue; each member receives everything
    assign()      FixedShares   what the application named; no group is asked

Loop thread.
Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/consumer/RebalanceImpl.java
(rebalanceByTopic), client/.../impl/factory/MQClientInstance.java (findConsumerIdList)
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final, Protocol

from skylarkmq.client.consumer.allocate import Allocation, allocate
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.instance import Client
from skylarkmq.client.services import Services
from skylarkmq.client.wire.route import MASTER_ID, TopicRoute
from skylarkmq.protocol.message import MessageQueue

log = logging.getLogger(__name__)

MEMBERS_TRIES: Final = 3
"""How many brokers of a topic are asked for the members before the round gives up on it."""


class Shares(Protocol):
    """Tells this member's queues."""

    async def of(self, topic: str) -> set[MessageQueue] | None:
        """Return this member's queues of the topic, None when that cannot be found out now."""
        ...

    @property
    def settled(self) -> bool:
        """False when the last answer may be better soon, so that the next round comes early."""
        ...

    @property
    def takes_over(self) -> bool:
        """True when queues may come from members that are still there, since one has joined."""
        ...


class GroupShares:
    """Queues divided among the members of a group."""

    def __init__(self, client: Client, group: str, strategy: Allocation) -> None:
        self.settled = True
        self.takes_over = False
        self._client = client
        self._group = group
        self._strategy = strategy
        # The members of the round before; at first all but this one.
        self._former: dict[str, set[str]] = {}

    async def of(self, topic: str) -> set[MessageQueue] | None:
        """Ask for the members and divide; a strategy that fails leaves things as they are."""
        self.settled = True
        self.takes_over = False
        services = self._client.services
        known, route = await route_of(services, topic)
        if not known:
            return None
        if route is None:
            return set()  # nobody has the topic yet; the missing routes are asked for regularly
        ids = await self._member_ids(route)
        if ids is None:
            return None
        client_id = self._client.client_id
        if client_id not in ids:
            await self._client.send_heartbeats()
            ids = await self._member_ids(route) or ids
        if client_id not in ids:
            # As in Java: who is not in the list owns nothing, because the others divide without it.
            log.warning("group %s: the broker does not list this client", self._group)
            self.settled = False
        former = self._former.get(topic, set(ids) - {client_id})
        self._former[topic] = set(ids)
        stayed = former.intersection(ids) - {client_id}
        self.takes_over = bool(stayed and set(ids) - former)
        try:
            return set(allocate(self._strategy, route.subscribe_queues, ids, client_id))
        except Exception:
            log.exception("group %s: the allocation strategy failed on %s", self._group, topic)
            return None

    async def _member_ids(self, route: TopicRoute) -> list[str] | None:
        services = self._client.services
        addresses = [broker[MASTER_ID] for broker in route.brokers.values() if MASTER_ID in broker]
        services.random.shuffle(addresses)
        timeout_s = services.config.request_timeout_s
        for address in addresses[:MEMBERS_TRIES]:
            try:
                return await services.consumer_api.consumer_ids(address, self._group, timeout_s)
            except RocketMQError as error:
                log.debug("group %s: members not known: %s", self._group, error)
        self._client.want_heartbeat()
        return None


class AllShares:
    """Every queue is this member's."""

    settled = True
    takes_over = False

    def __init__(self, client: Client) -> None:
        self._client = client

    async def of(self, topic: str) -> set[MessageQueue] | None:
        """Return all readable queues of the topic."""
        known, route = await route_of(self._client.services, topic)
        if not known:
            return None
        return set(route.subscribe_queues) if route is not None else set()


class FixedShares:
    """The queues that the application assigned."""

    settled = True
    takes_over = False

    def __init__(self) -> None:
        self._queues: frozenset[MessageQueue] = frozenset()

    def fix(self, queues: Collection[MessageQueue]) -> None:
        """Take these from the next round on, in place of all others."""
        self._queues = frozenset(queues)

    async def of(self, topic: str) -> set[MessageQueue] | None:
        """Return the assigned queues of the topic, whether they exist or not."""
        return {queue for queue in self._queues if queue.topic == topic}


async def route_of(services: Services, topic: str) -> tuple[bool, TopicRoute | None]:
    """Return whether the topic's route is known, and the route; None when nobody has the topic."""
    route = services.routes.known(topic)
    if route is None:
        try:
            route = await services.routes.refresh(topic)
        except RocketMQError as error:
            log.warning("no route of %s: %s", topic, error)
            return False, None
    return True, route
