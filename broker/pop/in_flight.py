"""What is in flight of all groups: each change of a delivery, with its note in the journal."""

from __future__ import annotations

from typing import Final

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.net.handlers import refused
from skylarkmq.broker.pop.arrivals import Arrivals
from skylarkmq.broker.pop.consumption import Consumption
from skylarkmq.broker.pop.deliveries import NO_HANDLE, Delivery, PopQueue
from skylarkmq.broker.pop.handles import OLD_RETRY
from skylarkmq.broker.pop.journal import PopJournal
from skylarkmq.broker.pop.states import ACKNOWLEDGED, ACQUIRED, ARCHIVED, RELEASED
from skylarkmq.broker.pop.timeouts import VisibilityTimeouts
from skylarkmq.broker.requests.processor import Context
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.store.pop.journal_records import ACKNOWLEDGED as NEVER_VISIBLE
from skylarkmq.store.pop.journal_records import Changed, Done, Left

INVISIBLE_MAX_MS: Final = 12 * 3_600_000
REST_MS: Final = 1000
"""After so long a message comes again that was not handed over, or whose client is gone."""


class Room:
    """How many messages may be in flight, and which queues wait for room. Loop thread.

    Attributes:
        count: messages of all groups that are not done.
        full: queues from which no more was taken for want of room.
    """

    def __init__(self, config: BrokerConfig, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._per_queue = config.pop_inflight_max_per_queue
        self._per_group = config.pop_inflight_max_per_group
        self._in_all = config.pop_inflight_max
        self.count = 0
        self.full: set[PopQueue] = set()

    def left(self, queue: PopQueue) -> int:
        """Return how many more messages may be taken from a queue."""
        return min(
            self._per_queue - len(queue.in_flight),
            self._per_group - queue.source.group.in_flight,
            self._in_all - self.count,
        )

    def add(self, queue: PopQueue, count: int) -> None:
        """Count messages that are in flight from now on; fewer than none: are no more."""
        self.count += count
        queue.source.group.in_flight += count

    def close(self, queue: PopQueue) -> None:
        """Take no more from a queue for want of room."""
        queue.is_full = True
        self.full.add(queue)

    def open(self, queue: PopQueue) -> None:
        """Take from a queue again that was full."""
        self.full.discard(queue)
        queue.is_full = False
        self._arrivals.relist(queue)

    def make(self, queue: PopQueue) -> None:
        """Go on with queues that were full, not before a quarter of the room is free again."""
        again: list[PopQueue] = []
        if queue.source.group.in_flight == self._per_group * 3 // 4 or (
            self.count == self._in_all * 3 // 4
        ):
            again = list(self.full)
        elif queue.is_full and len(queue.in_flight) <= self._per_queue * 3 // 4:
            again = [queue]
        for each in again:
            self.open(each)


class InFlight:
    """The messages that are not done, of all groups. Loop thread.

    Attributes:
        is_open: False while this broker is not a master, or stops.
        last_serial: of the newest delivery.
    """

    def __init__(
        self,
        context: Context,
        journal: PopJournal,
        timeouts: VisibilityTimeouts,
        arrivals: Arrivals,
        stats: BrokerStats,
    ) -> None:
        """Begin with nothing in flight."""
        self._clock = context.clock
        self._offsets = context.offsets
        self.journal = journal
        self.arrivals = arrivals
        self._stats = stats
        self.timeouts = timeouts
        self.room = Room(context.config, arrivals)
        self.is_open = False
        self.last_serial = 0

    def check_open(self) -> None:
        """Refuse what is asked of a broker that is no master, or stops.

        Raises:
            RemoteProtocolError: SERVICE_NOT_AVAILABLE.
        """
        if not self.is_open:
            raise refused(
                "this broker is not a master now, or stops", ResponseCode.SERVICE_NOT_AVAILABLE
            )

    def next_serial(self) -> int:
        """Return the serial of a new delivery: the time in ms, and more than any before."""
        self.last_serial = max(self._clock.now_ms(), self.last_serial + 1)
        return self.last_serial

    def visible_ms(self, delivery: Delivery) -> int:
        """Return when a delivery comes again, ms since the epoch, as the journal has it."""
        if delivery.state is ACKNOWLEDGED:
            return NEVER_VISIBLE
        if delivery.due_ms < 0:
            return 0
        return delivery.due_ms + self._clock.now_ms() - self.timeouts.now_ms()

    def revive(self, delivery: Delivery, serial: int, visible_ms: int) -> None:
        """Take in a message that was in flight when the broker stopped; its queue has it.

        Args:
            serial: of the handle that may end it; NO_HANDLE: it comes again in place.
            visible_ms: when it ends, ms since the epoch; the clock may have stepped meanwhile.
        """
        self.room.add(delivery.queue, 1)
        delivery.serial = serial
        if serial == NO_HANDLE:
            delivery.queue.again.append(delivery)
            return
        delivery.move_to(ACQUIRED)
        if visible_ms == NEVER_VISIBLE:
            delivery.move_to(ACKNOWLEDGED)
            return
        # A delivery began at its serial, so it never has more left than that says.
        left_ms = min(visible_ms - self._clock.now_ms(), visible_ms - serial, INVISIBLE_MAX_MS)
        delivery.since_ms = self.timeouts.now_ms()
        self.timeouts.set(delivery, delivery.since_ms + max(left_ms, 0))

    def publish_mark(self, queue: PopQueue) -> None:
        """Write a queue's mark, which has moved, into the table of offsets."""
        source = queue.source
        self._offsets.advance(source.group.name, source.topic, queue.queue_id, queue.mark)

    # What a delivery goes on as

    def hold(self, delivery: Delivery, invisible_ms: int) -> None:
        """Let a delivery end at another time, counted from now."""
        self.timeouts.set(delivery, self.timeouts.now_ms() + invisible_ms)
        self.note_change(delivery, self._clock.now_ms() + invisible_ms)

    def rest(self, delivery: Delivery) -> None:
        """Release a message that its client never got: it comes again in place after a moment."""
        delivery.let_go(RELEASED)
        self.hold(delivery, REST_MS)

    def retry_in_place(self, delivery: Delivery) -> None:
        """Release a message, which comes again in place with one more attempt."""
        delivery.let_go(RELEASED)
        delivery.attempt += 1
        self.note_change(delivery, self._clock.now_ms())
        self.come_again(delivery)

    def come_again(self, delivery: Delivery) -> None:
        """Let the next receive have a released message."""
        queue = delivery.queue
        if delivery.topic and queue.source.kind == OLD_RETRY:
            queue.source.group.park(delivery)
            self.arrivals.wake(queue.source.group, delivery.topic)
        else:
            queue.again.append(delivery)
            self.arrivals.relist(queue)

    def acknowledge(self, consumption: Consumption, delivery: Delivery) -> None:
        """Note that a message is consumed; in an ordered queue as soon as all before it are."""
        queue = delivery.queue
        if not queue.is_fifo or delivery is queue.first:
            delivery.move_to(ACKNOWLEDGED)
            self._done(consumption, delivery)
            return
        serial = delivery.serial
        self.timeouts.cancel(delivery)
        delivery.let_go(ACKNOWLEDGED)
        delivery.serial = serial
        self.note_change(delivery, NEVER_VISIBLE)
        self.arrivals.relist(queue)

    def copied(self, delivery: Delivery, copy_physical: int) -> None:
        """Note where a copy lies that a power cut may still take; an ordered queue goes on."""
        queue = delivery.queue
        delivery.copy_physical = copy_physical
        self.journal.note(Left(queue.key, delivery.offset, copy_physical))
        if queue.is_fifo and not queue.is_blocked:
            self.arrivals.relist(queue)

    def moved(self, delivery: Delivery) -> None:
        """Note that a message is done: its copy is on the disk, or it cannot be read any more."""
        group = delivery.queue.source.group
        if delivery.to_dead_letters:
            self._stats.dead_letter(delivery.topic, group.name).count += 1
        else:
            self._stats.topic_back(delivery.topic, group.name).count += 1
        delivery.move_to(ARCHIVED)
        self._done(group.consumptions.get(delivery.topic), delivery)

    def drop(self, delivery: Delivery) -> None:
        """Note that a message is done because it is not there any more, or nobody wants it."""
        delivery.move_to(ARCHIVED)
        self._end(delivery)

    def drop_all(self, queue: PopQueue) -> None:
        """Forget what is in flight of a queue; the caller notes why."""
        group, room = queue.source.group, self.room
        for delivery in queue.in_flight.values():
            self.timeouts.cancel(delivery)
            delivery.let_go(ARCHIVED)
        room.add(queue, -len(queue.in_flight))
        room.full.discard(queue)
        queue.reset(queue.next_offset)
        if queue.source.kind == OLD_RETRY:
            group.unpark(queue)
        for full in list(room.full):
            room.open(full)

    def note_change(self, delivery: Delivery, visible_ms: int) -> None:
        """Note handle, time and attempt of a delivery as they are now."""
        key, offset = delivery.queue.key, delivery.offset
        self.journal.note(Changed(key, offset, delivery.serial, visible_ms, delivery.attempt))

    def _done(self, consumption: Consumption | None, delivery: Delivery) -> None:
        """End a delivery, and those acknowledged after it; go on with what waited for that."""
        queue = delivery.queue
        self._end(delivery)
        if queue.is_fifo:
            while (first := queue.first) is not None and first.state is ACKNOWLEDGED:
                self._end(first)
            if not queue.in_flight and consumption is not None:
                consumption.close_batch(queue)
            if not queue.is_blocked:
                self.arrivals.relist(queue)
        elif self.room.full:
            self.room.make(queue)

    def _end(self, delivery: Delivery) -> None:
        queue, group = delivery.queue, delivery.queue.source.group
        if delivery.client_id:
            group.let_go(delivery)
        self.timeouts.cancel(delivery)
        group.in_flight -= 1
        self.room.count -= 1
        if queue.remove(delivery):
            self.publish_mark(queue)
        self.journal.note(Done(queue.key, delivery.offset))
