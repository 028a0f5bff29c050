"""Group commit: many waiting sends, one sync; and the gate of a replica.

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

Behind a gate (a replica under a controller) what is durable here waits on, until it is confirmed,
too: all replicas in sync have it. Log order and the rule of one loop turn stay.

    parked -> stored      durable here by the flush mode: who asked for that alone is told
    stored -> confirmed   published, PUT_OK
    stored -> late        slaveTimeout after the append the waiter gets UNCONFIRMED; the units are
                          published when they are confirmed after all
    given up              every waiter gets UNCONFIRMED: whether it survives is not known

There a sync that is late is no more than that, either: its waiter gets UNCONFIRMED, too.

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
    """One commit that waits for the sync, or behind a gate."""

    __slots__ = ("done", "end_offset", "since", "stored", "units")

    def __init__(
        self,
        end_offset: int,
        units: list[Unit],
        done: Committed | None,
        stored: Committed | None,
        since: float,
    ) -> None:
        self.end_offset = end_offset
        self.units = units
        # None: no one waits, or the waiter was told.
        self.done = done
        self.stored = stored
        self.since = since

    @property
    def is_waited_for(self) -> bool:
        """True while somebody is to be told of it."""
        return self.done is not None or self.stored is not None

    def tell(self, status: PutMessageStatus) -> None:
        """Tell all who wait."""
        self.tell_stored(status)
        done, self.done = self.done, None
        if done is not None:
            done(status)

    def tell_stored(self, status: PutMessageStatus) -> None:
        """Tell who waits for this broker alone."""
        stored, self.stored = self.stored, None
        if stored is not None:
            stored(status)


class _Deadlines:
    """Commits that are waited for, the oldest first; who waits too long is told that it is late."""

    def __init__(self, clock: Clock, timeout_s: float, status: PutMessageStatus) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._status = status
        self._entries: deque[_Parked] = deque()
        self._timer: TimerHandle | None = None

    def __bool__(self) -> bool:
        """True while somebody waits, after `forget_answered`."""
        return bool(self._entries)

    def add(self, parked: _Parked) -> None:
        """Let the time of a commit run, from when it was parked."""
        self._entries.append(parked)
        if self._timer is None:
            self._timer = self._clock.call_at(parked.since + self._timeout_s, self._expire)

    def has(self, end_offset: int) -> bool:
        """Return whether `take` has something to return."""
        return bool(self._entries) and self._entries[0].end_offset <= end_offset

    def take(self, end_offset: int) -> list[_Parked]:
        """Return those up to an offset of the log, no longer late whatever comes."""
        taken: list[_Parked] = []
        entries = self._entries
        while entries and entries[0].end_offset <= end_offset:
            taken.append(entries.popleft())
        return taken

    def forget_answered(self) -> None:
        """Forget the oldest ones, as far as nobody waits for them."""
        entries = self._entries
        while entries and entries[0].done is None and entries[0].stored is None:
            entries.popleft()

    def _expire(self) -> None:
        now, entries = self._clock.monotonic(), self._entries
        while entries and (
            not entries[0].is_waited_for or entries[0].since + self._timeout_s <= now
        ):
            entries.popleft().tell(self._status)
        self._timer = None
        if entries:
            self._timer = self._clock.call_at(entries[0].since + self._timeout_s, self._expire)


class GroupCommitService:
    """Holds commits until they are durable, and behind a gate confirmed. Loop thread."""

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
        # Those that are waited for: not durable yet, and behind a gate durable but not confirmed.
        self._late = _Deadlines(clock, timeout_s, PutMessageStatus.FLUSH_DISK_TIMEOUT)
        self._unconfirmed: _Deadlines | None = None
        self._stored_offset = 0  # end of what is durable here
        self._limit = 0  # behind a gate: end of what is confirmed
        self._releasing = False

    @property
    def waiting(self) -> int:
        """Commits that are not published yet."""
        return len(self._parked)

    @property
    def is_awaited(self) -> bool:
        """True while somebody waits for an answer."""
        return bool(self._late) or bool(self._unconfirmed)

    @property
    def oldest_ms(self) -> int | None:
        """Store time of the first record that is not published; None without one."""
        for parked in self._parked:
            if parked.units:
                return parked.units[0][6]
        return None

    def park(
        self,
        end_offset: int,
        units: list[Unit],
        done: Committed | None,
        stored: Committed | None = None,
    ) -> None:
        """Hold a commit until the log is synced, and behind a gate confirmed, up to `end_offset`.

        Args:
            stored: told of the sync alone.
        """
        parked = _Parked(end_offset, units, done, stored, self._clock.monotonic())
        self._parked.append(parked)
        if done is not None or stored is not None:
            self._late.add(parked)

    def committed(self, offset: int) -> None:
        """Publish and answer what lies below `offset`: it is in the file, and no sync is needed."""
        self._stored_offset = offset
        self._go_on(observes=self._unconfirmed is not None)

    def flushed(self, offset: int) -> None:
        """Publish and answer what lies below `offset`: the log is synced up to it."""
        self._stored_offset = offset
        self._stats.group_commit_size.observe(self._go_on(observes=True))

    def failed(self) -> None:
        """Refuse everything that waits: the log cannot be synced anymore."""
        parked = [entry for entry in self._parked if entry.is_waited_for]
        self._parked.clear()
        for entry in parked:
            entry.tell(PutMessageStatus.SERVICE_NOT_AVAILABLE)

    # Behind a gate

    def gate(self, limit: int, timeout_s: float) -> None:
        """From now on release nothing above `limit`, which `confirm` raises; before the first one.

        Args:
            timeout_s: how long after its commit a waiter waits for the confirmation.
        """
        self._limit = limit
        self._unconfirmed = _Deadlines(self._clock, timeout_s, PutMessageStatus.UNCONFIRMED)
        self._late = _Deadlines(self._clock, self._timeout_s, PutMessageStatus.UNCONFIRMED)

    def begin_at(self, offset: int) -> None:
        """Note where the log ends at the start; all of it counts as confirmed."""
        self._stored_offset = offset
        if self._unconfirmed is not None:
            self._limit = offset

    def confirm(self, offset: int) -> None:
        """Publish and answer what is durable, and confirmed up to `offset`."""
        if self._unconfirmed is not None and offset > self._limit:
            self._limit = offset
            self._go_on(observes=True)

    def give_up(self) -> None:
        """Tell all who wait for a confirmation that none may come; units stay parked."""
        for parked in list(self._parked):
            done, parked.done = parked.done, None
            if done is not None:
                done(PutMessageStatus.UNCONFIRMED)
        self._forget_answered()

    def publish_rest(self) -> None:
        """Publish what is parked and tell nobody: the store ends, and all of it is durable."""
        while self._parked and self._publish(self._parked[0].units, self._parked[0].end_offset):
            self._parked.popleft()

    # Releasing

    def _go_on(self, *, observes: bool) -> int:
        """Publish and answer what may be; return how many messages with a waiter are durable now.

        Behind a gate a confirmation, or a commit, may come from those who are told here. It goes
        on where this is, so that all are told in the order of the log.
        """
        if self._unconfirmed is None:
            return self._step(observes)
        if self._releasing:
            return 0
        self._releasing = True
        try:
            size = self._step(observes)
            while self._has_more:
                size += self._step(observes)
        finally:
            self._releasing = False
        return size

    @property
    def _released_end(self) -> int:
        return min(self._stored_offset, self._limit)

    @property
    def _has_more(self) -> bool:
        shows = bool(self._parked) and self._parked[0].end_offset <= self._released_end
        return shows or self._late.has(self._stored_offset)

    def _step(self, observes: bool) -> int:
        limit = self._stored_offset if self._unconfirmed is None else self._released_end
        released = self._release(limit)
        now, size = self._clock.monotonic(), 0
        for parked in released:
            if parked.stored is not None:
                parked.tell_stored(PutMessageStatus.PUT_OK)
            done, parked.done = parked.done, None
            if done is not None:
                size += len(parked.units)
                if observes:
                    self._stats.ack_wait.observe_many(now - parked.since, len(parked.units))
                done(PutMessageStatus.PUT_OK)
        if self._unconfirmed is not None:
            size += self._pass_on(self._unconfirmed)
        self._late.forget_answered()
        return size

    def _pass_on(self, unconfirmed: _Deadlines) -> int:
        """Let what is durable wait for the confirmation alone; return how many messages it is."""
        size = 0
        for parked in self._late.take(self._stored_offset):
            parked.tell_stored(PutMessageStatus.PUT_OK)
            if parked.done is not None:
                size += len(parked.units)
                unconfirmed.add(parked)
        unconfirmed.forget_answered()
        return size

    def _release(self, offset: int) -> list[_Parked]:
        """Publish what lies below `offset`."""
        released: list[_Parked] = []
        while self._parked and self._parked[0].end_offset <= offset:
            parked = self._parked[0]
            if not self._publish(parked.units, parked.end_offset):
                self.failed()  # if the store had not failed already, this is done
                break
            released.append(self._parked.popleft())
        self._arrived([parked.units for parked in released])
        return released

    def _forget_answered(self) -> None:
        self._late.forget_answered()
        if self._unconfirmed is not None:
            self._unconfirmed.forget_answered()
