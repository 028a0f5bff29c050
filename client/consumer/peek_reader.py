"""PeekReader: reads a topic and leaves no trace on the brokers.

    async with PeekReader("orders", client=client, start=StartFrom.FIRST, stop="now") as reader:
        async for message in reader: ...

It joins no group, commits nothing and acknowledges nothing, so it changes nothing for the groups
that consume the topic. Each queue has a task that pulls a batch ahead of the reader. The messages
of one queue come in their order.

With `without` it does without brokers that do not answer. A reader that has no end asks them again
and again, and reads their queues once they answer; one that has an end leaves them out. So do both
with brokers that refuse.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, Self, TypeGuard

from skylarkmq.client.clock import ceil_ms
from skylarkmq.client.config import PULL_SUSPEND_MS, PULL_TIMEOUT_S
from skylarkmq.client.consumer.last_read import LastRead
from skylarkmq.client.consumer.offset_store import OffsetStore
from skylarkmq.client.consumer.pull_service import PullSources
from skylarkmq.client.consumer.subscription import Selector, StartFrom, Subscription, check_filter
from skylarkmq.client.errors import (
    NOT_STARTED,
    BrokerError,
    ConnectionFailed,
    ConsumerClosed,
    FilterRefused,
    IllegalState,
    RequestTimeout,
    RocketMQError,
    RouteNotFound,
    TopicNotExist,
)
from skylarkmq.client.instance import Client, OnClient, services_of
from skylarkmq.client.message_view import StoredMessage, stored_message
from skylarkmq.client.wire.api_pull import NO_END, PullResult, PullStatus, QueuePages
from skylarkmq.common.settings import checked
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.flags import TOOLS_CONSUMER_GROUP
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.remoting.waiting import sleep

log = logging.getLogger(__name__)

PeekStart = StartFrom | Mapping[MessageQueue, int]
PeekStop = Literal["now"] | datetime | Mapping[MessageQueue, int] | None

LOW_COUNT: Final = 16
"""The next batch is asked for when that many messages of a queue wait."""
RETRY_S: Final = 1.0
EMPTY_DELAY_S: Final = 0.05
"""The wait after an answer without any progress."""
AWAY_MAX_S: Final = 30.0
"""How long the broker of a queue may be away before the reader ends."""


@dataclass(eq=False)
class _Feed(QueuePages):
    """One queue, and messages of it that were read and not given yet."""

    is_found: bool = True  # where it begins; else its broker has not answered yet
    ready: deque[StoredMessage] = field(default_factory=deque[StoredMessage])
    room: asyncio.Event = field(default_factory=asyncio.Event)  # for the next page
    task: asyncio.Task[None] | None = None


class PeekReader(OnClient):
    """Reads the messages of a topic outside of any group. One loop; several tasks may iterate."""

    @checked
    def __init__(
        self,
        topic: str,
        *,
        client: Client | None = None,
        namesrv_addr: str | None = None,
        start: PeekStart = StartFrom.FIRST,
        stop: PeekStop = None,
        selector: Selector | None = None,
        without: Callable[[str, str, RocketMQError], object] | None = None,
    ) -> None:
        """Take the settings; nothing is connected before `start`.

        Args:
            client: shared with others.
            namesrv_addr: in place of `client`: name servers (default as for Client) for a client
                of its own.
            start: where to begin. With offsets by queue it reads these queues alone.
            stop: where to end. "now": after the last message that is there at the start. A time:
                before the first message stored then or later. Offsets by queue: before them. A
                queue that ends earlier is read to its end. None: the reader goes on for ever, and
                also reads queues that are made meanwhile.
            selector: which messages; default all. `Sql92` must be enabled on the broker.
            without: called with name and address of a broker that does not answer, and with the
                cause, maybe several times; the reader goes on with the others. An error is raised
                where none is left. Default: the first broker that does not answer ends it.
        """
        super().__init__(client, namesrv_addr)
        self._topic = topic
        self._start = start
        self._stop = stop
        self._subscription = Subscription(self._namespace.wrap(topic), selector, 0)
        self._without = without
        self._feeds: dict[MessageQueue, _Feed] = {}
        self._left_out: set[MessageQueue] = set()  # of brokers that refuse, or did not answer
        self._has_read = False  # a queue to its end
        self._turn: deque[_Feed] = deque()
        self._changed = asyncio.Event()
        self._failure: RocketMQError | None = None
        self._starting = asyncio.Lock()
        self._started = False
        self._stopped = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoredMessage:
        """Return the next message.

        Raises:
            RocketMQError: a broker refused, or was away for longer than 30 s, and `without` is not
                given, or no other is left.
            IllegalState: not started.
        """
        if not self._started and not self._stopped:
            raise IllegalState(f"the reader is {NOT_STARTED}")
        while True:
            message = self._next()
            if message is not None:
                return message
            if self._failure is not None:
                raise self._failure
            if self._stopped or not self._feeds:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()

    async def start(self) -> None:
        """Find the queues and where they begin and end; does nothing when started.

        Raises:
            RouteNotFound: nobody has the topic.
            FilterRefused: a broker does not filter so.
            RocketMQError: a broker, with `without` each of them, or no name server can be asked.
            ConsumerClosed: stopped before.
        """
        async with self._starting:
            if self._stopped:
                raise ConsumerClosed("the reader has stopped")
            if self._started:
                return
            try:
                await self._client.start()
                feeds = await self._open_feeds()
                if self._stopped:
                    raise ConsumerClosed("the reader was stopped while it started")
            except BaseException:
                await self._stop_own_client()
                raise
            self._started = True
            for feed in feeds:
                self._begin(feed)

    async def stop(self) -> None:
        """End the reading; iterations end too."""
        self._stopped = True
        self._changed.set()
        tasks = [feed.task for feed in self._feeds.values() if feed.task is not None]
        for task in tasks:
            task.cancel()
        self._turn.clear()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await self._stop_own_client()

    def _take_back(self, message: StoredMessage) -> None:
        """Give this one again: an interrupted call of the blocking SDK did not get it."""
        wrapped = self._namespace.wrap_queue(message.queue)
        feed = next((feed for feed in self._turn if feed.queue == wrapped), None)
        if feed is None:  # it was the last one of a queue that has been read
            feed = _Feed(wrapped, message.queue_offset + 1, message.queue_offset + 1)
            self._turn.append(feed)
        feed.ready.appendleft(message)
        self._changed.set()

    # Inside

    def _next(self) -> StoredMessage | None:
        turn = self._turn
        for _ in range(len(turn)):
            feed = turn[0]
            if feed.ready:
                message = feed.ready.popleft()
                if len(feed.ready) <= LOW_COUNT:
                    feed.room.set()
                return message
            if feed.queue in self._feeds:
                turn.rotate(-1)
            else:
                turn.popleft()
        return None

    async def _open_feeds(self) -> list[_Feed]:
        services = services_of(self._client)
        route = await services.routes.refresh(self._subscription.data.topic)
        if route is None:
            raise RouteNotFound(self._topic, "topic_missing", "No broker has this topic")
        queues = list(route.subscribe_queues)
        if not isinstance(self._start, StartFrom):
            queues = [self._namespace.wrap_queue(queue) for queue in self._start]
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        outcomes = await asyncio.gather(
            *(self._feeds_on(broker, those) for broker, those in by_broker.items()),
            return_exceptions=self._without is not None,
        )
        feeds: list[_Feed] = []
        errors: list[RocketMQError] = []
        for (broker, those), outcome in zip(by_broker.items(), outcomes, strict=True):
            if not isinstance(outcome, BaseException):
                feeds += outcome
                continue
            if not _is_silence(outcome):
                raise outcome
            errors.append(outcome)
            self._do_without(broker, outcome)
            if self._stop is None and _may_succeed_later(outcome):
                feeds += [_Feed(queue, 0, NO_END, is_found=False) for queue in those]
            else:
                self._left_out.update(those)
        if len(errors) == len(by_broker) and errors:
            raise errors[0]
        return feeds

    async def _feeds_on(self, broker: str, queues: list[MessageQueue]) -> list[_Feed]:
        """Ask a broker where these of its queues begin and end."""
        services = services_of(self._client)
        offsets = OffsetStore(services, TOOLS_CONSUMER_GROUP)
        subscription = self._subscription
        await check_filter(services, TOOLS_CONSUMER_GROUP, subscription, inline=True, broker=broker)
        starts = await asyncio.gather(*(self._begin_of(offsets, queue) for queue in queues))
        ends = await asyncio.gather(*(self._end_of(offsets, queue) for queue in queues))
        return [_Feed(*item) for item in zip(queues, starts, ends, strict=True)]

    def _do_without(self, broker: str, error: RocketMQError) -> None:
        """Tell of a broker that does not answer; raise the error where that ends the reader."""
        if self._without is None or not _is_silence(error):
            raise error
        addresses = services_of(self._client).routes.broker(broker)
        self._without(broker, addresses[min(addresses)] if addresses else "", error)

    async def _begin_of(self, offsets: OffsetStore, queue: MessageQueue) -> int:
        if not isinstance(self._start, StartFrom):
            return self._start[self._namespace.unwrap_queue(queue)]
        if self._start.where == "first":
            return await offsets.begin(queue)
        if self._start.where in ("last", "now"):
            return await offsets.end(queue)
        return await offsets.at_time(queue, self._start.timestamp_ms)

    async def _end_of(self, offsets: OffsetStore, queue: MessageQueue) -> int:
        if self._stop is None:
            return NO_END
        if isinstance(self._stop, str):
            return await offsets.end(queue)
        if isinstance(self._stop, datetime):
            return await offsets.at_time(queue, ceil_ms(self._stop))
        return self._stop.get(self._namespace.unwrap_queue(queue), 0)

    def _begin(self, feed: _Feed) -> None:
        queue = feed.queue
        self._feeds[queue] = feed
        feed.room.set()
        self._turn.append(feed)
        name = f"skylarkmq-peek-{queue.topic}-{queue.broker_name}-{queue.queue_id}"
        feed.task = asyncio.create_task(self._read(feed), name=name)

    async def _read(self, feed: _Feed) -> None:
        """Read one queue to its end; the root of a task."""
        services = services_of(self._client)
        sources = PullSources(services.routes)
        last = LastRead(services, TOOLS_CONSUMER_GROUP, feed.queue)
        try:
            await self._find(feed)
            while feed.position < feed.end:
                await feed.room.wait()
                position = feed.position
                result = await self._patient_pull(feed, sources, last)
                if result is None:
                    break
                last.took(result.records)
                self._take(feed, result)
                self._look_for_new_queues()
                if feed.position == position:
                    await sleep(services.clock, EMPTY_DELAY_S)
            self._has_read = True
        except RocketMQError as error:
            self._leave_out(feed, error)
        except Exception as error:
            log.exception("reading %s failed, the reader ends", feed.queue)
            self._failure = RocketMQError(f"reading {feed.queue} failed: {error}")
        finally:
            self._feeds.pop(feed.queue, None)
            self._changed.set()

    async def _find(self, feed: _Feed) -> None:
        """Ask where a queue begins until its broker answers."""
        services, queue = services_of(self._client), feed.queue
        while not feed.is_found:
            await sleep(services.clock, RETRY_S * services.random.uniform(0.5, 1.5))
            try:
                (found,) = await self._feeds_on(queue.broker_name, [queue])
            except RocketMQError as error:
                if not _may_succeed_later(error):
                    raise
                log.debug("%s cannot be read yet: %s", queue, error)
            else:
                feed.position, feed.is_found = found.position, True

    def _leave_out(self, feed: _Feed, error: RocketMQError) -> None:
        """Go on without a queue; where that is not wanted, or none is left, the reader ends."""
        self._left_out.add(feed.queue)
        try:
            self._do_without(feed.queue.broker_name, error)
        except RocketMQError:
            self._failure = self._failure or error
        if self._feeds.keys() <= {feed.queue} and not self._has_read:
            self._failure = self._failure or error

    async def _patient_pull(
        self, feed: _Feed, sources: PullSources, last: LastRead
    ) -> PullResult | None:
        """Pull; while the broker is away or busy, try again for AWAY_MAX_S.

        None: the log became shorter, so nothing is left of what was there at the start.

        Raises:
            RocketMQError: the last failure.
        """
        services, queue = services_of(self._client), feed.queue
        suspend_ms = PULL_SUSPEND_MS if self._stop is None else 0
        give_up_s: float | None = None
        while True:
            try:
                address, is_master = sources.of(queue)
                place, is_new = await last.place(address, feed.position, of_master=is_master)
                if is_new and self._stop is not None:
                    return None
                feed.position = place
                result = await feed.read(
                    services.remoting, address, PULL_TIMEOUT_S, self._subscription.data, suspend_ms
                )
            except RocketMQError as error:
                now_s = services.clock.monotonic()
                give_up_s = now_s + AWAY_MAX_S if give_up_s is None else give_up_s
                if not _may_succeed_later(error):
                    raise
                if now_s >= give_up_s:
                    if self._without is None or self._stop is not None:
                        raise
                    self._do_without(queue.broker_name, error)
                log.debug("peeking into %s: %s", queue, error)
                sources.forget(queue)
                await sleep(services.clock, RETRY_S * services.random.uniform(0.5, 1.5))
            else:
                sources.suggested(queue, result.suggested_broker_id)
                return result

    def _take(self, feed: _Feed, result: PullResult) -> None:
        queue = self._namespace.unwrap_queue(feed.queue)
        if result.status is PullStatus.OFFSET_MOVED:
            log.warning(
                "offset %d is outside %s, going on at %d", feed.position, queue, result.next_offset
            )
        wanted = [
            stored_message(message, queue.broker_name, self._namespace)
            for message in feed.take(result)
            if self._subscription.wants(message.tags)
        ]
        if wanted:
            feed.ready.extend(wanted)
            if len(feed.ready) > LOW_COUNT:
                feed.room.clear()
            self._changed.set()

    def _look_for_new_queues(self) -> None:
        """Read queues that were made meanwhile, from their beginning."""
        route = services_of(self._client).routes.known(self._subscription.data.topic)
        if self._stop is not None or not isinstance(self._start, StartFrom) or route is None:
            return
        if self._failure is not None or self._stopped:
            return
        for queue in route.subscribe_queues:
            if queue not in self._feeds and queue not in self._left_out:
                self._begin(_Feed(queue, 0, NO_END))


def _is_silence(error: BaseException) -> TypeGuard[RocketMQError]:
    """Return whether a broker cannot be asked or refuses, which says nothing about the others."""
    if isinstance(error, FilterRefused | TopicNotExist):
        return False
    return isinstance(error, BrokerError | ConnectionFailed | RequestTimeout | RouteNotFound)


def _may_succeed_later(error: RocketMQError) -> bool:
    """Return whether the same pull may succeed later."""
    if isinstance(error, BrokerError):
        return error.code in (ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL)
    return isinstance(error, ConnectionFailed | RequestTimeout | RouteNotFound)
