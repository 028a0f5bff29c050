"""A message as an administrator finds it in a broker's store; it belongs to no consumer."""

from __future__ import annotations

from typing import Final

from skylarkmq.client.admin.results import JsonValue, Result, as_json
from skylarkmq.client.message_view import StoredView
from skylarkmq.client.namespace import Namespace
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.message import MessageExt, MessageQueue

JSON_NAMES: Final = (
    "topic", "origin_topic", "tags", "keys", "msg_id", "offset_msg_id", "queue", "queue_offset",
    "commit_log_offset", "born_at", "stored_at", "reconsume_times", "flag", "sys_flag", "size",
    "properties",
)  # fmt: skip


class StoredMessage(StoredView, Result):
    """One stored copy. Its attributes are named as those of ReceivedMessage."""

    __slots__ = ("origin_topic", "queue")

    def __init__(self, message: MessageExt, origin_topic: str, queue: MessageQueue) -> None:
        # `topic` is where it lies: for a dead letter `%DLQ%<group>`.
        super().__init__(message, queue.topic)
        self.origin_topic = origin_topic
        """The topic it was sent to first, also for retries and dead letters."""
        self.queue = queue
        """The queue that it lies in."""

    def to_json(self) -> dict[str, JsonValue]:
        """Return everything but the body; add `as_json(message.body)` for that, base64."""
        return {name: as_json(getattr(self, name)) for name in JSON_NAMES}


def stored_message(message: MessageExt, broker_name: str, space: Namespace) -> StoredMessage:
    """Return a record that a broker gave, its topic as the application knows it."""
    topic = space.unwrap(message.topic)
    origin = space.unwrap(message.properties.get(names.RETRY_TOPIC, message.topic))
    queue = MessageQueue(topic, broker_name, message.queue_id)
    return StoredMessage(message, origin, queue)
