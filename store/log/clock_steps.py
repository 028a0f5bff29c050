"""Places of the log at which store times go back, because the clock was ahead before.

Store times rise with the places of the log: where the clock goes back a little, they stand still
until it has caught up (`BACK_MAX_MS`). A clock that was far ahead would hold them for as long, and
with them delays and searches; so they go back with it, once, and the place is noted:

    place      where the first record after the step begins, or a little before
    time_ms    its store time: what lies before that place counts as stored then at the latest
    before_ms  the newest store time before it

With that, a search finds rising times again. The clock may have been right before, and be behind
now: then the store times will leap over `before_ms` some day, and such a place says nothing. A log
without messages in that minute leaps, too; its searches may then come out earlier, never later.

The places are in the recovery point (`store/checkpoint.py`); what came after it, recovery finds on
its walk.

Unlike RocketMQ, which takes the clock as it is, and whose search goes astray then.
"""

from __future__ import annotations

from typing import Final, NamedTuple

BACK_MAX_MS: Final = 60_000
STEPS_MAX: Final = 100
"""Places that are kept, the newest ones: a clock that goes back once a minute fills no memory."""
NEVER: Final = 1 << 63


class ClockStep(NamedTuple):
    """One of them."""

    place: int
    time_ms: int
    before_ms: int


class ClockSteps:
    """The places. Loop thread, and `bounded` any thread.

    Attributes:
        rows: of the places; places and times rise.
        open_ms: a store time above it is to be told to `rise`.
    """

    def __init__(self) -> None:
        self.rows: tuple[ClockStep, ...] = ()
        self.open_ms = NEVER

    def load(self, rows: tuple[ClockStep, ...], newest_ms: int) -> None:
        """Take over what was known when the log had that store time."""
        self.rows = rows
        self._open(newest_ms)

    def add(self, place: int, time_ms: int, before_ms: int) -> None:
        """Note that the store times before a place are later than the one there."""
        kept = tuple(row for row in self.rows if row.place < place and row.time_ms < time_ms)
        self.rows = (*kept[1 - STEPS_MAX :], ClockStep(place, time_ms, before_ms))
        self._open(time_ms)

    def rise(self, newest_ms: int, time_ms: int) -> None:
        """Note that the newest store time is followed by another one, above `open_ms`."""
        leapt = range(newest_ms, time_ms)
        self.rows = tuple(
            row
            for row in self.rows
            if row.before_ms not in leapt or row.before_ms - newest_ms <= BACK_MAX_MS
        )
        self._open(time_ms)

    def keep(self, begin: int, end: int) -> None:
        """Forget the places that say nothing of a log from `begin` to `end`."""
        self.rows = tuple(row for row in self.rows if begin < row.place <= end)

    def bounded(self, physical_offset: int, time_ms: int) -> int:
        """Return the store time of a record as searches take it: it rises with the places."""
        for row in self.rows:
            if physical_offset < row.place:
                return min(time_ms, row.time_ms)
        return time_ms

    def _open(self, newest_ms: int) -> None:
        self.open_ms = min(
            (row.before_ms for row in self.rows if row.before_ms >= newest_ms), default=NEVER
        )
