"""Messages in, two columns out: `value`, what the bodies say, and `quarantine`, why they do not.

    body decoded       value a struct, quarantine null
    not decoded        value null, quarantine the reason; the row and its body stay as they are

A batch has the column `body`, as the source gives it with onCorruption=raw: unpacked as the SDK
unpacks, and as it is stored where that failed. With the columns `sysFlag` and `bodyCRC`, such a
body is known by its checksum, which is that of the stored bytes; so is one that was damaged. Bodies
have no other coding: neither the SDK nor RocketMQ's protocol encrypts them, and the system flag has
no bit for it.

In Spark's workers, one thread; a decoder may be used for any number of batches.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol
from zlib import crc32

import pyarrow as pa

from skylarkmq.client.message_view import OPENED_SIZE_MAX
from skylarkmq.common.crc import BODY_CRC_MASK
from skylarkmq.protocol.compression import decompress
from skylarkmq.protocol.errors import LocalProtocolError, RemoteProtocolError
from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.spark.typed.building import FAULTS, Reads, Take, builder, faulty, reason_of, spread
from skylarkmq.spark.typed.column_types import Field, Leaf, Struct, Type, TypedSchemaError
from skylarkmq.spark.typed.heads import NONE, guess
from skylarkmq.spark.typed.topic_schema import AVRO, JSON, PROTOBUF, TEXT, TopicSchema

VALUE: Final = "value"
QUARANTINE: Final = "quarantine"
TEXT_COLUMN: Final = "text"


class Bodies(Reads, Protocol):
    """A format: reads bodies into objects, and takes these apart."""

    @property
    def columns(self) -> Struct:
        """The fields of the column `value`."""
        ...

    @property
    def faults(self) -> tuple[type[Exception], ...]:
        """What `decode` raises for a body that is none of the format's or the schema's."""
        ...

    @property
    def decode(self) -> Callable[[bytes], Any]:
        """What makes the object of a body."""
        ...


class Decoded(NamedTuple):
    """A column each, as long as the batch."""

    value: pa.Array[Any]
    quarantine: pa.Array[Any]


class BodyDecoder:
    """Decodes batches by one schema."""

    def __init__(self, schema: TopicSchema) -> None:
        """Take the schema.

        Raises:
            TypedSchemaError: it is wrong, or its library is not installed.
        """
        self._bodies: Final = bodies_of(schema)
        self._name: Final = _NAMES[schema.format]
        self._has_head: Final = schema.head != NONE
        self._build: Final = builder(self._bodies.columns, self._bodies)

    @property
    def columns(self) -> Struct:
        """The fields of `value`."""
        return self._bodies.columns

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        """Return the columns of the batch's bodies."""
        bodies: list[Any] = batch.column("body").to_pylist()
        reasons = _stored_reasons(batch, bodies)
        found: list[Any] = []
        places: list[int] = []
        decode, faults = self._bodies.decode, self._bodies.faults
        for place, body in enumerate(bodies):
            if place in reasons:
                continue
            try:
                found.append(decode(body))
            except faults as error:
                reasons[place] = self._reason(body, error)
                continue
            places.append(place)
        try:
            value = self._build(found)
        except FAULTS:
            wrong = faulty(self._build, found)
            reasons |= {places[at]: f"{self._name}: {why}" for at, why in wrong.items()}
            value = self._build([each for at, each in enumerate(found) if at not in wrong])
        count = len(bodies)
        if reasons:
            value = spread(value, [place not in reasons for place in range(count)])
        texts = [reasons.get(place) for place in range(count)]
        return Decoded(value, pa.array(texts, pa.string()))

    def _reason(self, body: bytes, error: Exception) -> str:
        looks = "" if self._has_head else guess(body)
        return f"{self._name}: {reason_of(error)}" + (f"; {looks}" if looks else "")


def _stored_reasons(batch: pa.RecordBatch, bodies: list[bytes | None]) -> dict[int, str]:
    """Return the rows whose bodies are damaged, or could not be unpacked, and why."""
    reasons = {place: "there is no body" for place, body in enumerate(bodies) if body is None}
    names = batch.schema.names
    if "sysFlag" not in names or "bodyCRC" not in names:
        return reasons
    flags: list[Any] = batch.column("sysFlag").to_pylist()
    sums: list[Any] = batch.column("bodyCRC").to_pylist()
    for place, (body, flag, stored) in enumerate(zip(bodies, flags, sums, strict=True)):
        if body is None:
            continue
        packed = flag & MessageSysFlag.COMPRESSED_FLAG
        same = crc32(body) & BODY_CRC_MASK == stored
        if packed and same:
            reasons[place] = _why_packed(body, flag)
        elif not packed and not same:
            reasons[place] = "the body's checksum is wrong"
    return reasons


def _why_packed(body: bytes, flag: int) -> str:
    try:
        decompress(body, flag, OPENED_SIZE_MAX)
    except (LocalProtocolError, RemoteProtocolError) as error:
        return reason_of(error)
    return "the body was left compressed"


_NAMES: Final = {JSON: "JSON", AVRO: "Avro", PROTOBUF: "Protobuf", TEXT: "text"}
_CONFLUENT_SIZE: Final = 5


def bodies_of(schema: TopicSchema) -> Bodies:
    """Return the reader of the schema's format. Loads its library.

    Raises:
        TypedSchemaError: the schema is wrong, or the library is not installed.
    """
    if schema.format == TEXT:
        return TextBodies()
    if schema.format == JSON:
        return _json(schema)
    try:
        return _avro(schema) if schema.format == AVRO else _protobuf(schema)
    except ImportError as error:
        raise TypedSchemaError(
            f"{_NAMES[schema.format]} needs a library that is not here: {error}",
            hint="pip install 'skylarkmq[typed]'",
        ) from error


def _json(schema: TopicSchema) -> Bodies:
    from skylarkmq.spark.typed.json_bodies import JsonBodies

    return JsonBodies(schema.json_columns(), schema.head)


def _avro(schema: TopicSchema) -> Bodies:
    from skylarkmq.spark.typed.avro_bodies import AvroBodies

    return AvroBodies(schema.definition, schema.head, schema.writers)


def _protobuf(schema: TopicSchema) -> Bodies:
    from skylarkmq.spark.typed.protobuf_bodies import ProtobufBodies

    return ProtobufBodies(schema.descriptors, schema.message, schema.head)


class TextBodies:
    """Reads bodies that are UTF-8 into one column."""

    def __init__(self) -> None:
        self.columns: Final = Struct((Field(TEXT_COLUMN, Leaf("string")),))
        self.faults: Final = (UnicodeDecodeError,)
        self.decode: Final[Callable[[bytes], Any]] = lambda body: str(body, "utf-8")

    def field(self, struct: Struct, field: Field) -> Take:
        """Return what gives the texts, which are the column."""
        return lambda values: values

    def prepare(self, kind: Type) -> Take | None:
        """Return None: texts are as their column needs them."""
