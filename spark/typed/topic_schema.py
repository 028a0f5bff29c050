"""The schema of a topic's bodies, from a JSON file.

    {"version": 1, "format": "json", "columns": {"orderId": "bigint", ...}}
    {"version": 1, "format": "text"}

The columns of JSON bodies are names and types (`column_types`); bodies of text are one column. A
`TopicSchema` holds it and pickles, so that Spark's workers need no file. Importing this does not
load pyarrow. Driver process.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from skylarkmq.spark.typed.column_types import Struct, TypedSchemaError, columns_of

VERSION: Final = 1
JSON: Final = "json"
TEXT: Final = "text"
FORMATS: Final = (JSON, TEXT)
FILE_SIZE_MAX: Final = 16 * 1024 * 1024
_KEYS: Final = {JSON: ("columns",), TEXT: ()}
_BINARY_ENDINGS: Final = (".avsc", ".desc", ".binpb", ".pb", ".protoset", ".proto")
_BINARY_FORMATS: Final = ("avro", "protobuf")
_DECODE_LATER: Final = (
    "Archive Avro and Protobuf without --schema, and decode the column body when you read it: "
    "docs/spark/avro.md has the programs"
)
_WITHOUT_HEAD: Final = (
    "Archive such bodies without --schema, and cut the head off the column body when you read it: "
    "docs/spark/avro.md"
)
_OWN_FORM: Final = 'Write {"version": 1, "format": "json", "columns": {"id": "bigint", ...}}'
_INSTEAD: Final = {"head": _WITHOUT_HEAD, "schema": f"{_OWN_FORM}: JSON Schemas are not read"}
"""Keys that there are no more, and what to do."""


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """What the bodies of a topic are."""

    format: str
    columns: Mapping[str, str] = field(default_factory=dict[str, str])
    """JSON: the types by the names."""

    def json_columns(self) -> Struct:
        """Return the columns of JSON bodies.

        Raises:
            TypedSchemaError: a type is none.
        """
        return columns_of(self.columns)


def load(path: str) -> TopicSchema:
    """Return the schema of a file.

    Raises:
        TypedSchemaError: the file cannot be read, or is none as in the head of this module.
    """
    if Path(path.partition("#")[0]).suffix in _BINARY_ENDINGS:
        raise TypedSchemaError(f"{path} is no schema of JSON or of text", hint=_DECODE_LATER)
    found = _json_of(Path(path))
    if not isinstance(found, dict) or "format" not in found:
        raise TypedSchemaError(
            f'{path} is no schema: it has no "format"',
            hint=f"{_OWN_FORM}: JSON Schemas are not read. {_DECODE_LATER}",
        )
    try:
        return _checked(cast("dict[str, Any]", found))
    except TypedSchemaError as error:
        raise error.within(path) from error


def _checked(found: dict[str, Any]) -> TopicSchema:
    kind = found["format"]
    if kind not in FORMATS:
        later = f". {_DECODE_LATER}" if kind in _BINARY_FORMATS else ""
        raise TypedSchemaError(
            f"format {kind!a} is none", hint=f"Formats are {', '.join(FORMATS)}{later}"
        )
    known = ("version", "format", *_KEYS[kind])
    for name in found:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            other = f"Did you mean {near[0]}?" if near else f"Keys are {', '.join(known)}"
            raise TypedSchemaError(
                f"{name[:64]!a} is no key of format {kind}", hint=_INSTEAD.get(name, other)
            )
    if found.get("version") != VERSION:
        raise TypedSchemaError(
            f"version {found.get('version')!a} is not known", hint=f'Give "version": {VERSION}'
        )
    if kind == TEXT:
        return TopicSchema(TEXT)
    columns = found.get("columns")
    if not isinstance(columns, dict) or not all(isinstance(text, str) for text in columns.values()):
        raise TypedSchemaError(
            '"columns" has to be an object of names and types, as {"id": "bigint"}'
        )
    schema = TopicSchema(JSON, cast("dict[str, str]", columns))
    schema.json_columns()
    return schema


def _json_of(file: Path) -> Any:
    try:
        return json.loads(_read(file))
    except ValueError as error:
        raise TypedSchemaError(f"{file} is no JSON: {error}") from error


def _read(file: Path) -> bytes:
    try:
        if file.stat().st_size > FILE_SIZE_MAX:
            raise TypedSchemaError(f"{file} is larger than {FILE_SIZE_MAX} bytes: it is no schema")
        return file.read_bytes()
    except OSError as error:
        raise TypedSchemaError(f"{file} cannot be read: {error.strerror}") from error
