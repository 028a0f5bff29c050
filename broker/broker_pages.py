"""What a broker's HTTP pages tell of it: whether it is ready, whether it lives, its metrics."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING

from skylarkmq.broker.base.health import Check, HealthChecks, LoopCheck, waits_for_disk
from skylarkmq.broker.base.loop_lag import LoopLagService
from skylarkmq.broker.pages.http import MetricsServer
from skylarkmq.broker.replication.failover.replica_check import replica_check
from skylarkmq.common.first_use import on_first_use
from skylarkmq.store.message_store import MessageStore

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    import skylarkmq.broker.broker_metrics as broker_metrics
    from skylarkmq.broker.controller import BrokerController
else:  # by the first scrape
    broker_metrics = on_first_use("skylarkmq.broker.broker_metrics")


def health_checks(broker: BrokerController, lag: LoopLagService) -> HealthChecks:
    """Return what readiness and liveness of a broker are built from."""
    parts = broker.parts
    ready: dict[str, Check] = {
        "store": lambda: parts.store.refusal() or parts.store.commit_log.no_room,
        "listener": lambda: "" if broker.server is not None else "not listening yet",
        "route": lambda: (
            broker.registration.why_unknown if broker.registration else "not registered yet"
        ),
    }
    if parts.ha_client is not None:
        client = parts.ha_client
        ready["master"] = lambda: client.refusal
    if broker.config.is_replica:
        ready["replica"] = lambda: (
            replica_check(parts.replica.status()) if parts.replica else "it is not started yet"
        )
    waits = partial(waits_for_disk, threading.get_native_id())
    return HealthChecks(
        ready, {"store": partial(_failure, parts.store), "loop": LoopCheck(lag.silence_s, waits)}
    )


def _failure(store: MessageStore) -> str:
    return f"the store has failed and needs a restart: {store.failure}" if store.failure else ""


def _connection_counts(broker: BrokerController) -> dict[str, int]:
    parts, grpc = broker.parts, broker.parts.grpc
    counts = {"producer": parts.producers.client_count, "consumer": parts.consumers.client_count}
    total = 0 if broker.server is None else len(broker.server.connections)
    if grpc is not None:
        total += len(grpc.server.connections)
    return {**counts, "other": max(0, total - sum(counts.values()))}


def make_pages(broker: BrokerController, lag: LoopLagService, *, listens: bool) -> MetricsServer:
    """Return the pages of a broker; they are not served yet.

    Args:
        listens: on the port of the configuration; else for connections that are handed over.
    """
    config, parts = broker.config, broker.parts
    checks = health_checks(broker, lag)
    loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]

    def make_registry() -> CollectorRegistry:
        return broker_metrics.registry_of(
            parts,
            checks,
            loop,
            partial(_connection_counts, broker),
            lambda: broker.since_ms if broker.has_started else 0,
            lambda: broker.registration.name_servers if broker.registration else {},
        )

    port = config.metrics_prom_exporter_port
    return MetricsServer(
        (config.metrics_host, port) if listens and port is not None else None,
        make_registry,
        checks,
        lag.silence_s,
        tls=config.tls,
        prepare=parts.measure,
        drain=lambda: parts.find_draining and parts.find_draining(),
    )
