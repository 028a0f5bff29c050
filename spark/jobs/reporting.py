"""What a job prints: how far it is, and at its end a summary.

Progress goes to standard error, a line every few seconds at most.

The summary has figures, tables and notes, as text or as one JSON document:

    {"job": "archive", "outcome": "done", "exit_code": 0, "dry_run": false,
     "figures": {"rows": 12}, "tables": {"by topic": [{"topic": "T", "rows": 12}]}, "notes": []}

Text is for people and cut where it would scroll away; JSON holds every row. Driver process, one
thread; no Spark here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TextIO

from skylarkmq.spark.clock import BlockingClock, SystemClock

LINE_INTERVAL_S: Final = 5.0
"""Seconds between two lines."""


class Progress:
    """A job's progress, from its construction on. `show` may come as often as it likes.

    Args:
        what: a few words, as "archiving orders".
        shown: whether to print at all.
        unit: what is counted, in the plural.
    """

    def __init__(
        self,
        what: str,
        *,
        shown: bool,
        unit: str = "messages",
        out: TextIO | None = None,
        clock: BlockingClock | None = None,
    ) -> None:
        self._what = what
        self._shown = shown
        self._unit = unit
        self._out = sys.stderr if out is None else out
        self._clock = SystemClock() if clock is None else clock
        self._started_s = self._clock.monotonic()
        self._next_line_s = self._started_s + LINE_INTERVAL_S

    def show(self, done: int, total: int | None = None, note: str = "") -> None:
        """Say that `done` of `total` are done; `note` follows, as "lag 12".

        Args:
            total: None while it is not known.
        """
        now = self._clock.monotonic()
        if not self._shown or now < self._next_line_s:
            return
        self._next_line_s = now + LINE_INTERVAL_S
        of = f" of {total:,} ({min(done, total) * 100 // total}%)" if total else ""
        elapsed = now - self._started_s
        rate = f", {done / elapsed:,.0f}/s" if done and elapsed > 0 else ""
        tail = f", {note}" if note else ""
        self._out.write(f"{self._what}: {done:,}{of} {self._unit}{rate}{tail}\n")
        self._out.flush()


DONE: Final = 0
DIFFERENCES: Final = 1
"""The job ran to its end, and found differences, or rows that it could not handle."""
USAGE: Final = 2
FAILED: Final = 3
"""The job did not come to its end: no broker, no right, no disk, a failed query."""
INTERRUPTED: Final = 130
"""Ctrl-C ended the job before it was done; shells use the same code."""

OUTCOMES: Final = {
    DONE: "done",
    DIFFERENCES: "differences",
    USAGE: "usage error",
    FAILED: "failed",
    INTERRUPTED: "interrupted",
}
TEXT_ROWS_MAX: Final = 40
"""Rows of a table that the text form shows."""
CELL_MAX: Final = 60
"""Characters of a cell in the text form."""

Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under named columns; each row has a cell a column."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True)
class Summary:
    """The end of a job. `figures` are named in snake_case with their unit last.

    `notes` say what the reader should know or do next, one sentence or two each.
    """

    job: str
    figures: Mapping[str, Any]
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    exit_code: int = DONE
    dry_run: bool = False
    outcome: str = field(init=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "outcome", OUTCOMES.get(self.exit_code, "failed"))

    def as_json(self) -> str:
        """Return one JSON document on one line; what JSON has no form for becomes its text."""
        document = {
            "job": self.job,
            "outcome": self.outcome,
            "exit_code": self.exit_code,
            "dry_run": self.dry_run,
            "figures": dict(self.figures),
            "tables": {
                table.title: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
                for table in self.tables
            },
            "notes": list(self.notes),
        }
        return json.dumps(document, ensure_ascii=False, default=str)

    def as_text(self) -> str:
        """Return lines for a terminal, without a newline at the end."""
        head = f"{self.job}: {self.outcome}"
        lines = [f"{head} (dry run, nothing was written)" if self.dry_run else head]
        width = max((len(_label(name)) for name in self.figures), default=0)
        lines += [
            f"  {_label(name):<{width}}  {show(value)}" for name, value in self.figures.items()
        ]
        for table in self.tables:
            lines += ["", *_table_lines(table)]
        if self.notes:
            lines += ["", *self.notes]
        return "\n".join(lines)


def show(value: object) -> str:
    """Return a cell or figure as people read it: thousands separated, None and "" as a dash."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"
    text = str(value)
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= CELL_MAX else text[: CELL_MAX - 3] + "..."


def _label(name: str) -> str:
    return name.replace("_", " ")


def _table_lines(table: Table) -> Iterator[str]:
    rows = [[show(cell) for cell in row] for row in table.rows[:TEXT_ROWS_MAX]]
    heads = [_label(column) for column in table.columns]
    widths = [
        max([len(head), *(len(row[index]) for row in rows)]) for index, head in enumerate(heads)
    ]
    right = [
        bool(table.rows) and all(_is_number(row[index]) for row in table.rows[:TEXT_ROWS_MAX])
        for index in range(len(heads))
    ]

    def line(cells: Sequence[str]) -> str:
        return (
            "  "
            + "  ".join(
                cell.rjust(width) if at_right else cell.ljust(width)
                for cell, width, at_right in zip(cells, widths, right, strict=True)
            ).rstrip()
        )

    yield table.title
    yield line(heads)
    yield from (line(row) for row in rows)
    if not rows:
        yield "  (none)"
    if len(table.rows) > TEXT_ROWS_MAX:
        yield f"  ... and {len(table.rows) - TEXT_ROWS_MAX:,} more; --json has them all"


def _is_number(cell: Cell) -> bool:
    return cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool))
