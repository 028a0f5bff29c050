"""What a replica knows of its own log, from what it is told of it. No I/O."""

from __future__ import annotations

from skylarkmq.broker.replication.failover.election import Election
from skylarkmq.broker.replication.failover.replica_events import LocalLog, LogCut, LogMoved
from skylarkmq.broker.replication.failover.terms import Lineage


class ReplicaLog:
    """Where the log begins and ends, and who wrote it.

    Attributes:
        taken: end of what was handed to the log; what is behind `end` is being written.
        is_cutting: it is being cut back.
        confirmed: what ends here or earlier is confirmed, as the master said last.
    """

    def __init__(self, found: LocalLog, election: Election) -> None:
        self.begin = found.begin
        self.lineage = found.lineage
        self.end = self.durable_end = self.taken = 0
        self.is_cutting = False
        self.confirmed = 0
        self._election = election
        self._grow(found.end, found.end)

    @property
    def shown(self) -> int:
        """Consumers of a follower may see what ends here or earlier."""
        return min(self.confirmed, self.durable_end)

    def _grow(self, end: int, durable_end: int) -> None:
        self.end, self.durable_end = end, durable_end
        self.taken = max(self.taken, end)
        self._election.durable_end = durable_end

    def know(self, lineage: Lineage) -> None:
        """The rows on the disk are these now; a read from before may not know their terms."""
        self.lineage = lineage
        self._election.knows_more()

    def moved(self, event: LogMoved) -> None:
        """It has grown, more of it is stored, or old files went."""
        self._grow(event.end, event.durable_end)
        if event.begin is not None:
            self.begin = event.begin

    def drop_part(self, end: int) -> None:
        """Nothing more comes of a record that came in part."""
        self.taken = max(self.end, end)

    def frozen(self, end: int) -> None:
        """Nothing more is taken, and all of it is durable."""
        self._grow(end, end)
        self.taken = end  # a record that came in part is dropped

    def cut(self, event: LogCut) -> None:
        """It was cut back, or was already as short."""
        self.is_cutting = False
        self.confirmed = min(self.confirmed, event.end)
        self.frozen(event.end)
        self.know(event.lineage)
