"""What one replica does, event by event, so that nothing acknowledged is ever lost. No I/O.

`ReplicaState.handle(event, now_s)` returns the actions that follow; `replica_events.py` has both.
The driver carries the actions out in their order, one after the other, and hands every answer back
as an event. The table at the end says what each state does with each event; an event that is not
named there counts for nothing in that state. MOVES says which state may follow which.

    STARTING        no lease yet, or nothing read: confirms nothing
    FOLLOWER        takes the master's log; or knows of no master, and is no member of the set
    WAITING         a member, and the master's key is gone: its turn to try comes
    CANDIDATE       frozen; swaps `state` to the next term until the revision moves
    TAKING_OVER     has won; writes the term's row
    MASTER          leads; clients are served once the home has ended its `lead`
    HANDING_OVER    leads, but takes no sends: the member that shall lead catches up
    HANDED_OVER     has told that member to lead, and leads no more
    STEPPING_DOWN   leads no more, deposed or by itself; stops what a master runs
    HALTED          the engine's state and this log cannot belong together

      STARTING -> FOLLOWER <-> WAITING -> CANDIDATE -> TAKING_OVER -> MASTER <-> HANDING_OVER
                     ^ ^                      |             |            |            |
                     | +----------------------+             |            |       HANDED_OVER
                     +---------------- STEPPING_DOWN <------+------------+------------+

FOLLOWER -> CANDIDATE, too: its master hands over, or an operator forces it.

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
from typing import Any, ClassVar, Final

from skylarkmq.broker.replication.failover.candidacy import Candidacy
from skylarkmq.broker.replication.failover.coordinated_state import AliveRecord
from skylarkmq.broker.replication.failover.election import Election, ForgottenStateError
from skylarkmq.broker.replication.failover.following import Following
from skylarkmq.broker.replication.failover.in_sync import InSyncReplicas
from skylarkmq.broker.replication.failover.leading import LedTerm
from skylarkmq.broker.replication.failover.replica_events import (
    Action,
    BeginTerm,
    CloseStreams,
    Disconnected,
    Event,
    FailoverRules,
    ForceFailover,
    Freeze,
    Frozen,
    Halt,
    Hello,
    Lead,
    LeadingStopped,
    LeaseEnded,
    Leave,
    LocalLog,
    LogCut,
    LogMoved,
    NotRegistered,
    Observed,
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
    TermBegun,
    Tick,
)
from skylarkmq.broker.replication.failover.replica_log import ReplicaLog
from skylarkmq.broker.replication.failover.terms import last_term

log = logging.getLogger(__name__)


_Row = dict[type[Event], Callable[["ReplicaState", Any], object]]

MOVES: Final[dict[State, set[State]]] = {
    State.STARTING: {State.FOLLOWER},
    State.FOLLOWER: {State.WAITING, State.CANDIDATE},
    State.WAITING: {State.FOLLOWER, State.CANDIDATE},
    State.CANDIDATE: {State.FOLLOWER, State.TAKING_OVER},
    State.TAKING_OVER: {State.MASTER, State.STEPPING_DOWN},
    State.MASTER: {State.HANDING_OVER, State.STEPPING_DOWN},
    State.HANDING_OVER: {State.MASTER, State.HANDED_OVER, State.STEPPING_DOWN},
    State.HANDED_OVER: {State.STEPPING_DOWN},
    State.STEPPING_DOWN: {State.FOLLOWER},
    State.HALTED: set(),
}
"""Which states may follow one; HALTED may follow each."""


class ReplicaState:
    """One replica. One thread; times are seconds of one monotonic clock.

    Its size is one idea: one table, for a rule of safety often spans several states. What a state
    works with is in `Election`, `ReplicaLog`, `Candidacy`, `Following` and `LedTerm`, which change
    no state.
    """

    def __init__(
        self, me: str, alive: AliveRecord, rules: FailoverRules, found: LocalLog, now_s: float
    ) -> None:
        self.state = State.STARTING
        self.why_halted = ""
        self._actions: list[Action] = []
        self._election = Election(me, alive, rules, self._do, now_s)
        self._log = ReplicaLog(found, self._election)
        self._candidacy = Candidacy(self._election, self._log, alive.priority)
        self._following = Following(self._election, self._log, self._candidacy)
        self._term: LedTerm | None = None

    # What the broker asks

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Take an event; return what to do, in this order."""
        self._election.now_s = now_s
        handler = self.TABLE[self.state].get(type(event))
        if handler is not None:
            handler(self, event)
        actions, self._actions = self._actions, []
        return actions

    @property
    def term(self) -> int:
        """The term of the master that this replica is; 0 when it leads nothing."""
        return 0 if self._term is None else self._term.number

    @property
    def in_sync(self) -> InSyncReplicas | None:
        """Whom a master waits for."""
        return None if self._term is None else self._term.in_sync

    @property
    def is_fed(self) -> bool:
        """Whether this replica follows a master, and its log is that one's."""
        session = self._following.session
        return session is not None and session.is_cut

    @property
    def confirmed(self) -> int:
        """A master may acknowledge what ends here or earlier, while `sends` is not NOT_MASTER."""
        return 0 if self._term is None else self._term.in_sync.confirmed

    @property
    def sends(self) -> Sends:
        """Whether the set allows sends; the home refuses them until its `lead` has ended, too."""
        if self.state is not State.MASTER or self._term is None:
            return Sends.NOT_MASTER
        enough = len(self._term.in_sync.members) >= self._election.rules.min_in_sync
        return Sends.TAKEN if enough else Sends.TOO_FEW

    @property
    def shown(self) -> int | None:
        """Consumers may see what ends here or earlier; None: not known, so reads wait."""
        return self._log.shown if self._term is None else self._term.shown

    def has_authority(self, now_s: float) -> bool:
        """Return whether this replica is a master, and nobody else can be by now."""
        if self.state not in (State.MASTER, State.HANDING_OVER) or self._term is None:
            return False
        self._election.now_s = now_s
        return self._term.is_alone()

    # In every state

    def _become(self, state: State, why: str, level: int = logging.INFO) -> None:
        """Change the state, and log it."""
        was = self.state
        if state is was:
            return
        assert state is State.HALTED or state in MOVES[was], f"{state} after {was}"
        view = self._election.view
        known = 0 if view is None or view.state is None else view.state.term
        me, term = self._election.me, self.term or known
        log.log(level, "%s: %s -> %s, term %d: %s", me, was.value, state.value, term, why)
        self.state = state

    def _do(self, action: Action) -> None:
        self._actions.append(action)

    def _look(self, event: Observed) -> bool:
        """Take a view; False when it is older than what is known, or this replica has halted."""
        try:
            is_taken = self._election.look(event, last_term(self._log.lineage))
        except ForgottenStateError as error:
            self._halt(str(error))
            return False
        if is_taken:
            self._following.looked(event.view)
        return is_taken

    def _halt(self, why: str) -> None:
        self._become(State.HALTED, why)
        self.why_halted = (
            f"the coordination engine was emptied, or restored from an older copy: {why}. Restore "
            "its newest copy. Without one, remove skylarkmq/terms on the replica with the longest "
            "log, and start the others anew"
        )
        self._term = self._following.session = None
        self._do(CloseStreams())
        self._do(StopLeading(self.why_halted))
        self._do(Halt(self.why_halted))

    def _any_received(self, event: Received) -> None:
        message, view = event.message, self._election.view
        if isinstance(message, Hello):
            term = 0 if view is None or view.state is None else view.state.term
            why = f"{self._election.me} does not lead yet, or no more; it is asked again"
            self._do(Send(event.sender, Refused(term, message.session, why)))

    # Starting

    def _start_observed(self, event: Observed) -> None:
        if not self._election.is_of_this_lease(event) or not self._look(event):
            return
        state = event.view.state
        if state is not None and state.master != self._election.me:
            # An earlier process may have promised its master not to try, just before it ended.
            self._candidacy.let_others_try()
        self._follow("it has read what the engine holds")

    # Following and waiting

    def _follow(self, why: str) -> None:
        """Enter FOLLOWER, or WAITING when somebody of the set must lead."""
        self._candidacy.was_told = self._candidacy.is_forced = False
        self._term = None
        self._become(State.FOLLOWER, why)
        self._stand_by()

    def _stand_by(self) -> None:
        """Act on the view as a replica that does not lead: connect, wait, or leave it."""
        view = self._election.view
        assert view is not None
        state = view.state
        if state is not None and state.master != self._election.me:
            self._following.follow(state)
        else:
            self._following.session = None
        is_led = self._candidacy.is_led(view)
        if is_led or not self._candidacy.may_lead(view):
            self._become(State.FOLLOWER, "there is a master" if is_led else "it is not in sync")
        elif self.state is not State.WAITING:
            self._become(State.WAITING, "there is no master, and it is in sync")
            self._candidacy.waiting_since_s = self._election.now_s
            self._election.publish()

    def _follow_tick(self, _: Tick) -> None:
        self._election.tick()
        view = self._election.view
        assert view is not None
        if self._following.session is None:
            self._stand_by()
        else:
            self._following.look_for_silence(view.state)
        self._election.release()

    def _wait_tick(self, tick: Tick) -> None:
        self._follow_tick(tick)
        is_ready = self.state is State.WAITING and self._election.lease != 0
        if is_ready and self._candidacy.is_due():
            self._freeze("its turn has come")

    def _follow_observed(self, event: Observed) -> None:
        if self._look(event):
            self._stand_by()

    def _follow_log(self, event: LogMoved) -> None:
        self._log.moved(event)
        self._following.confirm()

    def _follow_cut(self, event: LogCut) -> None:
        self._log.cut(event)
        self._following.cut(event)

    def _follow_disconnected(self, event: Disconnected) -> None:
        self._log.drop_part(event.end)
        self._following.disconnected(event.session)

    def _follow_received(self, event: Received) -> None:
        if isinstance(event.message, Hello):
            self._any_received(event)
        elif self._following.take(event.sender, event.message):
            # Who has not read that it may lead looks first, and is asked anew.
            if self._candidacy.may_be_told():
                self._candidacy.was_told = True
                self._freeze("its master hands over")
            else:
                self._election.read()

    def _on_force(self, _: ForceFailover) -> None:
        if not self._candidacy.may_be_forced():
            log.error("failover is not forced: there is a master, or no lease yet")
            return
        me = self._election.me
        log.warning("an operator accepts the loss: %s leads though others may know more", me)
        self._candidacy.was_told = self._candidacy.is_forced = True
        self._freeze("an operator forces it")

    # Taking over

    def _freeze(self, why: str) -> None:
        """Confirm, promise and take nothing from here on."""
        self._become(State.CANDIDATE, why)
        self._following.session = None
        self._do(Freeze())

    def _candidate_frozen(self, event: Frozen) -> None:
        self._log.frozen(event.end)
        if self._election.proposal is None and not self._candidacy.stand():
            self._follow("it may not lead any more")

    def _candidate_observed(self, event: Observed) -> None:
        if not self._look(event):
            return
        proposal = self._election.settle(event)
        if proposal is None:
            return
        if event.view.state != proposal.record:
            self._follow("its swap did not happen")
            return
        revision = event.view.state_revision
        self._term = LedTerm(proposal.record, revision, self._election, self._log)
        self._become(State.TAKING_OVER, "its swap has happened")
        self._do(BeginTerm(proposal.record.lineage[-1]))

    def _taking_over_observed(self, event: Observed) -> None:
        if self._look(event) and not self._is_my_term(event):
            self._step_down("another replica leads")

    def _taking_over_begun(self, event: TermBegun) -> None:
        self._log.know(event.lineage)
        self._become(State.MASTER, "the row of its term is on the disk")
        self._do(Lead(self.term))

    def _is_my_term(self, event: Observed) -> bool:
        return self._term is not None and self._term.is_of(event.view)

    # Leading

    def _lead_tick(self, _: Tick) -> None:
        self._election.tick()
        term = self._term
        assert term is not None
        if not term.is_alone():
            self._step_down("its lease was not renewed, and not every member has promised")
            return
        term.beat()
        if term.is_stalled():
            self._candidacy.let_others_try()
            self._step_down(f"nothing was confirmed for {self._election.rules.stall_s} s")
            return
        if self.state is State.HANDING_OVER and self._election.now_s >= term.deadline_s:
            self._become(State.MASTER, f"{term.target} did not catch up", logging.WARNING)
        term.change_set()
        self._hand_over(term)

    def _lead_observed(self, event: Observed) -> None:
        if not self._look(event):
            return
        term, view = self._term, event.view
        assert term is not None and view.state is not None
        if not term.is_of(view):
            self._step_down(f"{view.state.master} leads term {view.state.term}")
            return
        term.observed(view, is_settled=self._election.settle(event) is not None)

    def _lead_log(self, event: LogMoved) -> None:
        self._log.moved(event)
        assert self._term is not None
        self._term.in_sync.own_end(event.durable_end)

    def _lead_received(self, event: Received) -> None:
        assert self._term is not None
        if self._term.take(event.sender, event.message):
            self._hand_over(self._term)

    def _step_down(self, why: str) -> None:
        """Stop leading; what is not confirmed is acknowledged to nobody."""
        self._become(State.STEPPING_DOWN, why, logging.WARNING)
        self._term = self._election.proposal = None
        self._do(CloseStreams())
        self._do(StopLeading(why))

    # A planned switch-over

    def _on_switch_over(self, event: SwitchOver) -> None:
        term = self._term
        assert term is not None
        if event.target == self._election.me or event.target not in term.in_sync.members:
            log.error("%s is not in sync, so it cannot take over", event.target)
            return
        self._become(State.HANDING_OVER, f"{event.target} shall lead")
        term.target = event.target
        term.begin_step()
        self._hand_over(term)

    def _hand_over(self, term: LedTerm) -> None:
        """Tell the target to lead, once all is confirmed; from then on nothing is counted on."""
        if self.state is State.HANDING_OVER and term.is_caught_up():
            self._become(State.HANDED_OVER, f"{term.target} has everything")
            term.begin_step()
            term.ask_to_lead()

    def _handed_over_tick(self, _: Tick) -> None:
        self._election.tick()
        term = self._term
        assert term is not None
        if self._election.now_s >= term.deadline_s:
            self._candidacy.let_others_try()
            self._step_down(f"{term.target} did not take over")
        else:
            term.ask_to_lead()

    def _handed_over_observed(self, event: Observed) -> None:
        if self._look(event) and not self._is_my_term(event):
            self._step_down("the switch-over is done")

    # The table: what each state does with each event

    # The engine's answers mean the same in every state.
    _ENGINE: ClassVar[_Row] = {
        Registered: lambda self, event: self._election.on_registered(event),
        NotRegistered: lambda self, event: self._election.on_not_registered(event),
        Renewed: lambda self, event: self._election.on_renewed(event),
        LeaseEnded: lambda self, event: self._election.on_lease_ended(event),
        SwapEnded: lambda self, event: self._election.on_swap_ended(event),
    }
    _STANDING_BY: ClassVar[_Row] = {
        **_ENGINE,
        Observed: _follow_observed,
        LogMoved: _follow_log,
        LogCut: _follow_cut,
        TermBegun: lambda self, event: self._log.know(event.lineage),
        Disconnected: _follow_disconnected,
        Received: _follow_received,
        Leave: lambda self, _: self._following.leave(),
        ForceFailover: _on_force,
    }
    _LEADING: ClassVar[_Row] = {
        **_ENGINE,
        Tick: _lead_tick,
        Observed: _lead_observed,
        LogMoved: _lead_log,
        Received: _lead_received,
    }
    # Of those that neither follow nor lead: the lease is kept, all else is noted.
    _NOTED: ClassVar[_Row] = {
        **_ENGINE,
        Tick: lambda self, _: self._election.tick(),
        Observed: lambda self, event: self._look(event),
        LogMoved: lambda self, event: self._log.moved(event),
        LogCut: lambda self, event: self._log.cut(event),
        TermBegun: lambda self, event: self._log.know(event.lineage),
        Disconnected: lambda self, event: self._log.drop_part(event.end),
        Received: _any_received,
    }

    TABLE: ClassVar[dict[State, _Row]] = {
        State.STARTING: {**_NOTED, Observed: _start_observed},
        State.FOLLOWER: {**_STANDING_BY, Tick: _follow_tick},
        State.WAITING: {**_STANDING_BY, Tick: _wait_tick},
        State.CANDIDATE: {**_NOTED, Frozen: _candidate_frozen, Observed: _candidate_observed},
        State.TAKING_OVER: {
            **_NOTED,
            Observed: _taking_over_observed,
            TermBegun: _taking_over_begun,
        },
        State.MASTER: {**_LEADING, SwitchOver: _on_switch_over},
        State.HANDING_OVER: _LEADING,
        State.HANDED_OVER: {
            **_NOTED,
            Tick: _handed_over_tick,
            Observed: _handed_over_observed,
        },
        State.STEPPING_DOWN: {
            **_NOTED,
            LeadingStopped: lambda self, _: self._follow("what only a master runs has stopped"),
        },
        State.HALTED: {},
    }
