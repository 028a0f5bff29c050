"""What a replica under a controller tells of itself, to administrators and metrics. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from skylarkmq.broker.replication.failover.replica_events import State


@dataclass(frozen=True, slots=True)
class OtherReplica:
    """Another replica, as the coordination engine and, on a master, its confirmations say."""

    replica: str  # its id
    broker_id: int | None  # None: it has not said so yet
    address: str  # for clients, host:port; empty while it is not alive
    is_alive: bool  # its lease runs
    durable_end: int  # of its log, bytes: confirmed in this term; else what it published last


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """Where a replica stands now."""

    replica: str  # its id
    broker_id: int
    state: State
    term: int  # the newest that it knows, 0 before the first
    master: str  # replica id of that term's master, empty before the first
    in_sync: tuple[str, ...]  # replica ids of the set that is recorded, in order
    start: int  # where that term begins in the log, bytes
    end: int  # of its log
    durable_end: int
    confirmed: int  # what may be shown, bytes: it survives a failover
    mastership_changes: int  # that it has seen since its start
    is_engine_reachable: bool  # a read of the coordination engine was answered lately
    halted: str  # why it stands still for good, empty when it does not
    others: tuple[OtherReplica, ...]


class Replicated(Protocol):
    """A replica as the rest of the broker sees it. Loop thread."""

    def status(self) -> ReplicaStatus: ...

    async def switch_over(self, target: str) -> None:
        """Let another member of the set lead, without a failed send of a patient client.

        Args:
            target: replica id; empty: the member with the most of the log.

        Raises:
            RemoteProtocolError: this is not the master, `target` is not in sync, or it did not
                take over in time; this replica leads on then.
        """

    async def force(self) -> int:
        """Lead though others may know more; an operator accepts the loss.

        Returns:
            How many messages at the end of this log are not known to be on every replica that was
            in sync, or may be lost: those behind what was last known to be confirmed.

        Raises:
            RemoteProtocolError: there is a master, or the coordination engine is not reached.
        """
        ...
