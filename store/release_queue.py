"""The release queue: what was written waits here, in log order, until it may be shown and answered.

    point       the log is ... up to the end of the batch
    written     in its file, or with the pool in a locked buffer
    stored      as durable as the flush mode makes it: synced under SYNC_FLUSH, else in its file
    confirmed   behind a gate, with all replicas in sync

The units of a batch are shown when it is stored, and behind a gate confirmed, too. A waiter names
the point that it waits for, and is told once:

    PUT_OK                  in the loop turn in which the log has passed that point, after all that
                            may be shown is shown: acknowledged means readable, and nothing is shown
                            that a power cut could take back
    FLUSH_DISK_TIMEOUT      it is not stored after syncFlushTimeout; its units are shown later
    UNCONFIRMED             the same behind a gate; there also when it is not confirmed after
                            slaveTimeout, or when none may come anymore (`give_up`)
    SERVICE_NOT_AVAILABLE   the store has failed, and its units are never shown

Those who wait for one point are told in log order.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../CommitLog.java (GroupCommitService)
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.store.results import Committed, PutMessageStatus
from skylarkmq.store.stats import StoreStats
from skylarkmq.store.units import Units

log = logging.getLogger(__name__)
ENTRIES_MAX: Final = 16 << 20
"""Bytes of index entries that wait: a record's may be ten times what it takes in the log."""
# (units, end offset of their batch) -> False when the store has failed over it
Publish = Callable[[Units, int], bool]
Arrived = Callable[[list[Units]], None]  # (the units of some batches)


class Point(IntEnum):
    """What a waiter waits for."""

    WRITTEN = 0
    STORED = 1
    CONFIRMED = 2


class _Waiter(NamedTuple):
    """Who is to be told what comes of a batch."""

    end_offset: int
    since_s: float
    point: Point
    messages: int  # how many are acknowledged by it
    done: Committed

    def tell(self, status: PutMessageStatus) -> None:
        """Tell it; one that raises harms only itself."""
        try:
            self.done(status)
        except Exception:
            log.exception("who waited for offset %d of the log failed", self.end_offset)


class _Line:
    """Waiters for one point, in log order; who waits too long is told that it is late."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        self.timeout_s = timeout_s  # from the append on
        self.late = PutMessageStatus.FLUSH_DISK_TIMEOUT
        self._waiters: deque[_Waiter] = deque()
        self._timer: TimerHandle | None = None  # stays when nobody waits: a new one costs more

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def add(self, waiter: _Waiter) -> None:
        """Let one wait behind the others."""
        self._waiters.append(waiter)
        if self._timer is None:
            self._timer = self._clock.call_at(waiter.since_s + self.timeout_s, self._expire)

    def take(self, offset: float = math.inf) -> list[_Waiter]:
        """Return those up to an offset of the log; they wait here no longer."""
        taken: list[_Waiter] = []
        waiters = self._waiters
        while waiters and waiters[0].end_offset <= offset:
            taken.append(waiters.popleft())
        return taken

    def _expire(self) -> None:
        now_s, waiters = self._clock.monotonic(), self._waiters
        while waiters and waiters[0].since_s + self.timeout_s <= now_s:
            waiters.popleft().tell(self.late)
        self._timer = None
        if waiters:
            self._timer = self._clock.call_at(waiters[0].since_s + self.timeout_s, self._expire)


class ReleaseQueue:
    """Holds batches and waiters until the log has passed their points. Loop thread.

    Its size is one idea: three points of one log, passed in one order.

    Attributes:
        stored_offset: up to where the log is stored, as `advance` was told.
        gated: nothing above the confirmed offset is shown.
        acknowledged: messages with a waiter that were stored so far.
    """

    def __init__(
        self,
        clock: Clock,
        timeout_s: float,
        stats: StoreStats,
        publish: Publish,
        arrived: Arrived,
    ) -> None:
        """Take what publishes the units of a batch, and what tells of them afterwards.

        Args:
            publish: adds nothing to this queue, and takes nothing, unlike `arrived`.
        """
        self._clock = clock
        self._stats = stats
        self._publish = publish
        self._arrived = arrived
        self._held: deque[tuple[int, Units]] = deque()  # (end offset, units) to be shown
        self._entries_size = 0  # bytes of their index entries
        self._unwritten = _Line(clock, timeout_s)
        self._unstored = _Line(clock, timeout_s)  # for the point behind it, too
        self._unconfirmed = _Line(clock, timeout_s)
        self._written_offset = 0
        self.stored_offset = 0
        self._confirmed_offset: float = math.inf
        self._shown_offset = 0
        self.gated = False
        self.acknowledged = 0
        self._releasing = False
        self._failed = False

    @property
    def waiting(self) -> int:
        """Batches that are not shown yet."""
        return len(self._held)

    @property
    def is_awaited(self) -> bool:
        """True while somebody waits for an answer."""
        return bool(self._unwritten or self._unstored or self._unconfirmed)

    @property
    def oldest_ms(self) -> int | None:
        """Store time of the first record that is not shown; None without one."""
        for _, units in self._held:
            if units.count:
                return units.store_timestamp
        return None

    # Waiting

    def hold(self, end_offset: int, units: Units) -> None:
        """Take the units of the newest batch, which ends at `end_offset`; `advance` shows them."""
        if self._entries_size + len(units.entries) > ENTRIES_MAX:
            units.drop_entries()
        self._entries_size += len(units.entries)
        self._held.append((end_offset, units))

    def wait(self, point: Point, end_offset: int, done: Committed, messages: int = 0) -> None:
        """Tell `done` once what has come of the log up to `end_offset`; `advance` may do it.

        Args:
            end_offset: of the log.
            messages: how many are acknowledged by it.
        """
        line = self._unwritten if point is Point.WRITTEN else self._unstored
        line.add(_Waiter(end_offset, self._clock.monotonic(), point, messages, done))

    # Releasing

    def begin_at(self, offset: int) -> None:
        """Note where the log ends at the start; all of it is shown, and counts as confirmed."""
        self._written_offset = self.stored_offset = self._shown_offset = offset
        if self.gated:
            self._confirmed_offset = offset

    def gate(self, timeout_s: float) -> None:
        """From now on show nothing above what `confirm` says; before the first batch.

        Args:
            timeout_s: how long after its append a waiter waits for the confirmation.
        """
        self.gated = True
        self._confirmed_offset = self._shown_offset
        self._unconfirmed.timeout_s = timeout_s
        for line in (self._unwritten, self._unstored, self._unconfirmed):
            line.late = PutMessageStatus.UNCONFIRMED

    def advance(self, written_offset: int, stored_offset: int) -> None:
        """Show and answer what the log has passed."""
        self._written_offset, self.stored_offset = written_offset, stored_offset
        self._go_on()

    def confirm(self, offset: int) -> None:
        """Show and answer, behind a gate, what is stored and lies below `offset`."""
        if self.gated and offset > self._confirmed_offset:
            self._confirmed_offset = offset
            self._go_on()

    def give_up(self) -> None:
        """Tell all who wait for a confirmation that none may come; units stay."""
        given_up = self._unconfirmed.take()
        for waiter in self._unstored.take():
            if waiter.point is Point.CONFIRMED:
                given_up.append(waiter)
            else:
                self._unstored.add(waiter)
        for waiter in given_up:
            waiter.tell(PutMessageStatus.UNCONFIRMED)

    def fail(self) -> None:
        """Refuse everything that waits: the log goes no further."""
        self._failed = True
        waiters = self._unconfirmed.take() + self._unstored.take() + self._unwritten.take()
        self._held.clear()
        self._entries_size = 0
        for waiter in waiters:
            waiter.tell(self._outcome(waiter))

    def _outcome(self, waiter: _Waiter) -> PutMessageStatus:
        """Return what to tell; the store may have failed in this very turn."""
        if self._failed and waiter.end_offset > self._shown_offset:
            return PutMessageStatus.SERVICE_NOT_AVAILABLE
        return PutMessageStatus.PUT_OK

    def show_rest(self) -> None:
        """Show what is held and tell nobody: the store ends, and all of it is durable."""
        while self._held and self._publish(self._held[0][1], self._held[0][0]):
            self._let_first_go()

    def _go_on(self) -> None:
        """Release until there is nothing more to be released.

        A confirmation, or a commit, may come from those who are told here. It goes on where this
        is, so that all are told in log order.
        """
        if self._releasing:
            return
        self._releasing = True
        try:
            while self._step():
                pass
        finally:
            self._releasing = False

    def _step(self) -> bool:
        """Show, then tell, what may be; return whether that was anything."""
        has_shown = self._show()
        ready = self._unwritten.take(self._written_offset)
        ready += self._unconfirmed.take(self._confirmed_offset)
        for waiter in self._unstored.take(self.stored_offset):
            self.acknowledged += waiter.messages
            if waiter.point is Point.CONFIRMED and waiter.end_offset > self._confirmed_offset:
                self._unconfirmed.add(waiter)
            else:
                ready.append(waiter)
        if ready:
            now_s = self._clock.monotonic()
            for waiter in ready:
                if waiter.messages and waiter.point is not Point.WRITTEN:
                    self._stats.ack_wait.observe_many(now_s - waiter.since_s, waiter.messages)
                waiter.tell(self._outcome(waiter))
        return has_shown or bool(ready)

    def _show(self) -> bool:
        """Publish what may be shown, all of it before anybody hears of it."""
        limit = min(self.stored_offset, self._confirmed_offset)
        shown: list[Units] = []
        while self._held and self._held[0][0] <= limit:
            end_offset, units = self._held[0]
            if not self._publish(units, end_offset):
                self.fail()  # if the store had not failed already, this is done
                break
            self._let_first_go()
            self._shown_offset = end_offset
            shown.append(units)
        if shown:
            self._arrived(shown)
        return bool(shown)

    def _let_first_go(self) -> None:
        _, units = self._held.popleft()
        self._entries_size -= len(units.entries)
