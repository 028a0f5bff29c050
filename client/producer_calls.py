"""What a producer does beside sending: transactions, requests and replies, traces. Loop thread."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from skylarkmq.client.every_broker import EveryBroker
from skylarkmq.client.request_reply import Requests
from skylarkmq.client.sender import Sender
from skylarkmq.client.services import Services
from skylarkmq.client.trace import Tracer
from skylarkmq.client.transaction_check import Check
from skylarkmq.client.transaction_producer import Transactions
from skylarkmq.protocol.message_id import UniqueIdGenerator


class ProducerCalls:
    """The parts of one started producer."""

    def __init__(
        self,
        services: Services,
        sender: Sender,
        ids: UniqueIdGenerator,
        group: str,
        check: Check | None,
        trace_topic: str | None,
        send_heartbeats: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """Start what was asked for.

        Args:
            group: the producer's, without a namespace.
            trace_topic: where to tell what is sent; None for nowhere.
        """
        self._brokers = EveryBroker(services)
        self.transactions = Transactions(services, sender, self._brokers, group, check)
        self.requests = Requests(services, sender, self._brokers, send_heartbeats)
        self._tracer: Tracer | None = None
        if trace_topic is not None:
            self._tracer = Tracer.join(services, ids, group, "PRODUCE", trace_topic)

    async def stop(self) -> None:
        """End what is under way, and tell what is to be told."""
        try:
            await self.requests.stop()
        finally:
            try:
                await self.transactions.stop()
            finally:
                try:
                    await self._brokers.stop()
                finally:
                    if self._tracer is not None:
                        await self._tracer.leave()
