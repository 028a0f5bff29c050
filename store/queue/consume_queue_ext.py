"""Extension of a consume queue: what does not fit into its 20-byte units, addressed by them.

    consumequeue_ext/<topic>/<queueId>/<20 digits>    name: byte offset of the file's first unit

    position  size  field            type
    0         2     size             int16 BE   bytes of the whole unit; -1: the file ends here
    2         8     tags_code        int64 BE   what the queue unit would hold otherwise
    10        8     store_timestamp  int64 BE   ms since the epoch
    18        2     bitmap_size      int16 BE   bytes of the filter bitmap, 0 for none
    20        n     bitmap           which consumer groups' filters match; see `filtering.py`

With `enableConsumeQueueExt` a queue unit's tags code is an address: the unit's byte offset in the
extension plus Long.MIN, so at most Integer.MIN - 1, which no tag's hash reaches. A unit never spans
two files; at least 4 bytes of each stay free for the mark at its end.

Readers see tags codes alone: `LoadedQueues.units` puts them back into the units that it hands out.
Filters by properties look at bitmaps too. A unit that recovery writes again has none.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../ConsumeQueueExt.java
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from skylarkmq.store.queue.consume_queue import UNIT, UNIT_SIZE

EXT_UNIT: Final = struct.Struct(">hqqh")
EXT_UNIT_SIZE: Final = 20  # without a bitmap
EXT_UNIT_MAX: Final = 0x7FFF
assert EXT_UNIT.size == EXT_UNIT_SIZE
END_MARK: Final = b"\xff\xff"
END_ROOM: Final = 4  # bytes of a file that no unit takes

LONG_MIN: Final = -(1 << 63)
ADDRESS_MAX: Final = -(1 << 31) - 1
"""A tags code up to this is an address."""
OFFSET_MAX: Final = ADDRESS_MAX - LONG_MIN

_TAGS_CODE: Final = struct.Struct(">q")
_TAGS_CODE_POSITION: Final = 12
_SIZE: Final = struct.Struct(">h")

ReadExt = Callable[[int, int], bytes]  # (byte offset in the extension, size) -> up to so many bytes


class Bitmap(NamedTuple):
    """What the extension says of one queue unit."""

    place: int  # of the unit among those that were asked for
    store_timestamp: int  # ms
    bits: bytes  # never empty


def is_address(tags_code: int) -> bool:
    """Whether a queue unit's tags code is the address of an extension unit."""
    return tags_code <= ADDRESS_MAX


class ConsumeQueueExt:
    """The extension of one queue. Loop thread.

    written <= end_offset, both byte offsets; the tail holds what lies between them.
    """

    __slots__ = ("end_offset", "file_size", "folder", "tail", "written")

    def __init__(self, folder: Path, file_size: int) -> None:
        self.folder = folder
        self.file_size = file_size
        self.tail = bytearray()
        self.reset(0)

    def reset(self, offset: int) -> None:
        """Let the next unit lie at byte `offset` or behind it."""
        self.tail.clear()
        self.written = self.end_offset = offset

    def append(self, tags_code: int, store_timestamp: int, bitmap: bytes = b"") -> int:
        """Add a unit and return its address; the tags code itself when none can be had."""
        size = EXT_UNIT_SIZE + len(bitmap)
        room = self.file_size - self.end_offset % self.file_size
        if room - END_ROOM < size:
            if self.file_size - END_ROOM < size or size > EXT_UNIT_MAX:
                return tags_code
            self.tail += END_MARK[:room].ljust(room, b"\0")
            self.end_offset += room
        if self.end_offset + size > OFFSET_MAX or size > EXT_UNIT_MAX:
            return tags_code
        address = self.end_offset + LONG_MIN
        self.tail += EXT_UNIT.pack(size, tags_code, store_timestamp, len(bitmap))
        self.tail += bitmap
        self.end_offset += size
        return address

    def mark_written(self, offset: int) -> None:
        """Bytes below `offset` are in the files."""
        del self.tail[: offset - self.written]
        self.written = offset


def with_tags_codes(units: bytes, read: ReadExt) -> bytes:
    """Return queue units with tags codes in the place of addresses.

    An address whose unit cannot be read stays: whoever filters takes it for a match, and the
    client compares the tags themselves.
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


def bitmaps(units: bytes, read: ReadExt) -> Iterator[Bitmap]:
    """Yield the filter bitmaps of queue units as they lie in the file; many units have none."""
    begin, chunk = 0, b""
    for index, (_, _, address) in enumerate(UNIT.iter_unpack(units)):
        if address > ADDRESS_MAX:
            continue
        position = address - LONG_MIN - begin
        size = unit_size_at(chunk, position) if position >= 0 else 0
        if size <= 0 or position + size > len(chunk):
            begin, position = address - LONG_MIN, 0
            chunk = read(begin, max(EXT_UNIT_MAX, 2 * (len(units) - index * UNIT_SIZE)))
            size = unit_size_at(chunk, 0)
        if EXT_UNIT_SIZE < size <= len(chunk) - position:
            _, _, timestamp, bits_size = EXT_UNIT.unpack_from(chunk, position)
            start = position + EXT_UNIT_SIZE
            if 0 < bits_size <= size - EXT_UNIT_SIZE:
                yield Bitmap(index, timestamp, chunk[start : start + bits_size])


def tags_code_at(chunk: bytes, position: int) -> int | None:
    """The tags code of the unit at a position of a chunk, None if no unit stands there."""
    if len(chunk) - position < EXT_UNIT_SIZE:
        return None
    size, tags_code, _, _ = EXT_UNIT.unpack_from(chunk, position)
    return tags_code if size >= EXT_UNIT_SIZE else None


def unit_size_at(chunk: bytes, position: int) -> int:
    """Bytes of the unit at a position; 0 where nothing was written, negative at a file's end."""
    if len(chunk) - position < _SIZE.size:
        return 0
    size: int = _SIZE.unpack_from(chunk, position)[0]
    return size
