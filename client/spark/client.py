"""The blocking client of Spark's driver and tasks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from skylarkmq.client.api_pull import PullStatus
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.namespace import Namespace
from skylarkmq.client.route import TopicRoute
from skylarkmq.client.spark.clock import BlockingClock, SystemClock
from skylarkmq.client.spark.settings import ConnectionSettings
from skylarkmq.protocol.bodies.heartbeat import SubscriptionData
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.remoting_command import RemotingCommand


@dataclass(frozen=True, slots=True)
class Pulled:
    """One answer to a pull. All offsets are queue offsets."""

    status: PullStatus
    records: bytes
    """As stored, back to back; empty unless FOUND."""
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int


@dataclass(frozen=True, slots=True)
class Pending:
    """A request under way; good for one `wait`."""

    address: str
    opaque: int


class BlockingClient:
    """Calls name servers and brokers, each on one connection; one thread at a time.

    Topics and groups are the application's names: the namespace is put around them here and taken
    off here, `wire_name` apart.
    """

    def __init__(self, settings: ConnectionSettings, clock: BlockingClock | None = None) -> None:
        """Connect to nobody yet."""
        self.settings = settings
        self.clock: BlockingClock = clock or SystemClock()
        self.namespace = Namespace(settings.namespace)

    # Routes

    def topics(self) -> list[str]:
        """Return all topics of the namespace, without those of the system, retries included."""
        raise NotImplementedError

    def route(self, topic: str, *, max_age_s: float = 0.0) -> TopicRoute:
        """Return where a topic lives, from memory when that is younger than `max_age_s`.

        Raises:
            RouteNotFound: no broker has it.
            RocketMQError: no name server answered.
        """
        raise NotImplementedError

    def read_queues(self, topic: str, *, max_age_s: float = 0.0) -> list[MessageQueue]:
        """Return the queues that can be read, in order."""
        raise NotImplementedError

    def write_queues(self, topic: str, *, max_age_s: float = 0.0) -> list[MessageQueue]:
        """Return the queues that can be written to, in the order of RocketMQ's producers.

        A topic that no broker has yet gets those of TBW102, where brokers create topics.
        """
        raise NotImplementedError

    # Offsets

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the first queue offset that can still be read."""
        raise NotImplementedError

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the queue offset that the next message will get."""
        raise NotImplementedError

    def min_offsets(
        self,
        queues: Iterable[MessageQueue],
        failed: dict[MessageQueue, RocketMQError] | None = None,
    ) -> dict[MessageQueue, int]:
        """Return the first offset of each queue; all are asked at once, each broker its own.

        Args:
            failed: takes the queues whose broker did not answer; None: the first error is raised.
        """
        raise NotImplementedError

    def max_offsets(
        self,
        queues: Iterable[MessageQueue],
        failed: dict[MessageQueue, RocketMQError] | None = None,
    ) -> dict[MessageQueue, int]:
        """Return the end of each queue; as `min_offsets`."""
        raise NotImplementedError

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at that time or later, else the end."""
        raise NotImplementedError

    def committed_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the next offset that the group reads; None when it has none."""
        raise NotImplementedError

    def committed_offsets(
        self,
        group: str,
        queues: Iterable[MessageQueue],
        failed: dict[MessageQueue, RocketMQError] | None = None,
    ) -> dict[MessageQueue, int | None]:
        """Return that of each queue, all asked at once; as `min_offsets`."""
        raise NotImplementedError

    def commit_offset(self, group: str, queue: MessageQueue, next_offset: int) -> None:
        """Say that the group has done everything below the queue offset."""
        raise NotImplementedError

    # Messages

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_count: int,
        max_bytes: int,
        *,
        group: str,
        subscription: SubscriptionData | None = None,
        broker_id: int = 0,
    ) -> Pulled:
        """Return what the broker has from that offset on; never waits for new messages."""
        raise NotImplementedError

    # Requests

    def begin(self, address: str, command: RemotingCommand) -> Pending:
        """Send a request, connecting if need be; several may be under way."""
        raise NotImplementedError

    def wait(self, pending: Pending, deadline_s: float) -> RemotingCommand:
        """Return the answer, whatever its code.

        Args:
            deadline_s: on the clock's monotonic time.

        Raises:
            ConnectionFailed, RequestTimeout, ProtocolError: there is none.
        """
        raise NotImplementedError

    def call(self, address: str, command: RemotingCommand) -> RemotingCommand:
        """Send a request and return its answer within `request_timeout_s`."""
        raise NotImplementedError

    def wire_name(self, name: str) -> str:
        """Return a topic or group as brokers know it."""
        return self.namespace.wrap(name)

    def close(self) -> None:
        """Close all connections; later calls connect anew."""

    def drop_idle(self, keep: Collection[str] = ()) -> None:
        """Close the connections that were not used for a while."""
