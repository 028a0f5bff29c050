"""From a message to its send: limits, names, id, compression, properties; what all sends share.

`Producer` is the face of it; transactions, requests and traces send through it, too, with
properties and flags of their own. Loop thread.

`SendMany` makes batches by topic and queue, each no larger than a broker takes:

    message                              goes
    of the same topic, without a key     into the topic's open batch
    with a key, or with a selector       into the open batch of its queue, so a key keeps its order
    delayed, to be compressed, of a      alone; the open batch of its queue goes before it
    retry topic, or with a priority

A batch that is full goes at once. Each batch is stored whole or not at all; all of them together
are not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from skylarkmq.client.config import ProducerConfig
from skylarkmq.client.errors import (
    IllegalState,
    MessageTooLarge,
    RequestTimeout,
    RocketMQError,
    TooManyInFlight,
)
from skylarkmq.client.observe.hooks import SendContext, SendKind, each
from skylarkmq.client.producer.lanes import Choice, QueueSelector, by_hash, checked
from skylarkmq.client.producer.outgoing import (
    KINDS,
    batch_item,
    batch_request,
    batch_results,
    check_batch,
    check_properties,
    is_delayed,
    properties_text,
)
from skylarkmq.client.producer.send_pipeline import Send, SendPipeline
from skylarkmq.client.send_result import SendResult
from skylarkmq.client.services import Services
from skylarkmq.client.wire.api_send import SendRequest
from skylarkmq.client.wire.route import TopicRoute
from skylarkmq.protocol.batch import MIN_BATCH_ITEM_SIZE, BatchItem
from skylarkmq.protocol.compression import compress, compression_flags
from skylarkmq.protocol.flags import NOT_ALLOWED_SEND_TOPICS, is_retry_topic, validate_topic
from skylarkmq.protocol.message import (
    NO_PROPERTIES,
    Message,
    MessageQueue,
    require_message,
    require_text,
)
from skylarkmq.protocol.message_id import UniqueIdGenerator
from skylarkmq.protocol.properties import INSTANCE_ID, MAX_PROPERTIES_SIZE
from skylarkmq.remoting.waiting import fail_after, within

THREAD_OVER: Final = 256 * 1024
"""Bytes from which `send` compresses in a thread: below, the loop is held for a few ms at most."""
TOPICS_MAX: Final = 4096
Outcome = SendResult | RocketMQError
SURELY_FITS: Final = MAX_PROPERTIES_SIZE // 4
"""Characters of properties; one has up to four bytes."""
ORDINARY_TEXT_MAX: Final = MAX_PROPERTIES_SIZE // 8
"""Characters of a message's own texts; with the names and the id they always fit."""
BATCH_SIZE_MAX: Final = 256 * 1024
"""Bytes of one batch; with more, a single queue would get too much in a row."""
BATCH_COUNT_MAX: Final = 256
ID_RESERVE: Final = 128
"""What a message's id and namespace add to its properties at most, bytes."""


class Sender:
    """Makes sends of messages and starts them."""

    def __init__(
        self,
        config: ProducerConfig,
        services: Services,
        pipeline: SendPipeline,
        unique_ids: UniqueIdGenerator,
    ) -> None:
        self.pipeline = pipeline
        self.clock = services.clock
        self._config = config
        self._compress_over = config.compress_over
        self._size_max = config.max_message_size
        self._services = services
        self._hooks = services.hooks
        self._namespace = services.namespace
        self._own: dict[str, str] = {INSTANCE_ID: self._namespace.name} if self._namespace else {}
        self._in_flight = pipeline.in_flight
        self._begin = pipeline.begin
        self._now_ms: Final[Callable[[], int]] = services.clock.now_ms
        self._id_at: Final = unique_ids.at
        self._topics: dict[str, str] = {}

    # Starting

    def start(
        self,
        message: Message,
        choice: Choice | None,
        timeout_s: float | None,
        properties: Mapping[str, str] = NO_PROPERTIES,
        kind: SendKind = "normal",
        admitted: bool = False,
    ) -> Send:
        """Start a send at once.

        Args:
            admitted: room was found for it before.

        Raises:
            TooManyInFlight: there is no room.
            RocketMQError: the message cannot be sent.
        """
        body, sys_flag = message.body, 0
        if len(body) >= self._compress_over:
            body, sys_flag = self._compressed(body)
        size, in_flight = len(body), self._in_flight
        if (  # `has_room`, written out
            in_flight.count >= in_flight.count_max or in_flight.size + size > in_flight.size_max
        ) and not admitted:
            self._check_size(message)
            raise TooManyInFlight(
                f"{self._in_flight.count} messages are in flight", hint="Await room() first"
            )
        if self._hooks or properties is not NO_PROPERTIES or message.delay or message.deliver_at:
            return self._start(message, body, sys_flag, choice, timeout_s, properties, kind)
        request = self._request(message, body, sys_flag, None, properties)
        return self._begin(request, choice, timeout_s)

    def is_ordinary(self, message: Message) -> bool:
        """Return whether only a lack of room could keep `start` from it. Any thread."""
        return (
            type(message) is Message
            and message.topic in self._topics
            and len(message.body) <= self._config.max_message_size
            and message.properties is NO_PROPERTIES
            and message.unique_key is None
            and message.priority is None
            and len(message.tags or "") + len(message.keys) + len(message.sharding_key or "")
            <= ORDINARY_TEXT_MAX
        )

    async def begin(
        self,
        message: Message,
        choice: Choice | None = None,
        timeout_s: float | None = None,
        *,
        properties: Mapping[str, str] = NO_PROPERTIES,
        sys_flag: int = 0,
        kind: SendKind = "normal",
    ) -> Send:
        """Start a send once there is room for it; the caller awaits its future, or calls `abandon`.

        Args:
            properties: added to the message's own; reserved names are allowed.
            sys_flag: added to that of the compression.
        """
        body, flags = message.body, 0
        if len(body) >= self._compress_over:
            body, flags = await self._compressed_aside(body)
        if not self._in_flight.has_room(len(body)):
            self._check_size(message)
            timeout_s = await self._room(len(body), message.topic, timeout_s)
        return self._start(message, body, flags | sys_flag, choice, timeout_s, properties, kind)

    async def result(self, send: Send) -> SendResult:
        """Wait for the end of a send; cancelled, nobody waits for it any more."""
        try:
            return await send.future
        except asyncio.CancelledError:
            self.pipeline.abandon(send)
            raise

    async def post(self, message: Message, choice: Choice | None) -> None:
        """Send one way.

        Raises:
            RocketMQError: no route or no connection, or the message cannot be sent.
        """
        body, sys_flag = message.body, 0
        if len(body) >= self._compress_over:
            body, sys_flag = await self._compressed_aside(body)
        context: SendContext | None = None
        if self._hooks:
            context = self.context("oneway", (message,), (self._id_of(message),))
        error: BaseException | None = None
        try:
            request = self._request(message, body, sys_flag, context, NO_PROPERTIES)
            lane = await self.pipeline.post(request, choice, timed=message.is_timed)
            if context is not None:
                context.queue, context.broker_addr = lane.shown, lane.address
        except BaseException as failure:
            error = failure
            raise
        finally:
            if context is not None:
                known = context
                each(self._hooks[::-1], lambda hook: hook.after_send(known, None, error))

    async def begin_batch(
        self, messages: Sequence[Message], choice: Choice | None, timeout_s: float | None
    ) -> Send:
        """Start the send of a batch once there is room for it.

        Raises:
            IllegalState: the messages may not stand in one batch.
            MessageTooLarge: together they are too large.
        """
        check_batch(messages)
        topic = self.topic(messages[0].topic)
        now_ms = self._now_ms()
        ids = tuple(message.unique_key or self._id_at(now_ms) for message in messages)
        context = self.context("batch", messages, ids) if self._hooks else None
        added = self._own if context is None else {**context.properties, **self._own}
        try:
            items = [
                batch_item(message, unique_id, added)
                for message, unique_id in zip(messages, ids, strict=True)
            ]
            limit = self._config.max_message_size
            wait = messages[0].wait_store_ok
            request = batch_request(topic, items, ids, now_ms, limit, wait_store_ok=wait)
            if not self._in_flight.has_room(len(request.body)):
                timeout_s = await self._room(len(request.body), messages[0].topic, timeout_s)
        except BaseException as error:
            if context is not None:
                self._ended_early(context, error)
            raise
        return self._begin(request, choice, timeout_s, False, context)

    # Parts

    def topic(self, name: str) -> str:
        """Return the topic as brokers know it.

        Raises:
            ValueError: the name is illegal, or the brokers' own.
        """
        known = self._topics.get(name)
        if known is None:
            known = self._namespace.wrap(name)
            if (reason := validate_topic(known)) is not None:
                raise ValueError(reason)
            if known in NOT_ALLOWED_SEND_TOPICS:
                raise ValueError(f"topic {known} is the brokers' own: send to another one")
            if len(self._topics) < TOPICS_MAX:
                self._topics[name] = known
        return known

    def choice(
        self,
        message: Message,
        queue: MessageQueue | None,
        key: str | None,
        selector: QueueSelector | None,
    ) -> Choice | None:
        """Return the function that picks the queue of `message`; None: the next queue in turn.

        Raises:
            TypeError: it is no message.
        """
        if type(message) is not Message:
            require_message(message)
        if message.priority is not None:
            if not (queue is None and key is None and selector is None):
                raise IllegalState("the message's priority chooses its queue: name no other")
            # No queue: the broker finds it, and refuses where the topic has no priorities.
            random = self._services.random
            return lambda queues: random.choice(queues)._replace(queue_id=-1)
        if queue is not None:
            if queue.topic != message.topic:
                raise IllegalState(f"{queue} is no queue of topic {message.topic}")
            wrapped = self._namespace.wrap_queue(queue)
            return lambda queues: wrapped
        if selector is not None:
            space = self._namespace
            if not space:
                return lambda queues: checked(selector, queues, message)
            return lambda queues: space.wrap_queue(
                checked(selector, [space.unwrap_queue(queue) for queue in queues], message)
            )
        wanted = message.sharding_key if key is None else key
        if wanted is None:
            return None
        require_text("key", wanted)
        return lambda queues: by_hash(queues, wanted)

    def context(
        self, kind: SendKind, messages: Sequence[Message], unique_ids: Sequence[str]
    ) -> SendContext:
        """Tell the hooks that a send begins; return what they were told."""
        if kind == "normal" and is_delayed(messages[0]):
            kind = "delayed"
        context = SendContext(
            group=self._config.group,
            topic=messages[0].topic,
            kind=kind,
            messages=messages,
            started_s=self._services.clock.monotonic(),
            unique_ids=unique_ids,
            body_size=sum(len(message.body) for message in messages),
        )
        each(self._hooks, lambda hook: hook.before_send(context))
        return context

    # Inside

    async def _room(self, size: int, topic: str, timeout_s: float | None) -> float:
        """Wait for room within the time of a send; return how much of that is left.

        Raises:
            RequestTimeout: there was none in time.
            MessageTooLarge: there never is.
        """
        limit_s = self._config.send_timeout_s if timeout_s is None else timeout_s
        end_s = self.clock.monotonic() + limit_s
        in_flight = self._in_flight
        try:
            async with fail_after(self.clock, limit_s):
                await in_flight.room(size)
        except TimeoutError as error:
            raise RequestTimeout(
                f"not sent to {topic} within {limit_s:g} s: it waited for room, "
                f"{in_flight.count} messages of {in_flight.size} bytes are in flight",
                hint="Send less at a time, or raise send_timeout or max_in_flight",
            ) from error
        return end_s - self.clock.monotonic()

    def _id_of(self, message: Message) -> str:
        return message.unique_key or self._id_at(self._now_ms())

    def _ended_early(self, context: SendContext, error: BaseException) -> None:
        """Tell the hooks that a send failed before it was started."""
        each(self._hooks[::-1], lambda hook: hook.after_send(context, None, error))

    def _start(
        self,
        message: Message,
        body: bytes,
        sys_flag: int,
        choice: Choice | None,
        timeout_s: float | None,
        extra: Mapping[str, str] = NO_PROPERTIES,
        kind: SendKind = "normal",
    ) -> Send:
        timed = (message.delay is not None and message.is_timed) or message.deliver_at is not None
        if not self._hooks:
            request = self._request(message, body, sys_flag, None, extra)
            return self._begin(request, choice, timeout_s, timed)
        context = self.context(kind, (message,), (self._id_of(message),))
        try:
            request = self._request(message, body, sys_flag, context, extra)
        except (RocketMQError, ValueError) as error:
            self._ended_early(context, error)
            raise
        return self._begin(request, choice, timeout_s, timed, context)

    def _request(
        self,
        message: Message,
        body: bytes,
        sys_flag: int,
        context: SendContext | None,
        extra: Mapping[str, str],
    ) -> SendRequest:
        now_ms = self._now_ms()
        if context is None:
            unique_id = message.unique_key or self._id_at(now_ms)
        else:
            unique_id = context.unique_ids[0]
        topic = self._topics.get(message.topic) or self.topic(message.topic)
        if len(message.body) > self._size_max:
            self._check_size(message)
        if self._own or context is not None or extra is not NO_PROPERTIES:
            added = {**self._own, **extra}
            if context is not None:
                added = {**context.properties, **added}
            text = properties_text(message, unique_id, added)
        else:
            text = properties_text(message, unique_id)
        if len(text) > SURELY_FITS:
            check_properties(text)
        return SendRequest(topic, body, text, unique_id, now_ms, message.flag, sys_flag)

    def _check_size(self, message: Message) -> None:
        if len(message.body) > self._config.max_message_size:
            raise MessageTooLarge(len(message.body), self._config.max_message_size)

    async def _compressed_aside(self, body: bytes) -> tuple[bytes, int]:
        """Compress the body, a large one in a thread."""
        if len(body) < THREAD_OVER:
            return self._compressed(body)
        return await asyncio.to_thread(self._compressed, body)

    def _compressed(self, body: bytes) -> tuple[bytes, int]:
        """Return body and system flag: compressed when that makes it smaller."""
        if len(body) > self._config.max_message_size:
            raise MessageTooLarge(len(body), self._config.max_message_size)
        kind = KINDS[self._config.compression]
        packed = compress(body, kind)
        return (packed, compression_flags(kind)) if len(packed) < len(body) else (body, 0)


@dataclass(slots=True)
class _Open:
    """A batch that is being filled."""

    queue: MessageQueue | None
    size: int = 0
    messages: list[Message] = field(default_factory=list[Message])
    places: list[int] = field(default_factory=list[int])


class SendMany:
    """One call's messages, their batches and outcomes."""

    def __init__(
        self,
        sender: Sender,
        config: ProducerConfig,
        selector: QueueSelector | None,
        timeout_s: float | None,
    ) -> None:
        self._sender = sender
        self._config = config
        self._selector = selector
        self._timeout_s = timeout_s
        self._size_max = min(BATCH_SIZE_MAX, config.max_message_size)
        self._open: dict[tuple[str, MessageQueue | None], _Open] = {}
        self._sends: list[tuple[list[int], Send]] = []
        self._outcomes: list[Outcome | None] = []
        # Topics without a route, so that each of them costs one time-out and not one a message.
        self._routeless: dict[str, RocketMQError] = {}

    async def run(self, messages: Iterable[Message]) -> list[Outcome]:
        """Send all; return what became of each, in their order.

        Cancelled, each may be stored or not.
        """
        if isinstance(messages, Sequence):
            for message in messages:
                require_message(message)
                self._sender.topic(message.topic)
        try:
            for message in messages:
                await self._take(message)
            for batch in list(self._open.values()):
                await self._go(batch)
            for places, send in self._sends:
                await self._finish(places, send)
        except BaseException:
            for _, send in self._sends:
                if send.future.done() and not send.future.cancelled():
                    send.future.exception()  # read here, because no other code will
                else:
                    self._sender.pipeline.abandon(send)
            raise
        return [outcome for outcome in self._outcomes if outcome is not None]

    async def _take(self, message: Message) -> None:
        place = len(self._outcomes)
        self._outcomes.append(None)
        try:
            self._sender.topic(message.topic)
            queue = await self._queue(message)
            size = _item_size(message)
            if size > self._config.max_message_size:
                raise MessageTooLarge(size, self._config.max_message_size)
        except RocketMQError as error:
            self._outcomes[place] = error
            return
        key = (message.topic, queue)
        batch = self._open.get(key)
        alone = (
            is_delayed(message)
            or message.priority is not None
            or is_retry_topic(message.topic)
            or len(message.body) >= self._config.compress_over
            or size > self._size_max
        )
        if batch is not None and (
            (alone and queue is not None)
            or batch.size + size > self._size_max
            or len(batch.messages) >= BATCH_COUNT_MAX
            or batch.messages[0].wait_store_ok != message.wait_store_ok
        ):
            del self._open[key]
            await self._go(batch)
            batch = None
        if alone:
            await self._go(_Open(queue, size, [message], [place]))
            return
        if batch is None:
            batch = self._open[key] = _Open(queue)
        batch.messages.append(message)
        batch.places.append(place)
        batch.size += size

    async def _queue(self, message: Message) -> MessageQueue | None:
        """Return the queue of a message that is bound to one, in every try; else None."""
        choice = self._sender.choice(message, None, None, self._selector)
        if choice is None:
            return None
        topic = self._sender.topic(message.topic)
        if topic in self._routeless:
            raise self._routeless[topic]
        try:
            route = await self._route(topic)
        except RocketMQError as error:
            self._routeless[topic] = error
            raise
        return choice(route.publish_queues)

    async def _route(self, topic: str) -> TopicRoute:
        limit_s = self._config.send_timeout_s if self._timeout_s is None else self._timeout_s
        try:
            return await within(self._sender.clock, limit_s, self._sender.pipeline.route(topic))
        except RocketMQError:
            raise
        except TimeoutError as error:
            raise RequestTimeout(f"no route of {topic} within {limit_s:g} s") from error

    async def _go(self, batch: _Open) -> None:
        choice = None if batch.queue is None else _always(batch.queue)
        try:
            if len(batch.messages) == 1:
                send = await self._sender.begin(batch.messages[0], choice, self._timeout_s)
            else:
                send = await self._sender.begin_batch(batch.messages, choice, self._timeout_s)
        except RocketMQError as error:
            self._put(batch.places, error)
        else:
            self._sends.append((batch.places, send))

    async def _finish(self, places: list[int], send: Send) -> None:
        try:
            result = await send.future
        except RocketMQError as error:
            self._put(places, error)
            return
        results = batch_results(result, send.request.ids) if len(places) > 1 else [result]
        for place, one in zip(places, results, strict=True):
            self._outcomes[place] = one

    def _put(self, places: list[int], error: RocketMQError) -> None:
        for place in places:
            self._outcomes[place] = error


def _always(queue: MessageQueue) -> Choice:
    return lambda queues: queue


def _item_size(message: Message) -> int:
    """Return an upper bound for the bytes of the message in a batch."""
    item = BatchItem.of(message)
    own = 0 if message.unique_key is None else len(message.unique_key.encode())
    return MIN_BATCH_ITEM_SIZE + len(item.body) + len(item.properties) + own + ID_RESERVE
