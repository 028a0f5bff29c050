"""Producer: sends messages.

    async with Producer(namesrv_addr="127.0.0.1:9876") as producer:
        result = await producer.send(Message("orders", b"..."))

The sends of one loop turn leave in one write for each broker. So many small sends in flight are
fast; `await` each of them only where the order of two messages matters.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import timedelta

from skylarkmq.client.config import ProducerConfig
from skylarkmq.client.errors import NOT_STARTED, IllegalState
from skylarkmq.client.instance import OnClient, services_of
from skylarkmq.client.producer.checks import Check
from skylarkmq.client.producer.every_broker import EveryBroker
from skylarkmq.client.producer.lanes import QueueSelector
from skylarkmq.client.producer.outgoing import batch_results, common_key, require_compression
from skylarkmq.client.producer.reply_table import Reply
from skylarkmq.client.producer.request_reply import Requests, send_reply
from skylarkmq.client.producer.send_pipeline import SendPipeline, SendStats
from skylarkmq.client.producer.sender import Outcome, Sender, SendMany
from skylarkmq.client.producer.timed_cancel import cancel_timed
from skylarkmq.client.producer.trace import Tracer, trace_topic
from skylarkmq.client.producer.transaction import Transaction, Transactions
from skylarkmq.client.received_message import ReceivedMessage
from skylarkmq.client.send_result import SendResult
from skylarkmq.client.services import Services
from skylarkmq.common.settings import seconds_of, seconds_or_none, takes
from skylarkmq.protocol.flags import validate_producer_group
from skylarkmq.protocol.message import Message, MessageQueue, require_message
from skylarkmq.remoting.waiting import within

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a started producer has in addition to its sender."""

    brokers: EveryBroker
    transactions: Transactions
    requests: Requests
    tracer: Tracer | None


class Producer(OnClient):
    """Sends messages to any topic. One loop; any number of tasks may use it at the same time.

    Args:
        group: the producer group; transactions need one of their own.
        client: shared with other producers and consumers.
        namesrv_addr: in place of `client`: name servers (default as for Client) for a client of
            this producer's own.
        send_timeout: seconds for one message: its wait for room and all its tries.
        retries: further tries after a refusal in `retry_on` or a try without an answer.
        retry_on: codes of answers after which a send is tried again.
        compress_over: bodies of that size and more are compressed; bytes.
        compression: `lz4` and `zstd` need the extra `compression`.
        max_message_size: a larger body is refused; bytes.
        default_topic_queues: queues of a topic that this producer's send creates.
        max_in_flight, max_in_flight_bytes: messages under way; `send` waits beyond that.
        strict: raise NotDurableError for a message that is stored but not confirmed durable.
        strict_order: send the messages that name a queue, a key or a selector one after the other
            to each queue: the next one leaves when the one before it has ended, its retries
            included. Other messages and other queues do not wait.
        latency_fault: avoid slow and failing brokers for a while, with all messages that may go
            elsewhere; without it, only a message that failed goes to another broker.
        try_timeout: seconds for one try, so that a broker that does not answer leaves time for
            another; its message may then be stored twice. Default: all of `send_timeout`.
        check: says how a transaction of this group ended, see `transaction`; with it the producer
            is asked by every broker, also about transactions that other processes began.
        trace: write traces of sends to RocketMQ's trace topic; a text names another topic.
    """

    @takes(ProducerConfig)
    def __init__(self, config: ProducerConfig) -> None:
        """Take the settings; nothing is connected before `start`.

        Raises:
            NotSupported: the library of that compression is not installed.
            ValueError: a setting that cannot be.
        """
        self._config = config
        require_compression(config.compression)
        if (reason := validate_producer_group(config.group)) is not None:
            raise ValueError(reason)
        super().__init__(config.client, config.namesrv_addr)
        self._services: Services | None = None
        self._sender: Sender | None = None
        self._parts: _Parts | None = None
        self._trace_topic = trace_topic(config.trace)
        self._group = config.group
        self._stopped = False

    async def start(self) -> None:
        """Connect to a name server and join the producer group; does nothing when started.

        Raises:
            ConnectionFailed: no name server can be reached.
        """
        if self._stopped:
            raise IllegalState("the producer has stopped")
        if self._sender is not None:
            return
        await self._client.start()
        if self._stopped:  # while it connected
            await self._stop_own_client()
            raise IllegalState("the producer has stopped")
        if self._sender is not None:  # somebody else has started it meanwhile
            return
        self._services = services = services_of(self._client)
        self._group = services.namespace.wrap(self._config.group)
        config = replace(self._config, group=self._group)
        pipeline = SendPipeline(config, services, services.random)
        self._sender = Sender(self._config, services, pipeline, services.unique_ids)
        brokers = EveryBroker(services)
        tracer = None
        if self._trace_topic is not None:
            ids, name = services.unique_ids, self._config.group
            tracer = Tracer.join(services, ids, name, "PRODUCE", self._trace_topic)
        self._parts = _Parts(
            brokers,
            Transactions(services, self._sender, brokers, self._config.group, self._config.check),
            Requests(services, self._sender, brokers, services.send_heartbeats),
            tracer,
        )
        services.join_producer(self._group)

    async def stop(self, timeout: float | timedelta = 10.0) -> None:  # noqa: ASYNC109
        """Take no more sends, wait for those in flight, `timeout` seconds at most, and close.

        What is not on the wire by then fails with IllegalState. Brokers that do not answer may
        cost a few seconds more: for the last traces, and for the farewell, one `request_timeout`
        of the client. Cancelled, it has closed at once.
        """
        self._stopped = True
        sender, self._sender = self._sender, None
        if sender is None:
            return
        pipeline = sender.pipeline
        pipeline.close()
        try:
            await within(sender.clock, seconds_of(timeout), pipeline.in_flight.idle())
        except TimeoutError:
            log.warning("%d sends were still under way at stop", pipeline.in_flight.count)
        finally:
            try:
                await self._end(pipeline)
            finally:
                await self._stop_own_client()

    @property
    def stats(self) -> SendStats:
        """Counters of this producer."""
        return self._running.pipeline.stats

    @property
    def in_flight_count(self) -> int:
        """Messages sent and not answered yet."""
        return self._running.pipeline.in_flight.count

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109
    ) -> SendResult:
        """Send a message and return where it is; waits first while too much is in flight.

        Sends that wait for room go in the order of their calls, within their time.

        Cancelled, the message may be stored or not.

        Args:
            queue: send it there, and nowhere else.
            key: messages with equal keys go to one queue, the one that Java's hash selector takes;
                default: the message's `sharding_key`. Else the queues take turns.
            selector: called with the writable queues and the message, returns one of them.
            timeout: seconds for all of it, instead of the producer's `send_timeout`.

        Raises:
            RocketMQError: not stored, or not known to be: see each error.
            ValueError: the topic's name is illegal.
        """
        sender = self._running
        choice = sender.choice(message, queue, key, selector)
        timeout_s = timeout if timeout is None else seconds_of(timeout)
        return await sender.result(await sender.begin(message, choice, timeout_s))

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | timedelta | None = None,
    ) -> asyncio.Future[SendResult]:
        """Start sending a message; the future has what `send` would return or raise.

        A large body is compressed in this call, on the loop; `send` uses a thread for that.
        Messages started one after the other to one queue are stored in that order unless a try
        fails and is repeated; `strict_order` keeps it then too. Await `room()` before it to stay
        within the producer's limits.

        Raises:
            TooManyInFlight: beyond `max_in_flight` or `max_in_flight_bytes`.
            MessageTooLarge: over `max_message_size`.
        """
        sender = self._sender or self._running
        if type(message) is not Message:
            require_message(message)
        choice = None
        if not (
            (queue is None and key is None and selector is None)
            and (message.sharding_key is None and message.priority is None)
        ):
            choice = sender.choice(message, queue, key, selector)
        timeout_s = timeout if timeout is None else seconds_of(timeout)
        return sender.start(message, choice, timeout_s).future

    async def room(self, size: int = 0) -> None:
        """Wait until a message of `size` bytes may be started with `send_nowait`.

        Raises:
            MessageTooLarge: over `max_in_flight_bytes`.
        """
        await self._running.pipeline.in_flight.room(size)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """Send a message once and ask for no answer: it may be lost, and no error tells of it.

        Raises:
            RocketMQError: no route, or no connection.
        """
        sender = self._running
        await sender.post(message, sender.choice(message, queue, key, selector))

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109
    ) -> list[SendResult]:
        """Send messages of one topic to one queue in one request; all are stored, or none.

        Raises:
            IllegalState: several topics, or several sharding keys and no `queue`, or a delayed
                message among them.
            MessageTooLarge: together over `max_message_size`.
        """
        sender = self._running
        key = common_key(messages) if queue is None else None
        choice = sender.choice(messages[0], queue, key, None) if messages else None
        send = await sender.begin_batch(messages, choice, seconds_or_none(timeout))
        return batch_results(await sender.result(send), send.request.ids)

    async def send_many(
        self,
        messages: Iterable[Message],
        *,
        selector: QueueSelector | None = None,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109
    ) -> list[Outcome]:
        """Send messages in as few requests as possible; return the outcome of each, in order.

        They are grouped by topic, and by queue where a sharding key or the selector decides. The
        groups are cut into batches of at most 256 KiB and 256 messages. A message that may not be
        in a batch (delayed or compressed) goes alone. Each batch is stored whole or not at all, but
        one batch may fail while another is stored. Messages of one key keep their order unless a
        try fails and is repeated. Cancelled, each message may be stored or not.

        Args:
            timeout: seconds for each batch, instead of the producer's `send_timeout`.

        Raises:
            ValueError: a topic's name is illegal; of a list or tuple nothing was sent then.
        """
        sender = self._running
        many = SendMany(sender, self._config, selector, seconds_or_none(timeout))
        return await many.run(messages)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages of `topic` may be sent to now.

        Raises:
            RouteNotFound: nobody takes messages of this topic.
        """
        services = services_of(self._client)
        wrapped = self._running.topic(topic)
        route = await services.routes.for_publish(wrapped, self._config.default_topic_queues)
        return [services.namespace.unwrap_queue(queue) for queue in route.publish_queues]

    async def flush(self) -> None:
        """Wait until all sends that were started before have ended, with or without an error."""
        await self._running.pipeline.in_flight.idle()

    def transaction(self, message: Message, *, check: Check | None = None) -> Transaction:
        """Return a transaction around a message: entered, the message is stored and hidden.

            async with producer.transaction(message) as transaction:
                await database.insert(order, transaction.transaction_id)

        The block's normal end commits: consumers get the message. An exception rolls back. When
        the block is cancelled, or the process dies, the broker asks the producer group how it
        ended, and a check answers from what the local transaction has stored.

        Args:
            check: asked about this transaction, as long as this process lives; default: the
                producer's own.

        Raises:
            IllegalState: there is no check, the group is the default one, or the message is
                delayed.
        """
        return self._parts_now.transactions.transaction(message, check)

    async def request(
        self,
        message: Message,
        timeout: float | timedelta = 3.0,  # noqa: ASYNC109
    ) -> Reply:
        """Send a message that asks for a reply, and return what its consumer replied.

        Waits first while too much is in flight. Cancelled, the request may still be answered; the
        reply is dropped.

        Args:
            timeout: seconds for all of it.

        Raises:
            ReplyTimeout: it was sent, and nobody replied in time.
            RocketMQError: not sent, or not known to be: see each error.
        """
        return await self._parts_now.requests.request(message, seconds_of(timeout))

    def request_nowait(
        self, message: Message, timeout: float | timedelta = 3.0
    ) -> asyncio.Future[Reply]:
        """Start a request; the future has what `request` would return or raise.

        Raises:
            TooManyInFlight: too many messages are in flight, or too many requests wait.
        """
        return self._parts_now.requests.begin(message, seconds_of(timeout))

    async def cancel(self, result: SendResult) -> bool:
        """Take back a message with a `delay` or `deliver_at` of its own while it waits.

        Tries whose outcome was unknown (`result.unknown_tries`) may have stored copies on other
        brokers, which are not taken back.

        Args:
            result: what its send returned.

        Returns whether it will not be delivered: false when its time has come already.

        Raises:
            IllegalState: not started, or the message waits for no time of its own.
            TypeError: no SendResult.
            NotFound: its broker is away, or has the message no more.
            RocketMQError: no answer; it may be taken back or not, and another try does no harm.
        """
        sender = self._running
        if not isinstance(result, SendResult):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"cancel takes the SendResult of a send, not {result!r}")
        return await cancel_timed(services_of(self._client), sender, result)

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        timeout: float | timedelta = 3.0,  # noqa: ASYNC109
    ) -> None:
        """Reply to a message that a consumer received as a request.

        Raises:
            IllegalState: the message is no request.
            ReplyNotDelivered: no broker could hand it on: the client that asked is gone.
        """
        _ = self._running
        services = services_of(self._client)
        await send_reply(
            services,
            services.unique_ids.next(),
            request,
            body,
            tags=tags,
            keys=keys,
            properties=properties,
            timeout_s=seconds_of(timeout),
        )

    # Inside

    async def _end(self, pipeline: SendPipeline) -> None:
        """End all parts, also when the end of one was cancelled."""
        parts, self._parts = self._parts, None
        async with AsyncExitStack() as ends:  # the last one first
            if self._services is not None:
                ends.push_async_callback(self._services.leave_producer, self._group)
            if parts is not None:
                if parts.tracer is not None:
                    ends.push_async_callback(parts.tracer.leave)
                ends.push_async_callback(parts.brokers.stop)
                ends.push_async_callback(parts.transactions.stop)
                ends.push_async_callback(parts.requests.stop)
            ends.push_async_callback(pipeline.stop)

    def _start_admitted(
        self, message: Message, timeout: float | None
    ) -> asyncio.Future[SendResult]:
        """Do as `send_nowait` with a message that found room before."""
        sender = self._running
        choice = sender.choice(message, None, None, None)
        return sender.start(message, choice, timeout, admitted=True).future

    @property
    def _parts_now(self) -> _Parts:
        _ = self._running
        assert self._parts is not None, "they come and go with the sender"
        return self._parts

    @property
    def _running(self) -> Sender:
        if self._sender is None:
            raise IllegalState(
                "the producer has stopped" if self._stopped else f"the producer is {NOT_STARTED}"
            )
        return self._sender
