"""A message as an administrator finds it in a broker's store; it belongs to no consumer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from skylarkmq.client.admin.results import JsonValue, Result, as_json
from skylarkmq.client.namespace import Namespace
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.compression import decompress
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.message import MessageExt, MessageQueue

INFLATED_SIZE_MAX: Final = 16 * 1024 * 1024
JSON_NAMES: Final = (
    "topic", "origin_topic", "tags", "keys", "msg_id", "offset_msg_id", "queue", "queue_offset",
    "commit_log_offset", "born_at", "stored_at", "reconsume_times", "flag", "sys_flag", "size",
    "properties",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class StoredMessage(Result):
    """One stored copy. Its attributes are named as those of ReceivedMessage."""

    topic: str
    """Where it lies: for a dead letter `%DLQ%<group>`."""
    origin_topic: str
    """The topic it was sent to first, also for retries and dead letters."""
    queue: MessageQueue
    stored: MessageExt = field(repr=False)

    @property
    def body(self) -> bytes:
        """The body, decompressed if need be; each time anew.

        Raises:
            skylarkmq.protocol.errors.ProtocolError: it cannot be opened, opens to more than
                16 MiB, or the library for its format is not installed.
        """
        return decompress(self.stored.body, self.stored.sys_flag, INFLATED_SIZE_MAX)

    @property
    def tags(self) -> str | None:
        """Its tag."""
        return self.stored.tags

    @property
    def keys(self) -> str:
        """Its index keys, parted by blanks."""
        return self.stored.keys

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, the user's and RocketMQ's."""
        return self.stored.properties

    @property
    def msg_id(self) -> str:
        """The id that its producer gave; copies for retries keep it."""
        return self.stored.msg_id

    @property
    def offset_msg_id(self) -> str:
        """The broker's id of this copy: its address and the place in its log."""
        return self.stored.offset_msg_id

    @property
    def queue_offset(self) -> int:
        """Its number in the queue."""
        return self.stored.queue_offset

    @property
    def commit_log_offset(self) -> int:
        """The byte place in the broker's log."""
        return self.stored.physical_offset

    @property
    def born_at(self) -> datetime:
        """When it was sent, by the producer's clock; UTC."""
        return datetime.fromtimestamp(self.stored.born_timestamp / 1000, UTC)

    @property
    def stored_at(self) -> datetime:
        """When this copy was stored, by the broker's clock; UTC."""
        return datetime.fromtimestamp(self.stored.store_timestamp / 1000, UTC)

    @property
    def born_host(self) -> HostAddress:
        """Who sent it."""
        return self.stored.born_host

    @property
    def store_host(self) -> HostAddress:
        """Which broker stored it."""
        return self.stored.store_host

    @property
    def reconsume_times(self) -> int:
        """How many times a consumer handed it back."""
        return self.stored.reconsume_times

    @property
    def flag(self) -> int:
        """The user's flag."""
        return self.stored.flag

    @property
    def sys_flag(self) -> int:
        """RocketMQ's flag bits."""
        return self.stored.sys_flag

    @property
    def size(self) -> int:
        """Bytes of the stored record."""
        return self.stored.store_size

    def to_json(self) -> dict[str, JsonValue]:
        """Return everything but the body; add `as_json(message.body)` for that, base64."""
        return {name: as_json(getattr(self, name)) for name in JSON_NAMES}


def stored_message(message: MessageExt, broker_name: str, space: Namespace) -> StoredMessage:
    """Return a record that a broker gave, its topic as the application knows it."""
    topic = space.unwrap(message.topic)
    origin = space.unwrap(message.properties.get(names.RETRY_TOPIC, message.topic))
    queue = MessageQueue(topic, broker_name, message.queue_id)
    return StoredMessage(topic, origin, queue, message)
