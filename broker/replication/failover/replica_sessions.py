"""What a follower knows of its master, and a master of its followers. No I/O.

Times are seconds of the replica's own monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from skylarkmq.broker.replication.failover.coordinated_state import StateRecord
from skylarkmq.broker.replication.failover.in_sync import InSyncReplicas
from skylarkmq.broker.replication.failover.terms import Lineage


@dataclass(slots=True)
class Session:
    """A follower's connection to a master."""

    number: int
    term: int
    master: str
    heard_s: float
    lineage: Lineage = ()  # of the master
    is_cut: bool = False  # the log was cut to where both agree
    next_offset: int = 0  # of the next part


@dataclass(slots=True)
class LedTerm:
    """What a master knows in its term."""

    record: StateRecord
    in_sync: InSyncReplicas
    # Of each follower its session, and where its stream begins, None once it is fed.
    sessions: dict[str, tuple[int, int | None]] = field(
        default_factory=dict[str, tuple[int, int | None]]
    )
    promises_s: dict[str, float] = field(
        default_factory=dict[str, float]
    )  # when the answered beat was sent
    beat_s: float = 0.0
    moved_s: float = 0.0  # when something was confirmed, or nothing was due
    confirmed: int = 0
    target: str = ""  # of a switch-over
    deadline_s: float = 0.0
