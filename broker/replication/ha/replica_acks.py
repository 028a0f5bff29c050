"""SYNC_MASTER: sends wait until a slave has their messages.

    stored here and there          PUT_OK
    no slave, or too far behind    SLAVE_NOT_AVAILABLE, at once; haSlaveFallbehindMax says how far
    not there after slaveTimeout   FLUSH_SLAVE_TIMEOUT

The message is stored in all cases, and consumers may have it before a slave does, as in RocketMQ.
One slave is enough. The time runs from the append, beside that of the sync; where both fail, the
answer tells of the slave. A slave that comes back in time still confirms what waits.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../CommitLog.java (submitReplicaRequest),
store/.../ha/HAService.java (isSlaveOK, GroupTransferService)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from skylarkmq.broker.replication.ha.ha_server import HaServer
from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.results import STORED, Committed, PutMessageStatus


class _Waiting:
    """A commit that is answered when this broker and a slave have said what came of it."""

    __slots__ = ("_done", "_here", "_there", "deadline", "end_offset")

    def __init__(self, end_offset: int, done: Committed, deadline: float) -> None:
        self.end_offset = end_offset
        self.deadline = deadline
        self._done: Committed | None = done
        self._here: PutMessageStatus | None = None
        self._there: PutMessageStatus | None = None

    def here(self, status: PutMessageStatus) -> None:
        """Note what came of it on this broker."""
        self._here = status
        if self._there is None and (status is PutMessageStatus.PUT_OK or status in STORED):
            return
        self._tell()

    def there(self, status: PutMessageStatus) -> None:
        """Note what came of it on the slaves."""
        self._there = status
        if self._here is not None:
            self._tell()

    def _tell(self) -> None:
        done, self._done = self._done, None
        if done is not None and self._here is not None:
            done(_outcome(self._here, self._there))


def _outcome(here: PutMessageStatus, there: PutMessageStatus | None) -> PutMessageStatus:
    if there is None or there is PutMessageStatus.PUT_OK or here not in STORED:
        return here
    return there


class ReplicaAcks:
    """Holds the commits of a SYNC_MASTER until a slave has them. Loop thread."""

    def __init__(
        self,
        clock: Clock,
        timeout_s: float,
        behind_max: int,
        acknowledged: Callable[[], int],
    ) -> None:
        """Make it.

        Args:
            behind_max: bytes; no slave is waited for that lacks so many.
            acknowledged: the place up to which some connected slave has the log, below 0 without a
                slave.
        """
        self._clock = clock
        self._timeout_s = timeout_s
        self._behind_max = behind_max
        self._acknowledged = acknowledged
        self._waiting: deque[_Waiting] = deque()  # by end offset, and so by deadline
        self._timer: TimerHandle | None = None  # stays when nothing waits: a new one costs more

    @property
    def waiting(self) -> int:
        """Commits that no slave has confirmed."""
        return len(self._waiting)

    def hold(self, end_offset: int, done: Committed) -> Committed:
        """Return what is to be told instead of `done`, which then waits for a slave, too.

        Args:
            end_offset: the log's end after the commit, which was just appended.
        """
        acknowledged = self._acknowledged()
        if acknowledged < 0 or end_offset - acknowledged >= self._behind_max:
            return lambda here: done(_outcome(here, PutMessageStatus.SLAVE_NOT_AVAILABLE))
        return self._add(end_offset, done).here

    def settle(self, done: Committed) -> Committed:
        """Return what is to be told instead of `done`, which then comes after all that wait."""
        return self._add(self._waiting[-1].end_offset, done).here if self._waiting else done

    def _add(self, end_offset: int, done: Committed) -> _Waiting:
        waiting = _Waiting(end_offset, done, self._clock.monotonic() + self._timeout_s)
        self._waiting.append(waiting)
        if self._timer is None:
            self._timer = self._clock.call_at(waiting.deadline, self._expire)
        return waiting

    def acknowledged(self, offset: int) -> None:
        """Answer what a slave has: its log ends at `offset`."""
        while self._waiting and self._waiting[0].end_offset <= offset:
            self._waiting.popleft().there(PutMessageStatus.PUT_OK)

    def _expire(self) -> None:
        now_s = self._clock.monotonic()
        while self._waiting and self._waiting[0].deadline <= now_s:
            self._waiting.popleft().there(PutMessageStatus.FLUSH_SLAVE_TIMEOUT)
        self._timer = None
        if self._waiting:
            self._timer = self._clock.call_at(self._waiting[0].deadline, self._expire)


def wait_for_slaves(store: MessageStore, server: HaServer, clock: Clock) -> ReplicaAcks:
    """Let the sends to a store wait for the slaves of its server; before both start."""
    settings = store.config
    acks = ReplicaAcks(
        clock,
        settings.slave_timeout / 1000,
        settings.ha_slave_fallbehind_max,
        lambda: server.acknowledged,
    )
    server.on_acknowledged = acks.acknowledged
    store.writer.replicas = acks
    return acks
