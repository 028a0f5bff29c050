"""The state of one source queue of a group: what is in hand, what comes again, where it goes on.

    mark         the first message that is not done; the group's offset in the queue
    next_offset  everything below it was looked at
    in_flight    what is not done of that, in the order of the queue:
        held       somebody has it, or it rests for a moment; ends by the clock (`Lapses`)
        again      it waits in place for the next receive
        moving     it is being copied to a topic of retries or dead letters
        acked      of an ordered group: it is acknowledged, but one before it is not; done as soon
                   as all before it are, and comes again with one that does

Loop thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.store.pop.journal_records import UNKNOWN, Key

if TYPE_CHECKING:
    from skylarkmq.broker.pop.consumption import Source

SLOT_MS: Final = 100
"""Deliveries lapse within this after their time."""
LOOK_AHEAD: Final = 10
"""Slots; the timer looks again after so many at the latest."""
ROUNDING_MS: Final = 1e-3
"""A timer of a time in ms may find that a clock of seconds says a hair less."""
ORDER_SLACK: Final = 64
NOBODY: Final = 0
"""The serial of a delivery that no handle can name."""


class Delivery:
    """One message that is not done.

    Attributes:
        due_ms: when it lapses, ms of the monotonic clock; -1 while it is not held.
        serial: of the handle that may end it; NOBODY: none may.
        renewals: how often it was prolonged by itself; -1: it lapses at its time.
        since_ms: when it was handed out, ms of the monotonic clock.
        topic: that a receive asked for, or must ask for.
        to_dead_letters: where it goes while it is moving.
        copy_physical: where its copy lies, which is not on the disk yet; UNKNOWN: it has none.
        is_acked: see above; its serial is that of the acknowledgement.
    """

    __slots__ = ("attempt", "client_id", "copy_physical", "due_ms", "is_acked", "offset",
                 "physical_offset", "queue", "renewals", "serial", "since_ms", "to_dead_letters",
                 "topic")  # fmt: skip

    def __init__(
        self, queue: PopQueue, topic: str, offset: int, physical_offset: int, attempt: int
    ) -> None:
        self.queue = queue
        self.topic = topic
        self.offset = offset
        self.physical_offset = physical_offset
        self.attempt = attempt
        self.client_id = ""
        self.serial = NOBODY
        self.due_ms = -1
        self.renewals = -1
        self.since_ms = 0
        self.to_dead_letters = False
        self.copy_physical = UNKNOWN
        self.is_acked = False


class PopQueue:
    """One source queue of a group.

    Attributes:
        source: the topic that it belongs to, with the group.
        key: its name in the journal.
        is_full: no more was taken for want of room.
        held_count: deliveries that lapse by the clock.
        is_listed: it is among the queues that may have something (`Source.ready`).
        is_reading: a read off the loop is under way; nobody else reads meanwhile.
        life: another number after each reset: what was begun before does not count any more.
        attempt_id: of an ordered group, whose receive opened the batch in flight.
        is_fifo: what lapses waits in place.
    """

    __slots__ = ("_order", "again", "attempt_id", "held_count", "in_flight", "is_fifo", "is_full",
                 "is_listed", "is_reading", "key", "life", "next_offset", "queue_id",
                 "source")  # fmt: skip

    def __init__(self, source: Source, queue_id: int, next_offset: int) -> None:
        self.source = source
        self.queue_id = queue_id
        self.key = Key(source.group.name, source.asked_topic, source.kind, queue_id)
        self.life = 0
        self.is_listed = False
        self.is_fifo = False
        self.reset(next_offset)

    def reset(self, next_offset: int) -> None:
        """Go on at an offset, with nothing in flight."""
        self.next_offset = next_offset
        self.in_flight: dict[int, Delivery] = {}
        self.again: deque[Delivery] = deque()
        # Offsets in flight in their order, and done ones among them: a dict whose front was
        # removed item by item would find its first item slowly.
        self._order: deque[int] = deque()
        self.held_count = 0
        self.is_full = False
        self.is_reading = False
        self.attempt_id = ""
        self.life += 1

    @property
    def mark(self) -> int:
        """The first message that is not done."""
        return self._order[0] if self._order else self.next_offset

    @property
    def first(self) -> Delivery | None:
        """The first message that is not done; None: nothing is in flight."""
        return self.in_flight[self._order[0]] if self._order else None

    @property
    def is_blocked(self) -> bool:
        """True while an ordered group must wait: something of the open batch is in hand."""
        return self.held_count > 0

    def add(self, delivery: Delivery) -> None:
        """Take in a message that was looked at now; offsets grow."""
        self.in_flight[delivery.offset] = delivery
        self._order.append(delivery.offset)

    def remove(self, delivery: Delivery) -> bool:
        """Take out a message that is done, and return whether the mark moved."""
        in_flight, order = self.in_flight, self._order
        del in_flight[delivery.offset]
        delivery.serial = NOBODY
        if order[0] != delivery.offset:
            if len(order) > 2 * len(in_flight) + ORDER_SLACK:
                self._order = deque(in_flight)
            return False
        order.popleft()
        while order and order[0] not in in_flight:
            order.popleft()
        return True


class Lapses:
    """Ends deliveries when their time is over. Loop thread.

    Times are kept in slots, so that to prolong or to end a delivery costs the same however many
    there are; a timer runs only while there is one.
    """

    def __init__(self, clock: Clock, lapsed: Callable[[list[Delivery]], None]) -> None:
        """Begin without deliveries.

        Args:
            lapsed: called with those whose time is over; they are not held any more.
        """
        self._clock = clock
        self._lapsed = lapsed
        self._slots: dict[int, dict[Delivery, None]] = {}
        self._done_slot = 0  # slots below it are over
        self._is_stopped = False
        self._planned_slot = 0  # the timer's, while there is one
        self._timer: TimerHandle | None = None

    def now_ms(self) -> int:
        """Return the time that deliveries are held by."""
        return int(self._clock.monotonic() * 1000 + ROUNDING_MS)

    def hold(self, delivery: Delivery, due_ms: int) -> None:
        """Let a delivery lapse at a time, in place of an earlier one."""
        if delivery.due_ms >= 0:
            self.release(delivery)
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

    def release(self, delivery: Delivery) -> None:
        """Let a delivery lapse no more; one that is not held is left alone."""
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

    def release_all(self, deliveries: Iterable[Delivery]) -> None:
        """Do as `release` with many."""
        for delivery in deliveries:
            self.release(delivery)

    def start(self) -> None:
        """Let deliveries lapse again, after `stop`."""
        self._is_stopped = False
        if self._slots:
            self._done_slot = min(self._slots)
            self._plan()

    def stop(self) -> None:
        """Let no delivery lapse."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self) -> None:
        """Set the timer for the first slot that is not empty, at most LOOK_AHEAD from now."""
        if self._is_stopped:
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
        lapsed: list[Delivery] = []
        for slot in over:
            for delivery in slots.pop(slot):
                delivery.due_ms = -1
                delivery.queue.held_count -= 1
                lapsed.append(delivery)
        self._timer = None
        if lapsed:
            self._lapsed(lapsed)
        if self._slots:
            self._plan()
