"""Metric families about the slaves of a master."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from skylarkmq.broker.metrics.families import FamilyMaker
from skylarkmq.broker.replication.ha.ha_server import HaServer


def replication_families(server: HaServer | None, ours: FamilyMaker) -> Iterator[Metric]:
    """Yield how many slaves follow, what they lack, and what they were sent; nothing on a slave."""
    if server is None:
        return
    slaves = server.slaves
    yield ours.gauge("skylarkmq_slaves", "Slaves that follow this master's log.", len(slaves))
    behind: dict[str, int] = {}
    for slave in slaves:
        host = slave.peer.rpartition(":")[0]
        behind[host] = max(behind.get(host, 0), slave.behind)
    yield ours.gauges(
        "skylarkmq_slave_behind_bytes",
        "Bytes of the log that a slave has not confirmed; of several on one address the most.",
        ("slave",),
        [((host,), size) for host, size in behind.items()],
    )
    yield ours.counter(
        "skylarkmq_slave_sent_bytes", "Bytes of the log sent to slaves.", server.bytes_sent
    )
