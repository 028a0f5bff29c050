"""Runs a replica's state machine: hands it what happens, and carries out what it says.

    the engine     `engine_requests.py`; a watch tells of changes at once, reads at each beat
    the log        jobs, one after the other, in the order of the actions that asked for them
    other replicas `replica_links.py`
    time           a tick several times in a beat

`ReplicaState` decides; nothing is decided here. What differs between one process and the next, the
store and what runs on it, is the `ReplicaHome`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Protocol

from skylarkmq.broker.replication.failover.coordinated_state import (
    AliveRecord,
)
from skylarkmq.broker.replication.failover.coordination import (
    Coordination,
)
from skylarkmq.broker.replication.failover.engine_requests import EngineRequests
from skylarkmq.broker.replication.failover.replica_events import (
    Action,
    Append,
    BeginTerm,
    CloseStreams,
    CutBack,
    Disconnected,
    Event,
    FailoverRules,
    Freeze,
    Frozen,
    Halt,
    Hello,
    Lead,
    LeadingStopped,
    Leave,
    LocalLog,
    LogCut,
    LogMoved,
    Message,
    OpenStream,
    Read,
    Received,
    Refused,
    Register,
    Renew,
    Send,
    StopLeading,
    Swap,
    TermBegun,
    Tick,
)
from skylarkmq.broker.replication.failover.replica_links import ReplicaLinks
from skylarkmq.broker.replication.failover.replica_state import ReplicaState
from skylarkmq.broker.replication.failover.terms import Lineage, TermStart
from skylarkmq.common.clock import Clock
from skylarkmq.common.errors import StoreError
from skylarkmq.common.refusal import refusal
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.common.throttled_log import ThrottledLog

log = logging.getLogger(__name__)

TICKS_IN_BEAT: Final = 4
UNSTORED_MAX: Final = 32 << 20
"""Bytes of the master's log that were taken and are not stored, above which it has to wait."""


@dataclass(frozen=True, slots=True)
class LogPlaces:
    """Where this replica's log begins, ends, and is stored by its flush mode up to; bytes."""

    begin: int = 0
    end: int = 0
    durable_end: int = 0


class ReplicaHome(Protocol):
    """This replica's log, and what runs on it. What raises ends the process: see `fail`."""

    def places(self) -> LogPlaces: ...

    def lineage(self) -> Lineage:
        """Return the rows beside the log."""
        ...

    async def cut_back(self, offset: int, lineage: Lineage, *, anew: bool) -> Lineage:
        """Let the log end there, durably, and follow; return the rows that are kept."""
        ...

    async def keep_rows(self, rows: Lineage) -> None:
        """Write rows of the master behind those that are there, durably.

        Raises:
            OSError: the machine refuses it now; `append` refuses until `cut_back` has written them.
        """

    def append(self, offset: int, data: bytes) -> None:
        """Store bytes of the master's log.

        Raises:
            StoreError, OSError: not now, or never; nothing of what was not stored is kept.
        """

    def forget_part(self) -> None:
        """Drop the record that has not ended."""

    async def freeze(self) -> None:
        """Take nothing any more, and have all that was taken on the disk."""

    async def begin_term(self, row: TermStart) -> Lineage:
        """Write a term's row, durably; return the rows."""
        ...

    async def lead(self, term: int) -> None:
        """Start what a master runs."""

    def stop_leading(self, why: str) -> None:
        """Answer nobody any more who waits for a confirmation, and take nothing: at once."""

    async def stopped_leading(self) -> None:
        """End what a master runs; the log stays, to be followed with."""

    def halt(self, why: str) -> None:
        """Tell the operator that this replica stands still for good."""

    def looked(self) -> None:
        """An event was handled: confirm, refuse and register by what the state machine says now."""

    def fail(self, error: BaseException) -> None:
        """End the process: something that cannot fail has failed."""


class ReplicaDriver:
    """One replica under a controller. Loop thread.

    Its size is one idea: a method for each action, and the jobs with the log in one order with the
    messages that lead to them.

    Attributes:
        state: what decides.
        engine: what is asked of the engine, and was seen there.
    """

    def __init__(
        self,
        me: str,
        alive: AliveRecord,
        rules: FailoverRules,
        coordination: Coordination,
        home: ReplicaHome,
        clock: Clock,
    ) -> None:
        """Make it; `links` is set before `start`."""
        self.me = me
        self.rules = rules
        self.links: ReplicaLinks | None = None
        self.engine = EngineRequests(me, rules, coordination, clock, self._ask, self.hear)
        self._home = home
        self._clock = clock
        self._told_places = places = home.places()
        found = LocalLog(places.end, home.lineage(), places.begin)
        self.state = ReplicaState(me, alive, rules, found, clock.monotonic())
        self._ticks = IntervalTimer(clock, rules.beat_s / TICKS_IN_BEAT, self._tick)
        self._tasks: set[asyncio.Task[None]] = set()
        self._jobs: deque[Callable[[], Awaitable[None]]] = deque()
        self._works = False  # a job is under way
        self._work_task: asyncio.Task[None] | None = None
        self._hello: Hello | None = None  # the last one that was sent
        self._hello_to = ""
        self._planned = False  # the next turn of the loop looks at the log
        self._throttled = ThrottledLog(clock, log)
        self._is_running = False
        self._is_ending = False
        self.ticked_s = clock.monotonic()

    # Life cycle

    def start(self) -> None:
        """Take part from now on."""
        self._is_running = True
        self._ticks.start()
        self.engine.start()
        self.hear(Tick())

    def end_jobs(self) -> None:
        """Begin nothing more with the log: this replica stops."""
        self._is_ending = True
        self._jobs.clear()

    async def abort(self) -> None:
        """Take part no more; what is being done with the log is done."""
        self._is_running = False
        self._ticks.stop()
        self.engine.end()
        self.end_jobs()
        for task in self._tasks - {self._work_task}:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Take part no more. The lease ends at once, so that others may lead, or go on without."""
        self.hear(Leave())
        await self.abort()
        await self.engine.give_up_lease()

    # Events and actions

    def hear(self, event: Event) -> None:
        """Hand an event to the state machine, and do what it says."""
        if not self._is_running:
            return
        for action in self.state.handle(event, self._clock.monotonic()):
            self._DO[type(action)](self, action)
        self._home.looked()

    def _tick(self) -> None:
        self.ticked_s = self._clock.monotonic()
        self.look_at_log()
        self.hear(Tick())

    def log_moved(self) -> None:
        """Look at the log in the next turn: it has grown, or more of it is stored."""
        if not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._look_at_log)

    def _look_at_log(self) -> None:
        self._planned = False
        self.look_at_log()
        if self.links is not None:
            self.links.turns.stored()
            self._hold_if_slow()

    def _hold_if_slow(self) -> None:
        """Let the master wait while this disk has much to store."""
        assert self.links is not None
        places = self._told_places
        self.links.hold(places.end - places.durable_end > UNSTORED_MAX)

    def look_at_log(self) -> None:
        """Tell the state machine where the log is now."""
        places = self._home.places()
        if places != self._told_places:
            if self.state.term and places.end < self._told_places.end:
                # Followers would cut theirs to it.
                self._home.fail(StoreError(f"the log of a master went back to {places.end}"))
                return
            self._told_places = places
            self.hear(LogMoved(places.end, places.durable_end, places.begin))

    def _ask(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._asked)
        return task

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._home.fail(task.exception() or RuntimeError())

    # Other replicas

    def heard(self, sender: str, message: Message) -> None:
        """Take a message of another replica."""
        view = self.engine.view
        if isinstance(message, Hello) and view and sender not in view.replicas:
            # It comes again; and nobody makes this replica remember names.
            why = f"replica {sender} is not known to the coordination engine yet"
            self._send_to(sender, Refused(self.state.term, message.session, why))
            return
        self.hear(Received(sender, message))

    def lost(self, replica: str, was_master: bool) -> None:
        """Note that the connection with a replica has ended."""
        if was_master and replica == self._hello_to:
            self._end_session()

    def _end_session(self) -> None:
        """Begin anew with the master, after what is being done with the log."""
        hello = self._hello
        if hello is not None:
            self._job(lambda: self._disconnected(hello.session))

    async def _disconnected(self, session: int) -> None:
        self._home.forget_part()
        self.look_at_log()
        self.hear(Disconnected(session, self._home.places().end))

    def _do_send(self, action: Send) -> None:
        if isinstance(action.message, Hello):
            self._hello, self._hello_to = action.message, action.to
            if not action.address:  # nobody knows where it is; the next tick looks again
                self._end_session()
                return
        self._send_to(action.to, action.message, action.address)

    def _send_to(self, to: str, message: Message, address: str = "") -> None:
        """Send to another replica, if it is connected."""
        if self.links is not None:
            self.links.send(to, message, address)

    def _do_open_stream(self, action: OpenStream) -> None:
        if self.links is not None:
            lineage = self._home.lineage()
            self.links.open_stream(action.to, action.term, action.session, action.offset, lineage)

    def _do_close_streams(self, _: CloseStreams) -> None:
        if self.links is not None:
            self.links.close_streams()

    # The log

    def _job(self, job: Callable[[], Awaitable[None]]) -> None:
        """Do something with the log after what was asked for before."""
        if not self._is_running or self._is_ending:
            return
        self._jobs.append(job)
        if not self._works:
            self._works = True
            self._work_task = self._ask(self._work())

    async def _work(self) -> None:
        try:
            while self._jobs:
                await self._jobs.popleft()()
        finally:
            self._works = False

    def _do_append(self, action: Append) -> None:
        if self._is_ending:
            return
        if self._works or action.rows:
            self._job(lambda: self._append(action))
        else:
            self._store(action)

    async def _append(self, action: Append) -> None:
        if action.rows:
            try:
                await self._home.keep_rows(action.rows)
            except OSError as error:
                if refusal(error) is None:
                    raise
                self._not_stored(error)
                return
        self._store(action)

    def _store(self, action: Append) -> None:
        data = action.data
        assert isinstance(data, bytes)
        try:
            self._home.append(action.offset, data)
        except (StoreError, OSError) as error:
            self._not_stored(error)

    def _not_stored(self, error: Exception) -> None:
        """Ask for it again, in another session."""
        self._throttled.tell(
            "append", f"what the master {self._hello_to} sends is not stored: {error}"
        )
        self._end_session()

    def _do_cut_back(self, action: CutBack) -> None:
        async def cut() -> None:
            lineage = await self._home.cut_back(action.offset, action.lineage, anew=action.anew)
            self._told_places = places = self._home.places()
            end = max(places.end, action.offset) if action.anew else places.end
            self.hear(LogCut(action.session, end, lineage))

        self._job(cut)

    def _do_freeze(self, _: Freeze) -> None:
        async def freeze() -> None:
            await self._home.freeze()
            self._told_places = places = self._home.places()
            self.hear(Frozen(places.end))

        self._job(freeze)

    def _do_begin_term(self, action: BeginTerm) -> None:
        async def begin() -> None:
            self.hear(TermBegun(await self._home.begin_term(action.row)))

        self._job(begin)

    def _do_lead(self, action: Lead) -> None:
        self._job(lambda: self._home.lead(action.term))

    def _do_stop_leading(self, action: StopLeading) -> None:
        self._home.stop_leading(action.why)

        async def stop() -> None:
            await self._home.stopped_leading()
            self.look_at_log()
            self.hear(LeadingStopped())

        self._job(stop)

    def _do_halt(self, action: Halt) -> None:
        self._home.halt(action.why)

    _DO: Final[dict[type[Action], Callable[[ReplicaDriver, Any], None]]] = {
        Register: lambda self, action: self.engine.register(action),
        Renew: lambda self, action: self.engine.renew(action),
        Read: lambda self, action: self.engine.read(action),
        Swap: lambda self, action: self.engine.swap(action),
        Send: _do_send,
        OpenStream: _do_open_stream,
        CloseStreams: _do_close_streams,
        CutBack: _do_cut_back,
        Append: _do_append,
        Freeze: _do_freeze,
        BeginTerm: _do_begin_term,
        Lead: _do_lead,
        StopLeading: _do_stop_leading,
        Halt: _do_halt,
    }
