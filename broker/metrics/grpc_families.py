"""Metric families about clients of RocketMQ 5: their connections, and the calls that they make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from skylarkmq.broker.metrics.families import FamilyMaker

if TYPE_CHECKING:
    from skylarkmq.broker.grpc.endpoint import GrpcEndpoint


def grpc_families(endpoint: GrpcEndpoint | None, ours: FamilyMaker) -> Iterator[Metric]:
    """Yield what clients of RocketMQ 5 do; without series where there is no port for them."""
    yield ours.gauges(
        "skylarkmq_grpc_connections",
        "Open connections of clients of RocketMQ 5.",
        (),
        [] if endpoint is None else [((), len(endpoint.server.connections))],
    )
    yield ours.gauges(
        "skylarkmq_grpc_open_calls",
        "Calls that are not answered to their end: receives that wait, streams of telemetry.",
        (),
        [] if endpoint is None else [((), endpoint.open_calls.count)],
    )
    yield ours.counters(
        "skylarkmq_grpc_calls",
        "Calls by what they asked for and by the status code that they were answered with.",
        ("rpc", "code"),
        []
        if endpoint is None
        else [
            ((name, str(code)), count) for (name, code), count in endpoint.calls.answered.items()
        ],
    )
    yield ours.counters(
        "skylarkmq_grpc_handed_on_calls",
        "Calls that other brokers answered for this endpoint, by broker and status code "
        "(grpcProxyMode=CLUSTER).",
        ("to", "code"),
        []
        if endpoint is None
        else [((name, str(code)), count) for (name, code), count in endpoint.forwarded.items()],
    )
