"""Lines of the log about what may come again and again: so many of a kind in some time."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Final

from skylarkmq.common.clock import Clock

INTERVAL_S: Final = 60.0
KINDS_MAX: Final = 256
"""Kinds that are remembered; one more, and each may be told at once."""


class ThrottledLog:
    """Writes lines, not too many of a kind. One thread."""

    def __init__(self, clock: Clock, log: logging.Logger, interval_s: float = INTERVAL_S) -> None:
        self._clock = clock
        self._log = log
        self._interval_s = interval_s
        self._told: dict[Hashable, tuple[float, int]] = {}  # until when, how many lines

    def tell(self, kind: Hashable, text: str, limit: int = 1, level: int = logging.WARNING) -> None:
        """Log a line, unless there were `limit` of its kind lately."""
        now_s = self._clock.monotonic()
        until_s, count = self._told.get(kind, (now_s, 0))
        if now_s >= until_s:
            until_s, count = now_s + self._interval_s, 0
        if len(self._told) >= KINDS_MAX:
            self._told.clear()
        self._told[kind] = until_s, count + 1
        if count < limit:
            self._log.log(level, "%s", text)

    def forget(self, kind: Hashable) -> None:
        """Let the next line of a kind be written at once: what it was about is over."""
        self._told.pop(kind, None)
