"""What a streaming query reports: lag, rows, batch time and late rows, to Prometheus and the log.

    Spark  --progress JSON-->  read_progress  --QueryProgress-->  ProgressMetrics, the log

Spark has no hook for a Python source's own metrics, but each progress holds what the source reports
as its latest offset, and ours puts its figures there: sources[0].latestOffset has `behind`, `lost`
and `away` (`StreamPlanner.report`). A query without a name goes by its id, which stays over
restarts.

    watch(spark, port=9464)         every query of the session, scraped at :9464/metrics

    skylarkmq_spark_lag_messages{query,topic}            messages before the end of the topic
    skylarkmq_spark_rows_total{query}                    rows read
    skylarkmq_spark_batches_total{query}                 batches finished
    skylarkmq_spark_batch_seconds_total{query}           time they took
    skylarkmq_spark_last_batch_seconds{query}
    skylarkmq_spark_lost_messages_total{query}           passed over with failOnDataLoss=false
    skylarkmq_spark_late_rows_total{query}               rows that a watermark of Spark's dropped
    skylarkmq_spark_watermark_timestamp_seconds{query}
    skylarkmq_spark_query_failures_total{query}
    skylarkmq_spark_queries_active

Driver process. Listeners run on a thread of Spark's; a scrape on one of prometheus_client's.
Importing this loads no pyspark. Source: apache/spark@v4.3.0
python/pyspark/sql/streaming/listener.py (StreamingQueryProgress, SourceProgress)
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

from prometheus_client import REGISTRY, CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)

SPARK_NO_WATERMARK: Final = "1970-01-01T00:00:00.000Z"
FINISHED_QUERIES_MAX: Final = 100
"""Queries that have ended and whose figures are still there to be scraped."""


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """One progress of one query."""

    query: str
    """Its name, else its id."""
    run_id: str
    """Another one after each restart."""
    batch_id: int
    rows: int
    batch_ms: int
    lag: Mapping[str, int]
    """Messages between where the batch ended and the end of each topic; empty if not known."""
    behind: int | None
    """The sum of `lag`, None if not known."""
    lost: int
    """Messages passed over with failOnDataLoss=false since this run of the query began."""
    late_rows: int
    """Rows that Spark's own watermark dropped; after its partial aggregation."""
    watermark: str | None
    """As Spark prints it, None without one."""


def read_progress(document: Mapping[str, Any]) -> QueryProgress:
    """Return what a progress says. Sources that are not ours add rows, but no lag.

    Args:
        document: Spark's progress JSON, parsed.
    """
    lag: dict[str, int] = {}
    reports = [_report(source.get("latestOffset")) for source in document.get("sources") or ()]
    known = [report for report in reports if report is not None]
    for report in known:
        for topic, count in report["behind"].items():
            lag[topic] = lag.get(topic, 0) + int(count)
    times: Mapping[str, Any] = document.get("eventTime") or {}
    watermark: str | None = times.get("watermark")
    return QueryProgress(
        query=str(document.get("name") or document["id"]),
        run_id=str(document["runId"]),
        batch_id=int(document["batchId"]),
        rows=int(document.get("numInputRows") or 0),
        batch_ms=int(document.get("batchDuration") or 0),
        lag=lag,
        behind=sum(lag.values()) if known else None,
        lost=sum(int(report["lost"]) for report in known),
        late_rows=sum(
            int(operator.get("numRowsDroppedByWatermark") or 0)
            for operator in document.get("stateOperators") or ()
        ),
        watermark=None if watermark == SPARK_NO_WATERMARK else watermark,
    )


def _report(latest: object) -> Mapping[str, Any] | None:
    """Return what our source reports as its latest offset; see `StreamPlanner.report`. None: the
    source is another's, or has reported nothing yet.

    Args:
        latest: JSON text, or what it holds.
    """
    if isinstance(latest, str | bytes):
        try:
            latest = json.loads(latest)
        except ValueError:
            return None
    if not isinstance(latest, Mapping):
        return None
    found = cast("Mapping[str, Any]", latest)
    return found if {"v", "o", "behind", "lost"} <= found.keys() else None


@dataclass(slots=True)
class _Figures:
    """What one query has reported so far; a progress that comes twice counts once."""

    last: QueryProgress | None = None
    rows: int = 0
    batches: int = 0
    batch_ms: int = 0
    late_rows: int = 0
    lost: int = 0
    failures: int = 0

    def take(self, progress: QueryProgress) -> None:
        before, self.last = self.last, progress
        same_run = before is not None and before.run_id == progress.run_id
        if before and same_run and before.batch_id == progress.batch_id:
            return
        self.lost += progress.lost - (before.lost if before and same_run else 0)
        self.rows += progress.rows
        self.batches += 1
        self.batch_ms += progress.batch_ms
        self.late_rows += progress.late_rows


class ProgressMetrics:
    """Prometheus families of the queries, made at scrape. A collector for a registry; any thread.

    Figures of queries that ended stay, but of so many only; lag goes with the query.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._figures: dict[str, _Figures] = {}
        self._active: dict[str, str | None] = {}  # run id -> query, once it is known

    def started(self, run_id: str) -> None:
        """A query has started."""
        with self._lock:
            self._active[run_id] = None

    def take(self, progress: QueryProgress) -> None:
        """A query has finished a batch."""
        with self._lock:
            self._active[progress.run_id] = progress.query
            # Last come, last gone: a query's place is that of its latest progress.
            figures = self._figures.pop(progress.query, None) or _Figures()
            self._figures[progress.query] = figures
            figures.take(progress)
            running = set(self._active.values())
            ended = [query for query in self._figures if query not in running]
            for query in ended[: max(0, len(ended) - FINISHED_QUERIES_MAX)]:
                del self._figures[query]

    def ended(self, run_id: str, query_id: str, failed: bool) -> None:
        """A query has ended; `query_id` names one that never had a progress."""
        with self._lock:
            query = self._active.pop(run_id, None) or query_id
            if failed:
                self._figures.setdefault(query, _Figures()).failures += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the families, as prometheus_client asks for them."""
        with self._lock:
            rows = [(query, replace(figures)) for query, figures in self._figures.items()]
            running = set(self._active.values())
            active = len(self._active)
        yield GaugeMetricFamily(
            "skylarkmq_spark_queries_active", "Streaming queries that run.", value=active
        )
        for name, text, value in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=["query"])
            for query, figures in rows:
                counter.add_metric([query], value(figures))
            yield counter
        yield from _gauges([(query, f.last) for query, f in rows if f.last and query in running])


_COUNTERS: Final[tuple[tuple[str, str, Callable[[_Figures], float]], ...]] = (
    ("skylarkmq_spark_rows", "Rows read.", lambda f: f.rows),
    ("skylarkmq_spark_batches", "Batches finished.", lambda f: f.batches),
    ("skylarkmq_spark_batch_seconds", "Time that batches took.", lambda f: f.batch_ms / 1000),
    ("skylarkmq_spark_lost_messages", "Messages passed over, as they were gone.", lambda f: f.lost),
    ("skylarkmq_spark_late_rows", "Rows that Spark's watermark dropped.", lambda f: f.late_rows),
    ("skylarkmq_spark_query_failures", "Queries ended by an error.", lambda f: f.failures),
)


def _gauges(rows: list[tuple[str, QueryProgress]]) -> Iterator[Metric]:
    """Yield what only means something while a query runs."""
    lag = GaugeMetricFamily(
        "skylarkmq_spark_lag_messages", "Messages behind the end.", labels=["query", "topic"]
    )
    last = GaugeMetricFamily(
        "skylarkmq_spark_last_batch_seconds", "Time of the last batch.", labels=["query"]
    )
    watermark = GaugeMetricFamily(
        "skylarkmq_spark_watermark_timestamp_seconds", "Spark's watermark.", labels=["query"]
    )
    for query, progress in rows:
        for topic, count in progress.lag.items():
            lag.add_metric([query, topic], count)
        last.add_metric([query], progress.batch_ms / 1000)
        if progress.watermark is not None:
            watermark.add_metric([query], datetime.fromisoformat(progress.watermark).timestamp())
    yield from (family for family in (lag, last, watermark) if family.samples)


def log_progress(progress: QueryProgress) -> None:
    """Write one line of the log for a batch."""
    lag = "unknown" if progress.behind is None else str(progress.behind)
    late = f", {progress.late_rows} late" if progress.late_rows else ""
    _log.info(
        "query %s batch %d: %d rows in %d ms, lag %s%s",
        progress.query, progress.batch_id, progress.rows, progress.batch_ms, lag, late,
    )  # fmt: skip


class Watch:
    """The watching of a session's queries; `close` ends it. Driver process."""

    def __init__(
        self,
        spark: SparkSession,
        listener: StreamingQueryListener,
        metrics: ProgressMetrics,
        registry: CollectorRegistry,
        server: Any = None,
    ) -> None:
        self.metrics = metrics
        self._spark = spark
        self._listener = listener
        self._registry = registry
        self._server = server

    @property
    def port(self) -> int | None:
        """Where Prometheus can scrape; None when no port was asked for."""
        return None if self._server is None else int(self._server.server_port)

    def close(self) -> None:
        """Take the listener and the figures away, and close the port."""
        self._spark.streams.removeListener(self._listener)
        self._registry.unregister(self.metrics)
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


def watch(
    spark: SparkSession,
    *,
    port: int | None = None,
    address: str = "127.0.0.1",
    registry: CollectorRegistry = REGISTRY,
) -> Watch:
    """Watch all streaming queries of a session: figures for Prometheus, a log line a batch.

    Args:
        port: also serve the registry there; 0 takes a free port, None serves nothing.
        address: where that port listens.

    Raises:
        OSError: the port is taken.
    """
    metrics = ProgressMetrics()
    registry.register(metrics)
    try:
        server = None if port is None else start_http_server(port, address, registry)[0]
    except OSError:
        registry.unregister(metrics)
        raise
    listener = make_listener(metrics)
    spark.streams.addListener(listener)
    return Watch(spark, listener, metrics, registry, server)


def make_listener(metrics: ProgressMetrics) -> StreamingQueryListener:
    """Return a listener that feeds the figures and the log. Loads pyspark."""
    from pyspark.sql.streaming import listener as spark

    class Listener(spark.StreamingQueryListener):
        """An error of ours would end the listener's thread: it is logged instead."""

        def onQueryStarted(self, event: spark.QueryStartedEvent) -> None:
            metrics.started(str(event.runId))

        def onQueryProgress(self, event: spark.QueryProgressEvent) -> None:
            try:
                progress = read_progress(json.loads(event.progress.json))
                metrics.take(progress)
                log_progress(progress)
            except (KeyError, TypeError, ValueError):
                _log.exception("a query's progress was not understood, its figures are left out")

        def onQueryIdle(self, event: spark.QueryIdleEvent) -> None:
            """Nothing new: the figures stay."""

        def onQueryTerminated(self, event: spark.QueryTerminatedEvent) -> None:
            metrics.ended(str(event.runId), str(event.id), event.exception is not None)

    return Listener()


def last_progress(query: StreamingQuery) -> QueryProgress | None:
    """Return what a query has reported last, None before its first batch. Driver process."""
    progress = query.lastProgress
    return None if progress is None else read_progress(json.loads(progress.json))
