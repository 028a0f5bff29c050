"""A progress bar on standard error, on a terminal alone: rich's where that is there."""

from __future__ import annotations

import importlib
import sys
from types import TracebackType
from typing import Any, Final, TextIO

_PERCENT: Final = 100


class ProgressBar:
    """Shows how far a tool is; call it with what it does, the bytes done, and the bytes in all."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shows = self._stream.isatty()
        self._shown = ""
        self._rich: Any = None
        self._task: Any = None
        self._what = ""

    def __enter__(self) -> ProgressBar:
        if self._shows:
            self._rich = _rich_bar(self._stream)
            if self._rich is not None:
                self._rich.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.clear()
        if self._rich is not None:
            self._rich.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Tell how far it is."""
        if not self._shows or total <= 0:
            return
        if self._rich is not None:
            if what != self._what:
                self.clear()
                self._what, self._task = what, self._rich.add_task(what, total=total)
            self._rich.update(self._task, completed=done, total=total)
            return
        text = f"{what}: {done * _PERCENT // total} %"
        if text != self._shown:
            self._write("\r" + text.ljust(len(self._shown)))
            self._shown = text

    def clear(self) -> None:
        """Take away what is shown."""
        if self._rich is not None and self._task is not None:
            self._rich.remove_task(self._task)
            self._task, self._what = None, ""
        elif self._shown:
            self._write("\r" + " " * len(self._shown) + "\r")
            self._shown = ""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _rich_bar(stream: TextIO) -> Any:
    """A bar of rich's, None when rich is not installed."""
    try:
        console: Any = importlib.import_module("rich.console")
        bars: Any = importlib.import_module("rich.progress")
    except ImportError:
        return None
    return bars.Progress(
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TimeRemainingColumn(),
        console=console.Console(file=stream),
        transient=True,
    )
