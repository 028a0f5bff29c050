"""Dividing queues: the Java client's results, every queue owned once, shares that stay put."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.client.consumer.allocate import (
    STRATEGIES,
    Allocation,
    ConsistentHash,
    allocate,
    allocate_averagely,
    allocate_in_circle,
    find_allocation,
)
from skylarkmq.protocol.message import MessageQueue

GOLDEN = Path(__file__).parents[2] / "golden" / "golden-allocation.json"


def queues(count: int, topic: str = "t") -> list[MessageQueue]:
    return [MessageQueue(topic, "broker-a", n) for n in range(count)]


def room_of(name: str) -> str:
    return name.partition("@")[0]


def nearby(inner: Allocation) -> Allocation:
    """As a program may write it: each room divides its queues; those of an empty room all do."""

    def divide(
        queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
    ) -> Sequence[MessageQueue]:
        mine: list[MessageQueue] = []
        for room in sorted({room_of(queue.broker_name) for queue in queues}):
            here = [queue for queue in queues if room_of(queue.broker_name) == room]
            members = [one for one in client_ids if room_of(one) == room] or client_ids
            mine += inner(here, members, client_id) if client_id in members else []
        return mine

    return divide


def of_rooms(*rooms: str) -> Allocation:
    """As Java's AllocateMessageQueueByMachineRoom: other rooms' queues belong to nobody."""

    def divide(
        queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
    ) -> Sequence[MessageQueue]:
        names = {queue: queue.broker_name.rstrip("@").split("@") for queue in queues}
        here = [each for each in queues if len(names[each]) == 2 and names[each][0] in rooms]
        index, (share, rest) = client_ids.index(client_id), divmod(len(here), len(client_ids))
        mine = here[index * share : (index + 1) * share]
        return mine + ([here[share * len(client_ids) + index]] if index < rest else [])

    return divide


NAMED: dict[str, Allocation] = {
    **STRATEGIES,
    "consistent_hash_3": ConsistentHash(3),
    "rooms": of_rooms("room1", "room2"),
    "nearby_average": nearby(allocate_averagely),
    "nearby_circle": nearby(allocate_in_circle),
    "nearby_consistent_hash": nearby(ConsistentHash()),
}


@pytest.mark.parametrize(
    "case",
    json.loads(GOLDEN.read_text())["cases"],
    ids=lambda case: f"{case['strategy']}-{case['brokers'][0][1]}-{len(case['shares'])}",
)
def test_the_java_client_divides_alike(case: dict[str, Any]) -> None:
    every = [
        MessageQueue(case["topic"], name, n)
        for name, count in case["brokers"]
        for n in range(count)
    ]
    members = list(case["shares"])
    for member, expected in case["shares"].items():
        share = allocate(NAMED[case["strategy"]], every[::-1], members[::-1], member)
        by_broker: dict[str, list[int]] = {}
        for queue in sorted(share):
            by_broker.setdefault(queue.broker_name, []).append(queue.queue_id)
        assert by_broker == expected


# What AllocateMessageQueueAveragely gives for (queue count, member count): queue ids by member.
JAVA_TABLES = {
    (4, 1): [[0, 1, 2, 3]],
    (5, 2): [[0, 1, 2], [3, 4]],
    (10, 4): [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]],
    (3, 5): [[0], [1], [2], [], []],
    (0, 2): [[], []],
}


@pytest.mark.parametrize(("sizes", "table"), JAVA_TABLES.items())
def test_averages(sizes: tuple[int, int], table: list[list[int]]) -> None:
    queue_count, member_count = sizes
    members = [f"10.0.0.{n}@1#x" for n in range(member_count)]
    for member, expected in zip(members, table, strict=True):
        got = allocate(allocate_averagely, queues(queue_count), members, member)
        assert [queue.queue_id for queue in got] == expected


QUEUE_LISTS = st.lists(
    st.builds(MessageQueue, st.just("t"), st.sampled_from(["r1@b", "r2@b"]), st.integers(0, 9)),
    unique=True,
)
MEMBERS = st.sets(
    st.builds("{}@{}".format, st.sampled_from(["r1", "r3"]), st.integers(0, 9)),
    min_size=1, max_size=8,
)  # fmt: skip


@pytest.mark.parametrize("name", [name for name in NAMED if name != "rooms"])
@given(every=QUEUE_LISTS, members=MEMBERS, random=st.randoms())
def test_every_queue_has_one_owner_whatever_the_order(
    name: str, every: list[MessageQueue], members: set[str], random: Any
) -> None:
    shuffled = list(every)
    random.shuffle(shuffled)
    shares = [allocate(NAMED[name], shuffled, list(members), member) for member in sorted(members)]
    assert sorted(queue for share in shares for queue in share) == sorted(every)
    if name in ("average", "circle"):
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes, reverse=True)


def test_who_is_not_in_the_group_gets_nothing_and_who_is_twice_counts_once() -> None:
    for strategy in STRATEGIES.values():
        assert allocate(strategy, queues(4), ["a", "b"], "c") == []
        assert allocate(strategy, queues(4), [], "c") == []
    assert len(allocate(allocate_averagely, queues(4), ["a", "b", "a"], "b")) == 2


def test_ids_sort_as_in_java_by_utf_16() -> None:
    astral, private = "\N{GRINNING FACE}", "\ue000"
    assert astral > private, "by code point"
    assert allocate(allocate_averagely, queues(1), [astral, private], astral) == queues(1)


def test_a_member_that_leaves_moves_only_its_own_queues_on_the_ring() -> None:
    members = [f"192.0.2.{n}@7" for n in range(5)]
    before = {m: set(allocate(ConsistentHash(), queues(64), members, m)) for m in members}
    for member in members[1:]:
        assert before[member] <= set(allocate(ConsistentHash(), queues(64), members[1:], member)), (
            "what a remaining member had stays"
        )


def test_names_and_wrong_settings() -> None:
    assert find_allocation("circle") is allocate_in_circle
    assert find_allocation(allocate_averagely) is allocate_averagely
    with pytest.raises(ValueError, match="average, circle, consistent_hash"):
        find_allocation("averagely")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="virtual_nodes"):
        ConsistentHash(0)
