"""Which queue a message goes to, where the broker chooses it.

    with a message group   the group's queue, by Java's hash of it and Guava's consistent hash, as
                           RocketMQ 5's proxy: a group keeps its queue, and of n queues one group in
                           n moves when another one is added
    without                one after the other

Clients send a queue id that they have made of the group by another hash. It does not matter, so the
messages of a group lie in one queue, whatever client has sent them.

Source: apache/rocketmq@rocketmq-all-5.3.3 proxy/.../grpc/v2/producer/SendMessageActivity.java
(SendMessageQueueSelector); google/guava com/google/common/hash/Hashing.java (consistentHash)
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.protocol.tags_code import java_string_hash

_MULTIPLIER: Final = 2_862_933_555_777_941_757
_MASK: Final = (1 << 64) - 1
_SHIFT: Final = 33
_SCALE: Final = float(1 << 31)


def consistent_hash(key: int, buckets: int) -> int:
    """Return the bucket of a key, from 0 on.

    Args:
        key: of 64 bits, signed.
        buckets: at least 1.
    """
    state, candidate = key & _MASK, 0
    while True:
        state = (_MULTIPLIER * state + 1) & _MASK
        following = int((candidate + 1) / (((state >> _SHIFT) + 1) / _SCALE))
        if following >= buckets:
            return candidate
        candidate = following


@lru_cache(maxsize=4096)
def queue_of_group(group: str, queue_count: int) -> int:
    """Return the queue of a message group among so many write queues."""
    return consistent_hash(java_string_hash(group), queue_count)


class QueueChoice:
    """Chooses queues. Loop thread."""

    __slots__ = ("_next",)

    def __init__(self, topics: TopicConfigManager) -> None:
        self._next: dict[str, int] = {}  # by topic, of those that there are
        topics.add_deletion_listener(self._forget)

    def choose(self, topic: str, group: str, queue_count: int) -> int:
        """Return the queue of a message.

        Args:
            group: empty for a message without one.
            queue_count: the topic's write queues, at least 1.
        """
        if group:
            return queue_of_group(group, queue_count)
        number = self._next.get(topic, 0)
        self._next[topic] = number + 1
        return number % queue_count

    def _forget(self, topic: str) -> None:
        self._next.pop(topic, None)
