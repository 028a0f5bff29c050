"""How far a long piece of work at the start has come: a line in the log, and a call of a listener.

A small store starts without a word; from two seconds on there is a line each two seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from skylarkmq.common.clock import Clock

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Called with (what, done, in all), bytes or a count, on the thread that does the work.

What it raises ends that work; the store is then as a crash would leave it."""


class StartEnded(Exception):
    """Raised by a `Progress` to end the start here, because the process was asked to stop."""


INTERVAL_S: Final = 2.0
_MIB: Final = 1 << 20


def no_progress(what: str, done: int, total: int) -> None:
    """Tell no one how far the work is."""


class ProgressLog:
    """A `Progress` that logs. Loading thread."""

    def __init__(self, clock: Clock, listener: Progress | None = None) -> None:
        """Take the clock.

        Args:
            listener: called each time, before anything is logged.
        """
        self._clock = clock
        self._listener = listener
        self._due = clock.monotonic() + INTERVAL_S

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._listener is not None:
            self._listener(what, done, total)
        now = self._clock.monotonic()
        if now >= self._due:
            self._due = now + INTERVAL_S
            log.info("%s", progress_text(what, done, total))


def progress_text(what: str, done: int, total: int) -> str:
    """Return one line for people."""
    percent = 100 * done // total if total else 100
    if 0 < total < _MIB:
        return f"{what}: {percent} %, {done:,} of {total:,}"
    return f"{what}: {percent} %, {done // _MIB:,} of {total // _MIB:,} MiB"
