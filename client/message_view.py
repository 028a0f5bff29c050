"""Messages that came from a broker: read only, with the same names wherever they came from.

    MessageView            every message; a Reply and a HalfMessage are no more than that
      StoredMessage        a message of a queue: what PeekReader and Admin give
        ReceivedMessage    of a Consumer, which acknowledges it
        PoppedMessage      of a SimpleConsumer

`message_json.py` has the form of a stored message in JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from skylarkmq.client.errors import ProtocolError, UnreadableBody
from skylarkmq.client.message_json import BodyForm, JsonValue, message_json
from skylarkmq.client.namespace import Namespace
from skylarkmq.protocol.compression import CompressionUnavailableError, decompress
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.message import MessageExt, MessageQueue
from skylarkmq.protocol.properties import RETRY_TOPIC, SHARDING_KEY

OPENED_SIZE_MAX: Final = 16 * 1024 * 1024
"""A compressed body that opens to more is refused: four times RocketMQ's largest message."""


class MessageView:
    """What every message has. Not to be made or changed by users."""

    __slots__ = ("_body", "_made", "_topic")

    def __init__(self, message: MessageExt, topic: str) -> None:
        self._topic = topic
        self._made = message
        self._body: bytes | None = None

    @property
    def _message(self) -> MessageExt:
        return self._made

    @property
    def topic(self) -> str:
        """Its topic, without the client's namespace."""
        return self._topic

    @property
    def body(self) -> bytes:
        """The body, decompressed if need be.

        Raises:
            UnreadableBody: it cannot be opened, or opens to more than 16 MiB.
            ProtocolError: the library for its format is not installed here; it comes with the
                extra `compression`.
        """
        if self._body is None:
            message = self._message
            if message.sys_flag & MessageSysFlag.COMPRESSED_FLAG:
                try:
                    self._body = decompress(message.body, message.sys_flag, OPENED_SIZE_MAX)
                except CompressionUnavailableError as error:
                    text = f"the body of {self.msg_id} cannot be opened here: {error}"
                    raise ProtocolError(text) from error
                except RemoteProtocolError as error:
                    # Its checksum was compared when it came.
                    raise UnreadableBody(
                        f"the body of {self.msg_id} cannot be opened: {error}",
                        hint=f"Its checksum is right, so the producer at {self.born_host} sent it "
                        "so: it is flagged as compressed",
                    ) from error
            else:
                self._body = message.body
        return self._body

    @property
    def tags(self) -> str | None:
        """Its tag."""
        return self._message.tags

    @property
    def keys(self) -> str:
        """Its index keys, separated by blanks."""
        return self._message.keys

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, the user's and RocketMQ's."""
        return self._message.properties

    @property
    def sharding_key(self) -> str | None:
        """The key that chose its queue, if it travelled along."""
        return self._message.properties.get(SHARDING_KEY)

    @property
    def priority(self) -> int | None:
        """Its priority; None without one."""
        return self._message.priority

    @property
    def msg_id(self) -> str:
        """The id that its producer gave; the same on every retry."""
        return self._message.unique_key or ""

    @property
    def flag(self) -> int:
        """The user's flag."""
        return self._message.flag

    @property
    def sys_flag(self) -> int:
        """RocketMQ's flag bits."""
        return self._message.sys_flag

    @property
    def reconsume_times(self) -> int:
        """How many times it was handed back before."""
        return self._message.reconsume_times

    @property
    def born_at(self) -> datetime:
        """When it was sent, by its producer's clock; UTC."""
        return datetime.fromtimestamp(self._message.born_timestamp / 1000, UTC)

    @property
    def stored_at(self) -> datetime:
        """When the broker took it, by the broker's clock; UTC."""
        return datetime.fromtimestamp(self._message.store_timestamp / 1000, UTC)

    @property
    def born_host(self) -> HostAddress:
        """Who sent it."""
        return self._message.born_host

    @property
    def store_host(self) -> HostAddress:
        """Which broker took it."""
        return self._message.store_host

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.msg_id} of {self.topic}>"


class StoredMessage(MessageView):
    """A message as it is stored in a queue. Users do not make or change one."""

    __slots__ = ("_origin_topic", "_queue", "queue_offset", "size")

    def __init__(self, message: MessageExt, queue: MessageQueue, origin_topic: str) -> None:
        super().__init__(message, queue.topic)
        self._queue = queue
        self._origin_topic = origin_topic
        self.queue_offset: int = message.queue_offset
        """Its number in the queue."""
        self.size: int = message.store_size
        """Bytes of the stored record."""

    @property
    def queue(self) -> MessageQueue:
        """The queue that it lies in."""
        return self._queue

    @property
    def origin_topic(self) -> str:
        """The topic it was sent to first, also for retries and dead letters."""
        return self._origin_topic

    @property
    def msg_id(self) -> str:
        """The id that its producer gave, the same on every retry; without one `offset_msg_id`."""
        return self._message.msg_id

    @property
    def offset_msg_id(self) -> str:
        """The broker's id of this copy: its address and the place in its log."""
        return self._message.offset_msg_id

    @property
    def commit_log_offset(self) -> int:
        """The byte place in the broker's log."""
        return self._message.physical_offset

    @property
    def body_crc(self) -> int:
        """CRC-32 of the stored body, masked with 0x7FFFFFFF."""
        return self._message.body_crc

    @property
    def stored(self) -> MessageExt:
        """The record itself; its body is as it was stored, which may be compressed."""
        return self._message

    def to_json(self, body: BodyForm = "auto") -> dict[str, JsonValue]:
        """Return it as plain texts and numbers, by the same names as every command prints.

        Args:
            body: the form of the body. "auto": a value where it is a JSON object or list, else
                text, else base64.
        """
        return message_json(self, body)


def stored_message(message: MessageExt, broker_name: str, space: Namespace) -> StoredMessage:
    """Return a record that a broker gave, its topic as the application knows it."""
    topic = space.unwrap(message.topic)
    origin = space.unwrap(message.properties.get(RETRY_TOPIC, message.topic))
    return StoredMessage(message, MessageQueue(topic, broker_name, message.queue_id), origin)
