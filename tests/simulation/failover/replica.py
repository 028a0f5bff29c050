"""A replica's process and its disk: carries out what `ReplicaState` says, as slowly as it likes.

One record of the log has size 1, so a log is a list of (term, number), and numbers are unique.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from skylarkmq.broker.replication.failover.coordinated_state import ALIVE, AliveRecord
from skylarkmq.broker.replication.failover.coordination import Change, Swapped
from skylarkmq.broker.replication.failover.replica_events import (
    Action,
    Append,
    BeginTerm,
    CloseStreams,
    CutBack,
    Disconnected,
    Event,
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
    Message,
    NotRegistered,
    Observed,
    OpenStream,
    Part,
    Read,
    Received,
    Refused,
    Register,
    Registered,
    Renew,
    Renewed,
    Send,
    Sends,
    State,
    StopLeading,
    Swap,
    SwapEnded,
    TermBegun,
    Tick,
)
from skylarkmq.broker.replication.failover.replica_state import ReplicaState
from skylarkmq.broker.replication.failover.terms import Lineage, rows_up_to

if TYPE_CHECKING:
    from tests.simulation.failover.schedule import Cluster

Record = tuple[int, int]  # term, number

TICK_S = 0.25
DISCONNECTED = 0.01  # of ticks: the connection to the master ends
PART_MAX = 4


class Disk:
    """What a crash leaves."""

    def __init__(self) -> None:
        self.log: list[Record] = []
        self.synced = 0  # records that a crash of the machine leaves for sure
        self.rows: Lineage = ()


@dataclass(slots=True)
class Stream:
    """What a master feeds one follower."""

    term: int
    session: int
    offset: int


class Replica:
    """One broker of the cluster, over all its processes."""

    def __init__(self, cluster: Cluster, slot: str, sync_flush: bool) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._engine = cluster.engine
        self.slot = slot
        self.sync_flush = sync_flush
        self.incarnation = 1
        self.disk = Disk()
        self.process = 0  # counts starts; what an earlier one asked for reaches nobody
        self.machine: ReplicaState | None = None  # None: it is down
        self.rate = 1.0  # of its clock
        self.jump_s = 0.0
        self.next_swap_late_s = 0.0
        self.ends_at_next_swap = False
        self._paused: deque[Event] | None = None
        self._jobs: deque[Callable[[], None]] = deque()  # of the disk, one after the other
        self._busy = False
        self._streams: dict[str, Stream] = {}
        self._session = 0  # of the last hello
        self._lease = 0
        self._waiting: deque[tuple[int, int, Record]] = deque()  # term, end, record

    @property
    def name(self) -> str:
        return f"{self.slot}{self.incarnation}"

    @property
    def durable_end(self) -> int:
        return self.disk.synced if self.sync_flush else len(self.disk.log)

    @property
    def clock_s(self) -> float:
        return self._world.now_s * self.rate + self.jump_s

    # Processes

    def start(self) -> None:
        disk = self.disk
        disk.synced = len(disk.log)
        disk.rows = rows_up_to(disk.rows, len(disk.log))
        self.process += 1
        self._paused = None
        self._jobs.clear()
        self._busy = False
        self._streams.clear()
        self._waiting.clear()
        self.machine = ReplicaState(
            self.name,
            AliveRecord(self.slot, self.slot, 0),
            self._cluster.rules,
            LocalLog(len(disk.log), disk.rows),
            self.clock_s,
        )
        self._tick(self.process)
        self._flush_some(self.process)

    def end(self) -> None:
        """The process ends, as by kill -9: what was written stays."""
        self.machine = None
        self.process += 1

    def leave(self) -> None:
        """The process is stopped: it says so, and gives its lease back."""
        self.hear(Leave())
        lease = self._lease
        self.end()
        self._ask(lambda: self._engine.revoke(lease), lambda _: None, None)

    def lose_power(self) -> None:
        """The machine ends: of what was not synced, some of the front stays."""
        self.end()
        disk = self.disk
        kept = self._world.rng.randint(disk.synced, len(disk.log))
        if not self.sync_flush:
            self.incarnation += 1
        self._world.power["records lost"] += len(disk.log) - kept
        del disk.log[kept:]
        disk.synced = kept

    def lose_disk(self) -> None:
        self.end()
        self.incarnation += 1
        self.disk = Disk()

    def pause(self) -> None:
        if self._paused is None:
            self._paused = deque()

    def go_on(self) -> None:
        held, self._paused = self._paused or deque(), None
        for event in held:
            self.hear(event)

    def _tick(self, process: int) -> None:
        if process == self.process:
            if self._world.rng.random() < DISCONNECTED:
                session = self._session
                self._job(lambda: self.hear(Disconnected(session, len(self.disk.log))))
            self.hear(Tick())
            self._world.after(TICK_S * self._world.rng.uniform(0.8, 1.2), self._tick, process)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call it, unless the process has ended by then."""
        process = self.process

        def run() -> None:
            if process == self.process:
                call()

        self._world.after(delay_s, run)

    # Events and actions

    def hear(self, event: Event) -> None:
        if self.machine is None:
            return
        if self._paused is not None:
            if not isinstance(event, Tick):
                self._paused.append(event)
            return
        actions = self.machine.handle(event, self.clock_s)
        for action in actions:
            ACTIONS[type(action)](self, action)
        self._acknowledge()
        self._cluster.check_authority(self)

    def moved(self) -> None:
        self.hear(LogMoved(len(self.disk.log), self.durable_end))

    def _job(self, run: Callable[[], None]) -> None:
        """Jobs of the disk run in the order in which they were asked for."""
        self._jobs.append(run)
        if not self._busy:
            self._next_job()

    def _next_job(self) -> None:
        self._busy = bool(self._jobs)
        if self._busy:
            rng = self._world.rng
            stalls = rng.random() < self._cluster.stalls
            delay_s = rng.uniform(0.5, 3.0) if stalls else rng.uniform(0.0, 0.01)

            def run() -> None:
                self._jobs.popleft()()
                self._next_job()

            self.later(delay_s, run)

    def _flush_some(self, process: int) -> None:
        """The flush thread of ASYNC_FLUSH; SYNC_FLUSH syncs after each write."""
        if process == self.process:
            self.sync(len(self.disk.log))
            self._world.after(self._world.rng.uniform(0.2, 3.0), self._flush_some, process)

    def sync(self, end: int) -> None:
        before = self.disk.synced
        self.disk.synced = max(before, min(end, len(self.disk.log)))
        if self.sync_flush and self.disk.synced > before:
            self.moved()

    def written(self) -> None:
        """Records were written; by its flush mode they are durable soon."""
        self.moved()
        if self.sync_flush:
            end = len(self.disk.log)
            self.later(self._world.rng.uniform(0.0, 0.02), lambda: self.sync(end))

    # The engine

    def _ask(
        self,
        call: Callable[[], Any],
        answered: Callable[[Any], None],
        lost: Any,
        late_s: float = 0.0,
    ) -> None:
        process = self.process

        def mine(result: Any) -> None:
            if process == self.process:
                answered(result)

        self._engine.ask(self.slot, call, mine, lost, late_s)

    def do_register(self, action: Register) -> None:
        asked_s, key, engine = self.clock_s, ALIVE + self.name, self._engine

        def granted(lease: int | None) -> None:
            if lease is None:
                self.hear(NotRegistered())
                return
            self._lease = lease

            def put(outcome: Swapped) -> None:
                done = outcome is Swapped.DONE
                self.hear(Registered(lease, asked_s) if done else NotRegistered())

            change = Change(key, action.record.to_json(), lease)
            self._ask(lambda: engine.swap((), (change,)), put, Swapped.UNKNOWN)

        self._ask(lambda: engine.grant(self._cluster.rules.lease_s), granted, None)

    def do_renew(self, action: Renew) -> None:
        asked_s, lease = self.clock_s, action.lease

        def answered(lives: bool | None) -> None:
            if lives is not None:
                self.hear(Renewed(lease, asked_s) if lives else LeaseEnded(lease))

        self._ask(lambda: self._engine.renew(lease), answered, None)

    def do_read(self, action: Read) -> None:
        def answered(view: Any) -> None:
            if view is not None:
                self.hear(Observed(view, action.read))

        self._ask(self._engine.read, answered, None)

    def do_swap(self, action: Swap) -> None:
        def answered(outcome: Swapped) -> None:
            self._world.power[f"swaps {outcome.value}"] += 1
            self.hear(SwapEnded(action.swap, outcome))

        def swap() -> Swapped:
            return self._engine.swap(action.conditions, action.changes)

        late_s = self._cluster.late_s(self) if action.swap else 0.0
        self._ask(swap, answered, Swapped.UNKNOWN, late_s)
        if action.swap:
            self._cluster.sharp_moment(self)

    # Other replicas

    def do_send(self, action: Send) -> None:
        if isinstance(action.message, Hello):
            self._session = action.message.session
        self._cluster.deliver(self, action.to, action.message)

    def receive(self, sender: str, message: Message) -> None:
        self.hear(Received(sender, message))
        if isinstance(message, Refused):  # its sender has closed the connection
            session = message.session
            self._job(lambda: self.hear(Disconnected(session, len(self.disk.log))))

    def do_open_stream(self, action: OpenStream) -> None:
        self._streams[action.to] = Stream(action.term, action.session, action.offset)
        self._feed()

    def do_close_streams(self, _: CloseStreams) -> None:
        self._streams.clear()

    def _feed(self) -> None:
        if self.machine is None:
            return
        log = self.disk.log
        for to, stream in self._streams.items():
            while stream.offset < len(log):
                end = stream.offset + 1
                while (
                    end < min(len(log), stream.offset + PART_MAX)
                    and log[end][0] == log[stream.offset][0]
                ):
                    end += 1
                data = tuple(log[stream.offset : end])
                part = Part(
                    stream.term, stream.session, stream.offset, data, self.machine.confirmed
                )
                self._cluster.deliver(self, to, part)
                stream.offset = end

    # The log

    def do_append(self, action: Append) -> None:
        def rows() -> None:
            if action.rows:
                self.disk.rows = (*self.disk.rows, *action.rows)

        def data() -> None:
            if len(self.disk.log) == action.offset:
                self.disk.log += action.data  # type: ignore[arg-type]
                self.written()

        if action.rows:
            self._job(rows)
        self._job(data)

    def do_cut_back(self, action: CutBack) -> None:
        disk = self.disk

        def cut() -> None:
            self._world.power["records cut"] += len(disk.log) - action.offset
            del disk.log[action.offset :]
            disk.synced = len(disk.log)

        def rows() -> None:
            disk.rows = action.lineage
            self.hear(LogCut(action.session, len(disk.log), disk.rows))

        self._job(cut)
        self._job(rows)
        self._cluster.sharp_moment(self)

    def do_freeze(self, _: Freeze) -> None:
        def freeze() -> None:
            self.disk.synced = len(self.disk.log)
            self.hear(Frozen(len(self.disk.log)))

        self._job(freeze)

    def do_begin_term(self, action: BeginTerm) -> None:
        def begin() -> None:
            self.disk.rows = (*self.disk.rows, action.row)
            self.hear(TermBegun(self.disk.rows))

        self._job(begin)

    # Leading

    def do_lead(self, action: Lead) -> None:
        self._cluster.check_leads(self, action.term)

    def do_stop_leading(self, _: StopLeading) -> None:
        self._waiting.clear()
        self._job(lambda: self.hear(LeadingStopped()))

    def do_halt(self, action: Halt) -> None:
        self._cluster.halted.append(action.why)

    def take(self, number: int) -> bool:
        """A client sends. False: it is refused."""
        machine = self.machine
        if machine is None or self._paused is not None or machine.sends is not Sends.TAKEN:
            return False
        record = (machine.term, number)
        self.disk.log.append(record)
        self._waiting.append((machine.term, len(self.disk.log), record))
        self.written()
        self._feed()
        return True

    def _acknowledge(self) -> None:
        machine, waiting = self.machine, self._waiting
        if machine is None:
            return
        while waiting and waiting[0][0] == machine.term and waiting[0][1] <= machine.confirmed:
            term, end, record = waiting.popleft()
            self._cluster.check_acknowledged(term, end, record)

    def look(self) -> None:
        """A consumer looks how far it may read."""
        if self.machine is not None and self._paused is None:
            shown = self.machine.shown
            if shown is not None:
                self._cluster.check_shown(self, shown)

    @property
    def is_paused(self) -> bool:
        return self._paused is not None

    @property
    def leads(self) -> bool:
        return self.machine is not None and self.machine.state is State.MASTER


ACTIONS: dict[type[Action], Callable[[Replica, Any], None]] = {
    Register: Replica.do_register,
    Renew: Replica.do_renew,
    Read: Replica.do_read,
    Swap: Replica.do_swap,
    Send: Replica.do_send,
    OpenStream: Replica.do_open_stream,
    CloseStreams: Replica.do_close_streams,
    CutBack: Replica.do_cut_back,
    Append: Replica.do_append,
    Freeze: Replica.do_freeze,
    BeginTerm: Replica.do_begin_term,
    Lead: Replica.do_lead,
    StopLeading: Replica.do_stop_leading,
    Halt: Replica.do_halt,
}
