"""Bodies of statistics: what was counted (315), where all groups of a broker are (317).

    {"statsDay":{"avgpt":0.0,"sum":0,"tps":0.0},"statsHour":{...},"statsMinute":{...}}
    {"brokerAddr":"ip:port","consumeStatsList":[{"<group>":[<ConsumeStats of a topic>]}],
     "totalDiff":0}

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/body/ (BrokerStatsData.java,
BrokerStatsItem.java, ConsumeStatsList.java)
"""

from typing import Any

import msgspec

from skylarkmq.protocol.bodies.group import ConsumeStats
from skylarkmq.protocol.bodies.text import Body, queue_members
from skylarkmq.protocol.headers.fields import JavaLong


class BrokerStatsItem(Body, kw_only=True, frozen=True):
    """One window: the sum, how much of it a second, and how much a message."""

    avgpt: float = 0.0
    sum: JavaLong = 0
    tps: float = 0.0


class BrokerStatsData(Body, kw_only=True, frozen=True):
    """One statistic in its three windows."""

    stats_day: BrokerStatsItem
    stats_hour: BrokerStatsItem
    stats_minute: BrokerStatsItem


class ConsumeStatsList(Body, kw_only=True, frozen=True):
    """All groups; for each, the encoded `ConsumeStats` of each of its topics."""

    broker_addr: str
    consume_stats_list: list[dict[str, list[msgspec.Raw]]]
    total_diff: JavaLong


class ReadConsumeStatsList(Body, kw_only=True, frozen=True):
    """The same as an administrator reads it."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]]

    @staticmethod
    def accept(value: Any) -> Any:
        """Read the tables that have queues for keys."""
        for row in value["consumeStatsList"]:
            for tables in row.values():
                for table in tables:
                    pairs = table["offsetTable"].items()
                    table["offsetTable"] = [(queue_members(key), item) for key, item in pairs]
        return value
