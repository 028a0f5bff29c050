"""Results as text, aligned tables for humans and JSON for programs, and the progress bar.

JSON has the same keys in every release; new ones may come. Times are ms since the epoch in JSON and
UTC in tables.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, TextIO

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP: Final = 1024


def as_json(value: Any, *, indent: int | None = 2) -> str:
    """Return a value as JSON text."""
    return json.dumps(value, indent=indent, ensure_ascii=False)


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the lines of a table; columns of numbers are aligned to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    right = [all(_is_number(row[i]) for row in cells) and bool(cells) for i in range(len(headers))]
    return [
        "  ".join(
            text.rjust(width) if leans else text.ljust(width)
            for text, width, leans in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in [[*headers], *cells]
    ]


def when(timestamp_ms: int) -> str:
    """Return a time for humans; `-` for none."""
    if timestamp_ms <= 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def size_text(size: int) -> str:
    """Return a count of bytes for humans."""
    value, unit = float(size), 0
    while value >= _STEP and unit < len(_UNITS) - 1:
        value /= _STEP
        unit += 1
    return f"{size} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def _cell(value: Any) -> str:
    return "-" if value is None else str(value)


def _is_number(text: str) -> bool:
    return text == "-" or text.lstrip("-").isdigit()


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
        """Show how far the work is."""
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
        """Remove what is shown."""
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
    """Return a bar of rich's, None when rich is not installed."""
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
