"""What a master does for its followers in one term, and whom it counts on. No I/O."""

from __future__ import annotations

import logging

from msgspec.structs import replace

from skylarkmq.broker.replication.failover.coordinated_state import ClusterView, StateRecord
from skylarkmq.broker.replication.failover.election import Election
from skylarkmq.broker.replication.failover.in_sync import InSyncReplicas
from skylarkmq.broker.replication.failover.replica_events import (
    Beat,
    Confirm,
    GoodBye,
    Hello,
    Message,
    OpenStream,
    Promise,
    Refused,
    Send,
    TakeOver,
    Welcome,
)
from skylarkmq.broker.replication.failover.replica_log import ReplicaLog
from skylarkmq.broker.replication.failover.terms import LineageError, common_point

log = logging.getLogger(__name__)


class LedTerm:
    """The term of a master. Times are seconds of its monotonic clock.

    Attributes:
        target: of a switch-over.
        deadline_s: of its step that is under way.
    """

    def __init__(
        self, record: StateRecord, revision: int, election: Election, own_log: ReplicaLog
    ) -> None:
        now_s = election.now_s
        self.record = record
        self.in_sync = InSyncReplicas(election.me, record.start, record.in_sync, revision, now_s)
        self.in_sync.own_end(own_log.durable_end)
        self.target = ""
        self.deadline_s = 0.0
        self._election = election
        self._log = own_log
        # Of each follower its session, and where its stream begins, None once it is fed.
        self._sessions: dict[str, tuple[int, int | None]] = {}
        self._promises_s: dict[str, float] = {}  # when the answered beat was sent
        self._beat_s = 0.0
        self._moved_s = now_s  # when something was confirmed, or nothing was due
        self._confirmed = 0

    @property
    def number(self) -> int:
        """The number of this term."""
        return self.record.term

    @property
    def shown(self) -> int | None:
        """Consumers may see what ends here or earlier; None: not known, so reads wait."""
        return self.in_sync.confirmed if self.in_sync.holds_start else None

    def is_of(self, view: ClusterView) -> bool:
        """Whether the engine still holds this term."""
        return view.state is not None and view.state.term == self.number

    # Whom it counts on

    def is_alone(self) -> bool:
        """Whether nobody else can be the master by now."""
        election = self._election
        if election.is_counted_on:
            return True
        counted_s = election.rules.counted_lease_s
        others = self.in_sync.waited_for - {election.me}
        promises = self._promises_s
        return all(election.now_s < promises.get(other, -counted_s) + counted_s for other in others)

    def is_stalled(self) -> bool:
        """Whether nothing was confirmed for long, though other members live."""
        election, in_sync = self._election, self.in_sync
        if in_sync.confirmed > self._confirmed or in_sync.confirmed >= self._log.end:
            self._confirmed, self._moved_s = in_sync.confirmed, election.now_s
        view = election.view
        return (
            election.now_s - self._moved_s >= election.rules.stall_s
            and view is not None
            and any(other in view.alive for other in in_sync.members if other != election.me)
        )

    def observed(self, view: ClusterView, *, is_settled: bool) -> None:
        """The engine holds this term with these members.

        Args:
            is_settled: a swap happened, or never will.
        """
        assert view.state is not None
        self.in_sync.observed(view.state.in_sync, view.state_revision)
        if is_settled and self.in_sync.change is not None:
            self.in_sync.never_happened()
        self.change_set()

    def change_set(self) -> None:
        """Propose what is due: a member that leaves or joins, or the key that was lost."""
        election, in_sync = self._election, self.in_sync
        view, rules = election.view, election.rules
        assert view is not None
        if election.proposal is not None or election.lease == 0:
            return
        change = in_sync.next_change(
            view.alive, election.now_s, rules.not_caught_up_s, rules.silent_s
        )
        if change is not None or view.master_lease != election.lease:
            members = in_sync.members if change is None else change.members
            election.propose(replace(self.record, in_sync=tuple(sorted(members))))

    # Followers

    def beat(self) -> None:
        """Ask the followers that are fed for promises, when that is due."""
        now_s = self._election.now_s
        if now_s - self._beat_s >= self._election.rules.beat_s / 2:
            self._beat_s = now_s
            for replica, (session, begin) in self._sessions.items():
                # Where nothing is fed yet, silence makes the follower connect again.
                if begin is None:
                    self._beat(replica, session)

    def _beat(self, replica: str, session: int) -> None:
        now_s, confirmed = self._election.now_s, self.in_sync.confirmed
        self._send(replica, Beat(self.number, session, now_s, confirmed))

    def take(self, sender: str, message: Message) -> bool:
        """Take a message; return whether it is one of a follower of this term."""
        if isinstance(message, Hello):
            self._welcome(sender, message)
            return False
        known = self._sessions.get(sender)
        if known is None or message.session != known[0] or message.term != self.number:
            return False
        if isinstance(message, Confirm | Promise):
            durable_end, now_s = message.durable_end, self._election.now_s
            self.in_sync.confirm(sender, durable_end, self._log.end, now_s)
        if isinstance(message, Confirm) and known[1] is not None:
            self._sessions[sender] = (known[0], None)
            self._election.do(OpenStream(sender, self.number, known[0], known[1]))
            self._beat(sender, known[0])
        if isinstance(message, GoodBye):
            del self._sessions[sender]
            self.in_sync.said_good_bye(sender)
            self.change_set()
        if isinstance(message, Promise):
            asked_s = max(message.asked_s, self._promises_s.get(sender, message.asked_s))
            self._promises_s[sender] = asked_s
        return True

    def _welcome(self, sender: str, message: Hello) -> None:
        """Answer a follower's hello: where both logs agree."""
        if message.term > self.number:
            self._election.read()
        if message.term != self.number:
            self._refuse(sender, message, f"{self._election.me} leads term {self.number}")
            return
        ours = self._log
        try:
            point = common_point(ours.lineage, ours.end, message.lineage, message.end)
        except LineageError as error:
            log.error("%s is not fed: %s", sender, error)
            self._refuse(sender, message, str(error))
            return
        offset = ours.begin if point is None else max(point.offset, ours.begin)
        self._sessions[sender] = (message.session, offset)
        self.in_sync.greeted(sender)
        self._send(sender, Welcome(self.number, message.session, point, ours.begin, ours.lineage))

    def _refuse(self, sender: str, message: Hello, why: str) -> None:
        self._send(sender, Refused(self.number, message.session, why))

    def _send(self, to: str, message: Message) -> None:
        self._election.do(Send(to, message))

    # A planned switch-over

    def is_caught_up(self) -> bool:
        """Whether the target has all, so that it may be told to lead."""
        if self.in_sync.confirmed < self._log.end or self._election.proposal is not None:
            return False
        return self.target in self._sessions

    def begin_step(self) -> None:
        """Let the next step of the switch-over take so long at most."""
        self.deadline_s = self._election.now_s + self._election.rules.hand_over_s

    def ask_to_lead(self) -> None:
        """Tell the target to lead."""
        session = self._sessions.get(self.target)
        if session is not None:
            self._send(self.target, TakeOver(self.number, session[0]))
