"""What one replica does, event by event, so that nothing acknowledged is ever lost. No I/O.

`ReplicaState.handle(event, now_s)` returns the actions that follow; `replica_events.py` has both.
The driver carries the actions out in their order, one after the other, and hands every answer back
as an event. The table at the end says what each state does with each event; an event that is not
named there counts for nothing in that state.

    STARTING        no lease yet, or nothing read: confirms nothing
    FOLLOWER        takes the master's log; or knows of no master, and is no member of the set
    WAITING         a member, and the master's key is gone: its turn to try comes
    CANDIDATE       frozen; swaps `state` to the next term until the revision moves
    TAKING_OVER     has won; writes the term's row
    MASTER          leads
    HANDING_OVER    leads, but takes no sends: the member that shall lead catches up
    HANDED_OVER     has told that member to lead, and leads no more
    STEPPING_DOWN   was deposed; stops what a master runs
    HALTED          the engine's state and this log cannot belong together

      STARTING -> FOLLOWER <-> WAITING -> CANDIDATE -> TAKING_OVER -> MASTER <-> HANDING_OVER
                     ^ ^                      |             |            |            |
                     | +----------------------+-------------+            |       HANDED_OVER
                     +---------------- STEPPING_DOWN <-------------------+------------+

Safety needs no clock. It rests on these rules:

- A candidate confirms nothing from before it asks for its log's end until its swap is settled. So
  the start of its term is behind everything that any master acknowledged with its help.
- A swap whose outcome is unknown is tried again, the same one, until the revision of `state` moves,
  or `alive/<me>` is bound to another lease; then it can no longer happen. For each swap also asks
  that `alive/<me>` is bound to the lease of this process, a swap of an earlier process, or one from
  before a lost lease, comes too late.
- A started process never goes on in a term of an earlier one: it takes a new term.
- A new master shows nothing until the start of its term is confirmed again.
- Whoever's log knows a term that the engine does not know stops: the engine was emptied, or
  restored from an older copy.

Clocks decide when to try, and whether a master may still count on being the only one: either its
lease runs, or every member has promised within the last lease not to try. So a master goes on while
the engine is away, as long as its set needs no change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from skylarkmq.broker.replication.failover.coordinated_state import (
    TERMS_KEPT,
    AliveRecord,
    ClusterView,
    StateRecord,
)
from skylarkmq.broker.replication.failover.engine_side import EngineSide, ForgottenStateError
from skylarkmq.broker.replication.failover.in_sync import InSyncReplicas
from skylarkmq.broker.replication.failover.replica_events import (
    Action,
    Append,
    Beat,
    BeginTerm,
    CloseStreams,
    Confirm,
    CutBack,
    Disconnected,
    Event,
    FailoverRules,
    ForceFailover,
    Freeze,
    Frozen,
    GoodBye,
    Halt,
    Hello,
    Lead,
    LeadingStopped,
    LeaseEnded,
    Leave,
    LocalLog,
    LogCut,
    LogMoved,
    Message,
    NotRegistered,
    Observed,
    OpenStream,
    Part,
    Promise,
    Received,
    Refused,
    Registered,
    Renewed,
    Send,
    Sends,
    State,
    StopLeading,
    SwapEnded,
    SwitchOver,
    TakeOver,
    TermBegun,
    Tick,
    Welcome,
)
from skylarkmq.broker.replication.failover.replica_sessions import LedTerm, Session
from skylarkmq.broker.replication.failover.terms import (
    Lineage,
    LineageError,
    TermStart,
    common_point,
    last_term,
    rows_up_to,
)

log = logging.getLogger(__name__)


_Row = dict[type[Event], Callable[["ReplicaState", Any], None]]


class ReplicaState:
    """One replica. One thread; times are seconds of one monotonic clock."""

    def __init__(
        self, me: str, alive: AliveRecord, rules: FailoverRules, found: LocalLog, now_s: float
    ) -> None:
        self.state = State.STARTING
        self.why_halted = ""
        self._me = me
        self._priority = alive.priority
        self._rules = rules
        self._now_s = now_s
        self._begin = found.begin
        self._lineage = found.lineage
        self._actions: list[Action] = []
        self._engine = EngineSide(me, alive, rules, self._do, now_s)
        self._end = self._durable_end = 0
        self._taken = 0  # end of what was handed to the log; the rest of it is being written
        self._is_cutting = False
        self._grow(found.end, found.end)
        self._sessions = 0
        self._tried = (0, now_s)  # term of the last one, and when it began
        self._session: Session | None = None
        self._term: LedTerm | None = None
        self._waiting_since_s = now_s
        self._not_before_s = now_s  # this replica does not try to lead earlier
        self._was_told = False  # to lead, by the master or an operator
        self._forced = False
        self._known_confirmed = 0
        self._addresses: dict[str, str] = {}

    # What the broker asks

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Take an event; return what to do, in this order."""
        self._now_s = self._engine.now_s = now_s
        handler = self.TABLE[self.state].get(type(event))
        if handler is not None:
            handler(self, event)
        actions, self._actions = self._actions, []
        return actions

    @property
    def term(self) -> int:
        """The term of the master that this replica is; 0 when it leads nothing."""
        return 0 if self._term is None else self._term.record.term

    @property
    def in_sync(self) -> InSyncReplicas | None:
        """Whom a master waits for."""
        return None if self._term is None else self._term.in_sync

    @property
    def is_fed(self) -> bool:
        """Whether this replica follows a master, and its log is that one's."""
        return self._session is not None and self._session.is_cut

    @property
    def confirmed(self) -> int:
        """A master may acknowledge what ends here or earlier, while `sends` is not NOT_MASTER."""
        return 0 if self._term is None else self._term.in_sync.confirmed

    @property
    def sends(self) -> Sends:
        """Whether a send is taken now."""
        if self.state is not State.MASTER or self._term is None:
            return Sends.NOT_MASTER
        enough = len(self._term.in_sync.members) >= self._rules.min_in_sync
        return Sends.TAKEN if enough else Sends.TOO_FEW

    @property
    def shown(self) -> int | None:
        """Consumers may see what ends here or earlier; None: not known, so reads wait."""
        if self._term is None:
            return min(self._known_confirmed, self._durable_end)
        return self._term.in_sync.confirmed if self._term.in_sync.holds_start else None

    def has_authority(self, now_s: float) -> bool:
        """Return whether this replica is a master, and nobody else can be by now."""
        if self.state not in (State.MASTER, State.HANDING_OVER) or self._term is None:
            return False
        self._now_s = self._engine.now_s = now_s
        if self._engine.is_counted_on:
            return True
        counted_s = self._rules.counted_lease_s
        others = self._term.in_sync.waited_for - {self._me}
        promises = self._term.promises_s
        return all(now_s < promises.get(other, -counted_s) + counted_s for other in others)

    # The engine

    def _look(self, event: Observed) -> bool:
        """Take a view; False when it is older than what is known, or this replica has halted."""
        try:
            is_taken = self._engine.look(event, last_term(self._lineage))
        except ForgottenStateError as error:
            self._halt(str(error))
            return False
        if is_taken:
            for replica, record in event.view.alive.items():
                self._addresses[replica] = record.ha_address
        return is_taken

    def _halt(self, why: str) -> None:
        self.state = State.HALTED
        self.why_halted = (
            f"the coordination engine was emptied, or restored from an older copy: {why}. Restore "
            "its newest copy. Without one, remove skylarkmq/terms on the replica with the longest "
            "log, and start the others anew"
        )
        self._term = self._session = None
        self._do(CloseStreams())
        self._do(StopLeading(self.why_halted))
        self._do(Halt(self.why_halted))

    # Starting

    def _start_observed(self, event: Observed) -> None:
        if not self._engine.is_of_this_lease(event) or not self._look(event):
            return
        state = event.view.state
        if state is not None and state.master != self._me:
            # An earlier process may have promised its master not to try, just before it ended.
            self._not_before_s = self._now_s + self._rules.lease_s
        self._follow()

    # Following and waiting

    def _follow(self) -> None:
        """Enter FOLLOWER, or WAITING when somebody of the set must lead."""
        self._was_told = self._forced = False
        self._term = None
        self.state = State.FOLLOWER
        self._stand_by()

    def _stand_by(self) -> None:
        """Act on the view as a replica that does not lead: connect, wait, or leave it."""
        view = self._engine.view
        assert view is not None
        state = view.state
        if state is not None and state.master != self._me:
            session = self._session
            term, tried_s = self._tried
            is_due = term != state.term or self._now_s - tried_s >= self._rules.reconnect_s
            if is_due if session is None else session.term != state.term:
                self._connect(state)
        else:
            self._session = None
        if self._is_led(view) or not self._may_lead(view):
            self.state = State.FOLLOWER
        elif self.state is not State.WAITING:
            self.state = State.WAITING
            self._waiting_since_s = self._now_s
            self._engine.publish()

    def _is_led(self, view: ClusterView) -> bool:
        """Whether a master's key is there, other than one that an earlier process left behind."""
        if view.master is None:
            return False
        return view.master.replica != self._me or view.master_lease == self._engine.lease

    def _may_lead(self, view: ClusterView) -> bool:
        if view.state is None:
            return not self._lineage
        return self._me in view.state.in_sync

    def _turn_s(self) -> float:
        """When this replica may try: later, the more members are ahead of it."""
        view = self._engine.view
        assert view is not None
        if view.state is not None and view.state.master == self._me:
            return self._waiting_since_s
        mine = (self._durable_end, -self._priority, self._me)
        ahead = sum(
            (found.durable_end, -found.priority, replica) > mine
            for replica, found in view.alive.items()
            if replica != self._me and (view.state is None or replica in view.state.in_sync)
        )
        return self._waiting_since_s + self._rules.turn_s * (ahead + 1)

    def _connect(self, state: StateRecord) -> None:
        """Begin a session with the master, once this log stands still.

        A hello that speaks of less than was taken would let the rest be cut off, though consumers
        may have seen it.
        """
        self._session = None
        if self._is_cutting or self._taken > self._end:
            return
        self._sessions += 1
        self._tried = (state.term, self._now_s)
        number = (self._engine.lease << 32) + self._sessions  # no other process has its lease
        self._session = Session(number, state.term, state.master, self._now_s)
        hello = Hello(state.term, number, self._end, self._lineage)
        self._send(state.master, hello, self._addresses.get(state.master, ""))

    def _follow_tick(self, _: Tick) -> None:
        self._engine.tick()
        view, session = self._engine.view, self._session
        assert view is not None
        if session is None:
            self._stand_by()
        is_silent = (
            session is not None
            and (session.is_cut or not session.lineage)  # else its log is being cut
            and self._now_s - session.heard_s >= self._rules.silent_s
        )
        if is_silent and view.state is not None:
            self._connect(view.state)
        self._engine.release()

    def _wait_tick(self, tick: Tick) -> None:
        self._follow_tick(tick)
        if self.state is not State.WAITING or self._engine.lease == 0:
            return
        if self._now_s >= max(self._not_before_s, self._turn_s()):
            self._freeze()

    def _follow_observed(self, event: Observed) -> None:
        if self._look(event):
            self._stand_by()

    def _follow_log(self, event: LogMoved) -> None:
        self._any_log(event)
        session = self._session
        if session is not None and session.is_cut:
            confirm = Confirm(session.term, session.number, self._durable_end)
            self._send(session.master, confirm)

    def _follow_cut(self, event: LogCut) -> None:
        self._any_cut(event)
        session = self._session
        if session is not None and session.number == event.session:
            session.is_cut = True
            session.next_offset = event.end
            session.heard_s = self._now_s
            confirm = Confirm(session.term, session.number, self._durable_end)
            self._send(session.master, confirm)

    def _grow(self, end: int, durable_end: int) -> None:
        self._end, self._durable_end = end, durable_end
        self._taken = max(self._taken, end)
        self._engine.durable_end = durable_end

    def _know(self, lineage: Lineage) -> None:
        """The rows on the disk are these now; a read from before may not know their terms."""
        self._lineage = lineage
        self._engine.knows_more()

    def _follow_received(self, event: Received) -> None:
        message, session = event.message, self._session
        if isinstance(message, Hello):
            self._refuse_hello(event)
            return
        if session is None or event.sender != session.master:
            return
        if not self._is_of(session, message):
            return
        if isinstance(message, Part):
            self._take_part(session, message)
            return
        # Parts do not count: a master that took an old hello for the last one feeds, and no more.
        session.heard_s = self._now_s
        if isinstance(message, Refused):
            self._engine.read()
        elif isinstance(message, Beat):
            self._answer_beat(session, message)
        elif isinstance(message, Welcome):
            self._take_welcome(session, message)
        elif isinstance(message, TakeOver):
            self._take_over()

    def _take_over(self) -> None:
        """Lead, as the master says. Who has not read that it may looks first, and is asked anew."""
        if self._may_be_told():
            self._was_told = True
            self._freeze()
        else:
            self._engine.read()

    def _is_of(self, session: Session, message: Message) -> bool:
        """Whether a message belongs to this session: streams of older terms are refused."""
        if message.session != session.number:
            return False
        return isinstance(message, Refused) or message.term == session.term

    def _refuse_hello(self, event: Received) -> None:
        view, message = self._engine.view, event.message
        term = 0 if view is None or view.state is None else view.state.term
        why = f"{self._me} does not lead yet, or no more; it is asked again"
        self._send(event.sender, Refused(term, message.session, why))

    def _take_welcome(self, session: Session, message: Welcome) -> None:
        if session.is_cut or session.lineage:
            return
        session.lineage = message.lineage
        point = message.point
        anew = point is None or point.offset < message.begin
        offset = message.begin if point is None or anew else point.offset
        self._is_cutting = True
        self._do(CutBack(session.number, offset, rows_up_to(message.lineage, offset), anew))

    def _take_part(self, session: Session, message: Part) -> None:
        if not session.is_cut or message.offset < session.next_offset:
            return
        view = self._engine.view
        assert view is not None
        if message.offset > session.next_offset and view.state is not None:
            self._connect(view.state)  # something was lost on the way
            return
        rows = tuple(
            row
            for row in rows_up_to(session.lineage, message.offset)
            if row.term > last_term(self._lineage)
        )
        if rows:
            self._know((*self._lineage, *rows))
        session.next_offset += len(message.data)
        self._taken = session.next_offset
        self._known_confirmed = max(self._known_confirmed, message.confirmed)
        self._do(Append(rows, message.offset, message.data))

    def _answer_beat(self, session: Session, message: Beat) -> None:
        if not session.is_cut:
            return
        self._known_confirmed = max(self._known_confirmed, message.confirmed)
        self._not_before_s = max(self._not_before_s, self._now_s + self._rules.lease_s)
        promise = Promise(session.term, session.number, message.asked_s, self._durable_end)
        self._send(session.master, promise)

    def _may_be_told(self) -> bool:
        view = self._engine.view
        return view is not None and self._engine.lease != 0 and self._may_lead(view)

    def _on_force(self, _: ForceFailover) -> None:
        view = self._engine.view
        if view is None or self._engine.lease == 0 or self._is_led(view):
            log.error("failover is not forced: there is a master, or no lease yet")
            return
        log.warning("an operator accepts the loss: %s leads though others may know more", self._me)
        self._was_told = self._forced = True
        self._freeze()

    # Taking over

    def _freeze(self) -> None:
        """Confirm, promise and take nothing from here on."""
        self.state = State.CANDIDATE
        self._session = None
        self._do(Freeze())

    def _candidate_frozen(self, event: Frozen) -> None:
        self._grow(event.end, event.end)
        self._taken = event.end  # a record that came in part is dropped
        if self._engine.proposal is None:
            self._campaign()

    def _campaign(self) -> None:
        view = self._engine.view
        assert view is not None
        may = self._forced or (self._may_lead(view) and (self._was_told or not self._is_led(view)))
        if not may or self._engine.lease == 0:
            self._follow()
            return
        old = view.state
        if old is None:
            # What was stored before there were replicas belongs to the first term.
            record = StateRecord(1, self._me, (self._me,), 0, (TermStart(1, 0),))
        else:
            live = set[str]() if self._forced else {m for m in old.in_sync if m in view.alive}
            row = TermStart(old.term + 1, self._durable_end)
            rows = (*self._lineage, row)[-TERMS_KEPT:]
            members = tuple(sorted({self._me, *live}))
            record = StateRecord(row.term, self._me, members, row.start, rows)
        self._engine.propose(record)

    def _candidate_observed(self, event: Observed) -> None:
        if not self._look(event):
            return
        proposal = self._engine.settle(event)
        if proposal is None:
            return
        if event.view.state != proposal.record:
            self._follow()
            return
        in_sync = InSyncReplicas(
            self._me,
            proposal.record.start,
            proposal.record.in_sync,
            event.view.state_revision,
            self._now_s,
        )
        in_sync.own_end(self._durable_end)
        self._term = LedTerm(proposal.record, in_sync, moved_s=self._now_s)
        self.state = State.TAKING_OVER
        self._do(BeginTerm(proposal.record.lineage[-1]))

    def _any_received(self, event: Received) -> None:
        if isinstance(event.message, Hello):
            self._refuse_hello(event)

    def _any_begun(self, event: TermBegun) -> None:
        self._know(event.lineage)

    def _any_observed(self, event: Observed) -> None:
        self._look(event)

    def _taking_over_observed(self, event: Observed) -> None:
        if self._look(event) and not self._is_my_term(event.view):
            self._step_down("another replica leads")

    def _taking_over_begun(self, event: TermBegun) -> None:
        self._know(event.lineage)
        self.state = State.MASTER
        self._do(Lead(self.term))

    def _is_my_term(self, view: ClusterView) -> bool:
        return view.state is not None and view.state.term == self.term

    # Leading

    def _lead_tick(self, _: Tick) -> None:
        self._engine.tick()
        term = self._term
        assert term is not None
        if not self.has_authority(self._now_s):
            self._step_down("its lease was not renewed, and not every member has promised")
            return
        if self._now_s - term.beat_s >= self._rules.beat_s / 2:
            term.beat_s = self._now_s
            for replica, (session, begin) in term.sessions.items():
                # Where nothing is fed yet, silence makes the follower connect again.
                if begin is None:
                    self._beat(term, replica, session)
        if term.in_sync.confirmed > term.confirmed or term.in_sync.confirmed >= self._end:
            term.confirmed, term.moved_s = term.in_sync.confirmed, self._now_s
        if self._now_s - term.moved_s >= self._rules.stall_s and self._others_live(term):
            self._not_before_s = self._now_s + self._rules.lease_s
            self._step_down(f"nothing was confirmed for {self._rules.stall_s} s")
            return
        if self.state is State.HANDING_OVER and self._now_s >= term.deadline_s:
            log.warning("%s did not catch up: %s leads on", term.target, self._me)
            self.state = State.MASTER
        self._change_set(term)
        self._hand_over(term)

    def _beat(self, term: LedTerm, replica: str, session: int) -> None:
        self._send(replica, Beat(self.term, session, self._now_s, term.in_sync.confirmed))

    def _others_live(self, term: LedTerm) -> bool:
        view = self._engine.view
        return view is not None and any(
            other in view.alive for other in term.in_sync.members if other != self._me
        )

    def _change_set(self, term: LedTerm) -> None:
        """Propose what is due: a member that leaves or joins, or the key that was lost."""
        view = self._engine.view
        assert view is not None
        if self._engine.proposal is not None or self._engine.lease == 0:
            return
        rules = self._rules
        change = term.in_sync.next_change(
            view.alive, self._now_s, rules.not_caught_up_s, rules.silent_s
        )
        if change is not None:
            record = replace(term.record, in_sync=tuple(sorted(change.members)))
            self._engine.propose(record)
        elif view.master_lease != self._engine.lease:
            self._engine.propose(replace(term.record, in_sync=tuple(sorted(term.in_sync.members))))

    def _lead_observed(self, event: Observed) -> None:
        if not self._look(event):
            return
        term, view = self._term, event.view
        assert term is not None and view.state is not None
        if not self._is_my_term(view):
            self._step_down(f"{view.state.master} leads term {view.state.term}")
            return
        settled = self._engine.settle(event)
        term.in_sync.observed(view.state.in_sync, view.state_revision)
        if settled is not None and term.in_sync.change is not None:
            term.in_sync.never_happened()
        self._change_set(term)

    def _lead_log(self, event: LogMoved) -> None:
        self._any_log(event)
        assert self._term is not None
        self._term.in_sync.own_end(event.durable_end)

    def _lead_received(self, event: Received) -> None:
        message, term = event.message, self._term
        assert term is not None
        if isinstance(message, Hello):
            self._welcome(term, event.sender, message)
            return
        known = term.sessions.get(event.sender)
        if known is None or message.session != known[0] or message.term != self.term:
            return
        if isinstance(message, Confirm | Promise):
            term.in_sync.confirm(event.sender, message.durable_end, self._end, self._now_s)
        if isinstance(message, Confirm) and known[1] is not None:
            term.sessions[event.sender] = (known[0], None)
            self._do(OpenStream(event.sender, self.term, known[0], known[1]))
            self._beat(term, event.sender, known[0])
        if isinstance(message, GoodBye):
            del term.sessions[event.sender]
            term.in_sync.said_good_bye(event.sender)
            self._change_set(term)
        if isinstance(message, Promise):
            asked_s = max(message.asked_s, term.promises_s.get(event.sender, message.asked_s))
            term.promises_s[event.sender] = asked_s
        self._hand_over(term)

    def _welcome(self, term: LedTerm, sender: str, message: Hello) -> None:
        """Answer a follower's hello: where both logs agree."""
        if message.term > self.term:
            self._engine.read()
        if message.term != self.term:
            why = f"{self._me} leads term {self.term}"
            self._send(sender, Refused(self.term, message.session, why))
            return
        try:
            point = common_point(self._lineage, self._end, message.lineage, message.end)
        except LineageError as error:
            log.error("%s is not fed: %s", sender, error)
            self._send(sender, Refused(self.term, message.session, str(error)))
            return
        offset = self._begin if point is None else max(point.offset, self._begin)
        term.sessions[sender] = (message.session, offset)
        term.in_sync.greeted(sender)
        welcome = Welcome(self.term, message.session, point, self._begin, self._lineage)
        self._send(sender, welcome)

    def _step_down(self, why: str) -> None:
        """Stop leading; what is not confirmed is acknowledged to nobody."""
        log.warning("%s steps down from term %d: %s", self._me, self.term, why)
        self.state = State.STEPPING_DOWN
        self._term = self._engine.proposal = None
        self._do(CloseStreams())
        self._do(StopLeading(why))

    def _any_log(self, event: LogMoved) -> None:
        self._grow(event.end, event.durable_end)
        if event.begin is not None:
            self._begin = event.begin

    def _follow_leave(self, _: Leave) -> None:
        session = self._session
        if session is not None:
            self._send(session.master, GoodBye(session.term, session.number))

    def _any_disconnected(self, event: Disconnected) -> None:
        """Nothing more comes of what was taken in part."""
        self._taken = max(self._end, event.end)

    def _follow_disconnected(self, event: Disconnected) -> None:
        self._any_disconnected(event)
        if self._session is not None and self._session.number == event.session:
            self._session = None  # the next tick connects again

    def _any_cut(self, event: LogCut) -> None:
        self._is_cutting = False
        self._taken = event.end
        self._known_confirmed = min(self._known_confirmed, event.end)
        self._grow(event.end, event.end)
        self._know(event.lineage)

    # A planned switch-over

    def _on_switch_over(self, event: SwitchOver) -> None:
        term = self._term
        assert term is not None
        if event.target == self._me or event.target not in term.in_sync.members:
            log.error("%s is not in sync, so it cannot take over", event.target)
            return
        self.state = State.HANDING_OVER
        term.target = event.target
        term.deadline_s = self._now_s + self._rules.hand_over_s
        self._hand_over(term)

    def _hand_over(self, term: LedTerm) -> None:
        """Tell the target to lead, once all is confirmed; from then on nothing is counted on."""
        if self.state is not State.HANDING_OVER or term.in_sync.confirmed < self._end:
            return
        session = term.sessions.get(term.target)
        if session is None or self._engine.proposal is not None:
            return
        self.state = State.HANDED_OVER
        term.deadline_s = self._now_s + self._rules.hand_over_s
        self._ask_to_lead(term)

    def _ask_to_lead(self, term: LedTerm) -> None:
        session = term.sessions.get(term.target)
        if session is not None:
            self._send(term.target, TakeOver(self.term, session[0]))

    def _handed_over_tick(self, _: Tick) -> None:
        self._engine.tick()
        term = self._term
        assert term is not None
        if self._now_s >= term.deadline_s:
            self._not_before_s = self._now_s + self._rules.lease_s
            self._step_down(f"{term.target} did not take over")
        else:
            self._ask_to_lead(term)

    def _handed_over_observed(self, event: Observed) -> None:
        if self._look(event) and not self._is_my_term(event.view):
            self._step_down("the switch-over is done")

    def _send(self, to: str, message: Message, address: str = "") -> None:
        self._do(Send(to, message, address))

    def _do(self, action: Action) -> None:
        self._actions.append(action)

    # The table: what each state does with each event

    # The engine's answers mean the same in every state.
    _ENGINE: ClassVar[_Row] = {
        Registered: lambda self, event: self._engine.on_registered(event),
        NotRegistered: lambda self, event: self._engine.on_not_registered(event),
        Renewed: lambda self, event: self._engine.on_renewed(event),
        LeaseEnded: lambda self, event: self._engine.on_lease_ended(event),
        SwapEnded: lambda self, event: self._engine.on_swap_ended(event),
    }
    _STANDING_BY: ClassVar[_Row] = {
        **_ENGINE,
        Observed: _follow_observed,
        LogMoved: _follow_log,
        LogCut: _follow_cut,
        TermBegun: _any_begun,
        Disconnected: _follow_disconnected,
        Received: _follow_received,
        Leave: _follow_leave,
        ForceFailover: _on_force,
    }
    _LEADING: ClassVar[_Row] = {
        **_ENGINE,
        Tick: _lead_tick,
        Observed: _lead_observed,
        LogMoved: _lead_log,
        Received: _lead_received,
    }
    # What comes late, from before a change of state, is taken down and leads to nothing.
    _LATE: ClassVar[_Row] = {
        **_ENGINE,
        Tick: lambda self, _: self._engine.tick(),
        Observed: _any_observed,
        LogMoved: _any_log,
        LogCut: _any_cut,
        TermBegun: _any_begun,
        Disconnected: _any_disconnected,
        Received: _any_received,
    }

    TABLE: ClassVar[dict[State, _Row]] = {
        State.STARTING: {**_LATE, Observed: _start_observed},
        State.FOLLOWER: {**_STANDING_BY, Tick: _follow_tick},
        State.WAITING: {**_STANDING_BY, Tick: _wait_tick},
        State.CANDIDATE: {**_LATE, Frozen: _candidate_frozen, Observed: _candidate_observed},
        State.TAKING_OVER: {
            **_LATE,
            Observed: _taking_over_observed,
            TermBegun: _taking_over_begun,
        },
        State.MASTER: {**_LEADING, SwitchOver: _on_switch_over},
        State.HANDING_OVER: _LEADING,
        State.HANDED_OVER: {
            **_LATE,
            Tick: _handed_over_tick,
            Observed: _handed_over_observed,
        },
        State.STEPPING_DOWN: {**_LATE, LeadingStopped: lambda self, _: self._follow()},
        State.HALTED: {},
    }
