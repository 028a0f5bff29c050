"""Whether clients may be sent to a replica, for `/readyz`. No I/O."""

from __future__ import annotations

from typing import Final

from skylarkmq.broker.replication.failover.replica_events import State
from skylarkmq.protocol.bodies.replica import ReplicaStatusBody

_BETWEEN: Final[dict[str, str]] = {
    State.STARTING: "this replica is starting, and has not read yet who leads",
    State.CANDIDATE: "there is no master, and this replica tries to become it",
    State.TAKING_OVER: "this replica is becoming the master",
    State.HANDED_OVER: "this replica has let another one lead, which has not begun to",
    State.STEPPING_DOWN: "this replica is the master no more, and follows soon",
}


def replica_check(status: ReplicaStatusBody) -> str:
    """Return why a replica serves nobody well, and what to look at; empty: it leads or follows.

    One that follows is ready: it answers pulls. A master with too few in sync is ready, too: it is
    read from, and says to producers what is missing.
    """
    if status.halted or status.state == State.HALTED:
        return f"this replica has halted, and stays so until an operator looks: {status.halted}"
    if status.state in _BETWEEN:
        return _with_engine(_BETWEEN[status.state], status)
    if status.state == State.WAITING or (status.state == State.FOLLOWER and _is_orphan(status)):
        return _with_engine(f"there is no master{_candidates(status)}", status)
    return ""


def _is_orphan(status: ReplicaStatusBody) -> bool:
    if not status.master:
        return True
    return any(each.replica == status.master and not each.alive for each in status.others)


def _candidates(status: ReplicaStatusBody) -> str:
    """Return who may become the master, and which of them are away."""
    if not status.in_sync:
        return " yet"
    away = [each.replica for each in status.others if not each.alive]
    listed = ", ".join(
        f"{member} (away)" if member in away else member for member in status.in_sync
    )
    return f"; one of these may become it: {listed}"


def _with_engine(why: str, status: ReplicaStatusBody) -> str:
    return why if status.engine_reachable else f"{why}; etcd (controllerEndpoints) is not reached"
