"""The board of Spark's streaming queries, as their drivers report them."""

from __future__ import annotations

from deploy.grafana.style import ANY, COUNT, PER_SECOND, SECONDS, Board, chosen, figure, graph, rate

EACH_QUERY = "{{query}}"


def driver(name: str, **matchers: str) -> str:
    """Return a metric of the chosen Spark drivers."""
    return chosen(name, instance="$driver", **matchers)


def query(name: str) -> str:
    """Return a metric of the chosen queries."""
    return driver(name, query="$query")


LAG_NOW = query("skylarkmq_spark_lag_messages")
ROWS_READ = query("skylarkmq_spark_rows_total")
NOW = [
    figure(
        "Queries that run", "Streaming queries.",
        f"sum({driver('skylarkmq_spark_queries_active')})",
    ),
    figure("Lag", "Messages between the last batch and the end.", f"sum({LAG_NOW})"),
    figure("Rows", "Rows read a second.", f"sum({rate(ROWS_READ)})", PER_SECOND),
    figure(
        "Slowest last batch", "How long it took.",
        f"max({query('skylarkmq_spark_last_batch_seconds')})", SECONDS,
    ),
    figure(
        "Late rows", "Rows that Spark's watermark dropped in the last hour.",
        f"sum(increase({query('skylarkmq_spark_late_rows_total')}[1h]))", steps=ANY,
    ),
    figure(
        "Failures", "Queries that an error ended, since the driver started.",
        f"sum({query('skylarkmq_spark_query_failures_total')})", steps=ANY,
    ),
]  # fmt: skip
LAG = [
    graph(
        "Lag", "Messages between where the last batch ended and the end of the topic.",
        COUNT, (f"sum by (query, topic) ({LAG_NOW})", "{{query}} {{topic}}"),
    ),
    graph(
        "Watermark", "How far the watermark is behind the clock.", SECONDS,
        (
            "max by (query) (time() - "
            f"{query('skylarkmq_spark_watermark_timestamp_seconds')})", EACH_QUERY,
        ),
    ),
]  # fmt: skip
LOAD = [
    graph(
        "Rows", "Rows read a second.", PER_SECOND,
        (f"sum by (query) ({rate(ROWS_READ)})", EACH_QUERY),
    ),
    graph(
        "Batches", "Batches finished a second.", PER_SECOND,
        (f"sum by (query) ({rate(query('skylarkmq_spark_batches_total'))})", EACH_QUERY),
    ),
]  # fmt: skip
LATENCY = [
    graph(
        "Batch", "How long a batch took, on average.", SECONDS,
        (
            f"sum by (query) ({rate(query('skylarkmq_spark_batch_seconds_total'))}) / "
            f"sum by (query) ({rate(query('skylarkmq_spark_batches_total'))})", EACH_QUERY,
        ),
    ),
    graph(
        "Last batch", "How long it took.", SECONDS,
        (f"max by (query) ({query('skylarkmq_spark_last_batch_seconds')})", EACH_QUERY),
    ),
]  # fmt: skip
STATE = [
    graph(
        "Queries that run", "Streaming queries by driver.", COUNT,
        (driver("skylarkmq_spark_queries_active"), "{{instance}}"),
    ),
]  # fmt: skip
TROUBLE = [
    graph(
        "Failures", "Queries that an error ended.", COUNT,
        (
            "sum by (query) "
            f"({query('skylarkmq_spark_query_failures_total')})", EACH_QUERY,
        ), steps=ANY,
    ),
    graph(
        "Late rows", "Rows a second that Spark's watermark dropped.", PER_SECOND,
        (f"sum by (query) ({rate(query('skylarkmq_spark_late_rows_total'))})", EACH_QUERY),
    ),
    graph(
        "Lost messages", "Messages passed over with failOnDataLoss=false.", COUNT,
        (
            "sum by (query) "
            f"({query('skylarkmq_spark_lost_messages_total')})", EACH_QUERY,
        ), steps=ANY,
    ),
]  # fmt: skip
BOARD = Board(
    "skylarkmq-spark", "SkylarkMQ: Spark",
    "Streaming queries, as `skylarkmq.spark.progress.watch` in their drivers reports them.",
    [
        ("Now", NOW),
        ("Lag", LAG),
        ("Load", LOAD),
        ("Latency", LATENCY),
        ("State", STATE),
        ("Trouble", TROUBLE),
    ],
    (
        ("driver", "label_values(skylarkmq_spark_queries_active, instance)"),
        ("query", f"label_values({driver('skylarkmq_spark_rows_total')}, query)"),
    ),
)  # fmt: skip
