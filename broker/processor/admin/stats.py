"""Statistics for administrators: what was counted (315), where groups are (208, 317).

`broker/metrics/windows.py` tells which statistics there are. One that does not exist, because
nothing was counted or because no such thing is counted here, is answered with 1 and the remark that
RocketMQ's tools expect; they ask for many that do not.

Unlike RocketMQ: what one window grew by lasts up to this moment; `avgpt` is by message in all of
them; the answer of 317 has a limit. Messages in flight are not known: `pullOffset`, which tools of
5.x subtract the group's offset from, is that offset.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(getConsumeStats, ViewBrokerStatsData, fetchAllConsumeStatsInBroker)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final

import msgspec

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.metrics.windows import Growth, StatsWindows
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.handlers import Answer, Call, handles, refused
from skylarkmq.broker.requests.processor import Context, Processor, check_group, check_topic
from skylarkmq.protocol.bodies.group import ConsumeStats, OffsetWrapper
from skylarkmq.protocol.bodies.stats import BrokerStatsData, BrokerStatsItem, ConsumeStatsList
from skylarkmq.protocol.bodies.text import MessageQueueBody, encode_body
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.errors import shown
from skylarkmq.protocol.headers.group import GetConsumeStatsRequestHeader
from skylarkmq.protocol.headers.topic import (
    GetConsumeStatsInBrokerHeader,
    ViewBrokerStatsDataRequestHeader,
)
from skylarkmq.protocol.host_address import HostAddress

QUEUES_SLICE: Final = 256
"""Queues of an answer that are looked at before the loop may turn."""
QUEUES_TOTAL_MAX: Final = 50_000
"""Queues in an answer about all groups: some 8 MB; Java's clients take frames of 16 MiB."""
NAME_SIZE_MAX: Final = 512
"""Characters of a name in a remark: a topic and a group have at most 383."""

Row = tuple[MessageQueueBody, OffsetWrapper]


class AdminStatsProcessor(Processor):
    """Serves administrators who want figures. Loop thread."""

    def __init__(
        self, context: Context, windows: StatsWindows, stats: BrokerStats, store_host: bytes
    ) -> None:
        """Take what was counted.

        Args:
            store_host: packed address of the broker, as clients know it.
        """
        super().__init__(context)
        self._windows = windows
        self._stats = stats
        self._address = str(HostAddress.unpack(store_host))

    @handles(RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStatsDataRequestHeader)
    def view_stats(self, call: Call[ViewBrokerStatsDataRequestHeader]) -> Answer:
        """Answer one statistic over a minute, an hour and a day (315)."""
        name, key = call.header.stats_name, call.header.stats_key
        growth = self._windows.growth(name, key)
        if growth is None:
            raise refused(f"The stats <{_cut(name)}> <{_cut(key)}> not exist")
        minute, hour, day = [_item(each, is_size=name.endswith("_SIZE")) for each in growth]
        return Answer(BrokerStatsData(stats_day=day, stats_hour=hour, stats_minute=minute))

    @handles(RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader)
    async def get_consume_stats(self, call: Call[GetConsumeStatsRequestHeader]) -> Answer:
        """Answer where a group is in each queue of its topics (208)."""
        group, topic = call.header.consumer_group, call.header.topic
        check_group(group)
        topics = sorted(self._offsets.topics_of(group))
        if topic and topic.strip():
            check_topic(topic)
            topics = [topic]
        rows: list[Row] = []
        tps = 0.0
        for config in self._consumed(group, topics):
            rows += [row async for row in self._rows(call.connection, group, config)]
            tps += self._windows.per_second(config.topic_name, group)
        return Answer(ConsumeStats(consume_tps=tps, offset_table=rows))

    @handles(RequestCode.GET_BROKER_CONSUME_STATS, GetConsumeStatsInBrokerHeader)
    async def get_all_consume_stats(self, call: Call[GetConsumeStatsInBrokerHeader]) -> Answer:
        """Answer where every group is in each queue of its topics (317)."""
        topics_of: dict[str, list[str]] = {group: [] for group in sorted(self._groups.table)}
        for topic, group in sorted(self._offsets.table):
            if group in topics_of:
                topics_of[group].append(topic)
        listed: list[dict[str, list[msgspec.Raw]]] = []
        behind = count = 0
        for group, topics in topics_of.items():
            texts: list[msgspec.Raw] = []
            for config in self._consumed(group, topics):
                if call.header.is_order and not config.order:
                    continue
                rows = [row async for row in self._rows(call.connection, group, config)]
                behind += sum(row.broker_offset - row.consumer_offset for _, row in rows)
                count += len(rows)
                if count > QUEUES_TOTAL_MAX:
                    raise refused(
                        f"the groups of this broker have more than {QUEUES_TOTAL_MAX} queues, "
                        "which no answer holds; ask for one group at a time (consumerProgress -g)"
                    )
                tps = self._windows.per_second(config.topic_name, group)
                stats = ConsumeStats(consume_tps=tps, offset_table=rows)
                texts.append(msgspec.Raw(encode_body(stats)))
            listed.append({group: texts})
        return Answer(
            ConsumeStatsList(
                broker_addr=self._address, consume_stats_list=listed, total_diff=behind
            )
        )

    def _consumed(self, group: str, topics: Iterable[str]) -> Iterable[TopicConfig]:
        """Yield the topics that are there and that the group's members, if any, still want."""
        info = self._consumers.group(group)
        for topic in topics:
            config = self._topics.get(topic)
            if config is not None and (
                info is None or not info.subscriptions or topic in info.subscriptions
            ):
                yield config

    async def _rows(
        self, connection: Connection, group: str, config: TopicConfig
    ) -> AsyncIterator[Row]:
        topic = config.topic_name
        pulled = self._stats.pulled.get((topic, group), {})
        for queue_id in range(config.read_queue_nums):
            if queue_id % QUEUES_SLICE == 0:
                await asyncio.sleep(0)
            end = max(0, self._store.max_offset(topic, queue_id))
            self._earlier.told(connection, topic, queue_id, end)
            place = max(0, self._offsets.query(group, topic, queue_id))
            last = await self._message_time(topic, queue_id, place - 1) if place <= end else 0
            yield (
                self._queue(topic, queue_id),
                OffsetWrapper(
                    broker_offset=end,
                    consumer_offset=place,
                    last_timestamp=max(0, last),
                    pull_offset=max(place, min(pulled.get(queue_id, 0), end)),
                ),
            )


def _item(growth: Growth, *, is_size: bool) -> BrokerStatsItem:
    total = growth.size if is_size else growth.messages
    return BrokerStatsItem(
        avgpt=total / growth.messages if growth.messages else 0.0,
        sum=total,
        tps=total / growth.seconds if growth.seconds else 0.0,
    )


def _cut(text: str) -> str:
    """Return a name as it was asked for, or what can be shown of a long or strange one."""
    return text if len(text) <= NAME_SIZE_MAX and text.isprintable() else shown(text)
