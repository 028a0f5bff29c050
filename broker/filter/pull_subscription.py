"""What a pull wants of its queue: by tags, or by a SQL92 expression over the properties.

    in the request    the expression is compiled on the spot (a cache helps); 23 when it is none
    from heartbeats   the group's subscription counts: 24 there is none, 25 and 28 the one that is
                      known is older than the client's, 27 its expression could not be compiled

Held pulls and the store take what `select` returns: None for everything.

While the group's members pop, a pull that relies on a heartbeat, or that commits an offset, is
refused: it comes from a member that was (`consumer_manager.py`). Others only read.

Unlike RocketMQ, an expression in the request that cannot be compiled is refused; there it matches
every message.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/PullMessageProcessor.java,
broker/.../filter/ExpressionForRetryMessageFilter.java
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.filter.consumer_filter import EXPRESSION_SQL92, ConsumerFilterManager
from skylarkmq.broker.filter.tag_filter import is_tag_type, parse_tags, tag_filter
from skylarkmq.broker.groups.consumer_manager import (
    BROADCASTING,
    ConsumerGroupInfo,
    ConsumerManager,
)
from skylarkmq.common.first_use import on_first_use
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.bodies.group import SubscriptionData, SubscriptionGroupConfig
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import RETRY_GROUP_TOPIC_PREFIX, PullSysFlag
from skylarkmq.protocol.headers.pull import PullMessageRequestHeader
from skylarkmq.protocol.properties import find_property
from skylarkmq.protocol.sql92.errors import ExpressionError
from skylarkmq.store.read.filtering import RecordFilter
from skylarkmq.store.read.message_reader import Filter

if TYPE_CHECKING:
    import skylarkmq.protocol.sql92.expression as sql92
else:  # by the first consumer that filters with it
    sql92 = on_first_use("skylarkmq.protocol.sql92.expression")

_RETRY_TOPIC: Final = names.RETRY_TOPIC.encode() + b"\x01"


class PullSubscriptions:
    """Finds the filter of each pull. Loop thread."""

    def __init__(
        self, config: BrokerConfig, consumers: ConsumerManager, filters: ConsumerFilterManager
    ) -> None:
        self._enabled = config.enable_property_filter
        self._supports_retry = config.filter_support_retry
        self._consumers = consumers
        self._filters = filters

    def select(
        self, header: PullMessageRequestHeader, group: SubscriptionGroupConfig
    ) -> Filter | None:
        """Return what the pull wants, from the request or from the group's heartbeat.

        Raises:
            RemoteProtocolError: there is no usable subscription.
        """
        commits = header.sys_flag & PullSysFlag.FLAG_COMMIT_OFFSET and header.commit_offset >= 0
        is_inline = header.sys_flag & PullSysFlag.FLAG_SUBSCRIPTION
        if commits or not is_inline:
            self._consumers.check_mode(header.consumer_group, pops=False)
        if is_inline:
            if is_tag_type(header.expression_type):
                return parse_tags(header.subscription or "")
            kind = header.expression_type or ""
            self._check_enabled(kind)
            expression = compile_subscription(kind, header.subscription or "")
            return RecordFilter(expression.matches, expression.cost, key=expression.text)
        subscription = self._subscription(header, group)
        if is_tag_type(subscription.expression_type):
            return tag_filter(subscription.sub_string, subscription.code_set)
        return self._registered(header, subscription)

    def known(self, header: PullMessageRequestHeader) -> SubscriptionData | None:
        """Return the subscription that a pull relies on, another object after each change."""
        if header.sys_flag & PullSysFlag.FLAG_SUBSCRIPTION:
            return None  # it is in the request
        return self._consumers.find_subscription(header.consumer_group, header.topic)

    def _subscription(
        self, header: PullMessageRequestHeader, group: SubscriptionGroupConfig
    ) -> SubscriptionData:
        info = self._consumers.group(header.consumer_group)
        if info is None:
            raise RemoteProtocolError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                "the consumer's group info not exist: no heartbeat of the group has arrived yet",
            )
        _check_model(info, group)
        subscription = info.subscriptions.get(header.topic)
        if subscription is None:
            raise RemoteProtocolError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: group {header.consumer_group} "
                f"does not subscribe to {header.topic}",
            )
        if subscription.sub_version < header.sub_version:
            raise RemoteProtocolError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                "the consumer's subscription not latest: its heartbeat has not arrived yet",
            )
        return subscription

    def _registered(
        self, header: PullMessageRequestHeader, subscription: SubscriptionData
    ) -> RecordFilter:
        self._check_enabled(subscription.expression_type)
        group, topic = header.consumer_group, header.topic
        data = self._filters.get(topic, group)
        if data is None:
            raise RemoteProtocolError(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "the broker's consumer filter data is not exist: " + _why_not(subscription),
            )
        if data.client_version < header.sub_version:
            raise RemoteProtocolError(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                "the consumer's consumer filter data not latest: its heartbeat has not arrived yet",
            )
        if self._supports_retry and topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            return self._of_original_topics(topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX))
        return data.record_filter

    def _of_original_topics(self, group: str) -> RecordFilter:
        """Filter retried messages by what the group wants of the topics that they came from."""
        # A copy: the reads worker must not look into the table.
        expressions: dict[bytes | None, sql92.Expression] = {
            data.topic.encode(): data.expression for data in self._filters.of_group(group)
        }

        def matches(data: bytes) -> bool:
            expression = expressions.get(find_property(data, _RETRY_TOPIC))
            return expression is None or expression.matches(data)

        cost = max((expression.cost for expression in expressions.values()), default=0)
        return RecordFilter(matches, 1 + cost)

    def _check_enabled(self, kind: str) -> None:
        if not self._enabled:
            raise no_filter(kind)


def no_filter(kind: str) -> RemoteProtocolError:
    """Return the refusal of filters by properties where the configuration forbids them."""
    return RemoteProtocolError(
        ResponseCode.SYSTEM_ERROR,
        f"The broker does not support consumer to filter message by {kind[:32]} "
        "(enablePropertyFilter is false; set it to true in the broker's configuration)",
    )


def compile_subscription(kind: str, text: str) -> sql92.Expression:
    """Return the expression of a subscription that is not one of tags.

    Raises:
        RemoteProtocolError: code 23, with what is wrong in the text.
    """
    try:
        if kind != EXPRESSION_SQL92:
            raise ExpressionError(f"no filter is called {kind[:32]!a}; TAG and SQL92 are known")
        return sql92.compile_expression(text)
    except ExpressionError as error:
        raise RemoteProtocolError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"parse the consumer's subscription failed: {error}",
        ) from error


def _why_not(subscription: SubscriptionData) -> str:
    try:
        compile_subscription(subscription.expression_type, subscription.sub_string)
    except RemoteProtocolError as error:
        return error.remark
    return "the broker knows as many filters as it can hold"


def _check_model(info: ConsumerGroupInfo, group: SubscriptionGroupConfig) -> None:
    if not group.consume_broadcast_enable and info.message_model == BROADCASTING:
        raise RemoteProtocolError(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{info.group}] can not consume by broadcast way",
        )
