"""What a handler returns, and what a publish asks for, with RocketMQ's own parts of a message."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Self, TypedDict, Unpack

from faststream.response import BatchPublishCommand, PublishCommand, PublishType, Response

from skylarkmq.client import Message, ReceivedMessage
from skylarkmq.common.settings import require_names
from skylarkmq.integrations.faststream.message import CONTENT_TYPE, CORRELATION, REPLY_TO


class MessageOptions(TypedDict, total=False):
    """Parts of a RocketMQ message, as in `skylarkmq.client.Message`."""

    tags: str | None
    keys: str | Iterable[str]
    sharding_key: str | None
    delay: float | timedelta | None
    delay_level: int
    deliver_at: datetime | None


class RocketMQResponse(Response):
    """What a handler returns to say more than the body, for instance `delay=`."""

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **options: Unpack[MessageOptions],
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.options = options

    def as_publish_command(self) -> RocketMQPublishCommand:
        """Return it as FastStream sends it."""
        return RocketMQPublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            _publish_type=PublishType.PUBLISH,
            options=self.options,
        )


class RocketMQPublishCommand(BatchPublishCommand):
    """One publish on its way through the middlewares."""

    def __init__(
        self,
        body: Any,
        /,
        *bodies: Any,
        _publish_type: PublishType,
        options: MessageOptions | None = None,
        timeout: float | timedelta = 3.0,
        **settings: Any,
    ) -> None:
        super().__init__(body, *bodies, _publish_type=_publish_type, **settings)
        self.options = options or MessageOptions()
        self.timeout = timeout
        self.request: ReceivedMessage | None = None
        """The request that it answers."""

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> Self:
        """Return the command of a handler's result as one of ours."""
        if isinstance(cmd, cls):
            return cmd
        body, extra = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *extra,
            destination=cmd.destination,
            reply_to=cmd.reply_to,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            _publish_type=cmd.publish_type,
        )

    def properties(self, content_type: str | None) -> dict[str, str]:
        """Return the message's properties: the headers, and what FastStream reads again."""
        texts = {name: str(value) for name, value in self.headers.items()}
        own = {CONTENT_TYPE: content_type, CORRELATION: self.correlation_id}
        own[REPLY_TO] = self.reply_to
        return texts | {name: value for name, value in own.items() if value}

    def message(self, body: bytes, content_type: str | None) -> Message:
        """Return the message to send."""
        properties = self.properties(content_type)
        try:
            return Message(self.destination, body, properties=properties, **self.options)
        except TypeError:
            require_names("a message", self.options, MessageOptions.__annotations__)
            raise
