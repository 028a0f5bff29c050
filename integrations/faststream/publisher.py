"""A publisher: sends what a handler returns, or what it is given, to one topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Unpack

from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.types import PublisherMiddleware
from faststream.response import PublishCommand, PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, PublisherSpec

from skylarkmq.client import SendResult
from skylarkmq.integrations.faststream.config import (
    BrokerSettings,
    PublisherConfig,
    PublisherDocs,
)
from skylarkmq.integrations.faststream.message import RocketMQMessage
from skylarkmq.integrations.faststream.response import MessageOptions, RocketMQPublishCommand


class TopicPublisher(PublisherUsecase):
    """Publishes to one topic."""

    _outer_config: BrokerSettings

    def __init__(
        self, config: PublisherConfig, specification: PublisherSpecification[Any, Any]
    ) -> None:
        super().__init__(config, specification)
        self._topic = config.topic
        self._headers = dict(config.headers)
        self._options = config.options

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of its routers."""
        return self._outer_config.prefix + self._topic

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Unpack[MessageOptions],
    ) -> SendResult | None:
        """Send a message."""
        command = RocketMQPublishCommand(
            message,
            destination=topic or self.topic,
            headers=self._headers | dict(headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            reply_to=reply_to,
            options=self._options | options,
            _publish_type=PublishType.PUBLISH,
        )
        sent: SendResult | None = await self._basic_publish(
            command, producer=self._outer_config.producer, _extra_middlewares=()
        )
        return sent

    async def request(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        timeout: float | timedelta = 3.0,  # noqa: ASYNC109
        **options: Unpack[MessageOptions],
    ) -> RocketMQMessage:
        """Send a request and return its reply; see `Producer.request`."""
        command = RocketMQPublishCommand(
            message,
            destination=topic or self.topic,
            headers=self._headers | dict(headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            options=self._options | options,
            timeout=timeout,
            _publish_type=PublishType.REQUEST,
        )
        reply: RocketMQMessage = await self._basic_request(
            command, producer=self._outer_config.producer
        )
        return reply

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        """Send what a handler returned."""
        command = RocketMQPublishCommand.from_cmd(cmd)
        command.destination = self.topic
        command.options = self._options | command.options
        command.add_headers(self._headers, override=False)
        await self._basic_publish(
            command,
            producer=self._outer_config.producer,
            _extra_middlewares=_extra_middlewares,
        )


class PublisherChannel(PublisherSpecification[BrokerSettings, PublisherDocs]):
    """A publisher in AsyncAPI, which has no bindings for RocketMQ."""

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of its routers."""
        return self._outer_config.prefix + self.config.topic

    @property
    def name(self) -> str:
        """What its channel is called."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return its channel."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        message = MessageSpec(title=f"{self.name}:Message", payload=payload)
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }
