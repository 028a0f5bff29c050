# pyright: reportPrivateUsage=false
"""The classes of the facade, with what differs from their asynchronous twins."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self, overload

from skylarkmq.client.admin import Admin as AsyncAdmin
from skylarkmq.client.admin.reading import MessageScan as AsyncScan
from skylarkmq.client.consumer.consumer import Consumer as AsyncConsumer
from skylarkmq.client.consumer.peek_reader import PeekReader as AsyncPeekReader
from skylarkmq.client.consumer.signals import stopped_on
from skylarkmq.client.consumer.simple_consumer import SimpleConsumer as AsyncSimpleConsumer
from skylarkmq.client.errors import ConsumerClosed, IllegalState
from skylarkmq.client.instance import Client as AsyncClient
from skylarkmq.client.message_view import StoredMessage
from skylarkmq.client.popped_message import PoppedMessage
from skylarkmq.client.producer.checks import HalfMessage, TransactionState
from skylarkmq.client.producer.lanes import QueueSelector
from skylarkmq.client.producer.producer import Producer as AsyncProducer
from skylarkmq.client.producer.transaction import Transaction as AsyncTransaction
from skylarkmq.client.received_message import ReceivedMessage as AsyncReceivedMessage
from skylarkmq.client.send_result import SendResult
from skylarkmq.client.sync.outbox import Outbox
from skylarkmq.client.sync.portal import Portal, Threads
from skylarkmq.client.sync.twin import Bound, Started, blocking, in_thread
from skylarkmq.common.settings import seconds_of, seconds_or_none
from skylarkmq.protocol.message import Message, MessageQueue

Check = Callable[[HalfMessage], TransactionState]
"""Looks up how the transaction of a message ended; called in a thread of its own."""
Handler = Callable[["ReceivedMessage"], object]
"""Gets one message; called in a thread."""
BatchHandler = Callable[[list["ReceivedMessage"]], object]
"""Gets messages of one queue: the handler of a `run` with `max_batch` above 1."""
QueuesCallback = Callable[[list[MessageQueue]], None]
"""Is told the queues that come or go; called in a thread, and waited for."""


@blocking(AsyncClient)
class Client(Started):
    """A connection to a cluster; `skylarkmq.client.Client` without await. Any thread.

        with Client("127.0.0.1:9876") as client:
            with Producer(client=client) as producer: ...

    After a fork the child's client is another one: it connects anew when it is used, under another
    client id, and its producers and consumers start anew. One that is not stopped is stopped at the
    end of the program, which waits five seconds for that at most.
    """

    def _make_twin(self, twin: Any, args: Sequence[Any], settings: dict[str, Any]) -> None:
        self._hold(Portal(), lambda: twin(*args, **settings))
        self._portal.close_at_exit(self._end)

    def _end(self) -> None:
        self._stop(lambda it: it.stop())

    def _stop(self, work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        try:
            super()._stop(work)
        finally:
            self._portal.close()

    def _read(self, name: str) -> Any:
        return getattr(self._current(), name)


class OnClient(Started):
    """Base of the classes that have a blocking client or share one."""

    def _make_twin(self, twin: Any, args: Sequence[Any], settings: dict[str, Any]) -> None:
        client, namesrv_addr = settings.pop("client", None), settings.pop("namesrv_addr", None)
        if client is not None and namesrv_addr is not None:
            raise ValueError("give client= or namesrv_addr=, not both")
        if not isinstance(client, Client | None):
            raise TypeError(
                f"client= takes a Client of skylarkmq.client.sync, not {type(client).__name__}; "
                "addresses of name servers go into namesrv_addr="
            )
        self._owns_client = client is None
        self._client: Any = Client(namesrv_addr) if client is None else client
        inside = self._client._current
        self._hold(self._client._portal, lambda: twin(*args, client=inside(), **settings))

    def _stop(self, work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        try:
            super()._stop(work)
        finally:
            if self._owns_client:
                self._client.stop()


@blocking(AsyncProducer)
class Producer(OnClient):
    """Sends messages to any topic; `skylarkmq.client.Producer` without await. Any thread.

    A `selector` is called in the loop thread: it must be quick and call nothing that blocks. A
    `check` is a plain function, called in a thread of its own.
    """

    _callbacks = ("check",)
    _outbox: Outbox | None = None

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | None = None,
        selector: QueueSelector | None = None,
        timeout: float | timedelta | None = None,
    ) -> concurrent.futures.Future[SendResult]:
        """Start sending a message; the future has what `send` would return or raise.

        Messages that one thread starts one after the other to one queue are stored in that order,
        as with `skylarkmq.client.Producer.send_nowait`. Call `room()` before it to stay within the
        producer's limits.

        Raises:
            TooManyInFlight: beyond `max_in_flight` or `max_in_flight_bytes`.
            MessageTooLarge: over `max_message_size`.
        """
        producer: AsyncProducer = self._live()
        if queue is None and key is None and selector is None:
            sent = self._outbox_of(producer).put(message, seconds_or_none(timeout))
            if sent is not None:
                return sent

        def begun(it: AsyncProducer) -> asyncio.Future[SendResult]:
            return it.send_nowait(message, queue=queue, key=key, selector=selector, timeout=timeout)

        return self._future(begun)

    def _outbox_of(self, producer: AsyncProducer) -> Outbox:
        outbox = self._outbox
        if outbox is None or outbox.producer is not producer:
            with self._portal.lock:
                outbox = self._outbox
                if outbox is None or outbox.producer is not producer:  # the first call, or a fork
                    outbox = self._outbox = Outbox(self._portal, producer)
        return outbox


@blocking(AsyncConsumer)
class Consumer(OnClient):
    """Receives messages as a member of a group; `skylarkmq.client.Consumer` without await.

        with Consumer("orders", group="billing", namesrv_addr="127.0.0.1:9876") as consumer:
            consumer.run(handle)           # handlers in threads: ack by returning, retry by raising
            for message in consumer: ...   # or: ack by asking for the next one

    Any thread. `getone`, `getmany` and iteration acknowledge what they gave before (with
    `ack="auto"`), so one thread uses them; several threads use `run`, or `ack="manual"`.
    `on_assigned` and `on_revoked` are plain functions, called in a thread and waited for. A handler
    that is at work when the time of `stop` is over goes on in its thread, though its message is
    given to another member.
    """

    _callbacks = ("on_assigned", "on_revoked")
    _when_stopped = ConsumerClosed

    @overload
    def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 20,
        max_batch: Literal[1] = 1,
        stop_on: Iterable[int] = (),
        stop_timeout: float | timedelta = 30.0,
    ) -> None: ...

    @overload
    def run(
        self,
        handler: BatchHandler,
        *,
        concurrency: int = 20,
        max_batch: int,
        stop_on: Iterable[int] = (),
        stop_timeout: float | timedelta = 30.0,
    ) -> None: ...

    def run(
        self,
        handler: Handler | BatchHandler,
        *,
        concurrency: int = 20,
        max_batch: int = 1,
        stop_on: Iterable[int] = (),
        stop_timeout: float | timedelta = 30.0,
    ) -> None:
        """Give every message to `handler` until the consumer has stopped.

        Args:
            handler: a plain function of one message, or with `max_batch` above 1 of a list of
                messages of one queue; called in one of `concurrency` threads.
            stop_on: signals, as `(SIGTERM, SIGINT)`, at the first of which the consumer stops as by
                `stop`, within `stop_timeout` seconds, and `run` returns. Needs the main thread.
        """
        portal = self._portal
        called: Callable[[Any], object] = handler  # of the kind that max_batch says

        def handle(received: AsyncReceivedMessage | Sequence[AsyncReceivedMessage]) -> object:
            if isinstance(received, AsyncReceivedMessage):
                return called(ReceivedMessage(portal, received))
            return called([ReceivedMessage(portal, message) for message in received])

        async def run_and_stop(it: AsyncConsumer) -> None:
            run: Callable[..., Coroutine[Any, Any, None]] = it.run
            await run(work, concurrency=concurrency, max_batch=max_batch)
            await it.stop()  # is under way: the program may end next, and with it who called it

        threads = Threads(max(1, concurrency), thread_name_prefix="skylarkmq-handler")
        work = in_thread(handle, threads)
        timeout_s, stopping = seconds_of(stop_timeout), set[asyncio.Task[None]]()

        def stop() -> None:
            stopping.add(asyncio.create_task(self._current().stop(timeout=timeout_s)))

        try:
            with stopped_on(stop_on, lambda: portal.post(stop)):
                self._run(run_and_stop)
        except IllegalState:
            if not (self._stopped and portal.closed):
                raise  # else a handler has stopped it, and its client ended under this call
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        try:
            return self.getone()
        except ConsumerClosed:
            raise StopIteration from None

    def getone(self, timeout: float | timedelta | None = None) -> ReceivedMessage:
        """Return the next message; with `ack="auto"` what was given before is done now.

        Raises:
            RequestTimeout: none came within `timeout` seconds.
            ConsumerClosed: the consumer has stopped.
        """
        portal = self._portal
        given: list[AsyncReceivedMessage] = []

        async def take(it: AsyncConsumer) -> ReceivedMessage:
            given.append(await it.getone(timeout))
            return ReceivedMessage(portal, given[0])

        # Nothing may follow before the caller has it: an interruption there would lose it.
        return self._run(take, lambda it, _: it._take_back(given))

    def getmany(
        self, max_records: int = 500, timeout: float | timedelta | None = 0.0
    ) -> dict[MessageQueue, list[ReceivedMessage]]:
        """Return the next messages by queue; with `ack="auto"` what came before is done now.

        Args:
            timeout: seconds to wait while there are none; None waits for ever.
        """
        portal = self._portal
        given: list[AsyncReceivedMessage] = []

        async def take(it: AsyncConsumer) -> dict[MessageQueue, list[ReceivedMessage]]:
            found = await it.getmany(max_records, timeout)
            given.extend(message for messages in found.values() for message in messages)
            return {
                queue: [ReceivedMessage(portal, message) for message in messages]
                for queue, messages in found.items()
            }

        return self._run(take, lambda it, _: it._take_back(given))

    def buffered(self) -> dict[str, tuple[int, int]]:
        """Return how many messages are held here of each topic, and their stored bytes."""
        found: dict[str, tuple[int, int]] = self._current().buffered()
        return found

    @property
    def group(self) -> str:
        """The consumer group, as brokers know it: with the client's namespace."""
        return str(self._current().group)


@blocking(AsyncPeekReader)
class PeekReader(OnClient):
    """Reads a topic outside of any group; `skylarkmq.client.PeekReader` without await.

        with PeekReader("orders", namesrv_addr="127.0.0.1:9876", stop="now") as reader:
            for message in reader: ...

    Any thread. After a fork the child's reader begins at its beginning again.
    """

    _when_stopped = ConsumerClosed


@blocking(AsyncSimpleConsumer)
class SimpleConsumer(OnClient):
    """Receives messages for a time; `skylarkmq.client.SimpleConsumer` without await. Any thread.

    with SimpleConsumer("orders", group="billing", namesrv_addr="127.0.0.1:9876") as consumer:
        for message in consumer.receive(16):
            handle(message)
            consumer.ack(message)
    """

    _when_stopped = ConsumerClosed

    def receive(
        self,
        max_messages: int = 16,
        *,
        invisible_duration: float | timedelta | None = None,
        timeout: float | timedelta | None = None,
    ) -> list[PoppedMessage]:
        """Return the next messages, of one topic and broker; none when nothing came.

        Args:
            max_messages: 1 to 32.
            invisible_duration: in place of the consumer's.
            timeout: seconds to wait while there is none, in place of `await_duration`.

        Raises:
            RouteNotFound: nobody has the topics.
            NotSupported: a broker has no pop consumption (RocketMQ 4.9).
            RocketMQError: no broker of the topics can be asked, or one refuses; see `retryable`.
            ConsumerClosed: the consumer has stopped.
        """

        async def take(it: AsyncSimpleConsumer) -> list[PoppedMessage]:
            return await it.receive(
                max_messages, invisible_duration=invisible_duration, timeout=timeout
            )

        return self._run(take, lambda it, found: it._take_back(found))


@blocking(AsyncAdmin)
class Admin(OnClient):
    """Administers a cluster; `skylarkmq.client.Admin` without await. Any thread."""


@blocking(AsyncReceivedMessage)
class ReceivedMessage(StoredMessage, Bound):
    """One message of one queue; `skylarkmq.client.ReceivedMessage` without await. Any thread."""

    def __init__(self, portal: Portal, twin: AsyncReceivedMessage) -> None:
        StoredMessage.__init__(self, twin.stored, twin.queue, twin.topic)
        self._topic = twin.topic  # of a retry its own, though it lies in another one
        Bound.__init__(self, portal, twin)

    __repr__ = StoredMessage.__repr__

    def ack(self) -> None:
        """Say that it is done. The group's offset moves on when all before it are done too."""
        self._run(lambda it: it.ack())

    @property
    def reconsume_times(self) -> int:
        """How many times it was handed back before."""
        times: int = self._twin.reconsume_times  # with those that its record does not have
        return times

    @contextmanager
    def process(self, *, requeue: bool = True) -> Generator[ReceivedMessage]:
        """Acknowledge when the block ends; on an error hand it back and let the error through."""
        inside = self._twin.process(requeue=requeue)
        self._run(lambda _: inside.__aenter__())
        try:
            yield self
        except BaseException as error:
            failure, kind, where = error, type(error), error.__traceback__
            self._run(lambda _: inside.__aexit__(kind, failure, where))
            raise
        self._run(lambda _: inside.__aexit__(None, None, None))


@blocking(AsyncTransaction)
class Transaction(Bound):
    """One transaction; a context manager, to be entered once. See the asynchronous one."""

    def __enter__(self) -> Self:
        """Send the half message."""
        self._run(lambda it: it.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the verdict that the block has not given itself: commit, or after an error rollback.

        After Ctrl-C and the like it is left to the check.
        """
        self._run(lambda it: it.__aexit__(kind, error, trace))

    @property
    def state(self) -> TransactionState | None:
        """The verdict so far, None while there is none."""
        state: TransactionState | None = self._twin.state
        return state


@blocking(AsyncScan)
class MessageScan(Bound):
    """An iterator of a topic's messages; see `skylarkmq.client.admin.MessageScan`."""
