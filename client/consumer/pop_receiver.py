"""How a SimpleConsumer gets messages: it asks the brokers of its topics in turn.

A receive first asks every broker of its topics in turn what there is. Where nothing is, each of
them tells when there is something (200054), and is asked again then. Only a request that is
answered at once takes messages, so a receive that is cancelled has seldom taken any. What it has
taken all the same is kept for the next receive (`receipts.py`).

Source: apache/rocketmq@rocketmq-all-5.3.3 client/.../impl/consumer/DefaultMQPushConsumerImpl.java
(popMessage)
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from skylarkmq.client.consumer.receipts import Receipts, master_of
from skylarkmq.client.consumer.subscription import Selector, Subscription, check_filter
from skylarkmq.client.errors import (
    ConsumerClosed,
    IllegalState,
    NoPermission,
    RocketMQError,
    RouteNotFound,
)
from skylarkmq.client.popped_message import PoppedMessage
from skylarkmq.client.services import Services
from skylarkmq.client.wire import api_pop
from skylarkmq.client.wire.api_pop import PopWish
from skylarkmq.remoting.waiting import backoff_s, sleep, wait_event

log = logging.getLogger(__name__)

NOTIFY_S: Final = 5.0
"""How long a broker is asked to wait. RocketMQ's tells nothing of a message that comes again, so
that is found when the wait ends."""
POP_TIMEOUT_S: Final = 10.0
"""How long a request for messages may take: what an answer brings that comes later is hidden for
its whole time."""
EMPTY_FIRST_S: Final = 0.02
EMPTY_MAX_S: Final = 1.0
"""The wait after a broker said that there is something, and there was nothing: an ordered group
waits, or another consumer was quicker."""
FAILED_DELAY_S: Final = 0.5
ROUTE_MAX_AGE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Source:
    """One topic at one broker."""

    topic: str
    broker_name: str

    def __str__(self) -> str:
        return f"{self.topic} at {self.broker_name}"


class PopReceiver:
    """Receives for one SimpleConsumer. Loop thread; several tasks may receive."""

    def __init__(self, services: Services, group: str, orderly: bool) -> None:
        """Take the group, as brokers know it."""
        self.services = services
        self.receipts = Receipts(services, group)
        self.subscriptions: dict[str, Subscription] = {}
        self._group = group
        self._orderly = orderly
        self._last: _Source | None = None  # that had messages
        self._attempt_ids: dict[_Source, str] = {}
        self._watches: dict[_Source, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()  # a source has said something
        self._told_count = 0
        self._empty_count = 0
        self._refusal: RocketMQError | None = None
        self._refusing: set[_Source] = set()  # those that were logged, until they answer
        self._stopped = False

    def end(self) -> None:
        """Let receives that wait end with ConsumerClosed."""
        self._stopped = True
        self._changed.set()

    async def stop(self) -> None:
        """End all that is under way."""
        for task in self._watches.values():
            task.cancel()
        await self.receipts.stop()

    async def subscribe(self, topic: str, selector: Selector | None) -> None:
        """Add a topic, or change what is wanted of it; all stays as it was where that fails."""
        services = self.services
        subscription = Subscription(topic, selector, services.clock.now_ms())
        if await services.routes.refresh(topic) is None:
            log.warning("group %s: there is no topic %s yet", self._group, topic)
        await check_filter(services, self._group, subscription)
        self.subscriptions[topic] = subscription

    def refuse(self, error: RocketMQError | None) -> None:
        """Have the next receive, or one that waits, raise an error; None: not any more."""
        self._refusal = error
        if error is not None:
            self._changed.set()

    async def receive(
        self, max_messages: int, hidden_ms: int, wait_s: float
    ) -> list[PoppedMessage]:
        """Return the next messages; see `SimpleConsumer.receive`."""
        services = self.services
        until_s = services.clock.monotonic() + wait_s
        was_told = False
        while True:
            if self._refusal is not None:
                refusal, self._refusal = self._refusal, None
                raise refusal
            failure: RocketMQError | None = None
            found = self.receipts.take(max_messages)
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
                await self._calm_down(until_s)
            self._check_running()

    # Inside

    def _check_running(self) -> None:
        if self._stopped:
            raise ConsumerClosed("the consumer has stopped")

    async def _calm_down(self, until_s: float) -> None:
        """Wait a little where a broker's word led to nothing before."""
        if self._empty_count:
            wait_s = backoff_s(self._empty_count, EMPTY_FIRST_S, EMPTY_MAX_S)
            await sleep(self.services.clock, min(until_s - self.services.clock.monotonic(), wait_s))

    async def _sweep(self, max_messages: int, hidden_ms: int) -> list[PoppedMessage]:
        """Ask every source in turn, and return what the first one with messages has.

        Raises:
            RocketMQError: none of them can be asked.
        """
        sources = await self._find_sources()
        failures: list[RocketMQError] = []
        for source in sources:
            try:
                found = await self._take(source, max_messages, hidden_ms)
            except RocketMQError as error:
                self._note_failure(source, error)
                self.services.failed(source.topic, error)
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

    async def _find_sources(self) -> list[_Source]:
        """Return whom to ask, the one after the last that had messages first."""
        sources = self._sources()
        if not sources:
            if not self.subscriptions:
                raise IllegalState("the consumer has no topics: subscribe to one")
            for topic in list(self.subscriptions):
                await self.services.routes.refresh(topic, max_age_s=ROUTE_MAX_AGE_S)
            sources = self._sources()
        if not sources:
            raise RouteNotFound(
                next(iter(self.subscriptions)), "topic_missing", "No broker has this topic"
            )
        if self._last in sources:
            start = sources.index(self._last) + 1
            sources = sources[start:] + sources[:start]
        return sources

    def _sources(self) -> list[_Source]:
        found: list[_Source] = []
        for topic in self.subscriptions:
            route = self.services.routes.known(topic)
            if route is not None and not route.borrowed:
                names = dict.fromkeys(queue.broker_name for queue in route.subscribe_queues)
                found += [_Source(topic, name) for name in names]
        return found

    async def _take(
        self, source: _Source, max_messages: int, hidden_ms: int
    ) -> list[PoppedMessage]:
        """Take messages; when this is cancelled, what comes all the same is kept."""
        task = self.receipts.spawn(self._pop(source, max_messages, hidden_ms), "pop")
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
            self.receipts.keep(task.result())
        elif not isinstance(error, RocketMQError):
            log.error("taking messages failed", exc_info=error)

    async def _pop(self, source: _Source, max_messages: int, hidden_ms: int) -> list[PoppedMessage]:
        services = self.services
        wish = self._wish(source, max_messages, hidden_ms)
        subscription = self.subscriptions.get(source.topic)
        if wish is None or subscription is None:
            return []
        timeout_s = max(POP_TIMEOUT_S, services.config.request_timeout_s)
        address = master_of(services, source.topic, source.broker_name)
        popped = await api_pop.pop(services.remoting, address, wish, timeout_s)
        self._attempt_ids.pop(source, None)
        messages = [PoppedMessage(each, source.topic, services.namespace) for each in popped]
        # A broker of RocketMQ compares the hash of a tag, so a message may have another one.
        strays = [message for message in messages if not subscription.wants(message.tags)]
        self.receipts.drop(strays)
        return [message for message in messages if message not in strays]

    def _wish(self, source: _Source, max_messages: int = 1, hidden_ms: int = 0) -> PopWish | None:
        subscription = self.subscriptions.get(source.topic)
        if subscription is None:
            return None
        attempt_id: str | None = None
        if self._orderly:  # the same one until an answer has come, which gives the same messages
            attempt_id = self._attempt_ids.setdefault(
                source, f"{self.services.client_id}-{self.services.random.getrandbits(64):x}"
            )
        return PopWish(
            self._group, source.broker_name, subscription.data, max_messages, hidden_ms,
            self._orderly, attempt_id,
        )  # fmt: skip

    async def _wait(self, seconds: float) -> bool:
        """Wait until a source may have something; True when one says so."""
        self._check_running()
        sources = self._sources()
        for source in self._watches.keys() - set(sources):
            self._watches.pop(source).cancel()
        for source in sources:
            if source not in self._watches:
                self._watches[source] = self.receipts.spawn(self._watch(source), "watch")
        told_count = self._told_count
        self._changed.clear()
        await wait_event(self.services.clock, self._changed, seconds)
        return self._told_count > told_count

    async def _watch(self, source: _Source) -> None:
        """Wait at one source, once."""
        services, has_message = self.services, False
        try:
            wish = self._wish(source)
            if wish is not None:
                address = master_of(services, source.topic, source.broker_name)
                timeout_s = NOTIFY_S + services.config.request_timeout_s
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


def _may_pass(failure: RocketMQError) -> bool:
    """Return whether a receive is to try again: not where somebody has to change something."""
    return failure.retryable and not isinstance(failure, NoPermission)
