"""Spark's filters as bounds of what a batch reads: fewer queues, shorter ranges, fewer tags.

    queueId, topic, brokerName   = and IN           which queues
    queueOffset                  = IN < <= > >=     which parts of each
    storeTimestamp               = < <= > >=        likewise, searched for by the broker
    tags                         = and IN           what the broker selects
    keys                         = and IN           what the broker's key index has

Bounds only: Spark evaluates every filter again, so whatever is not understood here is left alone.
Spark gives a source no filter on an entry of a map, such as properties['x'].

Planner process; pure. Imports no pyspark: its filters are told by their classes' names.
Source: apache/spark@v4.3.0 python/pyspark/sql/datasource.py (Filter and its subclasses),
sql/core/.../datasources/v2/python/UserDefinedPythonDataSource.scala (serializeFilter)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from skylarkmq.client.clock import ceil_ms, floor_ms
from skylarkmq.spark.offsets import INT64_MAX, QueueKey

_SETS: Final = {
    "topic": "topics",
    "brokerName": "brokers",
    "queueId": "queue_ids",
    "tags": "tags",
    "keys": "keys",
}
NEAR_MAX: Final = 32
"""Messages that a broker of RocketMQ's gives at once."""
_ORDERS: Final = frozenset(
    {"EqualTo", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"}
)


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What must hold for a message to matter; sets of None and the widest bounds: everything."""

    topics: frozenset[Any] | None = None
    brokers: frozenset[Any] | None = None
    queue_ids: frozenset[Any] | None = None
    tags: frozenset[Any] | None = None
    keys: frozenset[Any] | None = None
    """Whole values of the column."""
    offsets: frozenset[int] | None = None
    """Within the bounds that follow."""
    low_offset: int = 0
    end_offset: int = INT64_MAX
    """Exclusive."""
    low_ms: int = 0
    end_ms: int | None = None
    """Exclusive; None: no bound."""

    def wants(self, key: QueueKey) -> bool:
        """Return whether a queue can hold messages that matter."""
        return (
            (self.topics is None or key.topic in self.topics)
            and (self.brokers is None or key.broker_name in self.brokers)
            and (self.queue_ids is None or key.queue_id in self.queue_ids)
        )

    def narrowed(self, kind: str, column: str, value: Any) -> Narrowing:
        """Return these bounds with one more filter, unchanged when it is none for them.

        Args:
            kind: the filter's class.
        """
        if column in _SETS and kind in ("EqualTo", "In"):
            return self._one_of(_SETS[column], (value,) if kind == "EqualTo" else value)
        if column == "queueOffset" and kind in _ORDERS and type(value) is int:
            return self._offsets(kind, value)
        if column == "queueOffset" and kind == "In":
            return self._listed(value)
        if column == "storeTimestamp" and kind in _ORDERS and isinstance(value, datetime):
            return self._times(kind, value)
        return self

    def _one_of(self, name: str, values: Iterable[Any]) -> Narrowing:
        wanted = frozenset(value for value in values if value is not None)
        before: frozenset[Any] | None = getattr(self, name)
        changes: dict[str, Any] = {name: wanted if before is None else before & wanted}
        return replace(self, **changes)

    def _offsets(self, kind: str, value: int) -> Narrowing:
        low, end = _bounds(kind, value, value)
        return replace(
            self,
            low_offset=self.low_offset if low is None else max(self.low_offset, low),
            end_offset=self.end_offset if end is None else min(self.end_offset, max(0, end)),
        )

    def _listed(self, values: Iterable[Any]) -> Narrowing:
        given = [value for value in values if value is not None]
        if not all(type(value) is int for value in given):
            return self
        wanted = frozenset(value for value in given if value >= 0)
        both = wanted if self.offsets is None else self.offsets & wanted
        if not both:
            return replace(self, offsets=both, end_offset=0)
        return replace(
            self,
            offsets=both,
            low_offset=max(self.low_offset, min(both)),
            end_offset=min(self.end_offset, max(both) + 1),
        )

    def _times(self, kind: str, value: datetime) -> Narrowing:
        if value.tzinfo is None:
            return self
        low, end = _bounds(kind, floor_ms(value), ceil_ms(value))
        return replace(
            self,
            low_ms=self.low_ms if low is None else max(self.low_ms, low),
            end_ms=_least(self.end_ms, end),
        )

    def parts(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts [start, end) of a range of offsets that hold those that are listed.

        Offsets near each other are of one part, for they come with one answer of a broker.
        """
        if self.offsets is None:
            return [(start, end)] if start < end else []
        return parts_around((at for at in self.offsets if start <= at < end), NEAR_MAX)


EVERYTHING: Final = Narrowing()


def parts_around(offsets: Iterable[int], near: int) -> list[tuple[int, int]]:
    """Return ranges [start, end) that hold the offsets; those up to `near` apart go together."""
    parts: list[tuple[int, int]] = []
    for at in sorted(offsets):
        if parts and at - parts[-1][1] < near:
            parts[-1] = parts[-1][0], at + 1
        else:
            parts.append((at, at + 1))
    return parts


def narrowing_of(filters: Iterable[Any]) -> Narrowing:
    """Return the bounds of Spark's filters, all of which must hold."""
    found = EVERYTHING
    for each in filters:
        column: tuple[str, ...] = getattr(each, "attribute", ())
        if len(column) == 1:
            found = found.narrowed(type(each).__name__, column[0], getattr(each, "value", None))
    return found


def _bounds(kind: str, floor: int, ceiling: int) -> tuple[int | None, int | None]:
    """Return the first whole number that may pass, and the first that may not any more."""
    match kind:
        case "EqualTo":
            return floor, ceiling + 1
        case "LessThan":
            return None, ceiling
        case "LessThanOrEqual":
            return None, floor + 1
        case "GreaterThan":
            return floor + 1, None
        case _:
            return ceiling, None


def _least(first: int | None, second: int | None) -> int | None:
    known = [value for value in (first, second) if value is not None]
    return min(known) if known else None
