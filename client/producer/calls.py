"""What a producer does beside sending: transactions, requests and replies, traces. Loop thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from skylarkmq.client.observe.trace import Tracer
from skylarkmq.client.producer.every_broker import EveryBroker
from skylarkmq.client.producer.reply_table import Reply
from skylarkmq.client.producer.request_reply import Replyable, Requests, send_reply
from skylarkmq.client.producer.send_result import SendResult
from skylarkmq.client.producer.sender import Sender
from skylarkmq.client.producer.timed_cancel import cancel_timed
from skylarkmq.client.producer.transaction import Transaction, Transactions
from skylarkmq.client.producer.transaction_check import Check
from skylarkmq.client.services import Services
from skylarkmq.protocol.message import Message
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
        self._services = services
        self._sender = sender
        self._next_id = ids.next
        self._brokers = EveryBroker(services)
        self.transactions = Transactions(services, sender, self._brokers, group, check)
        self.requests = Requests(services, sender, self._brokers, send_heartbeats)
        self._tracer: Tracer | None = None
        if trace_topic is not None:
            self._tracer = Tracer.join(services, ids, group, "PRODUCE", trace_topic)

    async def reply(
        self,
        request: Replyable,
        body: bytes | str,
        *,
        tags: str | None,
        keys: str | Iterable[str],
        properties: Mapping[str, str] | None,
        timeout_s: float,
    ) -> None:
        """Reply to a request; see `Calling.reply`."""
        await send_reply(
            self._services,
            self._next_id(),
            request,
            body,
            tags=tags,
            keys=keys,
            properties=properties,
            timeout_s=timeout_s,
        )

    async def cancel(self, result: SendResult) -> bool:
        """Take a timed message back; see `Calling.cancel`."""
        return await cancel_timed(self._services, self._sender, result)

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


class Calling:
    """Transactions, requests and replies: the part of `Producer` where somebody calls back."""

    @property
    def _callers(self) -> ProducerCalls:
        """The parts of the running producer.

        Raises:
            IllegalState: not started, or stopped.
        """
        raise NotImplementedError

    def transaction(self, message: Message, *, check: Check | None = None) -> Transaction:
        """Return a transaction around a message: entered, the message is stored and hidden.

            async with producer.transaction(message) as transaction:
                await database.insert(order, transaction.transaction_id)

        The block's normal end commits: consumers get the message. An exception rolls back. When
        the block is cancelled, or the process dies, the broker asks the producer group how it
        ended, and a check answers from what the local transaction left behind.

        Args:
            check: asked about this transaction, as long as this process lives; default: the
                producer's own.

        Raises:
            IllegalState: there is no check, the group is the default one, or the message is
                delayed.
        """
        return self._callers.transactions.transaction(message, check)

    async def request(self, message: Message, timeout: float = 3.0) -> Reply:  # noqa: ASYNC109
        """Send a message that asks for a reply, and return what its consumer replied.

        Waits first while too much is in flight. Cancelled, the request may be answered all the
        same; nobody waits for that.

        Args:
            timeout: seconds for all of it.

        Raises:
            ReplyTimeout: it was sent, and nobody replied in time.
            RocketMQError: not sent, or not known to be: see each error.
        """
        return await self._callers.requests.request(message, timeout)

    def request_nowait(self, message: Message, timeout: float = 3.0) -> asyncio.Future[Reply]:
        """Start a request; the future has what `request` would return or raise.

        Raises:
            TooManyInFlight: too many messages are in flight, or too many requests wait.
        """
        return self._callers.requests.begin(message, timeout)

    async def cancel(self, result: SendResult) -> bool:
        """Take back a message with a `delay` or `deliver_at` of its own while it waits.

        Tries whose outcome was unknown (`result.unknown_tries`) may have stored copies on other
        brokers, which are not taken back.

        Args:
            result: what its send returned.

        Returns whether it will not be delivered: false when its time has come already.

        Raises:
            IllegalState: not started, or the message waits for no time of its own.
            NotFound: its broker's store has it no more, or is away.
            RocketMQError: no answer; it may be taken back or not, and another try does no harm.
        """
        return await self._callers.cancel(result)

    async def reply(
        self,
        request: Replyable,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        timeout: float = 3.0,  # noqa: ASYNC109
    ) -> None:
        """Reply to a message that a consumer received as a request.

        Raises:
            IllegalState: the message is no request.
            ReplyNotDelivered: no broker could hand it on: the client that asked is gone.
        """
        await self._callers.reply(
            request, body, tags=tags, keys=keys, properties=properties, timeout_s=timeout
        )
