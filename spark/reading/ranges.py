"""Ranges of a queue as raw records, in order, with several pulls under way.

Queue offsets are dense, so pulls at o, o+n, o+2n ... can be under way together on one connection:

    range     [start ............................................. end)
    slots      [o, o+n)  [o+n, o+2n)  [o+2n, o+3n)   at most `in_flight`, each with one pull
    blocks     yielded from the front slot; the others keep theirs

A broker has caps of its own (RocketMQ's 32 messages and 256 KiB from memory, 8 and 64 KiB from
disk). An answer that is short is followed up from where it ended, and n becomes what it brought;
after several full answers a larger n is tried again. With a filter only the broker knows where
its answer ends, so one pull is under way at a time, the next one while a block is worked on.

Nothing is left out silently. An answer without messages, in the middle of messages that are known
to be there, means that they expired, that the broker lost its end in a crash, or that it needs a
moment; `_available` tells which. A broker that is away is waited for `retry_timeout_s` long.

A Spark worker's main thread.
Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java (getMessage,
isTheBatchFull), store/.../config/MessageStoreConfig.java (maxTransfer...),
broker/.../processor/PullMessageProcessor.java (the codes of its answers)
"""

from __future__ import annotations

import logging
import re
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from skylarkmq.client.errors import BrokerError, ProtocolError, RocketMQError, RouteNotFound
from skylarkmq.client.wire.api_pull import PulledRecords, PullStatus, pulled_in
from skylarkmq.kernel import twin
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.flags import MASTER_ID
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.record import MIN_RECORD_SIZE, QUEUE_OFFSET_POSITION
from skylarkmq.remoting.waiting import backoff_s
from skylarkmq.spark.cluster import ROUTE_RETRY_AGE_S, BlockingClient, may_repeat
from skylarkmq.spark.errors import DataLost, NoProgress
from skylarkmq.spark.offsets import OffsetRange, describe
from skylarkmq.spark.options import ReadSettings
from skylarkmq.spark.own_loop import Pending

log = logging.getLogger(__name__)

PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 2.0
"""Between tries after a failure: doubling, capped."""
REMOVING: Final = "MESSAGE_WAS_REMOVING"
"""The remark of an answer that passed over messages whose file is being deleted."""

DAMAGED_HINT: Final = (
    "Check the broker's disk (on a copy: skylarkmq store verify); to read on without damaged "
    "messages set onCorruption=skip"
)
CLOSED_QUEUE: Final = "its topic has fewer read queues than it had"
CLOSED_CURE: Final = "Give the topic its read queues back (updateTopic -r) until all is read,"
_CLOSED: Final = re.compile(r"queueId\[\d+\] is illegal")
STAY_S: Final = 30.0
"""How long suggestions are passed over after a failure."""
RECENT_MAX: Final = 4
PATIENCE_FIRST: Final = 2
PATIENCE_MAX: Final = 1024


class Block(NamedTuple):
    """Records back to back as a broker sent them, and the queue offsets [start, end) they cover.

    All records lie in [start, end), in rising order. Without a filter every offset is there; with
    one, those that are missing did not match. What `on_data_loss` was told of is missing as well.
    Without records: the message is damaged, and onCorruption=skip leaves it out.
    """

    records: bytes
    start: int
    end: int


class DamagedAnswerError(ProtocolError):
    """What a broker sent for a pull is no run of records: one of them is damaged."""


class _Slot:
    """A part of the range: [at, end) is still to come, `blocks` are what came before its turn."""

    __slots__ = ("asked", "at", "blocks", "end", "of_master", "pending", "strange")

    def __init__(self, start: int, end: int) -> None:
        self.at = start
        self.end = end
        self.asked = 0
        self.of_master = True
        self.pending: Pending | None = None
        self.blocks: deque[Block] = deque()
        self.strange: PulledRecords | None = None
        """An answer without messages, to be judged when the slot is the front one."""


class RangeReader:
    """Reads [start, end) of one queue; iterate once, in one thread."""

    def __init__(
        self,
        client: BlockingClient,
        wanted: OffsetRange,
        reading: ReadSettings,
        on_data_loss: Callable[[DataLost], None] | None = None,
    ) -> None:
        """Send nothing yet.

        Args:
            on_data_loss: told what is lost, and reading goes on after it; None: raised.
        """
        self._client = client
        self._queue = wanted.key
        self._next, self._end = wanted.start, wanted.end
        subscription = reading.subscription(wanted.topic)
        self._filters = subscription is not None and subscription.sub_string != "*"
        self._in_flight = 1 if self._filters else reading.pulls_in_flight
        self._on_data_loss = on_data_loss
        self._requests = client.pulls_of(
            wanted.key, reading.pull_bytes, group=reading.group, subscription=subscription
        )
        self._source = PullSource(client, wanted.key)
        self._stride = Stride(reading.pull_count)
        self._slots: deque[_Slot] = deque()
        # Damaged messages may be left out; one with a filter has no offset that is known.
        self._skips = reading.on_corruption == "skip" and not self._filters
        self._alone_until = 0  # a pull below it asks for one message, to find the damaged one
        # What a pull brings is known once one was answered; until then one is under way.
        self._knows_stride = False
        # Failures since the last progress, and when that was.
        self._failure_count = 0
        self._progress_s = 0.0

    def __iter__(self) -> Iterator[Block]:
        """Yield blocks in order; together they cover the range.

        Raises:
            DataLost: messages of the range are gone, and there is no `on_data_loss`.
            NoProgress: no broker gave anything for `retry_timeout_s`; its cause says why.
            RocketMQError: refused.
        """
        slots = self._slots
        self._progress_s = self._client.clock.monotonic()
        try:
            while self._fill():
                try:
                    self._advance()
                except RocketMQError as error:
                    self._recover(error)
                while slots:
                    yield from self._blocks_of(slots[0])
                    if slots[0].at < slots[0].end:
                        break
                    slots.popleft()
        finally:
            self._drop()

    def _blocks_of(self, slot: _Slot) -> Iterator[Block]:
        blocks = slot.blocks
        while blocks:
            yield blocks.popleft()

    # Asking

    def _fill(self) -> bool:
        """Plan new slots; False when all is read."""
        slots = self._slots
        alone = self._next < self._alone_until
        count = self._in_flight if self._knows_stride and not alone else 1
        if len(slots) > count // 2:  # several leave in one write, and are answered in one
            return True
        while self._next < self._end and len(slots) < count:
            size = 1 if alone else self._stride.size
            end = self._end if self._filters else min(self._end, self._next + size)
            slots.append(_Slot(self._next, end))
            self._next = end
        return bool(slots)

    def _ask(self, slot: _Slot) -> None:
        """Send the slot's next pull unless one is under way."""
        if slot.pending is None and slot.strange is None and slot.at < slot.end:
            slot.asked = min(slot.end - slot.at, self._stride.size)
            request = self._requests.at(slot.at, slot.asked)
            slot.pending = self._client.begin(self._source.address, request, hold=True)
            slot.of_master = self._source.is_master

    def _advance(self) -> None:
        """Wait for the front slot's answer, and take the others that have come with it."""
        slots, client = self._slots, self._client
        for slot in slots:
            self._ask(slot)
        front = slots[0]
        for slot in tuple(slots):
            if slot.pending is not None and (slot is front or client.has_answer(slot.pending)):
                self._take(slot)
                self._ask(slot)
        client.send_held(self._source.address)
        if front.strange is not None:
            answer, front.strange = front.strange, None
            self._judge(front, answer)

    # Answers

    def _take(self, slot: _Slot) -> None:
        """Take the answer to the slot's pull, waiting for it if need be."""
        pending, slot.pending = slot.pending, None
        assert pending is not None, "the caller looked"
        answer = pulled_in(self._client.wait(pending, self._client.deadline_s()), pending.address)
        self._source.suggested(answer.suggested_broker_id)
        records = answer.records
        try:
            span = span_of(records)
            if span is not None and (span.first < slot.at or span.last >= slot.end):
                records = cut(records, slot.at, slot.end)
                span = span_of(records)
        except SpanError as error:
            raise DamagedAnswerError(
                f"{pending.address} sent something that is no record: {error}", hint=DAMAGED_HINT
            ) from error
        if self._filters:
            self._take_filtered(slot, answer, records, span)
        elif span is None or span.first > slot.at:
            slot.strange = answer
        else:
            self._take_dense(slot, records, span)

    def _take_dense(self, slot: _Slot, records: bytes, span: Span) -> None:
        """Add a block without gaps that begins where the slot does."""
        end = span.last + 1
        if not span.is_dense:
            end = first_gap(records)
            records = cut(records, slot.at, end)
        slot.blocks.append(Block(records, slot.at, end))
        self._stride.answered(slot.asked, end - slot.at)
        self._knows_stride = True
        slot.at = end
        if slot is self._slots[-1] and end < slot.end:  # what is left is planned anew
            self._next = slot.end = end
        self._progressed()

    def _take_filtered(
        self, slot: _Slot, answer: PulledRecords, records: bytes, span: Span | None
    ) -> None:
        """Add what matched, and go on where the broker says that it stopped."""
        first_there = slot.at if span is None else span.first
        expired = answer.min_offset > slot.at and first_there != slot.at
        if answer.next_offset <= slot.at or expired or answer.remark == REMOVING:
            slot.strange = answer
            return
        if answer.status not in (PullStatus.FOUND, PullStatus.NO_MATCHED):
            slot.strange = answer
            return
        end = min(slot.end, answer.next_offset)
        if span is not None:
            end = max(end, span.last + 1)
            slot.blocks.append(Block(records, slot.at, end))
        slot.at = end
        self._knows_stride = True
        self._progressed()

    # What an answer without messages means

    def _judge(self, front: _Slot, answer: PulledRecords) -> None:
        """Go on after an answer that did not bring what is at the front.

        Raises:
            DataLost: it is gone.
            NoProgress: this has gone on for too long.
        """
        said = f"the broker answered {_answer_text(answer)}"
        if not front.of_master:
            if not self._source.back_to_master():
                self._pause(self._no_progress(f"its master is away, and of a slave {said}"))
            return
        available = self._available(front.at, answer)
        if available is None:
            self._pause(self._no_progress(said))
        elif available > front.at:
            self._lose(front.at, available, min(available, self._end))
        elif self._failure_count < self._client.settings.retries:
            self._pause(None)  # a broker that just started may not have all its queues yet
        else:
            self._lose(front.at, available, self._end)

    def _available(self, at: int, answer: PulledRecords) -> int | None:
        """Return where messages can be had again; None when the answer does not say.

        That is after `at`, or the end of a queue that ends before `at`.
        """
        if answer.min_offset > at:
            return answer.min_offset
        span = span_of(answer.records)
        if span is not None:
            return max(span.first, at + 1)
        if answer.status is PullStatus.NO_MATCHED and answer.next_offset > at:
            return answer.next_offset
        if answer.status is not PullStatus.NO_MATCHED and answer.max_offset <= at:
            return answer.max_offset
        return None

    def _lose(self, at: int, available: int, go_on_at: int, why: str = "", cure: str = "") -> None:
        lost = DataLost(self._queue, at, available, go_on_at - at, why, cure)
        if self._on_data_loss is None:
            raise lost
        log.warning("%s", lost)
        self._on_data_loss(lost)
        self._drop()
        self._next = go_on_at
        self._progressed()

    # Failures

    def _recover(self, error: RocketMQError) -> None:
        """Ask again after a failure; raise it when that helps no more."""
        for slot in self._slots:
            self._forget(slot)
        if isinstance(error, BrokerError) and is_closed_queue(error):
            front = self._slots[0]
            if not front.blocks:  # else it is asked again once they are yielded
                self._lose(front.at, self._end, self._end, f"{CLOSED_QUEUE} ({error})", CLOSED_CURE)
            return
        broken = isinstance(error, ProtocolError)
        if broken and self._failure_count >= self._client.settings.retries:
            if not (self._skips and isinstance(error, DamagedAnswerError)):
                raise error
            self._step_over(error)
            return
        if not (broken or may_repeat(error) or isinstance(error, RouteNotFound)):
            raise error
        log.warning("%s: %s; asking again", describe(self._queue), error)
        self._pause(self._no_progress(str(error)), error)
        self._source.failed()

    def _step_over(self, error: DamagedAnswerError) -> None:
        """Ask for one message at a time up to the damaged one, and leave that out."""
        front = self._slots[0]
        if front.blocks:
            return  # asked again once they are yielded
        at = front.at
        if at < self._alone_until:
            log.warning(
                "onCorruption=skip, without the message at queue offset %d of %s: %s",
                at,
                describe(self._queue),
                error,
            )
            front.blocks.append(Block(b"", at, at + 1))
            front.at = at + 1
        else:
            self._alone_until = at + front.asked
            self._drop()
            self._next = at
        self._progressed()

    def _pause(self, failure: NoProgress | None, cause: RocketMQError | None = None) -> None:
        """Wait a little longer each time; raise `failure` when time is up."""
        clock, settings = self._client.clock, self._client.settings
        left_s = self._progress_s + settings.retry_timeout_s - clock.monotonic()
        if failure is not None and left_s <= 0:
            raise failure from cause
        self._failure_count += 1
        clock.sleep(backoff_s(self._failure_count, PAUSE_FIRST_S, PAUSE_MAX_S))

    def _no_progress(self, why: str) -> NoProgress:
        at = self._slots[0].at if self._slots else self._next
        return NoProgress(
            f"{describe(self._queue)}: nothing came at queue offset {at} of a range up to "
            f"{self._end} for {self._client.settings.retry_timeout_s:g} s: {why}",
            hint="Option retryTimeoutMs says how long a task waits for its broker",
        )

    def _progressed(self) -> None:
        self._failure_count = 0
        self._progress_s = self._client.clock.monotonic()

    def _forget(self, slot: _Slot) -> None:
        if slot.pending is not None:
            self._client.forget(slot.pending)
        slot.pending = slot.strange = None

    def _drop(self) -> None:
        """Give up all slots; what they hold is read again, or not wanted."""
        for slot in self._slots:
            self._forget(slot)
        self._slots.clear()


def is_closed_queue(error: BrokerError) -> bool:
    """Return whether a broker refuses a queue because its topic has fewer read queues.

    Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/PullMessageProcessor.java
    """
    return error.code == ResponseCode.SYSTEM_ERROR and _CLOSED.match(error.remark) is not None


def _answer_text(answer: PulledRecords) -> str:
    return (
        f"{answer.status.name} {answer.remark}".strip()
        + f" (next {answer.next_offset}, first {answer.min_offset}, end {answer.max_offset})"
    )


class PullSource:
    """The broker that one queue is read from: the master, a slave that it suggests, or any other.

    A broker whose memory no longer holds what is read suggests another member of its set. That one
    may lag: when it does not have what is asked for, the master is asked again, and suggestions
    count no more. After a failure the next member is tried, with a fresh route; a route that was
    known stays good while the name servers are away or have lost it, because the broker may be
    restarting.
    """

    def __init__(self, client: BlockingClient, queue: MessageQueue) -> None:
        self._client = client
        self._queue = queue
        self._members: dict[int, str] = {}
        self._broker_id = MASTER_ID
        self._slave_lags = False
        # Suggestions count from then on: a slave names a master that is away.
        self._suggestions_from_s = 0.0

    @property
    def address(self) -> str:
        """Whom to ask.

        Raises:
            RocketMQError: no broker is known for this queue.
        """
        if not self._members:
            self._members = self._client.members_of(self._queue)
        if self._broker_id not in self._members:
            self._broker_id = min(self._members)
        return self._members[self._broker_id]

    @property
    def is_master(self) -> bool:
        """True when the one that is asked has all that there is."""
        return self._broker_id == MASTER_ID

    def suggested(self, broker_id: int) -> None:
        """Take the suggestion that came with an answer, when there is such a member."""
        if broker_id == self._broker_id or self._slave_lags or broker_id not in self._members:
            return
        if self._client.clock.monotonic() >= self._suggestions_from_s:
            self._broker_id = broker_id

    def back_to_master(self) -> bool:
        """Ask the master from now on, because a slave does not have what is asked for; return
        whether that is news."""
        news, self._slave_lags = not self._slave_lags, True
        if news:
            log.info("%s: a slave lags, going on at the master", describe(self._queue))
        self._broker_id = MASTER_ID
        self._refresh()
        return news

    def failed(self) -> None:
        """Turn to the next member, after the one that is asked has failed; stay there a while."""
        self._suggestions_from_s = self._client.clock.monotonic() + STAY_S
        self._refresh()
        members = sorted(self._members)
        if members:
            later = [member for member in members if member > self._broker_id]
            self._broker_id = (later or members)[0]

    def _refresh(self) -> None:
        try:
            self._members = self._client.members_of(self._queue, max_age_s=ROUTE_RETRY_AGE_S)
        except RocketMQError as error:
            log.debug("%s: no fresh route: %s", describe(self._queue), error)


class Stride:
    """How many messages one pull asks for: what the broker's caps let through, as answers show.

        short answer    the size becomes the most that the last few answers brought: the caps count
                        messages or bytes, and an answer also ends where a log file does
        full answers    after a few in a row the size is doubled; when that gains nothing, the next
                        try waits twice as long

    `size` is never above `maximum`.
    """

    __slots__ = ("_full_count", "_grown", "_patience", "_recent", "maximum", "size")

    def __init__(self, maximum: int) -> None:
        self.size = self.maximum = maximum
        self._recent: deque[int] = deque(maxlen=RECENT_MAX)
        self._full_count = 0
        self._patience = PATIENCE_FIRST
        # Whether the size was doubled and no answer has shown yet that it was worth it.
        self._grown = False

    def answered(self, asked: int, count: int) -> None:
        """Learn from an answer of `count` messages to a pull of `asked`."""
        if count < asked:
            self._recent.append(count)
            self.size = max(1, *self._recent)
            self._full_count = 0
            if self._grown:
                self._patience = min(self._patience * 2, PATIENCE_MAX)
                self._grown = False
        elif asked >= self.size:
            self._recent.append(count)
            self._full_count += 1
            self._grown = False
            if self.size < self.maximum and self._full_count >= self._patience:
                self.size = min(self.maximum, self.size * 2)
                self._full_count = 0
                self._grown = True


# Which queue offsets a run of records covers, found by hopping over their sizes: pure. The layout
# is that of protocol/record.py.

_size_at: Final = struct.Struct(">i").unpack_from
_queue_offset_at: Final = struct.Struct(">q").unpack_from


class Span(NamedTuple):
    """The queue offsets of the first and the last record, and how many records there are."""

    first: int
    last: int
    records: int

    @property
    def is_dense(self) -> bool:
        """Each offset from the first to the last is there, once."""
        return self.last - self.first + 1 == self.records


class SpanError(ValueError):
    """The bytes are no run of records."""


def span_of(records: bytes) -> Span | None:
    """Return what the records cover, None when there are none.

    Raises:
        SpanError: a size leads past the end, or is smaller than any record.
    """
    count, last_position, position = hop(records)
    if position != len(records):
        raise SpanError(f"record {count} at byte {position} is cut, or its size is wrong")
    if count == 0:
        return None
    (first,) = _queue_offset_at(records, QUEUE_OFFSET_POSITION)
    (last,) = _queue_offset_at(records, last_position + QUEUE_OFFSET_POSITION)
    return Span(first, last, count)


@twin
def hop(records: bytes) -> tuple[int, int, int]:
    """Return how many whole records there are, where the last one begins, and where they end."""
    end = len(records)
    position = last_position = count = 0
    while end - position >= MIN_RECORD_SIZE:
        (size,) = _size_at(records, position)
        if not MIN_RECORD_SIZE <= size <= end - position:
            break
        last_position = position
        position += size
        count += 1
    return count, last_position, position


def offsets_of(records: bytes) -> list[tuple[int, int]]:
    """Return (queue offset, byte position) of each record of a run that `span_of` took."""
    found: list[tuple[int, int]] = []
    position, end = 0, len(records)
    while position < end:
        (queue_offset,) = _queue_offset_at(records, position + QUEUE_OFFSET_POSITION)
        found.append((queue_offset, position))
        (size,) = _size_at(records, position)
        position += size
    return found


def cut(records: bytes, start: int, end: int) -> bytes:
    """Return the records with queue offsets in [start, end), out of a run in rising order."""
    first = last = len(records)
    for queue_offset, position in offsets_of(records):
        if queue_offset >= start:
            first = min(first, position)
        if queue_offset >= end:
            last = position
            break
    return records[first:last]


def first_gap(records: bytes) -> int:
    """Return the queue offset at which a run stops to be dense: the first that is missing."""
    (expected, _), *_ = offsets = offsets_of(records)
    for queue_offset, _ in offsets:
        if queue_offset != expected:
            break
        expected += 1
    return expected
