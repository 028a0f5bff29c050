"""Delayed messages: parked in SCHEDULE_TOPIC_XXXX, delivered to their real topic when due.

Queue n - 1 of the schedule topic holds the messages of delay level n in the order of their due
times, which their queue units carry. Each level is a coroutine that takes turns:

    turn       something is due: a batch of at most UNITS_PER_TURN messages and BYTES_PER_TURN is
               stored, then comes the next turn
    waiting    the first message is not due: one timer, at most 1 s away so that a step of the
               wall clock is noticed
    idle       nothing is parked: no timer; the store's arrival listener wakes the level

Each turn begins in a turn of the loop of its own, so the loop is never held for long, however many
messages fall due at once. A turn's messages are one batch of the store, so under SYNC_FLUSH one
sync frees them all. A delivered copy is a new message in the real topic and queue: body,
properties, flags, born time and hosts are those of the parked record.

A level's offset moves past messages that are stored under the flush mode, never past one that is
not: a put that fails is tried again after a pause. A crash repeats up to
`flushDelayOffsetInterval` of deliveries. A record that cannot be read, or that names no possible
target, is left out with an error in the log. Records that may have to come from the disk are read
off the loop.

Unlike RocketMQ, which polls each level every 100 ms, and delivers without waiting for a sync.
Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../schedule/ScheduleMessageService.java
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from skylarkmq.broker.base.waiting import Pause, put, records
from skylarkmq.broker.delay.delay_offsets import DelayOffsetTable
from skylarkmq.broker.delay.delayed_message import ParkedReader, Place, delivered, is_gone
from skylarkmq.broker.delay.due_times import DueTimes
from skylarkmq.common.clock import Clock
from skylarkmq.common.worker import Call, start
from skylarkmq.protocol.flags import RMQ_SYS_SCHEDULE_TOPIC
from skylarkmq.store.delay_levels import LEVELS_MAX, schedule_queue_id
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.queue.consume_queue import PRE_BLANK_SIZE
from skylarkmq.store.queue.extension import is_address
from skylarkmq.store.results import STORED, ConsumeQueueUnit, MessageInner

log = logging.getLogger(__name__)

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

    __slots__ = ("due", "failing", "head", "in_turn", "number", "offset", "pause", "queue_id",
                 "reader", "wait_s")  # fmt: skip

    def __init__(self, number: int, offset: int, store: MessageStore, clock: Clock) -> None:
        levels = store.delay_levels
        delay_ms = levels.delay_ms(number) if number <= levels.max_level else NO_DELAY_MS
        self.number = number
        self.queue_id = schedule_queue_id(number)
        self.reader = ParkedReader(store.commit_log, RMQ_SYS_SCHEDULE_TOPIC, self.queue_id)
        self.due = DueTimes(delay_ms)
        self.offset = offset  # queue offset of the next message to deliver
        self.head: tuple[int, int] | None = None  # (queue offset, due ms) of the first message
        self.pause = Pause(clock)
        self.wait_s: float | None = 0  # how long it pauses; None: until a message arrives
        self.in_turn = False
        self.failing = False  # the last turn ended with a refusal, which was logged


class ScheduleMessageService:
    """Delivers the delayed messages of a store between `start` and `stop`. Loop thread."""

    def __init__(self, store: MessageStore, clock: Clock, table: DelayOffsetTable) -> None:
        self.delivered_count = 0
        self.skipped_count = 0  # unreadable, or without a possible target
        self._store = store
        self._clock = clock
        self._table = table
        self._levels: dict[int, _Level] = {}
        self._running = False
        self._quiet = asyncio.Event()
        store.add_arrival_listener(self._arrived, RMQ_SYS_SCHEDULE_TOPIC)

    def start(self) -> None:
        """Deliver what is due and wait for the rest. The store has started, the table is loaded.

        Levels beyond the configured ones are served too, as long as messages are parked there.
        """
        self._running = True
        for level in range(1, LEVELS_MAX + 1):
            if self._store.max_offset(RMQ_SYS_SCHEDULE_TOPIC, schedule_queue_id(level)):
                self._serve(level)

    async def stop(self) -> None:
        """Deliver no more, wait for the puts under way, and write the offsets.

        Call while the store still writes and syncs.
        """
        self._running = False
        for level in self._levels.values():
            level.pause.end()
        while any(level.in_turn for level in self._levels.values()):
            self._quiet.clear()
            await self._quiet.wait()
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
        """How long the first of the messages that are due has been due; 0 when none is."""
        now_ms = self._clock.now_ms()
        dues = [
            level.head[1]
            for level in self._levels.values()
            if level.head is not None and level.head[0] == level.offset
        ]
        return max(0, now_ms - min(dues, default=now_ms)) / 1000

    @property
    def is_behind(self) -> bool:
        """True while something is due, or on its way."""
        levels = self._levels.values()
        return self.lag_s > 0 or any(level.in_turn or level.wait_s == 0 for level in levels)

    @property
    def levels(self) -> list[int]:
        """Levels that ever held a message."""
        return sorted(self._levels)

    # Turns

    def _arrived(self, _topic: str, queue_id: int, _max_offset: int) -> None:
        if not self._running:
            return
        level = self._levels.get(queue_id + 1)
        if level is None:
            self._serve(queue_id + 1)
        elif level.wait_s is None:
            level.wait_s = 0
            level.pause.wake()

    def _serve(self, number: int) -> None:
        """Begin to deliver the messages of a level."""
        level = _Level(number, self._table.get(number), self._store, self._clock)
        self._levels[number] = level
        start(self._work(level))

    async def _work(self, level: _Level) -> None:
        while True:
            await level.pause.wait(level.wait_s)
            if not self._running:
                return
            level.in_turn = True
            try:
                level.wait_s = await self._turn(level)
            except Exception:
                log.exception(
                    "delay level %d stands still at offset %d, next attempt in %d s",
                    level.number,
                    level.offset,
                    ERROR_RETRY_S,
                )
                level.wait_s = ERROR_RETRY_S
            level.in_turn = False
            if not self._running:
                self._quiet.set()
                return

    async def _turn(self, level: _Level) -> float | None:
        """Deliver a batch of what is due.

        Returns:
            After how many seconds the next turn follows; None: when a message arrives.
        """
        high = self._store.max_offset(RMQ_SYS_SCHEDULE_TOPIC, level.queue_id)
        self._clip(level, self._store.min_offset(RMQ_SYS_SCHEDULE_TOPIC, level.queue_id), high)
        level.head = None
        if level.offset == high:
            return None
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
            return min(wait_s, WAIT_MAX_S)
        refused = await self._deliver(level, due)
        level.offset = offset if refused is None else refused
        level.due.forget(level.offset)
        self._table.set(level.number, level.offset)
        return 0 if refused is None else PUT_RETRY_S

    @staticmethod
    def _clip(level: _Level, low: int, high: int) -> None:
        offset = min(max(level.offset, low), high)
        if offset != level.offset:
            log.warning(
                "delay level %d: offset %d is outside %d..%d of its queue, going on at %d",
                level.number,
                level.offset,
                low,
                high,
                offset,
            )
            level.offset = offset

    def _due_of(self, level: _Level, unit: ConsumeQueueUnit) -> int:
        """Return when a message is due, ms.

        That is its tags code, unless this lay where nothing can be read.
        """
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

    async def _deliver(self, level: _Level, due: list[tuple[int, ConsumeQueueUnit]]) -> int | None:
        """Store the copies of due messages, and return the queue offset of the first refused."""
        copies = await self._copies(level, due)
        results = await Call(put(self._store, [inner for _, inner in copies]))
        for (offset, _), result in zip(copies, results, strict=True):
            if result.status not in STORED:
                if not level.failing:
                    level.failing = True
                    log.error(
                        "delay level %d: offset %d was refused, trying again every %d s: %s, %s",
                        level.number,
                        offset,
                        PUT_RETRY_S,
                        result.status.value,
                        result.why,
                    )
                return offset
            self.delivered_count += 1
        level.failing = False
        return None

    async def _copies(
        self, level: _Level, due: list[tuple[int, ConsumeQueueUnit]]
    ) -> list[tuple[int, MessageInner]]:
        """Return the messages to deliver; those that cannot be read are logged and left out."""
        found: list[bytes | None] | None = None
        if due and not self._store.is_in_memory(due[0][1].commit_offset):
            found = await Call(records(self._store, [unit.commit_offset for _, unit in due]))
        copies: list[tuple[int, MessageInner]] = []
        for number, (offset, unit) in enumerate(due):
            place = Place(unit.commit_offset, unit.record_size, offset)
            try:
                parked = level.reader.read(place, found, number)
                if not is_gone(parked, place, self._store.removal.topics):
                    copies.append((offset, delivered(parked)))
            except ValueError as error:
                self.skipped_count += 1
                log.error(
                    "delay level %d: offset %d, at %d of the log, cannot be delivered: %s",
                    level.number,
                    offset,
                    unit.commit_offset,
                    error,
                )
        return copies
