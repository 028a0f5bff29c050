"""Sends under way: each from its call to its result, over retries, without a task of its own.

    begin: route and connection known?  yes -> on the wire, in the same call
                                        no  -> parked, on the wire as soon as they are known
    answered: the result; no task was made for it
    failed, refused, no answer: resend -> back-off, another broker or queue, on the wire

A send counts as in flight from `begin` to its end. Sends of one topic keep their order on the
way to the wire: while some are parked, later ones park behind them. A retry leaves that order.

What ends a try, and what follows:

    answer 0, 10, 11, 12      stored: the result
    answer in `retry_on`      not stored: tried again, at most `retries` times
    another answer            the error of that code, at once
    no answer                 outcome unknown: tried again, at most `retries` times, and counted in
                              `unknown_tries`, because each may have stored a copy
    no connection             nothing was sent: tried again until the time is up

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/producer/DefaultMQProducerImpl.java
(sendDefaultImpl)
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final, NamedTuple

from skylarkmq.client.api_send import SendRequest, SendTemplate
from skylarkmq.client.clock import fail_after, sleep
from skylarkmq.client.config import ProducerConfig
from skylarkmq.client.connection import Connection
from skylarkmq.client.errors import (
    BrokerError,
    ConnectionFailed,
    IllegalState,
    NotDurableError,
    RequestTimeout,
    RocketMQError,
    RouteNotFound,
)
from skylarkmq.client.in_flight import InFlight
from skylarkmq.client.queue_selector import RoundRobin
from skylarkmq.client.remoting import Remoting
from skylarkmq.client.route import MASTER_ID, RouteTable, TopicRoute
from skylarkmq.client.send import Choice, Send, SendStats
from skylarkmq.client.send_result import SendResult, SendStatus
from skylarkmq.protocol.clock import Clock
from skylarkmq.protocol.errors import LocalProtocolError
from skylarkmq.protocol.message import MessageQueue

log = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
"""Back-off before a try at the same broker: doubling, jittered, capped."""

ROUTE_MAX_AGE_S: Final = 1.0
"""A retry asks the name server again unless the route is younger."""

LANES_MAX: Final = 65_536


class _Lane(NamedTuple):
    """The way to one queue."""

    route: TopicRoute
    queue: MessageQueue
    address: str
    template: SendTemplate


class SendPipeline:
    """The sends of one producer. Loop thread."""

    def __init__(
        self,
        config: ProducerConfig,
        remoting: Remoting,
        routes: RouteTable,
        clock: Clock,
        random: Random,
    ) -> None:
        self.stats = SendStats()
        self.in_flight = InFlight(config.max_in_flight, config.max_in_flight_bytes)
        self._config = config
        self._remoting = remoting
        self._routes = routes
        self._clock = clock
        self._random = random
        self._loop = asyncio.get_running_loop()
        self._round_robin = RoundRobin(random)
        self._lanes: dict[MessageQueue, _Lane] = {}
        self._parked: dict[str, deque[Send]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    # For the producer

    def begin(self, request: SendRequest, choice: Choice | None, timeout_s: float | None) -> Send:
        """Start a send; its future has the result. The caller has looked for room."""
        deadline_s = self._clock.monotonic() + (timeout_s or self._config.send_timeout_s)
        send = Send(self, request, choice, self._loop.create_future(), deadline_s)
        self.in_flight.enter(len(request.body))
        topic = request.topic
        parked = self._parked.get(topic)
        if parked is not None:
            parked.append(send)
            return send
        route = self._routes.known(topic)
        if route is not None and route.publish_queues:
            try:
                lane = self._lane(self._choose(choice, topic, route, None), route)
            except RocketMQError as error:
                self.end(send, error)
                return send
            connection = self._remoting.ready(lane.address)
            if connection is not None:
                self._transmit(send, lane, connection)
                return send
        self._parked[topic] = deque((send,))
        self._spawn(self._open(topic), f"open-{topic}")
        return send

    def abandon(self, send: Send) -> None:
        """Forget a send that nobody waits for any more; its outcome stays unknown."""
        if send.connection is not None:
            send.connection.forget(send.opaque)
        if not send.future.done():
            send.future.cancel()
        self._leave(send)

    async def post(self, request: SendRequest, choice: Choice | None) -> None:
        """Send one way: once, to one broker, without an answer.

        Raises:
            RocketMQError: no route or no connection.
        """
        topic = request.topic
        async with self._bounded(topic, self._config.send_timeout_s):
            route = await self._routes.for_publish(topic, self._config.default_topic_queues)
            lane = self._lane(self._choose(choice, topic, route, None), route)
            command = lane.template.command(request, oneway=True)
            await self._remoting.post(lane.address, command)

    async def stop(self) -> None:
        """End the tasks; what is on the wire ends with its answer or its connection."""
        self._stopped = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # For the sends

    def succeed(self, send: Send, result: SendResult) -> None:
        """The message is stored."""
        self.stats.sent_count += 1
        if self._config.strict and result.status is not SendStatus.SEND_OK:
            self.end(send, NotDurableError(result, result.status.name))
            return
        if not send.future.done():
            send.future.set_result(result)
        self._leave(send)

    def end(self, send: Send, error: RocketMQError) -> None:
        """The send has failed for good."""
        self.stats.failed_count += 1
        if not send.future.done():
            send.future.set_exception(error)
        self._leave(send)

    def try_ended(self, send: Send, error: RocketMQError, *, unknown: bool) -> None:
        """A try has come to nothing, or to nothing known: again, or the end."""
        send.try_count += 1
        send.connection = None
        if send.future.done():
            self._leave(send)
            return
        again = isinstance(error, ConnectionFailed | RequestTimeout) or (
            isinstance(error, BrokerError) and error.code in self._config.retry_on
        )
        out_of_time = self._clock.monotonic() >= send.deadline_s
        if not again or send.try_count > self._config.retries or out_of_time or self._stopped:
            self.end(send, error)
            return
        self.stats.retry_count += 1
        if unknown:
            send.unknown_tries += 1
            self.stats.unknown_retry_count += 1
        self._spawn(self._resend(send, error), "resend")

    # Inside

    def _transmit(self, send: Send, lane: _Lane, connection: Connection) -> None:
        send.queue = lane.queue
        send.connection = connection
        try:
            send.opaque = lane.template.start(connection, send.request, send)
        except LocalProtocolError as error:
            self.end(send, IllegalState(f"the message cannot be sent: {error}"))

    def _lane(self, queue: MessageQueue, route: TopicRoute) -> _Lane:
        """Return the way to a queue, remembered as long as the route is the same.

        Raises:
            RouteNotFound: its broker has no master.
        """
        lane = self._lanes.get(queue)
        if lane is None or lane.route is not route:
            if len(self._lanes) >= LANES_MAX:
                self._lanes.clear()
            config = self._config
            template = SendTemplate(config.group, queue, config.default_topic_queues)
            lane = self._lanes[queue] = _Lane(route, queue, _master(route, queue), template)
        return lane

    def _choose(
        self, choice: Choice | None, topic: str, route: TopicRoute, avoid_broker: str | None
    ) -> MessageQueue:
        if choice is not None:
            return choice(route.publish_queues)
        return self._round_robin.select(topic, route.publish_queues, avoid_broker)

    async def _open(self, topic: str) -> None:
        """Find the route and connections for the parked sends of a topic, then let them go."""
        parked = self._parked[topic]
        try:
            while parked:
                send = parked[0]
                if send.future.done():
                    parked.popleft()
                    self._leave(send)
                    continue
                error: RocketMQError | None = None
                try:
                    await self._connect_and_transmit(send, None)
                except RocketMQError as failure:
                    error = failure
                parked.popleft()
                if error is not None:
                    self._not_sent(send, error)
        finally:
            del self._parked[topic]
            for send in parked:
                self.end(send, IllegalState("the producer has stopped"))

    async def _resend(self, send: Send, error: RocketMQError) -> None:
        """Try again, elsewhere if there is an elsewhere, until the send is on the wire."""
        wait_count = send.try_count
        try:
            while not send.future.done():
                last_broker = send.queue.broker_name if send.queue is not None else None
                if not self._has_other_broker(send, last_broker):
                    wait_s = min(RETRY_FIRST_S * 2 ** min(wait_count, 16), RETRY_MAX_S)
                    wait_count += 1
                    remaining_s = send.deadline_s - self._clock.monotonic()
                    pause_s = min(wait_s * self._random.uniform(0.5, 1.0), remaining_s)
                    await sleep(self._clock, pause_s)
                if self._clock.monotonic() >= send.deadline_s:
                    self.end(send, _final(send, error))
                    return
                try:
                    await self._connect_and_transmit(send, last_broker, refresh=True)
                    return
                except (ConnectionFailed, RequestTimeout, RouteNotFound, BrokerError) as failure:
                    error = failure
                except RocketMQError as failure:
                    self.end(send, failure)
                    return
            self._leave(send)
        except asyncio.CancelledError:
            self.end(send, IllegalState("the producer has stopped"))
            raise

    async def _connect_and_transmit(
        self, send: Send, avoid_broker: str | None, *, refresh: bool = False
    ) -> None:
        """Put the send on the wire within its time.

        Raises:
            RocketMQError: no route, or no connection; nothing was sent.
        """
        remaining_s = send.deadline_s - self._clock.monotonic()
        topic = send.request.topic
        async with self._bounded(topic, max(remaining_s, 0.0)):
            if refresh:
                await self._refresh(topic)
            route = await self._routes.for_publish(topic, self._config.default_topic_queues)
            send.queue = queue = self._choose(send.choice, topic, route, avoid_broker)
            lane = self._lane(queue, route)
            connection = await self._remoting.connection(lane.address)
        if send.future.done():
            self._leave(send)
            return
        self._transmit(send, lane, connection)

    @asynccontextmanager
    async def _bounded(self, topic: str, seconds: float) -> AsyncGenerator[None]:
        """Bound the search for a route and a connection; RequestTimeout when it takes longer."""
        try:
            async with fail_after(self._clock, seconds):
                yield
        except RequestTimeout:
            raise
        except TimeoutError as error:
            raise RequestTimeout(f"no route or connection for {topic} in time") from error

    async def _refresh(self, topic: str) -> None:
        try:
            await self._routes.refresh(topic, max_age_s=ROUTE_MAX_AGE_S)
        except RocketMQError as error:
            log.debug("route of %s not refreshed before a retry: %s", topic, error)

    def _not_sent(self, send: Send, error: RocketMQError) -> None:
        """The first try could not even start."""
        retryable = isinstance(error, ConnectionFailed | RequestTimeout)
        if retryable and self._clock.monotonic() < send.deadline_s:
            self._spawn(self._resend(send, error), "resend")
        else:
            self.end(send, _final(send, error))

    def _has_other_broker(self, send: Send, broker_name: str | None) -> bool:
        route = self._routes.known(send.request.topic)
        if send.choice is not None or route is None or broker_name is None or send.try_count > 1:
            return False
        return any(queue.broker_name != broker_name for queue in route.publish_queues)

    def _leave(self, send: Send) -> None:
        """Take an ended send out of the counts, once."""
        if send.left:
            return
        send.left = True
        self.in_flight.leave(len(send.request.body))

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=f"skylarkmq-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _master(route: TopicRoute, queue: MessageQueue) -> str:
    address = route.brokers.get(queue.broker_name, {}).get(MASTER_ID)
    if address is None:
        raise RouteNotFound(
            queue.topic, "no_broker", f"Broker {queue.broker_name} has no master at the moment"
        )
    return address


def _final(send: Send, error: RocketMQError) -> RocketMQError:
    """Return the error for the caller: a broker that cannot be dialled is a fault of the route."""
    if isinstance(error, ConnectionFailed) and not error.reached and not send.try_count:
        unreachable = RouteNotFound(
            send.request.topic,
            "address_unreachable",
            f"{error}. The broker advertises that address: see its brokerIP1, or address_map here",
        )
        unreachable.__cause__ = error
        return unreachable
    return error
