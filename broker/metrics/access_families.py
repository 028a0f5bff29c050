"""Metric families about who can connect, and how: TLS, and a broker that is open to everyone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from skylarkmq.broker.config.settings import ServerConfig
from skylarkmq.broker.metrics.families import FamilyMaker
from skylarkmq.broker.net.exposure import why_open
from skylarkmq.broker.net.tls import TlsGate


def access_families(
    config: ServerConfig, gates: Mapping[str, TlsGate], ours: FamilyMaker
) -> Iterator[Metric]:
    """Yield the families of TLS by listener, and whether anyone on the network may do anything."""
    yield ours.gauge(
        "skylarkmq_open_to_network",
        "1 while other machines can connect and nothing tells who they are; the start warns of it.",
        int(bool(why_open(config))),
    )
    yield ours.gauges(
        "skylarkmq_tls_connections",
        "Open connections with TLS.",
        ("listener",),
        [((name,), gate.open_count) for name, gate in gates.items()],
    )
    yield ours.counters(
        "skylarkmq_tls_results",
        "Connections by what their first byte and their handshake led to; a connection that fails "
        "after its handshake counts twice.",
        ("listener", "result"),
        [
            ((name, result), count)
            for name, gate in gates.items()
            for result, count in gate.results.items()
        ],
    )
    yield ours.gauges(
        "skylarkmq_tls_certificate_expiry_time_seconds",
        "Unix time at which the certificate that clients are shown is out of date.",
        ("listener",),
        [
            ((name,), gate.contexts.expires_s)
            for name, gate in gates.items()
            if gate.contexts.expires_s
        ],
    )
