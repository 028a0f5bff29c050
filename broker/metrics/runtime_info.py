"""The broker's figures as RocketMQ's tools read them (28): one text a key.

Rates are three numbers, over 10 s, a minute and ten minutes, with a blank between; one that is not
known yet is empty. Times of appends are those of whole batches, and known up to the bounds of our
histograms. Requests wait here in no queue of their kind, so the sizes of those queues are 0.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(prepareRuntimeInfo), store/.../StoreStatsService.java (getRuntimeInfo)
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Final, NamedTuple

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.delay.schedule_service import ScheduleMessageService
from skylarkmq.broker.metrics.earliest import EarliestMessage
from skylarkmq.broker.metrics.rates import BrokerRates
from skylarkmq.common.clock import Clock
from skylarkmq.common.histogram import Histogram
from skylarkmq.protocol.codes import CURRENT_VERSION, MQVersion
from skylarkmq.protocol.flags import RMQ_SYS_SCHEDULE_TOPIC
from skylarkmq.store.delay_levels import schedule_queue_id
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.upkeep.disk_watch import Spaces, used_percent

GRPC_ENDPOINT: Final = "skylarkmqGrpcEndpoint"
GRPC_ADDRESS: Final = "skylarkmqGrpcAddress"
NO_POOL_BUFFERS: Final = 2_147_483_647
END_TRANSACTION_CAPACITY: Final = 100_000
# Upper bounds in seconds and their names, RocketMQ's.
TIME_BINS: Final = (
    (0.001, "<=0ms"), (0.01, "0~10ms"), (0.05, "10~50ms"), (0.1, "50~100ms"), (0.2, "100~200ms"),
    (0.5, "200~500ms"), (1.0, "500ms~1s"), (2.0, "1~2s"), (3.0, "2~3s"), (4.0, "3~4s"),
    (5.0, "4~5s"), (10.0, "5~10s"), (float("inf"), "10s~"),
)  # fmt: skip


class GrpcPlaces(NamedTuple):
    """Where a broker is found by gRPC, each `host:port`; for other brokers of its topics.

    Attributes:
        endpoint: where its clients of RocketMQ 5 find it.
        address: of its own port, without what may stand before it.
    """

    endpoint: str
    address: str


class RuntimeInfo:
    """Gathers the figures. Loop thread.

    Attributes:
        grpc: where this broker is found by gRPC; None: nowhere. Ours.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        schedule: ScheduleMessageService,
        rates: BrokerRates,
        clock: Clock,
    ) -> None:
        self._config = config
        self._store = store
        self._schedule = schedule
        self.rates = rates
        self.earliest = EarliestMessage(store)
        self._clock = clock
        self._boot_ms = clock.now_ms()
        self.grpc: GrpcPlaces | None = None

    def table(self, spaces: Spaces, earliest_ms: int) -> dict[str, str]:
        """Return every key with its text.

        Args:
            spaces: the partitions, as they were just measured.
            earliest_ms: store time of the first message of the log, -1 without one.
        """
        return {
            **self._process(),
            **self._counts(),
            **self._put_times(),
            **self._log(spaces, earliest_ms),
            **self._delays(),
            **self._queues(),
        }

    def reserve_ms(self) -> int | None:
        """Return how long the oldest message of the log has been stored; None: not known."""
        stored_ms = self.earliest.stored_ms
        return max(0, self._clock.now_ms() - stored_ms) if stored_ms >= 0 else None

    def _unflushed_bytes(self) -> int:
        """Return how much of the log is not on the disk yet."""
        log = self._store.commit_log
        return max(0, log.wrote_offset - log.flushed_offset)

    def _process(self) -> dict[str, str]:
        seconds = max(0, self._clock.now_ms() - self._boot_ms) // 1000
        minutes, hours = seconds // 60, seconds // 3600
        grpc = dict(zip((GRPC_ENDPOINT, GRPC_ADDRESS), self.grpc or (), strict=False))
        return {
            **grpc,
            "bootTimestamp": str(self._boot_ms),
            "brokerVersion": str(CURRENT_VERSION),
            "brokerVersionDesc": MQVersion(CURRENT_VERSION).name,
            "runtime": (
                f"[ {hours // 24} days, {hours % 24} hours, {minutes % 60} minutes, "
                f"{seconds % 60} seconds ]"
            ),
            "startAcceptSendRequestTimeStamp": str(
                self._config.start_accept_send_request_time_stamp
            ),
        }

    def _counts(self) -> dict[str, str]:
        rates, now = self.rates, self.rates.now()
        transferred = _rates_text(rates.per_second("transferred"))
        return {
            "msgPutTotalYesterdayMorning": str(rates.yesterday.put),
            "msgPutTotalTodayMorning": str(rates.today.put),
            "msgPutTotalTodayNow": str(now.put),
            "msgGetTotalYesterdayMorning": str(rates.yesterday.transferred),
            "msgGetTotalTodayMorning": str(rates.today.transferred),
            "msgGetTotalTodayNow": str(now.transferred),
            "putTps": _rates_text(rates.per_second("put")),
            "getFoundTps": _rates_text(rates.per_second("found")),
            "getMissTps": _rates_text(rates.per_second("missed")),
            "getTotalTps": _rates_text(rates.per_second("found", "missed")),
            "getTransferedTps": transferred,
            "getTransferredTps": transferred,  # spelled so from 5.x on
        }

    def _put_times(self) -> dict[str, str]:
        stats = self._store.stats
        count, size = stats.messages_appended, stats.bytes_appended
        times = stats.append_duration
        return {
            "putMessageTimesTotal": str(count),
            "putMessageFailedTimes": str(stats.write_errors),
            "putMessageSizeTotal": str(size),
            "putMessageAverageSize": str(size / count) if count else "NaN",
            "putMessageEntireTimeMax": str(_longest_ms(times)),
            "getMessageEntireTimeMax": "0",
            "putMessageDistributeTime": distribution(times),
            "putLatency99": f"{_quantile_ms(times, 0.99):.2f}",
            "putLatency999": f"{_quantile_ms(times, 0.999):.2f}",
            "pageCacheLockTimeMills": "0",
        }

    def _log(self, spaces: Spaces, earliest_ms: int) -> dict[str, str]:
        store, log = self._store, self._store.commit_log
        used = used_percent(spaces.log)
        ratio = _ratio(used)
        table = {
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{store.paths.commit_log}": ratio,
            "consumeQueueDiskRatio": _ratio(used_percent(spaces.queues)),
            "commitLogMinOffset": str(log.min_offset),
            "commitLogMaxOffset": str(log.max_offset),
            "commitLogDirCapacity": (
                f"Total : {human_size(sum(spaces.log or (0, 0)))}, "
                f"Free : {human_size(spaces.log.free if spaces.log else 0)}."
            ),
            "dispatchMaxBuffer": "0",
            "dispatchBehindBytes": str(max(0, log.max_offset - store.writer.published_offset)),
            "earliestMessageTimeStamp": str(earliest_ms),
            "remainHowManyDataToFlush": human_size(self._unflushed_bytes()),
            "remainTransientStoreBufferNumbs": str(NO_POOL_BUFFERS),
        }
        if log.pool is not None:
            table["remainTransientStoreBufferNumbs"] = str(log.pool.available_count)
            behind = max(0, log.wrote_offset - log.max_offset)
            table["remainHowManyDataToCommit"] = human_size(behind)
        return table

    def _delays(self) -> dict[str, str]:
        table: dict[str, str] = {}
        for level in self._schedule.levels:
            end = self._store.max_offset(RMQ_SYS_SCHEDULE_TOPIC, schedule_queue_id(level))
            delivered = end - self._schedule.pending_count(level)
            table[f"scheduleMessageOffset_{level}"] = f"{delivered},{end}"
        return table

    def _queues(self) -> dict[str, str]:
        config = self._config
        capacities = {
            "send": config.send_thread_pool_queue_capacity,
            "pull": config.pull_thread_pool_queue_capacity,
            "query": config.query_thread_pool_queue_capacity,
        }
        table = {
            "EndTransactionQueueSize": "0",
            "EndTransactionThreadPoolQueueCapacity": str(END_TRANSACTION_CAPACITY),
        }
        for kind, capacity in capacities.items():
            table[f"{kind}ThreadPoolQueueSize"] = "0"
            table[f"{kind}ThreadPoolQueueCapacity"] = str(capacity)
            table[f"{kind}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        return table


def _rates_text(rates: Iterable[float | None]) -> str:
    return " ".join("" if rate is None else str(rate) for rate in rates)


def _ratio(percent: int) -> str:
    return str(percent / 100) if percent >= 0 else "-1.0"


def human_size(size: int) -> str:
    """Return a size as RocketMQ writes it: `210 B`, `1.5 KiB`."""
    if size < 1024:
        return f"{size} B"
    power = min(6, (size.bit_length() - 1) // 10)
    return f"{size / 1024**power:.1f} {'KMGTPE'[power - 1]}iB"


def distribution(times: Histogram) -> str:
    """Return counts by RocketMQ's bins as a text."""
    return "".join(f"[{name}]:{count} " for name, count in _binned(times).items())


def _binned(times: Histogram) -> dict[str, int]:
    """Return counts by RocketMQ's bins; what lies in two of them counts in the upper one."""
    counts = dict.fromkeys((name for _, name in TIME_BINS), 0)
    for bound, count in zip((*times.bounds, float("inf")), times.counts, strict=True):
        name = next(name for limit, name in TIME_BINS if bound <= limit)
        counts[name] += count
    return counts


def _longest_ms(times: Histogram) -> int:
    bounds = (*times.bounds, times.bounds[-1])
    seen = [bound for bound, count in zip(bounds, times.counts, strict=True) if count]
    return int(max(seen, default=0.0) * 1000)


def _quantile_ms(times: Histogram, share: float) -> float:
    """Return the bound below which this share of the times lies."""
    wanted = times.count * share
    bounds = (*times.bounds, times.bounds[-1])
    for bound, count in zip(bounds, accumulate(times.counts), strict=True):
        if count and count >= wanted:
            return bound * 1000
    return 0.0
