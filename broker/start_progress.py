"""How far a long start is, on a terminal: one line that is written over; and how it is stopped."""

from __future__ import annotations

from types import FrameType
from typing import Final, TextIO

from skylarkmq.store.progress import StartEnded, progress_text

QUIET_SIZE: Final = 64 << 20
"""Bytes of work below which nothing is shown: it is done before it could be read."""
_CLEAR_LINE: Final = "\r\x1b[K"


class StartProgress:
    """A `Progress` for people; silent where nobody looks at a terminal. Loading thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shows = stream.isatty()
        self._shown = -1  # percent
        self.stopped = False

    def stop(self, _number: int, _frame: FrameType | None) -> None:
        """End the start at its next step: a handler of signals."""
        self.stopped = True

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show how far it is, when that has changed by a percent.

        Raises:
            StartEnded: `stop` was called.
        """
        if self.stopped:
            raise StartEnded
        percent = 100 * done // total if total else 100
        if self._shows and total >= QUIET_SIZE and percent != self._shown:
            self._shown = percent
            # Back to the front, so that a log line covers it.
            self._write(f"{_CLEAR_LINE}{progress_text(what, done, total)}\r")

    def end(self) -> None:
        """Take the line away."""
        if self._shown >= 0:
            self._shown = -1
            self._write(_CLEAR_LINE)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
