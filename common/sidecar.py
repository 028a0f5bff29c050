"""Our own small files beside RocketMQ's: one framing with a magic, a version and a CRC-32C.

    position  size  field      type
    0         4     magic      b"SKMQ"
    4         2     version    uint16 BE   1
    6         2     kind       uint16 BE   which file this is, `Kind`
    8         4     size       uint32 BE   bytes of the payload
    12        size  payload    msgpack map
    12+size   4     crc        uint32 BE   CRC-32C of everything before it

Written whole by replacing the file, so a torn one is never seen; the CRC finds rot. The one that is
written in place (`flushed_offset.py`) is small enough for that.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from skylarkmq.common.crc import crc32c
from skylarkmq.common.errors import CorruptFileError
from skylarkmq.common.files import Files

T = TypeVar("T")

MAGIC: Final = b"SKMQ"
VERSION: Final = 1
HEAD = struct.Struct(">4sHHI")
CRC = struct.Struct(">I")
assert HEAD.size == 12


class Kind(IntEnum):
    """The files that use this framing."""

    PROFILE = 1
    RECOVERY_POINT = 2
    TIMER_CHECKPOINT = 3
    REMOVED_TOPICS = 4
    FLUSHED_OFFSET = 5
    TERMS = 6
    CUT_BACK = 7
    REPLICA = 8
    DELAY_HISTORY = 9


def encode_sidecar(kind: Kind, content: msgspec.Struct | dict[str, Any]) -> bytes:
    """Frame a map, or an object that is written as one."""
    payload = msgspec.msgpack.encode(content)
    return seal(HEAD.pack(MAGIC, VERSION, kind, len(payload)) + payload)


def seal(data: bytes) -> bytes:
    """Return head and payload, followed by their checksum."""
    return data + CRC.pack(crc32c(data))


def read_sidecar(files: Files, path: Path, kind: Kind, form: type[T]) -> T | None:
    """Return what a file holds, None when it is not there. Blocks.

    Args:
        form: what the map must be; members that it does not name are left out.

    Raises:
        CorruptFileError: it is no such file.
        OSError: the disk failed.
    """
    return _decoded(path, kind, files.read_all(path), form) if files.exists(path) else None


def decode_sidecar(path: Path, kind: Kind, data: bytes) -> dict[str, Any]:
    """Check the frame and return its map, whatever is in it.

    Raises:
        CorruptFileError: the bytes are not such a file, naming `path`.
    """
    return _decoded(path, kind, data, dict[str, Any])


def _decoded(path: Path, kind: Kind, data: bytes, form: type[T]) -> T:
    if len(data) < HEAD.size + CRC.size:
        raise CorruptFileError(path, len(data), "the file is too short")
    magic, version, found_kind, size = HEAD.unpack_from(data)
    if magic != MAGIC or found_kind != kind:
        raise CorruptFileError(path, 0, "this is another kind of file")
    if version != VERSION:
        raise CorruptFileError(path, 4, f"version {version} was written by a later release")
    if len(data) != HEAD.size + size + CRC.size:
        raise CorruptFileError(path, 8, f"payload of {size} bytes in a file of {len(data)}")
    if CRC.unpack_from(data, HEAD.size + size)[0] != crc32c(data[: HEAD.size + size]):
        raise CorruptFileError(path, HEAD.size + size, "the CRC-32C does not match")
    try:
        return msgspec.msgpack.decode(data[HEAD.size : HEAD.size + size], type=form)
    except msgspec.DecodeError as error:
        why = f"the payload is not a map as this file has it: {error}"
        raise CorruptFileError(path, HEAD.size, why) from error
