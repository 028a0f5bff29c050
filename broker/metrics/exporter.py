"""The families of Apache's rocketmq-exporter, for its dashboards without its Java process.

The exporter asks brokers and name servers by RocketMQ's protocol, some questions for each topic and
group, and shows what they said. This broker says the same at once, of itself alone. All families
are gauges there, totals too. Rates are those over the last minute.

Absent are families that the exporter declares and never fills (`rocketmq_group_dlqdiff`,
`rocketmq_group_consume_tps`, `rocketmq_group_consume_total_offset`), what slaves (`..._diff` of the
commit log) or consumers themselves would have to be asked (`rocketmq_client_*`), and figures that
do not exist in this broker, where its answer to 28 has a constant for older tools: requests wait in
no queue of a thread pool, and no lock guards the page cache.

Source: apache/rocketmq-exporter@master src/main/java/org/apache/rocketmq/exporter/:
collector/RMQMetricsCollector.java, task/MetricsCollectTask.java, model/BrokerRuntimeStats.java
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from prometheus_client.core import Metric

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.groups.consumer_manager import ConsumerManager
from skylarkmq.broker.groups.producer_manager import ProducerManager
from skylarkmq.broker.metrics.families import FamilyMaker, Row
from skylarkmq.broker.metrics.lag import Lag
from skylarkmq.broker.metrics.runtime_info import TIME_BINS, RuntimeInfo
from skylarkmq.broker.metrics.sources import parts_of
from skylarkmq.broker.metrics.windows import StatsWindows
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.protocol.flags import (
    DLQ_GROUP_TOPIC_PREFIX,
    is_retry_topic,
    is_system_topic,
)
from skylarkmq.store.message_store import MessageStore

CLUSTERING: Final = "1"
"""A group's message model, by its place in Java's enum."""
_TOPIC: Final = ("cluster", "broker", "topic")
_GROUP: Final = ("cluster", "broker", "group")
_TOPIC_GROUP: Final = ("cluster", "broker", "topic", "group")
_DIFF: Final = ("group", "topic", "countOfOnlineConsumers", "msgModel")
_RUNTIME: Final = ("cluster", "brokerIP", "brokerHost", "des", "boottime", "broker_version")

# Families of the broker as a whole: what follows `rocketmq_brokeruntime_`, the key of the answer to
# 28 that it is read from, and what it tells.
_NUMBERS: Final = (
    ("msg_put_total_today_now", "msgPutTotalTodayNow", "Messages stored since the start."),
    ("msg_gettotal_today_now", "msgGetTotalTodayNow", "Messages handed out since the start."),
    ("msg_puttotal_todaymorning", "msgPutTotalTodayMorning", "The same at the last midnight."),
    ("msg_gettotal_todaymorning", "msgGetTotalTodayMorning", "The same at the last midnight."),
    (
        "msg_puttotal_yesterdaymorning",
        "msgPutTotalYesterdayMorning",
        "The same at the midnight before.",
    ),
    (
        "msg_gettotal_yesterdaymorning",
        "msgGetTotalYesterdayMorning",
        "The same at the midnight before.",
    ),
    ("putmessage_times_total", "putMessageTimesTotal", "Messages stored since the start."),
    ("put_message_size_total", "putMessageSizeTotal", "Bytes of records stored since the start."),
    ("put_message_average_size", "putMessageAverageSize", "Bytes of a record, on average."),
    ("putmessage_entire_time_max", "putMessageEntireTimeMax", "The longest append, ms."),
    ("put_latency_99", "putLatency99", "Below it are 99 % of the appends, ms."),
    ("put_latency_999", "putLatency999", "Below it are 99.9 % of the appends, ms."),
    ("commitlog_minoffset", "commitLogMinOffset", "First byte of the commit log."),
    ("commitlog_maxoffset", "commitLogMaxOffset", "End of the commit log."),
    ("commitlog_disk_ratio", "commitLogDiskRatio", "Used part of the log's disk, 0 to 1."),
    ("consumequeue_disk_ratio", "consumeQueueDiskRatio", "Used part of the queues' disk, 0 to 1."),
    ("dispatch_behind_bytes", "dispatchBehindBytes", "Bytes not dispatched."),
    (
        "remain_transientstore_buffer_numbs",
        "remainTransientStoreBufferNumbs",
        "Buffers of the transient pool that are free; 2147483647 without a pool.",
    ),
    (
        "earliest_message_timestamp",
        "earliestMessageTimeStamp",
        "When the oldest message of the log was stored, ms since the epoch.",
    ),
    (
        "start_accept_sendrequest_time",
        "startAcceptSendRequestTimeStamp",
        "Before it, sends are refused; ms since the epoch.",
    ),
    # The exporter's spelling differs from queue to queue.
    ("send_threadpoolqueue_capacity", "sendThreadPoolQueueCapacity", "sendThreadPoolQueueCapacity"),
    ("pull_threadpoolqueue_capacity", "pullThreadPoolQueueCapacity", "pullThreadPoolQueueCapacity"),
    (
        "query_threadpool_queue_capacity",
        "queryThreadPoolQueueCapacity",
        "queryThreadPoolQueueCapacity",
    ),
)
# The same of three rates each: over 10 s, a minute and ten minutes.
_RATES: Final = (
    ("put", "put", "Messages stored a second."),
    ("getfound", "found", "Pulls answered with messages, a second."),
    ("getmiss", "missed", "Pulls answered without messages, a second."),
    ("gettotal", "found missed", "Pulls answered a second."),
    ("gettransfered", "transferred", "Messages handed out a second."),
)
_RATE_SPANS: Final = ("10", "60", "600")
# The bins of append times, in the order of TIME_BINS.
_BINS: Final = (
    "0ms", "0to10ms", "10to50ms", "50to100ms", "100to200ms", "200to500ms", "500to1s", "1to2s",
    "2to3s", "3to4s", "4to5s", "5to10s", "10stomore",
)  # fmt: skip
assert len(_BINS) == len(TIME_BINS)


class ExporterSources(NamedTuple):
    """Where the figures are found; nothing of it touches the disk."""

    cluster: str
    broker: str  # brokerName
    address: Callable[[], str]  # host:port that clients are told
    store: MessageStore
    topics: TopicConfigManager
    producers: ProducerManager
    consumers: ConsumerManager
    stats: BrokerStats
    windows: StatsWindows
    runtime: RuntimeInfo
    lag: Callable[[], Sequence[Lag]]  # of groups, as the last sweep found it
    system_topics: bool = False


class ExporterFamilies:
    """Makes the families at a scrape. Loop thread."""

    def __init__(self, sources: ExporterSources) -> None:
        self._sources = sources
        self._here = sources.cluster, sources.broker

    def families(self, plain: FamilyMaker) -> Iterator[Metric]:
        """Yield every family, also those without a series; large ones come in parts.

        Args:
            plain: makes families without constant labels.
        """
        yield from self._groups(plain)
        yield from self._topics(plain)
        yield from self._handed_out(plain)
        yield from self._brokers(plain)
        yield from self._runtime(plain)

    def _groups(self, plain: FamilyMaker) -> Iterator[Metric]:
        """Yield how far groups are, and who is in them."""
        consumers, here = self._sources.consumers, self._here
        rows = self._sources.lag()
        online = {row.group: len(consumers.clients(row.group)) for row in rows}
        for name, text, is_retry in (
            ("rocketmq_group_diff", "Messages that a group has not confirmed.", False),
            ("rocketmq_group_retrydiff", "The same of what it gave back.", True),
        ):
            yield from _parted(
                plain,
                name,
                text,
                _DIFF,
                (
                    ((row.group, row.topic, str(online[row.group]), CLUSTERING), row.messages)
                    for row in rows
                    if is_retry_topic(row.topic) is is_retry
                ),
            )
        yield from _parted(
            plain,
            "rocketmq_consumer_offset",
            "Offsets that a group has confirmed, added up.",
            _TOPIC_GROUP,
            (((*here, row.topic, row.group), row.offset) for row in rows),
        )
        yield from _parted(
            plain,
            "rocketmq_group_get_latency_by_storetime",
            "How long the oldest message that a group has not confirmed has been stored, ms.",
            _TOPIC_GROUP,
            (
                ((*here, row.topic, row.group), row.latency_ms)
                for row in rows
                if row.latency_ms is not None
            ),
        )
        yield from _parted(
            plain,
            "rocketmq_group_count",
            "Members of a consumer group, with the addresses and the ids of all.",
            ("caddr", "localaddr", "group"),
            map(self._members, sorted(online)),
        )
        producers = self._sources.producers
        yield from _parted(
            plain,
            "rocketmq_producer_count",
            "Members of a producer group.",
            _GROUP,
            (((*here, group), len(producers.clients(group))) for group in sorted(producers.groups)),
        )

    def _members(self, group: str) -> Row:
        clients = self._sources.consumers.clients(group)
        addresses = ",".join(connection.remote_address for connection in clients)
        ids = ",".join(client.client_id for client in clients.values())
        return (addresses, ids, group), len(clients)

    def _topics(self, plain: FamilyMaker) -> Iterator[Metric]:
        """Yield how far topics are, and what is sent to them."""
        sources, here = self._sources, self._here
        names = sorted(
            topic
            for topic in sources.topics.table
            if sources.system_topics or not is_system_topic(topic)
        )
        limit = sources.stats.series_limit
        if len(names) > limit:
            sources.stats.series_dropped["topic_offset"] += len(names) - limit
            names = names[:limit]
        own = [topic for topic in names if not topic.startswith("%")]
        retries = [topic for topic in names if is_retry_topic(topic)]
        for name, text, topics in (
            ("rocketmq_producer_offset", "Messages of a topic up to now.", own),
            ("rocketmq_topic_retry_offset", "The same of a group's retry topic.", retries),
        ):
            rows = (((*here, topic), self._end(topic)) for topic in topics)
            yield from _parted(plain, name, text, _TOPIC, rows)
        yield from _parted(
            plain,
            "rocketmq_topic_dlq_offset",
            "The same of a group's dead letters.",
            _GROUP,
            (
                ((*here, topic.removeprefix(DLQ_GROUP_TOPIC_PREFIX)), self._end(topic))
                for topic in names
                if topic.startswith(DLQ_GROUP_TOPIC_PREFIX)
            ),
        )
        sent = {topic for topic, _ in sources.stats.topics_in}
        for name, text, statistic in (
            ("rocketmq_producer_tps", "Messages sent a second.", "TOPIC_PUT_NUMS"),
            ("rocketmq_producer_message_size", "Bytes sent a second.", "TOPIC_PUT_SIZE"),
        ):
            rates = (
                ((*here, topic), self._rate(statistic, topic)) for topic in own if topic in sent
            )
            yield from _parted(plain, name, text, _TOPIC, rates)

    def _end(self, topic: str) -> int:
        settings = self._sources.topics.table.get(topic)
        count = 0 if settings is None else settings.write_queue_nums
        return sum(self._sources.store.max_offset(topic, queue_id) for queue_id in range(count))

    def _rate(self, statistic: str, key: str) -> float:
        growth = self._sources.windows.last_minute(statistic, key)
        if growth is None or not growth.seconds:
            return 0.0
        count = growth.size if statistic.endswith("_SIZE") else growth.messages
        return count / growth.seconds

    def _handed_out(self, plain: FamilyMaker) -> Iterator[Metric]:
        """Yield what groups take and give back."""
        stats, here = self._sources.stats, self._here
        taken = sorted(filter(self._is_shown, stats.topics_out))
        for name, text, statistic in (
            ("rocketmq_consumer_tps", "Messages that a group took a second.", "GROUP_GET_NUMS"),
            ("rocketmq_consumer_message_size", "Bytes of them.", "GROUP_GET_SIZE"),
        ):
            rows = (((*here, *key), self._rate(statistic, "@".join(key))) for key in taken)
            yield from _parted(plain, name, text, _TOPIC_GROUP, rows)
        yield from _parted(
            plain,
            "rocketmq_send_back_nums",
            "Messages that a group gave back in the last minute.",
            _TOPIC_GROUP,
            map(self._returned, sorted(filter(self._is_shown, stats.sent_back))),
        )

    def _returned(self, key: tuple[str, str]) -> Row:
        growth = self._sources.windows.last_minute("SNDBCK_PUT_NUMS", "@".join(key))
        return (*self._here, *key), 0 if growth is None else growth.messages

    def _is_shown(self, key: tuple[str, str]) -> bool:
        return self._sources.system_topics or not is_system_topic(key[0])

    def _brokers(self, plain: FamilyMaker) -> Iterator[Metric]:
        cluster, broker = self._here
        for name, text, statistic in (
            ("rocketmq_broker_tps", "Messages stored a second.", "BROKER_PUT_NUMS"),
            ("rocketmq_broker_qps", "Messages handed out a second.", "BROKER_GET_NUMS"),
        ):
            labels = cluster, self._sources.address(), broker
            rows = [(labels, self._rate(statistic, cluster))]
            yield plain.gauges(name, text, ("cluster", "brokerIP", "broker"), rows)

    def _runtime(self, plain: FamilyMaker) -> Iterator[Metric]:
        """Yield what the answer to 28 says, as numbers."""
        runtime = self._sources.runtime
        table = runtime.last_table()
        labels = (
            self._here[0], self._sources.address(), "", table["brokerVersionDesc"],
            table["bootTimestamp"], table["brokerVersion"],
        )  # fmt: skip

        def gauge(name: str, text: str, value: float | None) -> Metric:
            rows = [] if value is None else [(labels, value)]
            return plain.gauges(f"rocketmq_brokeruntime_{name}", text, _RUNTIME, rows)

        for (bound, _), name, count in zip(TIME_BINS, _BINS, runtime.put_times(), strict=True):
            yield gauge(f"pmdt_{name}", f"Appends that took at most {bound:g} s.", count)
        for name, key, text in _NUMBERS:
            number = float(table[key])
            yield gauge(name, text, number if number >= 0 else None)  # what is not known is -1
        for name, counted, text in _RATES:
            rates = runtime.rates.per_second(*counted.split())
            for span, rate in zip(_RATE_SPANS, rates, strict=True):
                yield gauge(f"{name}_tps{span}", f"{text} Over {span} s.", rate)
        space = runtime.log_space()
        total = None if space is None else sum(space)
        free = None if space is None else space.free
        yield gauge("commitlogdir_capacity_total", "Bytes of the log's disk.", total)
        yield gauge("commitlogdir_capacity_free", "Bytes that are free on it.", free)
        behind = runtime.unflushed_bytes()
        yield gauge("remain_howmanydata_toflush", "Bytes not flushed.", behind)


def _parted(
    plain: FamilyMaker, name: str, text: str, labels: Sequence[str], rows: Iterable[Row]
) -> Iterator[Metric]:
    for part in parts_of(rows):
        yield plain.gauges(name, text, labels, part)
