"""What administrators are told of a cluster: its servers, their state, and what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from skylarkmq.client.admin.results import Result, Why
from skylarkmq.protocol.flags import MASTER_ID

BEHIND_MAX: Final = 256 << 20
"""Bytes: a slave further behind counts as none (RocketMQ's haSlaveFallbehindMax)."""
DISK_MAX: Final = 0.75
"""From here on brokers delete old messages early (RocketMQ's diskMaxUsedSpaceRatio)."""


@dataclass(frozen=True, slots=True)
class BrokerSummary(Result):
    """One broker: its addresses as it advertises them, by broker id; 0 is the master."""

    name: str
    cluster: str
    addresses: Mapping[int, str] = field(hash=False)


@dataclass(frozen=True, slots=True)
class ClusterSummary(Result):
    """What a name server knows."""

    name_servers: tuple[str, ...]
    brokers: tuple[BrokerSummary, ...]

    @property
    def clusters(self) -> dict[str, list[str]]:
        """Broker names by cluster."""
        found: dict[str, list[str]] = {}
        for broker in self.brokers:
            found.setdefault(broker.cluster, []).append(broker.name)
        return found


@dataclass(frozen=True, slots=True)
class BrokerRuntime(Result):
    """A broker's own account of itself, as text by RocketMQ's names (`putTps`, `bootTimestamp`)."""

    broker: str
    values: Mapping[str, str] = field(hash=False)

    @property
    def version(self) -> str:
        """The release that it says it is, for instance `V4_9_8`."""
        return self.values.get("brokerVersionDesc", "")


@dataclass(frozen=True, slots=True)
class Span(Result):
    """What was counted in a span of time, how much of it a second, and how much at a time."""

    total: int
    per_second: float
    per_time: float


@dataclass(frozen=True, slots=True)
class Statistic(Result):
    """What a broker has counted: in the last minute, the last hour, and the last day."""

    broker: str
    minute: Span
    hour: Span
    day: Span


@dataclass(frozen=True, slots=True)
class NameServerStatus(Result):
    """A name server: why it did not answer, or the ids that it knows of each broker name."""

    address: str
    error: str | None
    brokers: Mapping[str, tuple[int, ...]] = field(hash=False)


@dataclass(frozen=True, slots=True)
class OtherReplica(Result):
    """Another replica of a set, as the one that was asked knows it."""

    replica: str
    broker_id: int | None
    """Its configured id; None: it has not told yet."""
    address: str
    """For clients; empty while it is away."""
    is_alive: bool
    behind: int | None
    """Bytes of the log that it has not confirmed; None: the one that was asked does not lead."""


@dataclass(frozen=True, slots=True)
class FailoverStatus(Result):
    """What a replica tells that elects its master with others. SkylarkMQ's brokers only.

    Replicas have ids of their own beside broker ids: a replica id names a store, and goes with it.
    """

    replica: str
    broker_id: int
    """Its configured id; the one that leads is registered as 0 beside that."""
    state: str
    """`master`, `follower`, `waiting` for its turn to lead, `halted`, and steps between these."""
    term: int
    """Number of the newest mastership that it knows."""
    master: str
    """Replica id of that term's master; empty: it knows of none yet."""
    in_sync: tuple[str, ...]
    """Replica ids: an acknowledgement waits for these, and one of them leads next."""
    min_in_sync: int
    log_end: int
    durable_end: int
    confirmed: int
    """What is below survives a failover."""
    mastership_changes: int
    """That it has seen since its start."""
    is_engine_reachable: bool
    """Whether etcd answers it."""
    halted: str
    """Why it stands still until an operator looks; empty: it does not."""
    others: tuple[OtherReplica, ...]

    @property
    def leads(self) -> bool:
        """Whether it is the master, also while it lets another one take over."""
        return self.state in ("master", "handing over")


@dataclass(frozen=True, slots=True)
class ReplicaStatus(Result):
    """One broker process. What it did not tell is None; `error` says why it told nothing."""

    broker_id: int
    address: str
    error: str | None
    version: str = ""
    log_begin: int | None = None
    """Place of the commit log's first byte."""
    log_end: int | None = None
    """Place behind its last byte."""
    disk_used: float | None = None
    """Used part of the log's disk, 0 to 1."""
    started_at: datetime | None = None
    failover: FailoverStatus | None = None
    """Of a replica that elects its master with others; None of all other brokers."""
    why: Why | None = None
    """`error` in one word."""

    @property
    def is_master(self) -> bool:
        """Whether it is the one that clients send to."""
        return self.broker_id == MASTER_ID


@dataclass(frozen=True, slots=True)
class BrokerStatus(Result):
    """The processes of one broker name, the master first."""

    name: str
    cluster: str
    replicas: tuple[ReplicaStatus, ...]

    @property
    def master(self) -> ReplicaStatus | None:
        """The master; None: none is registered."""
        return next((each for each in self.replicas if each.is_master), None)

    def behind(self, replica: ReplicaStatus) -> int | None:
        """Return how many bytes of the master's log a slave lacks; None: not known.

        Both were asked at nearly the same time, so a slave of a busy master lacks some.
        """
        if self.master is None or self.master.log_end is None or replica.log_end is None:
            return None
        return max(0, self.master.log_end - replica.log_end)

    @property
    def failover(self) -> FailoverStatus | None:
        """What the one that leads tells of the set; without one, whoever knows the newest term."""
        told = [each.failover for each in self.replicas if each.failover is not None]
        return max(told, key=lambda each: (each.leads, each.term), default=None)


@dataclass(frozen=True, slots=True)
class ClusterStatus(Result):
    """Name servers and brokers as they answered."""

    name_servers: tuple[NameServerStatus, ...]
    brokers: tuple[BrokerStatus, ...]

    def problems(
        self, *, behind_max: int = BEHIND_MAX, disk_max: float = DISK_MAX
    ) -> tuple[Problem, ...]:
        """Return what an operator should look at; empty: all is well.

        Args:
            behind_max: bytes that a slave may lack.
            disk_max: part of a disk that may be used, 0 to 1.
        """
        found = [
            _problem("name_server_unreachable", each.address, each.error)
            for each in self.name_servers
            if each.error is not None
        ]
        if not self.brokers:
            servers = ", ".join(each.address for each in self.name_servers if each.error is None)
            found.append(_problem("no_broker", servers, "no broker is registered there"))
        for broker in self.brokers:
            found += self._unknown_at(broker)
            found += _problems_of_set(broker)
            for replica in broker.replicas:
                found += _problems_of(broker, replica, behind_max, disk_max)
        return tuple(found)

    def _unknown_at(self, broker: BrokerStatus) -> list[Problem]:
        """Return at which name servers a broker process is missing."""
        found: list[Problem] = []
        for server in self.name_servers:
            known = server.brokers.get(broker.name, ())
            for replica in broker.replicas:
                if server.error is None and replica.broker_id not in known:
                    what = f"the name server {server.address} does not know it"
                    found.append(_problem("not_registered", _name_of(broker, replica), what))
        return found


ProblemKind = Literal[
    "name_server_unreachable",
    "broker_unreachable",
    "broker_refuses",
    "no_broker",
    "no_master",
    "not_registered",
    "slave_behind",
    "disk_nearly_full",
    "too_few_in_sync",
    "replica_away",
    "replica_not_in_sync",
    "replica_halted",
    "engine_unreachable",
]
_CURES: Final[Mapping[ProblemKind, str]] = {
    "name_server_unreachable": "Start it, or see why its address cannot be reached; brokers "
    "register as soon as it is back",
    "broker_unreachable": "Is its process there, and what does its /readyz?verbose say? Name "
    "servers forget a broker that is gone",
    "broker_refuses": "If its access control is why, ask as an admin's account; else see its log",
    "no_broker": "Start one whose namesrvAddr names them; it registers within some seconds",
    "no_master": "Start the master again, or make a slave with the longest log the master",
    "not_registered": "Does its namesrvAddr name that name server? The log of the broker says why "
    "a registration failed",
    "slave_behind": "Look at its disk, and at the network between it and the master; it catches up "
    "by itself",
    "disk_nearly_full": "Give it a larger disk, or keep messages for a shorter time "
    "(fileReservedTime)",
    "too_few_in_sync": "Start the replicas that are away; they are in sync once they have caught "
    "up",
    "replica_away": "Start it. If its disk is lost, start one with an empty store in its place",
    "replica_not_in_sync": "Is it catching up? Else look at its log, its disk, and the network "
    "between it and the master",
    "replica_halted": "Its log says what it found. If other replicas have all messages, let it "
    "begin with an empty store, and keep the old one",
    "engine_unreachable": "Start etcd, or see why controllerEndpoints cannot be reached; nobody "
    "can take over meanwhile",
}


@dataclass(frozen=True, slots=True)
class Problem(Result):
    """What is wrong with a part of a cluster: a kind that stays, whose, and two sentences."""

    kind: ProblemKind
    subject: str
    text: str
    cure: str = ""
    """What to do about it."""

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}"


def _problem(kind: ProblemKind, subject: str, text: str) -> Problem:
    return Problem(kind, subject, text, _CURES[kind])


def _name_of(broker: BrokerStatus, replica: ReplicaStatus) -> str:
    role = "master" if replica.is_master else f"slave {replica.broker_id}"
    return f"{broker.name} ({role})"


def _problems_of_set(broker: BrokerStatus) -> list[Problem]:
    """Return what is wrong with the processes of one name together."""
    seen, subject = broker.failover, broker.name
    if seen is None:
        if broker.master is not None:
            return []
        what = "no master is registered: clients read from slaves and cannot send"
        return [_problem("no_master", subject, what)]
    found: list[Problem] = []
    if all(each.failover.halted for each in broker.replicas if each.failover is not None):
        what = "all its replicas that answer have halted: nothing can be sent"
        cure = (
            "Bring etcd's own data back, and start them again; if it is gone for good, begin a new "
            "set with the best store"
        )
        found.append(Problem("no_master", subject, what, cure))
    elif not seen.leads and (broker.master is None or broker.master.error is None):
        cure = (
            f"Start the replicas in sync, {', '.join(seen.in_sync)}: one of them leads then by "
            "itself. If all of them are lost for good: failover(..., accept_loss=True)"
        )
        what = "no replica leads: nothing can be sent"
        found.append(Problem("no_master", subject, what, cure))
    elif broker.master is None:
        what = "the master is not registered yet: clients cannot send"
        cure = "Wait some seconds. Else the log of the one that leads says why it is not registered"
        found.append(Problem("no_master", subject, what, cure))
    if len(seen.in_sync) < seen.min_in_sync:
        what = (
            f"{len(seen.in_sync)} in sync, minInSyncReplicas wants {seen.min_in_sync}: sends are "
            "answered with 14"
        )
        found.append(_problem("too_few_in_sync", subject, what))
    present = {other.broker_id for other in seen.others if other.is_alive} | {seen.broker_id}
    for other in seen.others:
        if not other.is_alive and other.broker_id in present:
            continue  # another store has taken its place
        name = f"{broker.name} (replica {other.replica})"
        if not other.is_alive:
            found.append(_problem("replica_away", name, "its process is away, as etcd says"))
        elif seen.leads and other.replica not in seen.in_sync:
            what = f"it is not in sync: it has not confirmed {other.behind} bytes of the log"
            found.append(_problem("replica_not_in_sync", name, what))
    return found


def _problems_of(
    broker: BrokerStatus, replica: ReplicaStatus, behind_max: int, disk_max: float
) -> list[Problem]:
    name = _name_of(broker, replica)
    if replica.error is not None:
        kind: ProblemKind = "broker_refuses" if replica.why == "refused" else "broker_unreachable"
        return [_problem(kind, name, replica.error)]
    found: list[Problem] = []
    behind = broker.behind(replica)
    if behind is not None and behind > behind_max:
        what = f"it lacks {behind} bytes of the master's log"
        found.append(_problem("slave_behind", name, what))
    if replica.disk_used is not None and replica.disk_used > disk_max:
        what = f"{replica.disk_used:.0%} of the log's disk is used"
        found.append(_problem("disk_nearly_full", name, what))
    if replica.failover is not None and replica.failover.halted:
        found.append(_problem("replica_halted", name, replica.failover.halted))
    if replica.failover is not None and not replica.failover.is_engine_reachable:
        found.append(_problem("engine_unreachable", name, "it does not reach etcd"))
    return found
