"""How far a job is: a live line on a terminal, plain lines elsewhere, always on standard error.

With the extra `cli` (rich) a terminal shows a bar with rate and time left. Without it, and where
the output is a file, a plain line comes at most every few seconds. Off by default with --json and
where standard error is no terminal. Driver process, one thread.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Final, Self, TextIO

from skylarkmq.spark.clock import BlockingClock, SystemClock

LINE_INTERVAL_S: Final = 5.0
"""Seconds between two plain lines."""


class Progress:
    """A job's progress; a context manager. `show` may come as often as it likes.

    Args:
        what: a few words, as "archiving orders".
        shown: whether to print at all.
        unit: what is counted, in the plural.
        rich: False prints plain lines even where rich is installed.
    """

    def __init__(
        self,
        what: str,
        *,
        shown: bool,
        unit: str = "messages",
        out: TextIO | None = None,
        clock: BlockingClock | None = None,
        rich: bool = True,
    ) -> None:
        self.what = what
        self.done = 0
        self.total: int | None = None
        self._shown = shown
        self._unit = unit
        self._out = sys.stderr if out is None else out
        self._clock = SystemClock() if clock is None else clock
        self._rich = rich
        self._bar: _RichBar | None = None
        self._next_line_s = 0.0
        self._started_s = self._clock.monotonic()

    def __enter__(self) -> Self:
        self._started_s = self._clock.monotonic()
        self._next_line_s = self._started_s + LINE_INTERVAL_S
        if self._shown and self._rich and self._out.isatty():
            self._bar = _RichBar.open(self.what, self._unit, self._out)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def advance(self, count: int, note: str = "") -> None:
        """Say that `count` more are done."""
        self.show(self.done + count, self.total, note)

    def show(self, done: int, total: int | None = None, note: str = "") -> None:
        """Say that `done` of `total` are done; `note` stands behind, as "lag 12".

        Args:
            total: None while nobody knows it.
        """
        self.done, self.total = done, total
        if not self._shown:
            return
        if self._bar is not None:
            self._bar.show(done, total, note)
            return
        now = self._clock.monotonic()
        if now >= self._next_line_s:
            self._next_line_s = now + LINE_INTERVAL_S
            self._line(now, note)

    def say(self, text: str) -> None:
        """Print a line of its own now, between the others."""
        if not self._shown:
            return
        if self._bar is not None:
            self._bar.say(text)
        else:
            self._out.write(f"{self.what}: {text}\n")
            self._out.flush()

    def _line(self, now: float, note: str) -> None:
        of = f" of {self.total:,} ({_percent(self.done, self.total)})" if self.total else ""
        elapsed = now - self._started_s
        rate = f", {self.done / elapsed:,.0f}/s" if self.done and elapsed > 0 else ""
        behind = f", {note}" if note else ""
        self._out.write(f"{self.what}: {self.done:,}{of} {self._unit}{rate}{behind}\n")
        self._out.flush()


def _percent(done: int, total: int) -> str:
    return f"{min(done, total) * 100 // total}%"


class _RichBar:
    """rich's progress bar, where rich is installed."""

    def __init__(self, bar: Any, task: Any) -> None:
        self._bar = bar
        self._task = task

    @classmethod
    def open(cls, what: str, unit: str, out: TextIO) -> _RichBar | None:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
            from rich.progress import TimeRemainingColumn as Remaining
        except ImportError:  # the extra `cli` is not installed
            return None
        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[count]}", markup=False),
            TimeElapsedColumn(),
            Remaining(),
            TextColumn("{task.fields[note]}", markup=False),
            console=Console(file=out),
            transient=True,
        )
        bar.start()
        return cls(bar, bar.add_task(what, total=None, count=f"0 {unit}", note=""))

    def show(self, done: int, total: int | None, note: str) -> None:
        of = f"/{total:,}" if total else ""
        self._bar.update(
            self._task, completed=done, total=total or None, count=f"{done:,}{of}", note=note
        )

    def say(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._bar.stop()
