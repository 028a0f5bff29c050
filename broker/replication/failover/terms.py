"""The terms of a log: which master wrote which part of it, and where two logs part.

A *term* is the time of one master; it has a number and a *start offset*, the place in the log where
its first record goes. The rows of a log, oldest first, are its *lineage*:

    (1, 0) (4, 900) (5, 1200)      0..900 was written in term 1, 900..1200 in term 4, the rest in 5

Two logs that hold a record of the same term at the same place agree on all bytes before it, for one
term has one master, and a follower takes a record only behind the same records. So the place where
two logs part follows from their lineages alone, and no bytes are compared.

`skylarkmq/terms` has the framing of `sidecar.py`, kind 6, {"rows": [[term, start], ...]}. It is
replaced as a whole, so a crash leaves the old rows or the new ones.

    what                     in which order                            a crash in between leaves
    a term begins            the row, durably, then its first record   a row that speaks of nothing
    the log is cut back      the log, then the rows                    rows behind the log's end

Rows behind the log's end are dropped at the next start. The other orders would leave records that
count as those of an earlier term, and a log that differs from its master's where it must not. So
nothing may be stored while the file is *behind*: while the disk may have other rows than these.

As Kafka's leader epochs (KIP-101, KIP-279) do, without their questions back and forth: a follower
sends all its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from skylarkmq.common.errors import CorruptFileError, StoreError
from skylarkmq.common.files import Files
from skylarkmq.common.refusal import is_no_space
from skylarkmq.common.sidecar import Kind, encode_sidecar, read_sidecar

ROWS_MAX: Final = 4096
"""Rows of a lineage; the oldest ones fall off. A log with none of the rest starts anew."""


class TermStart(NamedTuple):
    """A row: the term's number, from 1, and the offset in the log where it begins."""

    term: int
    start: int


class CommonPoint(NamedTuple):
    """The last place at which two logs agree: both hold everything below `offset`."""

    term: int
    offset: int


Lineage = tuple[TermStart, ...]


class LineageError(StoreError):
    """Rows that no broker can have written, or that belong to another cluster."""


def lineage_of(rows: Iterable[Sequence[Any]]) -> Lineage:
    """Return the checked rows of plain pairs, as files and messages hold them.

    Raises:
        LineageError: they are no lineage, with the first row that is wrong.
    """
    lineage: list[TermStart] = []
    for row in rows:
        if len(row) != 2 or not all(type(number) is int for number in row):
            raise LineageError(f"row {row!r} is no pair of a term and an offset")
        found = TermStart(*row)
        last = lineage[-1] if lineage else TermStart(0, 0)
        if found.term <= last.term or found.start < last.start:
            raise LineageError(
                f"term {found.term} at offset {found.start} cannot follow term {last.term} at "
                f"offset {last.start}: both must grow"
            )
        lineage.append(found)
    if len(lineage) > ROWS_MAX:
        raise LineageError(f"{len(lineage)} terms, at most {ROWS_MAX} are kept")
    return tuple(lineage)


def last_term(lineage: Lineage) -> int:
    """Return the number of the newest term, 0 when there is none."""
    return lineage[-1].term if lineage else 0


def rows_up_to(lineage: Lineage, offset: int) -> Lineage:
    """Return the rows that a log which ends at `offset` can speak of."""
    return tuple(row for row in lineage if row.start <= offset)


def common_point(
    ours: Lineage, our_end: int, theirs: Lineage, their_end: int
) -> CommonPoint | None:
    """Return where two logs part, by their rows and their ends. None: they share no term.

    Raises:
        LineageError: a term starts at two places, so the logs are of two clusters.
    """
    starts = dict(theirs)
    for place in range(len(ours) - 1, -1, -1):
        term, start = ours[place]
        their_start = starts.get(term)
        if their_start is None:
            continue
        if their_start != start:
            raise LineageError(
                f"term {term} starts at offset {start} here and at {their_start} there: the two "
                "logs are of two clusters"
            )
        their_place = theirs.index(TermStart(term, start))
        ends = (_end_of(ours, place, our_end), _end_of(theirs, their_place, their_end))
        return CommonPoint(term, min(ends))
    return None


def _end_of(lineage: Lineage, place: int, log_end: int) -> int:
    """Where a row's records end: at the next row, or with the log."""
    return lineage[place + 1].start if place + 1 < len(lineage) else log_end


class TermsFile:
    """The rows of this replica's log, on the disk. All calls but `rows` block; one thread.

    Attributes:
        is_behind: a write has failed, so the file may have other rows; the next write has all.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._rows: Lineage = ()
        self.is_behind = False

    @property
    def rows(self) -> Lineage:
        """The lineage, oldest term first. Any thread."""
        return self._rows

    def load(self, log_end: int) -> Lineage:
        """Read the rows, without those behind the log's end, and return them.

        A full disk does not hold up the start: the file is behind then.

        Raises:
            CorruptFileError: the file is damaged. The replica must then start anew, as one whose
                disk was lost: without the rows nobody knows where its log differs from others.
        """
        self._rows = ()
        content = read_sidecar(self._files, self._path, Kind.TERMS, dict[str, list[list[int]]])
        if content is not None:
            try:
                self._rows = lineage_of(content["rows"])
            except (KeyError, LineageError) as error:
                raise CorruptFileError(self._path, 0, str(error)) from error
        try:
            self.cut(log_end)
        except OSError as error:
            if not is_no_space(error):
                raise
            self._rows = rows_up_to(self._rows, log_end)
        return self._rows

    def append(self, row: TermStart) -> None:
        """Begin a term; on return it is on the disk, and its first record may come.

        A row that is there already is written no second time.

        Raises:
            LineageError: the row cannot follow those before it.
        """
        if self._rows and self._rows[-1] == row:
            self.keep(self._rows)
            return
        self._replace(lineage_of((*self._rows, row)[-ROWS_MAX:]))

    def cut(self, log_end: int) -> None:
        """Drop the rows behind the end of the log, after the log was cut there, durably."""
        self.keep(rows_up_to(self._rows, log_end))

    def keep(self, rows: Lineage) -> None:
        """Replace the rows: after a cut by those that are shared with the master."""
        if rows != self._rows or self.is_behind:
            self._replace(lineage_of(rows))

    def _replace(self, rows: Lineage) -> None:
        self.is_behind = True  # also where only the folder's sync fails: the new rows are there
        self._files.make_folder(self._path.parent)
        self._files.replace(self._path, encode_sidecar(Kind.TERMS, {"rows": rows}), backup=False)
        self._rows, self.is_behind = rows, False
