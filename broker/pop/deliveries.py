"""The state of one source queue of a group: what is in hand, what comes again, where it goes on.

    mark         the first message that is not done; the group's offset in the queue
    next_offset  everything below it was looked at
    in_flight    what is not done of that, in the order of the queue, each in a state (`states.py`)
    again        what is released and waits in place for the next receive

Loop thread.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from skylarkmq.broker.pop.states import ALLOWED, RELEASED, DeliveryState
from skylarkmq.store.pop.journal_records import UNKNOWN, Key, Row

if TYPE_CHECKING:
    from skylarkmq.broker.pop.consumption import Source

ORDER_SLACK: Final = 64
NO_HANDLE: Final = 0
"""The serial of a delivery that no handle can name."""


class Delivery:
    """One message that is not done.

    Attributes:
        due_ms: when its time is over, ms of the monotonic clock; -1 while it has none.
        serial: of the handle that may end it, or has acknowledged it; NO_HANDLE: none may.
        renewals: how often it was prolonged by itself; -1: it ends at its time.
        since_ms: when it was handed out, ms of the monotonic clock.
        topic: that a receive asked for, or must ask for.
        to_dead_letters: where it goes while it is moving.
        copy_physical: where its copy lies, which is not on the disk yet; UNKNOWN: it has none.
    """

    __slots__ = ("attempt", "client_id", "copy_physical", "due_ms", "offset",
                 "physical_offset", "queue", "renewals", "serial", "since_ms", "state",
                 "to_dead_letters", "topic")  # fmt: skip

    def __init__(
        self, queue: PopQueue, topic: str, offset: int, physical_offset: int, attempt: int
    ) -> None:
        self.queue = queue
        self.topic = topic
        self.offset = offset
        self.physical_offset = physical_offset
        self.attempt = attempt
        self.client_id = ""
        self.serial = NO_HANDLE
        self.due_ms = -1
        self.renewals = -1
        self.since_ms = 0
        self.to_dead_letters = False
        self.copy_physical = UNKNOWN
        self.state = RELEASED

    def move_to(self, state: DeliveryState) -> None:
        """Go on in another state."""
        assert state in ALLOWED[self.state], f"no move from {self.state.name} to {state.name}"
        self.state = state

    def row(self, visible_ms: int) -> Row:
        """Return it as the journal has it, with when it comes again."""
        return Row(
            self.offset,
            self.physical_offset,
            self.serial,
            visible_ms,
            self.attempt,
            self.copy_physical,
        )

    def let_go(self, state: DeliveryState) -> None:
        """Go on in another state where no handle ends it, and no client has it."""
        self.move_to(state)
        self.serial = NO_HANDLE
        self.renewals = -1
        if self.client_id:
            self.queue.source.group.let_go(self)
            self.client_id = ""


class PopQueue:
    """One source queue of a group.

    Attributes:
        source: the topic that it belongs to, with the group.
        key: its name in the journal.
        is_full: no more was taken for want of room.
        held_count: deliveries that end by the clock.
        is_listed: it is among the queues that may have something (`Source.ready`).
        is_reading: a read off the loop is under way; nobody else reads meanwhile.
        life: another number after each reset: what was begun before does not count any more.
        attempt_id: of an ordered group, whose receive opened the batch in flight.
        is_fifo: what ends by the clock waits in place.
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
        delivery.serial = NO_HANDLE
        if order[0] != delivery.offset:
            if len(order) > 2 * len(in_flight) + ORDER_SLACK:
                self._order = deque(in_flight)
            return False
        order.popleft()
        while order and order[0] not in in_flight:
            order.popleft()
        return True
