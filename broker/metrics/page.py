"""The server of the metrics pages, over all that a broker consists of.

A module of its own because it takes as long to load as a small broker takes to start: whoever runs
a broker without these pages, in a test, never loads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from skylarkmq.broker.components import BrokerState
from skylarkmq.broker.health import HealthChecks
from skylarkmq.broker.metrics.broker_metrics import MetricsSources, build_registry
from skylarkmq.broker.metrics.semantics_metrics import (
    client_call_families,
    delay_families,
    lock_families,
    removal_families,
)
from skylarkmq.broker.metrics.store_metrics import StoreSources
from skylarkmq.broker.net.http import MetricsServer
from skylarkmq.broker.transaction.metrics import transaction_families


def metrics_server(
    state: BrokerState,
    checks: HealthChecks,
    silence_s: Callable[[], float],
    connections: Callable[[], Mapping[str, int]],
    started_at_ms: Callable[[], int],
) -> MetricsServer:
    """Return the server, not started. Loop thread.

    Args:
        silence_s: how long the broker's loop has run no timer, s; any thread may ask.
        connections: the connected peers by role.
        started_at_ms: when serving began, 0 before.
    """
    config = state.config
    sources = MetricsSources(
        cluster=config.broker_cluster_name,
        broker=config.broker_name,
        loop=type(asyncio.get_running_loop()).__module__.partition(".")[0],
        broker_stats=state.stats,
        store=StoreSources(state.store.stats, state.store_offsets, state.pool_buffers),
        health=checks,
        started_at_ms=started_at_ms,
        connections=connections,
        longpoll_waiting=lambda: state.holding.count,
        topic_count=lambda: len(state.topics.table),
        group_count=lambda: len(state.groups.table),
        differing=lambda: state.consumers.watch.differing,
        filters=state.filters.counts,
        permission=lambda: config.broker_permission,
        more=(
            partial(delay_families, state.schedule, state.timer),
            partial(client_call_families, state.client_calls),
            partial(lock_families, state.locks),
            partial(transaction_families, state.transactions),
            partial(removal_families, state.store.removal),
        ),
    )
    return MetricsServer(
        config.metrics_host,
        config.metrics_prom_exporter_port,
        build_registry(sources),
        checks,
        silence_s,
    )
