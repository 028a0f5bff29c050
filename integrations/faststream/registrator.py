# pyright: reportIncompatibleMethodOverride=false
"""`subscriber` and `publisher` of a broker or a router, and routers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict, Unpack

from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.middlewares import AckPolicy

from skylarkmq.client import StartFrom
from skylarkmq.client.consumer.subscription import Selector
from skylarkmq.integrations.faststream.config import (
    BrokerSettings,
    Listening,
    PublisherConfig,
    PublisherDocs,
    SubscriberConfig,
    SubscriberDocs,
    require_known,
    require_topic,
    selector_of,
)
from skylarkmq.integrations.faststream.publisher import PublisherChannel, TopicPublisher
from skylarkmq.integrations.faststream.response import MessageOptions
from skylarkmq.integrations.faststream.subscriber import RocketMQSubscriber, SubscriberChannel

MAX_BATCH: Final = 32


class SubscriberOptions(TypedDict, total=False):
    """FastStream's own options of a subscriber; its documentation says what each does."""

    ack_policy: AckPolicy
    """What becomes of a message; default NACK_ON_ERROR."""
    no_reply: bool
    """Send no answer to those who ask for one."""
    dependencies: Sequence[Any]
    parser: Any
    decoder: Any
    codec: Any
    persistent: bool
    title: str | None
    description: str | None
    include_in_schema: bool


class RouterOptions(TypedDict, total=False):
    """FastStream's own options of a router; its documentation says what each does."""

    parser: Any
    decoder: Any
    ack_policy: AckPolicy
    include_in_schema: bool | None


class RocketMQRegistrator(Registrator[Any, BrokerSettings]):
    """What a broker and a router can register."""

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        *,
        group: str | None = None,
        selector: Selector | str | None = None,
        start_from: StartFrom = StartFrom.LAST,
        orderly: bool = False,
        broadcasting: bool = False,
        batch: bool = False,
        max_batch: int = MAX_BATCH,
        max_workers: int = 1,
        max_reconsume: int | None = None,
        consumer: Mapping[str, Any] | None = None,
        **options: Unpack[SubscriberOptions],
    ) -> RocketMQSubscriber:
        """Let a handler have the messages of a topic.

        Args:
            group: who shares the messages; default: the broker's group, a dash, and the topic.
            selector: `Tag`, `Sql92`, or a text of tags (`"A || B"`).
            start_from: where a group without committed offsets starts.
            orderly: the messages of a queue one after another; a failed one holds its queue.
            broadcasting: every process gets every message.
            batch: the handler gets a list of messages, at most `max_batch` of one queue.
            max_workers: how many handlers run at the same time.
            max_reconsume: retries before a message is a dead letter; default 16, orderly no end.
            consumer: further settings of `skylarkmq.client.Consumer`, as `{"prefetch": 100}`.
            options: FastStream's own, see `SubscriberOptions`.
        """
        require_known(self.subscriber, options, SubscriberOptions)
        settings = {
            "start_from": start_from,
            "orderly": orderly,
            "model": "broadcasting" if broadcasting else "clustering",
            "max_reconsume": max_reconsume,
            **(consumer or {}),
        }
        listening = Listening(
            topic=topic,
            group=group,
            selector=selector_of(selector),
            batch=batch,
            max_batch=max_batch,
            max_workers=max_workers,
            consumer=settings,
        )
        made = _subscriber(self.config, listening, options)
        super().subscriber(made, persistent=options.get("persistent", True))
        return made.add_call(
            parser_=options.get("parser"),
            decoder_=options.get("decoder"),
            codec_=options.get("codec"),
            dependencies_=options.get("dependencies", ()),
        )

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        headers: Mapping[str, str] | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
        **options: Unpack[MessageOptions],
    ) -> TopicPublisher:
        """Return a publisher to a topic, also a decorator of handlers whose result it sends.

        Args:
            headers: for all its messages.
            options: parts of all its messages: `tags`, `keys`, `sharding_key`, `delay` ...
        """
        require_known(self.publisher, options, MessageOptions)
        require_topic(topic)
        outer: Any = self.config
        config = PublisherConfig(
            _outer_config=outer, topic=topic, headers=headers or {}, options=options
        )
        docs = PublisherDocs(
            topic=topic,
            title_=title,
            description_=description,
            schema_=schema,
            include_in_schema=include_in_schema,
        )
        made = TopicPublisher(config, PublisherChannel(outer, docs))
        super().publisher(made, persistent=persistent)
        return made


def _subscriber(outer: Any, listening: Listening, options: SubscriberOptions) -> RocketMQSubscriber:
    """Return a subscriber without a handler.

    Args:
        outer: the configuration of the broker or router.
    """
    calls: CallsCollection[Any] = CallsCollection()
    config = SubscriberConfig(
        _outer_config=outer,
        _ack_policy=options.get("ack_policy", EMPTY),
        no_reply=options.get("no_reply", False),
        listening=listening,
    )
    docs = SubscriberDocs(
        topic=listening.topic,
        title_=options.get("title"),
        description_=options.get("description"),
        include_in_schema=options.get("include_in_schema", True),
    )
    return RocketMQSubscriber(config, SubscriberChannel(outer, docs, calls), calls)


class RocketMQPublisher(ArgsContainer):
    """The arguments of `publisher`, for a `RocketMQRoute`."""

    def __init__(self, topic: str, **settings: Any) -> None:
        super().__init__(topic, **settings)


class RocketMQRoute(SubscriberRoute):
    """A handler with the arguments of `subscriber`, for `RocketMQRouter(handlers=...)`."""

    def __init__(
        self,
        call: Callable[..., Any],
        topic: str,
        *,
        publishers: Iterable[RocketMQPublisher] = (),
        **settings: Any,
    ) -> None:
        super().__init__(call, topic, publishers=publishers, **settings)


class RocketMQRouter(RocketMQRegistrator, BrokerRouter[Any, BrokerSettings]):
    """Subscribers and publishers to include into a broker, below a prefix of their topics."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[RocketMQRoute] = (),
        *,
        routers: Iterable[RocketMQRegistrator] = (),
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        **options: Unpack[RouterOptions],
    ) -> None:
        """Take the parts, and FastStream's own options, see `RouterOptions`."""
        require_known(type(self), options, RouterOptions)
        super().__init__(
            handlers=handlers,
            routers=routers,
            config=BrokerSettings(
                prefix=prefix,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=options.get("parser"),
                broker_decoder=options.get("decoder"),
                ack_policy=options.get("ack_policy", EMPTY),
                include_in_schema=options.get("include_in_schema"),
            ),
        )
