"""The journal of pop consumption: `<root>/skylarkmq/pop/`; its bytes: `store/pop/journal_file.py`.

    noted --end of the turn--> in a frame --> written --> answered          ASYNC_FLUSH
                                          --> written, synced --> answered  SYNC_FLUSH

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
is for acknowledgements. When that is used up, too, who waits gets the error, and what was noted
stands in memory alone, until there is room for a new file that says all in one frame.

Nothing is on the disk before the first record. Loop thread, but for `load` and `begin`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar, cast

from skylarkmq.broker.base.waiting import result_of
from skylarkmq.broker.pop.journal_folder import JournalFolder, OpenFile, Written
from skylarkmq.common.clock import Clock
from skylarkmq.common.errors import StoreError
from skylarkmq.common.files import Files
from skylarkmq.common.refusal import refusal
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.common.worker import Worker
from skylarkmq.store.pop.journal_file import FrameWriter
from skylarkmq.store.pop.journal_records import Clean, Key, KeyState, PopState, Record, State, Whole

log = logging.getLogger(__name__)

SLICE_ROWS: Final = 1000
"""Messages in flight, of whole queues, that a turn of the loop says anew at least."""
SLOW_JOB_S: Final = 0.2
"""With a job that takes longer the disk stalls, and a write on the loop may stall, too."""

T = TypeVar("T")
Callback = Callable[[BaseException | None], None]


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


class Snapshot:
    """The state in memory, said anew: at once, or a few queues in each turn.

    Attributes:
        live: None before the journal has begun.
    """

    def __init__(self) -> None:
        self.live: Live | None = None
        self._keys: Iterator[Key] | None = None  # queues that are still to be said

    @property
    def is_under_way(self) -> bool:
        """True while there is more to say."""
        return self._keys is not None

    def begin(self) -> None:
        """Say all, with `next`."""
        assert self.live is not None
        self._keys = iter(self.live.keys())

    def end(self) -> None:
        """Say no more."""
        self._keys = None

    def next(self) -> tuple[list[Record], bool]:
        """Return some more queues, and True when those were the last ones."""
        if self._keys is None:
            return [], False
        said: list[Record] = []
        row_count = 0
        for state in self._states_of(self._keys):
            said.append(state)
            row_count += 1 + len(state.state.rows)
            if row_count >= SLICE_ROWS:
                return said, False
        self._keys = None
        said.append(self.mark())
        return said, True

    def states(self) -> Iterator[State]:
        """Yield the states of all queues."""
        assert self.live is not None
        return self._states_of(iter(self.live.keys()))

    def _states_of(self, keys: Iterator[Key]) -> Iterator[State]:
        assert self.live is not None
        for key in keys:
            state = self.live.state_of(key)
            if state is not None:
                yield State(key, state)

    def mark(self) -> Whole:
        """Return what follows the last queue."""
        assert self.live is not None
        return Whole(self.live.last_serial)


@dataclass(frozen=True, slots=True)
class JournalMode:
    """When what is noted counts as kept."""

    is_sync: bool  # when it is synced
    interval_s: float  # otherwise it is synced so often


class PopJournal:
    """Keeps what is noted, by the flush mode.

    Its size is one idea: one order of written, synced and answered holds for all of it.
    """

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
        self._folder = JournalFolder(folder, files)
        self._snapshot = Snapshot()
        self._worker = worker
        self._clock = clock
        self._mode = mode
        self._fail = fail
        self._open: OpenFile | None = None
        self._pending: list[Record] = []
        self._packed = b""  # frames of the file, made of records that were pending
        self._waiting: list[Callback] = []
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
        return self._folder.load()

    def begin(self, state: PopState, live: Live) -> None:
        """Begin a file that says all of `state`, durably, and remove the older ones. Blocks.

        Without a file nothing is touched.

        Args:
            state: what was loaded, as far as it is true.
            live: asked later, when a file is changed.

        Raises:
            OSError: the disk refused; nothing is lost.
        """
        self._snapshot.live, folder = live, self._folder
        if folder.numbers:
            states = [State(key, found) for key, found in state.keys.items()]
            number = folder.next_number
            frames = FrameWriter()
            frame = frames.frame([*states, Whole(state.last_serial)], 0)
            self._open = folder.begin(number, frames, frame)
            folder.remove(folder.numbers)
            folder.numbers = [number]
        self._timer.start()

    def discard(self) -> None:
        """Forget all, durably: the log is another broker's from now on. Blocks; before `begin`.

        What is there speaks of places of a log that may be cut back, and grow anew.
        """
        self._folder.discard()

    async def stop(self) -> None:
        """Bring all to the disk, and note that this was a clean stop; failures are logged.

        Call after the last note, while the worker still works.
        """
        self._timer.stop()
        self._snapshot.end()  # the older files stay
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

    def after(self, done: Callback, *, is_synced: bool = False) -> None:
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
            self._answer(self._take_waiting(), self._failure or self._no_space)
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
        return not self._snapshot.is_under_way and self._removes_at is None and not self._packed

    def _take_waiting(self) -> list[Callback]:
        waiting, self._waiting = self._waiting, []
        return waiting

    @staticmethod
    def _answer(waiting: list[Callback], error: BaseException | None) -> None:
        for done in waiting:
            done(error)

    # Writing

    def _pack(self, file: OpenFile) -> bytes:
        """Return all that is to be written now."""
        says_all = False
        if not self._packed and self._snapshot.is_under_way:
            said, says_all = self._snapshot.next()
            self._pending += said
        if self._pending:
            self._packed += file.frames.frame(self._pending, file.synced)
            self._pending = []
        if says_all:
            self._removes_at = file.position + len(self._packed)
            file.note_snapshot(self._removes_at)
            self._wants_sync = True
        return self._packed

    def _write(self, file: OpenFile) -> None:
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
    def _fits(file: OpenFile, data: bytes) -> bool:
        return file.position + len(data) <= file.allocated

    def _write_here(self, file: OpenFile, data: bytes) -> None:
        """Write on the loop, and answer."""
        if data:
            try:
                file.file.pwrite(data, file.position)
            except OSError as error:
                self._failed(error)
                return
            self._packed = b""
            file.position += len(data)
        self._answer(self._take_waiting(), None)
        if self._snapshot.is_under_way or self._wants_sync:
            self._plan()

    def _write_beside_job(self, since: float) -> None:
        """Do what need not wait for the worker: it syncs, and the disk is quick."""
        is_slow = self._clock.monotonic() - since >= SLOW_JOB_S
        is_kept_by_sync = self._mode.is_sync or self._waits_for_sync
        if is_kept_by_sync or self._job_writes or is_slow or self._open is None:
            return
        if self._fits(self._open, self._pack(self._open)):
            self._write_here(self._open, self._packed)

    def _written(self, file: OpenFile, end: int, written: Written, waiting: list[Callback]) -> None:
        file.allocated = written.allocated
        self._note_space(written.no_space)
        if written.is_written:
            file.synced = end
            file.position = max(file.position, end)
            self._answer(waiting, None)
        else:
            self._fall_behind(waiting)
        self._go_on()

    def _submit(
        self,
        job: Callable[[], T],
        done: Callable[[T], None],
        waiting: list[Callback],
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
        self._answer(self._take_waiting(), error)

    # Room

    def _note_space(self, no_space: OSError | None) -> None:
        if (no_space is None) != (self._no_space is None):
            if no_space is not None:
                log.warning("pop consumption ends until there is room: %s", no_space)
            else:
                log.info("there is room for the journal of pop consumption again")
        self._no_space = no_space

    def _fall_behind(self, waiting: list[Callback]) -> None:
        """Say no more until there is room to say all."""
        self._is_behind = True
        self._pending.clear()
        self._packed = b""
        self._snapshot.end()
        self._removes_at, self._wants_sync, self._waits_for_sync = None, False, False
        self._answer(waiting + self._take_waiting(), self._no_space)

    def _catch_up(self) -> None:
        """Try to begin a file that says all."""
        if self._job_since is None:
            self._is_behind = False  # what is noted from now on follows
            self._begin_whole(self._snapshot.states())

    # Files

    def _begin_first(self) -> None:
        if self._pending:
            self._begin_whole(())
        else:
            self._answer(self._take_waiting(), None)

    def _begin_whole(self, states: Iterable[State]) -> None:
        """Have a file begun that says all."""
        frames, number = FrameWriter(), self._folder.next_number
        frame = frames.frame([*states, self._snapshot.mark()], 0)

        def done(begun: OpenFile | OSError) -> None:
            if isinstance(begun, OpenFile):
                self._note_space(None)
                if self._open is not None:
                    self._open.file.close()
                self._take(begun, number)
                self._removes_at = begun.synced
            else:
                self._note_space(begun)
                self._fall_behind([])
            self._go_on()

        self._submit(lambda: self._folder.try_begin(number, frames, frame), done, [])

    def _change_file(self, file: OpenFile) -> None:
        number = self._folder.next_number

        def job() -> OpenFile | OSError:
            file.file.datasync()  # so that only the last file may have a torn end
            return self._folder.try_begin(number, FrameWriter(), b"")

        def done(begun: OpenFile | OSError) -> None:
            if isinstance(begun, OpenFile):
                file.file.close()
                self._take(begun, number)
                self._snapshot.begin()
            else:
                file.synced = file.position
                file.change_size = 2 * file.position
            self._go_on()

        self._submit(job, done, [])

    def _take(self, begun: OpenFile, number: int) -> None:
        self._open = begun
        self._folder.numbers.append(number)

    def _remove_older(self) -> None:
        older = self._folder.numbers[:-1]

        def job() -> None:
            try:
                self._folder.remove(older)
            except OSError as error:
                if refusal(error) is None:
                    raise
                log.warning("older files may come back, and go with the next start: %s", error)

        def done(_: None) -> None:
            self._removes_at = None
            self._folder.numbers = self._folder.numbers[len(older) :]
            self._go_on()

        self._submit(job, done, [], writes=False)
