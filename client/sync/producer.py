"""Producer, blocking.

with Producer(namesrv_addr="127.0.0.1:9876") as producer:
    producer.send(Message("orders", b"..."))
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Collection, Iterable, Mapping, Sequence

from skylarkmq.client.config import DEFAULT_PRODUCER_GROUP, MIB
from skylarkmq.client.errors import DEFAULT_RETRY_CODES
from skylarkmq.client.instance import Client as AsyncClient
from skylarkmq.client.producer.producer import Compression
from skylarkmq.client.producer.producer import Producer as AsyncProducer
from skylarkmq.client.producer.queue_selector import Selector
from skylarkmq.client.producer.reply_table import Reply
from skylarkmq.client.producer.request_reply import Replyable
from skylarkmq.client.producer.send import SendStats
from skylarkmq.client.producer.send_many import Outcome
from skylarkmq.client.producer.send_result import SendResult
from skylarkmq.client.sync.callbacks import in_thread
from skylarkmq.client.sync.client import Client
from skylarkmq.client.sync.on_client import OnClient
from skylarkmq.client.sync.transaction import Check, Transaction
from skylarkmq.protocol.message import Message, MessageQueue


class Producer(OnClient[AsyncProducer]):
    """Sends messages to any topic; `skylarkmq.client.Producer` without await. Any thread.

    A `selector` is called in the loop thread: it must be quick and call nothing that blocks.
    """

    def __init__(
        self,
        *,
        group: str = DEFAULT_PRODUCER_GROUP,
        client: Client | None = None,
        namesrv_addr: str | None = None,
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
        latency_fault: bool = False,
        try_timeout: float | None = None,
        check: Check | None = None,
        trace: bool | str = False,
    ) -> None:
        """Take the settings, as the asynchronous one does; `client` is a blocking one.

        `check` is a plain function, called in a thread of its own.
        """

        def make(inside: AsyncClient) -> AsyncProducer:
            return AsyncProducer(
                client=inside,
                group=group,
                send_timeout=send_timeout,
                retries=retries,
                retry_on=retry_on,
                compress_over=compress_over,
                compression=compression,
                max_message_size=max_message_size,
                default_topic_queues=default_topic_queues,
                max_in_flight=max_in_flight,
                max_in_flight_bytes=max_in_flight_bytes,
                strict=strict,
                latency_fault=latency_fault,
                try_timeout=try_timeout,
                check=None if check is None else in_thread(check),
                trace=trace,
            )

        self._stand_on(client, namesrv_addr, make)

    def start(self) -> None:
        """Connect to a name server and join the producer group; does nothing when started."""
        self._inner.start()

    def stop(self, timeout: float = 10.0) -> None:
        """Wait for what is in flight, `timeout` seconds at most, and close."""
        self._end(lambda it: it.stop(timeout))

    @property
    def stats(self) -> SendStats:
        """Counters of this producer."""
        return self._inner.call(lambda it: it.stats)

    @property
    def in_flight_count(self) -> int:
        """Messages sent and not answered yet."""
        return self._inner.call(lambda it: it.in_flight_count)

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send a message and return where it is; waits first while too much is in flight."""
        return self._inner.run(
            lambda it: it.send(message, queue=queue, key=key, selector=selector, timeout=timeout)
        )

    def cancel(self, result: SendResult) -> bool:
        """Take back a message with a `delay` or `deliver_at` of its own while it waits."""
        return self._inner.run(lambda it: it.cancel(result))

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
        timeout: float | None = None,
    ) -> concurrent.futures.Future[SendResult]:
        """Start sending a message; the future has what `send` would return or raise.

        Raises:
            TooManyInFlight: beyond `max_in_flight` or `max_in_flight_bytes`; call `room()` before.
        """
        return self._inner.future(
            lambda it: it.send_nowait(
                message, queue=queue, key=key, selector=selector, timeout=timeout
            )
        )

    def room(self, size: int = 0) -> None:
        """Wait until a message of `size` bytes may be started with `send_nowait`."""
        self._inner.run(lambda it: it.room(size))

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: Selector | None = None,
    ) -> None:
        """Send a message once, without an answer: it may be lost without a word."""
        self._inner.run(lambda it: it.send_oneway(message, queue=queue, key=key, selector=selector))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic to one queue in one request; all are stored, or none."""
        return self._inner.run(lambda it: it.send_batch(messages, queue=queue, timeout=timeout))

    def send_many(
        self,
        messages: Iterable[Message],
        *,
        selector: Selector | None = None,
        timeout: float | None = None,
    ) -> list[Outcome]:
        """Send any messages in as few requests as may be; return what became of each, in order."""
        listed = list(messages)  # here, as an iterator may block
        return self._inner.run(lambda it: it.send_many(listed, selector=selector, timeout=timeout))

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages of `topic` may be sent to now."""
        return self._inner.run(lambda it: it.queues(topic))

    def flush(self) -> None:
        """Wait until everything started before has ended, well or not."""
        self._inner.run(lambda it: it.flush())

    def transaction(self, message: Message, *, check: Check | None = None) -> Transaction:
        """Return a transaction around a message: entered, the message is stored and hidden.

        Args:
            check: asked about this transaction, as long as this process lives; default: the
                producer's own. Called in a thread.
        """
        asked = None if check is None else in_thread(check)
        inside = self._inner.call(lambda it: it.transaction(message, check=asked))
        return Transaction(self._client.portal, inside)

    def request(self, message: Message, timeout: float = 3.0) -> Reply:
        """Send a message that asks for a reply, and return what its consumer replied.

        Raises:
            ReplyTimeout: it was sent, and nobody replied in time.
        """
        return self._inner.run(lambda it: it.request(message, timeout))

    def request_nowait(
        self, message: Message, timeout: float = 3.0
    ) -> concurrent.futures.Future[Reply]:
        """Start a request; the future has what `request` would return or raise."""
        return self._inner.future(lambda it: it.request_nowait(message, timeout))

    def reply(
        self,
        request: Replyable,
        body: bytes | str,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        timeout: float = 3.0,
    ) -> None:
        """Reply to a message that a consumer received as a request.

        Raises:
            IllegalState: the message is no request.
            ReplyNotDelivered: no broker could hand it on: the client that asked is gone.
        """
        self._inner.run(
            lambda it: it.reply(
                request, body, tags=tags, keys=keys, properties=properties, timeout=timeout
            )
        )
