"""Where the collectors of a broker's metrics find their figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from prometheus_client.core import Metric

from skylarkmq.broker.base.health import HealthChecks
from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.config.settings import MetricsCompat
from skylarkmq.broker.metrics.families import FamilyMaker
from skylarkmq.broker.metrics.lag import Lag
from skylarkmq.store.stats import StoreStats

MetricsPart = Callable[[FamilyMaker], Iterator[Metric]]
PART_SIZE: Final = 500
"""Series that are made and written in one turn of the loop."""

T = TypeVar("T")


def _nothing() -> Mapping[str, int]:
    return {}


def _no_names() -> Mapping[str, bool]:
    return {}


def _zero() -> int:
    return 0


def _unknown() -> None:
    return None


def _rocketmq5() -> MetricsCompat:
    return "rocketmq5"


@dataclass(frozen=True, slots=True)
class MetricsSources:
    """Where the collector finds its figures. The callables run on the loop, touch no disk."""

    cluster: str
    broker: str  # brokerName
    loop: str  # uvloop or asyncio
    broker_stats: BrokerStats
    store_stats: StoreStats
    health: HealthChecks
    # By mark: min, max, wrote, flushed, dispatched, indexed; byte places in the commit log.
    store_offsets: Callable[[], Mapping[str, int]] = _nothing
    # By state: available, in_use; buffers of the transient pool, empty without one.
    pool_buffers: Callable[[], Mapping[str, int]] = _nothing
    acl_failures: Callable[[], int] = int
    started_at_ms: Callable[[], int] = _zero  # when serving began; 0 before
    connections: Callable[[], Mapping[str, int]] = _nothing  # by role
    name_servers: Callable[[], Mapping[str, bool]] = _no_names  # which have the registration
    longpoll_waiting: Callable[[], int] = _zero
    topic_count: Callable[[], int] = _zero
    group_count: Callable[[], int] = _zero
    filter_count: Callable[[], int] = _zero  # SQL92 filters of groups
    differing: Callable[[], Mapping[str, int]] = _nothing  # subscriptions of a group, if several
    permission: Callable[[], int] = _zero  # 2 write, 4 read, 6 both
    half_messages: Callable[[], int] = _zero  # that have not ended
    reserve_ms: Callable[[], int | None] = _unknown  # age of the log's oldest message
    more: tuple[MetricsPart, ...] = ()  # families of the broker's services, ours
    node: tuple[MetricsPart, ...] = ()  # RocketMQ 5's of the broker
    storage: tuple[MetricsPart, ...] = ()  # RocketMQ 5's of the store
    compat: Callable[[], MetricsCompat] = _rocketmq5  # metricsCompat
    lag: Callable[[], Sequence[Lag]] = tuple  # of groups, as the last sweep found it
    system_topics: bool = False  # show the series of system topics too


def parts_of(rows: Iterable[T], lines: int = 1) -> Iterator[list[T]]:
    """Yield rows in parts, each of which the loop may take in one turn; no rows are one part.

    A row of an iterator is worked out when its part is.

    Args:
        lines: that a row has on the page; more than one of a histogram.
    """
    remaining, size = iter(rows), max(1, PART_SIZE // lines)
    yield [*islice(remaining, size)]
    while part := [*islice(remaining, size)]:
        yield part
