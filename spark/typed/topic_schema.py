"""The schema of a topic's bodies, from a file.

    file                         is
    *.avsc, JSON with "type"     an Avro schema; the bodies are bare values of it
    JSON with "properties"       a JSON Schema
    *.desc *.binpb *.pb          a FileDescriptorSet of Protobuf; FILE#shop.Order names the message
    *.proto                      the same, compiled here where grpcio-tools is installed
    JSON with "format"           our own form, for all that those do not say:

    {"version": 1,
     "format": "json" | "avro" | "protobuf" | "text",
     "head": "none" | "confluent" | "single-object",      before the value; none when left out
     "columns": {"orderId": "bigint", ...},                json: name and type (`column_types`), or
     "schema": "order.schema.json" | {...},                a JSON Schema, a file beside this one
     "schema": "order.avsc" | {...},                       avro: a file beside this one, or itself
     "writers": {"17": "order-1.avsc", ...} | [...],       avro: by Confluent's ids, or a list
     "descriptors": "shop.desc", "message": "shop.Order"}  protobuf: a file beside this one

A `TopicSchema` holds all of it and pickles, so that Spark's workers need no file. Importing this
loads neither pyarrow nor a format's library. Driver process.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from skylarkmq.spark.typed.column_types import Struct, TypedSchemaError, columns_of
from skylarkmq.spark.typed.heads import CONFLUENT, HEADS, NONE
from skylarkmq.spark.typed.json_schema import columns_of_json_schema, is_json_schema

VERSION: Final = 1
JSON: Final = "json"
AVRO: Final = "avro"
PROTOBUF: Final = "protobuf"
TEXT: Final = "text"
FORMATS: Final = (JSON, AVRO, PROTOBUF, TEXT)
DESCRIPTOR_ENDINGS: Final = (".desc", ".binpb", ".pb", ".protoset")
FILE_SIZE_MAX: Final = 16 * 1024 * 1024
_KEYS: Final = {
    JSON: ("columns", "schema"),
    AVRO: ("schema", "writers"),
    PROTOBUF: ("descriptors", "message"),
    TEXT: (),
}
_HEADS: Final = {
    JSON: (NONE, CONFLUENT),
    AVRO: HEADS,
    PROTOBUF: (NONE, CONFLUENT),
    TEXT: (NONE,),
}


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """What the bodies of a topic are."""

    format: str
    head: str = NONE
    columns: Mapping[str, str] = field(default_factory=dict[str, str])
    """JSON: the types by the names."""
    definition: str = ""
    """Avro: the JSON of the schema."""
    writers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Avro: the JSON of schemas that wrote bodies, by Confluent's id."""
    descriptors: bytes = b""
    """Protobuf: a FileDescriptorSet."""
    message: str = ""

    def json_columns(self) -> Struct:
        """Return the columns of JSON bodies.

        Raises:
            TypedSchemaError: a type is none.
        """
        return columns_of(self.columns)


def load(path: str) -> TopicSchema:
    """Return the schema of a file, `FILE` or `FILE#message`.

    Raises:
        TypedSchemaError: the file cannot be read, or is none of those in the head of this module.
    """
    name, _, message = path.partition("#")
    file = Path(name)
    if file.suffix in (*DESCRIPTOR_ENDINGS, ".proto"):
        return TopicSchema(PROTOBUF, descriptors=_descriptors(file), message=message)
    if message:
        raise TypedSchemaError(f"{name}: only Protobuf has messages by name, as #{message[:64]}")
    found = _json_of(file)
    if isinstance(found, dict) and "format" in found:
        return _own(file, cast("dict[str, Any]", found))
    if is_json_schema(found):
        return _of_json_schema(file, found)
    if file.suffix == ".avsc" or (isinstance(found, dict) and "type" in found):
        return TopicSchema(AVRO, definition=_avro_text(file))
    raise TypedSchemaError(
        f'{name} is no schema: it is neither of Avro nor has it a "format"',
        hint=f'Say {{"version": 1, "format": ...}}, one of {", ".join(FORMATS)}',
    )


def _own(file: Path, found: dict[str, Any]) -> TopicSchema:
    wrong = _Wrong(file)
    kind = found["format"]
    if kind not in FORMATS:
        raise wrong(f"format {kind!a} is none", f"Formats are {', '.join(FORMATS)}")
    known = ("version", "format", "head", *_KEYS[kind])
    for name in found:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise wrong(
                f"{name[:64]!a} is no key of format {kind}",
                f"Did you mean {near[0]}?" if near else f"Keys are {', '.join(known)}",
            )
    if found.get("version") != VERSION:
        raise wrong(f"version {found.get('version')!a} is not known", f'Give "version": {VERSION}')
    head = found.get("head", NONE)
    if head not in _HEADS[kind]:
        raise wrong(f"head {head!a} is none of {kind}", f"Heads are {', '.join(_HEADS[kind])}")
    return {JSON: _own_json, AVRO: _own_avro, PROTOBUF: _own_protobuf, TEXT: _own_text}[kind](
        file, found, head
    )


def _of_json_schema(file: Path, found: Any, head: str = NONE) -> TopicSchema:
    try:
        schema = TopicSchema(JSON, head, columns=columns_of_json_schema(found))
        schema.json_columns()
    except TypedSchemaError as error:
        raise error.within(str(file)) from error
    return schema


class _Wrong:
    """Makes the errors of one file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self, why: str, hint: str = "") -> TypedSchemaError:
        return TypedSchemaError(f"{self._file}: {why}", hint=hint)


def _own_text(file: Path, found: dict[str, Any], head: str) -> TopicSchema:
    return TopicSchema(TEXT, head)


def _own_json(file: Path, found: dict[str, Any], head: str) -> TopicSchema:
    if "schema" in found:
        if "columns" in found:
            raise _Wrong(file)('"columns" and "schema" both say the columns: leave one out')
        given = found["schema"]
        beside = file.with_name(given) if isinstance(given, str) else file
        return _of_json_schema(beside, _json_of(beside) if isinstance(given, str) else given, head)
    columns = found.get("columns")
    if not isinstance(columns, dict) or not all(isinstance(text, str) for text in columns.values()):
        raise _Wrong(file)('"columns" has to be an object of names and types, as {"id": "bigint"}')
    schema = TopicSchema(JSON, head, columns=cast("dict[str, str]", columns))
    try:
        schema.json_columns()
    except TypedSchemaError as error:
        raise error.within(str(file)) from error
    return schema


def _own_avro(file: Path, found: dict[str, Any], head: str) -> TopicSchema:
    wrong = _Wrong(file)
    if "schema" not in found:
        raise wrong('"schema" is missing: the Avro schema, or its file')
    given = found.get("writers", {})
    if isinstance(given, list):
        given = {str(at): each for at, each in enumerate(given)}
        if head == CONFLUENT:
            raise wrong('writers are an object by schema ids, as {"17": "order-1.avsc"}')
    if not isinstance(given, dict) or (head == NONE and given):
        raise wrong("writers go with a head: they are told by what it says")
    if head == CONFLUENT and not (given and all(name.isdecimal() for name in given)):
        raise wrong(
            "a Confluent head needs writers: the schemas by their ids",
            'Give "writers": {"17": "order-1.avsc", ...}; the schema registry knows the ids',
        )
    writers = {name: _avro_definition(file, each) for name, each in given.items()}
    return TopicSchema(
        AVRO, head, definition=_avro_definition(file, found["schema"]), writers=writers
    )


def _own_protobuf(file: Path, found: dict[str, Any], head: str) -> TopicSchema:
    beside, message = found.get("descriptors"), found.get("message", "")
    if not isinstance(beside, str) or not isinstance(message, str):
        raise _Wrong(file)('"descriptors" has to name a file, and "message" a message')
    descriptors = _descriptors(file.parent / beside)
    return TopicSchema(PROTOBUF, head, descriptors=descriptors, message=message)


def _avro_definition(file: Path, given: Any) -> str:
    if isinstance(given, str):
        return _avro_text(file.parent / given)
    return json.dumps(given)


def _avro_text(file: Path) -> str:
    """Return the JSON of an Avro schema; types that it only names lie beside it, as NAME.avsc."""
    found = _json_of(file)
    try:
        from fastavro.schema import SchemaParseException, load_schema
    except ImportError:
        return json.dumps(found)  # the decoder says what is missing
    try:
        whole: Any = load_schema("", repo=cast("Any", _Beside(file)))
    except (SchemaParseException, TypeError, KeyError) as error:
        raise TypedSchemaError(f"{file} is no Avro schema: {error}") from error
    return json.dumps(_without_marks(whole))


class _Beside:
    """Finds schemas by their names for fastavro; the file itself has none."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def load(self, name: str) -> Any:
        """Return the JSON of a schema. Raises TypedSchemaError: it is not there."""
        return _json_of(self._file.with_name(f"{name}.avsc") if name else self._file)


def _without_marks(schema: Any) -> Any:
    """Return a schema without what fastavro adds to one that it has read."""
    if isinstance(schema, list):
        return [_without_marks(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    items = cast("dict[str, Any]", schema).items()
    return {name: _without_marks(each) for name, each in items if not name.startswith("__fastavro")}


def _descriptors(file: Path) -> bytes:
    if file.suffix != ".proto":
        return _read(file)
    _read(file)
    compiled: Callable[[Path], bytes]
    try:
        from skylarkmq.spark.typed.protobuf_bodies import compiled
    except ImportError as error:
        raise TypedSchemaError(
            f"Protobuf needs a library that is not here: {error}",
            hint="pip install 'skylarkmq[typed]'",
        ) from error
    return compiled(file)


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
