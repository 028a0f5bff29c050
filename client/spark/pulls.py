"""Ranges of a queue as raw records, in order, with several pulls under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from skylarkmq.client.spark.client import BlockingClient
from skylarkmq.client.spark.errors import DataLost
from skylarkmq.protocol.bodies.heartbeat import SubscriptionData
from skylarkmq.protocol.message import MessageQueue


class Block(NamedTuple):
    """Records back to back as a broker sent them, and the queue offsets [start, end) they cover.

    Without a filter every offset of [start, end) is there, once. With one, those that are missing
    did not match; with failOnDataLoss=false some may be lost.
    """

    records: bytes
    start: int
    end: int


class RangeReader:
    """Reads [start, end) of one queue; iterate once, in one thread."""

    def __init__(
        self,
        client: BlockingClient,
        queue: MessageQueue,
        start: int,
        end: int,
        *,
        group: str,
        subscription: SubscriptionData | None = None,
        batch_size: int = 1024,
        max_bytes: int = 1024 * 1024,
        in_flight: int = 8,
        on_data_loss: Callable[[DataLost], None] | None = None,
    ) -> None:
        """Send nothing yet.

        Args:
            subscription: what to select; None for all.
            batch_size: messages of one pull at most; brokers have caps of their own.
            max_bytes: of one pull; above 256 KiB it lifts the caps of our broker and of 5.x.
            on_data_loss: told what is lost, and reading goes on behind; None: raised.
        """
        raise NotImplementedError

    def __iter__(self) -> Iterator[Block]:
        """Yield blocks in order; together they cover the range.

        Raises:
            DataLost: messages of the range are gone, and there is no `on_data_loss`.
            RocketMQError: refused, or no broker answered for `retry_timeout_s`.
        """
        raise NotImplementedError
