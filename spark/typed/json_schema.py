"""Columns of JSON bodies by a JSON Schema, as far as its types say what a value is.

    JSON Schema                                   column
    string, boolean, integer, number              string, boolean, bigint, double
    string of format date-time, date              timestamp, date
    string of contentEncoding base64              binary
    object with properties                        struct
    object with a schema as additionalProperties  map<string,T>
    array with items                              array<T>
    T or null; anyOf and oneOf of T and null      T
    $ref to #/...                                 what it names
    null alone                                    left out
    all else, and a schema within itself          json: the text of the value

It says types alone: patterns, limits and required names are not looked at.
Source: json-schema.org, draft 2020-12 and those before it
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any, Final, cast

from skylarkmq.spark.typed.column_types import (
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

REFERENCES_MAX: Final = 32
"""From one $ref to the next; more are a circle."""
_TYPES: Final = {"boolean": "boolean", "integer": "bigint", "number": "double"}
_FORMATS: Final = {"date-time": "timestamp", "date": "date"}
_JSON: Final = Leaf("json")


def is_json_schema(found: Any) -> bool:
    """Return whether JSON is a JSON Schema of objects, and not one of Avro."""
    return isinstance(found, dict) and ("properties" in found or "$schema" in found)


def columns_of_json_schema(found: Any) -> dict[str, str]:
    """Return the types by the names of the bodies' fields.

    Raises:
        TypedSchemaError: it describes no objects with properties, or a $ref names nothing.
    """
    reader = _Reader(found)
    fields = reader.properties(found)
    if not fields:
        raise TypedSchemaError(
            "the JSON Schema has no properties, so it has no columns",
            hint='It has to say {"type": "object", "properties": {...}}',
        )
    return {name: ddl(kind) for name, kind in fields}


class _Reader:
    """Reads one document."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._inside: list[int] = []

    def properties(self, schema: Any) -> list[tuple[str, Type]]:
        """Return the fields of an object's schema."""
        schema = self._resolved(schema)
        found = cast("dict[str, Any]", schema).get("properties") if _is_object(schema) else None
        if not isinstance(found, dict):
            return []
        kinds = {name: self._type(each) for name, each in cast("dict[str, Any]", found).items()}
        return [(name, kind) for name, kind in kinds.items() if kind is not None]

    def _resolved(self, schema: Any) -> Any:
        for _ in range(REFERENCES_MAX):
            if not (_is_object(schema) and isinstance(schema.get("$ref"), str)):
                return schema
            schema = self._named(schema["$ref"])
        return {}

    def _named(self, reference: str) -> Any:
        found: Any = self._document
        parts = reference.split("/")
        if parts[0] != "#":
            raise TypedSchemaError(f"$ref {reference[:80]!a} is not in the same file")
        for part in parts[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not _is_object(found) or name not in found:
                raise TypedSchemaError(f"$ref {reference[:80]!a} names nothing")
            found = found[name]
        return found

    def _type(self, schema: Any) -> Type | None:
        schema = self._resolved(schema)
        if not _is_object(schema) or id(schema) in self._inside:
            return _JSON
        self._inside.append(id(schema))
        try:
            return self._of(schema)
        finally:
            self._inside.pop()

    def _of(self, schema: dict[str, Any]) -> Type | None:
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return self._either(schema[word])
        given = schema.get("type")
        kinds = [given] if isinstance(given, str) else list(given or [])
        others = [kind for kind in kinds if kind != "null"]
        if len(others) != 1:
            return None if kinds == ["null"] else _JSON
        (kind,) = others
        if kind == "string":
            if schema.get("contentEncoding") == "base64":
                return Leaf("binary")
            return Leaf(_FORMATS.get(schema.get("format", ""), "string"))
        if kind == "array":
            return Array(self._type(schema.get("items", {})) or _JSON)
        return self._object(schema) if kind == "object" else Leaf(_TYPES.get(kind, "json"))

    def _either(self, schemas: Any) -> Type | None:
        if not isinstance(schemas, list):
            return _JSON
        found = [self._type(each) for each in schemas]
        others = [kind for kind in found if kind is not None]
        if len(others) == 1:
            return others[0]
        return _JSON if others else None

    def _object(self, schema: dict[str, Any]) -> Type:
        fields = self.properties(schema)
        if fields:
            names = {column_name(name).lower() for name, _ in fields if is_readable(name)}
            return struct_of(fields, "an object") if len(names) == len(fields) else _JSON
        more = schema.get("additionalProperties")
        if _is_object(more) and "patternProperties" not in schema:
            return Map(Leaf("string"), self._type(more) or _JSON)
        return _JSON


def _is_object(schema: Any) -> bool:
    return isinstance(schema, dict)
