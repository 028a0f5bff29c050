"""Metric families about a replica among those that elect their master."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.metrics.families import FamilyMaker
from skylarkmq.broker.replication.failover.replica_events import State
from skylarkmq.broker.replication.failover.replica_status import Replicated
from skylarkmq.protocol.bodies.replica import ReplicaStatusBody

_LEADING = frozenset({State.MASTER, State.HANDING_OVER})


def replica_families(
    replica: Replicated | None, stats: BrokerStats, ours: FamilyMaker
) -> Iterator[Metric]:
    """Yield where the replica stands, and on a master what others lack; nothing on others."""
    if replica is None:
        return
    status = replica.status()
    yield ours.gauges(
        "skylarkmq_replica_state",
        "1 for the state in which this replica is, 0 for the others.",
        ("state",),
        [((state,), int(state == status.state)) for state in State],
    )
    yield ours.gauge(
        "skylarkmq_replica_term",
        "Number of the newest mastership that this replica knows.",
        status.term,
    )
    yield ours.counter(
        "skylarkmq_replica_mastership_changes",
        "Changes of the master that this replica has seen.",
        status.mastership_changes,
    )
    yield ours.gauge(
        "skylarkmq_replica_in_sync",
        "Replicas for whose confirmation an acknowledgement waits, the master among them.",
        len(status.in_sync),
    )
    yield ours.gauges(
        "skylarkmq_replica_offset_bytes",
        "Places in this replica's log; confirmed: below it a failover loses nothing.",
        ("mark",),
        [
            (("term_start",), status.start),
            (("end",), status.end),
            (("durable",), status.durable_end),
            (("confirmed",), status.confirmed),
        ],
    )
    yield ours.gauge(
        "skylarkmq_replica_engine_reachable",
        "1 while etcd answers this replica.",
        int(status.engine_reachable),
    )
    yield ours.gauge(
        "skylarkmq_replica_halted",
        "1 when this replica stands still until an operator looks at it.",
        int(bool(status.halted)),
    )
    yield from _others(status, ours)
    yield ours.counter(
        "skylarkmq_replica_forced_failovers",
        "Times that an operator let this replica lead and accepted the loss.",
        stats.forced_failovers,
    )
    yield ours.counter(
        "skylarkmq_replica_messages_at_risk",
        "Messages that forced failovers may have cost.",
        stats.messages_at_risk,
    )


def _others(status: ReplicaStatusBody, ours: FamilyMaker) -> Iterator[Metric]:
    labels = ("replica", "broker_id")
    rows = [
        ((each.replica, "" if each.broker_id is None else str(each.broker_id)), each)
        for each in status.others
    ]
    yield ours.gauges(
        "skylarkmq_replica_alive",
        "1 for another replica whose process runs, as etcd says, 0 for one that is away.",
        labels,
        [(values, int(each.alive)) for values, each in rows],
    )
    behind = rows if status.state in _LEADING else []  # others know of published ends alone
    yield ours.gauges(
        "skylarkmq_replica_behind_bytes",
        "On a master: bytes of its log that a follower has not confirmed.",
        labels,
        [(values, max(0, status.end - each.durable_end)) for values, each in behind],
    )
