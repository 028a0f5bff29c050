"""Sends under way: each from its call to its result, over retries, without a task of its own.

    begin: route and connection known?  yes -> on the wire, in the same call
                                        no  -> waits in departures.py, on the wire as soon as
                                               they are known
    answered: the result; no task was made for it
    failed, refused, no answer: another broker at once, else the same after a pause

A send counts as in flight from `begin` to its end. Sends to one queue leave in the order of their
calls, but a retry leaves that order: who needs it strictly awaits each send of a key before the
next one.

What ends a try, and what follows:

    answer 0, 10, 11, 12      stored: the result
    answer in `retry_on`      not stored: tried again, at most `retries` times
    another answer            the error of that code, at once; so is a refusal of access control
    no answer                 outcome unknown: tried again, at most `retries` times, and counted in
                              `unknown_tries`, because each may have stored a copy
    no connection             nothing was sent: tried again until the time is up

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/producer/DefaultMQProducerImpl.java
(sendDefaultImpl)
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from skylarkmq.client.clock import fail_after
from skylarkmq.client.config import ProducerConfig
from skylarkmq.client.errors import (
    AuthError,
    BrokerError,
    ConnectionFailed,
    IllegalState,
    NotDurableError,
    NotSupported,
    RequestTimeout,
    RocketMQError,
    RouteNotFound,
)
from skylarkmq.client.observe.hooks import SendContext, each
from skylarkmq.client.producer.departures import STOPPED, Departures
from skylarkmq.client.producer.in_flight import InFlight
from skylarkmq.client.producer.lanes import Lane, Lanes
from skylarkmq.client.producer.latency_fault import FAILED_MS
from skylarkmq.client.producer.send import Choice, Send, SendStats
from skylarkmq.client.producer.send_result import SendResult, SendStatus
from skylarkmq.client.services import Services
from skylarkmq.client.wire.api_send import SendRequest
from skylarkmq.client.wire.connection import Connection, Peer
from skylarkmq.protocol.errors import LocalProtocolError

RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
"""Back-off before a try at the same broker: doubling, jittered, capped."""


class SendPipeline:
    """The sends of one producer. Loop thread."""

    def __init__(self, config: ProducerConfig, services: Services, random: Random) -> None:
        self.stats = SendStats()
        self.in_flight = InFlight(config.max_in_flight, config.max_in_flight_bytes)
        self.lanes = Lanes(config, services.namespace, services.clock.monotonic, random)
        self._config = config
        self._send_timeout_s = config.send_timeout_s
        self._services = services
        self._remoting = services.remoting
        self._routes = services.routes
        self._hooks = services.hooks
        self._random = random
        self._loop = asyncio.get_running_loop()
        self._monotonic = services.clock.monotonic
        self._pick = self.lanes.pick
        self._faults = self.lanes.faults
        self._departures = Departures(self, services, config.default_topic_queues)
        self._routeless = self._departures.routeless
        self._unconnected = self._departures.unconnected
        self._known_route = services.routes.known
        self._ready = services.remoting.ready
        # Whether it matters when a try began.
        self._times_tries = config.latency_fault or config.try_timeout_s is not None
        # Whether a plain message may take the short way.
        self._plain = not self._times_tries
        self._next_lane = self.lanes.next
        self._create_future = self._loop.create_future
        self._closed = False
        self._stopped = False

    # For the producer

    def begin(
        self,
        request: SendRequest,
        choice: Choice | None,
        timeout_s: float | None,
        timed: bool = False,
        context: SendContext | None = None,
    ) -> Send:
        """Start a send; its future has the result. The caller has looked for room.

        Args:
            timed: refuse brokers that would not wait for the message's time.
            context: told to the hooks at the end.
        """
        end_s = self._monotonic() + (self._send_timeout_s if timeout_s is None else timeout_s)
        future = self._create_future()
        generation = self.in_flight.enter(len(request.body))
        send = Send(self, request, choice, future, end_s, end_s, generation, timed, context)
        if self._plain and choice is None and not timed:
            self._dispatch_plain(send, request)
        elif self._closed:
            self.end(send, IllegalState(STOPPED))
        elif request.topic in self._routeless:
            self._departures.await_route(send)
        else:
            self.dispatch(send)
        return send

    def _dispatch_plain(self, send: Send, request: SendRequest) -> None:
        """Do what `dispatch` does for a first try that may go to any queue, in fewer steps."""
        topic = request.topic
        route = self._known_route(topic)
        if route is None or not route.publish_queues or topic in self._routeless:
            self._departures.await_route(send)
            return
        try:
            lane = self._next_lane(topic, route)
            send.queue = lane.shown
            address = lane.address
            connection = self._ready(address)
            if connection is None or address in self._unconnected:
                self._departures.await_connection(send, address)
                return
            send.connection = connection
            opaque = lane.template.start(connection, request, send)
            if send.connection is connection:  # else it was refused, and may be elsewhere by now
                send.opaque = opaque
        except RouteNotFound as error:
            self.not_sent(send, error)
        except LocalProtocolError as error:
            self.end(send, IllegalState(f"the message cannot be sent: {error}"))

    def abandon(self, send: Send) -> None:
        """Forget a send that nobody waits for any more; its outcome stays unknown."""
        if send.connection is not None:
            send.connection.forget(send.opaque)
        if not send.future.done():
            send.future.cancel()
        self._leave(send, None, asyncio.CancelledError())

    async def post(self, request: SendRequest, choice: Choice | None, *, timed: bool) -> Lane:
        """Send one way: once, to one broker, without an answer; return the way it went.

        Raises:
            RocketMQError: no route or no connection, or the broker has no timers.
        """
        topic = request.topic
        try:
            async with fail_after(self._services.clock, self._send_timeout_s):
                default_queues = self._config.default_topic_queues
                route = await self._routes.for_publish(topic, default_queues)
                lane = self.lanes.pick(topic, route, choice)
                if timed:
                    peer = await self._services.peer(lane.address)
                    if not peer.has_timers:
                        raise _no_timers(lane.address, peer)
                command = lane.template.command(request, oneway=True)
                await self._remoting.post(lane.address, command)
        except RequestTimeout:
            raise
        except TimeoutError as error:
            raise RequestTimeout(f"no route or connection for {topic} in time") from error
        return lane

    def close(self) -> None:
        """Take no more sends; those under way go on."""
        self._closed = True
        self._plain = False

    async def stop(self) -> None:
        """End what is not on the wire; what is there ends with its answer or its connection."""
        self.close()
        self._stopped = True
        await self._departures.stop()

    # For the sends

    def succeed(self, send: Send, result: SendResult) -> None:
        """The message is stored."""
        self.stats.sent_count += 1
        if self._faults is not None:
            self._note_try(send, failed=False)
        if self._config.strict and result.status is not SendStatus.SEND_OK:
            self.end(send, NotDurableError(result, result.status.name))
            return
        if not send.future.done():
            send.future.set_result(result)
        if send.context is None and not send.off_wire_count and not send.left:
            send.left = True  # the short form of what follows
            self.in_flight.leave(len(send.request.body), send.generation)
        else:
            self._leave(send, result, None)

    def end(self, send: Send, error: RocketMQError) -> None:
        """The send has failed for good."""
        self.stats.failed_count += 1
        if not send.future.done():
            send.future.set_exception(error)
        self._leave(send, None, error)

    def try_ended(self, send: Send, error: RocketMQError, *, unknown: bool) -> None:
        """A try has come to nothing, or to nothing known: again, or the end."""
        send.connection = None
        if isinstance(error, ConnectionFailed) and not error.reached:
            self.not_sent(send, error)
            return
        if self._faults is not None:
            self._note_try(send, failed=True)
        send.try_count += 1
        if send.future.done():
            self._leave(send, None, error)
            return
        again = isinstance(error, ConnectionFailed | RequestTimeout) or (
            isinstance(error, BrokerError)
            and error.code in self._config.retry_on
            and not isinstance(error, AuthError)
        )
        out_of_time = self._monotonic() >= send.end_s
        if not again or send.try_count > self._config.retries or out_of_time or self._stopped:
            self.end(send, error)
            return
        if unknown:
            send.unknown_tries += 1
            self.stats.unknown_retry_count += 1
        self._again(send, error)

    # For the waiting room

    def dispatch(self, send: Send) -> None:
        """Choose a queue and put the send on the wire, or where it waits for the way there."""
        topic = send.request.topic
        route = self._known_route(topic)
        if route is None or not route.publish_queues:
            self._departures.await_route(send)
            return
        failed = None
        if send.error is not None and send.queue is not None:
            failed = send.queue.broker_name
        try:
            lane = self._pick(topic, route, send.choice, failed)
        except RouteNotFound as error:
            self.not_sent(send, error)
            return
        except RocketMQError as error:
            self.end(send, error)
            return
        send.queue = lane.shown
        address = lane.address
        connection = self._ready(address)
        if send.timed and not self._may_wait_there(send, address, connection):
            return
        if connection is None or address in self._unconnected:
            self._departures.await_connection(send, address)
        else:
            self._transmit(send, lane, connection)

    def depart(self, send: Send, connection: Connection) -> None:
        """The connection that the send waited for is there."""
        lane = self.lanes.to(send.queue)
        if lane is None or lane.address != connection.address or send.timed:
            self.dispatch(send)  # the route has changed, or the broker may be another
        else:
            self._transmit(send, lane, connection)

    def not_sent(self, send: Send, error: RocketMQError) -> None:
        """There is no route or no connection; nothing was sent."""
        if self._faults is not None and isinstance(error, ConnectionFailed):
            send.began_s = self._monotonic() - FAILED_MS / 1000  # worse than any that answers
            self._note_try(send, failed=True)
        if send.future.done():
            self._leave(send, None, error)
            return
        fresh = send.error is None and not isinstance(error, ConnectionFailed | RequestTimeout)
        if fresh or not error.retryable or self._stopped:
            self.end(send, error)
        elif self._monotonic() >= send.end_s:
            send.error = error
            self.out_of_time(send)
        else:
            self._again(send, error)

    def out_of_time(self, send: Send) -> None:
        """Its time was over before it was on the wire."""
        error = send.error
        if error is None:
            waited = self._departures.waits_for(send)
            text = f"not sent to {send.request.topic} in time: it waited for {waited}"
            self.end(send, RequestTimeout(text))
        else:
            self.end(send, _final(send, error))

    # Inside

    def _transmit(self, send: Send, lane: Lane, connection: Connection) -> None:
        send.connection = connection
        if self._times_tries:
            send.began_s = self._monotonic()
            limit_s = self._config.try_timeout_s
            if limit_s is not None:
                send.deadline_s = min(send.end_s, send.began_s + limit_s)
        try:
            opaque = lane.template.start(connection, send.request, send)
            if send.connection is connection:  # else it was refused, and may be elsewhere by now
                send.opaque = opaque
        except LocalProtocolError as error:
            self.end(send, IllegalState(f"the message cannot be sent: {error}"))

    def _may_wait_there(self, send: Send, address: str, connection: Connection | None) -> bool:
        """Return whether the broker keeps a message until its time; else the send is seen to."""
        peer = None if connection is None else connection.peer
        if peer is None:
            self._departures.await_peer(send, address)
        elif not peer.has_timers:
            self.end(send, _no_timers(address, peer))
        return peer is not None and peer.has_timers

    def _again(self, send: Send, error: RocketMQError) -> None:
        """Try again: another broker at once, if there is one; else after a pause."""
        send.error = error
        send.failed_count += 1
        self.stats.retry_count += 1
        if self._hooks:
            reason = type(error).__name__
            each(self._hooks, lambda hook: hook.send_retried(send.request.topic, reason))
        if send.failed_count == 1 and self._has_other_broker(send):
            self.dispatch(send)
            return
        wait_s = min(RETRY_FIRST_S * 2 ** min(send.failed_count - 1, 16), RETRY_MAX_S)
        remaining_s = send.end_s - self._monotonic()
        pause_s = min(wait_s * self._random.uniform(0.5, 1.0), remaining_s)
        self._departures.await_next_try(send, pause_s)

    def _has_other_broker(self, send: Send) -> bool:
        route = self._routes.known(send.request.topic)
        if send.choice is not None or route is None or send.queue is None:
            return False
        failed = send.queue.broker_name
        return any(queue.broker_name != failed for queue in route.publish_queues)

    def _note_try(self, send: Send, *, failed: bool) -> None:
        if self._faults is not None and send.queue is not None:
            now_s = self._monotonic()
            took_s = now_s - send.began_s
            self._faults.ended(send.queue.broker_name, took_s, now_s, failed=failed)

    def _leave(self, send: Send, result: SendResult | None, error: BaseException | None) -> None:
        """Take an ended send out of the counts, once."""
        if send.left:
            return
        send.left = True
        self.in_flight.leave(len(send.request.body), send.generation)
        if send.off_wire_count or send.place is not None:
            self._departures.left(send)
        context = send.context
        if context is not None:
            context.queue = send.queue
            lane = self.lanes.to(send.queue)
            context.broker_addr = "" if lane is None else lane.address
            each(self._hooks[::-1], lambda hook: hook.after_send(context, result, error))


def _no_timers(address: str, peer: Peer) -> RocketMQError:
    return NotSupported(
        f"broker {address} is {peer.release}, which has no timers and would deliver at once",
        hint="Use delay_level: its steps are the broker's messageDelayLevel, 1 s to 2 h",
    )


def _final(send: Send, error: RocketMQError) -> RocketMQError:
    """Return the error for the caller: a broker that cannot be dialled is a fault of the route.

    A send that has no queue never got that far: its error is that of the name servers.
    """
    if send.queue is None or send.try_count:
        return error
    if isinstance(error, ConnectionFailed) and not error.reached:
        unreachable = RouteNotFound(
            send.request.topic,
            "address_unreachable",
            f"{error}. The broker advertises that address: see its brokerIP1, or address_map here",
        )
        unreachable.__cause__ = error
        return unreachable
    return error
