"""Avro bodies by a reader's schema, and by the schemas that wrote them.

    Avro                                   column
    null                                   left out
    boolean, int, long, float, double      boolean, int, bigint, float, double
    string, enum, uuid of a string         string
    bytes, fixed, duration, big-decimal    binary
    decimal of at most 38 digits           decimal(P,S); of more: binary, as it is
    date                                   date
    timestamp-millis, timestamp-micros     timestamp; nanos: bigint
    local-timestamp-millis, -micros        timestamp_ntz; nanos: bigint
    time-millis, time-micros               int, bigint: since midnight
    array, map, record                     array, map<string,T>, struct
    [null, T]                              T
    [int, long], [float, double]           bigint, double
    other unions                           struct<member0:T0,member1:T1,...>, one of them set
    a record within itself                 string, as JSON

Unions are as in Spark's own reader of Avro. fastavro reads logical types as what they are stored
as, and columns of them are made of the whole batch. Its compiled reader takes no notice of how deep
it is, and a body of 10,000 records within each other ends the process: so larger bodies of schemas
that allow it are read by its reader in Python, which raises.
Source: Apache Avro 1.12 specification; apache/spark docs/sql-data-sources-avro.md
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from io import BytesIO
from operator import itemgetter
from typing import Any, Final

import fastavro
import msgspec
from fastavro import _read_py  # pyright: ignore[reportPrivateUsage]
from fastavro.schema import SchemaParseException, fingerprint, to_parsing_canonical_form

from skylarkmq.spark.typed.building import Take, Values
from skylarkmq.spark.typed.column_types import (
    PRECISION_MAX,
    Array,
    Field,
    Leaf,
    Map,
    Struct,
    Type,
    TypedSchemaError,
    struct_of,
)
from skylarkmq.spark.typed.heads import (
    CONFLUENT,
    NONE,
    SINGLE_OBJECT,
    HeadError,
    confluent_id,
)
from skylarkmq.spark.typed.heads import fingerprint as fingerprint_of

_PRIMITIVES: Final = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "binary",
}
_LOGICAL: Final = {
    ("int", "date"): Leaf("date"),
    ("long", "timestamp-millis"): Leaf("timestamp", "ms"),
    ("long", "timestamp-micros"): Leaf("timestamp", "us"),
    ("long", "local-timestamp-millis"): Leaf("timestamp_ntz", "ms"),
    ("long", "local-timestamp-micros"): Leaf("timestamp_ntz", "us"),
}
_WIDER: Final = ({"int", "long"}, "long"), ({"float", "double"}, "double")
_NAMED: Final = ("record", "error", "enum", "fixed")
_UNION: Final = "a union"
_BRANCHES: Final[dict[type, tuple[str, ...]]] = {
    bool: ("boolean",),
    int: ("int", "long"),
    float: ("float", "double"),
    str: ("string",),
    bytes: ("bytes",),
    list: ("array",),
    dict: ("map",),
}
"""The unnamed types of a union, by what fastavro gives of them."""
DEEP_SIZE: Final = 1_000
"""Bytes of a body up to which no value is too deep for the compiled reader: a level takes one."""
# The default context rounds to 28 digits.
_EXACT: Final = Context(prec=2 * PRECISION_MAX)


class AvroBodies:
    """Reads Avro bodies, and takes what it read apart."""

    def __init__(self, schema: str, head: str = NONE, writers: Mapping[str, str] | None = None):
        """Take the schema of the columns, and those that wrote the bodies.

        Args:
            schema: its JSON.
            writers: JSON of the schemas by Confluent's id; for the single-object encoding the keys
                do not matter.

        Raises:
            TypedSchemaError: a schema is wrong, or no record.
        """
        parsed = parsed_schema(schema)
        types = _Types(parsed)
        self.columns: Final = types.columns()
        # What fastavro raises for bytes that are none of the schema is not documented, and much.
        self.faults: Final = (Exception,)
        self._named: Final = types.has_unions
        self._is_deep = types.is_recursive
        reader = _stored(parsed)
        self._writers: dict[int, Any] = {}
        if head == SINGLE_OBJECT:
            for each in (schema, *(writers or {}).values()):
                self._writers[fingerprint_number(each)] = self._writer(each)
        elif head == CONFLUENT:
            for number, each in (writers or {}).items():
                self._writers[int(number)] = self._writer(each)
        self._reader: Final = reader
        self.decode: Final[Callable[[bytes], Any]] = {
            NONE: self._decode_plain,
            CONFLUENT: self._decode_confluent,
            SINGLE_OBJECT: self._decode_single,
        }[head]

    def _writer(self, schema: str) -> Any:
        """Return a writer's schema; what is dangerous to read is so whatever it is read as."""
        parsed = parsed_schema(schema)
        types = _Types(parsed)
        types.columns()
        self._is_deep |= types.is_recursive
        return _stored(parsed)

    def _decode_plain(self, body: bytes) -> Any:
        return self._read(BytesIO(body), self._reader)

    def _decode_confluent(self, body: bytes) -> Any:
        number = confluent_id(body)
        writer = self._writers.get(number)
        if writer is None:
            raise HeadError(f"its Confluent schema id {number} is none of the schema's writers")
        stream = BytesIO(body)
        stream.seek(5)
        return self._read(stream, writer)

    def _decode_single(self, body: bytes) -> Any:
        number = fingerprint_of(body)
        writer = self._writers.get(number)
        if writer is None:
            raise HeadError(f"no writer of the schema has its fingerprint {number:016x}")
        stream = BytesIO(body)
        stream.seek(10)
        return self._read(stream, writer)

    def _read(self, stream: BytesIO, writer: Any) -> Any:
        reader = None if writer is self._reader else self._reader
        size = len(stream.getbuffer())
        read = fastavro.schemaless_reader
        if self._is_deep and size > DEEP_SIZE:
            read = _read_py.schemaless_reader
        found = read(stream, writer, reader, return_named_type=self._named)
        left = size - stream.tell()
        if left:
            raise HeadError(f"{left} bytes follow the value")
        return found

    def field(self, struct: Struct, field: Field) -> Take:
        """Return what takes a field out of the records, or a member out of a union's values."""
        if struct.origin == _UNION:
            return lambda values: [_member(value, field.key) for value in values]
        get = itemgetter(field.key)
        return lambda values: list(map(get, values))

    def prepare(self, kind: Type) -> Take | None:
        """Return what makes values of a column of what fastavro gave."""
        if isinstance(kind, Leaf) and kind.form == "json":
            return _texts
        if isinstance(kind, Leaf) and kind.kind == "decimal":
            scale = -kind.scale
            return lambda values: [_decimal(value, scale) for value in values]
        if self._named and (
            (isinstance(kind, Leaf) and kind.form == "named")
            or (isinstance(kind, Struct) and kind.origin != _UNION)
        ):
            return lambda values: [_without_name(value) for value in values]
        return None


def _without_name(value: Any) -> Any:
    return value[1] if type(value) is tuple else value


def _member(value: Any, branch: str) -> Any:
    if type(value) is tuple:
        return value[1] if value[0] == branch else None
    return value if branch in _BRANCHES.get(type(value), ()) else None


def _decimal(value: Any, scale: int) -> Decimal | None:
    if value is None:
        return None
    number = int.from_bytes(_without_name(value), "big", signed=True)
    return Decimal(number).scaleb(scale, _EXACT)


def _texts(values: Values) -> Values:
    return [None if value is None else str(msgspec.json.encode(value), "utf-8") for value in values]


def parsed_schema(text: str) -> Any:
    """Return a schema as fastavro has it.

    Raises:
        TypedSchemaError: it is none.
    """
    try:
        return fastavro.parse_schema(json.loads(text))
    except (ValueError, TypeError, KeyError, SchemaParseException) as error:
        raise TypedSchemaError(f"the Avro schema is wrong: {error}") from error


def fingerprint_number(schema: str) -> int:
    """Return the CRC-64-AVRO of a schema's JSON."""
    text = fingerprint(to_parsing_canonical_form(json.loads(schema)), "CRC-64-AVRO")
    # fastavro gives the bytes in the order in which they stand in a body's head.
    return int.from_bytes(bytes.fromhex(text), "little")


def _stored(schema: Any) -> Any:
    """Return the schema without its logical types, which say nothing about the bytes."""
    return fastavro.parse_schema(_without_logical(schema))


def _without_logical(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: value if name == "default" else _without_logical(value)
        for name, value in schema.items()
        if name != "logicalType" and not name.startswith("__")
    }


class _Types:
    """Columns of one parsed schema."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._known: dict[str, Any] = {}
        self._inside: list[str] = []
        self._since_choice: list[str] = []
        """Of these, those since the last union, array or map, which may end the nesting."""
        self.is_recursive = False
        """Whether a record may be within itself."""
        self.has_unions = False
        """Whether there are unions of more than one type and null, after widening."""

    def columns(self) -> Struct:
        """Return the columns. Raises TypedSchemaError: the schema is no record, or a wrong one."""
        found = self._type(self._schema, "the schema")
        if not isinstance(found, Struct) or found.origin == _UNION:
            raise TypedSchemaError("the Avro schema is no record, so it has no columns")
        return found

    def _type(self, schema: Any, where: str) -> Type | None:
        if isinstance(schema, list) or (
            isinstance(schema, dict) and schema["type"] in ("array", "map")
        ):
            before, self._since_choice = self._since_choice, []
            found = self._choice(schema, where)
            self._since_choice = before
            return found
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return Leaf(_PRIMITIVES[schema])
            return None if schema == "null" else self._type(self._known[schema], where)
        name = schema["type"]
        if name in _NAMED:
            self._known[schema["name"]] = schema
        if name in ("record", "error"):
            return self._record(schema)
        if name == "enum":
            return Leaf("string", form="named")
        if name in ("fixed", "bytes"):
            return _bytes(schema)
        logical = str(schema.get("logicalType"))
        return _LOGICAL.get((name, logical)) or self._type(name, where)

    def _choice(self, schema: Any, where: str) -> Type | None:
        """Return the type of what may hold nothing."""
        if isinstance(schema, list):
            return self._union(schema, where)
        if schema["type"] == "array":
            return self._array(schema["items"], where)
        value = self._type(schema["values"], where)
        return None if value is None else Map(Leaf("string"), value)

    def _record(self, schema: Any) -> Type | None:
        name = schema["name"]
        if name in self._since_choice:
            raise TypedSchemaError(f"every Avro record {name} holds another one, without an end")
        if name in self._inside:
            self.is_recursive = True
            return Leaf("string", form="json")
        self._inside.append(name)
        self._since_choice.append(name)
        found = [
            (field["name"], kind)
            for field in schema["fields"]
            if (kind := self._type(field["type"], f"{name}.{field['name']}")) is not None
        ]
        self._inside.pop()
        self._since_choice.pop()
        if not found and self._inside:
            return None  # a record without fields says no more than null
        return struct_of(found, f"Avro record {name}", name)

    def _array(self, items: Any, where: str) -> Type | None:
        kind = self._type(items, where)
        if kind is None or self._takes_no_bytes(items, frozenset()):
            # A body of ten bytes could claim 2**60 of them.
            raise TypedSchemaError(f"the items of the array {where} take no bytes")
        return Array(kind)

    def _takes_no_bytes(self, schema: Any, inside: frozenset[str]) -> bool:
        if isinstance(schema, str):
            if schema in self._known and schema not in inside:
                return self._takes_no_bytes(self._known[schema], inside | {schema})
            return schema == "null"
        if isinstance(schema, list):
            return False
        if schema["type"] == "fixed":
            return bool(schema["size"] == 0)
        if schema["type"] in ("record", "error"):
            inside = inside | {schema["name"]}
            return all(self._takes_no_bytes(each["type"], inside) for each in schema["fields"])
        return bool(schema["type"] == "null")

    def _union(self, schema: list[Any], where: str) -> Type | None:
        branches = [each for each in schema if each != "null"]
        words = [each for each in branches if isinstance(each, str)]
        for both, wider in _WIDER:
            if len(branches) == 2 and set(words) == both:
                return Leaf(_PRIMITIVES[wider])
        if len(branches) < 2:
            return self._type(branches[0], where) if branches else None
        self.has_unions = True
        members: list[Field] = []
        for at, branch in enumerate(branches):
            kind = self._type(branch, where)
            if kind is None:
                raise TypedSchemaError(f"a member of the union {where} has no fields")
            members.append(Field(f"member{at}", kind, _branch_name(branch)))
        return Struct(tuple(members), _UNION)


def _branch_name(branch: Any) -> str:
    """Return by what a union's value of this branch is told: its name, or its type's."""
    if isinstance(branch, str):
        return branch
    kind = branch["type"]
    return str(branch["name"] if kind in _NAMED else kind)


def _bytes(schema: Any) -> Leaf:
    form = "named" if schema["type"] == "fixed" else ""
    precision = schema.get("precision", 0)
    if schema.get("logicalType") == "decimal" and 0 < precision <= PRECISION_MAX:
        return Leaf("decimal", precision=precision, scale=schema.get("scale", 0), form=form)
    return Leaf("binary", form=form)
