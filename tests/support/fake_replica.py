"""A replica among those that elect their master, as the rest of a broker sees it: scripted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from skylarkmq.broker.replication.failover.replica_events import State
from skylarkmq.broker.replication.failover.replica_status import OtherReplica, ReplicaStatus
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError

MASTER = ReplicaStatus(
    replica="r1",
    broker_id=1,
    state=State.MASTER,
    term=7,
    master="r1",
    in_sync=("r1", "r2"),
    start=1000,
    end=5000,
    durable_end=4900,
    confirmed=4800,
    mastership_changes=3,
    is_engine_reachable=True,
    halted="",
    others=(
        OtherReplica("r2", 2, "192.0.2.2:10911", is_alive=True, durable_end=4800),
        OtherReplica("r3", None, "", is_alive=False, durable_end=100),
    ),
)
"""Leads a set of two; a third one is away."""
FOLLOWER = replace(
    MASTER,
    replica="r2",
    broker_id=2,
    state=State.FOLLOWER,
    end=4800,
    durable_end=4800,
    others=(
        OtherReplica("r1", 1, "192.0.2.1:10911", is_alive=True, durable_end=4000),
        OtherReplica("r3", None, "", is_alive=False, durable_end=100),
    ),
)
"""Follows it."""


class FakeReplica:
    """Tells `now`, and does what it is asked when its state allows it."""

    def __init__(self, status: ReplicaStatus = MASTER, **changes: Any) -> None:
        self.now = replace(status, **changes)
        self.asked: list[str] = []
        self.at_risk = 42

    def status(self) -> ReplicaStatus:
        return self.now

    async def switch_over(self, target: str) -> None:
        self.asked.append(f"switch over to {target}")
        if self.now.state is not State.MASTER:
            raise RemoteProtocolError(ResponseCode.SYSTEM_ERROR, "this is not the master")
        target = target or next(each for each in self.now.in_sync if each != self.now.replica)
        if target not in self.now.in_sync:
            raise RemoteProtocolError(ResponseCode.SYSTEM_ERROR, f"{target} is not in sync")
        self.now = replace(self.now, state=State.FOLLOWER, term=self.now.term + 1, master=target)

    async def force(self) -> int:
        self.asked.append("force")
        if self.now.state not in (State.WAITING, State.FOLLOWER):
            raise RemoteProtocolError(ResponseCode.SYSTEM_ERROR, "there is a master")
        self.now = replace(
            self.now, state=State.MASTER, term=self.now.term + 1, master=self.now.replica
        )
        return self.at_risk
