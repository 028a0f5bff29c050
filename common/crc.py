"""Checksums: the body CRC of RocketMQ's record, and the CRC-32C of the files that are ours alone.

A body's CRC is CRC-32 as zlib computes it with the top bit cleared, because it is a positive Java
int. It runs for each message. `crc32c` ends our own small control files and never runs for each
message: its library falls back to slow Python without a word where no compiler was at hand, which
`using_extension` tells for the start-up log.
Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../UtilAll.java (crc32)
"""

import importlib
import zlib
from collections.abc import Callable
from typing import Any, Final

BODY_CRC_MASK: Final = 0x7FFFFFFF

# crcmod carries no types. The inner module is named in full, because the package gives one of its
# functions the same name.
_predefined: Final[Any] = importlib.import_module("crcmod.predefined")
_engine: Final[Any] = importlib.import_module("crcmod.crcmod")
_crc32c: Final[Callable[[bytes], int]] = _predefined.mkPredefinedCrcFun("crc-32c")


def body_crc(data: bytes | bytearray | memoryview) -> int:
    """Return the checksum of a stored body, compressed or not; 0 for an empty one."""
    return zlib.crc32(data) & BODY_CRC_MASK


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32C (Castagnoli) of a few kilobytes at most."""
    return _crc32c(bytes(data))


def using_extension() -> bool:
    """Return whether `crc32c` runs compiled; in pure Python it is some 100 times slower."""
    return bool(_engine._usingExtension)
