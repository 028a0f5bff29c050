"""Metric families about deduplication windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from prometheus_client.core import Metric

from skylarkmq.broker.metrics.families import FamilyMaker
from skylarkmq.store.deduplication import Window

TOPICS_MAX = 1000
"""Topics that have series."""


def deduplication_families(windows: Mapping[str, Window], ours: FamilyMaker) -> Iterator[Metric]:
    """Yield what the windows have kept out, and what they take."""
    shown = list(islice(windows.items(), TOPICS_MAX))
    labels = ("topic",)
    yield ours.counters(
        "skylarkmq_deduplication_hits",
        "Messages that were not stored because the topic had stored their unique key within its "
        "window.",
        labels,
        [((topic,), window.hits) for topic, window in shown],
    )
    yield ours.counters(
        "skylarkmq_deduplication_evictions",
        "Unique keys that were forgotten before their time because the topic's window was full.",
        labels,
        [((topic,), window.evictions) for topic, window in shown],
    )
    yield ours.gauges(
        "skylarkmq_deduplication_keys",
        "Unique keys in memory.",
        labels,
        [((topic,), window.count) for topic, window in shown],
    )
    yield ours.gauges(
        "skylarkmq_deduplication_keys_limit",
        "Unique keys that the topic's window may hold.",
        labels,
        [((topic,), window.size.keys) for topic, window in shown],
    )
    yield ours.gauges(
        "skylarkmq_deduplication_window_seconds",
        "How long the topic's window knows a unique key.",
        labels,
        [((topic,), window.size.seconds) for topic, window in shown],
    )
    yield ours.gauges(
        "skylarkmq_deduplication_bytes",
        "Memory that the unique keys take.",
        labels,
        [((topic,), window.memory_size) for topic, window in shown],
    )
