"""Which topic and group stand for which AMQP queue and exchange.

    AMQP                                      here
    queue `celery`                            topic `celery`, consumed by group `kombu-celery`
    fanout exchange `news`                    topic `exchange|news`; each queue that is bound to it
                                              is a group of that topic, and gets all
    other exchange, queues declared here      the topics of the queues that are bound
    other exchange, default exchange,         topic `exchange|NAME`, tag: the routing key
      queues not known here
    queue that goes with its connection       no topic and no group: a reader of the exchanges'
      (auto_delete or exclusive)              topics, by tag, from now on

Names keep letters, digits, `-` and `_`; any other byte of their UTF-8 is `|` and two hex digits, so
`celery@host` is `celery|40host`. `queue_of` undoes it.
"""

from __future__ import annotations

import re
from typing import Final

from skylarkmq.protocol.flags import validate_topic

PLAIN: Final = re.compile(rb"[^a-zA-Z0-9_-]")
MASKED: Final = re.compile(rb"\|([0-9A-F]{2})")
EXCHANGE: Final = "exchange|"
"""Begins an exchange's topic; no queue's, for `|` stands before two digits there."""
DEFAULT_EXCHANGE: Final = "default"


def encoded(name: str) -> str:
    """Return the name with what RocketMQ does not allow masked."""
    return PLAIN.sub(lambda found: b"|%02X" % found[0][0], name.encode()).decode()


def queue_of(topic: str) -> str:
    """Return the queue that `topic_of` gave this topic."""
    return MASKED.sub(lambda found: bytes([int(found[1], 16)]), topic.encode()).decode()


def topic_of(queue: str) -> str:
    """Return the topic of a queue.

    Raises:
        ValueError: the name is empty, or too long.
    """
    return _checked(encoded(queue), queue)


def exchange_topic(exchange: str) -> str:
    """Return the topic of an exchange; the one without a name is the default exchange.

    Raises:
        ValueError: the name is too long.
    """
    return _checked(EXCHANGE + (encoded(exchange) or DEFAULT_EXCHANGE), exchange)


def group_of(queue: str) -> str:
    """Return the consumer group of a queue."""
    return f"kombu-{topic_of(queue)}"


def _checked(topic: str, name: str) -> str:
    if (reason := validate_topic(topic)) is not None:
        raise ValueError(f"{name!r} cannot be a queue or an exchange here: {reason}")
    return topic
