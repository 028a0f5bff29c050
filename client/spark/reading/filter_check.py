"""An SQL92 expression is shown to every broker before the first task, so that a fault in it fails
the query at once and in one place, not each task in turn. Tags need no question.

Driver process. Imports no pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from skylarkmq.client.consumer.subscription import FILTER_HINTS
from skylarkmq.client.errors import AuthError, BrokerError, FilterRefused
from skylarkmq.client.spark.offsets import QueueKey
from skylarkmq.client.spark.options import ReadSettings
from skylarkmq.protocol.bodies.heartbeat import SubscriptionData

_SIZE_MAX = 1024
"""Bytes asked for; what comes is not looked at."""


class Puller(Protocol):
    """What is asked of brokers; the blocking client has it."""

    def pull(
        self,
        queue: QueueKey,
        offset: int,
        max_count: int,
        max_bytes: int,
        *,
        group: str,
        subscription: SubscriptionData | None = None,
    ) -> object: ...


def check_filter(brokers: Puller, queues: Iterable[QueueKey], reading: ReadSettings) -> None:
    """Pull once from one queue of each broker with the expression, if there is one.

    Raises:
        FilterRefused: a broker does not filter by SQL92, or cannot read the expression.
        RocketMQError: a broker refuses the reader for another reason, or does not answer.
    """
    if not reading.sql92:
        return
    for queue in {key.broker_name: key for key in queues}.values():
        try:
            brokers.pull(
                queue,
                0,
                1,
                _SIZE_MAX,
                group=reading.group,
                subscription=reading.subscription(queue.topic),
            )
        except BrokerError as error:
            if isinstance(error, AuthError) or error.code not in FILTER_HINTS:
                raise
            raise FilterRefused(
                error.code,
                f"{error.remark} (option subExpression: {reading.expression!r:.200})",
                error.broker_addr,
                hint=FILTER_HINTS[error.code],
            ) from error
