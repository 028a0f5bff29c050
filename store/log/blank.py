"""Bytes that were never written, told by blocks: byte by byte takes 500 times as long."""

from __future__ import annotations

from typing import Final

from skylarkmq.common.files import StoreFile

BLOCK_SIZE: Final = 1 << 20
_ZEROS: Final = bytes(BLOCK_SIZE)


def is_blank(data: bytes | memoryview) -> bool:
    """Whether all the bytes are zero."""
    return all(
        _ZEROS.startswith(data[start : start + BLOCK_SIZE])
        for start in range(0, len(data), BLOCK_SIZE)
    )


def first_written(file: StoreFile, position: int) -> int | None:
    """Place of the first byte from `position` on that is not zero; holes are not read. Blocks."""
    while (position := file.data_start(position)) < file.size:
        data = file.pread(BLOCK_SIZE, position)
        if not is_blank(data):
            return position + len(data) - len(data.lstrip(b"\0"))
        position += max(1, len(data))
    return None
