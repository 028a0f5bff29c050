"""The bits of a group, as RocketMQ computes them."""

from __future__ import annotations

import pytest

from skylarkmq.broker.filter.bloom import BloomFilter


def test_the_known_group() -> None:
    bits = BloomFilter(20, 32).bits_of("CGSQL", "TopicTest")
    assert (bits.bit_count, bits.positions) == (112, (6, 92, 66))
    assert bits.mask == 1 << 6 | 1 << 92 | 1 << 66


# Printed by RocketMQ's BloomFilter (rocketmq-filter 4.9.7) for the text 组#topic-<f>x<n>.
@pytest.mark.parametrize(
    "row",
    [
        "12 100 448 4 89 19 320 274",
        "25 64 192 2 56 100",
        "3 9999 72984 6 43570 53820 379 19922 33518 13975",
        "50 3 8 1 0",
        "75 64 40 1 2",
        "7 7 40 4 20 29 16 33",
        "3 64 472 6 57 170 283 396 37 150",
        "2 9999 81416 6 79433 35296 39562 43828 48094 29055",
        "1 64 616 7 275 515 172 548 307 547 140",
        "50 7 16 1 9",
        "99 64 8 1 2",
        "25 3 16 2 2 8",
        "2 100 816 6 192 197 331 350 216 173",
        "12 3 16 4 9 12 0 13",
    ],
)
def test_shapes_and_positions_are_rocketmqs(row: str) -> None:
    error, count, bit_count, hash_count, *positions = map(int, row.split())
    bloom = BloomFilter(error, count)
    assert (bloom.bit_count, bloom.hash_count) == (bit_count, hash_count)
    assert bloom.byte_count * 8 == bit_count
    assert bloom.bits_of("组", f"topic-{error}x{count}").positions == tuple(positions)
