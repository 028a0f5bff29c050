"""Prometheus metrics: every family of a broker, collected at a scrape from plain counters.

The first scrape loads this module: prometheus-client takes a sixth of the time and of the memory of
a start. Nothing here runs between two scrapes. Two namespaces:

    rocketmq_*    names, labels and units of RocketMQ 5's brokers, so that its boards and alerts
                  work; a gauge with a unit also has its bare name
    skylarkmq_*   ours: base units, `_total` on counters, `broker` and `cluster` on every series

A family without a series is left out: a zero would claim that something was counted.

Source: apache/rocketmq@rocketmq-all-5.3.3 broker/.../metrics/BrokerMetricsConstant.java,
store/.../metrics/DefaultStoreMetricsConstant.java
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from platform import machine, python_implementation, python_version, system
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric

from skylarkmq import __version__, kernel
from skylarkmq.broker.base.health import HealthChecks, run_checks
from skylarkmq.broker.components import BrokerParts
from skylarkmq.broker.delay.schedule_service import ScheduleMessageService
from skylarkmq.broker.groups.client_calls import ClientCalls
from skylarkmq.broker.groups.rebalance_lock import RebalanceLockManager
from skylarkmq.broker.metrics.access_families import access_families
from skylarkmq.broker.metrics.deduplication_families import deduplication_families
from skylarkmq.broker.metrics.families import FamilyMaker
from skylarkmq.broker.metrics.grpc_families import grpc_families
from skylarkmq.broker.metrics.master_families import master_families
from skylarkmq.broker.metrics.pop_families import pop_families
from skylarkmq.broker.metrics.replica_families import replica_families
from skylarkmq.broker.metrics.replication_families import replication_families
from skylarkmq.broker.metrics.rocketmq5 import (
    RocketMQ5Families,
    connection_families,
    timer_families,
)
from skylarkmq.broker.metrics.sources import MetricsSources
from skylarkmq.broker.timer.service import TimerMessageService
from skylarkmq.broker.transaction.ledger import TransactionLedger
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.store.queue.topic_removal import TopicRemoval

STORE_FORMAT: Final = "rocketmq-4.9"


def registry_of(
    parts: BrokerParts,
    checks: HealthChecks,
    loop: str,
    connections: Callable[[], Mapping[str, int]],
    started_at_ms: Callable[[], int],
    name_servers: Callable[[], Mapping[str, bool]] = dict,
) -> CollectorRegistry:
    """Return a registry with the metrics of a broker and of its process. Any thread.

    Args:
        loop: uvloop or asyncio.
        connections: the connected peers by role.
        started_at_ms: when serving began, 0 before.
        name_servers: whether each of those elsewhere has taken the last registration.
    """
    config = parts.config
    sources = MetricsSources(
        cluster=config.broker_cluster_name,
        broker=config.broker_name,
        loop=loop,
        broker_stats=parts.stats,
        store_stats=parts.store.stats,
        health=checks,
        store_offsets=parts.store_offsets,
        pool_buffers=parts.pool_buffers,
        acl_failures=lambda: parts.access_files.failure_count if parts.access_files else 0,
        started_at_ms=started_at_ms,
        connections=connections,
        name_servers=name_servers,
        longpoll_waiting=lambda: parts.holding.count,
        topic_count=lambda: len(parts.topics.table),
        group_count=lambda: len(parts.groups.table),
        differing=lambda: parts.consumers.watch.differing,
        filter_count=lambda: parts.filters.count,
        permission=lambda: config.broker_permission,
        lag=lambda: parts.lag.rows,
        more=(
            partial(delay_families, parts.schedule, parts.timer),
            partial(client_call_families, parts.client_calls),
            partial(lock_families, parts.locks),
            partial(transaction_families, parts.transactions),
            partial(removal_families, parts.store.removal),
            partial(deduplication_families, parts.store.deduplication.windows),
            partial(access_families, config, parts.tls_gates),
            partial(_copy_families, parts),
            partial(pop_families, parts.pop, parts.stats.series_limit),
            lambda maker: grpc_families(parts.grpc, maker),  # made after this
        ),
        half_messages=lambda: parts.transactions.pending_count,
        reserve_ms=parts.info.reserve_ms,
        node=(
            partial(
                connection_families, parts.producers, parts.consumers, parts.stats.series_limit
            ),
        ),
        storage=(partial(timer_families, parts.timer),),
    )
    return build_registry(sources)


def _copy_families(parts: BrokerParts, ours: FamilyMaker) -> Iterator[Metric]:
    """Yield the families about copies of the log on other machines."""
    yield from replication_families(parts.ha_server, ours)
    yield from master_families(parts.ha_client, ours)
    yield from replica_families(parts.replica, parts.stats, ours)


def build_registry(sources: MetricsSources) -> CollectorRegistry:
    """Return a registry with the broker's metrics and those of its process."""
    registry = CollectorRegistry()
    registry.register(BrokerCollector(sources))
    ProcessCollector(registry=registry)
    return registry


class BrokerCollector:
    """A prometheus-client collector over `MetricsSources`. Loop thread."""

    def __init__(self, sources: MetricsSources) -> None:
        self._sources = sources
        self._stats = sources.broker_stats
        self._ours = FamilyMaker({"broker": sources.broker, "cluster": sources.cluster})
        self._rocketmq5 = RocketMQ5Families(sources)

    def describe(self) -> Iterable[Metric]:
        """Name no family ahead of the scrape: each appears with its first series."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the families that have a series, one by one: the caller may let the loop run.

        Those that grow with topics and groups come in parts, under one name.
        """
        return (family for family in self.families() if family.samples)

    def families(self) -> Iterator[Metric]:
        """Yield every family, also those that have no series yet."""
        yield from self._own()
        yield from self._rocketmq5.families()

    def _own(self) -> Iterator[Metric]:
        yield from self._broker()
        yield from self._connections()
        yield from self._wire()
        yield from self._access()
        yield from self._requests()
        for part in self._sources.more:
            yield from part(self._ours)
        yield from self._store_times()
        yield from self._store_counts()
        yield from self._disk()
        yield from self._store_offsets()
        yield from self._recovery()

    def _broker(self) -> Iterator[Metric]:
        sources, ours = self._sources, self._ours
        yield ours.info(
            "skylarkmq_build",
            "What runs here; always 1.",
            {
                "version": __version__,
                "python": f"{python_implementation()} {python_version()}",
                "loop": sources.loop,
                "kernel": kernel.road,
                "platform": f"{system()} {machine()}",
                "store_format": STORE_FORMAT,
            },
        )
        if started_at_ms := sources.started_at_ms():
            yield ours.gauge(
                "skylarkmq_start_time_seconds",
                "Unix time at which the process began to serve.",
                started_at_ms / 1000,
            )
        yield ours.gauges(
            "skylarkmq_ready",
            "Whether a part of the broker is ready for clients.",
            ("component",),
            [((name,), not why) for name, why in run_checks(sources.health.ready).items()],
        )
        yield ours.gauges(
            "skylarkmq_nameserver_registered",
            "1 while a name server has taken this broker's last registration; those elsewhere.",
            ("nameserver",),
            [((address,), is_so) for address, is_so in sources.name_servers().items()],
        )
        yield ours.histograms(
            "skylarkmq_event_loop_lag_seconds",
            "How late a 100 ms tick of the event loop ran.",
            (),
            [((), self._stats.loop_lag)],
        )
        yield ours.counters(
            "skylarkmq_metrics_series_dropped",
            "Look-ups folded into __other__ because a family had too many series.",
            ("family",),
            [((name,), count) for name, count in self._stats.series_dropped.items()],
        )
        yield ours.gauges(
            "skylarkmq_consumer_group_differing_subscriptions",
            "Different subscriptions among the members of a group; only groups that differ.",
            ("consumer_group",),
            [((group,), count) for group, count in sorted(sources.differing().items())],
        )
        yield ours.gauge(
            "skylarkmq_consumer_filters",
            "SQL92 filters of consumer groups.",
            sources.filter_count(),
        )

    def _connections(self) -> Iterator[Metric]:
        yield self._ours.gauges(
            "skylarkmq_connections",
            "Open client connections by what their heartbeats say.",
            ("role",),
            [((role,), count) for role, count in self._sources.connections().items()],
        )
        yield self._ours.counter(
            "skylarkmq_connections_opened",
            "Accepted client connections.",
            self._stats.connections_opened,
        )
        yield self._ours.counters(
            "skylarkmq_connections_closed",
            "Ended client connections.",
            ("reason",),
            [((reason,), count) for reason, count in self._stats.connections_closed.items()],
        )

        yield self._ours.counter(
            "skylarkmq_heartbeats_refused",
            "Heartbeats that were refused: such a client receives nothing; the log names it.",
            self._stats.heartbeats_refused,
        )

    def _wire(self) -> Iterator[Metric]:
        rows = [
            ((direction, SerializeType(kind).name.lower()), traffic)
            for direction, table in (
                ("in", self._stats.frames_in),
                ("out", self._stats.frames_out),
            )
            for kind, traffic in table.items()
        ]
        yield self._ours.counters(
            "skylarkmq_network_bytes",
            "Bytes of whole frames on client connections.",
            ("direction", "codec"),
            [(labels, traffic.bytes) for labels, traffic in rows],
        )
        yield self._ours.counters(
            "skylarkmq_frames",
            "Frames on client connections.",
            ("direction", "codec"),
            [(labels, traffic.count) for labels, traffic in rows],
        )
        yield self._ours.counters(
            "skylarkmq_protocol_errors",
            "Traffic that breaks the protocol.",
            ("kind",),
            [((kind,), count) for kind, count in self._stats.protocol_errors.items()],
        )

    def _access(self) -> Iterator[Metric]:
        yield self._ours.counters(
            "skylarkmq_auth_failures",
            "Requests that access control refused, by what was lacking.",
            ("reason",),
            [((reason,), count) for reason, count in self._stats.auth_failures.items()],
        )
        yield self._ours.counter(
            "skylarkmq_acl_reload_failures",
            "Times that changed files of access control could not be used; the old rules stayed.",
            self._sources.acl_failures(),
        )

    def _requests(self) -> Iterator[Metric]:
        busy = self._sources.store_stats.busy_refusals
        yield self._ours.counters(
            "skylarkmq_requests_rejected",
            "Requests refused for overload or by access control, by kind of request and by cause.",
            ("kind", "cause"),
            [
                *self._stats.rejections.items(),
                *((("send", cause), count) for cause, count in busy.items()),
            ],
        )
        yield self._ours.histograms(
            "skylarkmq_request_duration_seconds",
            "Time from a request's arrival to its answer; without the wait of held pulls, and "
            "without sends: see skylarkmq_store_append_duration and skylarkmq_store_ack_wait.",
            ("request", "outcome"),
            [
                ((RequestCode(code).name.lower(), outcome), durations)
                for (code, outcome), durations in sorted(self._stats.requests.items())
            ],
        )
        yield self._ours.gauge(
            "skylarkmq_longpoll_waiting",
            "Pulls that are held until a message comes.",
            self._sources.longpoll_waiting(),
        )
        yield self._ours.counters(
            "skylarkmq_pull_results",
            "Outcomes of pulls.",
            ("result",),
            [((result,), count) for result, count in self._stats.pull_results.items()],
        )

    def _store_times(self) -> Iterator[Metric]:
        stats = self._sources.store_stats
        yield self._ours.histograms(
            "skylarkmq_store_append_duration_seconds",
            "Time to write the records of one batch.",
            (),
            [((), stats.append_duration)],
        )
        yield self._ours.histograms(
            "skylarkmq_store_fsync_duration_seconds",
            "Time of each flush to the disk.",
            ("file",),
            [
                (("commitlog",), stats.fsync_commit_log),
                (("index",), stats.fsync_index),
            ],
        )
        if self._sources.pool_buffers():
            yield self._ours.histograms(
                "skylarkmq_store_commit_duration_seconds",
                "Time of each commit of the transient pool to the page cache, ASYNC_FLUSH.",
                (),
                [((), stats.commit_duration)],
            )
        yield self._ours.histograms(
            "skylarkmq_store_group_commit_size",
            "Messages acknowledged by one flush.",
            (),
            [((), stats.group_commit_size)],
        )
        yield self._ours.histograms(
            "skylarkmq_store_ack_wait_seconds",
            "Time from append to acknowledgement.",
            ("mode",),
            [(("sync",), stats.ack_wait)],
        )

    def _store_counts(self) -> Iterator[Metric]:
        ours, stats = self._ours, self._sources.store_stats
        yield ours.counter(
            "skylarkmq_store_appended_messages",
            "Records written by any writer: clients, retries, delays that came due.",
            stats.messages_appended,
        )
        yield ours.counter(
            "skylarkmq_store_appended_bytes", "Bytes of records written.", stats.bytes_appended
        )
        yield ours.counter(
            "skylarkmq_store_late_allocations",
            "Commit-log files that were not ready when messages needed them.",
            stats.late_allocations,
        )
        yield ours.counters(
            "skylarkmq_store_errors",
            "Failed writes and flushes of the disk; anything above 0 has ended the writing.",
            ("operation",),
            [(("write",), stats.write_errors), (("fsync",), stats.fsync_errors)],
        )
        yield ours.counter(
            "skylarkmq_store_clock_steps",
            "How often the clock was a minute behind the newest message: store times went back.",
            stats.clock_steps,
        )
        yield ours.counter(
            "skylarkmq_store_cold_reads",
            "Reads of what memory is not taken to hold, done off the event loop.",
            stats.cold_reads,
        )
        yield ours.counter(
            "skylarkmq_store_corrupt_records",
            "Damaged records that a reader wanted and did not get; the log names each.",
            stats.corrupt_records,
        )
        yield ours.counters(
            "skylarkmq_filter_records",
            "Records that reads filtered by properties looked at, by what became of them.",
            ("result",),
            [
                (("matched",), stats.filter_matched),
                (("refused",), stats.filter_examined - stats.filter_matched),
            ],
        )
        yield ours.counter(
            "skylarkmq_store_index_entries", "Keys put into the key index.", stats.index_entries
        )
        yield ours.counter(
            "skylarkmq_store_index_records_read",
            "Records read from the log again because the key index had not reached them.",
            stats.index_records_read,
        )

    def _disk(self) -> Iterator[Metric]:
        ours, stats = self._ours, self._sources.store_stats
        yield ours.gauges(
            "skylarkmq_store_disk_used_ratio",
            "Used part of the disks that hold the store, 0 to 1.",
            ("kind",),
            [
                ((kind,), percent / 100)
                for kind, percent in stats.disk_used_percent.items()
                if percent >= 0
            ],
        )
        yield ours.counters(
            "skylarkmq_store_files_deleted",
            "Files that were removed: expired, or because the disk was full.",
            ("kind",),
            [
                (("commitlog",), stats.log_files_deleted),
                (("consumequeue",), stats.queue_files_deleted),
            ],
        )
        yield ours.gauges(
            "skylarkmq_store_pool_buffers",
            "Buffers of the transient pool; none available answers sends with code 2.",
            ("state",),
            [((state,), count) for state, count in self._sources.pool_buffers().items()],
        )

    def _store_offsets(self) -> Iterator[Metric]:
        offsets = self._sources.store_offsets()
        yield self._ours.gauges(
            "skylarkmq_store_offset_bytes",
            "Places in the commit log.",
            ("mark",),
            [((mark,), offset) for mark, offset in offsets.items()],
        )
        if "indexed" in offsets:
            yield self._ours.gauge(
                "skylarkmq_store_index_behind_bytes",
                "Bytes of the commit log whose keys are not in the key index yet.",
                offsets["max"] - offsets["indexed"],
            )

    def _recovery(self) -> Iterator[Metric]:
        stats = self._sources.store_stats
        if stats.recovery_mode:
            yield self._ours.gauges(
                "skylarkmq_store_recovery_duration_seconds",
                "How long the last recovery took.",
                ("mode",),
                [((stats.recovery_mode,), stats.recovery_duration_s)],
            )
        yield self._ours.gauges(
            "skylarkmq_store_recovery_truncated_bytes",
            "Bytes cut off by the last recovery.",
            ("kind",),
            [((kind,), size) for kind, size in sorted(stats.recovery_truncated_bytes.items())],
        )


def delay_families(
    levels: ScheduleMessageService, timers: TimerMessageService, ours: FamilyMaker
) -> Iterator[Metric]:
    """Yield the families of delayed messages; kind is `level` or `timer`."""
    yield ours.gauges(
        "skylarkmq_delayed_messages",
        "Delayed messages that are stored and not delivered.",
        ("kind",),
        [(("level",), levels.waiting_count), (("timer",), timers.waiting_count)],
    )
    yield ours.gauges(
        "skylarkmq_delayed_lag_seconds",
        "How long the most overdue delayed message has been due.",
        ("kind",),
        [(("level",), levels.lag_s), (("timer",), timers.lag_s)],
    )
    yield ours.counters(
        "skylarkmq_delayed_delivered",
        "Delayed messages delivered to their topics.",
        ("kind",),
        [(("level",), levels.delivered_count), (("timer",), timers.deliveries.delivered_count)],
    )
    yield ours.counters(
        "skylarkmq_delayed_skipped",
        "Delayed messages that could not be delivered; the log names each.",
        ("kind",),
        [(("level",), levels.skipped_count), (("timer",), timers.messages.skipped_count)],
    )
    yield ours.counter(
        "skylarkmq_delayed_cancelled",
        "Timed messages taken back by TIMER_DEL_UNIQKEY.",
        timers.messages.cancelled_count,
    )
    yield ours.counter(
        "skylarkmq_delayed_stored_again",
        "Timed messages stored again because their log file was to go.",
        timers.rolling.rolled_count,
    )


def removal_families(removal: TopicRemoval, ours: FamilyMaker) -> Iterator[Metric]:
    """Yield the family of deleted topics."""
    yield ours.gauges(
        "skylarkmq_deleted_topics",
        "Deleted topics by what is left of them: log, messages that have not expired; all, until "
        "the deletion has ended.",
        ("left",),
        [(("log",), len(removal.topics.entries)), (("all",), len(removal.topics.unfinished))],
    )


def lock_families(locks: RebalanceLockManager, ours: FamilyMaker) -> Iterator[Metric]:
    """Yield the family of queues that members of groups lock, to consume in order."""
    yield ours.gauge(
        "skylarkmq_queue_locks", "Queue locks of ordered consumers that are held.", len(locks)
    )


def client_call_families(calls: ClientCalls, ours: FamilyMaker) -> Iterator[Metric]:
    """Yield the families of requests that the broker sends and clients answer."""
    yield ours.gauge(
        "skylarkmq_client_calls_waiting",
        "Requests to clients without an answer yet.",
        calls.waiting_count,
    )
    yield ours.gauge(
        "skylarkmq_client_calls_waiting_bytes",
        "Bytes of the bodies of requests to clients without an answer yet.",
        calls.waiting_size,
    )
    yield ours.counters(
        "skylarkmq_client_calls",
        "Requests to clients by outcome; refused ones found too many waiting.",
        ("outcome",),
        [((outcome,), count) for outcome, count in calls.outcomes.items()],
    )


def transaction_families(ledger: TransactionLedger, ours: FamilyMaker) -> Iterator[Metric]:
    """Yield the open transactions, how the others ended, and the checks."""
    stats = ledger.stats
    yield ours.gauge(
        "skylarkmq_transactions_open",
        "Half messages that are neither committed nor rolled back.",
        ledger.pending_count,
    )
    yield ours.counters(
        "skylarkmq_transactions_ended",
        "Transactions by how they ended; those given up are in TRANS_CHECK_MAX_TIME_TOPIC.",
        ("outcome",),
        [
            (("committed",), stats.committed),
            (("rolled_back",), stats.rolled_back),
            (("given_up",), stats.given_up),
        ],
    )
    yield ours.counters(
        "skylarkmq_transaction_checks",
        "Questions to producer groups; `nobody`: no client of the group was connected.",
        ("outcome",),
        [(("asked",), stats.asked), (("nobody",), stats.nobody)],
    )
    yield ours.counter(
        "skylarkmq_transactions_postponed",
        "Half messages stored anew because CHECK_IMMUNITY_TIME_IN_SECONDS forbids a question yet.",
        stats.postponed,
    )
    yield ours.counter(
        "skylarkmq_transaction_verdicts_refused",
        "Commits and rollbacks that name no open half message.",
        stats.refused,
    )
