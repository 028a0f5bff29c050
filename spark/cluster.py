"""A cluster as Spark's driver and tasks see it: a blocking client on the SDK's own parts.

    BlockingClient    topics, routes, offsets, pulls; requests that several may be under way of
    its event loop    runs in the caller's thread, and only while the caller waits for something
    the SDK's parts   connections, routes, name servers, signatures and back-off, on that loop

A queue is asked at its master; while that cannot be reached, reading goes to a slave. Questions
that are safe to repeat are repeated up to `retries` times, after a short wait that doubles. Errors
name the peer, and the cause as far as it is known.

One thread at a time, and none in which an event loop runs already, as in a notebook's cell; nothing
is connected before the first call. A process that was forked leaves what its parent opened alone
and connects anew. Topics, queues and groups are the application's; what goes over the wire has the
namespace around it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from skylarkmq.client.errors import (
    BrokerError,
    ConnectionFailed,
    IllegalState,
    NotFound,
    ProtocolError,
    RequestTimeout,
    RocketMQError,
    RouteNotFound,
    ServiceNotAvailable,
    SystemBusy,
    TlsError,
)
from skylarkmq.client.namespace import Namespace
from skylarkmq.client.wire.api_consumer import KeyAnswer
from skylarkmq.client.wire.api_pull import (
    PLAIN_PULL_BYTES,
    PulledRecords,
    PullRequest,
    PullTemplate,
    pulled_in,
)
from skylarkmq.client.wire.nameserver import NONE_ANSWERED, may_come
from skylarkmq.client.wire.route import TopicRoute
from skylarkmq.protocol.bodies.group import CheckClientRequestBody, SubscriptionData
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.fingerprint import Fingerprint
from skylarkmq.protocol.flags import MASTER_ID, TOOLS_CONSUMER_GROUP
from skylarkmq.protocol.message import MessageExt, MessageQueue
from skylarkmq.protocol.record import decode_messages
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.connection import Connection
from skylarkmq.remoting.waiting import backoff_s, within
from skylarkmq.spark.clock import BlockingClock, SystemClock
from skylarkmq.spark.own_loop import OwnLoop, Pending
from skylarkmq.spark.settings import ConnectionSettings

T = TypeVar("T")
Failed = dict[MessageQueue, RocketMQError] | None
Ask = Callable[[str, MessageQueue, float], Awaitable[T]]
"""Asks the broker at an address about a queue, named as brokers know it, within so many seconds."""

log = logging.getLogger(__name__)

TOOLS_GROUP: Final = TOOLS_CONSUMER_GROUP
"""Every client may pull in its name, and every broker has it."""
FILTER_CLIENT_ID: Final = "spark-skylarkmq"
"""A reader is no member of its group; the name shows only in refusals."""
DEFAULT_QUEUE_COUNT: Final = 4
PAGE_MESSAGES: Final = 32
LOOK_S: Final = 0.5
"""How often a start that waits looks again."""
PAGE_BYTES: Final = 256 * 1024

ROUTE_MAX_AGE_S: Final = 30.0
"""How old a route may be that says where a queue's broker is."""
ROUTE_RETRY_AGE_S: Final = 1.0
"""How old after a failure: the broker may have moved."""
ASKING_SHARE: Final = 10
"""While no name server answers, a known route is good for this many times as long as asking took,
at most ROUTE_MAX_AGE_S: a broker may have moved while its name server hung."""
TIMEOUTS_MAX: Final = 2
"""Time-outs that one call lasts, however many further tries are allowed."""
RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 2.0
"""How long `patiently` waits before it asks again; doubling, capped."""

IDLE_MAX_S: Final = 60.0
"""Connections of a client that did nothing for so long are made anew: brokers close theirs after
120 s, and firewalls drop them silently."""
UNLOOKED_S: Final = 0.5
"""After so long without a turn of the loop, what has come in is looked at before a request."""

NO_NAME_SERVER_HINT: Final = (
    "Option nameServer names name servers, mostly at port 9876; brokers are found by them"
)
UNREACHED_HINT: Final = (
    "Is it running there, and can this machine reach it? Driver and every executor need to reach it"
)
INSIDE_A_LOOP: Final = "an event loop runs in this thread, and a blocking call would hold it up"
INSIDE_A_LOOP_HINT: Final = (
    "A notebook's cell runs inside one. Call it in another thread: await asyncio.to_thread(...)"
)
MISSING_HINT: Final = (
    "The topic does not exist, or its brokers are not registered (any more): see the spelling, "
    "option namespace, and whether these are the right name servers"
)
ABSENT_HINT: Final = (
    "Is it down, or does it register with other name servers? It is asked again as long as the "
    "reader's retries allow"
)


def may_repeat(error: RocketMQError) -> bool:
    """Return whether a question that changes nothing may be asked again after this error."""
    if isinstance(error, TlsError):
        return False
    return isinstance(error, ConnectionFailed | RequestTimeout | SystemBusy | ServiceNotAvailable)


def patiently(
    ask: Callable[[], T],
    clock: BlockingClock,
    patience_s: float,
    what: object,
    passing: Callable[[RocketMQError], bool] = may_repeat,
) -> T:
    """Return what `ask` returns, tried again for `patience_s` while it fails.

    Args:
        what: whom the log says this of.
        passing: whether asking again later may help after an error.

    Raises:
        RocketMQError: the last failure; at once when trying again cannot help.
    """
    deadline_s = clock.monotonic() + patience_s
    failure_count = 0
    while True:
        try:
            return ask()
        except RocketMQError as error:
            failure_count += 1
            delay_s = backoff_s(failure_count, RETRY_FIRST_S, RETRY_MAX_S)
            if not passing(error) or clock.monotonic() + delay_s > deadline_s:
                raise
            log.warning("%s: trying again in %.1f s: %s", what, delay_s, error)
        clock.sleep(delay_s)


_of_parents: Final[list[OwnLoop]] = []
"""What a fork inherited: kept and not touched, because its loop shares the parent's epoll."""


class BlockingClient:
    """Calls name servers and brokers, each over one connection; one thread at a time."""

    def __init__(self, settings: ConnectionSettings, clock: BlockingClock | None = None) -> None:
        """Connect at the first call."""
        self.settings = settings
        self.clock: BlockingClock = clock or SystemClock()
        self.namespace = Namespace(settings.namespace)
        self._made: OwnLoop | None = None
        self._used_s = 0.0
        self._unasked_until_s = 0.0
        self._is_started = False

    def await_start(self) -> None:
        """Wait for a name server and for a first broker, `start_timeout_s` at most; look once at 0.

        Where a name server answers but no broker has come, the start goes on without. Once one
        has, this client does not look again.

        Raises:
            RocketMQError: no name server answered by then; at once for what waiting does not
                mend, see `may_come`.
        """
        timeout_s, is_told = self.settings.start_timeout_s, False
        end_s = self.clock.monotonic() + timeout_s
        failure: RocketMQError | None = None
        while not self._is_started:
            try:
                self._is_started = self._opened.run(self._opened.source.has_brokers())
                failure = None
            except RocketMQError as error:
                if not may_come(error):
                    raise self._unanswered(error) from error
                failure = failure or error  # later ones tell of the back-off
            left_s = end_s - self.clock.monotonic()
            if left_s <= 0 and failure is not None:
                raise self._unanswered(failure) from failure
            if self._is_started or left_s <= 0:
                return
            if not is_told:
                log.warning(
                    "waiting for %s, up to %.3g s (startTimeoutMs)", self.settings.text, timeout_s
                )
                is_told = True
            self.clock.sleep(min(LOOK_S, left_s))

    # Routes

    def topics(self) -> list[str]:
        """Return the topics of the namespace but for the system's own, sorted.

        Topics of retries (%RETRY%group) and dead letters (%DLQ%group) are among them.

        Raises:
            RocketMQError: no name server answered.
        """
        names = self._named(self._opened.source.topics)
        return sorted({self.namespace.unwrap(name) for name in names if self.namespace.holds(name)})

    def route(self, topic: str, *, max_age_s: float = 0.0) -> TopicRoute:
        """Return where a topic lives, from memory when that is younger than `max_age_s`.

        Its queues bear the topic as brokers know it.

        Raises:
            RouteNotFound: no broker has it.
            RocketMQError: no name server answered.
        """
        name, opened = self.namespace.wrap(topic), self._opened
        route = opened.routes.fresh(name, max_age_s) or self._fetch(name)
        return _existing(name, route)

    def read_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that can be read, by broker and id; raises as `route`."""
        queues = self.route(topic).subscribe_queues
        return [MessageQueue(topic, queue.broker_name, queue.queue_id) for queue in queues]

    def write_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that can be written to, in the order of RocketMQ's producers.

        A topic that no broker has yet gets DEFAULT_QUEUE_COUNT queues of each broker that creates
        topics on demand.

        Raises:
            RouteNotFound: no broker takes messages of this topic.
            RocketMQError: no name server answered, and no route is remembered.
        """
        name = self.namespace.wrap(topic)
        route = self._lasting(name, 0.0)
        if route is None or not route.publish_queues:
            route = self._borrowed(name)
        return [
            MessageQueue(topic, queue.broker_name, queue.queue_id) for queue in route.publish_queues
        ]

    def members_of(
        self, queue: MessageQueue, *, max_age_s: float = ROUTE_MAX_AGE_S
    ) -> dict[int, str]:
        """Return the addresses of a queue's broker by broker id; 0 is the master.

        Raises:
            RouteNotFound: no broker has the topic.
            ConnectionFailed: this broker is not registered (any more).
            RocketMQError: no name server answered, and no route is remembered.
        """
        return self._members(self.namespace.wrap_queue(queue), max_age_s)

    def master_of(self, queue: MessageQueue) -> str:
        """Return the address that messages of a queue are sent to.

        Raises:
            RouteNotFound: no broker takes messages of the topic.
            ConnectionFailed: this broker's master is not registered (any more).
            RocketMQError: no name server answered, and no route is remembered.
        """
        return self._master(self.namespace.wrap_queue(queue), ROUTE_MAX_AGE_S)

    def forget_routes(self, queue: MessageQueue) -> None:
        """Let the next question for this topic ask the name servers again, a second later."""
        age_s = ROUTE_MAX_AGE_S - ROUTE_RETRY_AGE_S
        self._opened.routes.age(self.namespace.wrap(queue.topic), age_s)

    # Offsets

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the first queue offset that can still be read."""
        return self.min_offsets((queue,))[queue]

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the queue offset that the next message will get."""
        return self.max_offsets((queue,))[queue]

    def min_offsets(
        self,
        queues: Iterable[MessageQueue],
        failed: Failed = None,
        *,
        master_only: bool = False,
    ) -> dict[MessageQueue, int]:
        """Return the first offset of each queue; all are asked at once, each broker its own.

        Args:
            failed: takes the queues that no broker answered for; None: the first error is raised.
            master_only: no slave is asked while a master is away: it may lag, or have
                expired more.

        Raises:
            RocketMQError: no answer, or a refusal.
        """
        return self._ask(queues, self._opened.consumers.min_offset, failed, master_only=master_only)

    def max_offsets(
        self,
        queues: Iterable[MessageQueue],
        failed: Failed = None,
        *,
        master_only: bool = False,
    ) -> dict[MessageQueue, int]:
        """Return the end of each queue; as `min_offsets`."""
        return self._ask(queues, self._opened.consumers.max_offset, failed, master_only=master_only)

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at that time or later, else the end.

        The broker's answer to 29 is the message nearest to the time, which may lie before it, or
        in the middle of those of one millisecond; store times are looked at to put that right.

        Raises:
            RocketMQError: no answer, or a refusal.
        """
        begin, end = self.min_offset(queue), self.max_offset(queue)
        if begin >= end:
            return end
        search, earlier_ms = self._opened.consumers.search_offset, max(0, timestamp_ms - 1)
        found = self._ask(
            (queue,), lambda address, wire, time_s: search(address, wire, earlier_ms, time_s), None
        )
        place = max(begin, found[queue])
        while place < end:
            page = self.pull(queue, place, PAGE_MESSAGES, PAGE_BYTES)
            for message in _messages(page.records, queue):
                if message.store_timestamp >= timestamp_ms:
                    return message.queue_offset
            if page.next_offset <= place:
                return place
            place = page.next_offset
        return end

    def committed_offsets(
        self, group: str, queues: Iterable[MessageQueue], failed: Failed = None
    ) -> dict[MessageQueue, int | None]:
        """Return the NEXT offset of each queue, None where the group has none; as `min_offsets`.

        Brokers answer 0, not none, for a group that never committed while the queue's messages
        are still in their memory from the first one on.
        Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/
        ConsumerManageProcessor.java (queryConsumerOffset)
        """
        name, query = self.namespace.wrap(group), self._opened.consumers.query_offset
        return self._ask(
            queues, lambda address, queue, time_s: query(address, name, queue, time_s), failed
        )

    def commit_offsets(
        self, group: str, offsets: dict[MessageQueue, int], failed: Failed = None
    ) -> None:
        """Tell each queue's master that the group has handled all below an offset.

        All are told at once; as `min_offsets`.
        """
        name, update = self.namespace.wrap(group), self._opened.consumers.update_offset
        wire_offsets = {self.namespace.wrap_queue(queue): at for queue, at in offsets.items()}
        self._ask(
            offsets,
            lambda address, queue, time_s: update(
                address, name, queue, wire_offsets[queue], time_s
            ),
            failed,
            master_only=True,
        )

    # Messages

    def pulls_of(
        self,
        queue: MessageQueue,
        max_bytes: int,
        *,
        group: str = TOOLS_GROUP,
        subscription: SubscriptionData | None = None,
    ) -> PullTemplate:
        """Return what makes the pulls of a reader from one queue, which never wait for messages.

        Args:
            max_bytes: above 256 KiB it lifts the caps of our broker and of RocketMQ's 5.x.
            group: whose permission and whose statistics it is; the default needs no group.
        """
        name = group if group == TOOLS_GROUP else self.namespace.wrap(group)
        wire = self.namespace.wrap_queue(queue)
        wanted = subscription or SubscriptionData(topic=wire.topic, sub_string="*")
        # From 256 KiB on a little more: only then do brokers give more than 32 messages.
        asked_bytes = max_bytes + 1 if max_bytes == PLAIN_PULL_BYTES else max_bytes
        return PullTemplate(
            PullRequest(name, wire, 0, 1, wanted.sub_version, 0, 0, asked_bytes, wanted)
        )

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_count: int,
        max_bytes: int,
        *,
        group: str = TOOLS_GROUP,
    ) -> PulledRecords:
        """Return what the broker has from that queue offset on; never waits for new messages.

        Raises:
            RocketMQError: no answer, or a refusal.
        """
        pulls, remoting = self.pulls_of(queue, max_bytes, group=group), self._opened.remoting

        async def pull(address: str, _: MessageQueue, timeout_s: float) -> PulledRecords:
            answer = await remoting.call(address, pulls.at(offset, max_count), timeout_s)
            return pulled_in(answer, address)

        return self._ask((queue,), pull, None)[queue]

    def fingerprints(
        self,
        places: Mapping[MessageQueue, int],
        failed: Failed = None,
        *,
        group: str = TOOLS_GROUP,
    ) -> dict[MessageQueue, Fingerprint]:
        """Return which message stands at a queue offset of each queue, where there is one.

        As `min_offsets`, with the permission of a group, as `pulls_of`.
        """
        remoting = self._opened.remoting
        by_wire = {self.namespace.wrap_queue(queue): queue for queue in places}

        async def look(address: str, wire: MessageQueue, time_s: float) -> Fingerprint | None:
            queue = by_wire[wire]
            command = self.pulls_of(queue, 0, group=group).at(places[queue], 1)
            page = pulled_in(await remoting.call(address, command, time_s), address)
            return next(
                (
                    Fingerprint.of(message)
                    for message in _messages(page.records, queue)
                    if message.queue_offset == places[queue]
                ),
                None,
            )

        found = self._ask(places, look, failed)
        return {queue: each for queue, each in found.items() if each is not None}

    def places_of(self, queue: MessageQueue, key: str) -> KeyAnswer:
        """Ask the master of a queue where the messages of its topic with that key are.

        Raises:
            RocketMQError: no answer, or a refusal.
        """
        query = self._opened.consumers.messages_of_key
        asked = self._ask(
            (queue,),
            lambda address, wire, time_s: query(address, wire.topic, key, time_s),
            None,
            master_only=True,
        )
        return asked[queue]

    def check_filter(
        self, queue: MessageQueue, subscription: SubscriptionData, *, group: str
    ) -> None:
        """Ask a queue's broker whether it filters by the expression of a subscription.

        Raises:
            RocketMQError: no answer, or a refusal; `filter_error` says what it means.
        """
        question = CheckClientRequestBody(
            client_id=FILTER_CLIENT_ID,
            group=self.namespace.wrap(group),
            subscription_data=msgspec.structs.replace(
                subscription, topic=self.namespace.wrap(subscription.topic)
            ),
        )
        check = self._opened.consumers.check_client
        self._ask((queue,), lambda address, _, time_s: check(address, question, time_s), None)

    # Requests

    def begin(self, address: str, command: RemotingCommand, *, hold: bool = False) -> Pending:
        """Send a request, connecting if need be; several may be under way.

        With `hold` it leaves with the next one to that peer, or with `send_held`, in one write.

        Raises:
            ConnectionFailed, RequestTimeout: not sent.
        """
        opened = self._opened
        connection = opened.remoting.ready(address)
        if connection is None:
            connection = opened.run(opened.remoting.connection(address))
        if connection.is_congested:
            self._wait_writable(opened, connection)
        pending = Pending(connection)
        pending.opaque = connection.start(command, pending)
        if not hold:
            connection.flush()
        return pending

    def send_held(self, address: str) -> None:
        """Send what was held back for that peer."""
        connection = self._opened.remoting.ready(address)
        if connection is not None:
            connection.flush()

    def wait(self, pending: Pending, deadline_s: float) -> RemotingCommand:
        """Return the answer, whatever its code.

        Args:
            deadline_s: on the clock's monotonic time.

        Raises:
            ConnectionFailed, RequestTimeout, ProtocolError: there is none.
        """
        if pending.outcome is None:
            loop = self._opened.loop
            pending.wake, pending.deadline_s = loop.stop, deadline_s
            pending.connection.expect_by(deadline_s)
            pending.connection.flush()
            while pending.outcome is None:
                loop.run_forever()
            self._used_s = self.clock.monotonic()
        if isinstance(pending.outcome, RocketMQError):
            raise pending.outcome
        return pending.outcome

    def has_answer(self, pending: Pending) -> bool:
        """Return whether the answer has been read already; no I/O."""
        return isinstance(pending.outcome, RemotingCommand)

    def forget(self, pending: Pending) -> None:
        """Wait no more for that answer."""
        pending.connection.forget(pending.opaque)

    def call(self, address: str, command: RemotingCommand) -> RemotingCommand:
        """Send a request and return its answer within `request_timeout_s`; raises as both."""
        return self.wait(self.begin(address, command), self.deadline_s())

    def deadline_s(self) -> float:
        """Return when a request that begins now is given up."""
        return self.clock.monotonic() + self.settings.request_timeout_s

    def close(self) -> None:
        """Close all connections; later calls connect anew."""
        made, self._made = self._made, None
        if made is not None and made.process_id == os.getpid():
            made.close()

    def drop_idle(self) -> None:
        """Close the connections when the client was not used for a while."""
        made, idle_s = self._made, self.clock.monotonic() - self._used_s
        if made is not None and made.process_id == os.getpid() and idle_s > IDLE_MAX_S:
            made.remoting.drop_idle()
            made.look()

    # Inside

    @property
    def _opened(self) -> OwnLoop:
        """What is open in this process, looked at when no call was made for a while."""
        if asyncio._get_running_loop() is not None:
            raise IllegalState(INSIDE_A_LOOP, hint=INSIDE_A_LOOP_HINT)
        now_s = self.clock.monotonic()
        made = self._made
        if made is not None and made.process_id != os.getpid():
            _of_parents.append(made)
            made = None
        if made is None:
            made = self._made = OwnLoop(self.settings, self.clock)
        elif now_s - self._used_s >= UNLOOKED_S:
            self.drop_idle()
            made.look()
        self._used_s = now_s
        return made

    def _wait_writable(self, opened: OwnLoop, connection: Connection) -> None:
        """Wait until the peer has taken what was sent; its answers are read meanwhile."""
        timeout_s = self.settings.request_timeout_s
        try:
            opened.run(within(opened.clock, timeout_s, connection.writable()))
        except TimeoutError as error:
            why = "it reads too slowly: a request could not be sent"
            connection.give_up(why)
            raise RequestTimeout(f"{connection.address}: {why}") from error

    def _named(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what name servers say, after `retries` tries more."""
        for round_index in range(self.settings.retries + 1):
            try:
                return self._opened.run(ask())
            except RouteNotFound:
                raise
            except RocketMQError as error:
                if round_index == self.settings.retries or not error.retryable:
                    raise self._unanswered(error) from error
            self.clock.sleep(self.settings.retry_interval_s * 2**round_index)
        raise AssertionError("the last round returns or raises")

    def _unanswered(self, error: RocketMQError) -> RocketMQError:
        """Return what a failure to ask the name servers means to the user of the options."""
        if isinstance(error, TlsError):
            return error
        if isinstance(error, BrokerError):
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return error
            text = f"{error.broker_addr} is no name server: {error.remark}"
            return NotFound(text, hint=NO_NAME_SERVER_HINT)
        text = NONE_ANSWERED + error.text.removeprefix(NONE_ANSWERED)
        if isinstance(error, RequestTimeout):
            return RequestTimeout(text, hint=UNREACHED_HINT)
        failed = ConnectionFailed("", text, hint=UNREACHED_HINT)
        failed.address = self.settings.text
        return failed

    def _fetch(self, topic: str) -> TopicRoute | None:
        routes = self._opened.routes
        return self._named(lambda: routes.refresh(topic))

    def _borrowed(self, topic: str) -> TopicRoute:
        """Return a route to write to; a topic that no broker has borrows that of TBW102."""
        routes = self._opened.routes
        return self._named(lambda: routes.for_publish(topic, DEFAULT_QUEUE_COUNT))

    def _lasting(self, topic: str, max_age_s: float) -> TopicRoute | None:
        """Return a topic's route; while no name server answers, the one found before."""
        routes = self._opened.routes
        route = routes.fresh(topic, max_age_s)
        if route is not None:
            return route
        known = routes.known(topic)
        began_s = self.clock.monotonic()
        if known is not None and began_s < self._unasked_until_s:
            return known
        try:
            return self._fetch(topic)
        except RocketMQError as error:
            if known is None:
                raise
            log.info("route of %s not refreshed: %s", topic, error)
            now_s = self.clock.monotonic()
            wait_s = max(ROUTE_RETRY_AGE_S, ASKING_SHARE * (now_s - began_s))
            self._unasked_until_s = now_s + min(wait_s, ROUTE_MAX_AGE_S)
            return known

    def _members(self, queue: MessageQueue, max_age_s: float) -> dict[int, str]:
        known = self._lasting(queue.topic, max_age_s)
        if known is not None and known.borrowed:  # its first message may have created the topic
            known = self._lasting(queue.topic, 0.0)
        route = _existing(queue.topic, known)
        members = route.brokers.get(queue.broker_name)
        if not members and max_age_s > ROUTE_RETRY_AGE_S:
            route = _existing(queue.topic, self._lasting(queue.topic, ROUTE_RETRY_AGE_S))
            members = route.brokers.get(queue.broker_name)
        if not members:
            why = f"this broker of topic {queue.topic} is not registered"
            raise ConnectionFailed(queue.broker_name, why, hint=ABSENT_HINT)
        return members

    def _master(self, queue: MessageQueue, max_age_s: float) -> str:
        route = self._lasting(queue.topic, max_age_s)
        if route is None:
            route = self._borrowed(queue.topic)
        members = route.brokers.get(queue.broker_name)
        if members is None:
            members = self._members(queue, max_age_s)
        if MASTER_ID not in members:
            why = f"its master is away, topic {queue.topic}"
            raise ConnectionFailed(queue.broker_name, why, hint=ABSENT_HINT)
        return members[MASTER_ID]

    def _ask(
        self,
        queues: Iterable[MessageQueue],
        ask: Ask[T],
        failed: Failed,
        *,
        master_only: bool = False,
    ) -> dict[MessageQueue, T]:
        """Ask one question for each queue, all at once, each at its queue's broker.

            round 0      every queue is asked at its master; one connection a broker, and no
                         queue waits for the answer of another
            round n      those without an answer again, after a short wait: at the next member of
                         the broker's set, with a route that is fresh

        A broker that does not answer costs one time-out a round, however many queues it has. What
        was refused for a reason that stays is not asked again.

        Args:
            failed: takes the queues without an answer; None: the first error is raised.

        Raises:
            RocketMQError: no answer, or a refusal.
        """
        settings, clock = self.settings, self.clock
        found: dict[MessageQueue, T] = {}
        left = list(dict.fromkeys(MessageQueue(*queue) for queue in queues))
        begun_s = clock.monotonic()
        for round_index in range(settings.retries + 1):
            errors = self._ask_once(left, ask, found, round_index, master_only)
            spent_s = clock.monotonic() - begun_s
            last = spent_s >= TIMEOUTS_MAX * settings.request_timeout_s
            if round_index == settings.retries or last:
                left = []
            else:
                left = [queue for queue, error in errors.items() if may_repeat(error)]
            for queue, error in errors.items():
                if queue not in left:
                    if failed is None:
                        raise error
                    failed[queue] = error
            if not left:
                break
            clock.sleep(settings.retry_interval_s * 2**round_index)
        return found

    def _ask_once(
        self,
        queues: list[MessageQueue],
        ask: Ask[T],
        found: dict[MessageQueue, T],
        round_index: int,
        master_only: bool,
    ) -> dict[MessageQueue, RocketMQError]:
        """Ask each queue once; return the errors."""
        max_age_s = ROUTE_RETRY_AGE_S if round_index else ROUTE_MAX_AGE_S
        errors: dict[MessageQueue, RocketMQError] = {}
        questions: dict[MessageQueue, Awaitable[T]] = {}
        for queue in queues:
            wire = self.namespace.wrap_queue(queue)
            try:
                if master_only:
                    address = self._master(wire, max_age_s)
                else:  # the master first, then one slave after the other
                    members = self._members(wire, max_age_s)
                    address = members[sorted(members)[round_index % len(members)]]
            except RocketMQError as error:
                errors[queue] = error
            else:
                questions[queue] = ask(address, wire, self.settings.request_timeout_s)
        if questions:
            answers = self._opened.run(_all_of(questions.values()))
            for queue, answer in zip(questions, answers, strict=True):
                if isinstance(answer, RocketMQError):
                    errors[queue] = answer
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    found[queue] = answer
        return errors


async def _all_of(questions: Iterable[Awaitable[T]]) -> list[T | BaseException]:
    return await asyncio.gather(*questions, return_exceptions=True)


def _existing(topic: str, route: TopicRoute | None) -> TopicRoute:
    if route is None or route.borrowed:
        raise RouteNotFound(topic, "topic_missing", MISSING_HINT)
    return route


def _messages(records: bytes, queue: MessageQueue) -> list[MessageExt]:
    """Return the messages of records; their bodies are not checked.

    Raises:
        ProtocolError: one cannot be read.
    """
    try:
        return decode_messages(records, check_crc=False)
    except RemoteProtocolError as error:
        raise ProtocolError(f"{queue}: a record cannot be read: {error}") from error
