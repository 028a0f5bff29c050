"""Sends with several requests under way, bounded by count and bytes."""

from __future__ import annotations

from collections.abc import Sequence

from skylarkmq.client.send_result import SendStatus
from skylarkmq.client.spark.client import BlockingClient
from skylarkmq.client.spark.outgoing import Outgoing, Queue, Receipt


class SendWindow:
    """Implements `outgoing.Window`; one thread."""

    def __init__(
        self,
        client: BlockingClient,
        *,
        group: str,
        max_in_flight: int = 64,
        max_in_flight_bytes: int = 16 * 1024 * 1024,
        accepted: frozenset[SendStatus] = frozenset({SendStatus.SEND_OK}),
        default_queue_count: int = 4,
    ) -> None:
        """Send nothing yet.

        Args:
            accepted: what counts as stored; any other status is sent again.
            default_queue_count: queues of a topic that a broker creates on demand.
        """
        raise NotImplementedError

    def send(
        self, queue: Queue, messages: Sequence[Outgoing], *, others: Sequence[Queue] = ()
    ) -> None:
        raise NotImplementedError

    def flush(self) -> list[Receipt]:
        raise NotImplementedError
