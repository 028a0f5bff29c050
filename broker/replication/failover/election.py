"""A replica's part in an election: its lease, what it read in the engine, its one swap. No I/O.

A swap of `state` is tried until it is *settled*: a view shows another revision than the one that
it started from, or `alive/<me>` is bound to another lease than the one that it asks for. Before
that it may still happen, whatever its answers were.

Each registration takes a new lease and puts `alive/<me>` once. So a put that comes late, even from
a process that has ended, binds the key to a lease under which no swap was ever tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from skylarkmq.broker.replication.failover.coordinated_state import (
    ALIVE,
    MASTER,
    STATE,
    AliveRecord,
    ClusterView,
    MasterRecord,
    StateRecord,
)
from skylarkmq.broker.replication.failover.coordination import Change, Condition, Swapped
from skylarkmq.broker.replication.failover.replica_events import (
    Action,
    FailoverRules,
    LeaseEnded,
    NotRegistered,
    Observed,
    Read,
    Register,
    Registered,
    Renew,
    Renewed,
    Swap,
    SwapEnded,
)


class ForgottenStateError(Exception):
    """The engine knows less than it did: it was emptied, or restored from an older copy."""


@dataclass(slots=True)
class Proposal:
    """A swap of `state` that is not settled."""

    number: int
    revision: int  # of the state that it replaces
    lease: int  # that `alive/<me>` must be bound to
    record: StateRecord
    retry_s: float | None = None  # when to try again; None while an answer is due
    settled_by: int | None = None  # it was answered: a read of this number, or a later one, tells


class Election:
    """One replica's part. One thread; `ReplicaState` sets `now_s` before each event.

    Its size is one idea: a swap is settled by what is read, what is read depends on the lease, and
    a swap that was refused takes a new lease.

    Attributes:
        me, rules, do: also those of the replica's other parts; `do` takes the next action.
        view: what the engine held when it was last read; None: it was not read yet.
        lease: number of the lease that is held; 0: none.
    """

    def __init__(
        self, me: str, alive: AliveRecord, rules: FailoverRules, do: Callable[[Action], None],
        now_s: float,
    ) -> None:  # fmt: skip
        self.me = me
        self._alive = alive
        self.rules = rules
        self.do = do
        self.now_s = now_s
        self.durable_end = 0  # of the log, for others to see
        self.view: ClusterView | None = None
        self.lease = 0
        self.lease_until_s = 0.0  # it is counted on
        self.proposal: Proposal | None = None
        self._registering = False
        self._registered_read = 0  # reads from this one on were asked for under this lease
        self._reads = self._swaps = 0
        self._fresh_read = 0  # reads from this one on know all that this replica has seen
        self._read_s = self._renew_s = self._release_s = now_s

    # The lease

    def register(self) -> None:
        """Take a new lease; without one nothing is swapped."""
        self.lease = 0
        self._registering = True
        self.do(Register(self._record()))

    def on_registered(self, event: Registered) -> None:
        """From here on, what an earlier lease asked for can no longer happen."""
        self._registering = False
        self.lease = event.lease
        self.lease_until_s = event.asked_s + self.rules.counted_lease_s
        self._registered_read = self._fresh_read = self._reads + 1
        self.read()

    def on_not_registered(self, _: NotRegistered) -> None:
        """The next tick tries again."""
        self._registering = False

    def on_renewed(self, event: Renewed) -> None:
        """The lease is counted on from when it was asked for."""
        if event.lease == self.lease:
            until_s = event.asked_s + self.rules.counted_lease_s
            self.lease_until_s = max(self.lease_until_s, until_s)

    def on_lease_ended(self, event: LeaseEnded) -> None:
        """Its keys are gone: register anew."""
        if event.lease == self.lease:
            self.register()

    @property
    def is_counted_on(self) -> bool:
        """Whether the key of the master is this replica's, and cannot have ended by `now_s`."""
        view = self.view
        if view is None or self.lease == 0 or view.master_lease != self.lease:
            return False
        return self.now_s < self.lease_until_s

    def _record(self) -> AliveRecord:
        return replace(self._alive, durable_end=self.durable_end)

    def publish(self) -> None:
        """Tell others how far this log is, so that the best one goes first."""
        if self.lease:
            key = ALIVE + self.me
            change = Change(key, self._record().to_json(), self.lease)
            self.do(Swap(0, (Condition(key, lease=self.lease),), (change,)))

    # Reading

    def read(self) -> None:
        """Ask for a view."""
        self._reads += 1
        self._read_s = self.now_s
        self.do(Read(self._reads))

    def knows_more(self) -> None:
        """This replica learned of a term: a read from before may not know it."""
        self._fresh_read = self._reads + 1

    def is_of_this_lease(self, event: Observed) -> bool:
        """Whether the read was asked for after this process was registered."""
        return self.lease != 0 and event.read >= self._registered_read

    def look(self, event: Observed, known_term: int) -> bool:
        """Take a view; False when it is older than what is known.

        Args:
            known_term: the newest of this replica's log.

        Raises:
            ForgottenStateError: it is no old view, and yet knows less.
        """
        view, known = event.view, self.view
        is_fresh = event.read >= self._fresh_read and event.read > 0
        if known is not None and view.revision < known.revision:
            if is_fresh:
                raise ForgottenStateError(f"revision {view.revision} came after {known.revision}")
            return False
        term = 0 if view.state is None else view.state.term
        if term < known_term:
            if is_fresh:
                raise ForgottenStateError(f"it knows of term {term}, this log of {known_term}")
            return False
        if known is None or view.revision > known.revision:
            self.knows_more()
        self.view = view
        if self.is_of_this_lease(event) and view.leases.get(self.me) != self.lease:
            self.register()  # a put of an earlier lease came late and took the key
        return True

    def tick(self) -> None:
        """Keep the lease, read, and try again what was not answered."""
        if self.lease == 0:
            if not self._registering:
                self.register()
            return
        beat_s = self.rules.beat_s
        if self.now_s - self._renew_s >= beat_s:
            self._renew_s = self.now_s
            self.do(Renew(self.lease))
        if self.now_s - self._read_s >= beat_s:
            self.read()
        proposal = self.proposal
        if proposal is not None and proposal.retry_s is not None and self.now_s >= proposal.retry_s:
            self._try(proposal)

    # Swaps

    def propose(self, record: StateRecord) -> None:
        """Swap `state` and `master`; the outcome is what a later view shows."""
        self._swaps += 1
        revision = 0 if self.view is None else self.view.state_revision
        self.proposal = Proposal(self._swaps, revision, self.lease, record)
        self._try(self.proposal)

    def _try(self, proposal: Proposal) -> None:
        proposal.retry_s = None
        record = proposal.record
        master = MasterRecord(self.me, record.term).to_json()
        changes = (Change(STATE, record.to_json()), Change(MASTER, master, proposal.lease))
        self.do(Swap(proposal.number, self._conditions(proposal), changes))

    def _conditions(self, proposal: Proposal) -> tuple[Condition, ...]:
        return (
            Condition(STATE, revision=proposal.revision),
            Condition(ALIVE + self.me, lease=proposal.lease),
        )

    def on_swap_ended(self, event: SwapEnded) -> None:
        """Read how it ended, or try the same swap again."""
        proposal = self.proposal
        if proposal is None or event.swap != proposal.number:
            return
        if event.outcome is Swapped.UNKNOWN:
            proposal.retry_s = self.now_s + self.rules.beat_s / 4
        else:
            proposal.settled_by = self._reads + 1
            self.read()

    def settle(self, event: Observed) -> Proposal | None:
        """Return the proposal if this view settles it: it happened, or never will."""
        proposal = self.proposal
        if proposal is None:
            return None
        if event.view.state_revision == proposal.revision:
            if proposal.lease == self.lease:
                if proposal.settled_by is not None and event.read >= proposal.settled_by:
                    self.register()  # refused, and not for the state: `alive/<me>` was lost
                return None
            if not self.is_of_this_lease(event):
                return None
        self.proposal = None
        return proposal

    def release(self) -> None:
        """Give the key of a master back that this replica is no more, so that others may try."""
        view = self.view
        if view is None or view.master is None or view.master.replica != self.me:
            return
        if self.lease == 0 or view.master_lease != self.lease:
            return
        if self.now_s - self._release_s >= self.rules.beat_s:
            self._release_s = self.now_s
            condition = Condition(STATE, revision=view.state_revision)
            self.do(Swap(0, (condition,), (Change(MASTER, None),)))
            self.read()
