"""What a replica tells of itself: the body of 30001. Ours. Offsets are bytes of the log."""

from __future__ import annotations

from skylarkmq.protocol.bodies.text import Body
from skylarkmq.protocol.headers.fields import JavaInt, JavaLong


class OtherReplicaBody(Body, kw_only=True, frozen=True):
    """Another replica; `durable_end` as it confirmed it to a master, else as published last."""

    address: str = ""
    alive: bool
    broker_id: JavaLong | None = None
    durable_end: JavaLong
    replica: str


class ReplicaStatusBody(Body, kw_only=True, frozen=True):
    """Where a replica stands. `state` is one of `failover/replica_events.py`, in plain words."""

    broker_id: JavaLong
    confirmed: JavaLong
    durable_end: JavaLong
    end: JavaLong
    engine_reachable: bool
    halted: str = ""
    in_sync: list[str]
    master: str = ""
    mastership_changes: JavaLong
    min_in_sync: JavaInt
    others: list[OtherReplicaBody]
    replica: str
    start: JavaLong
    state: str
    term: JavaLong
