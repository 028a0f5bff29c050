"""A replica among those that elect their master, as the rest of a broker sees it: scripted."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from skylarkmq.broker.replication.failover.replica_events import State
from skylarkmq.protocol.bodies.replica import OtherReplicaBody, ReplicaStatusBody
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError


def other(replica: str, broker_id: int | None, address: str, durable_end: int) -> OtherReplicaBody:
    """Return another replica, which is alive where it has an address."""
    return OtherReplicaBody(
        replica=replica,
        broker_id=broker_id,
        address=address,
        alive=bool(address),
        durable_end=durable_end,
    )


MASTER = ReplicaStatusBody(
    replica="r1",
    broker_id=1,
    state=State.MASTER,
    term=7,
    master="r1",
    in_sync=["r1", "r2"],
    start=1000,
    end=5000,
    durable_end=4900,
    confirmed=4800,
    mastership_changes=3,
    min_in_sync=2,
    engine_reachable=True,
    halted="",
    others=[other("r2", 2, "192.0.2.2:10911", 4800), other("r3", None, "", 100)],
)
"""Leads a set of two; a third one is away."""
FOLLOWER = replace(
    MASTER,
    replica="r2",
    broker_id=2,
    state=State.FOLLOWER,
    end=4800,
    durable_end=4800,
    others=[other("r1", 1, "192.0.2.1:10911", 4000), other("r3", None, "", 100)],
)
"""Follows it."""


class FakeReplica:
    """Tells `now`, and does what it is asked when its state allows it."""

    def __init__(self, status: ReplicaStatusBody = MASTER, **changes: Any) -> None:
        self.now = replace(status, **changes)
        self.asked: list[str] = []
        self.at_risk = 42

    def status(self) -> ReplicaStatusBody:
        return self.now

    async def switch_over(self, target: str) -> None:
        self.asked.append(f"switch over to {target}")
        if self.now.state != State.MASTER:
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
