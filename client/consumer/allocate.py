"""Strategies that divide a topic's queues among the members of a group.

Each member computes the whole division by itself, so all must sort and divide in the same way. The
strategies give the same queues as those of the Java client, so Java members may be in a group with
ours when both name the same strategy:

    ours                          Java's class                            its getName()
    "average" (default)           AllocateMessageQueueAveragely           AVG
    "circle"                      AllocateMessageQueueAveragelyByCircle   AVG_BY_CIRCLE
    "consistent_hash"             AllocateMessageQueueConsistentHash      CONSISTENT_HASH
    ConsistentHash(virtual_nodes) the same with another number of nodes

A function of the application divides in any other way, for instance by machine rooms.

Pure functions, no I/O.
Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../consumer/rebalance/ (the class of each name),
common/.../consistenthash/ConsistentHashRouter.java
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import Final, Literal, get_args

from skylarkmq.protocol.message import MessageQueue

Allocation = Callable[[Sequence[MessageQueue], Sequence[str], str], Sequence[MessageQueue]]
"""A strategy: all queues of one topic and all client ids, both sorted, and the client whose share
is wanted. It must give every queue to one member at most, on whichever member it runs."""

AllocationName = Literal["average", "circle", "consistent_hash"]
Assignment = AllocationName | Allocation

HASH_BYTES: Final = 4
"""The ring's positions are the first 32 bits of an MD5 sum."""


def allocate(
    strategy: Allocation,
    queues: Collection[MessageQueue],
    client_ids: Collection[str],
    client_id: str,
) -> list[MessageQueue]:
    """Return the share of `client_id`; queues that the topic does not have are left out.

    Args:
        queues: all queues of one topic, in any order.
        client_ids: all members, in any order; a client that is not among them gets nothing.
    """
    members = sorted(set(client_ids), key=_utf16)
    if client_id not in members or not queues:
        return []
    ordered = sorted(queues, key=lambda queue: (_utf16(queue.broker_name), queue.queue_id))
    known = set(ordered)
    return [queue for queue in strategy(ordered, members, client_id) if queue in known]


def find_allocation(assignment: Assignment) -> Allocation:
    """Return the strategy of a name, or the one that was given.

    Raises:
        ValueError: no strategy has that name.
    """
    if not isinstance(assignment, str):
        return assignment
    if assignment not in STRATEGIES:
        names = ", ".join(get_args(AllocationName))
        raise ValueError(f"assignment is one of {names}, or a strategy object, not {assignment!r}")
    return STRATEGIES[assignment]


def allocate_averagely(
    queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
) -> Sequence[MessageQueue]:
    """Give each member neighbouring queues; the first members get one more."""
    index = client_ids.index(client_id)
    share, rest = divmod(len(queues), len(client_ids))
    start = index * share + min(index, rest)
    return queues[start : start + share + (1 if index < rest else 0)]


def allocate_in_circle(
    queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
) -> Sequence[MessageQueue]:
    """Deal the queues out like cards, so that every member has some of every broker."""
    return queues[client_ids.index(client_id) :: len(client_ids)]


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """Places members and queues on a ring: a member that comes or goes moves few queues.

    Shares may differ much in size; more virtual nodes make them more even.
    """

    virtual_nodes: int = 10

    def __post_init__(self) -> None:
        if self.virtual_nodes < 1:
            raise ValueError("virtual_nodes is 1 or more")

    def __call__(
        self, queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
    ) -> Sequence[MessageQueue]:
        ring: dict[int, str] = {}
        for member in client_ids:
            for number in range(self.virtual_nodes):
                ring[_place(f"{member}-{number}")] = member
        places = sorted(ring)

        def owner(queue: MessageQueue) -> str:
            index = bisect_left(places, _place(_java_text(queue)))
            return ring[places[index if index < len(places) else 0]]

        return [queue for queue in queues if owner(queue) == client_id]


STRATEGIES: Final[dict[str, Allocation]] = {
    "average": allocate_averagely,
    "circle": allocate_in_circle,
    "consistent_hash": ConsistentHash(),
}
assert set(STRATEGIES) == set(get_args(AllocationName))


def _place(key: str) -> int:
    digest = md5(key.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:HASH_BYTES], "big")


def _java_text(queue: MessageQueue) -> str:
    """Return what Java's `MessageQueue.toString` gives, which is hashed."""
    topic, broker_name, queue_id = queue
    return f"MessageQueue [topic={topic}, brokerName={broker_name}, queueId={queue_id}]"


def _utf16(text: str) -> bytes:
    """Return a key that sorts as Java does, by UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")
