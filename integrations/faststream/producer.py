"""How FastStream's publishes leave: through the SDK's producer."""

from __future__ import annotations

import logging
from typing import Any

from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import NOT_CONNECTED_YET, IncorrectState
from faststream.response import PublishCommand

from skylarkmq.client import (
    Message,
    MessageView,
    Producer,
    ReceivedMessage,
    ReplyNotDelivered,
    SendResult,
)
from skylarkmq.integrations.faststream.message import MessageParser, RocketMQMessage
from skylarkmq.integrations.faststream.response import RocketMQPublishCommand
from skylarkmq.protocol.properties import REPLY_TO_CLIENT

log = logging.getLogger(__name__)


class RocketMQProducer(ProducerProto[RocketMQPublishCommand]):
    """Sends what commands say."""

    def __init__(self, parser: Any, decoder: Any) -> None:
        default = MessageParser()
        self._parser = ParserComposition(parser, default.parse_message)
        self._decoder = ParserComposition(decoder, default.decode_message)
        self.codec: Any = DefaultCodec()
        self.serializer: Any = None
        self._producer: Producer | None = None

    def connect(self, producer: Producer | None, serializer: Any, codec: Any) -> None:
        """Take a started producer; None at the end."""
        self._producer = producer
        self.serializer = serializer
        self.codec = codec or DefaultCodec()

    async def publish(self, cmd: RocketMQPublishCommand) -> SendResult | None:
        """Send a message, or the answer to a request."""
        if cmd.request is None:
            return await self._connected.send(await self.message(cmd))
        body, content_type = await self.codec.encode(cmd.body, self.serializer)
        try:
            await self._connected.reply(cmd.request, body, properties=cmd.properties(content_type))
        except ReplyNotDelivered as error:
            # Nobody waits for it any more: another try of the handler would change nothing.
            log.warning("an answer was not delivered: %s", error)
        return None

    async def publish_batch(self, cmd: RocketMQPublishCommand) -> list[SendResult]:
        """Send messages to one queue: all are stored, or none."""
        return await self._connected.send_batch(await self.messages(cmd))

    async def request(self, cmd: RocketMQPublishCommand) -> MessageView:
        """Send a request and return the reply."""
        return await self._connected.request(await self.message(cmd), cmd.timeout)

    async def message(self, cmd: RocketMQPublishCommand) -> Message:
        """Return the encoded message."""
        return cmd.message(*await self.codec.encode(cmd.body, self.serializer))

    async def messages(self, cmd: RocketMQPublishCommand) -> list[Message]:
        """Return the encoded messages of a batch."""
        return [
            cmd.message(*await self.codec.encode(body, self.serializer))
            for body in cmd.batch_bodies
        ]

    @property
    def _connected(self) -> Producer:
        if self._producer is None:
            raise IncorrectState(NOT_CONNECTED_YET)
        return self._producer


class AnswerPublisher(FakePublisher):
    """Publishes what a handler returned for a message that asks for an answer."""

    def __init__(self, producer: ProducerProto[Any], message: RocketMQMessage) -> None:
        super().__init__(producer=producer)
        self._message = message

    def patch_command(self, cmd: PublishCommand) -> RocketMQPublishCommand:
        """Address the answer: to the client that asked, or to the topic that `reply_to` names."""
        answer = RocketMQPublishCommand.from_cmd(super().patch_command(cmd))
        raw = self._message.raw_message
        if isinstance(raw, ReceivedMessage) and is_request(raw):
            answer.request = raw
        else:
            answer.destination = self._message.reply_to
        return answer


def is_request(message: ReceivedMessage) -> bool:
    """Return whether `Producer.request` sent it."""
    return REPLY_TO_CLIENT in message.properties
