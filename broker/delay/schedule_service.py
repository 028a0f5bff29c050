"""Delayed messages: parked in SCHEDULE_TOPIC_XXXX, delivered to their real topic when due.

Queue n - 1 of the schedule topic holds the messages of delay level n in the order of their due
times, which their queue units carry. Each level is in one of four states:

    idle         nothing is parked: no timer, woken by the store's arrival listener
    waiting      the first message is not due: one timer, at most 1 s away so that a step of the
                 wall clock is noticed
    ready        something is due: in line for a turn
    delivering   a batch is on its way; its results end the state

A turn belongs to one level and delivers at most UNITS_PER_TURN messages as one batch of the store,
so the loop is never held for long, however many fall due at once, and under SYNC_FLUSH a sync frees
them all. A delivered copy is a new message in the real topic and queue: body, properties, flags,
born time and hosts are those of the parked record.

A level's offset moves on behind messages that are stored under the flush mode, never over one that
is not: a put that fails is tried again after a pause. A crash repeats up to
`flushDelayOffsetInterval` of deliveries. A record that cannot be read, or that names no possible
target, is passed over with an error in the log. Records that may have to come from the disk are
read off the loop.

Unlike RocketMQ, which polls each level every 100 ms, and delivers without waiting for a sync.
Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../schedule/ScheduleMessageService.java
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from skylarkmq.broker.delay.delay_offsets import DelayOffsetTable
from skylarkmq.broker.delay.delayed_message import Parked, ParkedReader, Place, delivered
from skylarkmq.broker.delay.due_times import DueTimes
from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.protocol.flags import RMQ_SYS_SCHEDULE_TOPIC
from skylarkmq.store.delay_levels import LEVELS_MAX, schedule_queue_id
from skylarkmq.store.log.commit_log import CommitLog
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.queue.consume_queue import PRE_BLANK_SIZE, is_address
from skylarkmq.store.results import STORED, ConsumeQueueUnit, MessageInner, PutMessageResult

log = logging.getLogger(__name__)

ReadParked = Callable[[Place], Parked]

UNITS_PER_TURN: Final = 128
BYTES_PER_TURN: Final = 1 << 20
"""Bytes of the records of a turn; one record may be larger."""
WAIT_MAX_S: Final = 1.0
PUT_RETRY_S: Final = 1.0
ERROR_RETRY_S: Final = 10.0
NO_DELAY_MS: Final = 1 << 62
"""For a level that is configured no more: its messages leave at their due times alone."""


class _Level:
    """One level on its way through its queue."""

    __slots__ = (
        "due",
        "end_offset",
        "failed_offset",
        "failing",
        "head",
        "in_line",
        "level",
        "offset",
        "queue_id",
        "reader",
        "timer",
        "under_way",
    )

    def __init__(self, level: int, delay_ms: int, offset: int, commit_log: CommitLog) -> None:
        self.level = level
        self.queue_id = schedule_queue_id(level)
        self.reader = ParkedReader(commit_log, RMQ_SYS_SCHEDULE_TOPIC, self.queue_id)
        self.due = DueTimes(delay_ms)
        self.offset = offset  # queue offset of the next message to deliver
        self.head: tuple[int, int] | None = None  # (queue offset, due ms) of the first message
        self.timer: TimerHandle | None = None
        self.in_line = False
        self.under_way = False  # a read or a batch without a result
        self.end_offset = offset  # queue offset behind the batch
        self.failed_offset = -1  # of the first message that was refused, -1 for none
        self.failing = False  # the last turn ended with a refusal, which was logged

    @property
    def idle(self) -> bool:
        return self.timer is None and not self.in_line and not self.under_way


class ScheduleMessageService:
    """Delivers the delayed messages of a store between `start` and `stop`. Loop thread."""

    def __init__(self, store: MessageStore, clock: Clock, table: DelayOffsetTable) -> None:
        self.delivered_count = 0
        self.skipped_count = 0  # unreadable, or without a possible target
        self._store = store
        self._clock = clock
        self._table = table
        self._levels: dict[int, _Level] = {}
        self._line: deque[_Level] = deque()
        self._turn_planned: TimerHandle | None = None
        self._running = False
        self._settled: asyncio.Event | None = None
        store.add_arrival_listener(self._arrived, RMQ_SYS_SCHEDULE_TOPIC)

    def start(self) -> None:
        """Deliver what is due and wait for the rest. The store has started, the table is loaded.

        Levels beyond the configured ones are served too, as long as messages are parked there.
        """
        self._running = True
        for level in range(1, LEVELS_MAX + 1):
            if self._store.max_offset(RMQ_SYS_SCHEDULE_TOPIC, schedule_queue_id(level)):
                self._get_in_line(self._level(level))

    async def stop(self) -> None:
        """Deliver no more, wait for the puts under way, and write the offsets.

        Call while the store still writes and syncs.
        """
        self._running = False
        if self._turn_planned is not None:
            self._turn_planned.cancel()
            self._turn_planned = None
        self._line.clear()
        for level in self._levels.values():
            level.in_line = False
            if level.timer is not None:
                level.timer.cancel()
                level.timer = None
        if self._is_delivering:
            self._settled = asyncio.Event()
            await self._settled.wait()
        await self._table.stop()

    def pending_count(self, level: int) -> int:
        """Messages of a level that are parked and not delivered."""
        end = self._store.max_offset(RMQ_SYS_SCHEDULE_TOPIC, schedule_queue_id(level))
        known = self._levels.get(level)
        return max(0, end - (known.offset if known is not None else self._table.get(level)))

    @property
    def waiting_count(self) -> int:
        """Messages of all levels that are parked and not delivered."""
        return sum(self.pending_count(level) for level in self._levels)

    @property
    def lag_s(self) -> float:
        """How long the message has been due that is most behind; 0 when none is."""
        now_ms = self._clock.now_ms()
        dues = [
            level.head[1]
            for level in self._levels.values()
            if level.head is not None and level.head[0] == level.offset
        ]
        return max(0, now_ms - min(dues, default=now_ms)) / 1000

    @property
    def is_behind(self) -> bool:
        """Whether something is due, or on its way."""
        return bool(self._line) or self._is_delivering or self.lag_s > 0

    @property
    def levels(self) -> list[int]:
        """Levels that ever held a message."""
        return sorted(self._levels)

    @property
    def _is_delivering(self) -> bool:
        return any(level.under_way for level in self._levels.values())

    # Waking

    def _arrived(self, _topic: str, queue_id: int, _max_offset: int) -> None:
        if not self._running:
            return
        level = self._level(queue_id + 1)
        if level.idle:
            self._get_in_line(level)

    def _level(self, number: int) -> _Level:
        level = self._levels.get(number)
        if level is None:
            levels = self._store.delay_levels
            delay_ms = levels.delay_ms(number) if number <= levels.max_level else NO_DELAY_MS
            offset = self._table.get(number)
            level = self._levels[number] = _Level(number, delay_ms, offset, self._store.commit_log)
        return level

    def _get_in_line(self, level: _Level) -> None:
        if not self._running or level.in_line or level.under_way:
            return
        level.in_line = True
        self._line.append(level)
        self._plan_turn()

    def _plan_turn(self) -> None:
        if self._line and self._turn_planned is None:
            self._turn_planned = self._clock.call_at(self._clock.monotonic(), self._turn)

    def _wait(self, level: _Level, wait_s: float) -> None:
        when_s = self._clock.monotonic() + wait_s
        level.timer = self._clock.call_at(when_s, self._wake, level)

    def _wake(self, level: _Level) -> None:
        level.timer = None
        if level.head is not None and level.head[0] == level.offset:
            wait_s = self._wait_of(level, *level.head)
            if wait_s > 0:
                self._wait(level, min(wait_s, WAIT_MAX_S))
                return
        self._get_in_line(level)

    # Delivering

    def _turn(self) -> None:
        self._turn_planned = None
        level = self._line.popleft()
        level.in_line = False
        self._guarded(level, lambda: self._deliver(level))
        self._plan_turn()

    def _guarded(self, level: _Level, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            log.exception(
                "delay level %d stands still at offset %d, next attempt in %d s",
                level.level,
                level.offset,
                ERROR_RETRY_S,
            )
            if level.idle:
                self._wait(level, ERROR_RETRY_S)

    def _deliver(self, level: _Level) -> None:
        """Put what is due, one turn's worth; else wait for it, or fall idle."""
        low = self._store.min_offset(RMQ_SYS_SCHEDULE_TOPIC, level.queue_id)
        high = self._store.max_offset(RMQ_SYS_SCHEDULE_TOPIC, level.queue_id)
        self._clip(level, low, high)
        level.head = None
        if level.offset == high:
            return
        units = self._store.queue_units(
            RMQ_SYS_SCHEDULE_TOPIC, level.queue_id, level.offset, UNITS_PER_TURN
        )
        if not units:
            raise LookupError(f"queue {level.queue_id} has no unit {level.offset}")
        level.head = (level.offset, self._due_of(level, units[0]))
        due: list[tuple[int, ConsumeQueueUnit]] = []
        offset, wait_s, size = level.offset, 0.0, 0
        for unit in units:
            wait_s = self._wait_of(level, offset, self._due_of(level, unit))
            if wait_s > 0:
                break
            if unit.record_size != PRE_BLANK_SIZE:
                size += unit.record_size
                if due and size > BYTES_PER_TURN:
                    break
                due.append((offset, unit))
            offset += 1
        if offset == level.offset:
            self._wait(level, min(wait_s, WAIT_MAX_S))
        elif due and not self._store.is_in_memory(due[0][1].commit_offset):
            self._read(level, due, offset)
        else:
            self._put(level, self._copies(level, due, level.reader.read), offset)

    def _read(
        self, level: _Level, due: list[tuple[int, ConsumeQueueUnit]], end_offset: int
    ) -> None:
        """Fetch what may have to come from the disk off the loop, then put it."""
        level.under_way = True

        def put(records: list[bytes | None]) -> None:
            found = iter(records)
            copies = self._copies(level, due, lambda place: level.reader.parse(next(found), place))
            self._put(level, copies, end_offset)

        def done(records: list[bytes | None]) -> None:
            level.under_way = False
            if self._running:
                self._guarded(level, lambda: put(records))
            elif self._settled is not None and not self._is_delivering:
                self._settled.set()

        self._store.read_records([unit.commit_offset for _, unit in due], done)

    @staticmethod
    def _clip(level: _Level, low: int, high: int) -> None:
        offset = min(max(level.offset, low), high)
        if offset != level.offset:
            log.warning(
                "delay level %d: offset %d is outside %d..%d of its queue, going on at %d",
                level.level,
                level.offset,
                low,
                high,
                offset,
            )
            level.offset = offset

    def _due_of(self, level: _Level, unit: ConsumeQueueUnit) -> int:
        """When a message is due, ms: its tags code, unless that lay where nothing can be read."""
        if not is_address(unit.tags_code):
            return unit.tags_code
        record = self._store.commit_log.read(unit.commit_offset)
        return 0 if record is None else record.store_timestamp + level.due.delay_ms

    def _wait_of(self, level: _Level, offset: int, due_ms: int) -> float:
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic()
        if offset == level.offset:
            high = self._store.max_offset(RMQ_SYS_SCHEDULE_TOPIC, level.queue_id)
            level.due.observe(high, due_ms, now_ms, now_s)
        return level.due.wait_s(offset, due_ms, now_ms, now_s)

    def _put(self, level: _Level, due: list[tuple[int, MessageInner]], end_offset: int) -> None:
        level.end_offset = end_offset
        level.failed_offset = -1
        level.under_way = True
        offsets = [offset for offset, _ in due]
        try:
            self._store.put_messages(
                [inner for _, inner in due], partial(self._stored, level, offsets)
            )
        except BaseException:
            level.under_way = False
            raise

    def _stored(self, level: _Level, offsets: list[int], results: list[PutMessageResult]) -> None:
        for offset, result in zip(offsets, results, strict=True):
            if result.status not in STORED:
                self._refused(level, offset, result)
                break
            self.delivered_count += 1
        level.under_way = False
        self._finish(level)

    @staticmethod
    def _refused(level: _Level, offset: int, result: PutMessageResult) -> None:
        level.failed_offset = offset
        if not level.failing:
            level.failing = True
            log.error(
                "delay level %d: offset %d was refused, trying again every %d s: %s, %s",
                level.level,
                offset,
                PUT_RETRY_S,
                result.status.value,
                result.why,
            )

    def _finish(self, level: _Level) -> None:
        refused = level.failed_offset >= 0
        level.offset = level.failed_offset if refused else level.end_offset
        level.due.forget(level.offset)
        self._table.set(level.level, level.offset)
        if not self._running:
            if self._settled is not None and not self._is_delivering:
                self._settled.set()
        elif refused:
            self._wait(level, PUT_RETRY_S)
        else:
            level.failing = False
            self._get_in_line(level)

    def _copies(
        self, level: _Level, due: list[tuple[int, ConsumeQueueUnit]], read: ReadParked
    ) -> list[tuple[int, MessageInner]]:
        """The messages to deliver; those that can not be read are said and left out."""
        copies: list[tuple[int, MessageInner]] = []
        for offset, unit in due:
            place = Place(unit.commit_offset, unit.record_size, offset)
            try:
                copies.append((offset, delivered(read(place))))
            except ValueError as error:
                self.skipped_count += 1
                log.error(
                    "delay level %d: offset %d, at %d of the log, can not be delivered: %s",
                    level.level,
                    offset,
                    unit.commit_offset,
                    error,
                )
        return copies
