"""The journal of pop consumption: `<root>/skylarkmq/pop/`; its bytes: `store/pop/journal_file.py`.

    noted --end of the turn--> in a frame --> written --> told          ASYNC_FLUSH
                                          --> written, synced --> told  SYNC_FLUSH

All that a turn of the loop notes is one frame. Under SYNC_FLUSH the worker writes and syncs it;
what is noted meanwhile shares the next frame. Under ASYNC_FLUSH the loop writes it, so that a
killed process loses nothing, and the worker syncs at each interval; while a sync is slow the loop
leaves the writing to the worker, too. A failed write or sync is final, as it is for the log: the
store fails.

**Change of file.** A file that has grown to several times what a snapshot takes is followed by
another one: the old one is synced, the new one begun, and then each queue's state is said anew, a
few queues in each turn, between what is noted. When the last one is on the disk the older files are
removed. So the files that are there, read in their order, say all at each moment, and the loop is
never held up. A start begins with a new file that says all in its first frame: what the check at
the start has dropped cannot come back.

**A full disk.** Blocks are allocated ahead, so neither a write nor a sync finds the disk full.
While the next ones cannot be had, `refusal` says why, and receives take nothing more; what remains
is for acknowledgements. When that is used up, too, who waits is told the error, and what was noted
stands in memory alone, until there is room for a new file that says all in one frame.

Nothing is on the disk before the first record. Loop thread, but for `load` and `begin`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar, cast

from skylarkmq.broker.base.waiting import result_of
from skylarkmq.common.clock import Clock
from skylarkmq.common.errors import StoreError
from skylarkmq.common.files import Files, StoreFile
from skylarkmq.common.refusal import refusal
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.common.worker import Worker
from skylarkmq.store.pop.journal_file import (
    FrameWriter,
    file_head,
    file_numbers,
    file_path,
    load_state,
)
from skylarkmq.store.pop.journal_records import Clean, Key, KeyState, PopState, Record, State, Whole

log = logging.getLogger(__name__)

ALLOCATION: Final = 1 << 20
"""Bytes of a file that are allocated at a time."""
RESERVE: Final = ALLOCATION // 2
"""Allocated and not written yet; with less, more is allocated, and without receives end."""
CHANGE_SIZE: Final = 8 << 20
"""A file that is smaller than that is not followed by another one."""
CHANGE_TIMES: Final = 4
"""Nor one that is smaller than so many times its own snapshot."""
SLICE_ROWS: Final = 1000
"""Messages in flight, of whole queues, that a turn of the loop says anew at least."""
SLOW_JOB_S: Final = 0.2
"""With a job that takes longer the disk stalls, and a write on the loop may stall, too."""

T = TypeVar("T")
Told = Callable[[BaseException | None], None]


class Live(Protocol):
    """The state in memory, of which a new file says all. Loop thread."""

    @property
    def last_serial(self) -> int:
        """The greatest serial that a delivery ever had."""
        ...

    def keys(self) -> list[Key]:
        """Return the queues that there are."""
        ...

    def state_of(self, key: Key) -> KeyState | None:
        """Return the state of a queue as it is now, its rows in order; None when it is gone."""
        ...


@dataclass(frozen=True, slots=True)
class JournalMode:
    """When what is noted counts as kept."""

    is_sync: bool  # when it is synced
    interval_s: float  # otherwise it is synced so often


class _Written(NamedTuple):
    """What a job has done to a file."""

    allocated: int  # end of its blocks
    no_space: OSError | None  # why it has no more of them
    is_written: bool  # False: there was no room


class _Open:
    """The file that is written to."""

    def __init__(self, file: StoreFile, frames: FrameWriter, position: int, allocated: int) -> None:
        self.file = file
        self.frames = frames
        # Invariant: synced <= position <= allocated.
        self.position = position
        self.synced = position
        self.allocated = allocated
        self.change_size = 0  # from this size on another file follows
        self.note_snapshot(position)

    def note_snapshot(self, size: int) -> None:
        """Note what it takes to say all."""
        self.change_size = max(CHANGE_SIZE, CHANGE_TIMES * size)

    def append(self, data: bytes, position: int, allocated: int) -> _Written:
        """Write and sync; have blocks ahead. On the worker; changes nothing here.

        Raises:
            OSError: the disk has failed.
        """
        end, no_space = position + len(data), None
        if allocated - end < RESERVE:
            size = _rounded(end + RESERVE - allocated)
            try:
                self.file.allocate(allocated, size)
                allocated += size
            except OSError as error:
                if refusal(error) is None:
                    raise
                no_space = error
        if end > allocated:
            return _Written(allocated, no_space, is_written=False)
        if data:
            self.file.pwrite(data, position)
        self.file.datasync()
        return _Written(allocated, no_space, is_written=True)


class PopJournal:
    """Keeps what is noted, by the flush mode."""

    def __init__(
        self,
        folder: Path,
        files: Files,
        worker: Worker,
        clock: Clock,
        mode: JournalMode,
        fail: Callable[[BaseException], object],
    ) -> None:
        """Take the disk; nothing is touched yet.

        Args:
            worker: a thread that has nothing else to do.
            fail: ends all writing of the store for good, because the disk failed.
        """
        self._loop: asyncio.AbstractEventLoop | None = None  # once something was noted
        self._folder = folder
        self._files = files
        self._worker = worker
        self._clock = clock
        self._mode = mode
        self._fail = fail
        self._live: Live | None = None
        self._numbers: list[int] = []  # of the files that are there, oldest first
        self._open: _Open | None = None
        self._pending: list[Record] = []
        self._packed = b""  # frames of the file, made of records that were pending
        self._waiting: list[Told] = []
        self._snapshot: Iterator[Key] | None = None  # queues that the file has still to say anew
        # The file's end when it had said all; synced up to it, it is all that is needed.
        self._removes_at: int | None = None
        self._wants_sync = False
        self._waits_for_sync = False  # somebody does, under ASYNC_FLUSH too
        self._is_planned = False  # a turn's end is to come
        self._job_since: float | None = None  # monotonic; None: no job is under way
        self._job_writes = False  # so the loop must not
        self._no_space: OSError | None = None  # why no more blocks can be had
        self._is_behind = False  # for want of room the files do not say all anymore
        self._failure: BaseException | None = None
        self._timer = IntervalTimer(clock, mode.interval_s, self._tick)

    # Start and stop

    def load(self) -> PopState:
        """Return what the files say, not yet held against the queues. Blocks.

        Raises:
            CorruptFileError: a file was written by a later release.
            OSError: the disk cannot be read.
        """
        self._numbers = file_numbers(self._files, self._folder)
        return load_state(self._files, self._folder)

    def begin(self, state: PopState, live: Live) -> None:
        """Begin a file that says all of `state`, durably, and remove the older ones. Blocks.

        Without a file nothing is touched.

        Args:
            state: what was loaded, as far as it is true.
            live: asked later, when a file is changed.

        Raises:
            OSError: the disk refused; nothing is lost.
        """
        self._live = live
        if self._numbers:
            states = [State(key, found) for key, found in state.keys.items()]
            number = self._numbers[-1] + 1
            frames = FrameWriter()
            frame = frames.frame([*states, Whole(state.last_serial)], 0)
            self._open = self._begin_file(number, frames, frame)
            self._remove(self._numbers)
            self._numbers = [number]
        self._timer.start()

    def discard(self) -> None:
        """Forget all, durably: the log is another broker's from now on. Blocks; before `begin`.

        What is there speaks of places of a log that may be cut back, and grow anew.
        """
        self._remove(file_numbers(self._files, self._folder))
        self._numbers = []

    async def stop(self) -> None:
        """Bring all to the disk, and note that this was a clean stop; failures are logged.

        Call after the last note, while the worker still works.
        """
        self._timer.stop()
        self._snapshot = None  # the older files stay
        try:
            await self._kept()
            if self._open is not None:
                self.note(Clean())
                await self._kept()
                self._open.file.close()
        except (OSError, StoreError) as error:
            log.error("the journal of pop consumption was not ended: %s", error)
        self._failure = self._failure or StoreError("the broker has stopped")

    async def _kept(self) -> None:
        await result_of(lambda done: self.after(lambda error: done(None, error), is_synced=True))

    # While it runs

    def note(self, record: Record) -> None:
        """Have a record written at the end of this turn."""
        if self._failure is None and not self._is_behind:
            self._pending.append(record)
            self._plan()

    def after(self, done: Told, *, is_synced: bool = False) -> None:
        """Call `done` in a later turn, when all that was noted so far is kept by the flush mode.

        Args:
            is_synced: when it is synced, whatever the mode is.

        An error says that it is not: for want of room (what was noted stands in memory, and is
        written when there is some), or because the disk has failed.
        """
        self._waiting.append(done)
        if is_synced:
            self._wants_sync = self._waits_for_sync = True
        self._plan()

    def refusal(self) -> str | None:
        """Return why nothing may be taken now; None when it may."""
        if self._failure is not None:
            return f"the journal of pop consumption has failed: {self._failure}"
        refused = refusal(self._no_space)
        if refused is not None:
            return f"{refused.why}: the journal of pop consumption cannot grow; {refused.cure}"
        return None

    def _plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_planned = False
        self._go_on()

    def _tick(self) -> None:
        is_synced = self._open is None or self._open.position == self._open.synced
        if self._is_behind:
            self._catch_up()
        elif self._no_space is not None or not is_synced:
            self._wants_sync = True
            self._go_on()

    def _go_on(self) -> None:
        """Do the next thing that can be done."""
        if self._failure is not None or self._is_behind:
            self._tell(self._take_waiting(), self._failure or self._no_space)
        elif self._job_since is not None:
            self._write_beside_job(self._job_since)
        elif self._open is None:
            self._begin_first()
        elif self._removes_at is not None and self._removes_at <= self._open.synced:
            self._remove_older()
        elif self._open.position >= self._open.change_size and self._may_change:
            self._change_file(self._open)
        else:
            self._write(self._open)

    @property
    def _may_change(self) -> bool:
        return self._snapshot is None and self._removes_at is None and not self._packed

    def _take_waiting(self) -> list[Told]:
        waiting, self._waiting = self._waiting, []
        return waiting

    @staticmethod
    def _tell(waiting: list[Told], error: BaseException | None) -> None:
        for done in waiting:
            done(error)

    # Writing

    def _pack(self, file: _Open) -> bytes:
        """Return all that is to be written now."""
        says_all = not self._packed and self._say_more()
        if self._pending:
            self._packed += file.frames.frame(self._pending, file.synced)
            self._pending = []
        if says_all:
            self._removes_at = file.position + len(self._packed)
            file.note_snapshot(self._removes_at)
            self._wants_sync = True
        return self._packed

    def _say_more(self) -> bool:
        """Have some more queues said anew; True when those were the last ones."""
        if self._snapshot is None or self._live is None:
            return False
        row_count = 0
        for key in self._snapshot:
            state = self._live.state_of(key)
            if state is not None:
                self._pending.append(State(key, state))
                row_count += 1 + len(state.rows)
            if row_count >= SLICE_ROWS:
                return False
        self._snapshot = None
        self._pending.append(self._whole())
        return True

    def _write(self, file: _Open) -> None:
        data = self._pack(file)
        is_here = not data or (not self._mode.is_sync and self._fits(file, data))
        if is_here and not self._wants_sync:
            self._write_here(file, data)
            return
        position, waiting = file.position, self._take_waiting()
        self._packed, self._wants_sync, self._waits_for_sync = b"", False, False
        allocated, end = file.allocated, position + len(data)
        self._submit(
            lambda: file.append(data, position, allocated),
            lambda written: self._written(file, end, written, waiting),
            waiting,
            writes=bool(data),
        )

    @staticmethod
    def _fits(file: _Open, data: bytes) -> bool:
        return file.position + len(data) <= file.allocated

    def _write_here(self, file: _Open, data: bytes) -> None:
        """Write on the loop, and tell."""
        if data:
            try:
                file.file.pwrite(data, file.position)
            except OSError as error:
                self._failed(error)
                return
            self._packed = b""
            file.position += len(data)
        self._tell(self._take_waiting(), None)
        if self._snapshot is not None or self._wants_sync:
            self._plan()

    def _write_beside_job(self, since: float) -> None:
        """Do what need not wait for the worker: it syncs, and the disk is quick."""
        is_slow = self._clock.monotonic() - since >= SLOW_JOB_S
        is_kept_by_sync = self._mode.is_sync or self._waits_for_sync
        if is_kept_by_sync or self._job_writes or is_slow or self._open is None:
            return
        if self._fits(self._open, self._pack(self._open)):
            self._write_here(self._open, self._packed)

    def _written(self, file: _Open, end: int, written: _Written, waiting: list[Told]) -> None:
        file.allocated = written.allocated
        self._note_space(written.no_space)
        if written.is_written:
            file.synced = end
            file.position = max(file.position, end)
            self._tell(waiting, None)
        else:
            self._fall_behind(waiting)
        self._go_on()

    def _submit(
        self,
        job: Callable[[], T],
        done: Callable[[T], None],
        waiting: list[Told],
        *,
        writes: bool = True,
    ) -> None:
        """Have the worker do something; an error of it is the end."""

        def finished(result: T | None, error: BaseException | None) -> None:
            self._job_since = None
            if error is None:
                done(cast(T, result))
            else:
                self._waiting = waiting + self._waiting
                self._failed(error)

        self._job_since = self._clock.monotonic()
        self._job_writes = writes
        self._worker.submit(job, finished)

    def _failed(self, error: BaseException) -> None:
        self._failure = error
        self._pending.clear()
        self._timer.stop()
        self._fail(error)
        self._tell(self._take_waiting(), error)

    # Room

    def _note_space(self, no_space: OSError | None) -> None:
        if (no_space is None) != (self._no_space is None):
            if no_space is not None:
                log.warning("pop consumption ends until there is room: %s", no_space)
            else:
                log.info("there is room for the journal of pop consumption again")
        self._no_space = no_space

    def _fall_behind(self, waiting: list[Told]) -> None:
        """Say no more until there is room to say all."""
        self._is_behind = True
        self._pending.clear()
        self._packed = b""
        self._snapshot = None
        self._removes_at, self._wants_sync, self._waits_for_sync = None, False, False
        self._tell(waiting + self._take_waiting(), self._no_space)

    def _catch_up(self) -> None:
        """Try to begin a file that says all."""
        if self._job_since is None:
            self._is_behind = False  # what is noted from now on follows
            self._begin_whole(self._states())

    def _states(self) -> Iterator[State]:
        assert self._live is not None
        keys = self._live.keys()
        for key in keys:
            state = self._live.state_of(key)
            if state is not None:
                yield State(key, state)

    def _whole(self) -> Whole:
        assert self._live is not None
        return Whole(self._live.last_serial)

    # Files

    def _begin_first(self) -> None:
        if self._pending:
            self._begin_whole(())
        else:
            self._tell(self._take_waiting(), None)

    def _begin_whole(self, states: Iterable[State]) -> None:
        """Have a file begun that says all."""
        frames, number = FrameWriter(), self._next_number
        frame = frames.frame([*states, self._whole()], 0)

        def done(begun: _Open | OSError) -> None:
            if isinstance(begun, _Open):
                self._note_space(None)
                if self._open is not None:
                    self._open.file.close()
                self._take(begun, number)
                self._removes_at = begun.synced
            else:
                self._note_space(begun)
                self._fall_behind([])
            self._go_on()

        self._submit(lambda: self._try_begin(number, frames, frame), done, [])

    def _change_file(self, file: _Open) -> None:
        number = self._next_number

        def job() -> _Open | OSError:
            file.file.datasync()  # so that only the last file may have a torn end
            return self._try_begin(number, FrameWriter(), b"")

        def done(begun: _Open | OSError) -> None:
            if isinstance(begun, _Open):
                file.file.close()
                self._take(begun, number)
                assert self._live is not None
                self._snapshot = iter(self._live.keys())
            else:
                file.synced = file.position
                file.change_size = 2 * file.position
            self._go_on()

        self._submit(job, done, [])

    @property
    def _next_number(self) -> int:
        return self._numbers[-1] + 1 if self._numbers else 1

    def _take(self, begun: _Open, number: int) -> None:
        self._open = begun
        self._numbers.append(number)

    def _try_begin(self, number: int, frames: FrameWriter, frame: bytes) -> _Open | OSError:
        try:
            return self._begin_file(number, frames, frame)
        except OSError as error:
            if refusal(error) is None:
                raise
            return error

    def _begin_file(self, number: int, frames: FrameWriter, frame: bytes) -> _Open:
        """Begin a file with a frame, durably. Blocks.

        Raises:
            OSError: the disk refused; the file is gone again.
        """
        path, data = file_path(self._folder, number), file_head(number) + frame
        self._files.make_folder(self._folder)
        file = self._files.open(path, create=True)
        try:
            file.truncate(0)
            allocated = _rounded(len(data) + RESERVE)
            file.allocate(0, allocated)
            file.pwrite(data, 0)
            file.datasync()
            self._files.sync_folder(self._folder)
        except OSError:
            file.close()
            with suppress(OSError):
                self._files.unlink(path)
            raise
        return _Open(file, frames, len(data), allocated)

    def _remove_older(self) -> None:
        older = self._numbers[:-1]

        def job() -> None:
            try:
                self._remove(older)
            except OSError as error:
                if refusal(error) is None:
                    raise
                log.warning("older files may come back, and go with the next start: %s", error)

        def done(_: None) -> None:
            self._removes_at = None
            self._numbers = self._numbers[len(older) :]
            self._go_on()

        self._submit(job, done, [], writes=False)

    def _remove(self, numbers: list[int]) -> None:
        """Remove files. Blocks."""
        for number in numbers:
            with suppress(FileNotFoundError):
                self._files.unlink(file_path(self._folder, number))
        if numbers:
            self._files.sync_folder(self._folder)


def _rounded(size: int) -> int:
    return -(-size // ALLOCATION) * ALLOCATION
