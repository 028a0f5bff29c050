# pyright: reportIncompatibleVariableOverride=false
"""What subscribers, publishers, broker and routers are configured with, and what they log."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
)
from faststream._internal.constants import EMPTY
from faststream._internal.context import ContextRepo
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream.exceptions import NOT_CONNECTED_YET, IncorrectState, SetupError
from faststream.middlewares import AckPolicy

from skylarkmq.client import Consumer, Tag
from skylarkmq.client.consumer.subscription import Selector
from skylarkmq.common.settings import require_names
from skylarkmq.integrations.faststream.response import MessageOptions
from skylarkmq.protocol.flags import validate_topic

MESSAGE_ID_SIZE: Final = 32


def not_connected(*_topics: str, **_settings: Any) -> Consumer:
    """Stand for the way to make consumers until the broker is connected."""
    raise IncorrectState(NOT_CONNECTED_YET)


@dataclass(kw_only=True)
class BrokerSettings(BrokerConfig):
    """Of a broker or a router."""

    group: str | None = None
    """What the groups of subscribers without one begin with."""
    new_consumer: Callable[..., Consumer] = not_connected


@dataclass(kw_only=True)
class Listening:
    """What a subscriber wants, and how it consumes."""

    topic: str
    group: str | None
    selector: Selector | None
    batch: bool
    max_batch: int
    max_workers: int
    consumer: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.max_workers < 1 or self.max_batch < 1:
            raise SetupError("max_workers and max_batch are 1 or more")
        # Refuses now, not at the start, what cannot be.
        self.make(Consumer, self.topic, self.group or "any")

    def make(self, new_consumer: Callable[..., Consumer], topic: str, group: str) -> Consumer:
        """Return the consumer."""
        own = {"selector": self.selector, "ack": "manual"}  # FastStream acknowledges
        return new_consumer(topic, group=group, **own, **self.consumer)


@dataclass(kw_only=True)
class SubscriberConfig(SubscriberUsecaseConfig):
    """Of one subscriber."""

    _outer_config: BrokerSettings = field(default_factory=BrokerSettings)
    listening: Listening

    @property
    def ack_policy(self) -> AckPolicy:
        """The subscriber's, else the broker's, else retries as RocketMQ's own clients do them."""
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.NACK_ON_ERROR


@dataclass(kw_only=True)
class PublisherConfig(PublisherUsecaseConfig):
    """Of one publisher."""

    _outer_config: BrokerSettings = field(default_factory=BrokerSettings)
    topic: str
    headers: Mapping[str, str]
    options: MessageOptions


@dataclass(kw_only=True)
class SubscriberDocs(SubscriberSpecificationConfig):
    """What AsyncAPI says of a subscriber."""

    topic: str


@dataclass(kw_only=True)
class PublisherDocs(PublisherSpecificationConfig):
    """What AsyncAPI says of a publisher."""

    topic: str


def require_known(called: Callable[..., Any], given: Iterable[str], options: type) -> None:
    """Refuse options that neither a function nor its table of further ones has.

    Raises:
        TypeError: there is such an option.
    """
    if {*given} - options.__annotations__.keys():
        own = [*inspect.signature(called).parameters][:-1]  # the last one is the table
        require_names(called.__name__, given, [*own, *options.__annotations__])


def require_topic(topic: str) -> None:
    """Refuse what cannot be a topic.

    Raises:
        SetupError: it cannot be one.
    """
    if (reason := validate_topic(topic)) is not None:
        raise SetupError(reason)


def selector_of(selector: Selector | str | None) -> Selector | None:
    """Return the selector; a text is one of tags, as in Java."""
    return Tag(selector) if isinstance(selector, str) else selector


class LogColumns(DefaultLoggerStorage):
    """Makes the broker's logger, with columns for the topics and groups that there are."""

    def __init__(self) -> None:
        super().__init__()
        self._widths = {"topic": 4, "group": 5}
        self.logger_log_level = logging.INFO

    def set_level(self, level: int) -> None:
        """Take the level of the logger to make."""
        self.logger_log_level = level

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Make the columns wide enough for one more subscriber."""
        for name, width in self._widths.items():
            self._widths[name] = max(width, len(params.get(name, "")))

    def get_logger(self, *, context: ContextRepo) -> Any:
        """Return the logger; the first call makes it."""
        logger = self._get_logger_ref()
        if logger is None:
            columns = [f"%({name})-{width}s | " for name, width in self._widths.items()]
            logger = get_broker_logger(
                name="rocketmq",
                default_context=dict.fromkeys(self._widths, ""),
                message_id_ln=MESSAGE_ID_SIZE,
                fmt="%(asctime)s %(levelname)-8s - "
                + "".join(columns)
                + f"%(message_id)-{MESSAGE_ID_SIZE}s - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger


logger_state = partial(make_logger_state, default_storage_cls=LogColumns)
