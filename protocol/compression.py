"""Compressed bodies: made by producers, opened by consumers; the broker looks at the first bytes.

    system flag & 0x700   format of the body when bit 0 is set too
    0x000                 zlib stream (RFC 1950), by clients from before the other formats
    0x100                 LZ4 frame
    0x200                 Zstandard frame
    0x300                 zlib stream

A zlib stream begins with two bytes whose first has 8 in its low half, and which are together a
multiple of 31 (RFC 1950); the frames of the others with a magic number of four.

zlib is always here. LZ4 and Zstandard come with the extra `compression` and are imported at their
first use. Opening is capped, because a few bytes can claim gigabytes.
Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../compression/CompressionType.java,
ZlibCompressor.java, Lz4Compressor.java, ZstdCompressor.java
"""

import importlib
import zlib
from enum import IntEnum
from typing import Any, Final

from skylarkmq.common.extras import how_to_install
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import LocalProtocolError, RemoteProtocolError
from skylarkmq.protocol.flags import MessageSysFlag

COMPRESSION_SHIFT: Final = 8
DEFAULT_LEVEL: Final = 5
"""The level of zlib and Zstandard that RocketMQ's producer uses; LZ4 has none there."""


class CompressionKind(IntEnum):
    """A format by its number in the system flag."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


assert CompressionKind.LZ4 << COMPRESSION_SHIFT == MessageSysFlag.COMPRESSION_LZ4_TYPE
assert CompressionKind.ZSTD << COMPRESSION_SHIFT == MessageSysFlag.COMPRESSION_ZSTD_TYPE
assert CompressionKind.ZLIB << COMPRESSION_SHIFT == MessageSysFlag.COMPRESSION_ZLIB_TYPE


_STARTS: Final[dict[int, bytes]] = {
    CompressionKind.LZ4: bytes.fromhex("04224d18"),
    CompressionKind.ZSTD: bytes.fromhex("28b52ffd"),
}


class CompressionUnavailableError(LocalProtocolError):
    """The library of a format is not installed; `extra` names what to install."""

    def __init__(self, kind: CompressionKind, extra: str = "compression") -> None:
        super().__init__(
            f"{kind.name} bodies need a library that is not here: {how_to_install(extra)}"
        )
        self.kind = kind
        self.extra = extra


def compression_flags(kind: CompressionKind) -> int:
    """Return the system flag bits that say: compressed, in this format."""
    return MessageSysFlag.COMPRESSED_FLAG | kind << COMPRESSION_SHIFT


def compress(
    body: bytes, kind: CompressionKind = CompressionKind.ZLIB, level: int = DEFAULT_LEVEL
) -> bytes:
    """Return the compressed body; the message then carries `compression_flags(kind)`.

    Raises:
        CompressionUnavailableError: the format's library is not installed.
    """
    if kind == CompressionKind.ZLIB:
        return zlib.compress(body, level)
    if kind == CompressionKind.LZ4:
        return bytes(_library(kind, "lz4.frame").compress(body))
    return bytes(_library(kind, "zstandard").ZstdCompressor(level=level).compress(body))


def looks_compressed(body: bytes | memoryview, sys_flag: int) -> bool:
    """Return whether a body begins as the format of its compressed message does.

    That is what a broker can tell of it without opening it; `sys_flag` has the compression bit.
    """
    number = (sys_flag & MessageSysFlag.COMPRESSION_MASK) >> COMPRESSION_SHIFT
    if number in (0, CompressionKind.ZLIB):
        return len(body) > 1 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0
    start = _STARTS.get(number)
    return start is not None and body[: len(start)] == start


def decompress(body: bytes, sys_flag: int, max_size: int) -> bytes:
    """Return the body as its producer wrote it; unchanged when `sys_flag` has no compression bit.

    Args:
        max_size: bytes that the result may have at most; it bounds the memory that a hostile body
            costs.

    Raises:
        RemoteProtocolError: MESSAGE_ILLEGAL; the body is damaged, cut, has bytes after its end,
            has an unknown format, or would become larger than `max_size`.
        CompressionUnavailableError: the format's library is not installed.
    """
    if not sys_flag & MessageSysFlag.COMPRESSED_FLAG:
        return body
    number = (sys_flag & MessageSysFlag.COMPRESSION_MASK) >> COMPRESSION_SHIFT
    if number in (0, CompressionKind.ZLIB):
        return _open_zlib(body, max_size)
    if number == CompressionKind.LZ4:
        return _open_lz4(body, max_size)
    if number == CompressionKind.ZSTD:
        return _open_zstd(body, max_size)
    raise _illegal(f"no compression format has number {number}")


def _open_zlib(body: bytes, max_size: int) -> bytes:
    decoder = zlib.decompressobj()
    try:
        opened = decoder.decompress(body, max_size + 1)
    except zlib.error as error:
        raise _illegal(f"the zlib body is damaged: {error}") from error
    return _checked(opened, max_size, decoder.eof, decoder.unused_data)


def _open_lz4(body: bytes, max_size: int) -> bytes:
    decoder = _library(CompressionKind.LZ4, "lz4.frame").LZ4FrameDecompressor()
    try:
        opened = bytes(decoder.decompress(body, max_length=max_size + 1))
    except (RuntimeError, ValueError, EOFError, MemoryError) as error:
        raise _illegal(f"the LZ4 body is damaged: {error}") from error
    return _checked(opened, max_size, decoder.eof, decoder.unused_data)


def _open_zstd(body: bytes, max_size: int) -> bytes:
    library = _library(CompressionKind.ZSTD, "zstandard")
    try:
        # A frame that names its size is unpacked into as much memory, so look at the name first.
        if library.frame_content_size(body) > max_size:
            raise _too_large(max_size)
        decoder = library.ZstdDecompressor()
        opened = bytes(
            decoder.decompress(body, max_output_size=max_size + 1, allow_extra_data=False)
        )
    except (library.ZstdError, ValueError, MemoryError) as error:
        raise _illegal(f"the Zstandard body is damaged or too large: {error}") from error
    return _checked(opened, max_size, True, b"")


def _checked(opened: bytes, max_size: int, ended: bool, unused: bytes | None) -> bytes:
    if len(opened) > max_size:
        raise _too_large(max_size)
    if not ended:
        raise _illegal("the compressed body is cut")
    if unused:
        raise _illegal(f"{len(unused)} bytes follow the compressed body")
    return opened


def _library(kind: CompressionKind, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CompressionUnavailableError(kind) from error


def _too_large(max_size: int) -> RemoteProtocolError:
    return _illegal(f"the compressed body holds more than {max_size} bytes")


def _illegal(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(ResponseCode.MESSAGE_ILLEGAL, why)
