"""Which queue of a topic a message goes to.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/producer/TopicPublishInfo.java
(selectOneMessageQueue), client/.../producer/selector/SelectMessageQueueByHash.java
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from skylarkmq.client.errors import IllegalState
from skylarkmq.protocol.message import Message, MessageQueue
from skylarkmq.protocol.tags_code import java_string_hash

Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Gets the topic's writable queues and the message, returns one of the queues."""

TOPICS_MAX: Final = 4096


class RoundRobin:
    """Takes a topic's queues in turn, each topic from a random start."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._next: dict[str, int] = {}

    def select(
        self,
        topic: str,
        queues: Sequence[MessageQueue],
        accepts: Callable[[MessageQueue], bool],
    ) -> MessageQueue:
        """Return the next queue that `accepts` takes, or the next one when it takes none."""
        index = self._next.get(topic)
        if index is None:
            if len(self._next) >= TOPICS_MAX:
                self._next.clear()
            index = self._random.randrange(len(queues))
        count = len(queues)
        for step in range(count):
            if accepts(queues[(index + step) % count]):
                index += step
                break
        self._next[topic] = index + 1
        return queues[index % count]


def by_hash(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """Return the queue of `key`: the one that Java's SelectMessageQueueByHash takes."""
    code = java_string_hash(key)
    # Java's % keeps the sign of the hash and abs is taken afterwards.
    return queues[abs(code) % len(queues)]


def checked(selector: Selector, queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    """Return what the user's selector chose.

    Raises:
        IllegalState: that is none of the queues, or the selector failed.
    """
    try:
        chosen = selector(queues, message)
    except Exception as error:  # the user's code; the send ends with it, the producer goes on
        raise IllegalState(f"the selector failed: {error!r}") from error
    if chosen not in queues:
        raise IllegalState(f"the selector returned {chosen!r}, which is none of the queues")
    return chosen
