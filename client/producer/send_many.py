"""Many messages at once: batches by topic and queue, each no larger than a broker takes.

    message                              goes
    of the same topic, without a key     into the topic's open batch
    with a key, or with a selector       into the open batch of its queue, so a key keeps its order
    delayed, to be compressed, or of     alone; the open batch of its queue goes before it
    a retry topic

A batch that is full goes at once. Each batch is stored whole or not at all, the lot of them is not.
Loop thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from skylarkmq.client.clock import within
from skylarkmq.client.config import ProducerConfig
from skylarkmq.client.errors import MessageTooLarge, RequestTimeout, RocketMQError
from skylarkmq.client.producer.batch import batch_results, is_delayed
from skylarkmq.client.producer.queue_selector import Selector
from skylarkmq.client.producer.send import Choice, Send
from skylarkmq.client.producer.send_result import SendResult
from skylarkmq.client.producer.sender import Sender
from skylarkmq.client.wire.route import RouteTable, TopicRoute
from skylarkmq.protocol.batch import MIN_BATCH_ITEM_SIZE, BatchItem
from skylarkmq.protocol.flags import is_retry_topic
from skylarkmq.protocol.message import Message, MessageQueue, require_message

Outcome = SendResult | RocketMQError
BATCH_SIZE_MAX: Final = 256 * 1024
"""Bytes of one batch; with more, a single queue would get too much in a row."""
BATCH_COUNT_MAX: Final = 256
ID_RESERVE: Final = 128
"""What a message's id and namespace add to its properties at most, bytes."""


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
        routes: RouteTable,
        config: ProducerConfig,
        selector: Selector | None,
        timeout_s: float | None,
    ) -> None:
        self._sender = sender
        self._routes = routes
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
                    send.future.exception()  # seen: nobody else will look
                else:
                    self._sender.abandon(send)
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
        """Return the queue of a message that may not go to any; it stays there in every try."""
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
        asking = self._routes.for_publish(topic, self._config.default_topic_queues)
        try:
            return await within(self._sender.clock, limit_s, asking)
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
        results = batch_results(result) if len(places) > 1 else [result]
        for place, one in zip(places, results, strict=True):
            self._outcomes[place] = one

    def _put(self, places: list[int], error: RocketMQError) -> None:
        for place in places:
            self._outcomes[place] = error


def _always(queue: MessageQueue) -> Choice:
    return lambda queues: queue


def _item_size(message: Message) -> int:
    """Return at least the bytes that the message takes in a batch."""
    item = BatchItem.of(message)
    return MIN_BATCH_ITEM_SIZE + len(item.body) + len(item.properties) + ID_RESERVE
