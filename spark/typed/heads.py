"""Bytes before a body's value that say which schema wrote it.

    name           bytes                                                             value from
    none           -                                                                 0
    confluent      0x00, schema id (int32 BE); Protobuf: then the message's indexes   5 and more
    single-object  0xC3 0x01, CRC-64-AVRO of the schema (uint64 LE)                  10

Indexes are zigzag varints: how many, then each place of a message type, in the file and in the
types around it; a single 0 stands for the first type of the file.
Source: Confluent's wire format (docs.confluent.io, "Wire Format"), Apache Avro 1.12 specification
("Single-object encoding")
"""

from __future__ import annotations

import struct
from typing import Final

NONE: Final = "none"
CONFLUENT: Final = "confluent"
SINGLE_OBJECT: Final = "single-object"
HEADS: Final = (NONE, CONFLUENT, SINGLE_OBJECT)

_CONFLUENT: Final = struct.Struct(">xI")
_SINGLE: Final = struct.Struct("<2xQ")
_SINGLE_MARK: Final = b"\xc3\x01"
_INDEXES_MAX: Final = 32
_VARINT_MAX: Final = 5
KNOWN_STARTS: Final = (
    (b"Obj\x01", "it is an Avro container file, which is no message"),
    (b"\x1f\x8b", "it begins like gzip: only what the system flag says is unpacked"),
    (_SINGLE_MARK, 'it begins like Avro\'s single-object encoding: "head": "single-object"'),
)


class HeadError(ValueError):
    """A body has not the head that its schema says."""


def confluent_id(body: bytes) -> int:
    """Return the schema id of a body with Confluent's head; its value begins at byte 5.

    Raises:
        HeadError: it has none.
    """
    if len(body) < _CONFLUENT.size or body[0]:
        raise HeadError("it has no Confluent head (a zero byte and the schema id, 5 bytes)")
    return int(_CONFLUENT.unpack_from(body)[0])


def without_confluent(body: bytes) -> memoryview:
    """Return what follows Confluent's head. Raises HeadError: there is none."""
    confluent_id(body)
    return memoryview(body)[_CONFLUENT.size :]


def fingerprint(body: bytes) -> int:
    """Return the fingerprint in the head of the single-object encoding; the value is at byte 10.

    Raises:
        HeadError: it has none.
    """
    if len(body) < _SINGLE.size or not body.startswith(_SINGLE_MARK):
        raise HeadError("it has no head of Avro's single-object encoding (0xC3 0x01)")
    return int(_SINGLE.unpack_from(body)[0])


def message_indexes(body: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes after Confluent's head of a Protobuf body, and where its value begins.

    Raises:
        HeadError: they are cut, or none.
    """
    count, at = _varint(body, _CONFLUENT.size)
    if count == 0:
        return (0,), at
    if not 0 < count <= _INDEXES_MAX:
        raise HeadError("the message indexes after its Confluent head are wrong")
    found: list[int] = []
    for _ in range(count):
        index, at = _varint(body, at)
        found.append(index)
    return tuple(found), at


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(body[at : at + _VARINT_MAX]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + place + 1
    raise HeadError("the message indexes after its Confluent head are cut")


def guess(body: bytes) -> str:
    """Return what a body that did not decode looks like by its first bytes, empty for nothing."""
    for start, what in KNOWN_STARTS:
        if body.startswith(start):
            return what
    if len(body) > _CONFLUENT.size and not body[0]:
        number = confluent_id(body)
        return f'it begins like a Confluent head of schema id {number}: "head": "confluent"'
    return ""
