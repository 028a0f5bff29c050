"""Pulls that read from the disk: one at a time for each connection.

The reads worker has two threads and one queue of jobs. A peer has at most one of its pulls in it,
so a peer that asks for a whole old topic at once delays itself and not the others. The number of
pulls that wait, of all connections together, is bounded.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/PullMessageProcessor.java
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.fast_failure import OVERLOAD
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.command import RemotingCommand

Finished = Callable[[], None]
Start = Callable[[Finished], None]


class ColdPulls:
    """Begins cold pulls, for each connection one after the other. Loop thread.

    Attributes:
        count: what waits or is under way.
    """

    def __init__(self, limit: int, stats: BrokerStats) -> None:
        self._limit = limit
        self._stats = stats
        self.count = 0
        self._waiting: dict[Connection, deque[Start]] = {}

    @property
    def is_full(self) -> bool:
        """True while no more may wait."""
        return self.count >= self._limit

    def refusal(self, request: RemotingCommand) -> RemotingCommand:
        """Count a pull for which there is no room, and return its answer."""
        self._stats.rejected("pull", "queue_full")
        why = f"{OVERLOAD}, {self.count} pulls wait for the disk; pullThreadPoolQueueCapacity"
        return request.reply(ResponseCode.SYSTEM_BUSY, why)

    def run(self, connection: Connection, start: Start) -> None:
        """Call `start(finished)`, now or when the connection's earlier ones have finished.

        It counts as parked until then, so the connection is not read when too many wait. What
        still waits when the peer has left is forgotten.
        """
        connection.park(1)
        self.count += 1
        waiting = self._waiting.get(connection)
        if waiting is not None:
            waiting.append(start)
        else:
            self._waiting[connection] = deque()
            start(lambda: self._finished(connection))

    def _finished(self, connection: Connection) -> None:
        connection.park(-1)
        self.count -= 1
        waiting = self._waiting[connection]
        if connection.closed:
            connection.park(-len(waiting))
            self.count -= len(waiting)
            waiting.clear()
        if waiting:
            waiting.popleft()(lambda: self._finished(connection))
        else:
            del self._waiting[connection]
