"""What a group wants of a topic, and where it starts.

It wants all messages, those with some tags, or those that an SQL92 expression selects. The broker
compares only the hash of a tag, so a consumer compares its text again. Expressions are evaluated by
the broker; before the first pull it is asked whether it can (46).
Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../filter/FilterAPI.java (buildSubscriptionData,
build), client/.../impl/factory/MQClientInstance.java (checkClientInBroker),
client/.../impl/consumer/RebalancePushImpl.java
(computePullFromWhereWithException), common/.../consumer/ConsumeFromWhere.java
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final, Literal

from skylarkmq.client.clock import ceil_ms
from skylarkmq.client.errors import (
    AuthError,
    BrokerError,
    FilterRefused,
    RocketMQError,
    RouteNotFound,
)
from skylarkmq.client.services import Services
from skylarkmq.protocol.bodies.group import CheckClientRequestBody, SubscriptionData
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.flags import MASTER_ID
from skylarkmq.protocol.tags_code import java_string_hash

log = logging.getLogger(__name__)

ALL: Final = "*"
SEPARATOR: Final = "||"
TAG_TYPE: Final = "TAG"
SQL92_TYPE: Final = "SQL92"

FILTER_HINTS: Final[dict[int, str]] = {
    ResponseCode.SYSTEM_ERROR: "Set enablePropertyFilter=true on the broker",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "Correct the expression",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "The broker is older than 4.1 and knows tags only",
}


WHERE_NAMES: Final[dict[str, str]] = {
    "last": "CONSUME_FROM_LAST_OFFSET",
    "now": "CONSUME_FROM_LAST_OFFSET",
    "first": "CONSUME_FROM_FIRST_OFFSET",
    "timestamp": "CONSUME_FROM_TIMESTAMP",
}
"""RocketMQ's names of `StartFrom.where`, for the heartbeat."""


@dataclass(frozen=True, slots=True, init=False)
class Tag:
    """Selects messages with one of these tags: `Tag("A", "B")`, or `Tag("A || B")` as in Java."""

    tags: tuple[str, ...]

    def __init__(self, *expressions: str) -> None:
        parts = [part.strip() for text in expressions for part in text.split(SEPARATOR)]
        tags = tuple(dict.fromkeys(part for part in parts if part))
        if not tags:
            raise ValueError("Tag names at least one tag; without a selector all messages come")
        object.__setattr__(self, "tags", () if ALL in tags else tags)

    @property
    def expression(self) -> str:
        """The text of the subscription."""
        return f" {SEPARATOR} ".join(self.tags) if self.tags else ALL


@dataclass(frozen=True, slots=True)
class Sql92:
    """Selects messages by their properties, on the broker: `Sql92("region = 'EU' AND n > 3")`.

    Operators: `= <> > >= < <= BETWEEN IN IS NULL AND OR NOT`, on texts, numbers and TRUE/FALSE;
    TAGS is a property too. The broker must have `enablePropertyFilter=true`.
    """

    expression: str

    def __post_init__(self) -> None:
        if not self.expression.strip():
            raise ValueError("Sql92 has an expression; without a selector all messages come")


Selector = Tag | Sql92


def require_selector(given: object) -> None:
    """Raise a TypeError for what is no selector, with what to write."""
    if given is not None and not isinstance(given, Tag | Sql92):
        raise TypeError(f"a selector is Tag('a', 'b') or Sql92('n > 3'), not {given!r}")


@dataclass(frozen=True, slots=True)
class StartFrom:
    """Where a group starts in a queue for which it has committed nothing yet.

    `FIRST`: with all messages there are; `timestamp`: from a time on; `LAST`, `NOW`: from now on.

    With `LAST` and a time the broker decides first, as in RocketMQ: a new group on a queue that is
    still young (its first message is there and in memory) starts at that first message. `NOW` asks
    it not to; Apache brokers before 5.0 do so all the same. A queue that is made while the consumer
    is at work is read from its beginning.
    """

    where: Literal["last", "first", "now", "timestamp"]
    timestamp_ms: int = 0

    LAST: ClassVar[StartFrom]
    FIRST: ClassVar[StartFrom]
    NOW: ClassVar[StartFrom]

    @classmethod
    def timestamp(cls, when: datetime) -> StartFrom:
        """Start with what was stored at `when` or later.

        Raises:
            TypeError: no datetime.
            ValueError: the time names no zone.
        """
        return cls("timestamp", ceil_ms(when))


StartFrom.LAST = StartFrom("last")
StartFrom.FIRST = StartFrom("first")
StartFrom.NOW = StartFrom("now")


class Subscription:
    """One topic of one group, with the version that brokers compare."""

    __slots__ = ("data", "tags")

    def __init__(self, topic: str, selector: Selector | None, version: int) -> None:
        tags = selector.tags if isinstance(selector, Tag) else ()
        self.tags = frozenset(tags)
        self.data = SubscriptionData(
            topic=topic,
            sub_string=selector.expression if selector is not None else ALL,
            expression_type=SQL92_TYPE if isinstance(selector, Sql92) else TAG_TYPE,
            tags_set=list(tags),
            code_set=[java_string_hash(tag) for tag in tags],
            sub_version=version,
        )

    def wants(self, tag: str | None) -> bool:
        """Return whether a message with that tag is wanted, by its text."""
        return not self.tags or tag in self.tags


def filter_error(error: BrokerError) -> BrokerError:
    """Return what a broker's answer to 46 means: mostly that it refuses the filter."""
    if isinstance(error, AuthError) or error.code not in FILTER_HINTS:
        return error
    return FilterRefused(error.code, error.remark, error.broker_addr, hint=FILTER_HINTS[error.code])


async def check_filter(
    services: Services,
    group: str,
    subscription: Subscription,
    *,
    inline: bool = False,
    broker: str | None = None,
) -> None:
    """Ask every broker of the topic whether it can filter so; tags need no question.

    A member of a group passes over a broker that cannot be asked: its heartbeat carries the
    expression, and pulls from a broker that cannot use it fail.

    Args:
        inline: each pull will carry the expression. Then every broker must have said yes: an
            Apache broker that cannot read an inline expression answers with every message.
        broker: the only one to ask.

    Raises:
        FilterRefused: a broker does not filter by SQL92, or cannot read the expression.
        AuthError: access control refused the caller.
        RocketMQError: with `inline`, a broker cannot be asked, or nobody has the topic.
    """
    data = subscription.data
    if data.expression_type == TAG_TYPE:
        return
    route = services.routes.known(data.topic)
    if route is None:
        if inline:
            raise RouteNotFound(
                data.topic, "topic_missing", "An expression is checked by the topic's brokers first"
            )
        return
    question = CheckClientRequestBody(
        client_id=services.client_id, group=group, subscription_data=data
    )
    brokers = [ids for name, ids in route.brokers.items() if broker in (None, name)]
    addresses = [ids[MASTER_ID] for ids in brokers if MASTER_ID in ids]
    if inline:  # also slaves that have lost their master are pulled from
        addresses = [ids[min(ids)] for ids in brokers if ids]
    timeout_s = services.config.request_timeout_s
    outcomes = await asyncio.gather(
        *(services.consumer_api.check_client(each, question, timeout_s) for each in addresses),
        return_exceptions=True,
    )
    for error in outcomes:
        meaning = filter_error(error) if isinstance(error, BrokerError) else error
        if meaning is None:
            continue
        passes = isinstance(meaning, RocketMQError) and not inline
        if not passes or isinstance(meaning, AuthError | FilterRefused):
            raise meaning from (None if meaning is error else error)
        log.warning("filter of %s not checked: %s", data.topic, meaning)
