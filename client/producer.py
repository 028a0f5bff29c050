"""Producer: sends messages.

    async with Producer("127.0.0.1:9876") as producer:
        result = await producer.send(Message("orders", b"..."))

Sends of one loop turn leave in one write per broker, so many small sends in flight are the quick
way; `await` each only where the order of two messages matters.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Final, Literal, Self

from skylarkmq.client.api_send import SendRequest
from skylarkmq.client.clock import within
from skylarkmq.client.config import DEFAULT_PRODUCER_GROUP, MIB, ProducerConfig
from skylarkmq.client.errors import (
    DEFAULT_RETRY_CODES,
    IllegalState,
    MessageTooLarge,
    TooManyInFlight,
)
from skylarkmq.client.instance import Client
from skylarkmq.client.producer_batch import batch_request, batch_results
from skylarkmq.client.queue_selector import Selector, by_hash, checked
from skylarkmq.client.send import Choice, Send, SendStats
from skylarkmq.client.send_pipeline import SendPipeline
from skylarkmq.client.send_result import SendResult
from skylarkmq.protocol.compression import CompressionKind, compress, compression_flags
from skylarkmq.protocol.flags import validate_producer_group, validate_topic
from skylarkmq.protocol.message import Message, MessageQueue
from skylarkmq.protocol.properties import (
    KEYS,
    MAX_PROPERTIES_SIZE,
    NAME_SEPARATOR,
    PROPERTY_SEPARATOR,
    TAGS,
    UNIQ_KEY,
    encode_properties,
)

log = logging.getLogger(__name__)

Compression = Literal["zlib", "lz4", "zstd"]

KINDS: Final = {
    "zlib": CompressionKind.ZLIB,
    "lz4": CompressionKind.LZ4,
    "zstd": CompressionKind.ZSTD,
}
THREAD_OVER: Final = 256 * 1024
"""Bytes from which `send` compresses in a thread: below, the loop is held for a few ms at most."""

_UNIQ_KEY_FRONT: Final = UNIQ_KEY + NAME_SEPARATOR
_TAGS_FRONT: Final = PROPERTY_SEPARATOR + TAGS + NAME_SEPARATOR
_KEYS_FRONT: Final = PROPERTY_SEPARATOR + KEYS + NAME_SEPARATOR


class Producer:
    """Sends messages to any topic. One loop; any number of tasks may use it at the same time."""

    def __init__(
        self,
        client: Client | str | None = None,
        *,
        group: str = DEFAULT_PRODUCER_GROUP,
        send_timeout: float = 3.0,
        retries: int = 2,
        retry_on: Collection[int] = DEFAULT_RETRY_CODES,
        compress_over: int = 4096,
        compression: Compression = "zlib",
        max_message_size: int = 4 * MIB,
        default_topic_queues: int = 4,
        max_in_flight: int = 1000,
        max_in_flight_bytes: int = 64 * MIB,
        strict: bool = False,
    ) -> None:
        """Take the settings; nothing is connected before `start`.

        Args:
            client: shared with other producers and consumers, or name server addresses (default
                as for Client) for a client of this producer's own.
            send_timeout: seconds for one message over all its tries.
            retries: further tries after a refusal in `retry_on` or a try without an answer.
            compress_over: bodies of that size and more are compressed; bytes.
            default_topic_queues: queues of a topic that this producer's send creates.
            max_in_flight, max_in_flight_bytes: messages under way; `send` waits beyond that.
            strict: raise NotDurableError for a message that is stored but not confirmed durable.
        """
        if (reason := validate_producer_group(group)) is not None:
            raise ValueError(reason)
        if compression not in KINDS:
            raise ValueError(f"compression is one of {', '.join(KINDS)}, not {compression!r}")
        self._config = ProducerConfig(
            group=group,
            send_timeout_s=send_timeout,
            retries=retries,
            retry_on=frozenset(retry_on),
            compress_over=compress_over,
            compression=compression,
            max_message_size=max_message_size,
            default_topic_queues=default_topic_queues,
            max_in_flight=max_in_flight,
            max_in_flight_bytes=max_in_flight_bytes,
            strict=strict,
        )
        self._owned = not isinstance(client, Client)
        self._client = client if isinstance(client, Client) else Client(client)
        self._pipeline: SendPipeline | None = None
        self._stopped = False
        self._checked_topics: set[str] = set()
        self._next_id: Callable[[], str]
        self._now_ms: Callable[[], int]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Connect to a name server and join the producer group; does nothing when started.

        Raises:
            ConnectionFailed: no name server can be reached.
        """
        if self._stopped:
            raise IllegalState("the producer has stopped")
        if self._pipeline is not None:
            return
        await self._client.start()
        services = self._client.services
        self._now_ms = services.clock.now_ms
        self._next_id = self._client.unique_ids.next
        self._pipeline = SendPipeline(
            self._config, services.remoting, services.routes, services.clock, services.random
        )
        self._client.join_producer(self._config.group)

    async def stop(self, timeout: float = 10.0) -> None:  # noqa: ASYNC109 - by our clock
        """Wait for what is in flight, `timeout` seconds at most, leave the group, and close."""
        self._stopped = True
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is None:
            return
        try:
            await within(self._client.services.clock, timeout, pipeline.in_flight.idle())
        except TimeoutError:
            log.warning("%d sends were still under way at stop", pipeline.in_flight.count)
        finally:
            try:
                await pipeline.stop()
                await self._client.leave_producer(self._config.group)
            finally:
                if self._owned:
                    await self._client.close()

    @property
    def stats(self) -> SendStats:
        """Counters of this producer."""
        return self._running.stats

    @property
    def in_flight_count(self) -> int:
        """Messages sent and not answered yet."""
        return self._running.in_flight.count

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> SendResult:
        """Send a message and return where it is; waits first while too much is in flight.

        Cancelled, the message may be stored or not.

        Args:
            queue: send it there, and nowhere else.
            key: messages with equal keys go to one queue, the one that Java's hash selector takes;
                default: the message's `sharding_key`. Else the queues take turns.
            selector: called with the writable queues and the message, returns one of them.
            timeout: seconds, instead of the producer's `send_timeout`.

        Raises:
            RocketMQError: not stored, or not known to be: see each error.
            ValueError: the topic's name is illegal.
        """
        pipeline = self._running
        body, sys_flag = message.body, 0
        if len(body) >= max(self._config.compress_over, THREAD_OVER):
            body, sys_flag = await asyncio.to_thread(self._compressed, body)
        elif len(body) >= self._config.compress_over:
            body, sys_flag = self._compressed(body)
        request = self._request(message, body, sys_flag)
        if not pipeline.in_flight.has_room(len(body)):
            await pipeline.in_flight.room(len(body))
        send = pipeline.begin(request, self._choice(message, queue, key, selector), timeout)
        return await _result(pipeline, send)

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
        timeout: float | None = None,
    ) -> asyncio.Future[SendResult]:
        """Start sending a message; the future has what `send` would return or raise.

        Messages started one after the other to one queue are stored in that order unless a try
        fails. Await `room()` before it to stay within the producer's limits.

        Raises:
            TooManyInFlight: beyond `max_in_flight` or `max_in_flight_bytes`.
            MessageTooLarge: over `max_message_size`.
        """
        pipeline = self._running
        body, sys_flag = message.body, 0
        if len(body) >= self._config.compress_over:
            body, sys_flag = self._compressed(body)
        request = self._request(message, body, sys_flag)
        if not pipeline.in_flight.has_room(len(body)):
            raise TooManyInFlight(
                f"{pipeline.in_flight.count} messages are in flight", hint="Await room() first"
            )
        choice = self._choice(message, queue, key, selector)
        return pipeline.begin(request, choice, timeout).future

    async def room(self, size: int = 0) -> None:
        """Wait until a message of `size` bytes may be started with `send_nowait`."""
        await self._running.in_flight.room(size)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
    ) -> None:
        """Send a message once, without an answer: it may be lost without a word.

        Raises:
            RocketMQError: no route, or no connection.
        """
        body, sys_flag = message.body, 0
        if len(body) >= self._config.compress_over:
            body, sys_flag = self._compressed(body)
        request = self._request(message, body, sys_flag)
        await self._running.post(request, self._choice(message, queue, key, selector))

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> list[SendResult]:
        """Send messages of one topic to one queue in one request; all are stored, or none.

        Raises:
            IllegalState: several topics, or a delayed message among them.
            MessageTooLarge: together over `max_message_size`.
        """
        pipeline = self._running
        limit = self._config.max_message_size
        request = batch_request(messages, self._next_id, self._now_ms(), limit)
        self._check_topic(request.topic)
        await pipeline.in_flight.room(len(request.body))
        choice = self._choice(messages[0], queue, None, None)
        send = pipeline.begin(request, choice, timeout)
        return batch_results(await _result(pipeline, send))

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages of `topic` may be sent to now.

        Raises:
            RouteNotFound: nobody takes messages of this topic.
        """
        self._check_topic(topic)
        routes = self._client.services.routes
        route = await routes.for_publish(topic, self._config.default_topic_queues)
        return list(route.publish_queues)

    async def flush(self) -> None:
        """Wait until everything started before has ended, well or not."""
        await self._running.in_flight.idle()

    # Inside

    @property
    def _running(self) -> SendPipeline:
        if self._pipeline is None:
            raise IllegalState(
                "the producer has stopped" if self._stopped else "the producer is not started"
            )
        return self._pipeline

    def _request(self, message: Message, body: bytes, sys_flag: int) -> SendRequest:
        topic = message.topic
        if topic not in self._checked_topics:
            self._check_topic(topic)
        if len(message.body) > self._config.max_message_size:
            raise MessageTooLarge(len(message.body), self._config.max_message_size)
        unique_id = self._next_id()
        properties = _properties_text(message, unique_id)
        if len(properties) > MAX_PROPERTIES_SIZE // 4:  # a character has up to four bytes
            size = len(properties.encode())
            if size > MAX_PROPERTIES_SIZE:
                raise MessageTooLarge(size, MAX_PROPERTIES_SIZE, hint="Its properties are too long")
        return SendRequest(
            topic, body, properties, unique_id, self._now_ms(), message.flag, sys_flag
        )

    def _compressed(self, body: bytes) -> tuple[bytes, int]:
        """Return body and system flag: compressed when that makes it smaller."""
        if len(body) > self._config.max_message_size:
            raise MessageTooLarge(len(body), self._config.max_message_size)
        kind = KINDS[self._config.compression]
        packed = compress(body, kind)
        return (packed, compression_flags(kind)) if len(packed) < len(body) else (body, 0)

    def _check_topic(self, topic: str) -> None:
        if (reason := validate_topic(topic)) is not None:
            raise ValueError(reason)
        if len(self._checked_topics) < 4096:
            self._checked_topics.add(topic)

    def _choice(
        self,
        message: Message,
        queue: MessageQueue | None,
        key: str | None,
        selector: Selector | None,
    ) -> Choice | None:
        if queue is not None:
            if queue.topic != message.topic:
                raise IllegalState(f"{queue} is no queue of topic {message.topic}")
            return lambda queues: queue
        if selector is not None:
            return lambda queues: checked(selector, queues, message)
        wanted = message.sharding_key if key is None else key
        if wanted is None:
            return None
        return lambda queues: by_hash(queues, wanted)


def _properties_text(message: Message, unique_id: str) -> str:
    """Return the text of the message's properties with its id; plain messages without a map."""
    text = _UNIQ_KEY_FRONT + unique_id
    if (
        message.properties
        or message.delay_level
        or message.sharding_key
        or not message.wait_store_ok
    ):
        return f"{text}{PROPERTY_SEPARATOR}{encode_properties(message.to_properties())}"
    if message.tags:
        text += _TAGS_FRONT + message.tags
    if message.keys:
        text += _KEYS_FRONT + message.keys
    return text


async def _result(pipeline: SendPipeline, send: Send) -> SendResult:
    try:
        return await send.future
    except asyncio.CancelledError:
        pipeline.abandon(send)
        raise
