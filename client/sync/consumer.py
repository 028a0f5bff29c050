"""Consumer, blocking.

with Consumer("orders", namesrv_addr="127.0.0.1:9876", group="billing") as consumer:
    consumer.run(handle)              # handlers in threads: ack by returning, retry by raising
    for message in consumer: ...      # or: ack by asking for the next one
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

from skylarkmq.client.config import MIB, AckMode, Model
from skylarkmq.client.consumer.allocate import Assignment
from skylarkmq.client.consumer.consumer import Consumer as AsyncConsumer
from skylarkmq.client.consumer.received_message import ReceivedMessage as AsyncReceivedMessage
from skylarkmq.client.consumer.subscription import Selector, StartFrom
from skylarkmq.client.errors import ConsumerClosed, IllegalState
from skylarkmq.client.instance import Client as AsyncClient
from skylarkmq.client.producer.request_reply import Replyable
from skylarkmq.client.sync.callbacks import in_thread
from skylarkmq.client.sync.client import Client
from skylarkmq.client.sync.on_client import OnClient
from skylarkmq.client.sync.received_message import ReceivedMessage
from skylarkmq.client.sync.threads import Threads
from skylarkmq.protocol.message import MessageQueue

Handler = Callable[[Any], object]
QueuesCallback = Callable[[list[MessageQueue]], None]
Received = AsyncReceivedMessage | Sequence[AsyncReceivedMessage]


class Consumer(OnClient[AsyncConsumer]):
    """Receives messages as a member of a group; `skylarkmq.client.Consumer` without await.

    Any thread. `getone`, `getmany` and iteration acknowledge what they gave before (with
    `ack="auto"`), so one thread uses them; several threads use `run`, or `ack="manual"`.
    """

    def __init__(
        self,
        *topics: str,
        group: str,
        client: Client | None = None,
        namesrv_addr: str | None = None,
        model: Model = "clustering",
        selector: Selector | None = None,
        start_from: StartFrom = StartFrom.LAST,
        orderly: bool = False,
        assignment: Assignment = "average",
        batch_size: int = 32,
        prefetch: int = 1000,
        prefetch_bytes: int = 100 * MIB,
        max_span: int = 2000,
        max_reconsume: int | None = None,
        retry_delays: Iterable[float | timedelta] = (),
        ack: AckMode = "auto",
        commit_interval: float = 5.0,
        consume_timeout: float = 900.0,
        on_assigned: QueuesCallback | None = None,
        on_revoked: QueuesCallback | None = None,
        offsets_folder: str | Path | None = None,
        trace: bool | str = False,
    ) -> None:
        """Take the settings, as the asynchronous one does; `client` is a blocking one.

        `on_assigned` and `on_revoked` are plain functions, called in a thread and waited for.
        """

        delays = tuple(retry_delays)  # here, as `make` is called again after a fork

        def make(inside: AsyncClient) -> AsyncConsumer:
            return AsyncConsumer(
                *topics,
                client=inside,
                group=group,
                model=model,
                selector=selector,
                start_from=start_from,
                orderly=orderly,
                assignment=assignment,
                batch_size=batch_size,
                prefetch=prefetch,
                prefetch_bytes=prefetch_bytes,
                max_span=max_span,
                max_reconsume=max_reconsume,
                retry_delays=delays,
                ack=ack,
                commit_interval=commit_interval,
                consume_timeout=consume_timeout,
                on_assigned=None if on_assigned is None else in_thread(on_assigned),
                on_revoked=None if on_revoked is None else in_thread(on_revoked),
                offsets_folder=offsets_folder,
                trace=trace,
            )

        self._stand_on(client, namesrv_addr, make, ConsumerClosed)

    def start(self) -> None:
        """Join the group and take a share of the queues; does nothing when started."""
        self._inner.start()

    def stop(self, drain: bool = True, timeout: float = 30.0) -> None:
        """Leave the group: end the handlers, commit, tell the brokers, close.

        A handler may call it, and is not waited for: it acknowledges its message before. One that
        is at work after `timeout` goes on in its thread, though its message is given to another
        member.
        """
        self._end(lambda it: it.stop(drain, timeout))

    def run(self, handler: Handler, *, concurrency: int = 20, max_batch: int = 1) -> None:
        """Give every message to `handler` until the consumer has stopped.

        Args:
            handler: a plain function of one message, or with `max_batch` above 1 of a list of
                messages of one queue; called in one of `concurrency` threads.
        """
        portal = self._client.portal

        def handle(received: Received) -> object:
            if isinstance(received, AsyncReceivedMessage):
                return handler(ReceivedMessage(portal, received))
            return handler([ReceivedMessage(portal, message) for message in received])

        async def run_and_stop(it: AsyncConsumer) -> None:
            await it.run(work, concurrency=concurrency, max_batch=max_batch)
            await it.stop()  # is under way: the program may end next, and with it who called it

        threads = Threads(max(1, concurrency), thread_name_prefix="skylarkmq-handler")
        work = in_thread(handle, threads)
        try:
            self._inner.run(run_and_stop)
        except IllegalState:
            if not (self._inner.stopped and self._client.portal.closed):
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

    def getone(self, timeout: float | None = None) -> ReceivedMessage:
        """Return the next message; with `ack="auto"` what was given before is done now.

        Raises:
            RequestTimeout: none came within `timeout` seconds.
            ConsumerClosed: the consumer has stopped.
        """
        portal = self._client.portal
        given: list[AsyncReceivedMessage] = []

        async def take(it: AsyncConsumer) -> ReceivedMessage:
            given.append(await it.getone(timeout))
            return ReceivedMessage(portal, given[0])

        # Nothing may follow before the caller has it: an interruption there would lose it.
        return self._inner.run(take, lambda it, _: it.take_back(given))

    def getmany(
        self, max_records: int = 500, timeout: float | None = 0.0
    ) -> dict[MessageQueue, list[ReceivedMessage]]:
        """Return the next messages by queue; with `ack="auto"` what was given before is done now.

        Args:
            timeout: seconds to wait while there are none; None waits for ever.
        """
        portal = self._client.portal
        given: list[AsyncReceivedMessage] = []

        async def take(it: AsyncConsumer) -> dict[MessageQueue, list[ReceivedMessage]]:
            found = await it.getmany(max_records, timeout)
            given.extend(message for messages in found.values() for message in messages)
            return {
                queue: [ReceivedMessage(portal, message) for message in messages]
                for queue, messages in found.items()
            }

        return self._inner.run(take, lambda it, _: it.take_back(given))

    def subscribe(self, topic: str, selector: Selector | None = None) -> None:
        """Add a topic, or change what is wanted of it from the next pull on."""
        self._inner.run(lambda it: it.subscribe(topic, selector))

    def unsubscribe(self, topic: str) -> None:
        """Give a topic up."""
        self._inner.run(lambda it: it.unsubscribe(topic))

    @property
    def group(self) -> str:
        """The consumer group, as brokers know it: with the client's namespace."""
        return self._inner.current().group

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit now instead of at the next interval."""
        self._inner.run(lambda it: it.commit(offsets))

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue as it is kept; None without one."""
        return self._inner.run(lambda it: it.committed(queue))

    def position(self, queue: MessageQueue) -> int:
        """Return the queue offset of the next message to be given."""
        return self._inner.call(lambda it: it.position(queue))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at `offset`; what was prefetched or given of the queue before counts no more."""
        self._inner.call(lambda it: it.seek(queue, offset))

    def seek_to_beginning(self, *queues: MessageQueue) -> None:
        """Go on at the first message that can still be read; without queues, of all assigned."""
        self._inner.run(lambda it: it.seek_to_beginning(*queues))

    def seek_to_end(self, *queues: MessageQueue) -> None:
        """Go on with the next message to be stored; without queues, of all assigned."""
        self._inner.run(lambda it: it.seek_to_end(*queues))

    def seek_to_time(self, where: MessageQueue | str, when: datetime) -> None:
        """Go on with the first message that was stored at `when` or later."""
        self._inner.run(lambda it: it.seek_to_time(where, when))

    def begin_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the first readable offset of each queue, assigned or not."""
        return self._inner.run(lambda it: it.begin_offsets(queues))

    def end_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the offset that the next message of each queue will get."""
        return self._inner.run(lambda it: it.end_offsets(queues))

    def offsets_for_time(
        self, queues: Iterable[MessageQueue], when: datetime
    ) -> dict[MessageQueue, int]:
        """Return for each queue the offset of the first message stored at `when` or later."""
        return self._inner.run(lambda it: it.offsets_for_time(queues, when))

    def lag(self) -> dict[MessageQueue, int]:
        """Return for each assigned queue how many messages are not acknowledged yet."""
        return self._inner.run(lambda it: it.lag())

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that this member owns now, its group's retry topic apart."""
        return self._inner.call(lambda it: it.assignment())

    def assign(self, queues: Iterable[MessageQueue], selector: Selector | None = None) -> None:
        """Take these queues, in place of all others, without a division among members."""
        self._inner.run(lambda it: it.assign(queues, selector))

    def pause(self, *queues: MessageQueue) -> None:
        """Give and pull nothing of these queues until `resume`."""
        self._inner.call(lambda it: it.pause(*queues))

    def resume(self, *queues: MessageQueue) -> None:
        """Undo `pause`."""
        self._inner.call(lambda it: it.resume(*queues))

    def paused(self) -> set[MessageQueue]:
        """Return the paused queues."""
        return self._inner.call(lambda it: it.paused())

    def buffered(self) -> dict[str, tuple[int, int]]:
        """Return how many messages are held here of each topic, and their stored bytes."""
        return self._inner.current().buffered()

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
        """Reply to a message that was sent as a request (`Producer.request`).

        Raises:
            IllegalState: the message is no request, or the consumer is not started.
            ReplyNotDelivered: no broker could hand it on: the client that asked is gone.
        """
        self._inner.run(
            lambda it: it.reply(
                request, body, tags=tags, keys=keys, properties=properties, timeout=timeout
            )
        )
