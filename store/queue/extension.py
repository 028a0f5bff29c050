"""The extension of a consume queue, which RocketMQ writes with `enableConsumeQueueExt`; read only.

    consumequeue_ext/<topic>/<queueId>/<20 digits>    name: byte offset of the file's first unit

    position  size  field            type
    0         2     size             int16 BE   bytes of the whole unit; -1: the file ends here
    2         8     tags_code        int64 BE   what the queue unit would hold otherwise
    10        8     store_timestamp  int64 BE   ms since the epoch
    18        2     bitmap_size      int16 BE   bytes of the filter bitmap, 0 for none
    20        n     bitmap           which consumer groups' filters match; not read here

A queue unit's tags code is an address then: the unit's byte offset in the extension plus Long.MIN,
so at most Integer.MIN - 1, which no tag's hash reaches. A unit never spans two files.

Unlike RocketMQ, this broker writes no extensions: its own units have their tags codes. A store that
has extensions is read as it is, and readers see tags codes only (`QueueTable.units`).

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../ConsumeQueueExt.java
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Final

from skylarkmq.store.queue.consume_queue import UNIT, UNIT_SIZE
from skylarkmq.store.queue.queue_files import HandleCache, path_of

EXT_UNIT: Final = struct.Struct(">hqqh")
EXT_UNIT_SIZE: Final = 20  # without a bitmap
EXT_UNIT_MAX: Final = 0x7FFF
assert EXT_UNIT.size == EXT_UNIT_SIZE

LONG_MIN: Final = -(1 << 63)
ADDRESS_MAX: Final = -(1 << 31) - 1
"""A tags code up to this is an address."""

_TAGS_CODE: Final = struct.Struct(">q")
_TAGS_CODE_POSITION: Final = 12

ReadExt = Callable[[int, int], bytes]  # (byte offset in the extension, size) -> up to so many bytes


def is_address(tags_code: int) -> bool:
    """Return whether a queue unit's tags code is the address of an extension unit."""
    return tags_code <= ADDRESS_MAX


class Extension:
    """The files of one queue's extension. Loop thread."""

    __slots__ = ("_starts", "end", "folder")

    def __init__(self, folder: Path, starts: list[int], end: int) -> None:
        """Note what a load has found.

        Args:
            starts: the byte offsets at which the files begin, in order; at least one.
            end: no unit of the queue from this number on has an address.
        """
        self.folder = folder
        self._starts = starts
        self.end = end

    @property
    def paths(self) -> list[Path]:
        return [path_of(self.folder, start) for start in self._starts]

    def read(self, handles: HandleCache, position: int, size: int) -> bytes:
        """Return bytes from a byte offset on; fewer at the end of a file, none where none is."""
        start = self._starts[max(0, bisect_right(self._starts, position) - 1)]
        if position < start:
            return b""
        try:
            return handles.get(path_of(self.folder, start)).pread(size, position - start)
        except FileNotFoundError:
            return b""


def with_tags_codes(units: bytes, read: ReadExt) -> bytes:
    """Return queue units with tags codes in the place of addresses.

    An address whose unit cannot be read stays: a filter takes it for a match, and the client
    compares the tags themselves.
    """
    result: bytearray | None = None
    begin, chunk = 0, b""
    for index, (_, _, address) in enumerate(UNIT.iter_unpack(units)):
        if address > ADDRESS_MAX:
            continue
        position = address - LONG_MIN - begin
        if not 0 <= position <= len(chunk) - EXT_UNIT_SIZE:
            begin, position = address - LONG_MIN, 0
            chunk = read(begin, len(units) - index * UNIT_SIZE)
        tags_code = tags_code_at(chunk, position)
        if tags_code is not None:
            result = result or bytearray(units)
            _TAGS_CODE.pack_into(result, index * UNIT_SIZE + _TAGS_CODE_POSITION, tags_code)
    return units if result is None else bytes(result)


def tags_code_at(chunk: bytes, position: int) -> int | None:
    """Return the tags code of the unit at a position of a chunk, None if no unit stands there."""
    if len(chunk) - position < EXT_UNIT_SIZE:
        return None
    size, tags_code, _, _ = EXT_UNIT.unpack_from(chunk, position)
    return tags_code if size >= EXT_UNIT_SIZE else None
