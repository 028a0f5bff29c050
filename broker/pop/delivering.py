"""How a receive hands out what was read: each message is a delivery, or goes another way.

`%RETRY%group`, where 4.x consumers of the group have given messages back, holds those of all
topics of the group. Who looks there takes what is of its own topic (RETRY_TOPIC) and parks the
rest for receives of theirs; a message whose topic is no more is a dead letter. `%RETRY%a_b_c` is
the topic of retries of group a in b_c, of a_b in c, and of the pull consumers of a_b_c: a copy
says which topic it is of, and receives of another one pass it over. What says nothing, as copies
of RocketMQ 5, is handed out where the topic has one meaning, else passed over and logged.
`%RETRY%a+b_c` has one. Retries of a topic that was deleted since are passed over, too.

Loop thread.
Source: apache/rocketmq@rocketmq-all-5.3.3 broker/.../processor/PopMessageProcessor.java
(popMsgFromQueue)
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Iterator
from typing import Final

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.pop.consumption import Consumption, Source
from skylarkmq.broker.pop.deliveries import Delivery, PopQueue
from skylarkmq.broker.pop.handles import OLD_RETRY, PLUS_RETRY, RETRY, Receipt
from skylarkmq.broker.pop.in_flight import InFlight
from skylarkmq.broker.pop.moves import Moves
from skylarkmq.broker.pop.registry import PopRegistry
from skylarkmq.broker.pop.requests import COUNT_MAX, Popped, PopRequest
from skylarkmq.broker.pop.restoring import end_of
from skylarkmq.broker.pop.states import ACKNOWLEDGED, ACQUIRED, MOVING
from skylarkmq.broker.requests.processor import Context
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.properties import find_property
from skylarkmq.protocol.record import FIXED_BY_HOSTS, HOSTS_BITS, HOSTS_SHIFT, record_properties
from skylarkmq.store.pop.journal_records import UNKNOWN, Row, Took
from skylarkmq.store.read.filtering import RecordFilter
from skylarkmq.store.results import GetMessageResult

log = logging.getLogger(__name__)

_RETRIES: Final = (RETRY, PLUS_RETRY)
SIZE_MAX: Final = 256 << 10
"""Bytes of the records of one receive, of which one alone may have more."""
LOOKS_MAX: Final = 16
"""Reads of one receive that find nothing, in one turn of the loop."""

_HEAD: Final = struct.Struct(">i16xqqi32xi")
"""Size, queue offset, physical offset, system flag and, where no host is IPv6, attempts."""
_RETRY_TOPIC: Final = names.RETRY_TOPIC.encode() + b"\x01"
_FIXED_RECONSUME: Final = 12  # of the fields of a record
assert _HEAD.size == 76


class Take:
    """One receive under way.

    Attributes:
        cold: a queue, offset and number of messages to read off the loop.
        is_unfinished: it has looked at enough for one turn and found nothing.
    """

    __slots__ = ("attempts_max", "cold", "consumption", "count_max", "due_ms",
                 "is_unfinished", "looks", "now_ms", "popped", "request", "serial",
                 "size", "visible_ms")  # fmt: skip

    def __init__(self, consumption: Consumption, request: PopRequest, attempts_max: int) -> None:
        self.consumption = consumption
        self.request = request
        self.attempts_max = attempts_max
        self.count_max = min(max(request.count, 1), COUNT_MAX)
        self.popped: list[Popped] = []
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


class Deliverer:
    """Hands out messages that were read. Loop thread."""

    def __init__(
        self,
        context: Context,
        registry: PopRegistry,
        in_flight: InFlight,
        moves: Moves,
        stats: BrokerStats,
    ) -> None:
        self._store = context.store
        self._clock = context.clock
        self._journal = in_flight.journal
        self._registry = registry
        self._in_flight = in_flight
        self._timeouts = in_flight.timeouts
        self._moves = moves
        self._stats = stats
        self._logged: set[str] = set()  # topics of retries with messages that name no topic

    def deliver_new(self, queue: PopQueue, result: GetMessageResult, take: Take) -> None:
        """Hand out what was read of a queue from its next offset on."""
        matches, topic = take.request.matches, take.consumption.topic
        mark, found, before = queue.mark, len(take.popped), queue.next_offset
        is_shared, is_retry = queue.source.kind == OLD_RETRY, queue.source.kind in _RETRIES
        taken: list[Delivery] = []
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
                    self._park(delivery)
                elif attempt > take.attempts_max:
                    self._bury(delivery)
                else:
                    self._hand_out(delivery, record, take)
                taken.append(delivery)
        queue.next_offset = max(result.next_begin_offset, before)
        if queue.next_offset > before:
            pulled = self._stats.pulled_by(queue.source.topic, queue.source.group.name)
            pulled[queue.queue_id] = queue.next_offset
            self._in_flight.room.add(queue, len(taken))
            visible_ms = take.visible_ms
            rows = tuple(
                [
                    Row(each.offset, each.physical_offset, each.serial, visible_ms, each.attempt)
                    for each in taken
                ]
            )
            end = last[1] if last[0] == queue.next_offset - 1 else end_of(self._store, queue)
            took = Took(queue.key, queue.next_offset, end, rows, queue.attempt_id)
            self._journal.note(took)
        if queue.mark != mark:
            self._in_flight.publish_mark(queue)
        if len(take.popped) == found:
            take.looks -= 1
            take.is_unfinished = take.looks <= 0

    def deliver_again(self, queue: PopQueue, result: GetMessageResult, take: Take) -> None:
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
            self._in_flight.drop(delivery)
        else:
            self._hand_out_again(delivery, record, take)

    def deliver_parked(self, parked: deque[Delivery], take: Take) -> None:
        """Hand out the first message that waits for a receive of its topic; else it is done."""
        delivery = parked.popleft()
        queue = delivery.queue
        # Another receive has read it in this life of the broker, so it is read on the loop.
        result = self._store.get_message(queue.source.topic, queue.queue_id, delivery.offset, 1)
        record = _record_at(result, delivery.offset)
        if record is None or not take.request.matches.accepts(record):
            self._in_flight.drop(delivery)
        else:
            self._hand_out_again(delivery, record, take)

    def repeat(self, delivery: Delivery, take: Take) -> Row | None:
        """Hand a message out again with a new handle, not counted; None when it is not there."""
        queue, consumption = delivery.queue, take.consumption
        result = self._store.get_message(queue.source.topic, queue.queue_id, delivery.offset, 1)
        record = _record_at(result, delivery.offset)
        if record is None:
            return None
        if delivery.client_id:
            queue.source.group.let_go(delivery)
        if delivery.state is ACKNOWLEDGED:
            consumption.take_back(delivery)
        redelivered = consumption.redelivered
        self._hand_out(delivery, record, take)
        consumption.redelivered = redelivered
        return delivery.row(take.visible_ms)

    # One message

    def _hand_out(self, delivery: Delivery, record: bytes | memoryview, take: Take) -> None:
        request, queue = take.request, delivery.queue
        if not take.serial:
            take.serial = self._in_flight.next_serial()
            take.now_ms = self._timeouts.now_ms()
            take.due_ms = take.now_ms + request.invisible_ms
            take.visible_ms = self._clock.now_ms() + request.invisible_ms
        delivery.move_to(ACQUIRED)
        delivery.serial = take.serial
        delivery.since_ms = take.now_ms
        delivery.client_id = request.client_id
        delivery.renewals = 0 if request.is_renewed else -1
        self._timeouts.set(delivery, take.due_ms)
        if request.client_id:
            queue.source.group.took(delivery)
        if delivery.attempt > 1:
            take.consumption.redelivered += 1
        receipt = Receipt(queue.source.kind, queue.queue_id, delivery.offset, take.serial)
        take.popped.append(Popped(receipt, record, delivery.attempt))
        take.size += len(record)

    def _hand_out_again(self, delivery: Delivery, record: bytes | memoryview, take: Take) -> None:
        if delivery.attempt > take.attempts_max:
            self._bury(delivery)
            return
        queue = delivery.queue
        self._hand_out(delivery, record, take)
        rows = (delivery.row(take.visible_ms),)
        took = Took(queue.key, queue.next_offset, UNKNOWN, rows, queue.attempt_id)
        self._journal.note(took)

    def _bury(self, delivery: Delivery) -> None:
        delivery.move_to(MOVING)
        delivery.to_dead_letters = True
        self._moves.add(delivery)

    # Messages of topics of retries

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
        if source.topic not in self._logged:
            self._logged.add(source.topic)
            log.error(
                "group %s gets no messages of %s that name no topic, as RocketMQ 5 makes them: "
                "another group has that topic of retries, too. They stay in the log, for who may "
                "read it to send them again",
                source.group.name,
                source.topic,
            )
        return False

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
            self._in_flight.drop(delivery)
        elif delivery.topic != take.consumption.topic:
            self._park(delivery)
        else:
            self._hand_out_again(delivery, record, take)

    def _park(self, delivery: Delivery) -> None:
        """Leave a message to receives of its own topic."""
        if self._registry.has_topic(delivery.topic):
            delivery.queue.source.group.park(delivery)
        else:
            self._bury(delivery)


def _origin(record: bytes | memoryview) -> str | None:
    """Return the topic that a message was sent to before it came into one of retries.

    None where it does not say, as copies of RocketMQ 5.
    """
    properties = record_properties(record, 0, len(record)) or b""
    origin = find_property(properties, _RETRY_TOPIC)
    return None if origin is None else origin.decode("utf-8", "replace")


def _records(view: memoryview | bytes) -> Iterator[tuple[memoryview | bytes, int, int, int]]:
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
