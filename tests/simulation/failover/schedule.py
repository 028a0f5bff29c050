"""One schedule: a cluster, its faults and its clients, and what must hold at each step of it.

The numbers in `Violation`s are those of the invariants:

    1  one term has one master, and one replica at a time counts on being the only one
    2  what is acknowledged is durable on each member of the set
    3  a term starts behind everything that was acknowledged before it
    4  two logs that agree on (term, offset) agree on all before it, and the rows tell the truth
    5  what was shown to a consumer stays
    6  who leaves is waited for until the swap has succeeded      (seen as 2)
    7  who joins is waited for from before the swap is tried      (seen as 2)
    8  nobody leads from outside of the set
    9  who reads through all of it reads everything that is acknowledged
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

from skylarkmq.broker.replication.failover.coordinated_state import ClusterView
from skylarkmq.broker.replication.failover.replica_events import (
    FailoverRules,
    Message,
    Observed,
    State,
    SwitchOver,
)
from tests.simulation.failover.readers import Readers
from tests.simulation.failover.replica import Record, Replica
from tests.simulation.failover.world import Links, SimulatedEngine, World

RULES = FailoverRules(
    lease_s=4.0, not_caught_up_s=3.0, turn_s=0.3, silent_s=1.5, stall_s=8.0, hand_over_s=1.0
)
HANDING = (State.MASTER, State.HANDING_OVER, State.HANDED_OVER)
FAULTS_S = 30.0
PEACE_S = 25.0


class Violation(AssertionError):
    """An invariant does not hold. The message replays the schedule."""


class BrokenInvariant(Violation):
    """It is one of the nine; else the cluster did not come back."""


def seeds(count: int) -> range:
    """The seeds to run: `SKYLARKMQ_SEED` alone when it is set."""
    chosen = os.environ.get("SKYLARKMQ_SEED")
    return range(count) if chosen is None else range(int(chosen), int(chosen) + 1)


class Cluster:
    """Three replicas and what they promised to the world outside."""

    def __init__(self, seed: int, clocks_jump: bool = False) -> None:
        self.world = World(Random(seed))
        rng = self.world.rng
        self.rules = RULES
        self.links = Links(self.world)
        self.engine = SimulatedEngine(self.world, self.links)
        self.engine.on_state = self._state_changed
        self.engine.on_change = self._tell_watchers
        sync = [rng.random() < 0.5] * 3 if rng.random() < 0.8 else [True, False, True]
        self.replicas = [Replica(self, slot, sync[place]) for place, slot in enumerate("abc")]
        self.clocks_jump = rng.random() < 0.35 or clocks_jump
        self.reorders = rng.random() < 0.25  # unlike connections do
        self.is_sharp = rng.random() < 0.5  # faults come when they hurt most
        self.stalls = 0.01  # share of the disk's jobs that take seconds
        self._arrivals_s: dict[tuple[str, str], float] = {}
        self.halted: list[str] = []
        self.acknowledged: dict[int, Record] = {}  # by end
        self.acknowledged_end = 0
        self.shown: list[Record] = []
        self.readers = Readers(seed)
        self._leaders: dict[int, tuple[str, int]] = {}  # term: slot, process
        self._starts: dict[int, int] = {}  # term: start
        self._number = 0

    # Invariants

    def fail(self, invariant: int, why: str) -> None:
        raise BrokenInvariant(f"invariant {invariant} at {self.world.now_s:.3f} s: {why}")

    def _state_changed(self, before: ClusterView, after: ClusterView) -> None:
        old, new = before.state, after.state
        assert new is not None
        power = self.world.power
        if old is not None and new.term == old.term:
            if new.master != old.master:
                self.fail(1, f"{old} became {new}")
            power["joined"] += len(set(new.in_sync) - set(old.in_sync))
            power["left"] += len(set(old.in_sync) - set(new.in_sync))
        else:
            power["terms"] += 1
            if old is not None and (new.term != old.term + 1 or new.master not in old.in_sync):
                self.fail(8, f"{new} after {old}")
            self._starts[new.term] = new.start
            if new.start < self.acknowledged_end:
                self.fail(3, f"{new} starts before {self.acknowledged_end}")
            if new.start < len(self.shown):
                self.fail(5, f"{new} starts before {len(self.shown)}, which was shown")
        self._check_members(self.acknowledged_end, None)

    def check_leads(self, replica: Replica, term: int) -> None:
        who = (replica.slot, replica.process)
        if self._leaders.setdefault(term, who) != who:
            self.fail(1, f"{who} and {self._leaders[term]} lead term {term}")
        if self.is_sharp and self.world.rng.random() < 0.2:
            # It takes messages that nobody else ever hears of.
            self.world.power["alone at once"] += 1
            cut_off_from_all(self, replica, self.world.rng.uniform(3.0, 9.0))

    def check_authority(self, replica: Replica) -> None:
        machine = replica.machine
        if machine is None or self.clocks_jump or not machine.has_authority(replica.clock_s):
            return
        for other in self.replicas:
            rival = other.machine
            if rival not in (None, machine) and rival.has_authority(other.clock_s):
                self.fail(1, f"{replica.slot} and {other.slot} count on being the only one")

    def check_acknowledged(self, term: int, end: int, record: Record) -> None:
        self.world.power["acknowledged"] += 1
        for later, start in self._starts.items():
            if later > term and start < end:
                self.fail(3, f"term {later} starts at {start}, term {term} acknowledged {end}")
        self._check_members(end, record)
        self.acknowledged[end] = record
        self.readers.acknowledged(end, record)
        self.acknowledged_end = max(self.acknowledged_end, end)

    def check_shown(self, replica: Replica, end: int) -> None:
        log, shown = replica.disk.log, self.shown
        common = min(end, len(shown))
        if end > len(log) or log[:common] != shown[:common]:
            why = f"{log[common - 3 :]} after {shown[common - 3 :]}"
            self.fail(5, f"{replica.name} shows up to {end}: {why}")
        state, machine = self.engine.view.state, replica.machine
        leads = state is not None and machine is not None and machine.term == state.term
        if leads and end < len(shown):
            self.fail(5, f"{replica.name} leads and shows up to {end}, after {len(shown)}")
        if end > len(shown):
            self.world.power["shown"] += end - len(shown)
            self._check_members(end, log[end - 1], 5)
            self.shown = log[:end]

    def _check_members(self, end: int, record: Record | None, invariant: int = 2) -> None:
        """Each member of the set holds everything up to `end`, and the same."""
        state = self.engine.view.state
        assert state is not None
        if record is None:
            record = self.acknowledged.get(end)
        for replica in self.replicas:
            if replica.name in state.in_sync and record is not None:
                log = replica.disk.log
                if replica.durable_end < end or log[end - 1] != record:
                    why = f"{replica.name} of {state} has not {record} at {end}: {log}"
                    self.fail(invariant, f"{why}, durable up to {replica.durable_end}")

    def check_logs(self) -> None:
        logs = [replica.disk.log for replica in self.replicas]
        for place, ours in enumerate(logs):
            for theirs in logs[place + 1 :]:
                end = min(len(ours), len(theirs))
                while end and ours[end - 1][0] != theirs[end - 1][0]:
                    end -= 1
                if ours[:end] != theirs[:end]:
                    self.fail(4, f"{ours} and {theirs} differ before {end}")
        for replica in self.replicas:
            log, rows = replica.disk.log, replica.disk.rows
            for place, (term, start) in enumerate(rows):
                end = rows[place + 1].start if place + 1 < len(rows) else len(log)
                if any(record[0] != term for record in log[start:end]):
                    self.fail(4, f"the rows {rows} do not fit {log}")

    # The world

    def by_name(self, name: str) -> Replica | None:
        return next((replica for replica in self.replicas if replica.name == name), None)

    def deliver(self, sender: Replica, name: str, message: Message) -> None:
        target = self.by_name(name)
        if target is None:
            return
        delay_s = self.links.delay_s(sender.slot, target.slot)
        if delay_s is None:
            self.world.power["messages lost"] += 1
            return
        if not self.reorders:
            way = (sender.slot, target.slot)
            arrival_s = max(self.world.now_s + delay_s, self._arrivals_s.get(way, 0.0))
            self._arrivals_s[way] = arrival_s
            delay_s = arrival_s - self.world.now_s
        process = target.process

        def arrive(source: str) -> None:
            if target.process == process:
                target.receive(source, message)

        self.world.after(delay_s, arrive, sender.name)

    def _tell_watchers(self) -> None:
        seen = Observed(self.engine.view, 0)
        for replica in self.replicas:
            delay_s = self.links.delay_s("engine", replica.slot)
            if delay_s is not None and replica.machine is not None:
                replica.later(delay_s, partial(replica.hear, seen))

    def clients(self, end_s: float) -> None:
        rng = self.world.rng
        leaders = [replica for replica in self.replicas if replica.leads]
        for _ in range(rng.choice((1, 1, 2, 3))):
            if leaders:
                self._number += 1
                rng.choice(leaders).take(self._number)
        rng.choice(self.replicas).look()
        self.readers.read(leaders)
        self.check_logs()
        if self.world.now_s < end_s:
            self.world.after(rng.expovariate(2.5), self.clients, end_s)

    # Faults

    def faults(self) -> None:
        rng, world = self.world.rng, self.world
        if rng.random() < 0.4:
            self.links.loss = rng.choice((0.01, 0.05, 0.2))
        if rng.random() < 0.4:
            self.links.slow = rng.choice((0.01, 0.05, 0.2))
        for replica in self.replicas:
            replica.rate = rng.uniform(0.95, 1.05)
        if self.clocks_jump:
            for place in (3.0, 12.0, 21.0):
                world.after(rng.uniform(place, place + 2.0), self._fault, leader_without_engine)
        for _ in range(rng.randint(0 if self.is_sharp else 1, 4 if self.is_sharp else 7)):
            fault = rng.choices(list(FAULTS), list(FAULTS.values()))[0]
            world.after(rng.uniform(1.0, FAULTS_S), self._fault, fault)

    def _fault(self, fault: Callable[[Cluster, Replica, float], None]) -> None:
        rng = self.world.rng
        leaders = [replica for replica in self.replicas if replica.leads]
        some = leaders if leaders and rng.random() < 0.5 else self.replicas
        self.world.power[fault.__name__] += 1
        fault(self, rng.choice(some), rng.choice((0.3, 1.0, 3.0, 6.0, 12.0)) * rng.random())

    def cut_off(self, ways: list[tuple[str, str]], for_s: float) -> None:
        for way in ways:
            self.links.cut[way] += 1

        def heal() -> None:
            for way in ways:
                self.links.cut[way] -= 1

        self.world.after(for_s, heal)

    def late_s(self, replica: Replica) -> float:
        """How much later than others a swap of `state` arrives."""
        rng = self.world.rng
        if replica.next_swap_late_s:
            late_s, replica.next_swap_late_s = replica.next_swap_late_s, 0.0
            return late_s
        return rng.uniform(0.3, 3.0) if self.is_sharp and rng.random() < 0.6 else 0.0

    def sharp_moment(self, replica: Replica) -> None:
        """A swap is on its way, or the log is being cut: some processes end right now."""
        rng = self.world.rng
        ends, replica.ends_at_next_swap = replica.ends_at_next_swap, False
        if ends or (self.is_sharp and rng.random() < 0.25):
            self.world.power["sharp ends"] += 1
            process = replica.process

            def end() -> None:
                if replica.process == process:
                    process_ends(self, replica, rng.uniform(0.05, 0.3))

            self.world.after(rng.uniform(0.0, 0.03), end)

    def restart(self, replica: Replica, after_s: float) -> None:
        process = replica.process

        def start() -> None:
            if replica.process == process:
                replica.start()

        self.world.after(after_s, start)


def one_way(cluster: Cluster, replica: Replica, for_s: float) -> None:
    other = cluster.world.rng.choice([*"abc", "engine"])
    way = (replica.slot, other) if cluster.world.rng.random() < 0.5 else (other, replica.slot)
    cluster.cut_off([way], for_s)


def cut_off_from_replicas(cluster: Cluster, replica: Replica, for_s: float) -> None:
    others = [other.slot for other in cluster.replicas]
    cluster.cut_off([(replica.slot, other) for other in others], for_s)
    cluster.cut_off([(other, replica.slot) for other in others], for_s)


def cut_off_from_engine(cluster: Cluster, replica: Replica, for_s: float) -> None:
    cluster.cut_off([(replica.slot, "engine"), ("engine", replica.slot)], for_s)


def cut_off_from_all(cluster: Cluster, replica: Replica, for_s: float) -> None:
    cut_off_from_replicas(cluster, replica, for_s)
    cut_off_from_engine(cluster, replica, for_s)


def leader_without_engine(cluster: Cluster, replica: Replica, _: float) -> None:
    """Its key ends, but its followers have promised; then one of them forgets that."""
    rng = cluster.world.rng
    leader = next((other for other in cluster.replicas if other.leads), replica)
    cut_off_from_engine(cluster, leader, rng.uniform(6.0, 12.0))

    def forget() -> None:
        state = cluster.engine.view.state
        members = () if state is None else state.in_sync
        some = [r for r in cluster.replicas if r is not leader and r.name in members]
        if not some:
            return
        follower = rng.choice(some)
        if cluster.clocks_jump:
            follower.jump_s += 12.0  # it tries at once, though the leader counts on its promise
            follower.next_swap_late_s = rng.choice((0.0, rng.uniform(0.8, 3.0)))
            follower.ends_at_next_swap = rng.random() < 0.5
        elif rng.random() < 0.5:
            process_ends(cluster, follower, 0.1)

    cluster.world.after(rng.uniform(4.6, 6.0), forget)


def engine_away(cluster: Cluster, _: Replica, for_s: float) -> None:
    for replica in cluster.replicas:
        cut_off_from_engine(cluster, replica, for_s)


def pause(cluster: Cluster, replica: Replica, for_s: float) -> None:
    replica.pause()
    cluster.world.after(for_s, replica.go_on)


def process_ends(cluster: Cluster, replica: Replica, for_s: float) -> None:
    replica.end()
    cluster.restart(replica, for_s)


def stopped(cluster: Cluster, replica: Replica, for_s: float) -> None:
    """As a broker is that leads nothing; a master has handed over before."""
    if not replica.leads and not replica.is_paused:
        replica.leave()
        cluster.restart(replica, for_s)


def machine_ends(cluster: Cluster, replica: Replica, for_s: float) -> None:
    replica.lose_power()
    cluster.restart(replica, for_s)


def disk_lost(cluster: Cluster, replica: Replica, for_s: float) -> None:
    replica.lose_disk()
    cluster.restart(replica, for_s)


def clock_jumps(cluster: Cluster, replica: Replica, for_s: float) -> None:
    if cluster.clocks_jump:
        replica.jump_s += for_s


def switch_over(cluster: Cluster, replica: Replica, _: float) -> None:
    others = [other.name for other in cluster.replicas if other is not replica]
    if replica.leads:
        replica.hear(SwitchOver(cluster.world.rng.choice(others)))


FAULTS: dict[Callable[[Cluster, Replica, float], None], int] = {
    one_way: 3,
    cut_off_from_replicas: 2,
    cut_off_from_engine: 2,
    cut_off_from_all: 2,
    leader_without_engine: 3,
    engine_away: 1,
    pause: 3,
    process_ends: 3,
    stopped: 3,
    machine_ends: 3,
    disk_lost: 1,
    clock_jumps: 1,
    switch_over: 3,
}


def run(seed: int) -> Counter[str]:
    """One schedule. Returns what was seen, for tests of their own power.

    Raises:
        Violation: an invariant does not hold, or the cluster does not come back in peace.
    """
    cluster = Cluster(seed)
    try:
        _run(cluster)
    except Exception as error:
        if isinstance(error, Violation):
            raise type(error)(f"SKYLARKMQ_SEED={seed}: {error}") from None
        raise Violation(f"SKYLARKMQ_SEED={seed}: {error!r}") from error
    return cluster.world.power


def run_late_swap(seed: int) -> Counter[str]:
    """One schedule around a swap that comes seconds late, while the old master still leads.

    The master cannot reach the engine and leads by promises; a follower's clock jumps, so it tries
    at once. Its swap is on the way for seconds; every second time its process ends meanwhile.

    Raises:
        Violation: as `run`.
    """
    cluster = Cluster(seed, clocks_jump=True)
    try:
        _run_late_swap(cluster, seed % 2 == 1)
    except Violation as error:
        raise type(error)(f"late swap, seed {seed}: {error}") from None
    return cluster.world.power


def _run_late_swap(cluster: Cluster, ends: bool) -> None:
    world = cluster.world
    cluster.is_sharp, cluster.reorders, cluster.stalls = False, False, 0.0
    for replica in cluster.replicas:
        world.after(world.rng.uniform(0.0, 2.0), replica.start)
    world.after(0.5, cluster.clients, FAULTS_S + PEACE_S - 2.0)
    world.run_until(8.0)
    leader = next(replica for replica in cluster.replicas if replica.leads)
    cut_off_from_engine(cluster, leader, 12.0)
    world.run_until(13.5)
    follower = next(replica for replica in cluster.replicas if replica is not leader)
    follower.next_swap_late_s = world.rng.uniform(1.5, 2.5)
    follower.ends_at_next_swap = ends
    follower.jump_s += 12.0
    world.run_until(FAULTS_S)
    follower.next_swap_late_s, follower.ends_at_next_swap = 0.0, False  # it may not have tried
    acknowledged = world.power["acknowledged"]
    world.run_until(FAULTS_S + PEACE_S)
    _check_peace(cluster, acknowledged)


def run_stop(seed: int, *, leads: bool) -> float:
    """Stop a replica in peace; return how long a send waited that was taken right then.

    Raises:
        Violation: as `run`.
    """
    cluster = Cluster(seed)
    world = cluster.world
    cluster.is_sharp, cluster.reorders, cluster.stalls = False, False, 0.0
    for replica in cluster.replicas:
        world.after(world.rng.uniform(0.0, 2.0), replica.start)
    world.run_until(12.0)
    leader = next(replica for replica in cluster.replicas if replica.leads)
    others = [replica for replica in cluster.replicas if replica is not leader]
    if leads:
        leader.hear(SwitchOver(others[0].name))
        while leader.machine is not None and leader.machine.state in HANDING:
            world.run_until(world.now_s + 0.001)
        leader.leave()
        leader, stops_s = others[0], world.now_s
        while not leader.take(1):
            world.run_until(world.now_s + 0.001)
    else:
        others[0].leave()
        stops_s = world.now_s
        assert leader.take(1)
    while not cluster.acknowledged:
        world.run_until(world.now_s + 0.001)
    return world.now_s - stops_s


def _run(cluster: Cluster) -> None:
    world = cluster.world
    for replica in cluster.replicas:
        world.after(world.rng.uniform(0.0, 2.0), replica.start)
    cluster.faults()
    world.after(0.5, cluster.clients, FAULTS_S + PEACE_S - 2.0)
    world.run_until(FAULTS_S)
    links = cluster.links
    links.loss = links.slow = 0.0
    cluster.reorders, cluster.stalls, cluster.is_sharp = False, 0.0, False
    links.cut.clear()
    for replica in cluster.replicas:
        replica.ends_at_next_swap, replica.next_swap_late_s = False, 0.0
        replica.go_on()
        if replica.machine is None:
            replica.start()
    acknowledged = world.power["acknowledged"]
    world.run_until(FAULTS_S + PEACE_S)
    _check_peace(cluster, acknowledged)


def _check_peace(cluster: Cluster, acknowledged: int) -> None:
    """Without faults a master leads all replicas, unless the last member's disk was lost."""
    state = cluster.engine.view.state
    assert state is not None, "nobody ever led"
    if cluster.halted:
        raise Violation(f"a replica halted: {cluster.halted}")
    if all(cluster.by_name(name) is None for name in state.in_sync):
        cluster.world.power["all members lost"] += 1
        return
    states = [replica.machine.state for replica in cluster.replicas if replica.machine is not None]
    names = {replica.name for replica in cluster.replicas}
    if sorted(s.value for s in states) != ["follower", "follower", "master"]:
        raise Violation(f"in peace they are {states}, with {state}")
    if set(state.in_sync) != names:
        raise Violation(f"in peace {state} has not all of {names}")
    if cluster.world.power["acknowledged"] == acknowledged:
        raise Violation("in peace nothing was acknowledged")
    master = next(replica for replica in cluster.replicas if replica.leads)
    for end, record in cluster.acknowledged.items():
        if master.disk.log[end - 1] != record:
            cluster.fail(2, f"{record} was acknowledged at {end} and is gone: {master.disk.log}")
    cluster.readers.read([master], all_of_them=True)
    if missed := cluster.readers.missed():
        cluster.fail(9, "\n".join(str(each) for each in missed))
    _check_end_states(cluster)


def _check_end_states(cluster: Cluster) -> None:
    cluster.check_logs()
    for replica in cluster.replicas:
        assert replica.machine is not None and replica.machine.state is not State.HALTED
