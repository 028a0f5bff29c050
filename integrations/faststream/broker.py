# pyright: reportPrivateUsage=false, reportIncompatibleMethodOverride=false
"""The broker object of a FastStream application: the connection, its producer, its subscribers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, TypedDict, Unpack, cast

from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.types import IdGenerator
from faststream.exceptions import SetupError
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response import PublishType
from faststream.security import BaseSecurity, SASLPlaintext
from faststream.specification.schema import BrokerSpec

from skylarkmq.client import Admin, Client, Consumer, Credentials, Producer, SendResult
from skylarkmq.client.config import default_namesrv_addr
from skylarkmq.client.errors import RocketMQError
from skylarkmq.common.settings import seconds_or_none
from skylarkmq.integrations.faststream.config import BrokerSettings, logger_state, require_known
from skylarkmq.integrations.faststream.message import RocketMQMessage
from skylarkmq.integrations.faststream.producer import RocketMQProducer
from skylarkmq.integrations.faststream.registrator import RocketMQRegistrator
from skylarkmq.integrations.faststream.response import MessageOptions, RocketMQPublishCommand


class BrokerOptions(TypedDict, total=False):
    """FastStream's own options of a broker; its documentation says what each does."""

    parser: Any
    decoder: Any
    codec: Any
    dependencies: Sequence[Any]
    middlewares: Sequence[Any]
    ack_policy: AckPolicy
    id_generator: IdGenerator
    graceful_timeout: float | timedelta | None
    specification_url: str | None
    protocol: str | None
    protocol_version: str | None
    description: str | None
    tags: Iterable[Any]
    logger: Any
    log_level: int
    apply_types: bool
    serializer: Any
    provider: Any
    context: ContextRepo | None
    underlying_driver_annotations: Any


class RocketMQBroker(RocketMQRegistrator, BrokerUsecase[Any, Client, BrokerSettings]):
    """A FastStream broker over a RocketMQ or SkylarkMQ cluster."""

    def __init__(
        self,
        namesrv_addr: str | None = None,
        *,
        group: str | None = None,
        client: Mapping[str, Any] | None = None,
        producer: Mapping[str, Any] | None = None,
        security: BaseSecurity | None = None,
        routers: Iterable[RocketMQRegistrator] = (),
        **options: Unpack[BrokerOptions],
    ) -> None:
        """Take the settings; nothing is connected before `connect` or `start`.

        Args:
            namesrv_addr: name servers; default: environment NAMESRV_ADDR, else 127.0.0.1:9876.
            group: what the groups of subscribers without one begin with.
            client: settings of `skylarkmq.client.Client`, as `{"namespace": "test"}`.
            producer: settings of `skylarkmq.client.Producer`, as `{"send_timeout": 10}`.
            security: `BaseSecurity` for TLS, `SASLPlaintext` for an account of access control.
        """
        require_known(type(self), options, BrokerOptions)
        take: Any = options.get
        parser, decoder = take("parser"), take("decoder")
        super().__init__(
            routers=routers,
            namesrv_addr=namesrv_addr,
            client={**_secured(security), **(client or {})},
            producer=producer or {},
            config=BrokerSettings(
                group=group,
                producer=RocketMQProducer(parser, decoder),
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=take("codec"),
                broker_dependencies=take("dependencies", ()),
                broker_middlewares=take("middlewares", ()),
                ack_policy=take("ack_policy", EMPTY),
                id_generator=take("id_generator", gen_cor_id),
                graceful_timeout=seconds_or_none(take("graceful_timeout", 15.0)),
                logger=logger_state(
                    logger=take("logger", EMPTY), log_level=take("log_level", logging.INFO)
                ),
                fd_config=FastDependsConfig(
                    use_fastdepends=take("apply_types", True),
                    serializer=take("serializer", EMPTY),
                    provider=take("provider") or dependency_provider,
                    context=take("context") or ContextRepo(),
                ),
                extra_context={"broker": self},
                underlying_driver_annotations=take("underlying_driver_annotations") or {},
            ),
            specification=_specification(namesrv_addr, security, options),
        )
        self._sender: Producer | None = None

    async def _connect(self) -> Client:
        """Connect to the name servers; called once."""
        settings = self._connection_kwargs
        client = Client(settings["namesrv_addr"], **settings["client"])
        sender = Producer(client=client, **settings["producer"])
        try:
            await client.start()
            await sender.start()
        except BaseException:
            await client.stop()
            raise
        config, self._sender = self.config.broker_config, sender
        config.new_consumer = lambda *topics, **wants: Consumer(*topics, client=client, **wants)
        producer: Any = config.producer
        producer.connect(sender, config.fd_config._serializer, config.broker_codec)
        return client

    async def start(self) -> None:
        """Connect, and start all subscribers."""
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop the subscribers, let sends under way end, and close the connection."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            client, self._connection = self._connection, None
            sender, self._sender = self._sender, None
            try:
                if sender is not None:
                    await sender.stop()
            finally:
                producer: Any = self.config.producer
                producer.connect(None, None, None)
                if client is not None:
                    await client.stop()

    async def ping(self, timeout: float | timedelta | None = None) -> bool:  # noqa: ASYNC109
        """Return whether a name server answers, and no subscriber is refused by all its brokers."""
        subscribers = cast("Iterable[Any]", self.subscribers)
        if self._connection is None or any(each.is_refused for each in subscribers):
            return False
        try:
            limit = asyncio.timeout(seconds_or_none(timeout))
            async with Admin(client=self._connection) as admin, limit:
                await admin.cluster()
        except (RocketMQError, TimeoutError):
            return False
        return True

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
        """Send a message.

        Args:
            headers: become the message's properties.
            reply_to: a topic, to which the subscriber sends what its handler returns.
            options: `tags`, `keys`, `sharding_key`, `delay`, `delay_level`, `deliver_at`.
        """
        command = RocketMQPublishCommand(
            message,
            destination=topic,
            headers=dict(headers or {}),
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            options=options,
            _publish_type=PublishType.PUBLISH,
        )
        sent: SendResult | None = await self._basic_publish(command, producer=self.config.producer)
        return sent

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: Any,
        topic: str = "",
        headers: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        **options: Unpack[MessageOptions],
    ) -> list[SendResult]:
        """Send messages to one queue of a topic in one request: all are stored, or none."""
        command = RocketMQPublishCommand(
            messages[0] if messages else None,
            *messages[1:],
            destination=topic,
            headers=dict(headers or {}),
            correlation_id=correlation_id or self.config.id_generator(),
            options=options,
            _publish_type=PublishType.PUBLISH,
        )
        sent: list[SendResult] = await self._basic_publish_batch(
            command, producer=self.config.producer
        )
        return sent

    async def request(  # type: ignore[override]
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        timeout: float | timedelta = 3.0,  # noqa: ASYNC109
        **options: Unpack[MessageOptions],
    ) -> RocketMQMessage:
        """Send a request and return what its handler returned; see `Producer.request`.

        Raises:
            ReplyTimeout: it was sent, and nobody replied within `timeout`.
        """
        command = RocketMQPublishCommand(
            message,
            destination=topic,
            headers=dict(headers or {}),
            correlation_id=correlation_id or self.config.id_generator(),
            options=options,
            timeout=timeout,
            _publish_type=PublishType.REQUEST,
        )
        reply: RocketMQMessage = await self._basic_request(command, producer=self.config.producer)
        return reply


def _specification(
    namesrv_addr: str | None, security: BaseSecurity | None, options: BrokerOptions
) -> BrokerSpec:
    """Return what AsyncAPI says of the broker."""
    return BrokerSpec(
        url=[options.get("specification_url") or namesrv_addr or default_namesrv_addr()],
        protocol=options.get("protocol") or "rocketmq",
        protocol_version=options.get("protocol_version") or "4.9",
        description=options.get("description"),
        tags=options.get("tags", ()),
        security=security,
    )


def _secured(security: BaseSecurity | None) -> dict[str, Any]:
    """Return the client's settings for FastStream's security object.

    Raises:
        SetupError: RocketMQ has no such scheme.
    """
    if security is None:
        return {}
    settings: dict[str, Any] = {"ssl": security.ssl_context or security.use_ssl or None}
    if isinstance(security, SASLPlaintext):
        settings["credentials"] = Credentials(security.username, security.password)
    elif type(security) is not BaseSecurity:
        raise SetupError(
            f"{type(security).__name__} is nothing that RocketMQ knows: BaseSecurity for TLS, "
            "SASLPlaintext for the access key and the secret key"
        )
    return settings
