"""Metric families about the master of a slave."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from skylarkmq.broker.metrics.families import FamilyMaker
from skylarkmq.broker.replication.ha.ha_client import HaClient


def master_families(client: HaClient | None, ours: FamilyMaker) -> Iterator[Metric]:
    """Yield whether the master is followed and how far its log has come; nothing on a master."""
    if client is None:
        return
    yield ours.gauge(
        "skylarkmq_master_connected", "1 while the master's log comes.", int(client.connected)
    )
    yield ours.gauge(
        "skylarkmq_master_refused",
        "1 while the master is not followed: the logs differ, or it closes without a word.",
        int(bool(client.refusal)),
    )
    yield ours.gauge(
        "skylarkmq_master_received_offset_bytes",
        "End of what has come of the master's log, a place in it.",
        client.received_offset,
    )
    yield ours.gauge(
        "skylarkmq_master_unstored_bytes",
        "Bytes that have come from the master and are not stored yet.",
        client.behind,
    )
    yield ours.counter(
        "skylarkmq_master_connections",
        "Connections over which the master was followed.",
        client.connects,
    )
