"""The disk side of waiting entries: runs are written, read, merged and removed by the timer thread.

What fails to be read is derived and can be made again: `broken` says so to the owner. A full disk
is tried again; a disk that fails to write ends the store's writing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.common.files import Files, is_no_space
from skylarkmq.common.worker import Done as WorkerDone
from skylarkmq.common.worker import T, Worker
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.timer.checkpoint import TimerState
from skylarkmq.store.timer.index import Run, TimerIndex
from skylarkmq.store.timer.run_file import (
    Merge,
    RunPart,
    read_entries,
    run_path,
    split,
    write_run,
)

log = logging.getLogger(__name__)

RETRY_S: Final = 10.0  # after a full disk

Done = Callable[[], None]


class RunFiles:
    """Moves entries between memory and files. Loop thread, but for its jobs.

    Attributes:
        jobs: how many are under way.
        broken: why the runs are of no use any more.
    """

    def __init__(
        self,
        store: MessageStore,
        files: Files,
        clock: Clock,
        worker: Worker,
        folder: Path,
        state: TimerState,
        changed: Done,
    ) -> None:
        """Make it.

        Args:
            changed: called after each job that has moved something.
        """
        self._store = store
        self._files = files
        self._clock = clock
        self._worker = worker
        self._folder = folder
        self._state = state
        self._changed = changed
        self._age = 0  # of the runs: results of older ones are dropped
        self._merge: tuple[TimerIndex, int, Merge, list[int]] | None = None
        self._merged_count: int | None = None
        self._merge_not_before_s = 0.0
        self._retries: dict[int, TimerHandle] = {}
        self.jobs = 0
        self.broken: BaseException | None = None
        self.running = False

    def stop(self) -> None:
        """Try nothing again, merge no more."""
        self.running = False
        for retry in self._retries.values():
            retry.cancel()
        self._retries.clear()

    def begin_again(self) -> None:
        """The runs were forgotten: drop what is under way for them."""
        self._age += 1
        self._merge = self._merged_count = self.broken = None
        for retry in self._retries.values():
            retry.cancel()
        self._retries.clear()

    # Writing

    def freeze(self, index: TimerIndex) -> bool:
        """Make the memory of an index a run and write it; False when that is not possible now."""
        run = index.freeze(self._state.next_number, self._state.queue_offset)
        if run is None:
            return False
        self._state.take_number()
        self._write(index, run)
        return True

    @property
    def is_writing(self) -> bool:
        """Whether the writing of a run is under way; one that found no room waits for another."""
        unwritten = sum(not run.written for index in self._state.indexes for run in index.runs)
        return unwritten > len(self._retries)

    def _write(self, index: TimerIndex, run: Run) -> None:
        self._retries.pop(run.number, None)
        path, entries = run_path(self._folder, run.number), run.entries
        self._submit(
            lambda: write_run(self._files, path, b"".join(entries)),
            partial(self._written, index, run),
        )

    def _written(
        self, index: TimerIndex, run: Run, count: int | None, error: BaseException | None
    ) -> None:
        if count is not None:
            index.run_written(run)
        elif not is_no_space(error or OSError()):
            self._store.fail(error or OSError())
        elif self.running:
            log.warning("timed messages stay in memory for now: %s", error)
            when_s = self._clock.monotonic() + RETRY_S
            self._retries[run.number] = self._clock.call_at(when_s, self._write, index, run)

    # Reading

    def load(self, done: Done) -> bool:
        """Read the next entries of the runs that need it; False when none does."""
        wanted = [
            (run, RunPart(run_path(self._folder, run.number), run.count, run.taken), index)
            for index in self._state.indexes
            for run in index.unloaded()
        ]
        if not wanted:
            return False
        files, parts = self._files, [part for _, part, _ in wanted]

        def loaded(pages: list[bytes] | None, error: BaseException | None) -> None:
            if pages is None:
                self.broken = error
            else:
                for (run, _, index), page in zip(wanted, pages, strict=True):
                    index.run_loaded(run, split(page))
            done()

        self._submit(lambda: [read_entries(files, part) for part in parts], loaded)
        return True

    def scan(self, run: Run, start: int, done: Callable[[bytes | None], None]) -> None:
        """Read entries of a run from one of them on, for another purpose than taking them."""
        part = RunPart(run_path(self._folder, run.number), run.count, start)

        def scanned(page: bytes | None, error: BaseException | None) -> None:
            if page is None:
                self.broken = error
            done(page)

        self._submit(lambda: read_entries(self._files, part), scanned)

    # Merging

    @property
    def is_merging(self) -> bool:
        return self._merge is not None

    def merge(self) -> None:
        """Begin to merge runs when there are many."""
        if self._merge is not None or self._clock.monotonic() < self._merge_not_before_s:
            return
        for index in self._state.indexes:
            parts = index.to_merge()
            if parts:
                index.merging = parts
                number, starts = self._state.take_number(), [run.consumed for run in parts]
                paths = [run_path(self._folder, run.number) for run in parts]
                merge = Merge(
                    self._files,
                    run_path(self._folder, number),
                    [
                        RunPart(path, run.count, start)
                        for path, run, start in zip(paths, parts, starts, strict=True)
                    ],
                )
                self._merge = (index, number, merge, starts)
                self._submit(merge.step, partial(self._merge_stepped, merge), aged=False)
                return

    def _merge_stepped(self, merge: Merge, count: int | None, error: BaseException | None) -> None:
        if self._merge is None or self._merge[2] is not merge:
            merge.close()  # of runs that were forgotten meanwhile
        elif error is not None and is_no_space(error):
            log.warning("runs of timed messages are not merged for now: %s", error)
            self._merge_not_before_s = self._clock.monotonic() + RETRY_S
            self._give_merge_up()
        elif error is not None:
            self.broken = error
        elif count is not None:
            self._merged_count = count
        elif self.running:
            self._submit(merge.step, partial(self._merge_stepped, merge), aged=False)
        else:
            merge.close()
            self._give_merge_up()

    def _give_merge_up(self) -> None:
        if self._merge is not None:
            index, number, _, _ = self._merge
            index.merging = []
            index.garbage.append(number)
            self._merge = None

    def swap_merged(self) -> None:
        """Put a finished merge in its place; nothing may be in hand."""
        if self._merge is not None and self._merged_count is not None:
            index, number, _, starts = self._merge
            index.replace_merged(number, self._merged_count, starts)
            self._merge = self._merged_count = None

    # Removing

    def remove(self, numbers: tuple[int, ...]) -> None:
        """Unlink runs that no checkpoint names."""
        if not numbers:
            return
        paths = [run_path(self._folder, number) for number in numbers]

        def unlink() -> None:
            for path in paths:
                if self._files.exists(path):
                    self._files.unlink(path)

        def unlinked(_: None, error: BaseException | None) -> None:
            if error is not None:
                log.warning("runs that nobody needs stay until the next start: %s", error)

        self._submit(unlink, unlinked)

    def _submit(self, job: Callable[[], T], done: WorkerDone[T], *, aged: bool = True) -> None:
        age = self._age
        self.jobs += 1

        def finished(result: T | None, error: BaseException | None) -> None:
            self.jobs -= 1
            if age == self._age or not aged:
                done(result, error)
            self._changed()

        self._worker.submit(job, finished)
