"""Waiting messages are stored again before the log file that they lie in goes.

    1  all that waits is brought into runs
    2  the runs are looked through for records below the end of the file, a few pages at a time
    3  those messages are stored again, at the end of the log, under the same due time; their
       entries are void from then on, and the copies come in through the queue as others do
    4  the checkpoint says so; when it is on the disk, the file may go

Each step is one turn of the service: nothing is delivered meanwhile, so an entry is either
delivered or stored again. A crash repeats what was stored again since the last checkpoint.

It works while messages are refused because the disk is too full, or no room could ever be made.

Unlike RocketMQ, which stores again what waits longer than its wheel reaches, on the way through it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from skylarkmq.broker.timer.messages import TimedMessages
from skylarkmq.broker.timer.runs import RunFiles
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.results import STORED, PutMessageResult
from skylarkmq.store.timer.checkpoint import TimerState
from skylarkmq.store.timer.index import Run, TimerIndex
from skylarkmq.store.timer.run_file import ENTRY, split

log = logging.getLogger(__name__)

ROLL_COUNT: Final = 128
ROLL_BYTES: Final = 1 << 20

RETRY_S: Final = 1.0  # after a put that failed, and while runs are written

Stepped = Callable[[float | None], None]  # when to go on, s


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
        """Whether there is something to do."""
        return self._wanted > self._state.void_below

    def resume(self) -> None:
        """Go on with what a checkpoint says was going on."""
        self.durable_below = self._state.void_below
        self._wanted = self._state.rolling_below

    def want(self, end_offset: int) -> None:
        """Store again what lies below a place of the log."""
        self._wanted = max(self._wanted, end_offset)

    def step(self, done: Stepped) -> None:
        """Go a step on; nothing may be in hand, and nothing may be taken until `done`."""
        state = self._state
        if not state.rolling_below:
            if state.cancels.hand:
                done(RETRY_S)  # they are needed until the messages of their due time have left
                return
            if any(self._runs.freeze(index) for index in state.indexes):
                done(0)  # and wait for them to be written
                return
            if self._is_unwritten or self._runs.is_merging:
                done(RETRY_S)
                return
            state.rolling_below = self._wanted
            for index in state.indexes:
                for run in index.runs:
                    run.rolled = 0
        for index in state.indexes:
            for run in index.runs:
                start = max(run.rolled, run.taken)
                if run.min_physical < state.rolling_below and start < run.count and run.written:
                    self._scan(index, run, start, done)
                    return
        self._finish()
        done(0)

    @property
    def _is_unwritten(self) -> bool:
        return any(not run.written for index in self._state.indexes for run in index.runs)

    def _scan(self, index: TimerIndex, run: Run, start: int, done: Stepped) -> None:
        below = self._state.rolling_below

        def scanned(page: bytes | None) -> None:
            if page is None:
                done(RETRY_S)
                return
            found: list[bytes] = []
            end, size = start, 0
            for entry in split(page):
                _, _, physical_offset, record_size = ENTRY.unpack(entry)
                if physical_offset < below:
                    size += record_size
                    if found and (len(found) >= ROLL_COUNT or size > ROLL_BYTES):
                        break
                    if physical_offset >= self._state.void_below:
                        found.append(entry)
                end += 1
            if found:
                self._read(index, run, found, end, done)
            else:
                index.rolled(run, end, 0)
                done(0)

        self._runs.scan(run, start, scanned)

    def _read(
        self, index: TimerIndex, run: Run, entries: list[bytes], end: int, done: Stepped
    ) -> None:
        def read(records: list[bytes | None]) -> None:
            copies = self._messages.rolled(entries, records)
            # Not through the store's own door, which a disk that is too full has closed.
            if self._store.failure is None:
                self._store.writer.put_messages(copies, stored)
            else:
                done(RETRY_S)

        def stored(results: list[PutMessageResult]) -> None:
            fine = all(result.status in STORED for result in results)
            if fine:
                index.rolled(run, end, len(entries))
                self.rolled_count += len(results)
            else:
                log.warning("timed messages can not be stored again for now: %s", results[-1].why)
            done(0 if fine else RETRY_S)

        self._store.read_records([ENTRY.unpack(entry)[2] for entry in entries], read)

    def _finish(self) -> None:
        state = self._state
        log.info("no timed message waits below offset %d of the log any more", state.rolling_below)
        state.void_below = state.rolling_below
        state.rolling_below = 0
        for index in state.indexes:
            for run in index.runs:
                run.rolled = 0
