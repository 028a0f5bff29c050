"""Bloom filter of a message: a bitmap that tells at the queue which consumer groups may want it.

Every group that filters a topic owns `hash_count` bits of the bitmap; publishing sets those of the
groups whose expression matches. A group with a bit that is not set does not want the message; one
whose bits are all set probably does. The bitmap lies in the consume queue's extension, bit 0 being
the lowest bit of byte 0.

    error rate f %, n groups   hash_count = ceil(log2(100 / f)); bit_count = n * log2(100 / f) *
                               log2(e), rounded up to whole bytes
    a group's bits             from the first 64 bits of Murmur3 128 (x64, seed 0) of "group#topic"

Source: apache/rocketmq@rocketmq-all-4.9.8 filter/.../util/BloomFilter.java, BitsArray.java; Guava's
Hashing.murmur3_128
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

_MASK64: Final = (1 << 64) - 1
_MASK32: Final = (1 << 32) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F
_BLOCK_SIZE: Final = 16


class BloomBits(NamedTuple):
    """The bits of one group and topic; `mask` has them as a number in the bitmap's byte order."""

    bit_count: int
    positions: tuple[int, ...]
    mask: int


class BloomFilter:
    """The shape of all bitmaps of a broker."""

    def __init__(self, error_percent: int, group_count: int) -> None:
        """Derive the shape.

        Args:
            error_percent: how often a group may be wrongly taken to want a message, 1 to 99.
            group_count: groups that are expected to filter one topic.
        """
        error = error_percent / 100
        self.hash_count = math.ceil(math.log(error) / math.log(0.5))
        bits = group_count * (math.log(1 / error) / math.log(2)) * (math.log(math.e) / math.log(2))
        self.bit_count = 8 * math.ceil(math.ceil(bits) / 8)
        self.byte_count = self.bit_count // 8

    def bits_of(self, group: str, topic: str) -> BloomBits:
        """Return the bits that belong to a group in a topic."""
        first = murmur3_128(f"{group}#{topic}".encode())
        low, high = _signed32(first), _signed32(first >> 32)
        positions: list[int] = []
        for number in range(1, self.hash_count + 1):
            combined = _signed32(low + number * high)
            positions.append((~combined if combined < 0 else combined) % self.bit_count)
        mask = 0
        for position in positions:
            mask |= 1 << position
        return BloomBits(self.bit_count, tuple(positions), mask)


def murmur3_128(data: bytes, seed: int = 0) -> int:
    """Return the first 64 bits of the x64 variant's 128, unsigned."""
    first = second = seed
    whole = len(data) - len(data) % _BLOCK_SIZE
    for start in range(0, whole, _BLOCK_SIZE):
        first ^= _mix_first(int.from_bytes(data[start : start + 8], "little"))
        first = _rotated(first, 27) + second & _MASK64
        first = first * 5 + 0x52DCE729 & _MASK64
        second ^= _mix_second(int.from_bytes(data[start + 8 : start + 16], "little"))
        second = _rotated(second, 31) + first & _MASK64
        second = second * 5 + 0x38495AB5 & _MASK64
    tail = data[whole:]
    second ^= _mix_second(int.from_bytes(tail[8:], "little"))
    first ^= _mix_first(int.from_bytes(tail[:8], "little"))
    first ^= len(data)
    second ^= len(data)
    first = first + second & _MASK64
    second = second + first & _MASK64
    return _finished(first) + _finished(second) & _MASK64


def _mix_first(value: int) -> int:
    return _rotated(value * _C1 & _MASK64, 31) * _C2 & _MASK64


def _mix_second(value: int) -> int:
    return _rotated(value * _C2 & _MASK64, 33) * _C1 & _MASK64


def _finished(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK64
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK64
    return value ^ value >> 33


def _rotated(value: int, count: int) -> int:
    return (value << count | value >> 64 - count) & _MASK64


def _signed32(value: int) -> int:
    value &= _MASK32
    return value - (1 << 32) if value >> 31 else value
