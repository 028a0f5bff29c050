"""How many messages one pull brings: what the broker's caps let through, learned from answers.

short answer    the size becomes the most that the last few answers brought: the caps count
                messages or bytes, and an answer also ends where a log file does
full answers    after a few in a row the size is doubled; when that gains nothing, the next
                try waits twice as long
"""

from __future__ import annotations

from collections import deque
from typing import Final

RECENT_MAX: Final = 4
PATIENCE_FIRST: Final = 2
PATIENCE_MAX: Final = 1024


class Stride:
    """The messages to ask for at once: `size` of them, at most `maximum`."""

    __slots__ = ("_full_count", "_grown", "_patience", "_recent", "maximum", "size")

    def __init__(self, maximum: int) -> None:
        self.size = self.maximum = maximum
        self._recent: deque[int] = deque(maxlen=RECENT_MAX)
        self._full_count = 0
        self._patience = PATIENCE_FIRST
        # Whether the size was doubled and no answer has shown yet that it was worth it.
        self._grown = False

    def answered(self, asked: int, count: int) -> None:
        """Learn from an answer of `count` messages to a pull of `asked`."""
        if count < asked:
            self._recent.append(count)
            self.size = max(1, *self._recent)
            self._full_count = 0
            if self._grown:
                self._patience = min(self._patience * 2, PATIENCE_MAX)
                self._grown = False
        elif asked >= self.size:
            self._recent.append(count)
            self._full_count += 1
            self._grown = False
            if self.size < self.maximum and self._full_count >= self._patience:
                self.size = min(self.maximum, self.size * 2)
                self._full_count = 0
                self._grown = True
