"""What a follower says to its master, and what it does with what that says. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from skylarkmq.broker.replication.failover.candidacy import Candidacy
from skylarkmq.broker.replication.failover.coordinated_state import ClusterView, StateRecord
from skylarkmq.broker.replication.failover.election import Election
from skylarkmq.broker.replication.failover.replica_events import (
    Append,
    Beat,
    Confirm,
    CutBack,
    GoodBye,
    Hello,
    LogCut,
    Message,
    Part,
    Promise,
    Refused,
    Send,
    TakeOver,
    Welcome,
)
from skylarkmq.broker.replication.failover.replica_log import ReplicaLog
from skylarkmq.broker.replication.failover.terms import Lineage, last_term, rows_up_to


@dataclass(slots=True)
class Session:
    """A follower's connection to a master; times are seconds of its own monotonic clock."""

    number: int
    term: int
    master: str
    heard_s: float
    lineage: Lineage = ()  # of the master
    is_cut: bool = False  # the log was cut to where both agree
    next_offset: int = 0  # of the next part


class Following:
    """A replica's session with the master that it follows.

    Attributes:
        session: the newest one; None: it has none.
    """

    def __init__(self, election: Election, log: ReplicaLog, candidacy: Candidacy) -> None:
        self.session: Session | None = None
        self._election = election
        self._log = log
        self._candidacy = candidacy
        self._addresses: dict[str, str] = {}
        self._sessions = 0
        self._tried = (0, election.now_s)  # term of the last one, and when it began

    # The session

    def looked(self, view: ClusterView) -> None:
        """Note where other replicas listen."""
        for replica, record in view.alive.items():
            self._addresses[replica] = record.ha_address

    def follow(self, state: StateRecord) -> None:
        """Connect to this state's master, if that is due."""
        session, now_s = self.session, self._election.now_s
        term, tried_s = self._tried
        is_due = term != state.term or now_s - tried_s >= self._election.rules.reconnect_s
        if is_due if session is None else session.term != state.term:
            self._connect(state)

    def _connect(self, state: StateRecord) -> None:
        """Begin a session with the master, once this log stands still.

        A hello that speaks of less than was taken would let the rest be cut off, though consumers
        may have seen it.
        """
        self.session, log, now_s = None, self._log, self._election.now_s
        if log.is_cutting or log.taken > log.end:
            return
        self._sessions += 1
        self._tried = (state.term, now_s)
        number = (self._election.lease << 32) + self._sessions  # no other process has its lease
        self.session = Session(number, state.term, state.master, now_s)
        hello = Hello(state.term, number, log.end, log.lineage)
        address = self._addresses.get(state.master, "")
        self._election.do(Send(state.master, hello, address))

    def look_for_silence(self, state: StateRecord | None) -> None:
        """Connect again when the master has said nothing for too long."""
        session = self.session
        if session is None or state is None:
            return
        is_cutting = session.lineage and not session.is_cut
        silent_s = self._election.now_s - session.heard_s
        if not is_cutting and silent_s >= self._election.rules.silent_s:
            self._connect(state)

    def disconnected(self, number: int) -> None:
        """The connection of a session has ended; the next tick connects again."""
        if self.session is not None and self.session.number == number:
            self.session = None

    # What this replica says

    def confirm(self) -> None:
        """Say how much of the master's log is stored here."""
        session = self.session
        if session is not None and session.is_cut:
            confirm = Confirm(session.term, session.number, self._log.durable_end)
            self._election.do(Send(session.master, confirm))

    def cut(self, event: LogCut) -> None:
        """The log ends where it agrees with the master's, so parts may come."""
        session = self.session
        if session is not None and session.number == event.session:
            session.is_cut = True
            session.next_offset = event.end
            session.heard_s = self._election.now_s
            self.confirm()

    def leave(self) -> None:
        """Say that this replica stops."""
        session = self.session
        if session is not None:
            self._election.do(Send(session.master, GoodBye(session.term, session.number)))

    # What the master says

    def take(self, sender: str, message: Message) -> bool:
        """Take a message; return whether the master tells this replica to lead."""
        session = self.session
        if session is None or sender != session.master or not self._is_of(session, message):
            return False
        if isinstance(message, Part):
            self._take_part(session, message)
            return False
        # Parts do not count: a master that took an old hello for the last one feeds, and no more.
        session.heard_s = self._election.now_s
        if isinstance(message, Refused):
            self._election.read()
        elif isinstance(message, Beat):
            self._answer_beat(session, message)
        elif isinstance(message, Welcome):
            self._take_welcome(session, message)
        return isinstance(message, TakeOver)

    def _is_of(self, session: Session, message: Message) -> bool:
        """Whether a message belongs to this session: streams of older terms are refused."""
        if message.session != session.number:
            return False
        return isinstance(message, Refused) or message.term == session.term

    def _take_welcome(self, session: Session, message: Welcome) -> None:
        if session.is_cut or session.lineage:
            return
        session.lineage = message.lineage
        point = message.point
        anew = point is None or point.offset < message.begin
        offset = message.begin if point is None or anew else point.offset
        self._log.is_cutting = True
        rows = rows_up_to(message.lineage, offset)
        self._election.do(CutBack(session.number, offset, rows, anew))

    def _take_part(self, session: Session, message: Part) -> None:
        if not session.is_cut or message.offset < session.next_offset:
            return
        view, log = self._election.view, self._log
        assert view is not None
        if message.offset > session.next_offset and view.state is not None:
            self._connect(view.state)  # something was lost on the way
            return
        rows = tuple(
            row
            for row in rows_up_to(session.lineage, message.offset)
            if row.term > last_term(log.lineage)
        )
        if rows:
            log.know((*log.lineage, *rows))
        session.next_offset += len(message.data)
        log.taken = session.next_offset
        log.confirmed = max(log.confirmed, message.confirmed)
        self._election.do(Append(rows, message.offset, message.data))

    def _answer_beat(self, session: Session, message: Beat) -> None:
        if not session.is_cut:
            return
        self._log.confirmed = max(self._log.confirmed, message.confirmed)
        self._candidacy.let_others_try()
        durable_end = self._log.durable_end
        promise = Promise(session.term, session.number, message.asked_s, durable_end)
        self._election.do(Send(session.master, promise))
