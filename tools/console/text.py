"""Numbers, sizes and times for people, and parts of addresses of pages.

All times are UTC, and say so: brokers, logs and colleagues are in other zones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from markupsafe import Markup

from skylarkmq.tools.output import size_text

SHORT_ID: Final = 14
UNKNOWN: Final = "\N{EN DASH}"
AGES: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


class BadInput(ValueError):
    """What was entered cannot be used; the text says what to enter, or the cure does."""

    def __init__(self, text: str, cure: str = "") -> None:
        super().__init__(text)
        self.cure = cure


def number(value: float | None) -> str:
    """Return a number with its thousands apart."""
    if value is None:
        return UNKNOWN
    return f"{round(value):,}"


def rate(value: float | None) -> str:
    """Return a rate: small ones with a decimal."""
    if value is None:
        return UNKNOWN
    return f"{value:,.1f}" if 0 < value < 100 else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Return bytes in the unit that fits."""
    return UNKNOWN if value is None else size_text(round(value))


def percent(value: float | None) -> str:
    """Return a part of one."""
    return UNKNOWN if value is None else f"{value:.0%}"


def moment(value: datetime | None) -> str:
    """Return a time to the second."""
    return UNKNOWN if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def exact(value: datetime | None) -> str:
    """Return a time to the millisecond."""
    if value is None:
        return UNKNOWN
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def span(seconds: float) -> str:
    """Return how long something is, in its largest unit."""
    seconds = abs(seconds)
    for length, name in AGES:
        if seconds >= length:
            return f"{seconds / length:.0f} {name}"
    return "0 s"


def ago(value: datetime | None, now: datetime) -> str:
    """Return how long ago a time is, or in how long it comes."""
    if value is None:
        return "never"
    seconds = (now - value).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{span(seconds)} ago" if seconds > 0 else f"in {span(seconds)}"


def short(name: str) -> str:
    """Return the end of a long id: ids of one producer begin alike."""
    return name if len(name) <= SHORT_ID else f"…{name[-SHORT_ID:]}"


def segment(name: str) -> str:
    """Return a name as one part of a path."""
    return quote(name, safe="")


def address(path: str, /, **values: object) -> str:
    """Return a path with a query; what is None or empty is left out."""
    kept = {name: str(value) for name, value in values.items() if value not in (None, "")}
    return f"{path}?{urlencode(kept)}" if kept else path


def parse_time(text: str, what: str) -> datetime | None:
    """Return the time of a field, in UTC; None: it is empty.

    Raises:
        BadInput: it is none.
    """
    if not text.strip():
        return None
    try:
        found = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        raise BadInput(
            f"{what} is a time in UTC such as 2026-11-26 09:30, not {text[:40]!r}"
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def parse_number(text: str, what: str, low: int, high: int) -> int:
    """Return the whole number of a field.

    Raises:
        BadInput: it is none, or outside the limits.
    """
    try:
        found = int(text)
    except ValueError:
        found = low - 1
    if not low <= found <= high:
        raise BadInput(f"{what} is a whole number from {low} to {high}, not {text[:40]!r}")
    return found


def exists(kind: str, name: str, brokers: Iterable[str]) -> BadInput:
    """Return why a topic or a group is not made: it is there."""
    cure = Markup('<a href="/{}s/{}">Open it</a> to change it, or take another name.')
    there = f"There is a {kind} {name} on {', '.join(brokers)}."
    return BadInput(there, cure.format(kind, segment(name)))


def code(text: str) -> Markup:
    """Return a text with what stands between backticks as code."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts)
    )


def field_time(value: datetime | None) -> str:
    """Return a time as a field of a form takes it."""
    return "" if value is None else value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M")


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "number": number,
    "rate": rate,
    "size": size,
    "percent": percent,
    "moment": moment,
    "exact": exact,
    "short": short,
    "segment": segment,
    "code": code,
    "field_time": field_time,
    "span": span,
}
