"""An SQL92 expression is shown to every broker before a task pulls with it. Tags need no question.

An Apache broker that cannot read the expression of a pull says so in its log alone, and answers
with every message. So the driver reads the expression itself (options.py), and asks each broker by
the question that consumers ask before they start (46), once in a run of the query.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/PullMessageProcessor.java
(processRequest), broker/.../filter/ConsumerFilterManager.java (build)

Driver process, one thread. Imports no pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from skylarkmq.client.consumer.subscription import filter_error
from skylarkmq.client.errors import BrokerError, FilterRefused
from skylarkmq.protocol.bodies.group import SubscriptionData
from skylarkmq.spark.offsets import QueueKey
from skylarkmq.spark.options import ReadSettings


class Asked(Protocol):
    """What is asked of brokers; the blocking client has it."""

    def check_filter(
        self, queue: QueueKey, subscription: SubscriptionData, *, group: str
    ) -> None: ...


class FilterCheck:
    """One query's expression, and the brokers that have said that they filter by it."""

    def __init__(self, brokers: Asked, reading: ReadSettings) -> None:
        """Ask nobody yet."""
        self._brokers = brokers
        self._reading = reading
        self._willing: set[str] = set()

    def show(self, queues: Iterable[QueueKey]) -> None:
        """Ask the brokers of these queues that were not asked before.

        Raises:
            FilterRefused: a broker does not filter by SQL92, or cannot read the expression.
            RocketMQError: a broker refuses the reader for another reason, or does not answer.
        """
        reading = self._reading
        if not reading.sql92:
            return
        for queue in queues:
            subscription = reading.subscription(queue.topic)
            if subscription is None or queue.broker_name in self._willing:
                continue
            try:
                self._brokers.check_filter(queue, subscription, group=reading.group)
            except BrokerError as error:
                raise self._named(filter_error(error)) from error
            self._willing.add(queue.broker_name)

    def _named(self, error: BrokerError) -> BrokerError:
        if not isinstance(error, FilterRefused):
            return error
        remark = f"{error.remark} (option subExpression: {self._reading.expression!r:.200})"
        return FilterRefused(error.code, remark, error.broker_addr, hint=error.hint)
