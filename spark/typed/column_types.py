"""The types of typed columns: a tree, from a text in Spark's DDL, and its Arrow type.

    text                                           Arrow
    string, boolean, binary                        utf8, bool, binary
    tinyint, smallint, int, bigint                 int8, int16, int32, int64
    float, double, decimal(P,S)                    float, double, decimal128(P, S); P at most 38
    date, timestamp, timestamp_ntz                 date32, timestamp("us", UTC), timestamp("us")
    array<T>, map<K,T>, struct<name:T,...>         list, map, struct
    timestamp(s), timestamp(ms), timestamp(us)     as timestamp; the body has a number since 1970
    json                                           utf8; the body has any JSON, kept as its text

The last two lines are how a body says a value; in a table they are `timestamp` and `string`. All
columns are nullable. A name that is no plain word stands in backticks. Parquet and Spark refuse the
characters ` ,;{}()=` and line ends in a column's name, so there such a character becomes `_`.
Source: delta-io/delta PROTOCOL.md (Schema Serialization Format),
apache/spark docs/sql-ref-datatypes.md
"""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from skylarkmq.client.errors import RocketMQError

if TYPE_CHECKING:
    import pyarrow as pa

DEPTH_MAX: Final = 32
"""Of types within types."""
PRECISION_MAX: Final = 38
UNITS: Final = ("s", "ms", "us")
PLAIN: Final = (
    "string", "boolean", "binary", "tinyint", "smallint", "int", "bigint", "float", "double",
    "date", "timestamp", "timestamp_ntz", "json",
)  # fmt: skip


class TypedSchemaError(RocketMQError, ValueError):
    """A schema for bodies is wrong, or says what no table can hold."""

    def __init__(self, why: str, *, hint: str = "") -> None:
        super().__init__(why, hint=hint)
        self._why = why

    def within(self, where: str) -> TypedSchemaError:
        """Return the same error of a part of what is called `where`."""
        return TypedSchemaError(f"{where}: {self._why}", hint=self.hint)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A type without parts."""

    kind: str
    """One of PLAIN, or decimal."""
    unit: str = ""
    """Of a timestamp that bodies say as a number: s, ms or us."""
    precision: int = 0
    scale: int = 0
    """Of a decimal."""


@dataclass(frozen=True, slots=True)
class Array:
    """A list of values of one type."""

    item: Type


@dataclass(frozen=True, slots=True)
class Map:
    """Values by keys; a key is never null."""

    key: Leaf
    value: Type


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a struct."""

    name: str
    type: Type
    source: str = ""
    """Its name in the body; empty when it is `name`."""

    @property
    def key(self) -> str:
        """Its name in the body."""
        return self.source or self.name


@dataclass(frozen=True, slots=True)
class Struct:
    """Named values; the type of a whole body too."""

    fields: tuple[Field, ...]


Type = Leaf | Array | Map | Struct


def struct_of(fields: Iterable[tuple[str, Type]], where: str) -> Struct:
    """Return a struct of what bodies call so, under names that tables take.

    Raises:
        TypedSchemaError: two names differ by case alone, there are none, or one is none of JSON's
            that can be looked for.
    """
    fields = list(fields)
    for name, _ in fields:
        if _UNREADABLE.search(name):
            raise TypedSchemaError(
                f"{where} has a field {name[:64]!a}: no quote, backslash or control character "
                "may stand in a name"
            )
    made = tuple(Field(column_name(name), kind, name) for name, kind in fields)
    if not made:
        raise TypedSchemaError(f"{where} has no fields", hint="A table needs one at least")
    counts = Counter(field.name.lower() for field in made)
    for field in made:
        if counts[field.name.lower()] > 1:
            raise TypedSchemaError(
                f"{where} has several fields that would be column {field.name[:64]!a}",
                hint="Spark tells names neither by case nor by characters that are no part of one",
            )
    return Struct(made)


_UNREADABLE: Final = re.compile(r'["\\\x00-\x1f]')
"""The reader of JSON compares names without escapes."""
_NOT_IN_NAMES: Final = re.compile(r"[ ,;{}()\n\t\r=`]")


def column_name(name: str) -> str:
    """Return a name that Parquet and Spark take for a column."""
    return _NOT_IN_NAMES.sub("_", name) or "_"


_WORD: Final = re.compile(r"[^\W\d]\w*", re.UNICODE)
_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)+`|\w+|[<>(),:])", re.UNICODE)


def columns_of(columns: Mapping[str, str]) -> Struct:
    """Return the struct of columns that are given by name and text of their type.

    Raises:
        TypedSchemaError: which column, and what is wrong with its type.
    """
    found: list[tuple[str, Type]] = []
    for name, text in columns.items():
        try:
            found.append((name, parse(text)))
        except TypedSchemaError as error:
            raise error.within(f"column {name[:64]!a}") from error
    return struct_of(found, "columns")


def parse(text: str) -> Type:
    """Return the type that a text says.

    Raises:
        TypedSchemaError: it says none.
    """
    return _Parser(text).whole()


class _Parser:
    """Reads one type by recursive descent."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._scan(text))
        self._at = 0

    def _scan(self, text: str) -> Iterator[str]:
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._wrong(f"it has {text[position]!a}")
            yield match[1]
            position = match.end()

    def _wrong(self, why: str) -> TypedSchemaError:
        return TypedSchemaError(
            f"{self._text[:80]!a} is no type: {why}",
            hint=f"Types are {', '.join(PLAIN)}, decimal(P,S), timestamp(ms), array<T>, "
            "map<string,T>, struct<name:T,...>",
        )

    def whole(self) -> Type:
        found = self._type(0)
        if self._at < len(self._tokens):
            raise self._wrong(f"{self._tokens[self._at]!a} follows it")
        return found

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise self._wrong("it is cut")
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, token: str) -> None:
        found = self._next()
        if found != token:
            raise self._wrong(f"{token!a} is missing before {found!a}")

    def _accept(self, token: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at] == token:
            self._at += 1
            return True
        return False

    def _type(self, depth: int) -> Type:
        if depth > DEPTH_MAX:
            raise self._wrong(f"it has more than {DEPTH_MAX} types within each other")
        word = self._next().lower()
        if word == "array":
            self._expect("<")
            item = self._type(depth + 1)
            self._expect(">")
            return Array(item)
        if word == "map":
            return self._map(depth)
        if word == "struct":
            return self._struct(depth)
        return self._leaf(word)

    def _map(self, depth: int) -> Map:
        self._expect("<")
        key = self._type(depth + 1)
        self._expect(",")
        value = self._type(depth + 1)
        self._expect(">")
        if not isinstance(key, Leaf):
            raise self._wrong("a key of a map has no parts")
        return Map(key, value)

    def _struct(self, depth: int) -> Struct:
        fields: list[tuple[str, Type]] = []
        self._expect("<")
        while True:
            name = self._next()
            if name.startswith("`"):
                name = name[1:-1].replace("``", "`")
            elif not _WORD.match(name):
                raise self._wrong(f"{name!a} is no name")
            self._expect(":")
            fields.append((name, self._type(depth + 1)))
            if not self._accept(","):
                break
        self._expect(">")
        return struct_of(fields, f"{self._text[:40]!a}")

    def _leaf(self, word: str) -> Leaf:
        if word == "decimal":
            return self._decimal()
        if word not in PLAIN:
            raise self._wrong(f"{word!a} is not known")
        if word == "timestamp" and self._accept("("):
            unit = self._next()
            self._expect(")")
            if unit not in UNITS:
                raise self._wrong(f"the unit of timestamp is one of {', '.join(UNITS)}")
            return Leaf(word, unit)
        return Leaf(word)

    def _decimal(self) -> Leaf:
        self._expect("(")
        precision = self._number()
        self._expect(",")
        scale = self._number()
        self._expect(")")
        if not (0 < precision <= PRECISION_MAX and scale <= precision):
            raise self._wrong(f"a decimal has 1 to {PRECISION_MAX} digits, scale within them")
        return Leaf("decimal", precision=precision, scale=scale)

    def _number(self) -> int:
        word = self._next()
        if not (word.isascii() and word.isdigit() and len(word) < 4):
            raise self._wrong(f"{word[:20]!a} is no number")
        return int(word)


def arrow_type(kind: Type) -> pa.DataType:
    """Return the Arrow type of a column. Loads pyarrow."""
    import pyarrow as pa

    if isinstance(kind, Array):
        return pa.list_(arrow_type(kind.item))
    if isinstance(kind, Map):
        return pa.map_(arrow_type(kind.key), arrow_type(kind.value))
    if isinstance(kind, Struct):
        return pa.struct([(field.name, arrow_type(field.type)) for field in kind.fields])
    if kind.kind == "decimal":
        return pa.decimal128(kind.precision, kind.scale)
    return _arrow_leaves()[kind.kind]


@cache
def _arrow_leaves() -> dict[str, pa.DataType]:
    import pyarrow as pa

    return {
        "string": pa.string(),
        "json": pa.string(),
        "boolean": pa.bool_(),
        "binary": pa.binary(),
        "tinyint": pa.int8(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }
