"""Which queue a message group has; the numbers are those of Guava 32.0.1 on Java 17."""

from __future__ import annotations

from collections import Counter

import pytest

from skylarkmq.broker.grpc.queue_choice import consistent_hash, queue_of_group

BUCKETS = (1, 2, 3, 4, 8, 16, 1000, 65_536)
LONG = "z" * 62
GUAVA = [
    ("g", [0, 1, 1, 1, 1, 12, 223, 39_498]),
    ("g1", [0, 0, 0, 0, 6, 9, 290, 12_138]),
    ("order-42", [0, 0, 2, 3, 3, 10, 753, 52_608]),
    ("日本", [0, 0, 0, 0, 5, 8, 573, 5_287]),
    ("👍group", [0, 1, 1, 1, 1, 14, 176, 27_729]),
    ("fifo-group", [0, 1, 1, 1, 1, 11, 161, 45_496]),
    ("a b", [0, 0, 2, 2, 2, 2, 35, 5_303]),
    (LONG, [0, 1, 1, 1, 1, 1, 280, 54_031]),
    ("Aa", [0, 1, 1, 1, 5, 14, 234, 48_121]),
    ("polygenelubricants", [0, 1, 2, 2, 2, 2, 185, 39_408]),  # its hash is the least integer
]


@pytest.mark.parametrize(("group", "queues"), GUAVA)
def test_a_group_has_the_queue_that_rocketmqs_proxy_gives_it(group: str, queues: list[int]) -> None:
    assert [queue_of_group(group, count) for count in BUCKETS] == queues


def test_every_queue_gets_its_share_and_few_groups_move() -> None:
    groups = [f"group-{number}" for number in range(8000)]
    before = {group: queue_of_group(group, 8) for group in groups}
    assert all(abs(count - 1000) < 150 for count in Counter(before.values()).values())
    after = {group: queue_of_group(group, 9) for group in groups}
    moved = [group for group in groups if before[group] != after[group]]
    assert {after[group] for group in moved} == {8}
    assert 0.07 < len(moved) / len(groups) < 0.15


@pytest.mark.parametrize("key", [0, 1, -1, (1 << 63) - 1, -(1 << 63)])
def test_any_key_has_a_bucket(key: int) -> None:
    assert consistent_hash(key, 1) == 0
    assert 0 <= consistent_hash(key, 1 << 20) < 1 << 20
