"""Bit sets of offsets, as clients that confirm several messages at once write them."""

from __future__ import annotations

from collections.abc import Iterable


def bits_of(offsets: Iterable[int], start: int) -> bytes:
    """Return the bit set of offsets from `start` on, which none of them may be below."""
    number = 0
    for offset in offsets:
        number |= 1 << (offset - start)
    return number.to_bytes((number.bit_length() + 7) // 8, "little")
