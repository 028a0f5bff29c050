"""One replica, event by event. What many of them do together is simulated (tests/simulation)."""

from __future__ import annotations

import logging
from typing import get_args

import pytest

from skylarkmq.broker.replication.failover.coordinated_state import (
    STATE,
    AliveRecord,
    ClusterView,
    MasterRecord,
    StateRecord,
)
from skylarkmq.broker.replication.failover.coordination import Swapped
from skylarkmq.broker.replication.failover.replica_events import (
    Action,
    BeginTerm,
    Confirm,
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
    LocalLog,
    LogCut,
    LogMoved,
    NotRegistered,
    Observed,
    Read,
    Received,
    Register,
    Registered,
    Renewed,
    Send,
    Sends,
    State,
    StopLeading,
    Swap,
    SwapEnded,
    SwitchOver,
    TakeOver,
    TermBegun,
    Tick,
)
from skylarkmq.broker.replication.failover.replica_state import MOVES, ReplicaState
from skylarkmq.broker.replication.failover.terms import Lineage, TermStart, lineage_of

RULES = FailoverRules()
LINEAGE = lineage_of([(1, 0), (3, 50)])
LEASE = 7


class Rig:
    """A replica `a` and what it asked for."""

    def __init__(self, end: int = 0, lineage: Lineage = (), rules: FailoverRules = RULES) -> None:
        self.now_s = 0.0
        self.machine = ReplicaState(
            "a", AliveRecord("a:1", "a:2", 0), rules, LocalLog(end, lineage), 0.0
        )
        self.reads = 0
        self.swaps: list[Swap] = []

    def hear(self, event: Event) -> list[Action]:
        actions = self.machine.handle(event, self.now_s)
        for action in actions:
            if isinstance(action, Read):
                self.reads = action.read
            elif isinstance(action, Swap) and action.swap:
                self.swaps.append(action)
        return actions

    def see(self, view: ClusterView) -> list[Action]:
        return self.hear(Observed(view, self.reads))

    def ready(self, view: ClusterView) -> list[Action]:
        """It is registered and has read this."""
        self.hear(Tick())
        self.hear(Registered(LEASE, self.now_s))
        return self.see(view)

    def wait(self, seconds: float) -> list[Action]:
        """Time passes, and the lease is renewed."""
        self.now_s += seconds
        self.hear(Renewed(LEASE, self.now_s))
        return self.hear(Tick())


def view(
    revision: int,
    state: StateRecord | None = None,
    master: str = "",
    *alive: str,
    state_revision: int = 0,
) -> ClusterView:
    names = alive or ("a", "b")
    return ClusterView(
        revision,
        state,
        0 if state is None else state_revision or revision,
        MasterRecord(master, state.term) if master and state else None,
        (LEASE if master == "a" else 99) if master else 0,
        {name: AliveRecord(f"{name}:1", f"{name}:2", 0) for name in names},
        {name: LEASE if name == "a" else 99 for name in names},
    )


def of_term(term: int, master: str, *members: str, start: int = 50) -> StateRecord:
    return StateRecord(term, master, members or (master,), start, ((TermStart(term, start),)))


def the(kind: type[Action], actions: list[Action]) -> Action:
    return next(action for action in actions if isinstance(action, kind))


def leading(rules: FailoverRules = RULES) -> Rig:
    """The first master of an empty engine."""
    rig = Rig(rules=rules)
    rig.ready(view(1))
    assert rig.machine.state is State.WAITING
    assert the(Freeze, rig.wait(rules.turn_s * 3))
    rig.hear(Frozen(0))
    state = StateRecord(1, "a", ("a",), 0, (TermStart(1, 0),))
    rig.hear(SwapEnded(1, Swapped.DONE))
    assert the(BeginTerm, rig.see(view(2, state, "a"))) == BeginTerm(TermStart(1, 0))
    assert rig.machine.sends is Sends.NOT_MASTER, "the row is not on the disk yet"
    assert the(Lead, rig.hear(TermBegun((TermStart(1, 0),)))) == Lead(1)
    return rig


def test_the_table_speaks_of_every_state_and_of_known_events() -> None:
    assert set(ReplicaState.TABLE) == set(State)
    for row in ReplicaState.TABLE.values():
        assert set(row) <= set(get_args(Event))
    heard = set[type[Event]]().union(*ReplicaState.TABLE.values())
    assert heard == set(get_args(Event)), "an event that no state hears"


@pytest.mark.parametrize("state", [state for state in State if state is not State.HALTED])
def test_the_engine_is_heard_in_every_state(state: State) -> None:
    """A lease that is not renewed while something else is awaited would be lost."""
    assert {Tick, Registered, NotRegistered, Renewed, SwapEnded, Observed} <= set(
        ReplicaState.TABLE[state]
    )


def test_each_change_of_state_is_logged_with_its_term_and_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    leading()
    assert caplog.messages == [
        "a: starting -> follower, term 0: it has read what the engine holds",
        "a: follower -> waiting, term 0: there is no master, and it is in sync",
        "a: waiting -> candidate, term 0: its turn has come",
        "a: candidate -> taking over, term 1: its swap has happened",
        "a: taking over -> master, term 1: the row of its term is on the disk",
    ]


def test_no_state_follows_one_that_it_must_not_follow() -> None:
    assert set(MOVES) == set(State)
    rig = Rig(80, LINEAGE)
    with pytest.raises(AssertionError, match="master after"):
        rig.machine._become(State.MASTER, "no reason")
    assert rig.machine.state is State.STARTING


def test_the_first_master() -> None:
    rig = leading()
    assert rig.machine.sends is Sends.TAKEN
    rig.hear(LogMoved(10, 4))
    assert (rig.machine.confirmed, rig.machine.shown) == (4, 4)


def test_fewer_members_than_min_in_sync_replicas_refuse_sends_and_show_what_is_confirmed() -> None:
    rig = leading(FailoverRules(min_in_sync=2))
    assert rig.machine.sends is Sends.TOO_FEW
    rig.hear(LogMoved(10, 4))
    assert rig.machine.shown == 4


def test_a_follower_that_says_good_bye_is_dropped_by_a_swap_at_once() -> None:
    rig = leading(FailoverRules(min_in_sync=1))
    row = rig.machine._term.record.lineage  # type: ignore[union-attr]
    hello = Hello(1, 9, 0, row)
    rig.hear(Received("b", hello))
    rig.hear(Received("b", Confirm(1, 9, 0)))
    rig.hear(Tick())
    both = of_term(1, "a", "a", "b", start=0)
    assert both.to_json() in [change.value for change in rig.swaps[-1].changes]
    rig.hear(SwapEnded(rig.swaps[-1].swap, Swapped.DONE))
    rig.see(view(3, both, "a"))
    count = len(rig.swaps)
    rig.hear(Received("b", GoodBye(1, 8)))
    assert len(rig.swaps) == count, "of another session"
    rig.hear(Received("b", GoodBye(1, 9)))
    alone = of_term(1, "a", "a", start=0)
    assert rig.swaps[count].changes[0].value == alone.to_json()


def test_a_member_takes_over_when_the_masters_key_is_gone() -> None:
    rig = Rig(80, LINEAGE)
    actions = rig.ready(view(5, of_term(3, "b", "a", "b"), "b"))
    hello = the(Send, actions)
    assert isinstance(hello, Send) and hello.address == "b:2"
    assert isinstance(hello.message, Hello) and hello.message.end == 80
    rig.see(view(6, of_term(3, "b", "a", "b"), "", "a", state_revision=5))
    assert rig.machine.state is State.WAITING
    rig.wait(RULES.lease_s - 1)
    assert rig.machine.state is State.WAITING, "an earlier process may have promised"
    rig.wait(2)
    assert rig.machine.state is State.CANDIDATE
    rig.hear(Frozen(80))
    (swap,) = rig.swaps
    assert {condition.key for condition in swap.conditions} == {"state", "alive/a"}
    assert [change.key for change in swap.changes] == ["state", "master"]
    assert StateRecord.from_json(STATE, swap.changes[0].value or b"") == StateRecord(
        4, "a", ("a",), 80, (*LINEAGE, TermStart(4, 80))
    )


def candidate() -> Rig:
    rig = Rig(80, LINEAGE)
    rig.ready(view(5, of_term(3, "b", "a", "b"), "", "a"))
    rig.wait(RULES.lease_s + 5)
    rig.hear(Frozen(80))
    return rig


def test_an_unknown_outcome_repeats_the_same_swap_until_the_revision_moves() -> None:
    rig = candidate()
    for _ in range(3):
        rig.hear(SwapEnded(1, Swapped.UNKNOWN))
        rig.see(view(6, of_term(3, "b", "a", "b"), "", "a", state_revision=5))
        rig.wait(RULES.beat_s)
        assert rig.machine.state is State.CANDIDATE
    assert len(rig.swaps) == 4 and len(set(rig.swaps)) == 1
    rig.see(view(9, of_term(4, "b", "b", start=90), "b"))
    assert rig.machine.state is State.FOLLOWER


def test_a_candidate_that_won_without_an_answer_leads() -> None:
    rig = candidate()
    rig.hear(SwapEnded(1, Swapped.UNKNOWN))
    won = StateRecord.from_json(STATE, rig.swaps[0].changes[0].value or b"")
    assert the(BeginTerm, rig.see(view(6, won, "a"))) == BeginTerm(TermStart(4, 80))


def test_a_new_master_shows_nothing_before_the_start_of_its_term_is_confirmed() -> None:
    rig = candidate()
    won = StateRecord(4, "a", ("a", "b"), 80, (*LINEAGE, TermStart(4, 80)))
    rig.swaps.clear()
    rig.machine._election.proposal.record = won  # type: ignore[union-attr]
    rig.see(view(6, won, "a"))
    rig.hear(TermBegun(won.lineage))
    assert rig.machine.state is State.MASTER and rig.machine.shown is None
    in_sync = rig.machine.in_sync
    assert in_sync is not None
    in_sync.confirm("b", 79, 80, rig.now_s)
    assert rig.machine.shown is None
    in_sync.confirm("b", 80, 80, rig.now_s)
    assert rig.machine.shown == 80


def test_a_follower_shows_nothing_before_a_master_says_that_it_is_confirmed() -> None:
    """What lies on its disk alone may be cut off again."""
    rig = Rig(80, LINEAGE)
    rig.ready(view(5, of_term(3, "b", "a", "b"), "b"))
    assert (rig.machine.state, rig.machine.shown) == (State.FOLLOWER, 0)


def test_a_newer_term_ends_a_master() -> None:
    rig = leading()
    assert the(StopLeading, rig.see(view(8, of_term(2, "b", "b", start=0), "b")))
    assert rig.machine.sends is Sends.NOT_MASTER
    rig.hear(LeadingStopped())
    assert rig.machine.state is State.FOLLOWER


def test_the_only_member_leads_on_without_the_engine() -> None:
    rig = leading()
    rig.now_s += 1000
    rig.hear(Tick())
    assert rig.machine.sends is Sends.TAKEN and rig.machine.has_authority(rig.now_s)


def test_a_master_with_a_silent_member_steps_down_when_its_lease_may_have_ended() -> None:
    rig = leading()
    rig.see(view(3, StateRecord(1, "a", ("a", "b"), 0, (TermStart(1, 0),)), "a"))
    rig.now_s += RULES.counted_lease_s + 0.1
    assert not rig.machine.has_authority(rig.now_s)
    assert the(StopLeading, rig.hear(Tick()))


@pytest.mark.parametrize(
    "found", [view(9), view(9, of_term(2, "b", "b", start=0), "b")], ids=["empty", "older"]
)
def test_an_engine_that_forgot_stops_the_replica_with_the_cause(found: ClusterView) -> None:
    rig = Rig(80, LINEAGE)
    halt = the(Halt, rig.ready(found))
    assert isinstance(halt, Halt) and "emptied, or restored" in halt.why
    assert rig.machine.state is State.HALTED


def test_who_is_outside_of_the_set_leads_by_force_alone() -> None:
    rig = Rig(80, LINEAGE)
    rig.ready(view(5, of_term(3, "b", "b"), "", "a"))
    rig.wait(1000)
    assert rig.machine.state is State.FOLLOWER
    assert the(Freeze, rig.hear(ForceFailover()))
    rig.hear(Frozen(80))
    assert StateRecord.from_json(STATE, rig.swaps[0].changes[0].value or b"").in_sync == ("a",)


def test_nobody_is_forced_beside_a_master() -> None:
    rig = Rig(80, LINEAGE)
    rig.ready(view(5, of_term(3, "b", "b"), "b"))
    assert rig.hear(ForceFailover()) == []


def test_a_switch_over_to_a_replica_that_lags_is_refused() -> None:
    rig = leading()
    rig.hear(SwitchOver("b"))
    assert rig.machine.state is State.MASTER


def test_a_master_that_hands_over_asks_until_it_is_done() -> None:
    """Who has just joined may not have seen yet that it is in sync."""
    rig = leading(FailoverRules(min_in_sync=1))
    row = rig.machine._term.record.lineage  # type: ignore[union-attr]
    rig.hear(Received("b", Hello(1, 9, 0, row)))
    rig.hear(Received("b", Confirm(1, 9, 0)))
    rig.hear(Tick())
    rig.hear(SwapEnded(rig.swaps[-1].swap, Swapped.DONE))
    rig.see(view(3, of_term(1, "a", "a", "b", start=0), "a"))
    asks = Send("b", TakeOver(1, 9))
    assert asks in rig.hear(SwitchOver("b"))
    assert rig.machine.state is State.HANDED_OVER
    assert asks in rig.wait(0.1)
    assert asks not in rig.wait(rig.machine._election.rules.hand_over_s)


def test_a_follower_that_does_not_know_that_it_is_in_sync_looks_before_it_takes_over() -> None:
    rig = Rig(80, LINEAGE)
    rig.ready(view(5, of_term(3, "b", "b"), "b"))
    session = rig.machine._following.session
    assert session is not None
    asked = Received("b", TakeOver(3, session.number))
    assert the(Read, rig.hear(asked))
    rig.see(view(6, of_term(3, "b", "a", "b"), "b"))
    assert the(Freeze, rig.hear(asked))


def test_a_replica_without_its_key_registers_again() -> None:
    """A put of an earlier lease that came late may have taken `alive/a` with it."""
    rig = Rig(80, LINEAGE)
    state = of_term(3, "b", "b")
    assert the(Register, rig.ready(view(5, state, "b", "b")))


def test_a_hello_waits_until_the_log_stands_still() -> None:
    """Else less is said than was taken, and what was shown could be cut off."""
    rig = Rig(80, LINEAGE)
    rig.ready(view(5, of_term(3, "b", "a", "b"), "b"))
    session = rig.machine._following.session
    assert session is not None
    rig.machine._log.taken = 90
    actions = rig.see(view(6, of_term(4, "b", "a", "b"), "b"))
    assert not [action for action in actions if isinstance(action, Send)]
    rig.hear(LogMoved(90, 90))
    assert the(Send, rig.hear(Tick()))


def test_a_message_of_another_session_counts_for_nothing() -> None:
    rig = Rig(80, LINEAGE)
    rig.ready(view(5, of_term(3, "b", "a", "b"), "b"))
    assert rig.hear(LogCut(1, 70, LINEAGE)) == []
    assert rig.hear(Received("c", Hello(3, 1, 0, ()))) != [], "it is told that nobody leads here"
