"""Strategies that divide a topic's queues among the members of a group.

Each member computes the whole division by itself, so all must sort and divide in the same way. The
strategies give the same queues as those of the Java client, so Java members may be in a group with
ours when both name the same strategy:

    ours                          Java's class                            its getName()
    "average" (default)           AllocateMessageQueueAveragely           AVG
    "circle"                      AllocateMessageQueueAveragelyByCircle   AVG_BY_CIRCLE
    "consistent_hash"             AllocateMessageQueueConsistentHash      CONSISTENT_HASH
    ConsistentHash(virtual_nodes) the same with another number of nodes
    Configured(queues)            AllocateMessageQueueByConfig            CONFIG
    MachineRooms(rooms)           AllocateMessageQueueByMachineRoom       MACHINE_ROOM
    NearbyRooms(...)              AllocateMachineRoomNearby               MACHINE_ROOM_NEARBY-...

Pure functions, no I/O.
Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../consumer/rebalance/ (the class of each name),
common/.../consistenthash/ConsistentHashRouter.java
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from hashlib import md5
from typing import Final, Literal, get_args

from skylarkmq.protocol.flags import is_retry_topic
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


@dataclass(frozen=True, slots=True, init=False)
class Configured:
    """This member owns these queues and no others; that each has one owner is not checked.

    Unlike RocketMQ: the group's retry topic is divided by averages, because otherwise no member
    would receive the messages that were handed back for another try.
    """

    queues: frozenset[MessageQueue]

    def __init__(self, queues: Collection[MessageQueue]) -> None:
        object.__setattr__(self, "queues", frozenset(queues))

    def __call__(
        self, queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
    ) -> Sequence[MessageQueue]:
        if is_retry_topic(queues[0].topic):
            return allocate_averagely(queues, client_ids, client_id)
        return [queue for queue in queues if queue in self.queues]


@dataclass(frozen=True, slots=True, init=False)
class MachineRooms:
    """Divides only the queues of brokers named `<room>@<name>` whose room is one of `rooms`."""

    rooms: frozenset[str]

    def __init__(self, rooms: Collection[str]) -> None:
        if isinstance(rooms, str):
            raise TypeError("rooms is a collection of names")
        object.__setattr__(self, "rooms", frozenset(rooms))

    def __call__(
        self, queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
    ) -> Sequence[MessageQueue]:
        here = [queue for queue in queues if self._has(queue.broker_name)]
        index = client_ids.index(client_id)
        share, rest = divmod(len(here), len(client_ids))
        mine = here[index * share : (index + 1) * share]
        # Unlike `allocate_averagely`: the queues that remain are dealt out from the end.
        return mine + ([here[share * len(client_ids) + index]] if index < rest else [])

    def _has(self, broker_name: str) -> bool:
        parts = broker_name.rstrip("@").split("@")
        return len(parts) == 2 and parts[0] in self.rooms


@dataclass(frozen=True, slots=True)
class NearbyRooms:
    """Gives a queue to the members in the machine room of its broker, or to all if there are none.

    Attributes:
        broker_room: the room of a queue's broker, for instance from the broker's name.
        client_room: the room of a client, from its id (`<ip>@<instance name>`).
        inner: how the members of one room divide.
    """

    broker_room: Callable[[MessageQueue], str]
    client_room: Callable[[str], str]
    inner: Allocation = field(default=allocate_averagely)

    def __call__(
        self, queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
    ) -> Sequence[MessageQueue]:
        """Return the share of `client_id`.

        Raises:
            ValueError: a queue or a client has no room.
        """
        queues_of: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_of.setdefault(_room(self.broker_room(queue), queue), []).append(queue)
        clients_of: dict[str, list[str]] = {}
        for member in client_ids:
            clients_of.setdefault(_room(self.client_room(member), member), []).append(member)
        mine: list[MessageQueue] = []
        for room in sorted(queues_of):
            neighbours = clients_of.get(room, client_ids)
            if client_id in neighbours:
                mine += self.inner(queues_of[room], neighbours, client_id)
        return mine


STRATEGIES: Final[dict[str, Allocation]] = {
    "average": allocate_averagely,
    "circle": allocate_in_circle,
    "consistent_hash": ConsistentHash(),
}
assert set(STRATEGIES) == set(get_args(AllocationName))


def _room(name: str, whose: object) -> str:
    if not name:
        raise ValueError(f"{whose} has no machine room")
    return name


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
