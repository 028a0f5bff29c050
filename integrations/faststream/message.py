# pyright: reportPrivateUsage=false
"""A received message as FastStream hands it on, and how it is read.

body                FastStream's body
user's properties   headers; RocketMQ's own ones stay with `raw_message`
content-type, correlation_id, reply_to    properties of these names
REPLY_TO_CLIENT     of a request by `Producer.request`: the answer goes to that client alone
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import Any, Final

from faststream.message import StreamMessage, decode_message

from skylarkmq.client import MessageView, ReceivedMessage, RocketMQError
from skylarkmq.protocol import properties as names

log = logging.getLogger(__name__)

CONTENT_TYPE: Final = "content-type"
CORRELATION: Final = "correlation_id"
REPLY_TO: Final = "reply_to"
BATCH_DECODER: Final = "decode_batch"
"""FastStream knows a subscriber to batches by the name of its decoder."""

NO_HEADERS: Final = names.RESERVED_NAMES | {names.SHARDING_KEY}

Raw = MessageView | Sequence[ReceivedMessage]
"""One message (also a reply), or for a subscriber to batches those of one call."""


class RocketMQMessage(StreamMessage[Any]):
    """A message, or a batch. `raw_message` is the SDK's `ReceivedMessage`, or a list of them."""

    async def ack(self) -> None:
        """It is done."""
        if self.committed is None:
            for message in self._received:
                await message.ack()
        await super().ack()

    async def nack(
        self, delay_level: int | None = None, *, delay: float | timedelta | None = None
    ) -> None:
        """Let the group get it again after a while, see `ReceivedMessage.nack`.

        When no broker can be told, it comes again here, after some seconds.
        `raise NackMessage(delay=timedelta(minutes=1))` says the same in a handler.
        """
        if self.committed is None:
            for message in self._received:
                await _told(message, message.nack(delay_level, delay=delay))
        await super().nack()

    async def reject(self, reason: str | None = None) -> None:
        """Give it up: it goes to the group's dead letter topic.

        When no broker can be told, it comes again here, after some seconds.
        """
        if self.committed is None:
            for message in self._received:
                await _told(message, message.dead_letter(reason))
        await super().reject()

    @property
    def _received(self) -> Sequence[ReceivedMessage]:
        raw: Raw = self.raw_message
        if isinstance(raw, ReceivedMessage):
            return (raw,)
        return () if isinstance(raw, MessageView) else raw


async def _told(message: ReceivedMessage, telling: Awaitable[None]) -> None:
    try:
        await telling
    except RocketMQError as error:
        log.warning("%r comes again, for no broker was told of it: %s", message, error)
        await message._retry()


class MessageParser:
    """Reads messages one by one."""

    async def parse_message(self, message: MessageView) -> RocketMQMessage:
        """Return the message with its headers."""
        properties = message.properties
        asker = properties.get(names.REPLY_TO_CLIENT, "")
        return RocketMQMessage(
            raw_message=message,
            body=message.body,
            headers=headers_of(message),
            content_type=properties.get(CONTENT_TYPE),
            reply_to=asker or properties.get(REPLY_TO, ""),
            correlation_id=properties.get(CORRELATION) or properties.get(names.CORRELATION_ID),
            message_id=message.msg_id or None,
        )

    async def decode_message(self, msg: StreamMessage[Any]) -> Any:
        """Return the body as its content type says."""
        return decode_message(msg)


class BatchParser(MessageParser):
    """Reads the messages of a batch as one; the first one's headers stand for all."""

    async def parse_batch(self, messages: Sequence[ReceivedMessage]) -> RocketMQMessage:
        """Return one message whose body is the list of bodies."""
        batch = await self.parse_message(messages[0])
        return RocketMQMessage(
            raw_message=messages,
            body=[message.body for message in messages],
            headers=batch.headers,
            batch_headers=[headers_of(message) for message in messages],
            content_type=batch.content_type,
            reply_to=batch.reply_to,
            correlation_id=batch.correlation_id,
            message_id=batch.message_id,
        )

    async def decode_batch(self, msg: StreamMessage[Any]) -> list[Any]:
        """Return the bodies, each as its own content type says."""
        return [decode_message(await self.parse_message(message)) for message in msg.raw_message]


assert BatchParser.decode_batch.__name__ == BATCH_DECODER


def headers_of(message: MessageView) -> dict[str, str]:
    """Return the properties that are the user's."""
    return {name: value for name, value in message.properties.items() if name not in NO_HEADERS}
