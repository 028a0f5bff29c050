"""What a replica tells of itself: the body of 30001. Ours. Offsets are bytes of the log."""

from __future__ import annotations

from skylarkmq.protocol.bodies.text import Body
from skylarkmq.protocol.headers.fields import JavaInt, JavaLong


class OtherReplicaBody(Body, kw_only=True, frozen=True):
    """Another replica, as the coordination engine and, on a master, its confirmations say."""

    address: str = ""  # for clients, host:port; empty while it is not alive
    alive: bool  # its lease runs
    broker_id: JavaLong | None = None  # None: it has not said so yet
    durable_end: JavaLong  # confirmed in this term; else what it published last
    replica: str  # its id


class ReplicaStatusBody(Body, kw_only=True, frozen=True):
    """Where a replica stands. `state` is one of `failover/replica_events.py`, in plain words."""

    broker_id: JavaLong
    confirmed: JavaLong  # what may be shown: it survives a failover
    durable_end: JavaLong
    end: JavaLong
    engine_reachable: bool  # a read of the coordination engine was answered lately
    halted: str = ""  # why it stands still for good, empty when it does not
    in_sync: list[str]  # replica ids of the set that is recorded, in order
    master: str = ""  # replica id of that term's master, empty before the first
    mastership_changes: JavaLong  # that it has seen since its start
    min_in_sync: JavaInt
    others: list[OtherReplicaBody]
    replica: str  # its id
    start: JavaLong  # where that term begins in the log
    state: str
    term: JavaLong  # the newest that it knows, 0 before the first
