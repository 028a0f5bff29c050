"""What the sink hands to the window that sends, and what it gets back.

    sink  --Outgoing, per queue-->  SendWindow  --Receipt per request-->  sink

Both are plain values: made in a Spark worker's main thread, picklable, without pyspark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from skylarkmq.protocol.message import MessageQueue

Queue = MessageQueue
"""Its topic as the application knows it, without the namespace."""


class Outgoing(NamedTuple):
    """One message ready for the wire."""

    body: bytes
    """As it is stored: compressed when `sys_flag` says so."""
    properties: bytes
    """The encoded text, UNIQ_KEY in it; at most 32,767 bytes."""
    unique_key: str
    flag: int = 0
    sys_flag: int = 0


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one acknowledged request stored; all its messages lie in a row in `queue`."""

    queue: Queue
    """Where they are: one of `others` when the first queue's broker was away."""
    count: int
    size: int
    """Bytes of bodies."""
    first_unique_key: str
    last_unique_key: str
    first_queue_offset: int
    resent: int = 0
    """Tries before without an answer: each may have left a copy with the same unique keys."""


class Window(Protocol):
    """Sends with several requests under way, bounded by count and bytes; one thread."""

    def send(
        self,
        queue: Queue,
        messages: Sequence[Outgoing],
        *,
        others: Sequence[Queue] = (),
    ) -> None:
        """Put one request on its way: a batch, or a single send when there is one message.

        Waits while the window is full. Without `others` the requests of a queue follow one
        another, each after the acknowledgement of the one before, so a resend changes no order;
        with them several are under way and one that fails goes to another of them.

        Raises:
            RocketMQError: one of the requests under way has failed for good.
        """
        ...

    def flush(self) -> list[Receipt]:
        """Wait for all answers; return the receipts since the last flush, in the order of sending.

        Raises:
            RocketMQError: one of the requests has failed for good.
        """
        ...
