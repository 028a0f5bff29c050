"""Protobuf bodies by a message type of a FileDescriptorSet.

    Protobuf                                  column
    bool, string, bytes                       boolean, string, binary
    int32, sint32, sfixed32                   int
    int64, sint64, sfixed64, uint32, fixed32  bigint
    uint64, fixed64                           decimal(20,0)
    float, double                             float, double
    enum                                      string: the name; an unknown one its number
    message, group; repeated; map             struct; array; map
    google.protobuf.Timestamp                 timestamp, in whole microseconds
    google.protobuf.StringValue and the like  their values' types
    google.protobuf.Struct, Value, ListValue  string, as JSON
    a message within itself, or an empty one  string, as JSON

A field that tells whether it is set (`optional`, messages, `oneof`, proto2) is null where it is
not; any other has its default then, which is what the sender meant. Extensions and unknown fields
are passed over; a body of unknown fields alone is of another type.
Source: protobuf.dev/programming-guides/field_presence, /reference/protobuf/google.protobuf
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from skylarkmq.spark.typed.building import Take, Values
from skylarkmq.spark.typed.column_types import (
    Array,
    Field,
    Leaf,
    Map,
    Struct,
    Type,
    TypedSchemaError,
    struct_of,
)
from skylarkmq.spark.typed.heads import CONFLUENT, HeadError, confluent_id, message_indexes

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    _FIELD.TYPE_BOOL: Leaf("boolean"),
    _FIELD.TYPE_STRING: Leaf("string"),
    _FIELD.TYPE_BYTES: Leaf("binary"),
    _FIELD.TYPE_INT32: Leaf("int"),
    _FIELD.TYPE_SINT32: Leaf("int"),
    _FIELD.TYPE_SFIXED32: Leaf("int"),
    _FIELD.TYPE_INT64: Leaf("bigint"),
    _FIELD.TYPE_SINT64: Leaf("bigint"),
    _FIELD.TYPE_SFIXED64: Leaf("bigint"),
    _FIELD.TYPE_UINT32: Leaf("bigint"),
    _FIELD.TYPE_FIXED32: Leaf("bigint"),
    _FIELD.TYPE_UINT64: Leaf("decimal", precision=20),
    _FIELD.TYPE_FIXED64: Leaf("decimal", precision=20),
    _FIELD.TYPE_FLOAT: Leaf("float"),
    _FIELD.TYPE_DOUBLE: Leaf("double"),
}
_WELL_KNOWN: Final = "google.protobuf."
_WRAPPERS: Final = {
    f"{_WELL_KNOWN}{name}Value": kind
    for name, kind in {
        "Bool": Leaf("boolean", form="wrapper"),
        "String": Leaf("string", form="wrapper"),
        "Bytes": Leaf("binary", form="wrapper"),
        "Int32": Leaf("int", form="wrapper"),
        "Int64": Leaf("bigint", form="wrapper"),
        "UInt32": Leaf("bigint", form="wrapper"),
        "UInt64": Leaf("decimal", precision=20, form="wrapper"),
        "Float": Leaf("float", form="wrapper"),
        "Double": Leaf("double", form="wrapper"),
    }.items()
}
_AS_JSON: Final = {f"{_WELL_KNOWN}{name}" for name in ("Struct", "Value", "ListValue")}
_TIMESTAMP: Final = f"{_WELL_KNOWN}Timestamp"
_JSON: Final = Leaf("string", form="json")
_ENUM: Final = "enum "
"""Before an enum's name in a leaf's form."""


class ProtobufBodies:
    """Reads Protobuf bodies, and takes what it read apart."""

    def __init__(self, descriptors: bytes, message: str, head: str):
        """Take a FileDescriptorSet and the full name of the bodies' message.

        Args:
            message: empty when one file of the set has a message, and that only one.

        Raises:
            TypedSchemaError: no such message, or the set lacks files that others import.
        """
        self._pool: Final = _pool(descriptors)
        self.message: Final = message or _only_message(descriptors)
        try:
            found = self._pool.FindMessageTypeByName(self.message)
        except KeyError as error:
            known = ", ".join(message_names(descriptors))
            raise TypedSchemaError(
                f"the descriptors have no message {self.message[:80]!a}", hint=f"They have {known}"
            ) from error
        self._class: Final = message_factory.GetMessageClass(found)
        self._indexes: Final = _indexes_of(found)
        self._inside: list[str] = []
        columns = self._struct(found)
        if not isinstance(columns, Struct):
            raise TypedSchemaError(f"message {self.message} has no fields, so it has no columns")
        self.columns: Final = columns
        self.faults: Final = (DecodeError, HeadError)
        self.decode: Final[Callable[[bytes], Any]] = (
            self._decode_confluent if head == CONFLUENT else self._decode_plain
        )

    def _decode_plain(self, body: bytes) -> Any:
        found = self._class.FromString(body)
        if len(UnknownFieldSet(found)) and not found.ListFields():
            raise HeadError(f"it has no field of {self.message}, but others")
        return found

    def _decode_confluent(self, body: bytes) -> Any:
        confluent_id(body)
        indexes, start = message_indexes(body)
        if indexes != self._indexes:
            raise HeadError(
                f"its Confluent head names message {list(indexes)} of the file, and "
                f"{self.message} is {list(self._indexes)}"
            )
        return self._decode_plain(body[start:])

    def field(self, struct: Struct, field: Field) -> Take:
        """Return what takes a field out of messages."""
        found = self._pool.FindMessageTypeByName(struct.origin).fields_by_name[field.key]
        name = field.key
        get = attrgetter(name)
        if found.has_presence:
            return lambda values: [get(each) if each.HasField(name) else None for each in values]
        return lambda values: list(map(get, values))

    def prepare(self, kind: Type) -> Take | None:
        """Return what makes values of a column of what Protobuf's classes give."""
        if not isinstance(kind, Leaf) or not kind.form:
            return None
        if kind.form == "wrapper":
            return lambda values: [None if each is None else each.value for each in values]
        if kind.form == "timestamp":
            return _instants
        if kind.form == "json":
            return _texts
        names = dict(self._enum_names(kind.form.removeprefix(_ENUM)))
        return lambda values: [
            None if each is None else names.get(each) or str(each) for each in values
        ]

    def _enum_names(self, enum: str) -> Iterator[tuple[int, str]]:
        for number, value in self._pool.FindEnumTypeByName(enum).values_by_number.items():
            yield number, value.name

    def _struct(self, message: Any) -> Type:
        name = message.full_name
        if name in self._inside or not message.fields:
            return _JSON
        self._inside.append(name)
        fields = [(field.name, self._type(field)) for field in message.fields]
        self._inside.pop()
        return struct_of(fields, f"Protobuf message {name}", name)

    def _type(self, field: Any) -> Type:
        message = field.message_type
        if message is not None and message.GetOptions().map_entry:
            key = self._single(message.fields_by_name["key"])
            assert isinstance(key, Leaf)
            return Map(key, self._single(message.fields_by_name["value"]))
        return Array(self._single(field)) if field.is_repeated else self._single(field)

    def _single(self, field: Any) -> Type:
        if field.enum_type is not None:
            return Leaf("string", form=f"{_ENUM}{field.enum_type.full_name}")
        message = field.message_type
        if message is None:
            return _SCALARS[field.type]
        if message.full_name == _TIMESTAMP:
            return Leaf("timestamp", "us", form="timestamp")
        if message.full_name in _AS_JSON:
            return _JSON
        return _WRAPPERS.get(message.full_name) or self._struct(message)


def _instants(values: Values) -> Values:
    return [
        None if each is None else each.seconds * 1_000_000 + each.nanos // 1_000 for each in values
    ]


def _texts(values: Values) -> Values:
    try:
        return [
            None
            if each is None
            else json_format.MessageToJson(each, preserving_proto_field_name=True, indent=None)
            for each in values
        ]
    except json_format.Error as error:
        raise ValueError(str(error)) from error


def _files(descriptors: bytes) -> Any:
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
    except DecodeError as error:
        raise TypedSchemaError("the descriptors are no FileDescriptorSet", hint=_PROTOC) from error
    if not files.file:
        raise TypedSchemaError("the descriptors are an empty FileDescriptorSet", hint=_PROTOC)
    return files.file


_PROTOC: Final = "Make it with protoc --include_imports --descriptor_set_out=FILE.desc FILE.proto"


def _pool(descriptors: bytes) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in _files(descriptors):
        try:
            pool.AddSerializedFile(file.SerializeToString())
        except TypeError as error:
            raise TypedSchemaError(f"the descriptors are wrong: {error}", hint=_PROTOC) from error
    return pool


def message_names(descriptors: bytes) -> list[str]:
    """Return the full names of the messages that are in no other, Google's own aside.

    Raises:
        TypedSchemaError: it is no FileDescriptorSet.
    """
    return [
        f"{file.package}.{message.name}" if file.package else message.name
        for file in _files(descriptors)
        if not f"{file.package}.".startswith(_WELL_KNOWN)
        for message in file.message_type
    ]


def _only_message(descriptors: bytes) -> str:
    names = message_names(descriptors)
    if len(names) != 1:
        raise TypedSchemaError(
            f"the descriptors have {len(names)} messages, and none was named",
            hint=f"Name one of them, as FILE#{names[0]}: {', '.join(names)}" if names else _PROTOC,
        )
    return names[0]


def _indexes_of(message: Any) -> tuple[int, ...]:
    """Return the place of a message type in its file, or in the types around it from outside in."""
    found: list[int] = []
    while message is not None:
        around = message.containing_type
        beside = around.nested_types if around else message.file.message_types_by_name.values()
        found.append([each.full_name for each in beside].index(message.full_name))
        message = around
    return tuple(reversed(found))


def compiled(path: Path) -> bytes:
    """Return the FileDescriptorSet of a .proto file, whose imports lie in the same folder.

    Raises:
        TypedSchemaError: grpcio-tools is not installed, or the compiler refuses the file.
    """
    try:
        protoc = importlib.import_module("grpc_tools.protoc")
    except ImportError as error:
        raise TypedSchemaError(
            f"{path.name} has to be compiled, and grpcio-tools is not installed",
            hint=f"pip install grpcio-tools; or: {_PROTOC}",
        ) from error
    own = Path(str(protoc.__file__)).with_name("_proto")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.desc"
        arguments = [
            "protoc", f"-I{path.parent}", f"-I{own}", "--include_imports",
            f"--descriptor_set_out={out}", str(path),
        ]  # fmt: skip
        if protoc.main(arguments):
            raise TypedSchemaError(f"protoc refused {path.name}", hint="Its reasons stand above")
        return out.read_bytes()
