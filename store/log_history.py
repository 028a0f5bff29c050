"""What was done with a log when it ended at a place: for a log that is cut later.

Who goes on with messages of the log, and writes down how far, counts on what it has stored itself:
the copies of delayed messages. A cut of the log takes the last of those, and what was written down
says more than is true. So each writes down where the log ended, too, and what it said before; that
gets sparser with its distance. A log that is shorter than that was cut: what was said of one that
was as short counts then.

Plain values; who keeps them in a file is the owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

HISTORY_MAX: Final = 32

T = TypeVar("T")


class LogHistory(Generic[T]):
    """What was said, each time of a longer log. Loop thread.

    Attributes:
        rows: where the log ended, and what was said then.
    """

    def __init__(self, rows: Iterable[tuple[int, T]] = ()) -> None:
        self.rows = list(rows)

    @property
    def log_end(self) -> int:
        """How long the log must be for the last of it to be true; 0 without any."""
        return self.rows[-1][0] if self.rows else 0

    def say(self, log_end: int, said: T) -> None:
        """Add what is true while the log reaches to a place."""
        self.rows.append((log_end, said))
        if len(self.rows) > HISTORY_MAX:
            del self.rows[1 : HISTORY_MAX // 2 : 2]

    def go_back(self, log_end: int, holds: Callable[[T], bool] = lambda _: True) -> T | None:
        """Forget what was said of a longer log, and return the last that is left."""
        self.rows = [(end, said) for end, said in self.rows if end <= log_end and holds(said)]
        return self.rows[-1][1] if self.rows else None
