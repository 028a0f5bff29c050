"""Which broker of a set a queue is pulled from: the master, or the one that a broker suggests.

A master that would read from its disk suggests a slave; the queue is pulled there until that broker
suggests another. While the master is away any slave will do.

Loop thread.
Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/consumer/PullAPIWrapper.java
(recalculatePullFromWhichNode), client/.../impl/factory/MQClientInstance.java
(findBrokerAddressInSubscribe)
"""

from __future__ import annotations

from skylarkmq.client.errors import RouteNotFound
from skylarkmq.client.wire.route import MASTER_ID, RouteTable
from skylarkmq.protocol.message import MessageQueue


class PullSources:
    """The brokers that the queues of one reader are pulled from."""

    def __init__(self, routes: RouteTable) -> None:
        self._routes = routes
        # Invariant: other brokers than masters only.
        self._broker_ids: dict[MessageQueue, int] = {}

    def of(self, queue: MessageQueue) -> tuple[str, bool]:
        """Return the address to pull from, and whether that is the master.

        Raises:
            RouteNotFound: no broker of that name is known.
        """
        addresses = self._routes.broker(queue.broker_name)
        for broker_id in (self._broker_ids.get(queue, MASTER_ID), MASTER_ID, *sorted(addresses)):
            if broker_id in addresses:
                return addresses[broker_id], broker_id == MASTER_ID
        hint = f"Broker {queue.broker_name} is gone at the moment"
        raise RouteNotFound(queue.topic, "no_broker", hint)

    def suggested(self, queue: MessageQueue, broker_id: int) -> None:
        """An answer names the broker to ask next."""
        if broker_id == MASTER_ID:
            self._broker_ids.pop(queue, None)
        else:
            self._broker_ids[queue] = broker_id

    def forget(self, queue: MessageQueue) -> None:
        """Begin with the master again: the queue is gone, or its source failed."""
        self._broker_ids.pop(queue, None)
