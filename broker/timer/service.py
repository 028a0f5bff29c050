"""Messages with a delay of their own: parked in rmq_sys_wheel_timer, delivered when due.

    queue --read--> entries that wait, in memory and in runs --due--> delivered, one store batch

One thing at a time, in turns that are bounded, so the loop is never held:

    read      the queue is read on first, up to where it ended at the last turn, so that what takes
              a message back is known before the message is due; nothing else happens while that
              waits for runs to be written
    deliver   a batch of what is due (`deliveries.py`)
    roll      when a log file is to go (`rolling.py`), in turns with deliveries
    wait      one timer for the next due time, at most a second away, so that a step of the wall
              clock is noticed; nothing at all when nothing waits

A message is delivered when the wall clock has reached its due time, never before, whatever steps
the clock makes in between. Delivered at least once: the checkpoint follows within
`timerFlushIntervalMs`, so a crash repeats the deliveries of that time; if the wall clock went back
before, also those that it repeated. What is lost or damaged beside the log is built again from the
queue (`store/timer/checkpoint.py`).

Source: apache/rocketmq@rocketmq-all-5.3.3 store/.../timer/TimerMessageStore.java
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from skylarkmq.broker.tables.persist import FollowingTable
from skylarkmq.broker.timer.deliveries import RETRY_S, Deliveries
from skylarkmq.broker.timer.messages import TimedMessages
from skylarkmq.broker.timer.reading import QueueReading
from skylarkmq.broker.timer.rolling import Rolling
from skylarkmq.broker.timer.runs import RunFiles
from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.common.files import Files
from skylarkmq.common.table_file import TableWriter, Text
from skylarkmq.common.worker import Worker
from skylarkmq.protocol.flags import RMQ_SYS_WHEEL_TIMER_TOPIC
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.timer.checkpoint import CHECKPOINT_NAME, TimerState
from skylarkmq.store.timer.index import GREATEST

log = logging.getLogger(__name__)

ERROR_RETRY_S: Final = 10.0


class _Taken(NamedTuple):
    """A checkpoint on its way to the disk."""

    data: bytes
    garbage: tuple[int, ...]  # runs that nobody needs once it is there
    void_below: int  # as in the checkpoint


class TimerMessageService:
    """Delivers timed messages between `start` and `stop`. Loop thread."""

    def __init__(
        self, store: MessageStore, files: Files, clock: Clock, worker: Worker, tables: TableWriter
    ) -> None:
        self._store = store
        self._files = files
        self._clock = clock
        self._folder = store.paths.timer
        self.state = TimerState()
        self._reading = QueueReading(store, self.state)
        self._messages = TimedMessages(store.commit_log)
        self._runs = RunFiles(store, files, clock, worker, self._folder, self.state, self._moved)
        self._rolling = Rolling(store, self.state, self._runs, self._messages)
        self._deliveries = Deliveries(store, clock, self.state, self._messages, self._guarded)
        path = self._folder / CHECKPOINT_NAME
        interval_s = store.config.timer_flush_interval_ms / 1000
        self._checkpoint = FollowingTable(
            tables, path, self._take, store, clock, interval_s, self._written
        )
        self._taken: _Taken | None = None  # on its way to the disk
        self._on_disk = b""  # the checkpoint, as far as this run knows
        self._useless: list[int] = []  # runs of an earlier life
        self._target = 0  # queue offset up to which is read before something is delivered
        self._busy = False  # a read or a put is under way
        self._timer: TimerHandle | None = None
        self._running = False
        self._roll_next = False
        self._settled: asyncio.Event | None = None
        store.add_arrival_listener(self._arrived, RMQ_SYS_WHEEL_TIMER_TOPIC)
        store.cleaning.keepers.append(self._may_remove)

    # Life

    def load(self) -> None:
        """Read the checkpoint. Blocks; after the store was loaded, before the loop serves.

        Nothing is done, here and in `start`, when `timerWheelEnable` is false.

        Raises:
            OSError: the disk failed.
        """
        if not self._store.config.timer_wheel_enable:
            return
        self._useless = self.state.load(self._files, self._folder, self._reading.end)
        self._rolling.resume()

    def start(self) -> None:
        """Deliver what is due and wait for the rest. The store has started."""
        if not self._store.config.timer_wheel_enable:
            return
        self._running = self._runs.running = self._deliveries.running = True
        self._runs.remove(tuple(self._useless))
        self._target = self._reading.end
        if self._target or self.state.messages.runs:
            self._plan(0)

    async def stop(self) -> None:
        """Deliver no more, wait for what is under way, and bring everything to the disk.

        Call while the store still writes and syncs.
        """
        if not self._running:
            return
        self._running = self._deliveries.running = False
        self._cancel_timer()
        self._runs.stop()
        await self._quiet()
        if not self._reading.is_again:  # else the last checkpoint still says how everything is
            self.state.cancels.give_back()
            for index in self.state.indexes:
                self._runs.freeze(index)
            await self._quiet()
            self._checkpoint.mark()
        await self._checkpoint.stop()
        await self._quiet()

    async def _quiet(self) -> None:
        while self._busy or self._runs.jobs:
            self._settled = asyncio.Event()
            await self._settled.wait()

    # What others want to know

    @property
    def waiting_count(self) -> int:
        """Messages that wait, those included that were not read from the queue yet."""
        unread = 0 if self._reading.is_again else self._reading.end - self.state.queue_offset
        return self.state.messages.waiting_count + max(0, unread)

    @property
    def lag_s(self) -> float:
        """How long the first waiting message has been due; 0 when none is."""
        position = self.state.messages.position
        if not self._running or position >= GREATEST[:8]:
            return 0.0
        due_ms = int.from_bytes(position[:8], "big")
        return max(0, self._clock.now_ms() - due_ms) / 1000 if due_ms else 0.0

    @property
    def is_behind(self) -> bool:
        """Whether something is due, on its way, or not read from the queue yet."""
        unread = self._running and self._reading.end > self.state.queue_offset
        return self._busy or unread or self.lag_s > 0

    @property
    def delivered_count(self) -> int:
        return self._deliveries.delivered_count

    @property
    def skipped_count(self) -> int:
        return self._messages.skipped_count

    @property
    def cancelled_count(self) -> int:
        return self._messages.cancelled_count

    @property
    def rolled_count(self) -> int:
        return self._rolling.rolled_count

    # Turns

    def _arrived(self, _topic: str, _queue_id: int, max_offset: int) -> None:
        if self._running:
            if self.state.queue_offset >= self._target:
                self._target = max_offset
            if not self._busy:
                self._plan(0)

    def _moved(self) -> None:
        """A job of the timer thread has ended."""
        if not self._running:
            self._tell_settled()
        else:
            self._checkpoint.changed()
            if not self._busy:
                self._plan(0)

    def _tell_settled(self) -> None:
        if self._settled is not None and not self._busy and not self._runs.jobs:
            self._settled.set()

    def _plan(self, wait_s: float) -> None:
        self._cancel_timer()
        self._timer = self._clock.call_at(self._clock.monotonic() + wait_s, self._turn)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _turn(self) -> None:
        self._timer = None
        if self._busy or not self._running:
            return
        self._guarded(self._step)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            self._busy = False
            log.exception("timed messages stand still, next attempt in %d s", ERROR_RETRY_S)
            self.state.messages.give_back()
            if self._running:
                self._plan(ERROR_RETRY_S)
            else:
                self._tell_settled()

    def _end(self, wait_s: float | None = 0.0) -> None:
        """A read, a batch or a step has ended: go on.

        Args:
            wait_s: with the next turn so much later, unless there is something to read; None: when
                something arrives.
        """
        self._busy = False
        if not self._running:
            self._tell_settled()
            return
        self._checkpoint.changed()
        if self.state.queue_offset >= self._target:
            self._target = self._reading.end
        if self._can_read:
            self._plan(0)
        elif wait_s is not None:
            self._plan(wait_s)

    @property
    def _can_read(self) -> bool:
        state = self.state
        return state.queue_offset < self._target and all(index.has_room for index in state.indexes)

    def _step(self) -> None:
        state, runs = self.state, self._runs
        if runs.broken is not None:
            self._rebuild(runs.broken)
        runs.swap_merged()
        for index in state.indexes:
            if index.must_freeze(state.queue_offset):
                runs.freeze(index)
        if not self._rolling.is_wanted:
            runs.merge()
        if state.queue_offset < self._target and not self._can_read and runs.is_writing:
            return  # its end makes room to read on, and calls `_moved`
        self._busy = True
        if self._can_read:
            self._reading.read(self._read)
        elif self._rolling.is_wanted and self._roll_next and not self._reading.is_again:
            self._roll_next = False
            self._rolling.step(self._end)
        else:
            self._roll_next = True
            if not runs.load(self._end):
                self._deliveries.step(self._delivered)

    def _read(self, error: BaseException | None) -> None:
        if error is None:
            self._end()
            return
        log.error("the timer topic can not be read: %s", error)
        self._busy = False
        if self._running:
            self._plan(ERROR_RETRY_S)
        else:
            self._tell_settled()

    def _delivered(self, wait_s: float | None) -> None:
        may_roll = self._rolling.is_wanted and not self._reading.is_again
        self._end(0 if may_roll and wait_s != RETRY_S else wait_s)

    def _rebuild(self, error: BaseException) -> None:
        log.error("timed messages are read again from their queue: %s", error)
        self.state.know_positions()
        self._messages.forget_cancels()
        self._runs.begin_again()
        self.state.rebuild()
        self._target = self._reading.end

    # The checkpoint, and log files that are to go

    def _take(self) -> Text | None:
        self._taken = None
        if self._reading.is_again:
            return None
        data = self.state.encode()
        if data == self._on_disk:
            return None
        garbage = [number for index in self.state.indexes for number in index.garbage]
        self._taken = _Taken(data, tuple(garbage), self.state.void_below)
        return lambda: data

    def _written(self) -> None:
        taken, self._taken = self._taken, None
        if taken is None:
            return
        self._on_disk = taken.data
        self._rolling.durable_below = taken.void_below
        for index in self.state.indexes:
            index.garbage = [one for one in index.garbage if one not in taken.garbage]
        self._runs.remove(taken.garbage)

    def _may_remove(self, end_offset: int) -> bool:
        """Whether the log up to a place may go; if not, what waits there is stored again first."""
        if not self._running:
            return not self._store.config.timer_wheel_enable
        if end_offset <= self._rolling.durable_below:
            return True
        if end_offset <= self.state.void_below:
            return False  # a checkpoint that says so is on its way
        caught_up = self.state.queue_offset >= self._reading.end
        if caught_up and not any(index.has_below(end_offset) for index in self.state.indexes):
            return True
        self._rolling.want(end_offset)
        if not self._busy:
            self._plan(0)
        return False
