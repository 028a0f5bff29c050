"""Waiting messages are stored again before the log file that they lie in goes.

    1  all that waits is brought into runs
    2  the runs are looked through for records below the end of the file, a few pages at a time
    3  those messages are stored again, at the end of the log, under the same due time; their
       entries are void from then on, and the copies come in through the queue as others do
    4  the checkpoint says so; when it is on the disk, the file may go

Each step is one turn of the service. Nothing is delivered meanwhile, so an entry is either
delivered or stored again. A crash repeats what was stored again since the last checkpoint.

It works while messages are refused because the disk is too full, or no room could ever be made.

Unlike RocketMQ, which stores again what waits longer than its wheel reaches, on the way through it.
"""

from __future__ import annotations

import logging
from typing import Final

from skylarkmq.broker.base.waiting import records
from skylarkmq.broker.timer.messages import TimedMessages
from skylarkmq.broker.timer.runs import RunFiles
from skylarkmq.common.worker import Call
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.results import STORED, PutMessageResult
from skylarkmq.store.timer.checkpoint import TimerState
from skylarkmq.store.timer.index import Run, TimerIndex
from skylarkmq.store.timer.run_file import ENTRY, split

log = logging.getLogger(__name__)

ROLL_COUNT: Final = 128
ROLL_BYTES: Final = 1 << 20

RETRY_S: Final = 1.0  # after a put that failed, and while runs are written


class Rolling:
    """Stores waiting messages again. Loop thread."""

    def __init__(
        self, store: MessageStore, state: TimerState, runs: RunFiles, messages: TimedMessages
    ) -> None:
        self._store = store
        self._state = state
        self._runs = runs
        self._messages = messages
        self._wanted = 0  # place of the log
        self.rolled_count = 0
        self.durable_below = 0  # the checkpoint on the disk says that nothing waits below it

    @property
    def is_wanted(self) -> bool:
        """True while there is something to do."""
        return self._wanted > self._state.void_below

    def resume(self) -> None:
        """Go on with what a checkpoint says was going on."""
        self.durable_below = self._state.void_below
        self._wanted = self._state.rolling_below

    def want(self, end_offset: int) -> None:
        """Store again what lies below a place of the log."""
        self._wanted = max(self._wanted, end_offset)

    async def step(self) -> float:
        """Go a step on, and return after how many seconds the next one follows.

        Nothing may be in hand, and nothing may be taken until it returns.
        """
        state = self._state
        if not state.rolling_below:
            if state.cancels.hand:
                return RETRY_S  # they are needed until the messages of their due time have left
            if any(self._runs.freeze(index) for index in state.indexes):
                return 0  # and wait for them to be written
            if self._runs.is_merging or not all(run.written for run in state.runs):
                return RETRY_S
            state.rolling_below = self._wanted
            for run in state.runs:
                run.rolled = 0
        for index in state.indexes:
            for run in index.runs:
                start = max(run.rolled, run.taken)
                if run.min_physical < state.rolling_below and start < run.count and run.written:
                    return await self._roll(index, run, start)
        self._finish()
        return 0

    async def _roll(self, index: TimerIndex, run: Run, start: int) -> float:
        """Store again what lies too low among the next entries of a run."""
        page = await self._runs.scan(run, start)
        if page is None:
            return RETRY_S
        found, count = self._too_low(page)
        if found:
            places = [ENTRY.unpack(entry)[2] for entry in found]
            copies = self._messages.rolled(found, await Call(records(self._store, places)))
            if self._store.failure is not None:
                return RETRY_S
            # Not through the store's own door, which a disk that is too full has closed.
            writer = self._store.writer
            results = await Call[list[PutMessageResult]](
                lambda done: writer.put_messages(copies, lambda results: done(results, None))
            )
            if not all(result.status in STORED for result in results):
                log.warning("timed messages cannot be stored again for now: %s", results[-1].why)
                return RETRY_S
            self.rolled_count += len(results)
        index.rolled(run, start + count, len(found))
        return 0

    def _too_low(self, page: bytes) -> tuple[list[bytes], int]:
        """Return a batch of entries to store again, and how many entries of the page it ends."""
        found: list[bytes] = []
        count, size = 0, 0
        for entry in split(page):
            _, _, physical_offset, record_size = ENTRY.unpack(entry)
            if physical_offset < self._state.rolling_below:
                size += record_size
                if found and (len(found) >= ROLL_COUNT or size > ROLL_BYTES):
                    break
                if physical_offset >= self._state.void_below:
                    found.append(entry)
            count += 1
        return found, count

    def _finish(self) -> None:
        state = self._state
        log.info("no timed message waits below offset %d of the log anymore", state.rolling_below)
        state.void_below = state.rolling_below
        state.rolling_below = 0
        for run in state.runs:
            run.rolled = 0
