"""Windows over event time: open ones, the watermark that closes them, and what comes too late.

    partial sums of a batch --> WindowBook.apply --> rows that are final now
                                     |
                                     +-- open windows, watermark, totals: `as_json`, `from_json`

A window is [start, start + length), starts at a multiple of its length since the epoch, and is
kept for each topic and tag. The watermark is the latest event time of all batches, minus the delay
allowed; it never goes back. A window closes when the watermark reaches its end, and gives one row
of kind "window". What comes for it afterwards gives a row of kind "late" in the batch that
brought it, and what lies further ahead of its store time than the delay, as a client's wrong clock
makes it, one of kind "ahead": it never moves the watermark. So nothing is dropped, and the rows of
a window, summed over their kinds, are all its messages.

Unlike Spark's own watermark, which drops late rows and counts what is left of them after a partial
aggregation (apache/spark@v4.3.0 sql/core/.../streaming/operators/stateful/statefulOperators.scala,
numRowsDroppedByWatermark).

The same batches give the same rows in the same order, whatever the order within a batch. The table
of the rows, and how a killed run goes on: `window_table`.

Pure; one thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal, NamedTuple

Kind = Literal["window", "late", "ahead"]

DELAY_BOUNDS_MS: Final = (
    0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 600_000,
    3_600_000,
)  # fmt: skip
"""Upper bounds of the delays counted, ms; each count is of delays up to its bound."""
PERCENTS: Final = (50, 95, 99)
STATE_VERSION: Final = 1


class StateError(ValueError):
    """A state is of another version or other windows, or does not fit the batch."""


class WindowKey(NamedTuple):
    """What a window is kept for. Times in ms since the epoch."""

    start_ms: int
    topic: str
    """Where the message was sent to first: retries count for it too."""
    tag: str
    """Empty for a message without one."""


@dataclass(slots=True)
class Tally:
    """Sums over messages. Delays are from birth to store, of first deliveries alone."""

    messages: int = 0
    """First deliveries: of the topic itself."""
    retries: int = 0
    """Messages of %RETRY% topics, which their group takes once more."""
    dead_letters: int = 0
    """Messages of %DLQ% topics, which their group gave up."""
    stored_bytes: int = 0
    """Of their records in the log."""
    body_bytes: int = 0
    """Of their bodies; 0 where those were not asked for."""
    delay_ms_sum: int = 0
    delay_ms_min: int | None = None
    delay_ms_max: int | None = None
    delays: list[int] = field(default_factory=lambda: [0] * len(DELAY_BOUNDS_MS))
    """How many are at most DELAY_BOUNDS_MS each."""

    @property
    def rows(self) -> int:
        """All messages, of whichever kind of topic."""
        return self.messages + self.retries + self.dead_letters

    def add(self, other: Tally) -> None:
        """Take another tally's messages into this one."""
        self.messages += other.messages
        self.retries += other.retries
        self.dead_letters += other.dead_letters
        self.stored_bytes += other.stored_bytes
        self.body_bytes += other.body_bytes
        self.delay_ms_sum += other.delay_ms_sum
        self.delay_ms_min = _least(self.delay_ms_min, other.delay_ms_min)
        self.delay_ms_max = _greatest(self.delay_ms_max, other.delay_ms_max)
        self.delays = [a + b for a, b in zip(self.delays, other.delays, strict=True)]

    def percentile(self, percent: int) -> int | None:
        """Return a bound, in ms, that this share of the delays does not exceed; None of none.

        It is the least of DELAY_BOUNDS_MS that does, or the longest delay where that is less.
        """
        if self.delay_ms_max is None:
            return None
        wanted = -(-self.messages * percent // 100)
        for bound, count in zip(DELAY_BOUNDS_MS, self.delays, strict=True):
            if count >= wanted:
                return min(bound, self.delay_ms_max)
        return self.delay_ms_max


class Partial(NamedTuple):
    """What one batch has for one window."""

    key: WindowKey
    tally: Tally
    latest_ms: int
    """The latest event time, but never after the store time: it moves the watermark."""
    ahead: bool = False
    """Event times that lie further ahead of their store times than the delay."""


class WindowRow(NamedTuple):
    """A row of the result."""

    key: WindowKey
    kind: Kind
    tally: Tally
    batch_id: int


def rows_json(rows: Iterable[WindowRow]) -> list[list[Any]]:
    """Return rows as JSON has them."""
    return [[row.kind, row.batch_id, *row.key, *_values(row.tally)] for row in rows]


def rows_of_json(document: Iterable[list[Any]]) -> list[WindowRow]:
    """Return the rows of `rows_json`."""
    return [
        WindowRow(WindowKey(start_ms, topic, tag), kind, Tally(*values), batch_id)
        for kind, batch_id, start_ms, topic, tag, *values in document
    ]


@dataclass(slots=True)
class Totals:
    """Messages by what became of them, since the first batch, and the windows closed."""

    closed: int = 0
    late: int = 0
    ahead: int = 0
    windows: int = 0


class WindowBook:
    """The open windows and the watermark. One thread."""

    def __init__(self, window_ms: int, delay_ms: int, event_time: str = "store") -> None:
        """Know no batch yet.

        Args:
            delay_ms: how long after its time a message still counts for its window.
            event_time: what the times are, for the check of a later run: store or born.
        """
        if window_ms <= 0 or delay_ms < 0:
            raise ValueError("windows have a length, and the delay is not negative")
        self.window_ms = window_ms
        self.delay_ms = delay_ms
        self.event_time = event_time
        self.batch_id = -1
        self.watermark_ms: int | None = None
        self.totals = Totals()
        self._open: dict[WindowKey, Tally] = {}

    @property
    def open(self) -> Mapping[WindowKey, Tally]:
        """The windows that may still get messages."""
        return self._open

    def apply(self, batch_id: int, partials: Iterable[Partial]) -> list[WindowRow]:
        """Take a batch in; return the rows that are final with it, by kind, time, topic and tag.

        Raises:
            StateError: it is not the batch after the last one.
        """
        if batch_id != self.batch_id + 1:
            raise StateError(f"batch {batch_id} does not follow batch {self.batch_id}")
        before = self.watermark_ms
        outside: dict[tuple[Kind, WindowKey], Tally] = {}
        latest = None if before is None else before + self.delay_ms
        for partial in partials:
            if partial.ahead:
                outside.setdefault(("ahead", partial.key), Tally()).add(partial.tally)
                continue
            latest = _greatest(latest, partial.latest_ms)
            if before is not None and partial.key.start_ms + self.window_ms <= before:
                outside.setdefault(("late", partial.key), Tally()).add(partial.tally)
            else:
                self._open.setdefault(partial.key, Tally()).add(partial.tally)
        self.batch_id = batch_id
        if latest is not None:
            self.watermark_ms = latest - self.delay_ms
        rows = [WindowRow(key, kind, tally, batch_id) for (kind, key), tally in outside.items()]
        rows += self._close(batch_id)
        rows.sort(key=lambda row: (row.kind, row.key))
        self._count(rows)
        return rows

    def _close(self, batch_id: int) -> list[WindowRow]:
        watermark = self.watermark_ms
        if watermark is None:
            return []
        done = [key for key in self._open if key.start_ms + self.window_ms <= watermark]
        return [WindowRow(key, "window", self._open.pop(key), batch_id) for key in done]

    def _count(self, rows: Iterable[WindowRow]) -> None:
        totals = self.totals
        for row in rows:
            if row.kind == "late":
                totals.late += row.tally.rows
            elif row.kind == "ahead":
                totals.ahead += row.tally.rows
            else:
                totals.closed += row.tally.rows
                totals.windows += 1

    def as_json(self) -> str:
        """Return the book as one JSON text; equal books give equal texts."""
        document = {
            "v": STATE_VERSION,
            "window_ms": self.window_ms,
            "event_time": self.event_time,
            "delay_bounds_ms": DELAY_BOUNDS_MS,
            "batch_id": self.batch_id,
            "watermark_ms": self.watermark_ms,
            "totals": asdict(self.totals),
            "open": [[*key, *_values(tally)] for key, tally in sorted(self._open.items())],
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(
        cls, text: str, window_ms: int, delay_ms: int, event_time: str = "store"
    ) -> WindowBook:
        """Return the book that `as_json` wrote, to go on with; the delay may be another one.

        Raises:
            StateError: it is of another release, or of other windows.
        """
        document: dict[str, Any] = json.loads(text)
        if document.get("v") != STATE_VERSION or (
            document["delay_bounds_ms"] != list(DELAY_BOUNDS_MS)
        ):
            raise StateError("its windows were written by another release")
        if document["window_ms"] != window_ms:
            raise StateError(f"its windows are {document['window_ms']} ms long, not {window_ms}")
        if document["event_time"] != event_time:
            raise StateError(f"its windows go by {document['event_time']} time, not {event_time}")
        book = cls(window_ms, delay_ms, event_time)
        book.batch_id = document["batch_id"]
        book.watermark_ms = document["watermark_ms"]
        book.totals = Totals(**document["totals"])
        for start_ms, topic, tag, *values in document["open"]:
            book._open[WindowKey(start_ms, topic, tag)] = Tally(*values)
        return book


def _values(tally: Tally) -> list[Any]:
    return [getattr(tally, column.name) for column in fields(Tally)]


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _greatest(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)
