"""One receive takes messages: which queues it looks at, and how it hands out what it finds.

    retries      of 1 of 5 receives first, of the others last; not those of ordered groups
    main         queues that may have something, each in its turn
    in place     what was given back, or lapsed in an ordered group, before what is new

`%RETRY%group`, where 4.x consumers of the group have given messages back, holds those of all
topics of the group. Who looks there takes what is of its own topic (RETRY_TOPIC) and parks the
rest for receives of theirs; a message whose topic is no more is a dead letter. `%RETRY%a_b_c` is
the topic of retries of group a in b_c, of a_b in c, and of the pull consumers of a_b_c: a copy
says which topic it is of, and receives of another one pass it over. What says nothing, as copies
of RocketMQ 5, is handed out where the topic has one meaning, else passed over and logged.
`%RETRY%a+b_c` has one. Retries of a topic that was deleted since are passed over, too.

A receive looks at a bounded number of units without finding anything; then other work of the loop
comes first. What may have to come from the disk is left to the caller (`Take.cold`), unless there
is something in hand.

Of an ordered group a queue has one open batch: while something of it is in hand, nobody gets
anything of the queue, except the attempt that opened it. That gets the same messages again, so a
lost answer costs nothing. An acknowledgement of a message counts once all before it are done: until
then it comes again with one before it that does, so that who handles them has them in their order.

Loop thread.
Source: apache/rocketmq@rocketmq-all-5.3.3 broker/.../processor/PopMessageProcessor.java
(popMsgFromQueue), broker/.../offset/ConsumerOrderInfoManager.java
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.pop.consumption import RETRY_FIRST_EVERY, Consumption, Source, let_go
from skylarkmq.broker.pop.deliveries import NOBODY, Delivery, Lapses, PopQueue
from skylarkmq.broker.pop.handles import OLD_RETRY, PLUS_RETRY, RETRY, Receipt
from skylarkmq.broker.pop.registry import PopRegistry
from skylarkmq.broker.pop.requests import COUNT_MAX, Popped, PopRequest
from skylarkmq.common.clock import Clock
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.properties import find_property
from skylarkmq.protocol.record import (
    FIXED_BY_HOSTS,
    HOSTS_BITS,
    HOSTS_SHIFT,
    record_properties,
)
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.pop.journal_records import (
    ACKNOWLEDGED,
    UNKNOWN,
    Changed,
    Done,
    Row,
    Took,
)
from skylarkmq.store.read.filtering import RecordFilter
from skylarkmq.store.results import GetMessageResult

log = logging.getLogger(__name__)

_RETRIES: Final = (RETRY, PLUS_RETRY)
SIZE_MAX: Final = 256 << 10
"""Bytes of the records of one receive, of which one alone may have more."""
INVISIBLE_MAX_MS: Final = 12 * 3_600_000
LOOKS_MAX: Final = 16
"""Reads of one receive that find nothing, in one turn of the loop."""

_HEAD: Final = struct.Struct(">i16xqqi32xi")
"""Size, queue offset, physical offset, system flag and, where no host is IPv6, attempts."""
_RETRY_TOPIC: Final = names.RETRY_TOPIC.encode() + b"\x01"
_FIXED_RECONSUME: Final = 12  # of the fields of a record
assert _HEAD.size == 76


class Limits(NamedTuple):
    """Messages in flight at most."""

    per_queue: int
    per_group: int
    in_all: int


class Notes(Protocol):
    """Where changes are written down (`journal.py`). Loop thread."""

    def note(self, record: Took | Done | Changed) -> None:
        """Write a change with this turn's others."""


class Take:
    """One receive under way.

    Attributes:
        cold: a queue, offset and number of messages to read off the loop.
        is_unfinished: it has looked at enough for one turn and found nothing.
        dead: messages without another attempt.
    """

    __slots__ = ("attempts_max", "cold", "consumption", "count_max", "dead", "due_ms",
                 "is_unfinished", "looks", "now_ms", "popped", "request", "serial",
                 "size", "visible_ms")  # fmt: skip

    def __init__(self, consumption: Consumption, request: PopRequest, attempts_max: int) -> None:
        self.consumption = consumption
        self.request = request
        self.attempts_max = attempts_max
        self.count_max = min(max(request.count, 1), COUNT_MAX)
        self.popped: list[Popped] = []
        self.dead: list[Delivery] = []
        self.size = 0
        self.serial = 0
        self.now_ms = self.due_ms = self.visible_ms = 0
        by_properties = isinstance(request.matches.stored, RecordFilter)
        self.looks = 1 if by_properties else LOOKS_MAX  # one of those may cost as much as all
        self.cold: tuple[PopQueue, int, int] | None = None
        self.is_unfinished = False

    @property
    def room(self) -> int:
        """How many messages it still wants."""
        return self.count_max - len(self.popped) if self.size < SIZE_MAX else 0

    @property
    def is_over(self) -> bool:
        """True when it looks no further in this turn."""
        return self.is_unfinished or self.cold is not None or self.room <= 0


class Taker:
    """Takes messages for receives. Loop thread.

    Attributes:
        in_flight: messages of all groups that are not done.
        settle: writes a queue's mark, which has moved, into the table of offsets.
        full: queues from which no more was taken for want of room.
        last_serial: of the newest delivery.
    """

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        lapses: Lapses,
        limits: Limits,
        journal: Notes,
        registry: PopRegistry,
        settle: Callable[[PopQueue], None],
        stats: BrokerStats,
    ) -> None:
        """Begin with nothing in flight.

        Args:
            settle: writes a queue's mark, which has moved, into the table of offsets.
        """
        self._store = store
        self._clock = clock
        self._lapses = lapses
        self._limits = limits
        self._journal = journal
        self._registry = registry
        self._told: set[str] = set()  # topics of retries with messages that name no topic
        self.settle = settle
        self._stats = stats
        self.in_flight = 0
        self.full: set[PopQueue] = set()
        self.last_serial = 0

    def next_serial(self) -> int:
        """Return the serial of a new delivery: the time in ms, and more than any before."""
        self.last_serial = max(self._clock.now_ms(), self.last_serial + 1)
        return self.last_serial

    def wall_minus_monotonic_ms(self) -> int:
        """Return what makes a time of deliveries the time of day, ms."""
        return self._clock.now_ms() - self._lapses.now_ms()

    def revive(self, delivery: Delivery, serial: int, visible_ms: int) -> None:
        """Take in a message that was in flight when the broker stopped; its queue has it.

        Args:
            serial: of the handle that may end it; NOBODY: it comes again in place.
            visible_ms: when it lapses, ms since the epoch; the clock may have stepped meanwhile.
        """
        queue = delivery.queue
        self.in_flight += 1
        queue.source.group.in_flight += 1
        delivery.serial = serial
        if serial == NOBODY:
            queue.again.append(delivery)
            return
        if visible_ms == ACKNOWLEDGED:
            delivery.is_acked = True
            return
        # A delivery began at its serial, so it never has more left than that says.
        left_ms = min(visible_ms - self._clock.now_ms(), visible_ms - serial, INVISIBLE_MAX_MS)
        delivery.since_ms = self._lapses.now_ms()
        self._lapses.hold(delivery, delivery.since_ms + max(left_ms, 0))

    def take(self, take: Take) -> None:
        """Hand out what there is for a receive."""
        consumption, request = take.consumption, take.request
        if request.attempt_id and request.is_fifo:
            self._repeat(take)
            if take.popped:
                return
        consumption.turns += 1
        retries_first = not request.is_fifo and consumption.turns % RETRY_FIRST_EVERY == 0
        if retries_first:
            self._take_retries(take)
        if not take.is_over:
            self._take_source(consumption.main, take, request.queue_id)
        if not (request.is_fifo or retries_first or take.is_over):
            self._take_retries(take)

    def _take_retries(self, take: Take) -> None:
        group = take.consumption.group
        for retries in take.consumption.retries.values():
            if retries.ready and not take.is_over:
                self._take_source(retries, take, -1)
        parked = group.parked.get(take.consumption.topic)
        while parked and not take.is_over:
            self._take_parked(parked, take)
        if parked is not None and not parked:
            group.parked.pop(take.consumption.topic, None)
        if group.old_retry is not None and group.old_retry.ready and not take.is_over:
            self._take_source(group.old_retry, take, -1)

    def _take_source(self, source: Source, take: Take, only: int) -> None:
        ready = source.ready
        for _ in range(len(ready)):
            queue = ready.popleft()
            if only >= 0 and queue.queue_id != only:
                ready.append(queue)
                continue
            queue.is_listed = False
            self.take_queue(queue, take)
            if self.has_more(queue):
                source.list(queue)
            if take.is_over:
                break

    def has_more(self, queue: PopQueue) -> bool:
        """Return whether a queue may have something for the next receive."""
        if queue.is_reading or queue.is_full or (queue.is_fifo and queue.is_blocked):
            return False
        if queue.again:
            return True
        return queue.next_offset < self._store.max_offset(queue.source.topic, queue.queue_id)

    def take_queue(self, queue: PopQueue, take: Take) -> None:
        """Hand out what one queue has."""
        if queue.is_reading:
            return
        if take.request.is_fifo and not self._open_batch(queue, take):
            return
        if queue.again:
            self._take_again(queue, take)
        if not (take.is_over or (queue.is_fifo and queue.again)):
            self._take_new(queue, take)

    # New messages

    def _take_new(self, queue: PopQueue, take: Take) -> None:
        store, source, queue_id = self._store, queue.source, queue.queue_id
        topic = source.topic
        matches = None if source.kind == OLD_RETRY else take.request.matches.stored
        while not take.is_over:
            offset = queue.next_offset
            end = store.max_offset(topic, queue_id)
            if offset >= end:
                return
            room = min(take.room, self._room(queue))
            if room <= 0:
                queue.is_full = True
                self.full.add(queue)
                return
            if store.is_cold(topic, queue_id, offset):
                if not take.popped:
                    take.cold = (queue, offset, room)
                return
            self.use(queue, store.get_message(topic, queue_id, offset, room, None, matches), take)

    def _room(self, queue: PopQueue) -> int:
        limits = self._limits
        return min(
            limits.per_queue - len(queue.in_flight),
            limits.per_group - queue.source.group.in_flight,
            limits.in_all - self.in_flight,
        )

    def use(self, queue: PopQueue, result: GetMessageResult, take: Take) -> None:
        """Hand out what was read of a queue from its next offset on."""
        matches, topic = take.request.matches, take.consumption.topic
        mark, found, before = queue.mark, len(take.popped), queue.next_offset
        is_shared, is_retry = queue.source.kind == OLD_RETRY, queue.source.kind in _RETRIES
        rows: list[Row] = []
        last = UNKNOWN, UNKNOWN
        for view in result.views:
            for record, offset, physical_offset, attempt in _records(view):
                last = offset, physical_offset
                if is_retry and not self._is_own(queue.source, record, physical_offset):
                    continue
                if matches.tags is not None and not is_shared and not matches.wants(record):
                    continue
                delivery = Delivery(queue, topic, offset, physical_offset, attempt)
                if is_shared and not self._is_of(delivery, record, take):
                    continue
                queue.add(delivery)
                if delivery.topic != topic:
                    self._park(delivery, take)
                elif attempt > take.attempts_max:
                    self._bury(delivery, take)
                else:
                    self._hand_out(delivery, record, take)
                rows.append(self._row(delivery, take))
        queue.next_offset = max(result.next_begin_offset, before)
        if queue.next_offset > before:
            pulled = self._stats.pulled_by(queue.source.topic, queue.source.group.name)
            pulled[queue.queue_id] = queue.next_offset
            self.in_flight += len(rows)
            queue.source.group.in_flight += len(rows)
            end = last[1] if last[0] == queue.next_offset - 1 else self._end_of(queue)
            took = Took(queue.key, queue.next_offset, end, tuple(rows), queue.attempt_id)
            self._journal.note(took)
        if queue.mark != mark:
            self.settle(queue)
        if len(take.popped) == found:
            take.looks -= 1
            take.is_unfinished = take.looks <= 0

    @staticmethod
    def _bury(delivery: Delivery, take: Take) -> None:
        delivery.to_dead_letters = True
        take.dead.append(delivery)

    def _end_of(self, queue: PopQueue) -> int:
        """Return where the last message that was looked at lies in the log."""
        units = self._store.queue_units(
            queue.source.topic, queue.queue_id, queue.next_offset - 1, 1
        )
        return units[0].commit_offset if units else UNKNOWN

    def _row(self, delivery: Delivery, take: Take) -> Row:
        return Row(
            delivery.offset,
            delivery.physical_offset,
            delivery.serial,
            take.visible_ms,
            delivery.attempt,
        )

    def _hand_out(self, delivery: Delivery, record: bytes | memoryview, take: Take) -> None:
        request, queue = take.request, delivery.queue
        if not take.serial:
            take.serial = self.next_serial()
            take.now_ms = self._lapses.now_ms()
            take.due_ms = take.now_ms + request.invisible_ms
            take.visible_ms = self._clock.now_ms() + request.invisible_ms
        delivery.serial = take.serial
        delivery.since_ms = take.now_ms
        delivery.client_id = request.client_id
        delivery.renewals = 0 if request.is_renewed else -1
        self._lapses.hold(delivery, take.due_ms)
        if request.client_id:
            queue.source.group.took(delivery)
        if delivery.attempt > 1:
            take.consumption.redelivered += 1
        receipt = Receipt(queue.source.kind, queue.queue_id, delivery.offset, take.serial)
        take.popped.append(Popped(receipt, record, delivery.attempt))
        take.size += len(record)

    # Messages that come again in place

    def _take_again(self, queue: PopQueue, take: Take) -> None:
        store, topic = self._store, queue.source.topic
        if queue.is_fifo:
            self._put_in_order(queue, take)
        while queue.again and not take.is_over:
            offset = queue.again[0].offset
            if store.is_cold(topic, queue.queue_id, offset):
                if not take.popped:
                    take.cold = (queue, offset, 1)
                return
            matches = None if queue.source.kind == OLD_RETRY else take.request.matches.stored
            result = store.get_message(topic, queue.queue_id, offset, 1, None, matches)
            self.use_again(queue, result, take)

    def _put_in_order(self, queue: PopQueue, take: Take) -> None:
        """Let what was acknowledged after a message that comes again come with it, in order."""
        start = min(delivery.offset for delivery in queue.again)
        for delivery in queue.in_flight.values():
            if delivery.is_acked and delivery.offset > start:
                self._take_back(delivery, take.consumption)
                delivery.serial = NOBODY
                delivery.attempt = min(delivery.attempt + 1, take.attempts_max)
                queue.again.append(delivery)
                self._journal.note(Changed(queue.key, delivery.offset, NOBODY, 0, delivery.attempt))
        if len(queue.again) > 1:
            ordered = sorted(queue.again, key=lambda delivery: delivery.offset)
            queue.again.clear()
            queue.again.extend(ordered)

    def use_again(self, queue: PopQueue, result: GetMessageResult, take: Take) -> None:
        """Hand out the first message that comes again in place, as it was read; else it is done."""
        delivery = queue.again.popleft()
        record = _record_at(result, delivery.offset)
        if record is not None and queue.source.kind == OLD_RETRY:
            self._sort(delivery, record, take)
        elif (
            record is None
            or not take.request.matches.wants(record)
            or (
                queue.source.kind in _RETRIES
                and not self._is_own(queue.source, record, delivery.physical_offset)
            )
        ):
            take.looks -= 1
            take.is_unfinished = take.looks <= 0
            self._journal.note(Done(queue.key, delivery.offset))
            self.end(delivery)
        elif delivery.attempt > take.attempts_max:
            self._bury(delivery, take)
        else:
            self._hand_out_again(delivery, record, take)

    def _hand_out_again(self, delivery: Delivery, record: bytes | memoryview, take: Take) -> None:
        queue = delivery.queue
        self._hand_out(delivery, record, take)
        row = self._row(delivery, take)
        took = Took(queue.key, queue.next_offset, UNKNOWN, (row,), queue.attempt_id)
        self._journal.note(took)

    def _is_own(self, source: Source, record: bytes | memoryview, physical_offset: int) -> bool:
        """Return whether a retry is of its group and topic, and not of one that was deleted."""
        if self._store.removal.topics.hides(source.asked_topic, physical_offset):
            return False
        if source.kind == PLUS_RETRY:
            return True
        origin = _origin(record)
        if origin is not None:
            return origin == source.asked_topic
        if not self._registry.is_shared(source):
            return True
        if source.topic not in self._told:
            self._told.add(source.topic)
            log.error(
                "group %s gets no messages of %s that name no topic, as RocketMQ 5 makes them: "
                "another group has that topic of retries, too. They stay in the log, for who may "
                "read it to send them again",
                source.group.name,
                source.topic,
            )
        return False

    # What 4.x consumers have given back

    def _is_of(self, delivery: Delivery, record: bytes | memoryview, take: Take) -> bool:
        """Note which topic a message of `%RETRY%group` is of; False when nobody wants it."""
        origin = _origin(record)
        if origin is not None and origin != delivery.topic:
            delivery.topic = origin
            return True
        return take.request.matches.accepts(record)

    def _sort(self, delivery: Delivery, record: bytes | memoryview, take: Take) -> None:
        """Find out about a message that was in flight when the broker started."""
        delivery.topic = take.consumption.topic
        if not self._is_of(delivery, record, take):
            self._journal.note(Done(delivery.queue.key, delivery.offset))
            self.end(delivery)
        elif delivery.topic != take.consumption.topic:
            self._park(delivery, take)
        elif delivery.attempt > take.attempts_max:
            self._bury(delivery, take)
        else:
            self._hand_out_again(delivery, record, take)

    def _park(self, delivery: Delivery, take: Take) -> None:
        """Leave a message to receives of its own topic."""
        if self._registry.has_topic(delivery.topic):
            delivery.queue.source.group.park(delivery)
        else:
            self._bury(delivery, take)

    def _take_parked(self, parked: deque[Delivery], take: Take) -> None:
        delivery = parked.popleft()
        queue = delivery.queue
        # Another receive has read it in this life of the broker, so it is read on the loop.
        result = self._store.get_message(queue.source.topic, queue.queue_id, delivery.offset, 1)
        record = _record_at(result, delivery.offset)
        if record is None or not take.request.matches.accepts(record):
            self._journal.note(Done(queue.key, delivery.offset))
            self.end(delivery)
        elif delivery.attempt > take.attempts_max:
            self._bury(delivery, take)
        else:
            self._hand_out_again(delivery, record, take)

    # Ends

    def end(self, delivery: Delivery) -> None:
        """Note that a message is done; the caller writes that down where it must be."""
        queue, group = delivery.queue, delivery.queue.source.group
        if delivery.client_id:
            group.let_go(delivery)
        self._lapses.release(delivery)
        group.in_flight -= 1
        self.in_flight -= 1
        if queue.remove(delivery):
            self.settle(queue)

    def keep_acknowledged(self, delivery: Delivery) -> None:
        """Let nobody have a message of an ordered queue that is done once all before it are."""
        serial = delivery.serial
        self._lapses.release(delivery)
        let_go(delivery)
        delivery.serial = serial
        delivery.is_acked = True

    def _take_back(self, delivery: Delivery, consumption: Consumption) -> None:
        """Let an acknowledgement count no more: a message before it comes again."""
        kind, queue_id = delivery.queue.source.kind, delivery.queue.queue_id
        delivery.is_acked = False
        with suppress(ValueError):
            consumption.ended.remove(Receipt(kind, queue_id, delivery.offset, delivery.serial))

    # Ordered groups

    def _open_batch(self, queue: PopQueue, take: Take) -> bool:
        """Begin a batch of an ordered group; False while another one is in hand."""
        queue.is_fifo = True
        if queue.is_blocked:
            return False
        attempt_id = take.request.attempt_id
        if queue.attempt_id != attempt_id:
            self.close_batch(queue, take.consumption)
            queue.attempt_id = attempt_id
            if attempt_id:
                take.consumption.attempts.setdefault(attempt_id, []).append(queue)
        return True

    def close_batch(self, queue: PopQueue, consumption: Consumption) -> None:
        """Forget whose attempt has a queue's batch."""
        queues = consumption.attempts.get(queue.attempt_id)
        if queues is not None:
            if queue in queues:
                queues.remove(queue)
            if not queues:
                del consumption.attempts[queue.attempt_id]
        queue.attempt_id = ""

    def _repeat(self, take: Take) -> None:
        """Hand the messages in hand of an attempt out again, with new handles, not counted."""
        for queue in take.consumption.attempts.get(take.request.attempt_id, ()):
            if not queue.is_blocked:
                continue  # all has lapsed: it is taken anew
            rows: list[Row] = []
            for delivery in list(queue.in_flight.values()):
                if not delivery.serial or (delivery.is_acked and not rows):
                    continue  # it comes again by itself; or with one before it that does
                result = self._store.get_message(
                    queue.source.topic, queue.queue_id, delivery.offset, 1
                )
                record = _record_at(result, delivery.offset)
                if record is not None:
                    if delivery.client_id:
                        queue.source.group.let_go(delivery)
                    if delivery.is_acked:
                        self._take_back(delivery, take.consumption)
                    redelivered = take.consumption.redelivered
                    self._hand_out(delivery, record, take)
                    take.consumption.redelivered = redelivered
                    rows.append(self._row(delivery, take))
            if rows:
                took = Took(queue.key, queue.next_offset, UNKNOWN, tuple(rows), queue.attempt_id)
                self._journal.note(took)


def _origin(record: bytes | memoryview) -> str | None:
    """Return the topic that a message was sent to before it came into one of retries.

    None where it does not say, as copies of RocketMQ 5.
    """
    properties = record_properties(record, 0, len(record)) or b""
    origin = find_property(properties, _RETRY_TOPIC)
    return None if origin is None else origin.decode("utf-8", "replace")


def _records(
    view: memoryview | bytes,
) -> Iterator[tuple[memoryview | bytes, int, int, int]]:
    """Yield the records of a run: bytes, queue offset, physical offset, number of this delivery."""
    position, end = 0, len(view)
    while position < end:
        size, offset, physical_offset, sys_flag, times = _HEAD.unpack_from(view, position)
        hosts: int = sys_flag & HOSTS_BITS
        if hosts:
            layout = FIXED_BY_HOSTS[hosts >> HOSTS_SHIFT]
            times = layout.unpack_from(view, position)[_FIXED_RECONSUME]
        yield view[position : position + size], offset, physical_offset, max(0, times) + 1
        position += size


def _record_at(result: GetMessageResult, offset: int) -> memoryview | bytes | None:
    """Return the record of one offset among those read; None when it is not there."""
    for view in result.views:
        for record, found, _, _ in _records(view):
            if found == offset:
                return record
    return None
