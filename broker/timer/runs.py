"""The disk side of waiting entries: runs are written, read, merged and removed by the timer thread.

What cannot be read is derived and can be made again: `broken` says so to the owner. What the
machine refuses is tried again; any other failure to write ends the store's writing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.common.files import Files
from skylarkmq.common.refusal import refusal
from skylarkmq.common.worker import Worker, run_job, start
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

RETRY_S: Final = 10.0  # after a refusal


class RunFiles:
    """Moves entries between memory and files. Loop thread, but for its jobs.

    Attributes:
        job_count: what is under way in the background.
        broken: why the runs are of no use anymore.
        is_merging: whether runs are being merged, or were and are not replaced yet.
    """

    def __init__(
        self,
        store: MessageStore,
        files: Files,
        clock: Clock,
        worker: Worker,
        state: TimerState,
        changed: Callable[[], None],
    ) -> None:
        """Make it.

        Args:
            changed: called when something in the background has ended.
        """
        self._store = store
        self._files = files
        self._clock = clock
        self._worker = worker
        self._folder = store.paths.timer
        self._state = state
        self._changed = changed
        self._age = 0  # of the runs: results of older ones are dropped
        self._merged: tuple[TimerIndex, int, int, list[int]] | None = None
        self._merge_not_before_s = 0.0
        self._retries: dict[int, TimerHandle] = {}
        self.job_count = 0
        self.broken: BaseException | None = None
        self.is_merging = False
        self.running = False

    def stop(self) -> None:
        """Try nothing again, merge no more."""
        self.running = False
        for retry in self._retries.values():
            retry.cancel()
        self._retries.clear()

    def begin_again(self) -> None:
        """Drop what is under way for runs that were forgotten."""
        self._age += 1
        self._merged = self.broken = None
        self.is_merging = False
        for retry in self._retries.values():
            retry.cancel()
        self._retries.clear()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something in the background."""

        def ended(_: None, error: BaseException | None) -> None:
            self.job_count -= 1
            self._changed()
            if error is not None:
                raise error

        self.job_count += 1
        start(work, ended)

    # Writing

    def freeze(self, index: TimerIndex) -> bool:
        """Make the memory of an index a run and write it; False when that is not possible now."""
        run = index.freeze(self._state.next_number, self._state.queue_offset)
        if run is None:
            return False
        self._state.take_number()
        self._begin(self._write(index, run))
        return True

    @property
    def is_writing(self) -> bool:
        """True while a run is being written. One that found no room waits for another."""
        return sum(not run.written for run in self._state.runs) > len(self._retries)

    async def _write(self, index: TimerIndex, run: Run) -> None:
        self._retries.pop(run.number, None)
        age, path, entries = self._age, run_path(self._folder, run.number), run.entries
        try:
            await run_job(self._worker, lambda: write_run(self._files, path, b"".join(entries)))
        except Exception as error:
            if age != self._age:
                return
            if refusal(error) is None:
                self._store.fail(error)
            elif self.running:
                log.warning("timed messages stay in memory for now: %s", error)
                self._retries[run.number] = self._clock.call_at(
                    self._clock.monotonic() + RETRY_S,
                    lambda: self._begin(self._write(index, run)),
                )
        else:
            if age == self._age:
                index.run_written(run)

    # Reading

    async def load(self) -> bool:
        """Read the next entries of the runs that need it; return whether any did.

        Raises:
            OSError: the machine refused something; ask again later.
        """
        wanted = [(index, run) for index in self._state.indexes for run in index.unloaded()]
        parts = [
            RunPart(run_path(self._folder, run.number), run.count, run.taken) for _, run in wanted
        ]
        if parts:
            try:
                pages = await run_job(
                    self._worker, lambda: [read_entries(self._files, part) for part in parts]
                )
            except Exception as error:
                if refusal(error) is not None:
                    raise
                self.broken = error
            else:
                for (_, run), page in zip(wanted, pages, strict=True):
                    run.entries, run.next = split(page), 0  # from `taken` on
        return bool(parts)

    async def scan(self, run: Run, start: int) -> bytes | None:
        """Read entries of a run from one of them on, for another purpose than taking them."""
        part = RunPart(run_path(self._folder, run.number), run.count, start)
        try:
            return await run_job(self._worker, lambda: read_entries(self._files, part))
        except Exception as error:
            if refusal(error) is None:
                self.broken = error
            return None

    # Merging

    def merge(self) -> None:
        """Begin to merge runs when there are many."""
        if self.is_merging or self._clock.monotonic() < self._merge_not_before_s:
            return
        for index in self._state.indexes:
            parts = index.to_merge()
            if parts:
                index.merging = parts
                self.is_merging = True
                self._begin(self._merge(index, parts))
                return

    async def _merge(self, index: TimerIndex, runs: list[Run]) -> None:
        age, number, starts = self._age, self._state.take_number(), [run.consumed for run in runs]
        parts = [
            RunPart(run_path(self._folder, run.number), run.count, run.consumed) for run in runs
        ]
        merge = Merge(self._files, run_path(self._folder, number), parts)
        count: int | None = None
        try:
            while count is None and age == self._age and self.running:
                count = await run_job(self._worker, merge.step)
        except Exception as error:
            if age == self._age and refusal(error) is None:
                self.broken = error
                return
            if age == self._age:
                log.warning("runs of timed messages are not merged for now: %s", error)
                self._merge_not_before_s = self._clock.monotonic() + RETRY_S
        merge.close()
        if age != self._age:
            return
        if count is not None:
            self._merged = index, number, count, starts
        else:
            self.is_merging = False
            index.merging = []
            index.garbage.append(number)

    def swap_merged(self) -> None:
        """Put a finished merge in its place; nothing may be in hand."""
        if self._merged is not None:
            index, number, count, starts = self._merged
            index.replace_merged(number, count, starts)
            self._merged, self.is_merging = None, False

    # Removing

    def remove(self, numbers: Iterable[int]) -> None:
        """Unlink runs that no checkpoint names."""
        if paths := [run_path(self._folder, number) for number in numbers]:
            self._begin(self._remove(paths))

    async def _remove(self, paths: list[Path]) -> None:
        def unlink() -> None:
            for path in paths:
                if self._files.exists(path):
                    self._files.unlink(path)

        try:
            await run_job(self._worker, unlink)
        except Exception as error:
            log.warning("runs that are not needed stay until the next start: %s", error)
