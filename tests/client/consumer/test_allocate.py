"""The averaging rule: Java's tables; every queue owned once, shares differ by one at most."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.client.consumer.allocate import allocate_averagely
from skylarkmq.protocol.message import MessageQueue


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("t", "broker-a", n) for n in range(count)]


# What AllocateMessageQueueAveragely gives for (queue count, member count): queue ids by member.
JAVA_TABLES = {
    (4, 1): [[0, 1, 2, 3]],
    (4, 2): [[0, 1], [2, 3]],
    (5, 2): [[0, 1, 2], [3, 4]],
    (8, 3): [[0, 1, 2], [3, 4, 5], [6, 7]],
    (10, 4): [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]],
    (3, 5): [[0], [1], [2], [], []],
    (1, 2): [[0], []],
    (0, 2): [[], []],
}


@pytest.mark.parametrize(("sizes", "table"), JAVA_TABLES.items())
def test_java_s_tables(sizes: tuple[int, int], table: list[list[int]]) -> None:
    queue_count, member_count = sizes
    members = [f"10.0.0.{n}@1#x" for n in range(member_count)]
    for member, expected in zip(members, table, strict=True):
        got = allocate_averagely(queues(queue_count), members, member)
        assert [queue.queue_id for queue in got] == expected


@given(
    st.lists(st.builds(MessageQueue, st.just("t"), st.text("ab", max_size=2), st.integers(0, 9)),
             unique=True),
    st.sets(st.text("abc1@#", min_size=1, max_size=6), min_size=1, max_size=8),
    st.randoms(),
)  # fmt: skip
def test_every_queue_has_one_owner_whatever_the_order(
    all_queues: list[MessageQueue], members: set[str], random: object
) -> None:
    shuffled = list(all_queues)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    shares = [allocate_averagely(shuffled, list(members), member) for member in sorted(members)]
    owned = [queue for share in shares for queue in share]
    assert owned == sorted(all_queues), "neighbours, in the order of the members"
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_who_is_not_in_the_group_gets_nothing() -> None:
    assert allocate_averagely(queues(4), ["a", "b"], "c") == []
    assert allocate_averagely(queues(4), [], "c") == []


def test_a_member_listed_twice_counts_once() -> None:
    assert len(allocate_averagely(queues(4), ["a", "b", "a"], "b")) == 2
