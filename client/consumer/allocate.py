"""Dividing a topic's queues among the members of a group: the same table on every member.

Each member computes the whole division by itself, so all must sort alike and divide alike; Java
members use the same rule by default and may share a group with ours.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../consumer/rebalance/
AllocateMessageQueueAveragely.java
"""

from __future__ import annotations

from collections.abc import Sequence

from skylarkmq.protocol.message import MessageQueue


def allocate_averagely(
    queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
) -> list[MessageQueue]:
    """Return the queues of `client_id`: a run of neighbours, the first members one more.

    Args:
        queues: all queues of one topic, in any order.
        client_ids: all members, in any order; a client that is not among them gets nothing.
    """
    members = sorted(set(client_ids))
    if client_id not in members:
        return []
    index = members.index(client_id)
    share, rest = divmod(len(queues), len(members))
    start = index * share + min(index, rest)
    return sorted(queues)[start : start + share + (1 if index < rest else 0)]
