"""Results as aligned tables for humans, as JSON and YAML for programs, and the progress bar.

JSON has the same keys in every release; new ones may come. Tables show times in UTC; `narrow` makes
them fit a terminal.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TextIO

import click

from skylarkmq.client.admin.results import Unanswered
from skylarkmq.client.errors import ACL_REMARK_MARK, AUTH_HINT

FORMATS: Final = ("table", "json", "ndjson", "yaml")
Row = Mapping[str, Any]
Columns = Mapping[str, str | Callable[[Row], Any]]
"""Of a table: heading -> the row's key, or what makes the cell from the row."""
Parts = Mapping[str, tuple[Iterable[Row], Columns | None]]
"""Title -> the rows of a table, and its columns."""
Report = Callable[[str, int, int], None]
"""Hears how far work is: what is done, how much of it, of how much."""

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEP: Final = 1024
_TIME: Final = re.compile(
    r"^(?P<day>(?P<year>\d{4})-(?P<date>\d\d-\d\d)) (?P<clock>\d\d:\d\d:\d\d)(?P<ms>\.\d{3}|)Z$"
)
_CLOCK: Final = re.compile(r"^(\d\d:\d\d:\d\d)\.\d{3}Z$")
_REQUEST: Final = re.compile(r" for request code=\d+")
_ID: Final = re.compile(r"[0-9A-Fa-f]{24,}")
_ID_HEAD: Final = 4
_ID_TAIL: Final = 8
"""Of an id that is cut in its middle: what differs most is at its end."""
FIRST_REGULAR_VERSION: Final = 212
SENTENCES: Final = frozenset({"ERROR", "WHAT", "CURE"})
LINE_MAX: Final = 160
"""Without a terminal, a table with sentences that is wider becomes blocks of lines."""


class Output:
    """Prints a command's results on standard output, in the form that was asked for.

    Rows are plain: dicts, lists, texts, numbers (`to_json()` of the SDK's results). Programs get
    all of a row, tables only the columns. Where brokers did not answer, programs get `unanswered`:
    a key of one thing, the only key of a last row of a list.
    """

    def __init__(
        self, form: str | None = None, unanswered: dict[str, Unanswered] | None = None
    ) -> None:
        """Take one of FORMATS; None is a table on a terminal, and JSON elsewhere.

        Args:
            unanswered: brokers that do not answer, by name; an Admin notes them there.
        """
        self.form = form or ("table" if sys.stdout.isatty() else "json")
        self.unanswered = {} if unanswered is None else unanswered
        self._told = dict[str, Unanswered]()

    @property
    def is_table(self) -> bool:
        """Whether a person reads it."""
        return self.form == "table"

    def rows(
        self,
        rows: Iterable[Row],
        columns: Columns | None = None,
        *,
        none: str = "",
        fits: int = 0,
    ) -> None:
        """Print a list.

        Args:
            columns: of the table; all of the first row's keys when not given.
            none: what a person reads on standard error when the list is empty, as far as is known.
            fits: cut the last column, a text, to the width of the terminal, but not below this.
        """
        found = list(rows)
        if not self.is_table:
            self._programs([*found, self.with_unanswered({})] if self.unanswered else found)
        elif found:
            columns = columns or {key.upper(): key for key in found[0]}
            texts = cells(found, columns)
            if sys.stdout.isatty():
                width = shutil.get_terminal_size().columns
                lines = narrow([*columns], texts, width, fits=fits)
            else:
                lines = table([*columns], texts)
                if SENTENCES & columns.keys() and max(map(len, lines)) > LINE_MAX:
                    lines = _blocks([*columns], texts)
            for line in lines:
                click.echo(line)
        elif none:
            so_far = ", as far as brokers answered" if self.unanswered else ""
            click.echo(f"{none}{so_far}", err=True)

    def one(self, fields: Row, columns: Columns | None = None) -> None:
        """Print one thing: a line for each field in place of a table."""
        if self.form == "ndjson":
            click.echo(as_json(self.with_unanswered(fields), indent=None))
        elif not self.is_table:
            self._programs(self.with_unanswered(fields))
        else:
            columns = columns or {key: key for key in fields}
            width = max(map(len, columns))
            for title, cell in zip(columns, *cells([fields], columns), strict=True):
                click.echo(f"{title:<{width}}  {_cell(cell)}")

    def with_unanswered(self, fields: Row) -> Row:
        """Return what programs get: with the brokers that did not answer, if there are some."""
        if not self.unanswered:
            return fields
        return {**fields, "unanswered": [each.to_json() for each in self.unanswered.values()]}

    def tell_unanswered(self, told: str = "") -> None:
        """Name the brokers that did not answer on standard error, each once.

        Those that refused with the same words share a line; it is left out when these words are
        `told` anyway, by the error that ends the command.
        """
        alike: dict[str, list[Unanswered]] = {}
        for broker, each in self.unanswered.items():
            if broker not in self._told:
                alike.setdefault(refusal_of(str(each.error)), []).append(each)
        self._told = dict(self.unanswered)
        for refusal, brokers in alike.items():
            if len(brokers) > 1:
                names = ", ".join(f"{each.broker} ({each.address})" for each in brokers)
                text = f"{names}, refused: {refusal}"
            else:
                text = str(brokers[0])
            if refusal != refusal_of(told):
                click.echo(f"warning: without {visible(text)}", err=True)

    def told_unanswered(self) -> None:
        """Take it that the brokers that did not answer were named."""
        self._told = dict(self.unanswered)

    def forget_unanswered(self) -> None:
        """Begin another look: all brokers are asked again."""
        self.unanswered.clear()
        self._told.clear()

    def parts(self, fields: Row, parts: Parts) -> None:
        """Print one thing that has lists: for a person a table with a title for each that is not
        empty, for programs the fields.
        """
        if not self.is_table:
            self.one(fields)
            return
        shown = {title: ([*rows], columns) for title, (rows, columns) in parts.items()}
        for number, (title, (rows, columns)) in enumerate(
            (title, part) for title, part in shown.items() if part[0]
        ):
            click.echo(("\n" if number else "") + title)
            self.rows(rows, columns)

    def done(self, fields: Row, text: str) -> None:
        """Print what a command has done: `text` for a person, the fields for programs."""
        if self.is_table:
            click.echo(text)
        else:
            self.one(fields)

    def line(self, fields: Row, text: str) -> None:
        """Print one of many things that come one after another: JSON on a line, or `text`."""
        if self.form == "yaml":
            click.echo("---")
            self._programs(fields)
        else:
            click.echo(text if self.is_table else as_json(fields, indent=None))

    def _programs(self, value: Any) -> None:
        if self.form == "yaml":
            yaml: Any = importlib.import_module("yaml")
            click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), nl=False)
        elif self.form == "ndjson":
            for row in value:
                click.echo(as_json(row, indent=None))
        else:
            click.echo(as_json(value))


def refusal_of(error: str) -> str:
    """Return what a server answered, without the server's address; another error as it is.

    Of access control: who lacks which right, without the request's code and the SDK's cure.
    """
    answer = error.partition(" answered ")[2] or error
    why = answer.partition(f"{ACL_REMARK_MARK}: ")[2].removesuffix(f". {AUTH_HINT}")
    return _REQUEST.sub("", why) or answer


def told_once(rows: Iterable[Row], key: str) -> list[Row]:
    """Return problems with one for all that servers refuse with the same words, and one for all
    that access control refuses.

    Args:
        key: of the text that says what is wrong.
    """
    alike: dict[object, list[Row]] = {}
    for number, row in enumerate(rows):
        refusal = refusal_of(row[key])
        same = "access control" if ACL_REMARK_MARK in row[key] else refusal
        alike.setdefault(number if refusal == row[key] else same, []).append(row)
    return [_joined(each, key) for each in alike.values()]


def _joined(rows: Sequence[Row], key: str) -> Row:
    subjects = ", ".join(dict.fromkeys(row["subject"] for row in rows))
    text = rows[0][key]
    if ACL_REMARK_MARK in text:
        refusals = "; ".join(dict.fromkeys(refusal_of(row[key]) for row in rows))
        text = f"access control refuses: {refusals}"
    return {**rows[0], "subject": subjects, key: text}


def cells(rows: Iterable[Row], columns: Columns) -> list[list[Any]]:
    """Return what the columns of a table show of rows."""
    return [
        [row.get(of) if isinstance(of, str) else of(row) for of in columns.values()] for row in rows
    ]


def as_json(value: Any, *, indent: int | None = 2) -> str:
    """Return a value as JSON text."""
    return json.dumps(value, indent=indent, ensure_ascii=False)


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the lines of a table; columns of numbers are aligned to the right."""
    texts = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *texts, strict=True)]
    right = [
        all(_is_number(row[i]) for row in texts) and any(row[i] != "-" for row in texts)
        for i in range(len(headers))
    ]
    return [
        "  ".join(
            text.rjust(width) if leans else text.ljust(width)
            for text, width, leans in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in [[*headers], *texts]
    ]


def narrow(
    headers: Sequence[str],
    rows: Iterable[Sequence[Any]],
    width: int,
    *,
    fits: int = 0,
) -> list[str]:
    """Return the lines of a table for a terminal of this width.

    Where it is too wide, these steps follow each other until it is not: columns go that are empty;
    what all times or all rows have is told once, above; times and ids become shorter. When that is
    not enough, each row becomes a block of lines, one for each field that is not empty.

    Args:
        fits: the last column may be cut to this width; 0: it may not.
    """
    full = [[_cell(value) for value in row] for row in rows]
    shown = _Shown([*headers], full, [])
    steps = (_whole, _without_empty, _without_day, _without_alike, _to_seconds, _to_short_ids)
    for step in (*steps, _without_year):
        if step is not _without_alike or not fits:
            shown = step(shown)
        lines = table(shown.headers, shown.rows)
        begin = lines[0].rindex(headers[-1]) if fits and headers[-1] in shown.headers else width
        if max(map(len, lines)) <= width or (fits and begin + fits <= width):
            above = [part for line in shown.above for part in textwrap.wrap(line, width)]
            return [*above, *(_cut(line, width) for line in lines)]
    return _blocks(headers, full)


class _Shown(NamedTuple):
    """A table on its way to a narrow terminal."""

    headers: list[str]
    rows: list[list[str]]
    above: list[str]
    """What is told once, above it."""

    def each(self, shorter: Callable[[str], str]) -> _Shown:
        return self._replace(rows=[[shorter(text) for text in row] for row in self.rows])

    def only(self, kept: Sequence[int]) -> _Shown:
        rows = [[row[i] for i in kept] for row in self.rows]
        return self._replace(headers=[self.headers[i] for i in kept], rows=rows)

    def times_of(self, part: str) -> set[str]:
        """Return the years or the days of all times."""
        found = (_TIME.fullmatch(text) for row in self.rows for text in row)
        return {time[part] for time in found if time}

    def tell(self, line: str) -> _Shown:
        return self._replace(above=[*self.above, line])


def _whole(shown: _Shown) -> _Shown:
    return shown


def _without_empty(shown: _Shown) -> _Shown:
    columns = range(len(shown.headers))
    return shown.only([i for i in columns if any(row[i] != "-" for row in shown.rows)] or columns)


def _without_day(shown: _Shown) -> _Shown:
    days = shown.times_of("day")
    if len(days) != 1:
        return shown
    return shown.each(lambda text: _TIME.sub(r"\g<clock>\g<ms>Z", text)).tell(
        f"times of {days.pop()}, UTC"
    )


def _without_alike(shown: _Shown) -> _Shown:
    first = shown.rows[0]
    differ = [i for i, text in enumerate(first) if any(row[i] != text for row in shown.rows)]
    if not differ or len(shown.rows) == 1:
        return shown
    alike = (i for i in range(len(first)) if i not in differ)
    told = ", ".join(f"{shown.headers[i]} {first[i]}" for i in alike)
    return shown.only(differ).tell(f"of all: {told}") if told else shown


def _to_seconds(shown: _Shown) -> _Shown:
    short = shown.each(lambda text: _TIME.sub(r"\g<day> \g<clock>Z", text))
    return short.each(lambda text: _CLOCK.sub(r"\1Z", text))


def _to_short_ids(shown: _Shown) -> _Shown:
    return shown.each(_short_id)


def _without_year(shown: _Shown) -> _Shown:
    years = shown.times_of("year")
    if len(years) != 1:
        return shown
    return shown.each(lambda text: _TIME.sub(r"\g<date> \g<clock>Z", text)).tell(
        f"times of {years.pop()}, UTC"
    )


def _short_id(text: str) -> str:
    return f"{text[:_ID_HEAD]}...{text[-_ID_TAIL:]}" if _ID.fullmatch(text) else text


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 3]}..."


def _blocks(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    title = max(map(len, headers))
    lines: list[str] = []
    for row in rows:
        lines += [""] if lines else []
        lines += [
            f"{header:<{title}}  {text}".rstrip()
            for header, text in zip(headers, map(_cell, row), strict=True)
            if text != "-"
        ]
    return lines


def when(timestamp_ms: int) -> str:
    """Return a time for humans; `-` for none."""
    if timestamp_ms <= 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def moment(key: str) -> Callable[[Row], Any]:
    """Return what makes a cell of a row's time in ISO 8601, as `to_json()` gives it, UTC."""

    def cell(row: Row) -> Any:
        text = row[key]
        if text is None:
            return None
        return when(round(datetime.fromisoformat(text).timestamp() * 1000))

    return cell


def counted(count: int, noun: str) -> str:
    """Return so many of a thing in words."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def size_text(size: int) -> str:
    """Return a count of bytes for humans."""
    value, unit = float(size), 0
    while value >= _STEP and unit < len(_UNITS) - 1:
        value /= _STEP
        unit += 1
    return f"{size} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def version_text(version: int) -> str:
    """Return the release that a client's number stands for, as RocketMQ names it: `V4_9_8`.

    From 4.0.0 on each release has two numbers: its snapshot's, then its own.
    Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../common/MQVersion.java (Version)
    """
    if version < FIRST_REGULAR_VERSION:
        return str(version)
    release, is_release = divmod(version - FIRST_REGULAR_VERSION, 2)
    name = f"V{4 + release // 100}_{release // 10 % 10}_{release % 10}"
    return name if is_release else f"{name}_SNAPSHOT"


def release_text(name: str | None) -> str | None:
    """Return a release that RocketMQ names, `V4_9_8`, as people write it: `4.9.8`."""
    return None if name is None else name.removeprefix("V").replace("_", ".", 2).replace("_", "-")


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        listed = ", ".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType]
        return visible(listed) or "-"
    return visible(str(value))


def visible(text: str, kept: str = "") -> str:
    """Return text without line ends and control characters, which could write over a terminal."""
    return "".join(each if each.isprintable() or each in kept else " " for each in text)


def _is_number(text: str) -> bool:
    return text == "-" or text.removeprefix("-").replace(".", "", 1).isdigit()


_PERCENT: Final = 100


class ProgressBar:
    """Shows on a terminal how far a tool is; call it with what it does, what is done, and all."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shows = self._stream.isatty()
        self._shown = ""

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show how far the work is."""
        if not self._shows or total <= 0:
            return
        text = f"{what}: {done * _PERCENT // total} %"
        if text != self._shown:
            self._write("\r" + text.ljust(len(self._shown)))
            self._shown = text

    def clear(self) -> None:
        """Remove what is shown."""
        if self._shown:
            self._write("\r" + " " * len(self._shown) + "\r")
            self._shown = ""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
