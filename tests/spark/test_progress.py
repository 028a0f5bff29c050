"""Lag, rows and late rows out of Spark's progress documents, without a JVM."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from skylarkmq.spark.offsets import QueueOffsets
from skylarkmq.spark.progress import (
    FINISHED_QUERIES_MAX,
    ProgressMetrics,
    read_progress,
)

START = "2026-01-02T03:04:05.000Z"


def offsets(**queues: int) -> str:
    """Offsets of topic T on broker-a: q0=17 is queue 0."""
    return QueueOffsets({("T", "broker-a", int(q[1:])): at for q, at in queues.items()}).text()


def report(lost: int = 0) -> dict[str, Any]:
    """What our source tells as its latest offset."""
    figures = {"behind": {"T": 7}, "lost": lost, "away": []}
    return {**json.loads(offsets(q0=17, q1=5)), **figures}


def document(batch: int = 0, **changes: Any) -> dict[str, Any]:
    """A progress of Spark 4.3.0, cut to what counts here."""
    return {
        "id": "11111111-0000-0000-0000-000000000000",
        "runId": "22222222-0000-0000-0000-000000000000",
        "name": "orders",
        "timestamp": START,
        "batchId": batch,
        "batchDuration": 250,
        "numInputRows": 10,
        "eventTime": {},
        "stateOperators": [],
        "sources": [
            {
                "description": "skylarkmq",
                "startOffset": None,
                "endOffset": json.loads(offsets(q0=10, q1=5)),
                "latestOffset": report(),
            }
        ],
        **changes,
    }


def sample(metrics: ProgressMetrics) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(metrics)
    lines = generate_latest(registry).decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def test_lag_is_the_way_to_the_latest_offset() -> None:
    progress = read_progress(document())
    assert (progress.query, progress.batch_id, progress.rows) == ("orders", 0, 10)
    assert progress.lag == {"T": 7}
    assert progress.behind == 7


@pytest.mark.parametrize("form", [json.dumps, dict, lambda found: json.dumps(found).encode()])
def test_the_report_comes_as_text_or_parsed(form: Any) -> None:
    source = {"latestOffset": form(report())}
    assert read_progress(document(sources=[source])).lag == {"T": 7}


@pytest.mark.parametrize(
    "latest", [None, "17", 17, "{", {"part": 0}, {"behind": {"T": 1}}, json.loads(offsets(q0=1))]
)
def test_lag_is_unknown_without_a_report_of_ours(latest: object) -> None:
    progress = read_progress(document(sources=[{"latestOffset": latest}]))
    assert (progress.behind, progress.lag, progress.lost) == (None, {}, 0)


def test_what_is_lost_counts_once_in_each_run() -> None:
    metrics = ProgressMetrics()
    for run, batch, lost in (("a", 0, 0), ("a", 1, 5), ("a", 2, 5), ("a", 3, 7), ("b", 4, 2)):
        source = {"latestOffset": report(lost)}
        metrics.take(read_progress(document(batch, runId=run, sources=[source])))
    assert sample(metrics)['skylarkmq_spark_lost_messages_total{query="orders"}'] == 9


def test_several_sources_add_up_and_foreign_ones_add_none() -> None:
    ours = document()["sources"][0]
    foreign = {"description": "rate", "endOffset": 3, "latestOffset": 9}
    progress = read_progress(document(sources=[ours, foreign, ours]))
    assert progress.lag == {"T": 14}
    assert read_progress(document(sources=[foreign])).behind is None


def test_a_query_without_a_name_goes_by_its_id() -> None:
    assert read_progress(document(name=None)).query.startswith("11111111")


def test_late_rows_and_watermark() -> None:
    operators = [{"numRowsDroppedByWatermark": 3}, {"numRowsDroppedByWatermark": 4}, {}]
    progress = read_progress(document(stateOperators=operators, eventTime={"watermark": START}))
    assert (progress.late_rows, progress.watermark) == (7, START)
    none_yet = {"watermark": "1970-01-01T00:00:00.000Z"}
    assert read_progress(document(eventTime=none_yet)).watermark is None


def test_figures_are_scraped() -> None:
    metrics = ProgressMetrics()
    metrics.started("22222222-0000-0000-0000-000000000000")
    late = [{"numRowsDroppedByWatermark": 3}]
    for batch in (0, 1, 1):  # the second one comes twice
        metrics.take(
            read_progress(
                document(batch, stateOperators=late, eventTime={"watermark": START}),
            )
        )
    assert sample(metrics) == {
        "skylarkmq_spark_queries_active": 1,
        'skylarkmq_spark_rows_total{query="orders"}': 20,
        'skylarkmq_spark_batches_total{query="orders"}': 2,
        'skylarkmq_spark_batch_seconds_total{query="orders"}': 0.5,
        'skylarkmq_spark_lost_messages_total{query="orders"}': 0,
        'skylarkmq_spark_late_rows_total{query="orders"}': 6,
        'skylarkmq_spark_query_failures_total{query="orders"}': 0,
        'skylarkmq_spark_lag_messages{query="orders",topic="T"}': 7,
        'skylarkmq_spark_last_batch_seconds{query="orders"}': 0.25,
        'skylarkmq_spark_watermark_timestamp_seconds{query="orders"}': 1767323045,
    }


def test_lag_goes_with_the_query_and_counters_stay() -> None:
    metrics = ProgressMetrics()
    metrics.take(read_progress(document()))
    metrics.ended(document()["runId"], document()["id"], failed=True)
    found = sample(metrics)
    assert not [name for name in found if "lag" in name]
    assert found['skylarkmq_spark_rows_total{query="orders"}'] == 10
    assert found['skylarkmq_spark_query_failures_total{query="orders"}'] == 1
    assert found["skylarkmq_spark_queries_active"] == 0


def test_a_failure_before_the_first_batch_counts() -> None:
    metrics = ProgressMetrics()
    metrics.started("run")
    metrics.ended("run", "query", failed=True)
    assert sample(metrics)['skylarkmq_spark_query_failures_total{query="query"}'] == 1


def test_queries_that_ended_are_forgotten_at_last() -> None:
    metrics = ProgressMetrics()
    for number in range(FINISHED_QUERIES_MAX + 5):
        run = f"run{number}"
        metrics.take(read_progress(document(name=f"q{number}", runId=run)))
        metrics.ended(run, "", failed=False)
    metrics.take(read_progress(document(name="last")))
    rows = [name for name in sample(metrics) if "rows_total" in name and "late" not in name]
    assert len(rows) == FINISHED_QUERIES_MAX + 1
    assert 'skylarkmq_spark_rows_total{query="q4"}' not in rows
