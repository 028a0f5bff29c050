# pyright: reportPrivateUsage=false
"""`TestRocketMQBroker`: an application under test, in memory or on a real broker.

    async with TestRocketMQBroker(broker):                   in memory: publishes call handlers
    async with TestRocketMQBroker(broker, with_real=True):   on the broker that `broker` names

In memory a group gets each message once, selectors decide, and a request is answered. Queues,
retries, delays and dead letters need a real broker: `skylarkmq.testing` has one for the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast
from uuid import uuid4

from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from skylarkmq.client import Message, MessageQueue, ReceivedMessage, Sql92, Tag
from skylarkmq.client.clock import SystemClock
from skylarkmq.client.consumer.subscription import Selector
from skylarkmq.client.namespace import Namespace
from skylarkmq.client.received_message import ProcessQueue, Redelivery
from skylarkmq.common.settings import seconds_of
from skylarkmq.integrations.faststream.broker import RocketMQBroker
from skylarkmq.integrations.faststream.producer import RocketMQProducer
from skylarkmq.integrations.faststream.publisher import TopicPublisher
from skylarkmq.integrations.faststream.response import RocketMQPublishCommand
from skylarkmq.integrations.faststream.subscriber import RocketMQSubscriber
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.properties import UNIQ_KEY, encode_properties
from skylarkmq.protocol.sql92.expression import compile_expression

NOWHERE: Final = HostAddress("127.0.0.1", 0).pack()


class TestRocketMQBroker(TestBroker[RocketMQBroker, EnterType], broker=RocketMQBroker):
    """Puts a broker into test mode for a while; handlers and publishers then have mocks."""

    __test__ = False  # pytest: no class of tests

    def create_publisher_fake_subscriber(
        self, broker: RocketMQBroker, publisher: Any
    ) -> tuple[RocketMQSubscriber, bool]:
        """Return who records a publisher's messages, and whether the application has it."""
        assert isinstance(publisher, TopicPublisher)
        for subscriber in _subscribers(self.brokers):
            if subscriber.topic == publisher.topic:
                return subscriber, True
        group = f"test-{uuid4().hex}"
        return broker.subscriber(publisher.topic, group=group, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: RocketMQBroker) -> Generator[None]:
        config = broker.config.broker_config
        new_consumer, config.new_consumer = config.new_consumer, cast("Any", _NoConsumer)
        try:
            with change_producer(config, FakeProducer(broker, self.brokers)):
                yield
        finally:
            config.new_consumer = new_consumer

    async def _fake_connect(self, broker: RocketMQBroker, *_args: Any, **_settings: Any) -> None:
        """Connect to nothing."""


class FakeProducer(RocketMQProducer):
    """Hands messages to the handlers of the brokers under test."""

    def __init__(self, broker: RocketMQBroker, brokers: Sequence[RocketMQBroker]) -> None:
        config = broker.config
        super().__init__(config.broker_parser, config.broker_decoder)
        self.connect(None, config.fd_config._serializer, config.broker_codec)
        self._brokers = brokers

    async def publish(self, cmd: RocketMQPublishCommand) -> None:
        """Call the handlers of a message; the answer to a request is handed over by `request`."""
        if cmd.request is None:
            await self._deliver([_received(await self.message(cmd))])

    async def publish_batch(self, cmd: RocketMQPublishCommand) -> Any:
        """Call the handlers, those of batches once."""
        await self._deliver([_received(message) for message in await self.messages(cmd)])

    async def request(self, cmd: RocketMQPublishCommand) -> ReceivedMessage:
        """Call one handler, and return its answer as a message."""
        asked = _received(await self.message(cmd))
        for subscriber in self._wanting(asked):
            async with asyncio.timeout(seconds_of(cmd.timeout)):
                answer = await subscriber.process_message(
                    [asked] if subscriber.listening.batch else asked
                )
            reply = RocketMQPublishCommand.from_cmd(answer.as_publish_command())
            reply.destination = cmd.destination
            return _received(await self.message(reply))
        raise SubscriberNotFound

    async def _deliver(self, messages: Sequence[ReceivedMessage]) -> None:
        batched: dict[RocketMQSubscriber, list[ReceivedMessage]] = {}
        for message in messages:
            for subscriber in self._wanting(message):
                if subscriber.listening.batch:
                    batched.setdefault(subscriber, []).append(message)
                else:
                    await subscriber.process_message(message)
        for subscriber, batch in batched.items():
            await subscriber.process_message(batch)

    def _wanting(self, message: ReceivedMessage) -> Iterator[RocketMQSubscriber]:
        """Give one subscriber of each group, and all that broadcast."""
        seen: set[str] = set()
        for subscriber in _subscribers(self._brokers):
            listening = subscriber.listening
            if subscriber.topic != message.topic or not _selects(listening.selector, message):
                continue
            if listening.consumer["model"] == "clustering":
                if subscriber.group in seen:
                    continue
                seen.add(subscriber.group)
            yield subscriber


class _NoConsumer:
    """The consumer of a subscriber that starts in memory: nothing comes by itself."""

    def __init__(self, *_topics: str, **_settings: Any) -> None:
        self._stopped = asyncio.Event()

    async def start(self) -> None:
        pass

    async def stop(self, **_settings: Any) -> None:
        self._stopped.set()

    async def run(self, *_args: Any, **_settings: Any) -> None:
        await self._stopped.wait()


def _subscribers(brokers: Sequence[RocketMQBroker]) -> Iterator[RocketMQSubscriber]:
    for broker in brokers:
        for subscriber in broker.subscribers:
            assert isinstance(subscriber, RocketMQSubscriber)
            yield subscriber


def _selects(selector: Selector | None, message: ReceivedMessage) -> bool:
    """Return whether a broker would give the message to a subscriber with that selector."""
    if isinstance(selector, Sql92):
        properties = encode_properties(message.properties).encode()
        return compile_expression(selector.expression).matches(properties)
    return not isinstance(selector, Tag) or not selector.tags or message.tags in selector.tags


def _received(message: Message) -> ReceivedMessage:
    """Return the message as a consumer would have it; no broker hears what becomes of it."""
    clock = SystemClock(asyncio.get_running_loop())
    now_ms = clock.now_ms()
    properties = {UNIQ_KEY: uuid4().hex.upper(), **message.to_properties()}
    parts = (
        message.topic,
        0,
        message.flag,
        0,
        0,
        0,
        now_ms,
        NOWHERE,
        now_ms,
        NOWHERE,
        0,
        0,
        message.body,
        encode_properties(properties),
        0,
        len(message.body),
    )
    queue = ProcessQueue(MessageQueue(message.topic, "test", 0), 0)
    return ReceivedMessage(parts, queue, Redelivery(clock, Namespace(None)))
