"""A message that reached this client outside a queue, to be read only: a reply, a half message."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from skylarkmq.protocol.compression import decompress
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.properties import SHARDING_KEY

OPENED_SIZE_MAX: Final = 16 * 1024 * 1024
"""A compressed body that opens to more is refused: four times RocketMQ's largest message."""


class MessageView:
    """The parts of a message by the names that a ReceivedMessage has for them. Immutable."""

    __slots__ = ("_body", "_message", "topic")

    def __init__(self, message: MessageExt, topic: str) -> None:
        self.topic = topic
        """Its topic, without the client's namespace."""
        self._message = message
        self._body: bytes | None = None

    @property
    def body(self) -> bytes:
        """The body, decompressed if need be.

        Raises:
            skylarkmq.protocol.errors.ProtocolError: it cannot be opened, opens to more than
                16 MiB, or the library for its format is not installed.
        """
        if self._body is None:
            self._body = decompress(self._message.body, self._message.sys_flag, OPENED_SIZE_MAX)
        return self._body

    @property
    def tags(self) -> str | None:
        """Its tag."""
        return self._message.tags

    @property
    def keys(self) -> str:
        """Its index keys, parted by blanks."""
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
    def msg_id(self) -> str:
        """The id that its producer gave."""
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
        """When it was sent, by the sender's clock; UTC."""
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
