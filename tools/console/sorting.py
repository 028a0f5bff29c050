"""The order of a table's rows, by the column that the page was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def ordered(rows: Sequence[T], by: str) -> list[T]:
    """Return rows, which are dataclasses, by an attribute; `-` before it: the largest first.

    What is not known comes last. Rows that have no such attribute stay as they are.
    """
    name, is_down = by.removeprefix("-"), by.startswith("-")
    if not rows or name not in {each.name for each in fields(rows[0])}:  # type: ignore[arg-type]
        return list(rows)

    def key(row: T) -> Any:
        return getattr(row, name)

    known = [row for row in rows if key(row) is not None]
    known.sort(key=key, reverse=is_down)
    return [*known, *(row for row in rows if key(row) is None)]
