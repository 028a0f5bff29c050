"""Sends under way, each from its call to its result, retries included, without a task of its own.

    begin: route and connection known?  yes -> on the wire, in the same call
                                        no  -> waits in WaitingSends, on the wire as soon as
                                               they are known
    answered: the result; no task was made for it
    failed, refused, no answer: another broker at once, else the same after a pause

A send counts as in flight from `begin` to its end. Sends to one queue leave in the order of their
calls, but a retry leaves that order, unless the producer has `strict_order`: then sends that choose
their queue stand in its line, and the next one leaves when the first has ended.

What ends a try, and what follows:

    answer 0, 10, 11, 12      stored: the result. Replicas that elect their master answer 0 alone:
                              what they cannot confirm they refuse, as perhaps stored
    answer 14 in `retry_on`   the broker stores nothing now, as one that does not lead any more:
                              tried again until the time is up, unless `retries` is 0
    other one in `retry_on`   not stored: tried again, at most `retries` times
    another answer            the error of that code, at once; so is a refusal of access control
    such a refusal            outcome unknown, as of a try without an answer: tried again, at most
    no answer                 `retries` times, and counted in `unknown_tries`, because each may have
                              stored a copy
    no connection, no master  nothing was sent: tried again until the time is up

Before a try at the same broker the route is looked at again, so that a send finds the master that
took the place of one that is gone, within its time.

What a send that is not on the wire waits for: see `waiting_sends.py`. Loop thread.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/producer/DefaultMQProducerImpl.java
(sendDefaultImpl)
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Final

import msgspec

from skylarkmq.client.config import ProducerConfig
from skylarkmq.client.errors import (
    AWAY_CODES,
    AuthError,
    BrokerError,
    ConnectionFailed,
    IllegalState,
    NotConfirmed,
    NotDurableError,
    NotSupported,
    ProtocolError,
    RequestTimeout,
    RocketMQError,
    RouteNotFound,
)
from skylarkmq.client.observe.hooks import SendContext, each
from skylarkmq.client.producer.in_flight import InFlight
from skylarkmq.client.producer.lanes import FAILED_MS, Choice, Lane, Lanes
from skylarkmq.client.producer.ordered_sends import OrderedSends
from skylarkmq.client.producer.waiting_sends import STOPPED, WaitingSends
from skylarkmq.client.send_result import STORED_CODES, SendResult, SendStatus
from skylarkmq.client.services import Services
from skylarkmq.client.wire.api_send import SendRequest, SendTemplate, send_refusal, stored_answer
from skylarkmq.client.wire.route import TopicRoute
from skylarkmq.protocol.errors import LocalProtocolError
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.connection import Connection, Peer
from skylarkmq.remoting.send_answer import StoredAnswer
from skylarkmq.remoting.waiting import backoff_s, fail_after, sleep

RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
"""Back-off before a try at the same broker: doubling, jittered, capped."""


@dataclass(slots=True)
class SendStats:
    """Counters of one producer."""

    sent_count: int = 0
    failed_count: int = 0
    retry_count: int = 0
    unknown_retry_count: int = 0
    """Retries of a try without an answer: each may have left a second copy."""


class Send(msgspec.Struct, eq=False):
    """One send under way; waits on its connection for the answer.

    The collector of cycles must see it: the frames in the traceback of its error hold it.
    """

    owner: SendPipeline
    request: SendRequest
    choice: Choice | None
    future: asyncio.Future[SendResult]
    end_s: float
    """When the whole send is given up."""
    deadline_s: float
    """When the try under way is given up."""
    generation: int
    timed: bool = False
    """Only brokers with timers may get it: the others would deliver it at once."""
    context: SendContext | None = None
    """What hooks know it by; None without hooks."""
    connection: Connection | None = None
    queue: MessageQueue | None = None
    opaque: int = 0
    began_s: float = 0.0
    """When the try under way began; kept only where it is needed."""
    try_count: int = 0
    """Tries that ended on the wire."""
    failed_count: int = 0
    """Those, and the attempts that found no connection."""
    unknown_tries: int = 0
    off_wire_count: int = 0
    place: dict[Send, None] | None = None
    error: RocketMQError | None = None
    """Why the last try failed."""
    is_ended: bool = False

    def answered(self, answer: RemotingCommand) -> None:
        """The broker's answer to the last try, in its general form."""
        if answer.code not in STORED_CODES:
            self._refused(answer)
            return
        try:
            stored = stored_answer(answer)
        except ProtocolError as error:
            self.owner.end(self, error)
        else:
            self.stored(stored)

    def stored(self, answer: StoredAnswer) -> None:
        """The broker's answer to the last try."""
        _, code, msg_id, queue_id, queue_offset, transaction_id, region_id, trace_on = answer
        status = STORED_CODES.get(code)
        if status is None:
            self._refused(RemotingCommand(code=code))
            return
        queue = self.queue
        assert queue is not None, "a send has a queue once it is on the wire"
        if queue_id != queue[2]:  # its number, in the quicker way
            queue = queue._replace(queue_id=queue_id)
        result = SendResult(
            status,
            self.request.unique_key,
            msg_id,
            queue,
            queue_offset,
            transaction_id,
            region_id,
            trace_on != "false",
            self.unknown_tries,
        )
        self.owner.succeed(self, result)

    def failed(self, error: RocketMQError) -> None:
        """The last try has no answer."""
        reached = not isinstance(error, ConnectionFailed) or error.reached
        self.owner.try_ended(self, error, unknown=reached)

    def _refused(self, answer: RemotingCommand) -> None:
        connection = self.connection
        assert connection is not None, "a send has a connection while it is on the wire"
        error = send_refusal(answer, connection.address)
        self.owner.try_ended(self, error, unknown=isinstance(error, NotConfirmed))


class SendPipeline:
    """The sends of one producer. Loop thread.

    Its size is one idea: what follows a try depends on all tries before. Many fields are methods of
    its parts, looked up once, because each message takes that way.
    """

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
        self.ordered = OrderedSends()
        self._waiting = WaitingSends(self, services, config.default_topic_queues)
        services.route_listeners.add(self._waiting.route_changed)
        self._routeless = self._waiting.routeless
        self._unconnected = self._waiting.unconnected
        self._known_route = services.routes.known
        self._ready = services.remoting.ready
        # Whether it matters when a try began.
        self._times_tries = config.latency_fault or config.try_timeout_s is not None
        # Whether a plain message may take the short way.
        self._plain = not self._times_tries
        # Whether a stored message leaves nothing to do but to count it out.
        self._is_short = not (config.strict_order or config.strict or config.latency_fault)
        self._next_lane = self.lanes.next
        self._turns = self.lanes.turns
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
        in_flight = self.in_flight  # `enter`, written out
        in_flight.count += 1
        in_flight.size += len(request.body)
        generation = in_flight.generation
        connection: Connection | None = None
        queue: MessageQueue | None = None
        template: SendTemplate | None = None
        address, topic = "", request.topic
        if self._plain and choice is None and not timed and topic not in self._routeless:
            # What `dispatch` does for a first try that may go to any queue, in fewer steps.
            route = self._known_route(topic)
            if route is not None and route.publish_queues:
                turns = self._turns(topic)
                try:
                    if turns is None or turns.route is not route or turns.take is None:
                        _, queue, address, template = self._next_lane(topic, route)
                    else:
                        _, queue, address, template = turns.take()
                except RouteNotFound:
                    queue = None  # so that it ends in `dispatch`
                if address not in self._unconnected:
                    connection = self._ready(address)
        send = Send(
            self, request, choice, future, end_s, end_s, generation, timed, context, connection,
            queue,
        )  # fmt: skip
        if connection is not None and template is not None:
            self._put_on_wire(send, template, connection)
        elif queue is not None:
            self._waiting.await_connection(send, address)
        else:
            self._first_dispatch(send)
        return send

    def _first_dispatch(self, send: Send) -> None:
        if self._closed:
            self.end(send, IllegalState(STOPPED))
        elif send.request.topic in self._routeless:
            self._waiting.await_route(send)
        else:
            self.dispatch(send)

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
                lane = self.lanes.pick(topic, await self.route(topic), choice)
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

    async def route(self, topic: str) -> TopicRoute:
        """Return the topic's route, as soon as a broker takes its messages; the caller bounds that.

        Raises:
            RocketMQError: there is none, and none comes by waiting.
        """
        failure_count = 0
        while True:
            try:
                return await self._routes.for_publish(topic, self._config.default_topic_queues)
            except RouteNotFound as error:
                if not _may_come(error):
                    raise
            failure_count += 1
            wait_s = backoff_s(failure_count, RETRY_FIRST_S, RETRY_MAX_S)
            await sleep(self._services.clock, wait_s * self._random.uniform(0.5, 1.0))

    def close(self) -> None:
        """Take no more sends; those under way go on."""
        self._closed = True
        self._plain = False

    async def stop(self) -> None:
        """End the sends that are not on the wire; the others end with answer or connection."""
        self.close()
        self._stopped = True
        self._services.route_listeners.discard(self._waiting.route_changed)
        await self._waiting.stop()

    # For the sends

    def succeed(self, send: Send, result: SendResult) -> None:
        """The message is stored."""
        self.stats.sent_count += 1
        if not self._is_short or send.context is not None or send.off_wire_count or send.is_ended:
            self._succeed_in_full(send, result)
            return
        future = send.future
        if not future.done():
            future.set_result(result)
        send.is_ended = True
        in_flight = self.in_flight  # `leave`, written out
        in_flight.count -= 1
        in_flight.size -= len(send.request.body)
        if in_flight.room_waiters or in_flight.flushes:
            in_flight.tell(send.generation)

    def _succeed_in_full(self, send: Send, result: SendResult) -> None:
        if self._faults is not None:
            self._note_try(send, failed=False)
        if self._config.strict and result.status is not SendStatus.SEND_OK:
            self.end(send, NotDurableError(result, result.status.name))
            return
        if not send.future.done():
            send.future.set_result(result)
        self._leave(send, result, None)

    def end(self, send: Send, error: RocketMQError) -> None:
        """The send has failed for good."""
        self.stats.failed_count += 1
        if not send.future.done():
            send.future.set_exception(error)
        self._leave(send, None, error)

    def try_ended(self, send: Send, error: RocketMQError, *, unknown: bool) -> None:
        """A try has failed, or its outcome is unknown: try again, or end the send."""
        send.connection = None
        self._services.failed(send.request.topic, error)
        if isinstance(error, ConnectionFailed) and not error.reached:
            self.not_sent(send, error)
            return
        if self._faults is not None:
            self._note_try(send, failed=True)
        is_away = (
            self._config.retries > 0
            and isinstance(error, BrokerError)
            and error.code in AWAY_CODES
            and not unknown
        )
        send.try_count += not is_away
        if send.future.done():
            self._leave(send, None, error)
            return
        again = isinstance(error, ConnectionFailed | RequestTimeout) or (
            isinstance(error, BrokerError)
            and error.code in self._config.retry_on
            and not isinstance(error, AuthError)
        )
        out_of_time = self._monotonic() >= send.end_s
        is_spent = not is_away and send.try_count > self._config.retries
        if not again or is_spent or out_of_time or self._stopped:
            self.end(send, error)
            return
        if unknown:
            send.unknown_tries += 1
            self.stats.unknown_retry_count += 1
        self._again(send, error)

    # For the waiting room

    def dispatch(self, send: Send) -> None:
        """Choose a queue and put the send on the wire, or let it wait for a route or connection."""
        topic = send.request.topic
        route = self._known_route(topic)
        if route is None or not route.publish_queues:
            self._waiting.await_route(send)
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
        if self._config.strict_order and send.choice is not None and not self._has_turn(send, lane):
            return
        send.queue = lane.shown
        address = lane.address
        connection = self._ready(address)
        if send.timed and not self._may_wait_there(send, address, connection):
            return
        if connection is None or address in self._unconnected:
            self._waiting.await_connection(send, address)
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
        self._services.failed(send.request.topic, error)
        if self._faults is not None and isinstance(error, ConnectionFailed):
            send.began_s = self._monotonic() - FAILED_MS / 1000  # worse than any that answers
            self._note_try(send, failed=True)
        if send.future.done():
            self._leave(send, None, error)
            return
        fresh = send.error is None and not _may_come(error)
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
            waited = self._waiting.waits_for(send)
            text = f"not sent to {send.request.topic} in time: it waited for {waited}"
            self.end(send, RequestTimeout(text))
        else:
            self.end(send, _final(send, error))

    # Inside

    def _has_turn(self, send: Send, lane: Lane) -> bool:
        """Return whether no send before it is under way to its queue; else let it wait."""
        if send.queue != lane.shown:
            self._pass_on(send)  # the route has changed since its last try
        send.queue = lane.shown
        if self.ordered.is_first(send, lane.shown):
            return True
        self._waiting.await_turn(send)
        return False

    def _pass_on(self, send: Send) -> None:
        """Let the next one of its line go on, in the next turn of the loop."""
        following = self.ordered.leave(send)
        if following is not None:
            self._loop.call_soon(self._take_turn, following)

    def _take_turn(self, send: Send) -> None:
        if send.future.done():
            self.abandon(send)  # its future was cancelled: nobody waits for it
        elif not send.is_ended:
            self.dispatch(send)

    def _transmit(self, send: Send, lane: Lane, connection: Connection) -> None:
        send.connection = connection
        if self._times_tries:
            send.began_s = self._monotonic()
            limit_s = self._config.try_timeout_s
            if limit_s is not None:
                send.deadline_s = min(send.end_s, send.began_s + limit_s)
        self._put_on_wire(send, lane.template, connection)

    def _put_on_wire(self, send: Send, template: SendTemplate, connection: Connection) -> None:
        try:
            opaque = template.start(connection, send.request, send)
            if send.connection is connection:  # else it was refused, and may be elsewhere by now
                send.opaque = opaque
        except LocalProtocolError as error:
            self.end(send, IllegalState(f"the message cannot be sent: {error}"))

    def _may_wait_there(self, send: Send, address: str, connection: Connection | None) -> bool:
        """Return whether the broker keeps a message until its time; else park or end the send."""
        peer = None if connection is None else connection.peer
        if peer is None:
            self._waiting.await_peer(send, address)
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
        wait_s = backoff_s(send.failed_count, RETRY_FIRST_S, RETRY_MAX_S)
        remaining_s = send.end_s - self._monotonic()
        pause_s = min(wait_s * self._random.uniform(0.5, 1.0), remaining_s)
        self._waiting.await_next_try(send, pause_s)

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
        if send.is_ended:
            return
        send.is_ended = True
        if self._config.strict_order:
            self._pass_on(send)
        self.in_flight.leave(len(send.request.body), send.generation)
        if send.off_wire_count or send.place is not None:
            self._waiting.forget(send)
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


def _may_come(error: RocketMQError) -> bool:
    """Return whether what a first try lacks may come by itself, as a set's next master does."""
    if isinstance(error, RouteNotFound):
        return error.reason == "no_broker"
    return isinstance(error, ConnectionFailed | RequestTimeout)


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
            f"{error.text}. The broker advertises that address: see its brokerIP1, or address_map "
            "here",
        )
        unreachable.__cause__ = error
        return unreachable
    return error
