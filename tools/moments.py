"""Times on the command line: `2026-01-31T12:00:00Z`, ms since the epoch, `10m` for so long ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from skylarkmq.client.instance import Client, services_of

_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)


class Span(click.ParamType[timedelta]):
    """A time span: `500ms`, `30s`, `10m`, `2h`, `1d`, or seconds without a unit."""

    name = "span"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        if isinstance(value, timedelta):
            return value
        found = span_of(str(value))
        if found is None and re.fullmatch(r"\d+(\.\d+)?", str(value), re.ASCII):
            found = timedelta(seconds=float(str(value)))
        if found is None:
            self.fail(f"{value!a} is no time span; write 500ms, 30s, 10m, 2h or 1d", param, ctx)
        return found


class Moment(click.ParamType["datetime | timedelta"]):
    """A time, or how long ago it was."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime | timedelta:
        if isinstance(value, datetime | timedelta):
            return value
        text = str(value)
        if (span := span_of(text)) is not None:
            return span
        try:
            if text.isascii() and text.isdigit():
                return datetime.fromtimestamp(int(text) / 1000, UTC)
            moment = datetime.fromisoformat(text)
        except (ValueError, OverflowError, OSError):
            self.fail(
                f"{text!a} is no time; write 2026-01-31T12:00:00Z, ms since the epoch, or 10m for "
                "ten minutes ago",
                param,
                ctx,
            )
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def span_of(text: str) -> timedelta | None:
    """Return a time span with its unit; None when it is none."""
    found = _SPAN.fullmatch(text)
    return timedelta(**{_UNITS[found[2]]: float(found[1])}) if found else None


def instant(moment: datetime | timedelta | None, client: Client) -> datetime | None:
    """Return the time that is meant, by this machine's clock."""
    if not isinstance(moment, timedelta):
        return moment
    return now(client) - moment


def now(client: Client) -> datetime:
    """Return the time of day, UTC."""
    return datetime.fromtimestamp(services_of(client).clock.now_ms() / 1000, UTC)


def age_text(span: timedelta) -> str:
    """Return a time span for a person."""
    seconds = int(span.total_seconds())
    if seconds < 60:
        return f"{max(0, seconds)}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    if seconds < 86_400:
        return f"{seconds // 3600}h{seconds // 60 % 60:02d}m"
    return f"{seconds // 86_400}d{seconds // 3600 % 24:02d}h"
