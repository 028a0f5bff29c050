"""The blocking client of Spark's driver and tasks: routes, offsets, pulls.

A queue is asked at its master; while that cannot be reached, reading goes to a slave. Questions
that are safe to repeat are repeated, `retries` times after a short wait that doubles. Errors that
come out name the peer, and the cause as far as it is known.

One thread at a time; nothing is connected before the first call. Topics, queues and groups are the
application's; what goes over the wire has the namespace around it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, TypeVar

import msgspec

from skylarkmq.client.errors import ProtocolError, RocketMQError
from skylarkmq.client.namespace import Namespace
from skylarkmq.client.wire.route import TopicRoute
from skylarkmq.protocol.bodies.heartbeat import SubscriptionData
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.record import decode_messages
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.spark.clock import BlockingClock, SystemClock
from skylarkmq.spark.remoting import requests
from skylarkmq.spark.remoting.asking import Asker, Question, Reader
from skylarkmq.spark.remoting.connections import Connections, Pending
from skylarkmq.spark.remoting.pulled import Pulled
from skylarkmq.spark.remoting.routes import ROUTE_MAX_AGE_S, Routes
from skylarkmq.spark.settings import ConnectionSettings

__all__ = ["BlockingClient", "Pending", "Pulled"]

T = TypeVar("T")
Failed = dict[MessageQueue, RocketMQError] | None

DEFAULT_QUEUE_COUNT: Final = 4
PAGE_MESSAGES: Final = 32
PAGE_BYTES: Final = 256 * 1024


class BlockingClient:
    """Calls name servers and brokers, each over one connection; one thread at a time."""

    def __init__(self, settings: ConnectionSettings, clock: BlockingClock | None = None) -> None:
        """Connect to nobody yet."""
        self.settings = settings
        self.clock: BlockingClock = clock or SystemClock()
        self.namespace = Namespace(settings.namespace)
        self._connections = Connections(settings, self.clock)
        self._routes = Routes(settings, self._connections, self.clock)
        self._asker = Asker(settings, self._connections, self._routes, self.clock)

    # Routes

    def topics(self) -> list[str]:
        """Return the topics of the namespace but for the system's own, sorted.

        Topics of retries (%RETRY%group) and dead letters (%DLQ%group) are among them.

        Raises:
            RocketMQError: no name server answered.
        """
        held = filter(self.namespace.holds, self._routes.topics())
        return sorted({self.namespace.unwrap(topic) for topic in held})

    def clusters(self) -> dict[str, str]:
        """Return the cluster of each broker that there is, by its name; raises as `topics`."""
        return self._routes.clusters()

    def route(self, topic: str, *, max_age_s: float = 0.0) -> TopicRoute:
        """Return where a topic lives, from memory when that is younger than `max_age_s`.

        Its queues bear the topic as brokers know it.

        Raises:
            RouteNotFound: no broker has it.
            RocketMQError: no name server answered.
        """
        return self._routes.find(self.wire_name(topic), max_age_s)

    def read_queues(self, topic: str, *, max_age_s: float = 0.0) -> list[MessageQueue]:
        """Return the queues that can be read, by broker and id; raises as `route`."""
        queues = self.route(topic, max_age_s=max_age_s).subscribe_queues
        return [MessageQueue(topic, queue.broker_name, queue.queue_id) for queue in queues]

    def write_queues(
        self,
        topic: str,
        *,
        max_age_s: float = 0.0,
        default_queue_count: int = DEFAULT_QUEUE_COUNT,
    ) -> list[MessageQueue]:
        """Return the queues that can be written to, in the order of RocketMQ's producers.

        A topic that no broker has yet gets `default_queue_count` queues of each broker that
        creates topics on demand.

        Raises:
            RouteNotFound: nobody takes messages of this topic.
            RocketMQError: no name server answered.
        """
        name = self.wire_name(topic)
        queues = self._routes.for_publish(name, default_queue_count, max_age_s).publish_queues
        return [MessageQueue(topic, queue.broker_name, queue.queue_id) for queue in queues]

    def members_of(
        self, queue: MessageQueue, *, max_age_s: float = ROUTE_MAX_AGE_S
    ) -> dict[int, str]:
        """Return the addresses of a queue's broker by broker id; 0 is the master.

        Raises:
            RouteNotFound: no broker has the topic.
            ConnectionFailed: this broker is not registered (any more).
            RocketMQError: no name server answered, and nothing is remembered.
        """
        return self._asker.members(self.namespace.wrap_queue(queue), max_age_s)

    def master_of(self, queue: MessageQueue, *, max_age_s: float = ROUTE_MAX_AGE_S) -> str:
        """Return the address that messages of a queue are sent to.

        Raises:
            RouteNotFound: nobody takes messages of the topic.
            ConnectionFailed: this broker's master is not registered (any more).
            RocketMQError: no name server answered, and nothing is remembered.
        """
        return self._asker.master(self.namespace.wrap_queue(queue), max_age_s)

    def forget_routes(self, queue: MessageQueue) -> None:
        """Let the next question for this topic ask the name servers again, a second later."""
        self._routes.age(self.wire_name(queue.topic))

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
            failed: takes the queues that nobody answered for; None: the first error is raised.
            master_only: no slave is asked while a master is away: it may lag behind, or have
                expired more.

        Raises:
            RocketMQError: no answer, or a refusal.
        """
        return self._ask(
            queues, requests.min_offset_of, requests.offset_in, failed, master_only=master_only
        )

    def max_offsets(
        self,
        queues: Iterable[MessageQueue],
        failed: Failed = None,
        *,
        master_only: bool = False,
    ) -> dict[MessageQueue, int]:
        """Return the end of each queue; as `min_offsets`."""
        return self._ask(
            queues, requests.max_offset_of, requests.offset_in, failed, master_only=master_only
        )

    def offset_at(
        self, queue: MessageQueue, timestamp_ms: int, *, group: str = requests.TOOLS_GROUP
    ) -> int:
        """Return the offset of the first message stored at that time or later, else the end.

        The broker's answer to 29 is the message nearest to the time, which may lie before it, or
        in the middle of those of one millisecond; store times are looked at to put that right.

        Raises:
            RocketMQError: no answer, or a refusal.
        """
        begin, end = self.min_offset(queue), self.max_offset(queue)
        if begin >= end:
            return end
        earlier_ms = max(0, timestamp_ms - 1)

        def question(wire: MessageQueue) -> RemotingCommand:
            return requests.nearest_offset_of(wire, earlier_ms)

        place = max(begin, self._ask((queue,), question, requests.offset_in, None)[queue])
        while place < end:
            page = self.pull(queue, place, PAGE_MESSAGES, PAGE_BYTES, group=group)
            for stored_ms, queue_offset in _store_times(page.records, queue):
                if stored_ms >= timestamp_ms:
                    return queue_offset
            if page.next_offset <= place:
                return place
            place = page.next_offset
        return end

    def committed_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the NEXT offset that the group reads; None when it has none.

        Brokers answer 0, not none, for a group that never committed while the queue's messages
        are still in their memory from the first one on.
        Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/
        ConsumerManageProcessor.java (queryConsumerOffset)
        """
        return self.committed_offsets(group, (queue,))[queue]

    def committed_offsets(
        self, group: str, queues: Iterable[MessageQueue], failed: Failed = None
    ) -> dict[MessageQueue, int | None]:
        """Return that of each queue, all asked at once; as `min_offsets`."""
        name = self.wire_name(group)
        return self._ask(
            queues,
            lambda queue: requests.committed_offset_of(name, queue),
            requests.committed_in,
            failed,
        )

    def commit_offset(self, group: str, queue: MessageQueue, next_offset: int) -> None:
        """Say that the group has done everything below the queue offset, to the queue's master.

        Raises:
            RocketMQError: no answer, or a refusal.
        """
        self.commit_offsets(group, {queue: next_offset})

    def commit_offsets(
        self, group: str, offsets: dict[MessageQueue, int], failed: Failed = None
    ) -> None:
        """Do that for several queues at once; as `min_offsets`."""
        name = self.wire_name(group)
        wire_offsets = {self.namespace.wrap_queue(queue): at for queue, at in offsets.items()}

        self._ask(
            offsets,
            lambda queue: requests.commit_of(name, queue, wire_offsets[queue]),
            requests.check,
            failed,
            master_only=True,
        )

    # Messages

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_count: int,
        max_bytes: int,
        *,
        group: str = requests.TOOLS_GROUP,
        subscription: SubscriptionData | None = None,
    ) -> Pulled:
        """Return what the broker has from that queue offset on; never waits for new messages.

        Args:
            max_bytes: above 256 KiB it lifts the caps of our broker and of RocketMQ's 5.x.
            group: the default needs no group of its own.

        Raises:
            RocketMQError: no answer, or a refusal.
        """
        name = group if group == requests.TOOLS_GROUP else self.wire_name(group)
        wire = self.namespace.wrap_queue(queue)
        pulls = requests.PullRequests(name, wire, max_bytes, subscription)
        answers = self._ask(
            (queue,), lambda _: pulls.at(offset, max_count), requests.pulled_in, None
        )
        return answers[queue]

    def check_filter(
        self, queue: MessageQueue, subscription: SubscriptionData, *, group: str
    ) -> None:
        """Ask a queue's broker whether it filters by the expression of a subscription.

        Raises:
            RocketMQError: no answer, or a refusal; `filter_error` says what it means.
        """
        name = self.wire_name(group)
        data = msgspec.structs.replace(subscription, topic=self.wire_name(subscription.topic))
        self._ask((queue,), lambda _: requests.filter_of(name, data), requests.check, None)

    # Requests

    def begin(self, address: str, command: RemotingCommand, *, hold: bool = False) -> Pending:
        """Send a request, connecting if need be; several may be under way.

        With `hold` it leaves with the next one to that peer, or with `send_held`, in one write.

        Raises:
            ConnectionFailed, RequestTimeout: not sent.
        """
        return self._connections.begin(address, command, self.deadline_s(), hold=hold)

    def send_held(self, address: str) -> None:
        """Send what was held back for that peer; raises as `begin`."""
        self._connections.send_held(address, self.deadline_s())

    def wait(self, pending: Pending, deadline_s: float) -> RemotingCommand:
        """Return the answer, whatever its code.

        Args:
            deadline_s: on the clock's monotonic time.

        Raises:
            ConnectionFailed, RequestTimeout, ProtocolError: there is none.
        """
        return self._connections.wait(pending, deadline_s)

    def has_answer(self, pending: Pending) -> bool:
        """Return whether the answer has been read already; no I/O."""
        return pending.connection.has_answer(pending.opaque)

    def forget(self, pending: Pending) -> None:
        """Wait no more for that answer."""
        pending.connection.forget(pending.opaque)

    def call(self, address: str, command: RemotingCommand) -> RemotingCommand:
        """Send a request and return its answer within `request_timeout_s`; raises as both."""
        return self._connections.call(address, command, self.deadline_s())

    def deadline_s(self) -> float:
        """Return when a request that begins now is given up."""
        return self.clock.monotonic() + self.settings.request_timeout_s

    def wire_name(self, name: str) -> str:
        """Return a topic or group as brokers know it."""
        return self.namespace.wrap(name)

    def close(self) -> None:
        """Close all connections; later calls connect anew."""
        self._connections.close()

    def drop_idle(self, keep: Collection[str] = ()) -> None:
        """Close the connections that were not used for a while."""
        self._connections.drop_idle(keep)

    def _ask(
        self,
        queues: Iterable[MessageQueue],
        question: Question,
        read: Reader[T],
        failed: Failed,
        *,
        master_only: bool = False,
    ) -> dict[MessageQueue, T]:
        """Ask for queues of the application, with the names that brokers know."""
        ask, wrap = self._asker.ask, self.namespace.wrap_queue
        if not self.namespace:
            return ask(queues, question, read, failed, master_only=master_only)
        names = {wrap(MessageQueue(*queue)): queue for queue in queues}
        wire_failed: Failed = None if failed is None else {}
        answers = ask(names, question, read, wire_failed, master_only=master_only)
        if failed is not None:
            failed.update({names[queue]: error for queue, error in (wire_failed or {}).items()})
        return {names[queue]: answer for queue, answer in answers.items()}


def _store_times(records: bytes, queue: MessageQueue) -> list[tuple[int, int]]:
    """Return (store time in ms, queue offset) of each record.

    Raises:
        ProtocolError: one cannot be read.
    """
    try:
        messages = decode_messages(records, check_crc=False)
    except RemoteProtocolError as error:
        raise ProtocolError(f"{queue}: a record cannot be read: {error}") from error
    return [(message.store_timestamp, message.queue_offset) for message in messages]
