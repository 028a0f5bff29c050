# pyright: reportPrivateUsage=false
"""A subscriber: one consumer of the SDK, whose handlers are FastStream's.

handler returns    acknowledged
handler raises     as its AckPolicy says: NACK_ON_ERROR (the default) hands the message back,
                   and after `max_reconsume` tries it is a dead letter; REJECT_ON_ERROR makes
                   it one at once; ACK and ACK_FIRST take it as done; MANUAL leaves it alone
stop               takes no more, waits for the handlers at work, commits, leaves the group
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any, Final

from faststream._internal.endpoint.publisher import PublisherProto
from faststream._internal.endpoint.subscriber import SubscriberSpecification
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.subscriber.mixins import TasksMixin
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import SetupError
from faststream.message import StreamMessage
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, SubscriberSpec

from skylarkmq.client import BrokerError, Consumer, ReceivedMessage, RequestTimeout
from skylarkmq.integrations.faststream.config import (
    BrokerSettings,
    SubscriberConfig,
    SubscriberDocs,
)
from skylarkmq.integrations.faststream.message import BatchParser, RocketMQMessage
from skylarkmq.integrations.faststream.producer import AnswerPublisher

DRAIN_MAX_S: Final = 86_400.0
"""How long a broker without a `graceful_timeout` waits for its handlers."""


class RocketMQSubscriber(TasksMixin):
    """Consumes one topic as a member of one group."""

    _outer_config: BrokerSettings

    def __init__(
        self,
        config: SubscriberConfig,
        specification: SubscriberSpecification[Any, Any],
        calls: CallsCollection[Any],
    ) -> None:
        parser = BatchParser()
        self.listening = config.listening
        self._consumer: Consumer | None = None
        config.parser = parser.parse_batch if self.listening.batch else parser.parse_message
        config.decoder = parser.decode_batch if self.listening.batch else parser.decode_message
        super().__init__(config, specification, calls)

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of its routers."""
        return self._outer_config.prefix + self.listening.topic

    @property
    def group(self) -> str:
        """The group: the subscriber's own, else the broker's and the topic.

        All members of a RocketMQ group subscribe to the same topics, so two subscribers to two
        topics cannot share one.

        Raises:
            SetupError: there is neither.
        """
        if self.listening.group is not None:
            return self.listening.group
        if self._outer_config.group is None:
            raise SetupError(
                f"the subscriber to {self.topic} has no group, by which processes share the "
                "messages: give it group=, or give the broker one, as RocketMQBroker(group='shop')"
            )
        return f"{self._outer_config.group}-{self.topic}"

    @property
    def is_refused(self) -> bool:
        """Whether all brokers of its topic refuse it at the moment, so that it gets nothing."""
        return self._consumer is not None and self._consumer._is_refused

    async def start(self) -> None:
        """Join the group, and hand out messages when there is a handler."""
        if self._consumer is not None:
            return
        await super().start()
        consumer = self.listening.make(self._outer_config.new_consumer, self.topic, self.group)
        self._consumer = consumer
        try:
            await consumer.start()
        except BaseException:
            self._consumer = None  # so that another start begins anew
            raise
        self._post_start()
        if self.calls:
            self.add_task(self._run, (consumer,), restart_on_failure=False)

    async def stop(self) -> None:
        """Take no more messages, let the handlers end, and leave the group."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            timeout_s = self._outer_config.graceful_timeout
            await consumer.stop(timeout=DRAIN_MAX_S if timeout_s is None else timeout_s)
        await super().stop()

    async def get_one(
        self,
        *,
        timeout: float | timedelta = 5.0,  # noqa: ASYNC109
    ) -> RocketMQMessage | None:
        """Return the next message, or None after `timeout`; `ack` it when it is done."""
        try:
            return await self._processed(await self._listener.getone(timeout))
        except RequestTimeout:
            return None

    async def __aiter__(self) -> AsyncIterator[RocketMQMessage]:
        """Give messages until the subscriber stops; `ack` each when it is done."""
        async for message in self._listener:
            yield await self._processed(message)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """Return what log lines say of a message."""
        return {
            "topic": self.topic,
            "group": self.listening.group or self._outer_config.group or "",
            "message_id": "" if message is None else message.message_id,
        }

    # Inside

    @property
    def _listener(self) -> Consumer:
        assert not self.calls, "a subscriber with a handler gives its messages to that alone"
        if self._consumer is None:
            raise SetupError("start the subscriber first")
        return self._consumer

    async def _run(self, consumer: Consumer) -> None:
        """Consume until the consumer stops; while all brokers refuse it, wait until one does not.

        `run` raises once for each heartbeat that is refused.
        """
        while True:
            try:
                await self._run_once(consumer)
            except BrokerError as error:
                self._outer_config.logger.log(
                    f"`{self.specification.call_name}` gets nothing, and goes on when it does",
                    logging.ERROR,
                    self.get_log_context(None),
                    error,
                )
            else:
                return

    async def _run_once(self, consumer: Consumer) -> None:
        wants = self.listening
        if wants.batch:
            await consumer.run(
                self._consume_batch, concurrency=wants.max_workers, max_batch=wants.max_batch
            )
        else:
            await consumer.run(self._consume, concurrency=wants.max_workers)

    async def _consume(self, message: ReceivedMessage) -> None:
        await self.consume(message)
        await self._settle(message)

    async def _consume_batch(self, messages: Sequence[ReceivedMessage] | ReceivedMessage) -> None:
        # With `max_batch` 1 the SDK hands out single messages.
        batch = [messages] if isinstance(messages, ReceivedMessage) else messages
        await self.consume(batch)
        for message in batch:
            await self._settle(message)

    async def _settle(self, message: ReceivedMessage) -> None:
        """Hand back what FastStream left open: a message that cannot be parsed, or was skipped.

        Nothing happens to one that is acknowledged or handed back.
        """
        if self.running and self.ack_policy is not AckPolicy.MANUAL:
            await message.nack()

    async def _processed(self, message: ReceivedMessage) -> RocketMQMessage:
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        raw: Any = [message] if self.listening.batch else message
        processed: Any = await process_msg(
            msg=raw,
            middlewares=(make(raw, context=context) for make in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        return processed  # type: ignore[no-any-return]

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[PublisherProto]:
        assert isinstance(message, RocketMQMessage)
        return (AnswerPublisher(self._outer_config.producer, message),)


class SubscriberChannel(SubscriberSpecification[BrokerSettings, SubscriberDocs]):
    """A subscriber in AsyncAPI, which has no bindings for RocketMQ."""

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of its routers."""
        return self._outer_config.prefix + self.config.topic

    @property
    def channel_labels(self) -> list[str]:
        """What its only channel is called."""
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Return its channel."""
        message = MessageSpec(
            title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads())
        )
        return {
            self.name: SubscriberSpec(
                address=self.topic,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }
