"""Group commit: many waiting sends, one sync.

A commit parks its units and its waiter under the end offset that must be synced. When the sync
has passed it, the units are published and the waiter is called in the same loop turn, in the order
of the log: acknowledged means readable, and nothing is shown that a power cut could take back.

    parked -> durable     published, PUT_OK
    parked -> late        after syncFlushTimeout the waiter gets FLUSH_DISK_TIMEOUT; the units are
                          published when the sync passes them after all
    parked -> failed      the sync failed: SERVICE_NOT_AVAILABLE, never published

Under ASYNC_FLUSH what a commit has to bring to the file is parked in the same way until that is
done: batches that left the loop because the disk is slow, with their waiters, and on the pool road
the units of every batch, whose waiters were answered at once.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../CommitLog.java (GroupCommitService)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.store.log.append import Unit
from skylarkmq.store.results import PutMessageStatus
from skylarkmq.store.stats import StoreStats

Committed = Callable[[PutMessageStatus], None]
# (units, end offset of their commit) -> False when the store has failed over it
Publish = Callable[[list[Unit], int], bool]
Arrived = Callable[[list[list[Unit]]], None]  # (the units of some commits)


class _Parked:
    """One commit that waits for the sync."""

    __slots__ = ("deadline", "done", "end_offset", "since", "units")

    def __init__(
        self, end_offset: int, units: list[Unit], done: Committed | None, since: float, limit: float
    ) -> None:
        self.end_offset = end_offset
        self.units = units
        self.done = done  # None: no one waits, or the waiter was told that it is late
        self.since = since
        self.deadline = since + limit


class GroupCommitService:
    """Holds commits until they are durable. Loop thread."""

    def __init__(
        self,
        clock: Clock,
        timeout_s: float,
        stats: StoreStats,
        publish: Publish,
        arrived: Arrived,
    ) -> None:
        """Take what publishes the units of a commit, and what tells of them afterwards.

        Args:
            publish: parks and releases nothing, unlike `arrived`.
        """
        self._clock = clock
        self._timeout_s = timeout_s
        self._stats = stats
        self._publish = publish
        self._arrived = arrived
        self._parked: deque[_Parked] = deque()
        self._late: deque[_Parked] = deque()  # the waiting ones, by deadline
        self._timer: TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Commits that are not durable yet."""
        return len(self._parked)

    def park(self, end_offset: int, units: list[Unit], done: Committed | None) -> None:
        """Hold a commit until the log is synced up to `end_offset`."""
        parked = _Parked(end_offset, units, done, self._clock.monotonic(), self._timeout_s)
        self._parked.append(parked)
        if done is not None:
            self._late.append(parked)
            if self._timer is None:
                self._timer = self._clock.call_at(parked.deadline, self._expire)

    def release(self, offset: int) -> list[_Parked]:
        """Publish what lies below `offset`."""
        released: list[_Parked] = []
        while self._parked and self._parked[0].end_offset <= offset:
            parked = self._parked[0]
            if not self._publish(parked.units, parked.end_offset):
                break  # `failed` has refused it, with all that waits
            released.append(self._parked.popleft())
        self._arrived([parked.units for parked in released])
        return released

    def committed(self, offset: int) -> None:
        """Publish and answer what lies below `offset`: it is in the file, and no sync is needed."""
        for parked in self.release(offset):
            done, parked.done = parked.done, None
            if done is not None:
                done(PutMessageStatus.PUT_OK)
        self._forget_answered()

    def flushed(self, offset: int) -> None:
        """Publish and answer what lies below `offset`: the log is synced up to it."""
        now = self._clock.monotonic()
        released = self.release(offset)
        size = 0
        for parked in released:
            if parked.done is not None:
                size += len(parked.units)
                self._stats.ack_wait.observe_many(now - parked.since, len(parked.units))
                done, parked.done = parked.done, None
                done(PutMessageStatus.PUT_OK)
        self._stats.group_commit_size.observe(size)
        self._forget_answered()

    def _forget_answered(self) -> None:
        while self._late and self._late[0].done is None:
            self._late.popleft()

    def failed(self) -> None:
        """Refuse everything that waits: the log cannot be synced anymore."""
        parked = [entry for entry in self._parked if entry.done is not None]
        self._parked.clear()
        for entry in parked:
            done, entry.done = entry.done, None
            if done is not None:
                done(PutMessageStatus.SERVICE_NOT_AVAILABLE)

    def _expire(self) -> None:
        now = self._clock.monotonic()
        while self._late and (self._late[0].done is None or self._late[0].deadline <= now):
            parked = self._late.popleft()
            done, parked.done = parked.done, None
            if done is not None:
                done(PutMessageStatus.FLUSH_DISK_TIMEOUT)
        self._timer = None
        if self._late:
            self._timer = self._clock.call_at(self._late[0].deadline, self._expire)
