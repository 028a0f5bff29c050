"""Which queues of a topic belong to this consumer.

    clustering     its share of the route's queues among the members (38), by a strategy
    broadcasting   all of them
    assign()       those that the application named; no group is asked

Loop thread.
Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/consumer/RebalanceImpl.java
(rebalanceByTopic), client/.../impl/factory/MQClientInstance.java (findConsumerIdList)
"""

from __future__ import annotations

import logging
from typing import Final

from skylarkmq.client.consumer.allocate import allocate, find_allocation
from skylarkmq.client.consumer.config import ConsumerConfig
from skylarkmq.client.consumer.subscription import Selector, Subscription
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.services import Services
from skylarkmq.client.wire.route import TopicRoute
from skylarkmq.protocol.flags import MASTER_ID
from skylarkmq.protocol.message import MessageQueue

log = logging.getLogger(__name__)

MEMBERS_TRIES: Final = 3
"""How many brokers of a topic are asked for the members before the round gives up on it."""


class Assignor:
    """The queues of one consumer, topic by topic."""

    def __init__(self, services: Services, config: ConsumerConfig) -> None:
        self.subscriptions: dict[str, Subscription] = {}
        """What is wanted of each topic."""
        self.assigned: frozenset[MessageQueue] | None = None
        """Queues that the application assigned by hand; None: the consumer is a member."""
        self.settled = True
        """False when a later answer may be better, so that the next round comes early."""
        self.takes_over = False
        """True when a member has joined, so that queues may come from members that stay."""
        self._services = services
        self._group = config.group
        self._allocation = None if config.broadcasting else find_allocation(config.assignment)
        # The members of the round before; at first all but this one.
        self._former: dict[str, set[str]] = {}
        self._unlisted: set[str] = set()
        """Topics whose brokers did not list this client when they were asked last."""

    def subscribe(self, topic: str, selector: Selector | None) -> None:
        """Note what is wanted of a topic, under a version above the last one."""
        version = self._services.clock.now_ms()
        old = self.subscriptions.get(topic)
        if old is not None:
            version = max(version, old.data.sub_version + 1)
        self.subscriptions[topic] = Subscription(topic, selector, version)

    async def of(self, topic: str) -> set[MessageQueue] | None:
        """Return this consumer's queues of the topic, None when that cannot be found out now.

        Queues that were assigned by hand are returned even if they do not exist.
        """
        self.settled, self.takes_over = True, False
        if self.assigned is not None:
            return {queue for queue in self.assigned if queue.topic == topic}
        route = self._services.routes.known(topic)
        if route is None:
            try:
                route = await self._services.routes.refresh(topic)
            except RocketMQError as error:
                log.warning("no route of %s: %s", topic, error)
                return None
        if route is None:
            return set()  # no broker has the topic yet; missing routes are asked for regularly
        if self._allocation is None:
            return set(route.subscribe_queues)
        return await self._share_of(topic, route)

    async def _share_of(self, topic: str, route: TopicRoute) -> set[MessageQueue] | None:
        """Ask for the members and divide; None after a strategy that failed."""
        services = self._services
        ids = await self._member_ids(route)
        if ids is None:
            return None
        client_id = services.client_id
        if client_id not in ids:
            await services.send_heartbeats()
            ids = await self._member_ids(route) or ids
        if client_id not in ids:
            # As in Java, a client that is not listed owns no queues: the others divide without it.
            level = logging.DEBUG if topic in self._unlisted else logging.WARNING
            log.log(level, "group %s: the broker does not list this client", self._group)
            self._unlisted.add(topic)
            self.settled = False
        else:
            self._unlisted.discard(topic)
        former = self._former.get(topic, set(ids) - {client_id})
        self._former[topic] = set(ids)
        stayed = former.intersection(ids) - {client_id}
        self.takes_over = bool(stayed and set(ids) - former)
        assert self._allocation is not None, "a broadcasting consumer owns all queues"
        try:
            return set(allocate(self._allocation, route.subscribe_queues, ids, client_id))
        except Exception:
            log.exception("group %s: the allocation strategy failed on %s", self._group, topic)
            return None

    async def _member_ids(self, route: TopicRoute) -> list[str] | None:
        services = self._services
        brokers = [broker for broker in route.brokers.values() if broker]
        services.random.shuffle(brokers)
        brokers.sort(key=lambda broker: min(broker) != MASTER_ID)  # slaves without a master last
        addresses = [broker[min(broker)] for broker in brokers]
        timeout_s = services.config.request_timeout_s
        for address in addresses[:MEMBERS_TRIES]:
            try:
                return await services.consumer_api.consumer_ids(address, self._group, timeout_s)
            except RocketMQError as error:
                log.debug("group %s: members not known: %s", self._group, error)
        services.beat_wanted.set()
        return None
