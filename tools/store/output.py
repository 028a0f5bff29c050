"""Results as text: aligned tables for humans, JSON for programs.

JSON has the same keys in every release; new ones may come. Times are ms since the epoch in JSON and
UTC in tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

_NUMBER_TYPES: Final = (int, float)
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP: Final = 1024


def as_json(value: Any, *, indent: int | None = 2) -> str:
    """A value as JSON text."""
    return json.dumps(value, indent=indent, ensure_ascii=False)


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Lines of a table; columns of numbers lean to the right."""
    cells = [[_cell(value) for value in row] for row in rows_of(rows)]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    right = [all(_is_number(row[i]) for row in cells) and bool(cells) for i in range(len(headers))]
    return [
        "  ".join(
            text.rjust(width) if leans else text.ljust(width)
            for text, width, leans in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in [[*headers], *cells]
    ]


def rows_of(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """The rows as lists."""
    return [[*row] for row in rows]


def when(timestamp_ms: int) -> str:
    """A time for humans; `-` for none."""
    if timestamp_ms <= 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03d}Z"


def size_text(size: int) -> str:
    """Bytes for humans."""
    value, unit = float(size), 0
    while value >= _STEP and unit < len(_UNITS) - 1:
        value /= _STEP
        unit += 1
    return f"{size} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def _cell(value: Any) -> str:
    return "-" if value is None else str(value)


def _is_number(text: str) -> bool:
    return text == "-" or text.lstrip("-").isdigit()
