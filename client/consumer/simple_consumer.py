# pyright: reportPrivateUsage=false
"""SimpleConsumer: takes messages one by one, without a share of the queues.

    async with SimpleConsumer("orders", group="billing", namesrv_addr="127.0.0.1:9876") as consumer:
        for message in await consumer.receive(16):
            handle(message)
            await consumer.ack(message)

A message that was received is hidden from the group's other consumers for its invisible time. Then
it comes again, to any of them, unless it was acknowledged. So a group may have more consumers than
queues, and one that is stuck holds up nobody.

A receive first asks every broker of its topics in turn what there is. Where nothing is, each of
them tells when there is something (200054), and is asked again then. Only a request that is
answered at once takes messages, so a receive that is cancelled has seldom taken any. What it has
taken all the same waits here for the next receive, and goes back to the broker when none comes.

Loop thread.
Source: apache/rocketmq@rocketmq-all-5.3.3 client/.../impl/consumer/DefaultMQPushConsumerImpl.java
(popMessage, ackAsync, changePopInvisibleTimeAsync)
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from skylarkmq.client.consumer.subscription import (
    WHERE_NAMES,
    Selector,
    Subscription,
    check_filter,
    require_selector,
)
from skylarkmq.client.errors import (
    NOT_STARTED,
    ConsumerClosed,
    IllegalState,
    NoPermission,
    ReceiptExpired,
    RocketMQError,
    RouteNotFound,
)
from skylarkmq.client.instance import Client, OnClient, services_of
from skylarkmq.client.observe.hooks import ReceiveContext, SettleContext, Settling, each
from skylarkmq.client.popped_message import PoppedMessage
from skylarkmq.client.producer.trace import Tracer, trace_topic
from skylarkmq.client.services import Services
from skylarkmq.client.wire import api_pop
from skylarkmq.client.wire.api_pop import POP_COUNT_MAX, PopWish
from skylarkmq.client.wire.pushes import Answer
from skylarkmq.protocol.bodies.group import ConsumerData
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.flags import validate_group, validate_topic
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.waiting import backoff_s, sleep, wait_event

log = logging.getLogger(__name__)

INVISIBLE_MAX_S: Final = 12 * 3600.0
NOTIFY_S: Final = 5.0
"""How long a broker is asked to wait. RocketMQ's tells nothing of a message that comes again, so
that is found when the wait ends."""
POP_TIMEOUT_S: Final = 10.0
"""How long a request for messages may take: what an answer brings that comes later is hidden for
its whole time."""
HAND_OVER_S: Final = 1.0
"""How long messages that a cancelled receive has taken wait for the next one."""
EMPTY_FIRST_S: Final = 0.02
EMPTY_MAX_S: Final = 1.0
"""The wait after a broker said that there is something, and there was nothing: an ordered group
waits, or another consumer was quicker."""
FAILED_DELAY_S: Final = 0.5
ROUTE_MAX_AGE_S: Final = 1.0
CONSUME_POP: Final = "CONSUME_POP"
"""The consume type of the heartbeat; RocketMQ 5's name."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Source:
    """One topic at one broker."""

    topic: str
    broker_name: str


class SimpleConsumer(OnClient):
    """Receives messages for as long as it says, and acknowledges each one by itself.

    One loop; several tasks may use it. Cancelling any of its coroutines loses no message.

    It works with SkylarkMQ and with RocketMQ 5; a broker of RocketMQ 4.9 is refused as
    `NotSupported`. A group is consumed by SimpleConsumers or by Consumers, never by both.

    Args:
        topics: what to receive; `subscribe` adds more.
        group: the consumer group.
        client: shared with producers and with consumers of other groups.
        namesrv_addr: in place of `client`: name servers (default as for Client) for a client of
            this consumer's own.
        selector: which messages of the topics, `Tag` or `Sql92`; default all.
        invisible_duration: seconds (or timedelta) for which nobody else gets a message.
        await_duration: seconds that `receive` waits while there is none.
        orderly: the group consumes in order (`consumeMessageOrderly`): the messages of a queue
            come one batch after the other. SkylarkMQ's brokers know it of the group.
        trace: write traces of what is received and acknowledged to RocketMQ's trace topic; a
            text names another topic.

    Raises:
        ValueError: a setting, a topic or the group cannot be used.
        TypeError: a selector is something else.
    """

    def __init__(
        self,
        *topics: str,
        group: str,
        client: Client | None = None,
        namesrv_addr: str | None = None,
        selector: Selector | None = None,
        invisible_duration: float | timedelta = 30.0,
        await_duration: float = 15.0,
        orderly: bool = False,
        trace: bool | str = False,
    ) -> None:
        """Take the settings, see the class; nothing is connected before `start`."""
        super().__init__(client, namesrv_addr)
        self._group = self._namespace.wrap(group)
        if (reason := validate_group(self._group)) is not None:
            raise ValueError(reason)
        require_selector(selector)
        self._invisible_ms = _milliseconds(invisible_duration)
        if await_duration < 0:
            raise ValueError(f"await_duration is 0 or more, not {await_duration}")
        self._await_s = await_duration
        self._orderly = orderly
        self._trace_topic = trace_topic(trace)
        self._tracer: Tracer | None = None
        self._selectors = {self._checked(topic): selector for topic in topics}
        self._subscriptions: dict[str, Subscription] = {}
        self._services: Services | None = None  # from the start on
        self._member = _Member(self)
        self._last: _Source | None = None  # that had messages
        self._attempt_ids: dict[_Source, str] = {}
        self._watches: dict[_Source, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()  # a source has said something
        self._told_count = 0
        self._empty_count = 0
        self._ready: deque[PoppedMessage] = deque()  # taken for a receive that was cancelled
        self._hand_overs: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._refusal: RocketMQError | None = None
        self._refusing: set[_Source] = set()  # those that were logged, until they answer
        self._starting = asyncio.Lock()
        self._started = False
        self._stopped = False
        self._has_left = False

    # Life

    async def start(self) -> None:
        """Find the brokers of the topics and tell them of this member; does nothing when started.

        Raises:
            ConnectionFailed: no name server can be reached.
            FilterRefused: a broker does not filter so.
            IllegalState: the client has a consumer in this group already.
            ConsumerClosed: stopped before.
        """
        async with self._starting:
            if self._stopped:
                raise ConsumerClosed("the consumer has stopped")
            if self._started:
                return
            try:
                await self._client.start()
                services = services_of(self._client)
                services.join_consumer(self._member)
            except BaseException:
                await self._stop_own_client()
                raise
            self._services = services
            if self._trace_topic is not None:
                group = self._namespace.unwrap(self._group)
                self._tracer = Tracer.join(
                    services, services.unique_ids, group, "CONSUME", self._trace_topic
                )
            try:
                for topic, selector in self._selectors.items():
                    await self._subscribe(topic, selector)
                await services.send_heartbeats()
            except BaseException:
                self._stopped = True
                await self._leave(services)
                raise
            self._started = True

    async def stop(self) -> None:
        """Leave the group. Receives that wait end with ConsumerClosed.

        Messages that were received and not acknowledged come again when their time is over.
        """
        self._stopped = True
        self._changed.set()
        async with self._starting:  # one after the other, and after a start that is under way
            services, self._started = self._services, False
            if services is None or self._has_left:
                await self._stop_own_client()
            else:
                await self._leave(services)

    async def _leave(self, services: Services) -> None:
        try:
            for task in [*self._watches.values(), *self._hand_overs]:
                task.cancel()
            while self._tasks:
                await asyncio.wait(list(self._tasks))
            await self._give_back(self._taken(len(self._ready)))
            await services.leave_consumer(self._member)
            self._has_left = True
        finally:
            try:
                tracer, self._tracer = self._tracer, None
                if tracer is not None:
                    await tracer.leave()
            finally:
                await self._stop_own_client()

    # What is received

    async def subscribe(self, topic: str, selector: Selector | None = None) -> None:
        """Add a topic, or change what is wanted of it.

        Raises:
            FilterRefused: a broker does not filter so; all stays as it was.
            ConsumerClosed: the consumer has stopped.
        """
        require_selector(selector)
        known = self._checked(topic)
        if self._stopped:
            raise ConsumerClosed("the consumer has stopped")
        if self._started:
            await self._subscribe(known, selector)
            services_of(self._client).beat_wanted.set()
        self._selectors[known] = selector

    async def unsubscribe(self, topic: str) -> None:
        """Receive a topic no more.

        Raises:
            ConsumerClosed: the consumer has stopped.
        """
        known = self._namespace.wrap(topic)
        if self._stopped:
            raise ConsumerClosed("the consumer has stopped")
        self._selectors.pop(known, None)
        if self._subscriptions.pop(known, None) is not None:
            services_of(self._client).beat_wanted.set()

    async def receive(
        self,
        max_messages: int = 16,
        *,
        invisible_duration: float | timedelta | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> list[PoppedMessage]:
        """Return the next messages, of one topic and broker; none when nothing came.

        Args:
            max_messages: 1 to 32.
            invisible_duration: in place of the consumer's.
            timeout: seconds to wait while there is none, in place of `await_duration`.

        Raises:
            RouteNotFound: nobody has the topics.
            NotSupported: the brokers have no pop consumption (RocketMQ 4.9).
            RocketMQError: no broker of the topics can be asked, or all refuse; see `retryable`. One
                of several that refuses is logged.
            ConsumerClosed: the consumer has stopped.
        """
        if not 1 <= max_messages <= POP_COUNT_MAX:
            raise ValueError(f"max_messages is 1 to {POP_COUNT_MAX}, not {max_messages}")
        hidden_ms = self._invisible_ms
        if invisible_duration is not None:
            hidden_ms = _milliseconds(invisible_duration)
        services = self._running()
        wait_s = self._await_s if timeout is None else timeout
        hooks = services.hooks
        if not hooks:
            return await self._receive(services, max_messages, hidden_ms, wait_s)
        context = ReceiveContext(self._group, services.clock.monotonic())
        each(hooks, lambda hook: hook.before_receive(context))
        found: list[PoppedMessage] = []
        failure: BaseException | None = None
        try:
            found = await self._receive(services, max_messages, hidden_ms, wait_s)
            now_s = services.clock.monotonic()
            for message in found:
                message._received_s = now_s
        except BaseException as error:
            failure = error
            raise
        finally:
            each(hooks[::-1], lambda hook: hook.after_receive(context, found, failure))
        return found

    async def _receive(
        self, services: Services, max_messages: int, hidden_ms: int, wait_s: float
    ) -> list[PoppedMessage]:
        until_s = services.clock.monotonic() + wait_s
        was_told = False
        while True:
            if self._refusal is not None:
                refusal, self._refusal = self._refusal, None
                raise refusal
            failure: RocketMQError | None = None
            found = self._taken(max_messages)
            try:
                found = found or await self._sweep(max_messages, hidden_ms)
            except RocketMQError as error:
                failure = error
            if found:
                self._empty_count = 0
                return found
            left_s = until_s - services.clock.monotonic()
            if failure is not None and (left_s <= 0 or not _may_pass(failure)):
                raise failure
            if left_s <= 0:
                return []
            self._empty_count += was_told
            was_told = False
            if failure is not None:
                await sleep(services.clock, min(left_s, FAILED_DELAY_S))
            elif await self._wait(left_s):
                was_told = True
                await self._calm_down(services, until_s)
            self._running()

    async def ack(self, message: PoppedMessage) -> None:
        """Say that a message is done: nobody gets it again.

        Raises:
            ReceiptExpired: its invisible time was over, or it was acknowledged before.
            RocketMQError: the broker did not take it; see `retryable`.
        """
        services = self._running()
        await self._settle(services, message, "ack", 0, self._ack(services, message))

    async def change_invisible_duration(
        self, message: PoppedMessage, duration: float | timedelta
    ) -> None:
        """Hide a message for another time, from now on; with 0 it comes again at once.

        The message can be acknowledged as before. Each delivery counts as an attempt.

        Args:
            duration: seconds, or timedelta; 12 hours at most.

        Raises:
            ReceiptExpired: its invisible time was over, or it was acknowledged before.
            RocketMQError: the broker did not take it; see `retryable`.
        """
        hidden_ms, services = _milliseconds(duration, least=0), self._running()
        call = self._change(message, hidden_ms)
        await self._settle(services, message, "change_invisible_duration", hidden_ms, call)

    async def _settle(
        self,
        services: Services,
        message: PoppedMessage,
        operation: Settling,
        hidden_ms: int,
        call: Coroutine[Any, Any, None],
    ) -> None:
        """Say what becomes of a message, and tell the hooks."""
        hooks = services.hooks
        if not hooks:
            await call
            return
        now_s = services.clock.monotonic()
        context = SettleContext(self._group, message, operation, now_s, hidden_ms)
        each(hooks, lambda hook: hook.before_settle(context))
        failure: BaseException | None = None
        try:
            await call
        except BaseException as error:
            failure = error
            raise
        finally:
            each(hooks[::-1], lambda hook: hook.after_settle(context, failure))

    @property
    def group(self) -> str:
        """The consumer group, as brokers know it: with the client's namespace."""
        return self._group

    # Inside

    async def _calm_down(self, services: Services, until_s: float) -> None:
        """Wait a little where a broker's word led to nothing before."""
        if self._empty_count:
            wait_s = backoff_s(self._empty_count, EMPTY_FIRST_S, EMPTY_MAX_S)
            await sleep(services.clock, min(until_s - services.clock.monotonic(), wait_s))

    def _take_back(self, messages: list[PoppedMessage]) -> None:
        """Keep messages that their caller did not get: the next receive has them, or the broker."""
        if messages:
            self._ready.extend(messages)
            self._hand_overs.add(self._spawn(self._return_later(messages), "hand-over"))

    async def _return_later(self, messages: list[PoppedMessage]) -> None:
        if not self._stopped:
            await sleep(self._services_of_life().clock, HAND_OVER_S)
        left = [message for message in messages if message in self._ready]
        for message in left:
            self._ready.remove(message)
        await self._give_back(left)

    def _taken(self, max_messages: int) -> list[PoppedMessage]:
        """Return what waits here."""
        ready = self._ready
        return [ready.popleft() for _ in range(min(max_messages, len(ready)))]

    async def _sweep(self, max_messages: int, hidden_ms: int) -> list[PoppedMessage]:
        """Ask every source in turn, and return what the first one with messages has.

        Raises:
            RocketMQError: none of them can be asked.
        """
        services = self._running()
        sources = await self._find_sources(services)
        failures: list[RocketMQError] = []
        for source in sources:
            try:
                found = await self._take(source, max_messages, hidden_ms)
            except RocketMQError as error:
                self._note_failure(source, error)
                services.failed(source.topic, error)
                failures.append(error)
                continue
            self._refusing.discard(source)
            if found:
                self._last = source
                return found
        if failures and len(failures) == len(sources):
            raise next((each for each in failures if not _may_pass(each)), failures[0])
        return []

    def _note_failure(self, source: _Source, error: RocketMQError) -> None:
        """Log that nothing came of a source; once where somebody has to change something."""
        level = logging.DEBUG
        if not _may_pass(error) and source not in self._refusing:
            self._refusing.add(source)
            level = logging.WARNING
        log.log(level, "group %s: nothing from %s: %s", self._group, source, error)

    async def _find_sources(self, services: Services) -> list[_Source]:
        """Return whom to ask, the one after the last that had messages first."""
        sources = self._sources(services)
        if not sources:
            if not self._subscriptions:
                raise IllegalState("the consumer has no topics: subscribe to one")
            for topic in list(self._subscriptions):
                await services.routes.refresh(topic, max_age_s=ROUTE_MAX_AGE_S)
            sources = self._sources(services)
        if not sources:
            raise RouteNotFound(
                next(iter(self._subscriptions)), "topic_missing", "No broker has this topic"
            )
        if self._last in sources:
            start = sources.index(self._last) + 1
            sources = sources[start:] + sources[:start]
        return sources

    def _sources(self, services: Services) -> list[_Source]:
        found: list[_Source] = []
        for topic in self._subscriptions:
            route = services.routes.known(topic)
            if route is not None and not route.borrowed:
                names = dict.fromkeys(queue.broker_name for queue in route.subscribe_queues)
                found += [_Source(topic, name) for name in names]
        return found

    async def _take(
        self, source: _Source, max_messages: int, hidden_ms: int
    ) -> list[PoppedMessage]:
        """Take messages; when this is cancelled, what comes all the same is kept."""
        task = self._spawn(self._pop(source, max_messages, hidden_ms), "pop")
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.done():  # now: a stop may be what follows
                self._came_late(task)
            else:
                task.add_done_callback(self._came_late)
            raise

    def _came_late(self, task: asyncio.Task[list[PoppedMessage]]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._take_back(task.result())
        elif not isinstance(error, RocketMQError):
            log.error("taking messages failed", exc_info=error)

    async def _pop(self, source: _Source, max_messages: int, hidden_ms: int) -> list[PoppedMessage]:
        services = self._services_of_life()
        wish = self._wish(services, source, max_messages, hidden_ms)
        subscription = self._subscriptions.get(source.topic)
        if wish is None or subscription is None:
            return []
        timeout_s = max(POP_TIMEOUT_S, services.config.request_timeout)
        address = _master(services, source.topic, source.broker_name)
        popped = await api_pop.pop(services.remoting, address, wish, timeout_s)
        self._attempt_ids.pop(source, None)
        messages = [PoppedMessage(each, source.topic, self._namespace) for each in popped]
        # A broker of RocketMQ compares the hash of a tag, so a message may have another one.
        strays = [message for message in messages if not subscription.wants(message.tags)]
        if strays:
            self._spawn(self._drop(strays), "strays")
        return [message for message in messages if message not in strays]

    def _wish(
        self, services: Services, source: _Source, max_messages: int = 1, hidden_ms: int = 0
    ) -> PopWish | None:
        subscription = self._subscriptions.get(source.topic)
        if subscription is None:
            return None
        attempt_id: str | None = None
        if self._orderly:  # the same one until an answer has come, which gives the same messages
            attempt_id = self._attempt_ids.setdefault(
                source, f"{services.client_id}-{services.random.getrandbits(64):x}"
            )
        return PopWish(
            self._group, source.broker_name, subscription.data, max_messages, hidden_ms,
            self._orderly, attempt_id,
        )  # fmt: skip

    async def _wait(self, seconds: float) -> bool:
        """Wait until a source may have something; True when one says so."""
        services = self._running()
        sources = self._sources(services)
        for source in self._watches.keys() - set(sources):
            self._watches.pop(source).cancel()
        for source in sources:
            if source not in self._watches:
                self._watches[source] = self._spawn(self._watch(services, source), "watch")
        told_count = self._told_count
        self._changed.clear()
        await wait_event(services.clock, self._changed, seconds)
        return self._told_count > told_count

    async def _watch(self, services: Services, source: _Source) -> None:
        """Wait at one source, once."""
        has_message = False
        try:
            wish = self._wish(services, source)
            if wish is not None:
                address = _master(services, source.topic, source.broker_name)
                timeout_s = NOTIFY_S + services.config.request_timeout
                poll_ms = int(NOTIFY_S * 1000)
                has_message = await api_pop.wait_for_message(
                    services.remoting, address, wish, poll_ms, timeout_s
                )
        except RocketMQError as error:
            log.debug("group %s: no word from %s: %s", self._group, source, error)
            services.failed(source.topic, error)
            await sleep(services.clock, FAILED_DELAY_S)
        finally:
            if self._watches.get(source) is asyncio.current_task():
                del self._watches[source]
            self._told_count += has_message
            self._changed.set()

    async def _drop(self, strays: Iterable[PoppedMessage]) -> None:
        for message in strays:
            try:
                await self._ack(self._services_of_life(), message)
            except RocketMQError as error:
                log.debug("%r comes again: %s", message, error)

    async def _give_back(self, messages: Iterable[PoppedMessage]) -> None:
        calls = (self._change(message, 0) for message in messages)
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                log.debug("a message comes again only when its time is over: %s", outcome)

    async def _ack(self, services: Services, message: PoppedMessage) -> None:
        _check_open(message)
        await api_pop.ack(
            services.remoting,
            _master(services, message.topic, message.broker_name),
            self._group,
            message._known_topic,
            message._checkpoint,
            services.config.request_timeout,
        )
        message._is_done = True

    async def _change(self, message: PoppedMessage, hidden_ms: int) -> None:
        _check_open(message)
        services = self._services_of_life()
        message._checkpoint = await api_pop.change_invisible_time(
            services.remoting,
            _master(services, message.topic, message.broker_name),
            self._group,
            message._known_topic,
            message._checkpoint,
            hidden_ms,
            services.config.request_timeout,
        )

    async def _subscribe(self, topic: str, selector: Selector | None) -> None:
        services = self._services_of_life()
        subscription = Subscription(topic, selector, services.clock.now_ms())
        if await services.routes.refresh(topic) is None:
            log.warning("group %s: there is no topic %s yet", self._group, topic)
        await check_filter(services, self._group, subscription)
        self._subscriptions[topic] = subscription

    def _checked(self, topic: str) -> str:
        known = self._namespace.wrap(topic)
        if (reason := validate_topic(known)) is not None:
            raise ValueError(reason)
        return known

    def _running(self) -> Services:
        if self._stopped:
            raise ConsumerClosed("the consumer has stopped")
        if not self._started:
            raise IllegalState(f"the consumer is {NOT_STARTED}")
        return self._services_of_life()

    def _services_of_life(self) -> Services:
        assert self._services is not None, "nothing is under way before start"
        return self._services

    def _refused(self, error: RocketMQError | None) -> None:
        self._refusal = error
        if error is not None:
            self._changed.set()

    def _spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name=f"skylarkmq-{self._group}-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Member:
    """What the client sees of a SimpleConsumer. It implements `Member` of services.py."""

    def __init__(self, consumer: SimpleConsumer) -> None:
        self._consumer = consumer
        self.group = consumer.group

    def consumer_data(self) -> ConsumerData | None:
        subscriptions = self._consumer._subscriptions.values()
        if not subscriptions:
            return None
        return ConsumerData(
            consume_from_where=WHERE_NAMES["last"],
            consume_type=CONSUME_POP,
            group_name=self.group,
            message_model="CLUSTERING",
            subscription_data_set=[each.data for each in subscriptions],
        )

    def pushed(self, push: RemotingCommand) -> Answer:
        why = f"a SimpleConsumer of {self.group} holds no queues and runs no handlers"
        return push.reply(ResponseCode.SYSTEM_ERROR, why)

    def wake(self) -> None:
        pass  # it has no share of the queues

    def refused(self, error: RocketMQError | None) -> None:
        self._consumer._refused(error)

    def buffered(self) -> dict[str, tuple[int, int]]:
        held: dict[str, tuple[int, int]] = {}
        for message in list(self._consumer._ready):
            count, size = held.get(message._known_topic, (0, 0))
            held[message._known_topic] = count + 1, size + message.size
        return held


def _check_open(message: PoppedMessage) -> None:
    """Refuse what was acknowledged before.

    Raises:
        ReceiptExpired: it was.
    """
    if message._is_done:
        why = "it was acknowledged before"
        raise ReceiptExpired(ResponseCode.NO_MESSAGE, why, message.broker_name)


def _may_pass(failure: RocketMQError) -> bool:
    """Return whether a receive is to try again: not where somebody has to change something."""
    return failure.retryable and not isinstance(failure, NoPermission)


def _master(services: Services, topic: str, broker_name: str) -> str:
    """Return the address of a broker's master.

    Raises:
        RouteNotFound: there is none at the moment.
    """
    address = services.routes.master_address(broker_name)
    if address is None:
        raise RouteNotFound(topic, "no_broker", f"Broker {broker_name} is gone at the moment")
    return address


def _milliseconds(duration: float | timedelta, least: int = 1) -> int:
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if not 0 <= seconds <= INVISIBLE_MAX_S or round(seconds * 1000) < least:
        raise ValueError(f"an invisible time is above 0 s and at most 12 h, not {seconds} s")
    return round(seconds * 1000)
