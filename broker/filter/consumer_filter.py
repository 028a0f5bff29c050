"""The SQL92 filters of consumer groups, compiled by the heartbeat that brings them.

A heartbeat registers the expressions of a group; a pull that relies on them finds them compiled
here. A newer version of a subscription replaces an older one. When the group goes, or no longer
subscribes, its filter goes: clients take their versions from their clocks, and a group that comes
back must not be filtered by what it wanted before.

Unlike RocketMQ, which keeps the filters of groups that have gone, and all of them in the file
`consumerFilter.json`: both are for bitmaps beside the queues, which this broker does not write. A
file of that name stays as it is.

The table is bounded in filters and in characters. Loop thread.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../filter/ConsumerFilterManager.java,
ConsumerFilterData.java
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.filter.tag_filter import is_tag_type
from skylarkmq.common.clock import Clock
from skylarkmq.common.first_use import on_first_use
from skylarkmq.protocol.bodies import group as bodies
from skylarkmq.protocol.bodies.group import SubscriptionData
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.sql92.errors import ExpressionError
from skylarkmq.store.read.filtering import RecordFilter

if TYPE_CHECKING:
    import skylarkmq.protocol.sql92.expression as sql92
else:  # by the first consumer that filters with it
    sql92 = on_first_use("skylarkmq.protocol.sql92.expression")

log = logging.getLogger(__name__)

EXPRESSION_SQL92: Final = "SQL92"
FILTERS_MAX: Final = 10_000
CHARACTERS_MAX: Final = 1 << 20
"""Characters of all expressions together: compiled they take about a hundred times that."""


@dataclass(slots=True, eq=False)
class ConsumerFilterData:
    """One group's filter of one topic."""

    topic: str
    group: str
    expression: sql92.Expression
    client_version: int
    born_time: int  # ms since the epoch
    record_filter: RecordFilter = field(init=False)

    def __post_init__(self) -> None:
        expression = self.expression
        self.record_filter = RecordFilter(expression.matches, expression.cost, expression.text)


class ConsumerFilterManager:
    """The table of filters."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._enabled = config.enable_property_filter
        self._clock = clock
        self._by_group: dict[str, dict[str, ConsumerFilterData]] = {}  # each by topic
        # Invariant: the counts and the sum of characters of all filters in the table.
        self.count = 0
        self._characters = 0

    # Questions

    def get(self, topic: str, group: str) -> ConsumerFilterData | None:
        """Return the filter of a group for a topic."""
        by_topic = self._by_group.get(group)
        return None if by_topic is None else by_topic.get(topic)

    def shown(self, topic: str, group: str) -> str | None:
        """Return a filter as RocketMQ's tools show it; None without."""
        data = self.get(topic, group)
        if data is None:
            return None
        row = bodies.ConsumerFilterData(
            born_time=data.born_time,
            client_version=data.client_version,
            consumer_group=group,
            expression=data.expression.text,
            expression_type=EXPRESSION_SQL92,
            topic=topic,
        )
        return encode_body(row).decode()

    def of_group(self, group: str) -> Collection[ConsumerFilterData]:
        """Return all filters of a group."""
        return self._by_group.get(group, {}).values()

    # Changes

    def register(self, group: str, subscriptions: Collection[SubscriptionData]) -> None:
        """Take in the subscriptions of one heartbeat; filters of other topics of the group go."""
        if not self._enabled:
            return
        for subscription in subscriptions:
            if not is_tag_type(subscription.expression_type) and subscription.sub_string:
                self._register(group, subscription)
        known = self._by_group.get(group)
        if known:
            topics = {subscription.topic for subscription in subscriptions}
            for topic in known.keys() - topics:
                self._remove(known[topic])

    def unregister(self, group: str) -> None:
        """Note that a group has no member any more: its filters go."""
        for data in list(self.of_group(group)):
            self._remove(data)

    def _register(self, group: str, subscription: SubscriptionData) -> None:
        topic, text = subscription.topic, subscription.sub_string
        version = subscription.sub_version
        old = self.get(topic, group)
        if old is not None and version <= old.client_version:
            return
        if old is not None and old.expression.text == text:
            old.client_version = version
            return
        if old is not None:
            self._remove(old)
        if subscription.expression_type != EXPRESSION_SQL92:
            return
        try:
            expression = sql92.compile_expression(text)
        except ExpressionError as error:
            log.warning("group %s filters topic %s wrongly: %s", group, topic, error)
            return
        if self.count >= FILTERS_MAX or self._characters + len(text) > CHARACTERS_MAX:
            log.warning(
                "the filter of group %s for topic %s is not taken: %d filters are known",
                group, topic, self.count,
            )  # fmt: skip
            return
        self._put(ConsumerFilterData(topic, group, expression, version, self._clock.now_ms()))
        log.info("group %s filters topic %s by %.200r", group, topic, text)

    def _put(self, data: ConsumerFilterData) -> None:
        self._by_group.setdefault(data.group, {})[data.topic] = data
        self.count += 1
        self._characters += len(data.expression.text)

    def _remove(self, data: ConsumerFilterData) -> None:
        by_topic = self._by_group[data.group]
        del by_topic[data.topic]
        if not by_topic:
            del self._by_group[data.group]
        self.count -= 1
        self._characters -= len(data.expression.text)
