"""One question for each of many queues, all under way at once, each at its queue's broker.

    round 0      every queue is asked at its master; one connection a broker, nobody waits for
                 another's answer
    round n      those without an answer again, after a short wait: at the next member of the
                 broker's set, with a route that is fresh

A broker that does not answer costs one time-out a round, however many queues it has. What was
refused for a reason that stays is not asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from skylarkmq.client.errors import (
    ConnectionFailed,
    RequestTimeout,
    RocketMQError,
    RouteNotFound,
    ServiceNotAvailable,
    SystemBusy,
    TlsError,
)
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.spark.clock import BlockingClock
from skylarkmq.spark.remoting.connections import Connections, Pending
from skylarkmq.spark.remoting.routes import (
    MASTER_ID,
    ROUTE_MAX_AGE_S,
    ROUTE_RETRY_AGE_S,
    Routes,
)
from skylarkmq.spark.settings import ConnectionSettings

T = TypeVar("T")
Question = Callable[[MessageQueue], RemotingCommand]
Reader = Callable[[RemotingCommand, str], T]

QUEUE_COUNT: Final = 4
"""Queues that a borrowed route is taken to have; only its brokers count here."""
TIMEOUTS_MAX: Final = 2
"""Time-outs that one call lasts, however many further tries are allowed."""
ABSENT_HINT: Final = (
    "Is it down, or does it register with other name servers? It is asked again as long as the "
    "reader's retries allow"
)


def may_repeat(error: RocketMQError) -> bool:
    """Return whether a question that changes nothing may be asked again after this error."""
    if isinstance(error, TlsError):
        return False
    return isinstance(error, ConnectionFailed | RequestTimeout | SystemBusy | ServiceNotAvailable)


class Asker:
    """Asks for one client; `queue` is named as the brokers know it. One thread at a time."""

    def __init__(
        self,
        settings: ConnectionSettings,
        connections: Connections,
        routes: Routes,
        clock: BlockingClock,
    ) -> None:
        self._settings = settings
        self._connections = connections
        self._routes = routes
        self._clock = clock

    def members(self, queue: MessageQueue, max_age_s: float = ROUTE_MAX_AGE_S) -> dict[int, str]:
        """Return the addresses of a queue's broker by broker id; 0 is the master.

        Raises:
            RouteNotFound: no broker has the topic.
            ConnectionFailed: its broker is not registered.
            RocketMQError: no name server answered, and nothing is remembered.
        """
        route = self._routes.lasting(queue.topic, max_age_s)
        members = route.brokers.get(queue.broker_name)
        if not members and max_age_s > ROUTE_RETRY_AGE_S:
            route = self._routes.lasting(queue.topic, ROUTE_RETRY_AGE_S)
            members = route.brokers.get(queue.broker_name)
        if not members:
            raise ConnectionFailed(
                queue.broker_name,
                f"this broker of topic {queue.topic} is not registered",
                hint=ABSENT_HINT,
            )
        return members

    def master(self, queue: MessageQueue, max_age_s: float = ROUTE_MAX_AGE_S) -> str:
        """Return where a queue is written; a topic of nobody borrows the brokers of TBW102.

        Raises:
            RouteNotFound: nobody takes messages of the topic.
            ConnectionFailed: the broker's master is not registered.
            RocketMQError: no name server answered, and nothing is remembered.
        """
        try:
            members = self.members(queue, max_age_s)
        except RouteNotFound:
            route = self._routes.for_publish(queue.topic, QUEUE_COUNT)
            members = route.brokers.get(queue.broker_name, {})
        if MASTER_ID not in members:
            raise ConnectionFailed(
                queue.broker_name, f"its master is away, topic {queue.topic}", hint=ABSENT_HINT
            )
        return members[MASTER_ID]

    def ask(
        self,
        queues: Iterable[MessageQueue],
        question: Question,
        read: Reader[T],
        failed: dict[MessageQueue, RocketMQError] | None,
        *,
        master_only: bool = False,
    ) -> dict[MessageQueue, T]:
        """Return what `read` makes of each queue's answer.

        Args:
            failed: takes the queues without an answer; None: the first error is raised.

        Raises:
            RocketMQError: no answer, or a refusal.
        """
        settings, clock = self._settings, self._clock
        found: dict[MessageQueue, T] = {}
        left = list(dict.fromkeys(queues))
        begun_s = clock.monotonic()
        for round_index in range(settings.retries + 1):
            errors: dict[MessageQueue, RocketMQError] = {}
            self._round(left, question, read, found, errors, round_index, master_only)
            left = [queue for queue, error in errors.items() if may_repeat(error)]
            spent_s = clock.monotonic() - begun_s
            last = spent_s >= TIMEOUTS_MAX * settings.request_timeout_s
            if round_index == settings.retries or last:
                left = []
            for queue, error in errors.items():
                if queue not in left:
                    if failed is None:
                        raise error
                    failed[queue] = error
            if not left:
                break
            clock.sleep(settings.retry_interval_s * 2**round_index)
        return found

    def _round(
        self,
        queues: list[MessageQueue],
        question: Question,
        read: Reader[T],
        found: dict[MessageQueue, T],
        errors: dict[MessageQueue, RocketMQError],
        round_index: int,
        master_only: bool,
    ) -> None:
        """Ask each queue once."""
        deadline_s = self._clock.monotonic() + self._settings.request_timeout_s
        under_way: list[tuple[MessageQueue, Pending]] = []
        lost: dict[str, RocketMQError] = {}
        for queue in queues:
            try:
                address = self._choose(queue, round_index, master_only)
                if address in lost:
                    raise lost[address]
                try:
                    pending = self._connections.begin(address, question(queue), deadline_s)
                except RocketMQError as error:
                    lost[address] = error
                    raise
            except RocketMQError as error:
                errors[queue] = error
            else:
                under_way.append((queue, pending))
        for queue, pending in under_way:
            address = pending.address
            try:
                found[queue] = read(self._connections.wait(pending, deadline_s), address)
            except RocketMQError as error:
                errors[queue] = error

    def _choose(self, queue: MessageQueue, round_index: int, master_only: bool) -> str:
        """Return whom to ask in this round: the master first, then one slave after the other."""
        max_age_s = ROUTE_RETRY_AGE_S if round_index else ROUTE_MAX_AGE_S
        if master_only:
            return self.master(queue, max_age_s)
        members = self.members(queue, max_age_s)
        return members[sorted(members)[round_index % len(members)]]
