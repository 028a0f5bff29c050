"""The times after which deliveries come again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from skylarkmq.broker.pop.deliveries import Delivery
from skylarkmq.common.clock import Clock, TimerHandle

SLOT_MS: Final = 100
"""A delivery ends within this after its time."""
LOOK_AHEAD: Final = 10
"""Slots; the timer looks again after so many at the latest."""
ROUNDING_MS: Final = 1e-3
"""A timer of a time in ms may find that a clock of seconds says a hair less."""


class VisibilityTimeouts:
    """Ends deliveries when their time is over. Loop thread.

    Times are kept in slots, so that to prolong or to end a delivery costs the same however many
    there are; a timer runs only while there is one.
    """

    def __init__(self, clock: Clock) -> None:
        """Begin without deliveries; none ends before `start`."""
        self._clock = clock
        self._expired: Callable[[list[Delivery]], None] | None = None  # None: stopped
        self._slots: dict[int, dict[Delivery, None]] = {}
        self._done_slot = 0  # slots below it are over
        self._planned_slot = 0  # the timer's, while there is one
        self._timer: TimerHandle | None = None

    def now_ms(self) -> int:
        """Return the time that deliveries end by."""
        return int(self._clock.monotonic() * 1000 + ROUNDING_MS)

    def set(self, delivery: Delivery, due_ms: int) -> None:
        """Let a delivery end at a time, in place of an earlier one."""
        if delivery.due_ms >= 0:
            self.cancel(delivery)
        slot = due_ms // SLOT_MS + 1
        if slot < self._done_slot and self._timer is not None:
            slot = self._done_slot
        members = self._slots.get(slot)
        if members is None:
            self._slots[slot] = {delivery: None}
            if self._timer is None:
                self._done_slot = min(slot, self.now_ms() // SLOT_MS + 1)
                self._plan()
            elif slot < self._planned_slot:
                self._plan()
        else:
            members[delivery] = None
        delivery.due_ms = slot * SLOT_MS
        delivery.queue.held_count += 1

    def cancel(self, delivery: Delivery) -> None:
        """Let a delivery not end by the clock; one without a time is left alone."""
        if delivery.due_ms < 0:
            return
        slot = delivery.due_ms // SLOT_MS
        members = self._slots.get(slot)
        if members is not None:
            members.pop(delivery, None)
            if not members:
                del self._slots[slot]
        delivery.due_ms = -1
        delivery.queue.held_count -= 1

    def start(self, expired: Callable[[list[Delivery]], None]) -> None:
        """End deliveries from now on, also after `stop`.

        Args:
            expired: called with those whose time is over; they have none any more.
        """
        self._expired = expired
        if self._slots:
            self._done_slot = min(self._slots)
            self._plan()

    def stop(self) -> None:
        """End no delivery."""
        self._expired = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self) -> None:
        """Set the timer for the first slot that is not empty, at most LOOK_AHEAD from now."""
        if self._expired is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        first = self._done_slot
        slot = next(
            (slot for slot in range(first, first + LOOK_AHEAD) if slot in self._slots),
            first + LOOK_AHEAD,
        )
        self._planned_slot = slot
        self._timer = self._clock.call_at(slot * SLOT_MS / 1000, self._tick)

    def _tick(self) -> None:
        end = self.now_ms() // SLOT_MS + 1  # of the slots that are over
        slots = self._slots
        if end - self._done_slot > len(slots):  # the process has slept
            over = [slot for slot in sorted(slots) if slot < end]
        else:
            over = [slot for slot in range(self._done_slot, end) if slot in slots]
        self._done_slot = max(end, self._done_slot)
        expired: list[Delivery] = []
        for slot in over:
            for delivery in slots.pop(slot):
                delivery.due_ms = -1
                delivery.queue.held_count -= 1
                expired.append(delivery)
        self._timer = None
        if expired and self._expired is not None:
            self._expired(expired)
        if self._slots:
            self._plan()
