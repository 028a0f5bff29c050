"""Whether a replica may lead, when it may try, and with what it stands for election. No I/O."""

from __future__ import annotations

from skylarkmq.broker.replication.failover.coordinated_state import (
    TERMS_KEPT,
    ClusterView,
    StateRecord,
)
from skylarkmq.broker.replication.failover.election import Election
from skylarkmq.broker.replication.failover.replica_log import ReplicaLog
from skylarkmq.broker.replication.failover.terms import TermStart


class Candidacy:
    """When one replica stands for election.

    Attributes:
        waiting_since_s: when it began to wait for its turn.
        was_told: the master or an operator wants it to lead.
        is_forced: an operator does, whatever is lost.
    """

    def __init__(self, election: Election, log: ReplicaLog, priority: int) -> None:
        self.waiting_since_s = election.now_s
        self.was_told = self.is_forced = False
        self._election = election
        self._log = log
        self._priority = priority
        self._not_before_s = election.now_s  # this replica does not try to lead earlier

    def is_led(self, view: ClusterView) -> bool:
        """Whether a master's key is there, other than one that an earlier process left behind."""
        if view.master is None:
            return False
        return view.master.replica != self._election.me or view.master_lease == self._election.lease

    def may_lead(self, view: ClusterView) -> bool:
        """Whether this replica is in sync, or the first of all."""
        if view.state is None:
            return not self._log.lineage
        return self._election.me in view.state.in_sync

    def may_be_told(self) -> bool:
        """Whether the master may tell this replica to lead, by what it has read."""
        view = self._election.view
        return view is not None and self._election.lease != 0 and self.may_lead(view)

    def may_be_forced(self) -> bool:
        """Whether an operator may: there is a lease, and no master."""
        view = self._election.view
        return view is not None and self._election.lease != 0 and not self.is_led(view)

    def let_others_try(self) -> None:
        """Do not try to lead for one lease from now."""
        self._not_before_s = self._election.now_s + self._election.rules.lease_s

    def is_due(self) -> bool:
        """Whether the turn of a replica that waits has come."""
        return self._election.now_s >= max(self._not_before_s, self._turn_s())

    def _turn_s(self) -> float:
        """When this replica may try: later, the more members are ahead of it."""
        election = self._election
        view = election.view
        assert view is not None
        if view.state is not None and view.state.master == election.me:
            return self.waiting_since_s
        mine = (self._log.durable_end, -self._priority, election.me)
        ahead = sum(
            (found.durable_end, -found.priority, replica) > mine
            for replica, found in view.alive.items()
            if replica != election.me and (view.state is None or replica in view.state.in_sync)
        )
        return self.waiting_since_s + election.rules.turn_s * (ahead + 1)

    def stand(self) -> bool:
        """Propose the next term with this replica as its master; False when it may not lead."""
        election = self._election
        view = election.view
        assert view is not None
        may = self.may_lead(view) and (self.was_told or not self.is_led(view))
        if not (self.is_forced or may) or election.lease == 0:
            return False
        me, old = election.me, view.state
        if old is None:
            # What was stored before there were replicas belongs to the first term.
            record = StateRecord(1, me, (me,), 0, (TermStart(1, 0),))
        else:
            live = set[str]() if self.is_forced else {m for m in old.in_sync if m in view.alive}
            row = TermStart(old.term + 1, self._log.durable_end)
            rows = (*self._log.lineage, row)[-TERMS_KEPT:]
            record = StateRecord(row.term, me, tuple(sorted({me, *live})), row.start, rows)
        election.propose(record)
        return True
