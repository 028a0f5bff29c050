"""Columns of JSON bodies, guessed from some of them for a person to look through.

    in all bodies of the sample        column
    true, false                        boolean
    whole numbers                      bigint; decimal(38,0) beyond it
    numbers                            double
    texts, all RFC 3339                timestamp, timestamp_ntz (without a zone), date
    other texts                        string
    objects                            struct; map<string,T> of more than NAMES_MAX names
    arrays                             array<T>
    of several kinds, or empty alone   json
    null alone                         none, which is said

Driver process; needs neither Spark nor pyarrow.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec

from skylarkmq.spark.typed.column_types import (
    DEPTH_MAX,
    PRECISION_MAX,
    Array,
    Leaf,
    Map,
    Type,
    TypedSchemaError,
    column_name,
    ddl,
    is_readable,
    struct_of,
)
from skylarkmq.spark.typed.heads import CONFLUENT, NONE, guess, without_confluent
from skylarkmq.spark.typed.topic_schema import JSON, TopicSchema

NAMES_MAX: Final = 64
"""Names in objects of one place; where there are more, they are keys."""
_TIMES: Final = {
    "timestamp": Annotated[datetime.datetime, msgspec.Meta(tz=True)],
    "timestamp_ntz": Annotated[datetime.datetime, msgspec.Meta(tz=False)],
    "date": datetime.date,
}
_LONG: Final = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class Inferred:
    """A guess."""

    schema: TopicSchema
    notes: tuple[str, ...]
    """What a person has to decide."""
    bodies: int
    """How many it was guessed from."""
    others: int
    """How many of the sample are no JSON objects."""


def infer(bodies: Iterable[bytes]) -> Inferred:
    """Return the columns of JSON bodies.

    Raises:
        TypedSchemaError: there are none, or fewer than half are JSON objects; it says what the
            first other one looks like.
    """
    every = list(bodies)
    plain, framed = _objects(every, bytes), _objects(every, without_confluent)
    head, found = (CONFLUENT, framed) if len(framed) > len(plain) else (NONE, plain)
    if len(found) * 2 < len(every) or not found:
        raise _unknown(every)
    seen = _Seen()
    for each in found:
        seen.add(each, 0)
    notes: list[str] = []
    columns = {
        name: ddl(kind)
        for name, each in seen.fields.items()
        if is_readable(name) and (kind := each.type(name, notes)) is not None
    }
    unread = [name for name in seen.fields if not is_readable(name)]
    notes += [f"{name!a} cannot be looked for: it got no column" for name in unread]
    struct_of([(name, Leaf("json")) for name in columns], "the JSON of the sample")
    schema = TopicSchema(JSON, head, columns=columns)
    return Inferred(schema, tuple(notes), len(found), len(every) - len(found))


def _objects(bodies: list[bytes], opened: Callable[[bytes], Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for body in bodies:
        try:
            each = msgspec.json.decode(opened(body))
        except (ValueError, RecursionError):
            continue
        if isinstance(each, dict):
            found.append(each)
    return found


def _unknown(bodies: list[bytes]) -> TypedSchemaError:
    if not bodies:
        return TypedSchemaError("the topic has no messages to guess a schema from")
    looks = next((what for body in bodies if (what := guess(body))), "")
    return TypedSchemaError(
        "the bodies are no JSON objects" + (f": {looks}" if looks else ""),
        hint="Only JSON tells its columns: give an Avro schema (.avsc), a FileDescriptorSet of "
        'Protobuf (.desc), or {"version": 1, "format": "text"}',
    )


@dataclass(slots=True)
class _Seen:
    """What stood in one place."""

    kinds: set[str] = field(default_factory=set[str])
    is_long: bool = True
    times: set[str] = field(default_factory=lambda: set(_TIMES))
    """What all texts can be read as."""
    fields: dict[str, _Seen] = field(default_factory=dict[str, "_Seen"])
    item: _Seen | None = None

    def add(self, value: Any, depth: int) -> None:
        """Take note of a value."""
        if value is None:
            return
        kind = type(value).__name__
        self.kinds.add(kind)
        if kind == "int":
            self.is_long &= value in _LONG
        elif kind == "str":
            self.times = {name for name in self.times if _reads(value, _TIMES[name])}
        elif depth >= DEPTH_MAX - 1:
            self.kinds.add("too deep")
        elif kind == "dict":
            for name, each in value.items():
                self.fields.setdefault(name, _Seen()).add(each, depth + 1)
        elif kind == "list":
            self.item = self.item or _Seen()
            for each in value:
                self.item.add(each, depth + 1)

    def type(self, where: str, notes: list[str]) -> Type | None:
        """Return the type, None where only null was seen; append what is not sure."""
        if not self.kinds:
            notes.append(f"{where} was null in all bodies: it got no column")
            return None
        if self.kinds == {"dict"}:
            return self._object(where, notes)
        if self.kinds == {"list"}:
            item = self.item.type(f"{where}[]", notes) if self.item else None
            return Array(item or Leaf("json"))
        if self.kinds <= {"int", "float"}:
            return self._number(where, notes)
        if self.kinds == {"bool"}:
            return Leaf("boolean")
        if self.kinds == {"str"}:
            return Leaf(min(self.times, key=list(_TIMES).index, default="string"))
        names = ", ".join(sorted(self.kinds))
        notes.append(f"{where} has values of several kinds ({names}): it is kept as JSON text")
        return Leaf("json")

    def _number(self, where: str, notes: list[str]) -> Leaf:
        if "float" in self.kinds:
            return Leaf("double")
        if self.is_long:
            return Leaf("bigint")
        notes.append(f"{where} has numbers beyond bigint")
        return Leaf("decimal", precision=PRECISION_MAX)

    def _object(self, where: str, notes: list[str]) -> Type:
        if len(self.fields) > NAMES_MAX:
            every = _Seen()
            for each in self.fields.values():
                every.merge(each)
            notes.append(f"{where} has {len(self.fields)} names: they are taken as keys of a map")
            return Map(Leaf("string"), every.type(f"{where}{{}}", notes) or Leaf("json"))
        parts = [
            (name, kind)
            for name, each in self.fields.items()
            if (kind := each.type(f"{where}.{name}", notes)) is not None
        ]
        names = {column_name(name).lower() for name, _ in parts if is_readable(name)}
        if len(names) < len(parts):
            notes.append(
                f"{where} has names that differ by case alone, or that no column can have: "
                "it is kept as JSON text"
            )
            return Leaf("json")
        return struct_of(parts, where) if parts else Leaf("json")

    def merge(self, other: _Seen) -> None:
        """Take over what was seen in another place."""
        self.kinds |= other.kinds
        self.is_long &= other.is_long
        if "str" in other.kinds:
            self.times &= other.times
        for name, each in other.fields.items():
            self.fields.setdefault(name, _Seen()).merge(each)
        if other.item is not None:
            self.item = self.item or _Seen()
            self.item.merge(other.item)


def _reads(text: str, kind: Any) -> bool:
    try:
        msgspec.convert(text, kind)
    except ValueError:
        return False
    return True
