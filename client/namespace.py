"""Namespaces: tenants of one cluster, each with a prefix for its topics and groups.

    orders            ->  shop%orders
    %RETRY%billing    ->  %RETRY%shop%billing        and so dead letters
    TBW102, rmq_sys_* ->  unchanged: these names belong to the brokers

Names are wrapped where they come from the application and unwrapped where they go back to it; the
inside of the SDK knows wrapped names only. An empty namespace changes nothing.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/NamespaceUtil.java
"""

from __future__ import annotations

from typing import Final

from skylarkmq.protocol.flags import (
    CID_RMQ_SYS_PREFIX,
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    is_system_topic,
    validate_topic,
)
from skylarkmq.protocol.message import MessageQueue

SEPARATOR: Final = "%"
NAMESPACE_SIZE_MAX: Final = 64
"""Characters; a topic has 127 of them for all."""


class Namespace:
    """One namespace; false when it is the empty one. Works on topics and on groups alike."""

    __slots__ = ("_prefix", "name")

    def __init__(self, name: str | None) -> None:
        """Take the name; None and the empty text are no namespace.

        Raises:
            ValueError: a name that cannot be part of a topic.
        """
        self.name = name or ""
        if self.name:
            fault = validate_topic(self.name)
            if fault is None and SEPARATOR in self.name:
                fault = f"it contains {SEPARATOR}, which separates it from the topic"
            if fault is None and len(self.name) > NAMESPACE_SIZE_MAX:
                fault = f"it is longer than {NAMESPACE_SIZE_MAX} characters"
            if fault is not None:
                raise ValueError(f"{self.name[:NAMESPACE_SIZE_MAX]!a} is no namespace: {fault}")
        self._prefix = self.name + SEPARATOR

    def __bool__(self) -> bool:
        return self.name != ""

    def __repr__(self) -> str:
        return f"Namespace({self.name!r})"

    def wrap(self, name: str) -> str:
        """Return the topic or group as brokers know it; one that is wrapped already stays."""
        if not self.name or not name or _is_system(name):
            return name
        kind, rest = _split(name)
        return name if rest.startswith(self._prefix) else f"{kind}{self._prefix}{rest}"

    def unwrap(self, name: str) -> str:
        """Return the topic or group as the application knows it; a foreign one stays whole."""
        if not self.name or not name or _is_system(name):
            return name
        kind, rest = _split(name)
        return kind + rest[len(self._prefix) :] if rest.startswith(self._prefix) else name

    def holds(self, name: str) -> bool:
        """Return whether a topic or group, as brokers know it, belongs to this namespace.

        The empty namespace holds everything.
        """
        return not self.name or _split(name)[1].startswith(self._prefix)

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return the queue as brokers know it."""
        if not self.name:
            return queue
        return MessageQueue(self.wrap(queue.topic), queue.broker_name, queue.queue_id)

    def unwrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return the queue as the application knows it."""
        if not self.name:
            return queue
        return MessageQueue(self.unwrap(queue.topic), queue.broker_name, queue.queue_id)


def _split(name: str) -> tuple[str, str]:
    """Return the prefix of a retry or dead-letter topic, and the rest of the name."""
    for kind in (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX):
        if name.startswith(kind):
            return kind, name.removeprefix(kind)
    return "", name


def _is_system(name: str) -> bool:
    return is_system_topic(name) or name.startswith(CID_RMQ_SYS_PREFIX)
