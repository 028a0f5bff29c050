"""Messages with a delay of their own: parked in rmq_sys_wheel_timer, delivered when due.

    queue --read--> entries that wait, in memory and in runs --due--> delivered, one store batch

One thing at a time, in turns that are bounded, so the loop is never held:

    read      first the next piece of the queue, up to where the queue ended at the last turn, so
              that what takes a message back is known before the message is due; nothing else
              happens while that waits for runs to be written. What is not in memory is read off the
              loop
    deliver   a batch of what is due (`deliveries.py`)
    roll      when a log file is to go (`rolling.py`), in turns with deliveries
    wait      one timer for the next due time, at most a second away, so that a step of the wall
              clock is noticed; nothing at all when nothing waits

A message is delivered when the wall clock has reached its due time, never before, whatever steps
the clock makes in between. Delivered at least once: the checkpoint follows within
`timerFlushIntervalMs`, so a crash repeats the deliveries of that time; if the wall clock went back
before, also those that it repeated. What was taken back stays so. What is lost or damaged beside
the log is built again from the queue (`store/timer/checkpoint.py`).

Source: apache/rocketmq@rocketmq-all-5.3.3 store/.../timer/TimerMessageStore.java
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

from skylarkmq.broker.base.waiting import Pause
from skylarkmq.broker.tables.persist import FollowingTable
from skylarkmq.broker.timer.deliveries import RETRY_S, Deliveries
from skylarkmq.broker.timer.messages import TimedMessages
from skylarkmq.broker.timer.rolling import Rolling
from skylarkmq.broker.timer.runs import RunFiles
from skylarkmq.common.clock import Clock
from skylarkmq.common.files import Files
from skylarkmq.common.table_file import TableWriter, Text
from skylarkmq.common.worker import Call, Worker, start
from skylarkmq.protocol.flags import RMQ_SYS_WHEEL_TIMER_TOPIC
from skylarkmq.protocol.record import PLACE, record_properties
from skylarkmq.store.log_history import LogHistory
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.results import GetMessageResult
from skylarkmq.store.timer.checkpoint import (
    CHECKPOINT_NAME,
    NO_PROGRESS,
    TimerProgress,
    TimerState,
    encode_progress,
)
from skylarkmq.store.timer.index import GREATEST
from skylarkmq.store.timer.rules import TIMER_QUEUE_ID, cancelled_key, due_of
from skylarkmq.store.timer.run_file import ENTRY

log = logging.getLogger(__name__)

READ_COUNT: Final = 256
READ_BYTES: Final = 1 << 20
ERROR_RETRY_S: Final = 10.0


class _Taken(NamedTuple):
    """A checkpoint on its way to the disk."""

    data: bytes
    garbage: tuple[int, ...]  # runs that are not needed once it is there
    void_below: int  # as in the checkpoint


class TimerCheckpoint(FollowingTable):
    """Writes down how far everything is, and removes runs that it does not name. Loop thread."""

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        tables: TableWriter,
        state: TimerState,
        runs: RunFiles,
        rolling: Rolling,
    ) -> None:
        interval_s = store.config.timer_flush_interval_ms / 1000
        path = store.paths.timer / CHECKPOINT_NAME
        super().__init__(tables, path, self._take_state, store, clock, interval_s)
        self._state = state
        self._runs = runs
        self._rolling = rolling
        self._taken: _Taken | None = None  # on its way to the disk
        self.on_disk = b""  # the checkpoint, as far as this run knows
        self._followed: TimerProgress | None = None  # of a slave: how far its master is

    def keep_progress(self, master: TimerProgress) -> None:
        """Write down how far the master is: this slave may become one at its next start.

        Args:
            master: about messages that this log has, too.
        """
        if self._store.config.timer_wheel_enable and master != self._followed:
            self._followed = master
            self.changed()

    def _take_state(self) -> Text | None:
        self._taken, log_end = None, self._store.commit_log.wrote_offset
        if self._followed is not None:
            text = encode_progress(self._followed, LogHistory([(log_end, self._followed)]))
            return lambda: text
        if self._state.is_rereading:
            return None
        data = self._state.encode(log_end)
        if data == self.on_disk:
            return None
        garbage = [number for index in self._state.indexes for number in index.garbage]
        self._taken = _Taken(data, tuple(garbage), self._state.void_below)
        return lambda: data

    async def _write_text(self, text: Text) -> None:
        await super()._write_text(text)
        taken, self._taken = self._taken, None
        if taken is None:
            return
        self.on_disk = taken.data
        self._rolling.durable_below = taken.void_below
        for index in self._state.indexes:
            index.garbage = [one for one in index.garbage if one not in taken.garbage]
        self._runs.remove(taken.garbage)


class QueueReading:
    """Lets what is read from the timer topic wait. Loop thread.

    Attributes:
        count: messages that were read, without what takes others back.
    """

    def __init__(self, store: MessageStore, state: TimerState) -> None:
        self.count = 0
        self._store = store
        self._state = state
        self._target = 0  # queue offset up to which is read before something is delivered

    @property
    def end(self) -> int:
        """The queue offset after the last message of the topic."""
        return self._store.max_offset(RMQ_SYS_WHEEL_TIMER_TOPIC, TIMER_QUEUE_ID)

    @property
    def is_wanted(self) -> bool:
        """True while something is to be read before the next delivery."""
        return self._state.queue_offset < self._target

    @property
    def is_possible(self) -> bool:
        """True while something is wanted and has room."""
        return self.is_wanted and all(index.has_room for index in self._state.indexes)

    def aim(self) -> None:
        """Read up to where the queue ends now."""
        self._target = self.end

    def arrived(self, max_offset: int) -> None:
        """Read what has come before the next delivery, unless something is wanted already."""
        if not self.is_wanted:
            self._target = max_offset

    async def read(self) -> None:
        """Let the next piece of the queue wait."""
        state, store, offset = self._state, self._store, self._state.queue_offset
        piece = RMQ_SYS_WHEEL_TIMER_TOPIC, TIMER_QUEUE_ID, offset, READ_COUNT, READ_BYTES
        if store.is_cold(RMQ_SYS_WHEEL_TIMER_TOPIC, TIMER_QUEUE_ID, offset):
            result = await Call[GetMessageResult](
                lambda done: store.get_message_cold(*piece, None, done)
            )
        else:
            result = store.get_message(*piece)
        if result.next_begin_offset < state.queue_offset:
            log.error(
                "the timer topic has %d messages, and %d were read already: going on at its end",
                result.next_begin_offset,
                state.queue_offset,
            )
            state.known_below = 0
            state.rebuild()
        for view in result.views:
            self._take_in(view)
        state.queue_offset = result.next_begin_offset
        for index in state.indexes:
            index.has_read(state.queue_offset)

    def _take_in(self, records: memoryview | bytes) -> None:
        state, position = self._state, 0
        messages, cancels = state.indexes
        while position < len(records):
            size, queue_offset, physical_offset = PLACE.unpack_from(records, position)
            text = record_properties(records, position, size) or b""
            entry = ENTRY.pack(max(0, due_of(text) or 0), queue_offset, physical_offset, size)
            is_cancel = cancelled_key(text) is not None
            if not state.knows(entry, queue_offset, physical_offset, is_cancel=is_cancel):
                (cancels if is_cancel else messages).insert(entry)
                self.count += not is_cancel
            position += size


class TimerMessageService:
    """Delivers timed messages between `start` and `stop`. Loop thread.

    Its size is one idea: its parts do one thing at a time, and which is next depends on all others.

    Attributes:
        file: the checkpoint.
        deliveries, messages, reading, rolling: the parts of a turn, with what they have done.
        enabled: timed messages are delivered.
        follows: another broker delivers the messages of this log; what it removes may go here.
    """

    def __init__(
        self, store: MessageStore, files: Files, clock: Clock, worker: Worker, tables: TableWriter
    ) -> None:
        self._store = store
        self._files = files
        self._clock = clock
        self.state = TimerState()
        self.messages = TimedMessages(store.commit_log, store.removal.topics)
        self._runs = RunFiles(store, files, clock, worker, self.state, self._moved)
        self.reading = QueueReading(store, self.state)
        self.rolling = Rolling(store, self.state, self._runs, self.messages)
        self.deliveries = Deliveries(store, clock, self.state, self.messages)
        self.file = TimerCheckpoint(store, clock, tables, self.state, self._runs, self.rolling)
        self.follows = store.config.is_slave
        self._useless: list[int] = []  # runs of an earlier life
        self._pause = Pause(clock)  # between two turns
        self._in_turn = False
        self.enabled = False
        self._roll_next = False
        self._quiet = asyncio.Event()
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
        log_end = self._store.commit_log.wrote_offset
        self._useless = self.state.load(
            self._files, self._store.paths.timer, self.reading.end, log_end
        )
        self.rolling.resume()

    def start(self) -> None:
        """Deliver what is due and wait for the rest. The store has started."""
        if not self._store.config.timer_wheel_enable:
            return
        self.enabled = self._runs.running = True
        self._runs.remove(self._useless)
        self.reading.aim()
        start(self._work())

    async def stop(self) -> None:
        """Deliver no more, wait for what is under way, and bring everything to the disk.

        Call while the store still writes and syncs.
        """
        if not self.enabled:
            await self.file.stop()
            return
        self.enabled = False
        self._pause.end()
        self._runs.stop()
        await self._settled()
        if not self.state.is_rereading:  # else the last checkpoint still says how everything is
            self.state.cancels.give_back()
            for index in self.state.indexes:
                self._runs.freeze(index)
            await self._settled()
            self.file.mark()
        await self.file.stop()
        await self._settled()

    async def _settled(self) -> None:
        """Return when nothing is under way."""
        while self._in_turn or self._runs.job_count:
            self._quiet.clear()
            await self._quiet.wait()

    def progress(self) -> TimerProgress | None:
        """Return how far everything is; None where another broker knows that."""
        return None if self.follows else self.state.progress()

    def take_over(self, progress: TimerProgress | None) -> None:
        """Go on where another broker was with the messages of this log. Before `start`.

        What this broker knew of them before goes: its log may have been another one.

        Args:
            progress: None: everything in the queue counts as not delivered.
        """
        self.messages.forget_cancels()
        self._runs.begin_again()
        self.state.go_on(progress or NO_PROGRESS, self.reading.end)
        self._useless += [number for index in self.state.indexes for number in index.garbage]
        for index in self.state.indexes:
            index.garbage.clear()
        self.file.on_disk = b""
        self.rolling.resume()

    # What others want to know

    @property
    def waiting_count(self) -> int:
        """Messages that wait, those included that were not read from the queue yet."""
        unread = 0 if self.state.is_rereading else self.unread_count
        return self.state.messages.waiting_count + unread

    @property
    def unread_count(self) -> int:
        """Messages that were stored and not read from the queue yet; a slave reads none."""
        if self.follows:
            return 0
        return max(0, self.reading.end - self.state.queue_offset)

    def unread_ms(self) -> int | None:
        """Return how long the first unread message has been stored; 0 when there is none.

        None where that would have to be read from the disk.
        """
        place = RMQ_SYS_WHEEL_TIMER_TOPIC, TIMER_QUEUE_ID, self.state.queue_offset
        if not self.unread_count:
            return 0
        stored_ms = -1 if self._store.is_cold(*place) else self._store.message_time(*place)
        return None if stored_ms < 0 else max(0, self._clock.now_ms() - stored_ms)

    @property
    def lag_s(self) -> float:
        """How long the first waiting message has been due; 0 when none is."""
        position = self.state.messages.position
        if not self.enabled or position >= GREATEST[:8]:
            return 0.0
        due_ms = int.from_bytes(position[:8], "big")
        return max(0, self._clock.now_ms() - due_ms) / 1000 if due_ms else 0.0

    @property
    def is_behind(self) -> bool:
        """True while something is due, on its way, or not read from the queue yet."""
        unread = self.enabled and self.reading.end > self.state.queue_offset
        return self._in_turn or unread or self.lag_s > 0

    # Turns

    def _arrived(self, _topic: str, _queue_id: int, max_offset: int) -> None:
        if self.enabled:
            self.reading.arrived(max_offset)
            self._pause.wake()

    def _moved(self) -> None:
        """Go on after something in the background has ended."""
        if self.enabled:
            self.file.changed()
            self._pause.wake()
        self._quiet.set()

    async def _work(self) -> None:
        wait_s: float | None = 0 if self.reading.end or self.state.messages.runs else None
        while True:
            await self._pause.wait(wait_s)
            if not self.enabled:
                return
            self._in_turn = True
            try:
                wait_s = await self._turn()
            except Exception:
                log.exception("timed messages stand still, next attempt in %d s", ERROR_RETRY_S)
                for index in self.state.indexes:  # what takes back is to be read again
                    index.give_back()
                wait_s = ERROR_RETRY_S
            self._in_turn = False
            if not self.enabled:
                self._quiet.set()
                return

    async def _turn(self) -> float | None:
        """Do one thing, and return after how many seconds to go on; None: when something happens.

        Raises:
            OSError: the timer topic cannot be read.
        """
        state, runs = self.state, self._runs
        if runs.broken is not None:
            self._rebuild(runs.broken)
        runs.swap_merged()
        for index in state.indexes:
            if index.must_freeze(state.queue_offset):
                runs.freeze(index)
        if not self.rolling.is_wanted:
            runs.merge()
        may_roll = self.rolling.is_wanted and not state.is_rereading
        wait_s: float | None = 0
        if self.reading.is_possible:
            await self.reading.read()
        elif self.reading.is_wanted and runs.is_writing:
            return None  # its end makes room to read on, and calls `_moved`
        elif may_roll and self._roll_next:
            self._roll_next = False
            wait_s = await self.rolling.step()
        else:
            self._roll_next = True
            if not await runs.load():
                wait_s = await self.deliveries.step()
                if may_roll and wait_s != RETRY_S:
                    wait_s = 0
        if self.enabled:
            self.file.changed()
        if not self.reading.is_wanted:
            self.reading.aim()
        return 0 if self.reading.is_possible else wait_s

    def _rebuild(self, error: BaseException) -> None:
        log.error("timed messages are read again from their queue: %s", error)
        self.state.know_positions()
        self.messages.forget_cancels()
        self._runs.begin_again()
        self.state.rebuild()
        self.reading.aim()

    def _may_remove(self, end_offset: int) -> bool:
        """Return whether the log up to a place may go; what waits there is stored again first."""
        if not self.enabled:  # what waits at a slave, its master stores again
            return self.follows or not self._store.config.timer_wheel_enable
        if end_offset <= self.rolling.durable_below:
            return True
        if end_offset <= self.state.void_below:
            return False  # a checkpoint that says so is on its way
        caught_up = self.state.queue_offset >= self.reading.end
        if caught_up and not any(index.has_below(end_offset) for index in self.state.indexes):
            return True
        self.rolling.want(end_offset)
        self._pause.wake()
        return False
