# pyright: reportPrivateUsage=false
"""Consumer: a member of a consumer group.

    async with Consumer("orders", group="billing", namesrv_addr="127.0.0.1:9876") as consumer:
        await consumer.run(handle)             # ack by returning, retry by raising
        async for message in consumer: ...     # or: ack by asking for the next one

The group's members divide the queues among them; its offsets live on the brokers. Delivery is at
least once: a message whose ack was not committed comes again, for instance the last one before a
`break` out of the loop, unless `message.ack()` or `consumer.commit()` was awaited for it.

    orderly=True             a queue's messages one after another, on one member at a time
    model="broadcasting"     every member gets every message, and keeps its offsets on its own disk
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, Literal, Self, overload

from skylarkmq.client.clock import ceil_ms
from skylarkmq.client.consumer.config import ConsumerConfig
from skylarkmq.client.consumer.handlers import BatchHandler, Handler, Workers, acting_task
from skylarkmq.client.consumer.membership import Membership
from skylarkmq.client.consumer.rebalance import Callbacks
from skylarkmq.client.consumer.signals import stopped_on
from skylarkmq.client.consumer.subscription import (
    Selector,
    StartFrom,
    require_selector,
)
from skylarkmq.client.errors import (
    NOT_STARTED,
    ConsumerClosed,
    IllegalState,
    RequestTimeout,
    RocketMQError,
)
from skylarkmq.client.instance import OnClient, services_of
from skylarkmq.client.producer.request_reply import send_reply
from skylarkmq.client.producer.trace import Tracer, trace_topic
from skylarkmq.client.received_message import ProcessQueue, ReceivedMessage
from skylarkmq.common.settings import require_count, seconds_of, seconds_or_none, takes
from skylarkmq.protocol.flags import is_retry_topic, validate_group, validate_topic
from skylarkmq.protocol.message import MessageQueue

PROCESS_QUEUE: Final[Callable[[ReceivedMessage], ProcessQueue]] = attrgetter("_process_queue")


class Consumer(OnClient):
    """Receives messages of its topics as a member of `group`.

    Its size is one idea: it is what programs call; the work is done by the parts of
    `membership.py`.

    One loop. `getone`, `getmany` and iteration acknowledge what they gave before (with
    `ack="auto"`), so one task uses them; several tasks use `run`, or `ack="manual"`.

    Cancelling any of its coroutines loses no message and leaves it usable.

    Args:
        topics: what to consume; `subscribe` adds more.
        client: shared with producers and with consumers of other groups.
        namesrv_addr: in place of `client`: name servers (default as for Client) for a client of
            this consumer's own.
        model: "clustering" divides the messages among the members; "broadcasting" gives all
            to each, whose offsets then lie in a file of its host and user.
        selector: which messages of the topics, `Tag` or `Sql92`; default all.
        start_from: where a group without committed offsets starts. `StartFrom.LAST` is RocketMQ's:
            a topic that is still young is read from its first message all the same; `StartFrom.NOW`
            is not.
        orderly: hand out the messages of a queue one after another, on one member alone. A
            message that fails is tried again after 1 s while its queue waits.
        assignment: how the members divide the queues: "average", "circle", "consistent_hash",
            or a strategy object. All members of a group name the same.
        batch_size: messages a pull asks for.
        prefetch, prefetch_bytes: messages held here, handed out ones included, over all queues.
            The last answer for a queue may go beyond the bytes, by one message or 256 KiB.
        max_span: how far the lowest unacknowledged message of a queue may be from the newest one
            here, in offsets.
        retry_delays: seconds (or timedelta) before the first retry of a message whose handler
            failed, the second, and so on; the last one for all that follow. Brokers delay by
            levels, so each is rounded up to the next: 1, 5, 10, 30 s, 1 m, ... 2 h. Default:
            10 s, 30 s, 1 m, ... 2 h; for an ordered consumer 1 s.
        max_reconsume: retries before a message goes to the dead letter topic; by default 16,
            and for an ordered consumer as many as it takes, as in RocketMQ.
        ack: with "manual" messages are acknowledged by `message.ack()` alone; with "none"
            they are when they are handed out, so one that fails is lost.
        commit_interval: seconds between commits.
        consume_timeout: seconds after which the log names, once, a message that is still with its
            handler. It stays with the handler, and is not delivered again.
        on_assigned, on_revoked: called, and awaited if need be, with the queues, before new
            ones are pulled and before old ones are given up. What is acknowledged when
            `on_revoked` ends is committed.
        offsets_folder: where a broadcasting consumer keeps its offsets, in a file by the
            client's `instance_name` and the group; default: the user's folder for state.
        trace: write traces of `run` to RocketMQ's trace topic; a text names another topic.

    Raises:
        ValueError: a setting, a topic or the group cannot be used.
        TypeError: a selector, a topic or `start_from` is something else.
    """

    @takes(ConsumerConfig)
    def __init__(self, config: ConsumerConfig) -> None:
        """Take the settings, see the class; nothing is connected before `start`."""
        super().__init__(config.client, config.namesrv_addr)
        wrap, start_from = self._namespace.wrap, config.start_from
        self._config = config
        config.group = wrap(config.group)
        if (reason := validate_group(config.group)) is not None:
            raise ValueError(reason)
        require_selector(config.selector)
        if not isinstance(start_from, StartFrom):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"start_from is StartFrom.LAST, NOW, FIRST or timestamp, not {start_from!r}"
            )
        self._start_from = start_from
        self._callbacks = Callbacks(config.on_assigned, config.on_revoked)
        self._selectors = {_checked(wrap(topic)): config.selector for topic in config.topics}
        self._trace_topic = trace_topic(config.trace)
        self._tracer: Tracer | None = None
        self._membership: Membership | None = None
        self._workers: Workers | None = None
        self._given: list[ReceivedMessage] = []
        self._starting = asyncio.Lock()
        self._ending: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None  # by a signal
        self._started = False
        self._stopped = False
        self._closed = False

    async def start(self) -> None:
        """Join the group and take a share of the queues; does nothing when started.

        Raises:
            ConnectionFailed: no name server can be reached.
            FilterRefused: a broker does not filter so.
            NoPermission: the group is consumed by others that pop its messages.
            IllegalState: stopped before, or the client has a consumer in this group already.
        """
        async with self._starting:
            if self._stopped:
                raise ConsumerClosed("the consumer has stopped")
            if not self._started:
                await self._start()

    async def _start(self) -> None:
        await self._client.start()
        try:
            services = services_of(self._client)
            membership = Membership(services, self._config, self._start_from, self._callbacks)
            await membership.open(self._selectors.items())
        except BaseException:
            await self._stop_own_client()
            raise
        self._membership = membership
        if self._trace_topic is not None:
            group = services.namespace.unwrap(self.group)
            self._tracer = Tracer.join(
                services, services.unique_ids, group, "CONSUME", self._trace_topic
            )
        try:
            await membership.join()
        except BaseException as error:
            stopped = self._stopped
            await self.stop(drain=False)
            if stopped and isinstance(error, RocketMQError):
                raise ConsumerClosed("the consumer was stopped while it started") from error
            raise
        if self._stopped:
            await self.stop()
            raise ConsumerClosed("the consumer was stopped while it started")
        membership.begin()
        self._started = True

    async def stop(
        self,
        drain: bool = True,
        timeout: float | timedelta = 30.0,  # noqa: ASYNC109
    ) -> None:
        """Leave the group: end the handlers, commit, tell the brokers, close.

        It goes on when it is cancelled, then without the handlers' drain; called again, it waits
        for its end. A handler may call it; it does not wait for that handler.

        Args:
            drain: wait for the handlers at work; else cancel them.
            timeout: seconds for the handlers, and for brokers that do not answer: about a second
                more, what was not committed by then comes again.
        """
        caller = acting_task.get() or asyncio.current_task()
        workers = self._workers
        if self._ending is None:
            self._stopped = True
            work = self._end(seconds_of(timeout), drain, caller)
            self._ending = asyncio.create_task(work, name=f"skylarkmq-{self.group}-stop")
            self._ending.add_done_callback(_read_result)
        elif caller is self._ending or (workers is not None and workers.has(caller)):
            return  # a callback or a handler, which what is under way waits for
        try:
            await asyncio.shield(self._ending)
        except asyncio.CancelledError:
            if workers is not None and not self._ending.done():
                workers.cancel(caller)
            raise

    async def _end(self, timeout_s: float, drains: bool, caller: asyncio.Task[Any] | None) -> None:
        membership, end_s = self._membership, 0.0
        try:
            if membership is not None:
                end_s = membership.services.clock.monotonic() + timeout_s
                await membership.halt()
                if self._workers is not None:
                    await self._workers.drain(timeout_s if drains else 0.0, caller)
        finally:
            try:
                if membership is not None:
                    await membership.leave(end_s)
            finally:
                self._closed = True
                try:
                    tracer, self._tracer = self._tracer, None
                    if tracer is not None:
                        await tracer.leave()
                finally:
                    await self._stop_own_client()

    @overload
    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 20,
        max_batch: Literal[1] = 1,
        stop_on: Iterable[int] = (),
        stop_timeout: float | timedelta = 30.0,
    ) -> None: ...

    @overload
    async def run(
        self,
        handler: BatchHandler,
        *,
        concurrency: int = 20,
        max_batch: int,
        stop_on: Iterable[int] = (),
        stop_timeout: float | timedelta = 30.0,
    ) -> None: ...

    async def run(
        self,
        handler: Handler | BatchHandler,
        *,
        concurrency: int = 20,
        max_batch: int = 1,
        stop_on: Iterable[int] = (),
        stop_timeout: float | timedelta = 30.0,
    ) -> None:
        """Give every message to `handler` until the consumer stops.

        A message is acknowledged when the handler returns (not with `ack="manual"`) and handed back
        for another try when it raises. Handlers of one queue run side by side unless the consumer
        is ordered. Cancelled, it cancels the handlers; their messages are handed out again.

        Args:
            handler: an async function (or a quick plain one) of one message; with `max_batch`
                above 1 of a list of messages of one queue, which are acknowledged or handed back
                together, except those that the handler acknowledged or handed back itself. An
                ordered consumer hands those behind one that was handed back out after it.
            concurrency: how many handlers run at the same time.
            stop_on: signals, as `(SIGTERM, SIGINT)`, at the first of which the consumer stops as by
                `stop`: no new messages, handlers at work end, offsets are committed, and `run`
                returns. A second signal acts as without `stop_on`. Needs the main thread.
            stop_timeout: seconds for that; handlers that take longer are cancelled.

        Raises:
            BrokerError: all brokers refuse this consumer's heartbeats or subscription for good, so
                that nothing would ever come; handlers at work are cancelled. With one of several
                that refuses it goes on with the others, and the log names that one.
            IllegalState: not started, or `run` is under way already.
            TypeError: the handler is no function, or a setting is of another type.
            ValueError: `concurrency` or `max_batch` is below 1.
        """
        _ = self._running
        if self._workers is not None:
            raise IllegalState("run is under way already")
        if not callable(handler):  # else each message fails, and in the end is a dead letter
            raise TypeError(f"run takes the handler itself, as run(handle), not {handler!r}")
        require_count("concurrency", concurrency)
        require_count("max_batch", max_batch)
        loop, timeout_s = asyncio.get_running_loop(), seconds_of(stop_timeout)

        def stop() -> None:
            self._stopping = asyncio.create_task(self.stop(timeout=timeout_s))

        with stopped_on(stop_on, lambda: loop.call_soon_threadsafe(stop)):
            await self._run(handler, concurrency, max_batch)
            if self._stopping is not None:
                await self._stopping

    async def _run(self, handler: Handler | BatchHandler, concurrency: int, max_batch: int) -> None:
        running = self._running
        self._workers = running.requests.workers = Workers(
            handler,
            running.buffer,
            running.services,
            self._config,
            running.pulls.counters,
            concurrency=concurrency,
            max_batch=max_batch,
        )
        try:
            await self._workers.wait()
        finally:
            if not self._stopped:
                self._workers = running.requests.workers = None

    async def subscribe(self, topic: str, selector: Selector | None = None) -> None:
        """Add a topic, or change what is wanted of it from the next pull on.

        Raises:
            FilterRefused: a broker does not filter so; all stays as it was.
            IllegalState: queues were assigned by hand.
            ConsumerClosed: the consumer has stopped.
        """
        require_selector(selector)
        self._check_open()
        known = _checked(self._namespace.wrap(topic))
        if self._membership is not None:
            await self._membership.subscribe(known, selector)
        else:
            self._selectors[known] = selector

    async def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more.

        Raises:
            IllegalState: queues were assigned by hand.
            ConsumerClosed: the consumer has stopped.
        """
        self._check_open()
        known, membership = self._namespace.wrap(topic), self._membership
        if membership is None:
            self._selectors.pop(known, None)
            return
        membership.check_member()
        if membership.assignor.subscriptions.pop(known, None) is not None:
            await membership.join()

    def _check_open(self) -> None:
        if self._stopped:
            raise ConsumerClosed("the consumer has stopped")

    # Messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        try:
            return await self.getone()
        except ConsumerClosed:
            raise StopAsyncIteration from None

    async def getone(
        self,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109
    ) -> ReceivedMessage:
        """Return the next message; with `ack="auto"` what was given before is done now.

        Raises:
            RequestTimeout: none came within `timeout` seconds.
            ConsumerClosed: the consumer has stopped.
        """
        buffer = self._running.buffer
        self._ack_given()
        timeout_s = seconds_or_none(timeout)
        messages = await buffer.get_within(1, timeout_s)
        if not messages:
            raise RequestTimeout(f"no message within {timeout_s:g} s")
        self._give(messages)
        return messages[0]

    async def getmany(
        self,
        max_records: int = 500,
        timeout: float | timedelta | None = 0.0,  # noqa: ASYNC109
    ) -> dict[MessageQueue, list[ReceivedMessage]]:
        """Return the next messages by queue; with `ack="auto"` what came before is done now.

        Args:
            max_records: how many at most, over all queues.
            timeout: seconds to wait while there are none; None waits for ever.

        Raises:
            ConsumerClosed: the consumer has stopped.
        """
        buffer = self._running.buffer
        self._ack_given()
        taken = await buffer.get_within(max_records, seconds_or_none(timeout))
        given: list[ReceivedMessage] = []
        by_queue: dict[MessageQueue, list[ReceivedMessage]] = {}
        while taken:
            given += taken
            by_queue.setdefault(taken[0].queue, []).extend(taken)
            taken = buffer.take(max_records - len(given)) if len(given) < max_records else []
        self._give(given)
        return by_queue

    # Offsets

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit now instead of at the next interval.

        Without `offsets`: what is acknowledged; with `ack="auto"` that is everything given so far.
        With `offsets`: these, for assigned queues; what was given below them is acknowledged by it.
        One beyond what was given, or below what is acknowledged, lasts until the next interval.

        Raises:
            RocketMQError: a broker did not take it; tried again at the next interval.
            RebalanceInProgress: a queue is not assigned, or its lock not held at the moment.
        """
        running = self._running
        if offsets is None:
            self._ack_given()
            await running.commit_assigned()
            return
        known = {self._wrapped(queue): offset for queue, offset in offsets.items()}
        held = {queue: running.rebalance.held(queue) for queue in known}
        for queue, process_queue in held.items():
            for message in process_queue.given():
                if message.queue_offset < known[queue]:
                    message._finish()
        errors = await running.offsets.commit(known)
        if errors:
            raise errors[0]

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue as it is kept; None without one.

        Raises:
            RocketMQError: the broker cannot be asked.
        """
        return await self._running.offsets.committed(self._wrapped(queue))

    def position(self, queue: MessageQueue) -> int:
        """Return the queue offset of the next message to be given.

        Raises:
            RebalanceInProgress: the queue is not assigned.
        """
        return self._running.rebalance.held(self._wrapped(queue)).position

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at `offset`; forget what was prefetched or given of the queue before.

        Raises:
            RebalanceInProgress: the queue is not assigned.
        """
        if offset < 0:
            raise ValueError("a queue offset is 0 or more")
        self._running.rebalance.reposition(self._wrapped(queue), offset)

    async def seek_to_beginning(self, *queues: MessageQueue) -> None:
        """Go on at the first message that can still be read; without queues, of all assigned.

        Raises:
            RebalanceInProgress: a queue that was named is not assigned.
            RocketMQError: a broker cannot be asked; nothing has moved.
        """
        await self._seek_each(queues, self._running.offsets.begin)

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Go on with the next message to be stored; without queues, of all assigned.

        Raises:
            RebalanceInProgress: a queue that was named is not assigned.
            RocketMQError: a broker cannot be asked; nothing has moved.
        """
        await self._seek_each(queues, self._running.offsets.end)

    async def seek_to_time(self, where: MessageQueue | str, when: datetime) -> None:
        """Go on with the first message that was stored at `when` or later.

        It skips no such message. It gives none from before `when` either, unless very many were
        stored in the millisecond before, or the broker's clock was set back.

        Args:
            where: a queue, or a topic: all its queues that are assigned.
            when: by the broker's clock, to the millisecond.

        Raises:
            RebalanceInProgress: the queue is not assigned.
            RocketMQError: a broker cannot be asked; nothing has moved.
        """
        offsets, when_ms = self._running.offsets, ceil_ms(when)
        if isinstance(where, str):
            queues = [queue for queue in self.assignment() if queue.topic == where]
            if not queues:
                return
        else:
            queues = [where]
        await self._seek_each(queues, lambda queue: offsets.at_time(queue, when_ms))

    async def begin_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the first readable offset of each queue, assigned or not."""
        return await self._each_of(queues, self._running.offsets.begin)

    async def end_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the offset that the next message of each queue will get."""
        return await self._each_of(queues, self._running.offsets.end)

    async def offsets_for_time(
        self, queues: Iterable[MessageQueue], when: datetime
    ) -> dict[MessageQueue, int]:
        """Return for each queue the offset of the first message stored at `when` or later.

        Without such a message it is the offset that the next one will get. See `seek_to_time`.
        """
        offsets, when_ms = self._running.offsets, ceil_ms(when)
        return await self._each_of(queues, lambda queue: offsets.at_time(queue, when_ms))

    async def lag(self) -> dict[MessageQueue, int]:
        """Return for each assigned queue how many messages are not acknowledged yet."""
        held = self._running.rebalance.assigned
        ends = await self.end_offsets(self.assignment())
        return {
            queue: max(0, end - held[self._wrapped(queue)].commit_offset)
            for queue, end in ends.items()
            if self._wrapped(queue) in held
        }

    # Queues

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that this member owns now, its group's retry topic apart."""
        running = self._running
        unwrap = self._namespace.unwrap_queue
        assigned = running.rebalance.assigned
        return sorted(unwrap(queue) for queue in assigned if not is_retry_topic(queue.topic))

    async def assign(
        self, queues: Iterable[MessageQueue], selector: Selector | None = None
    ) -> None:
        """Read these queues and no others, outside the division among the members.

        For a started consumer that was given no topics and has not subscribed to any. It is no
        member of its group then: it takes no share from those that are, and what their handlers
        failed on does not come here. Its offsets are those of the group; what its own handler
        failed on is tried again here. A queue without a committed offset starts by `start_from`.

        Args:
            queues: none gives all up.
            selector: which messages of them; default all.

        Raises:
            IllegalState: not started, or the consumer has subscribed to topics.
            FilterRefused: a broker does not filter so; nothing has changed.
            RocketMQError: no name server knows where the topics are, or a broker cannot be asked
                whether it filters so; nothing has changed.
        """
        running = self._running
        wanted = {self._wrapped(queue) for queue in queues}
        await running.assign(wanted, selector)

    def pause(self, *queues: MessageQueue) -> None:
        """Give and pull nothing of these queues until `resume`."""
        self._running.rebalance.pause([self._wrapped(queue) for queue in queues])

    def resume(self, *queues: MessageQueue) -> None:
        """Undo `pause`."""
        running = self._running
        for process_queue in running.rebalance.resume([self._wrapped(queue) for queue in queues]):
            running.buffer.offer(process_queue)

    def paused(self) -> set[MessageQueue]:
        """Return the paused queues."""
        running = self._running
        return {self._namespace.unwrap_queue(queue) for queue in running.rebalance.paused}

    def buffered(self) -> dict[str, tuple[int, int]]:
        """Return how many messages are held here of each topic, those at work included, and their
        stored bytes. Any thread.
        """
        return {} if self._membership is None else self._membership.buffered()

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
        """Reply to a message that was sent as a request (`Producer.request`).

        The asking client alone gets the reply. The message is acknowledged as any other.

        Args:
            timeout: seconds.

        Raises:
            IllegalState: the message is no request, or the consumer is not started.
            ReplyNotDelivered: no broker could hand it on: the client that asked is gone.
            RequestTimeout: no broker took it in time.
        """
        await send_reply(
            services_of(self._client),
            services_of(self._client).unique_ids.next(),
            request,
            body,
            tags=tags,
            keys=keys,
            properties=properties,
            timeout_s=seconds_of(timeout),
        )

    @property
    def group(self) -> str:
        """The consumer group, as brokers know it: with the client's namespace."""
        return self._config.group

    # Inside

    @property
    def _running(self) -> Membership:
        if self._closed:
            raise ConsumerClosed("the consumer has stopped")
        if self._membership is None:
            raise IllegalState(f"the consumer is {NOT_STARTED}")
        return self._membership

    @property
    def _is_refused(self) -> bool:
        """Whether all brokers of its topics refuse it now, so that nothing comes."""
        return self._membership is not None and self._membership.refusal is not None

    def _wrapped(self, queue: MessageQueue) -> MessageQueue:
        return self._namespace.wrap_queue(queue)

    async def _each_of(
        self, queues: Iterable[MessageQueue], find: Callable[[MessageQueue], Awaitable[int]]
    ) -> dict[MessageQueue, int]:
        wanted = list(queues)
        found = await asyncio.gather(*(find(self._wrapped(queue)) for queue in wanted))
        return dict(zip(wanted, found, strict=True))

    async def _seek_each(
        self, queues: Sequence[MessageQueue], find: Callable[[MessageQueue], Awaitable[int]]
    ) -> None:
        """Seek, once all offsets are known; a queue that nobody named may go meanwhile."""
        held = self._running.rebalance.held
        for queue in queues:
            held(self._wrapped(queue))
        found = await self._each_of(queues or self.assignment(), find)
        present = self._running.rebalance.assigned
        for queue, offset in found.items():
            if queues or self._wrapped(queue) in present:
                self.seek(queue, offset)

    def _ack_given(self) -> None:
        given, self._given = self._given, []
        for _, messages in groupby(given, PROCESS_QUEUE):
            self._running.buffer.settle(list(messages))

    def _give(self, messages: list[ReceivedMessage]) -> None:
        # Several tasks may wait at the same time: no message of theirs is forgotten.
        self._given = [*self._given, *messages] if self._config.ack != "manual" else []
        if self._config.ack == "none":
            self._ack_given()

    def _take_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Give these again: an interrupted call of the blocking SDK did not get them.

        With `ack="none"` they are done all the same.
        """
        back = {id(message) for message in messages}
        self._given = [message for message in self._given if id(message) not in back]
        for message in messages:
            if message._outcome is None and message._process_queue.put_back(message):
                self._running.buffer.offer(message._process_queue)


def _read_result(ending: asyncio.Task[None]) -> None:
    """Read the result of a stop, in case no caller waits for it any more."""
    if not ending.cancelled():
        ending.exception()


def _checked(topic: str) -> str:
    """Return the topic.

    Raises:
        ValueError: it cannot be one.
        TypeError: it is no text; several topics are given one by one.
    """
    if not isinstance(topic, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"a topic is text, not {type(topic).__name__}; several topics are given one by one, "
            "and a client by its name: Consumer('orders', 'returns', group=..., client=...)"
        )
    if (reason := validate_topic(topic)) is not None:
        hint = ". Addresses of name servers go into namesrv_addr=" if ":" in topic else ""
        raise ValueError(f"{reason}{hint}")
    return topic
