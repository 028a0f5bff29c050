"""Where the collectors of a broker's metrics find their figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from prometheus_client.core import Metric

from skylarkmq.broker.base.health import HealthChecks
from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.metrics.families import FamilyMaker
from skylarkmq.broker.metrics.lag import Lag
from skylarkmq.store.stats import StoreStats

MetricsPart = Callable[[FamilyMaker], Iterator[Metric]]
PART_SIZE: Final = 500
"""Series that are made and written in one turn of the loop."""

T = TypeVar("T")


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
    store_offsets: Callable[[], Mapping[str, int]] = dict
    # By state: available, in_use; buffers of the transient pool, empty without one.
    pool_buffers: Callable[[], Mapping[str, int]] = dict
    acl_failures: Callable[[], int] = int
    started_at_ms: Callable[[], int] = int  # when serving began; 0 before
    connections: Callable[[], Mapping[str, int]] = dict  # by role
    name_servers: Callable[[], Mapping[str, bool]] = dict  # which have the registration
    longpoll_waiting: Callable[[], int] = int
    topic_count: Callable[[], int] = int
    group_count: Callable[[], int] = int
    filter_count: Callable[[], int] = int  # SQL92 filters of groups
    differing: Callable[[], Mapping[str, int]] = dict  # subscriptions of a group, if several
    permission: Callable[[], int] = int  # 2 write, 4 read, 6 both
    half_messages: Callable[[], int] = int  # that have not ended
    reserve_ms: Callable[[], int | None] = lambda: None  # age of the log's oldest message
    more: tuple[MetricsPart, ...] = ()  # families of the broker's services, ours
    node: tuple[MetricsPart, ...] = ()  # RocketMQ 5's of the broker
    storage: tuple[MetricsPart, ...] = ()  # RocketMQ 5's of the store
    lag: Callable[[], Sequence[Lag]] = tuple  # of groups, as the last sweep found it


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
