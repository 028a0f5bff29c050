"""The store's cold reads for processors: pulls in line for each connection, answers to await.

The reads worker has two threads and one queue of jobs. A peer has at most one of its pulls in it,
so one that asks for a whole old topic at once delays itself and not the others. How many wait in
all lines together is bounded.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/PullMessageProcessor.java
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from skylarkmq.broker.metrics.stats import BrokerStats
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.fast_failure import OVERLOAD
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.store.message_store import MessageStore

Finished = Callable[[], None]
Start = Callable[[Finished], None]


class ColdLine:
    """Runs what waits for the disk, for each connection one thing at a time. Loop thread.

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
        """Whether no more may wait."""
        return self.count >= self._limit

    def refusal(self, request: RemotingCommand) -> RemotingCommand:
        """The answer to a pull for which there is no room; counted."""
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


async def offset_by_time(store: MessageStore, topic: str, queue_id: int, timestamp_ms: int) -> int:
    """Queue offset of the message stored nearest to a time, searched off the loop.

    Raises:
        OSError: the disk failed.
    """
    found: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    store.offset_by_time_cold(topic, queue_id, timestamp_ms, _setter(found))
    return await found


async def message_time(store: MessageStore, topic: str, queue_id: int, offset: int) -> int:
    """Store time of one message in ms, -1 when it is not there; read off the loop.

    Raises:
        OSError: the disk failed.
    """
    found: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    store.message_time_cold(topic, queue_id, offset, _setter(found))
    return await found


def _setter(future: asyncio.Future[int]) -> Callable[[int, BaseException | None], None]:
    def done(result: int, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    return done
