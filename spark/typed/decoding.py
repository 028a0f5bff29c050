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
from skylarkmq.spark.typed.building import FAULTS, Build, Values, faulty, reason_of, spread
from skylarkmq.spark.typed.column_types import Field, Leaf, Struct
from skylarkmq.spark.typed.json_bodies import JsonBodies
from skylarkmq.spark.typed.topic_schema import TEXT, TopicSchema

VALUE: Final = "value"
QUARANTINE: Final = "quarantine"
TEXT_COLUMN: Final = "text"


class Bodies(Protocol):
    """A format: reads bodies into objects, and builds the column of these."""

    @property
    def name(self) -> str:
        """What reasons call the format."""
        ...

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

    @property
    def build(self) -> Build:
        """What makes the column of objects; it raises one of FAULTS for one that is wrong."""
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
            TypedSchemaError: it is wrong.
        """
        self._bodies: Final[Bodies] = (
            TextBodies() if schema.format == TEXT else JsonBodies(schema.json_columns())
        )

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
        name, build = self._bodies.name, self._bodies.build
        decode, faults = self._bodies.decode, self._bodies.faults
        for place, body in enumerate(bodies):
            if place in reasons:
                continue
            try:
                found.append(decode(body))
            except faults as error:
                reasons[place] = f"{name}: {reason_of(error)}"
                continue
            places.append(place)
        try:
            value = build(found)
        except FAULTS:
            wrong = faulty(build, found)
            reasons |= {places[at]: f"{name}: {why}" for at, why in wrong.items()}
            value = build([each for at, each in enumerate(found) if at not in wrong])
        count = len(bodies)
        if reasons:
            value = spread(value, [place not in reasons for place in range(count)])
        texts = [reasons.get(place) for place in range(count)]
        return Decoded(value, pa.array(texts, pa.string()))


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


class TextBodies:
    """Reads bodies that are UTF-8 into one column."""

    def __init__(self) -> None:
        self.name: Final = "text"
        self.columns: Final = Struct((Field(TEXT_COLUMN, Leaf("string")),))
        self.faults: Final = (UnicodeDecodeError,)
        self.decode: Final[Callable[[bytes], Any]] = lambda body: str(body, "utf-8")

    def build(self, texts: Values) -> pa.Array[Any]:
        """Return the column of texts."""
        return pa.StructArray.from_arrays([pa.array(texts, pa.string())], [TEXT_COLUMN])
