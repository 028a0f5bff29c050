"""Starts the members of a fleet, starts one again that has ended, and stops all.

    start    the name server; when it is ready, all brokers at once
    run      who ends is started again: after 0.5 s, then twice as long each time, up to 30 s; after
             a minute of service from the beginning; `hang_watch` ends who hangs
    stop     SIGTERM to all brokers; when they have ended, to the name server

A member that ends with code 1 or 2 before it has ever been ready ends the start of all, with its
reason: it would do so again. The second signal, or STOP_LIMIT_S, kills the brokers that have not
stopped; the next start of such a broker recovers its log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from skylarkmq.broker.fleet.child import Child
from skylarkmq.common.clock import Clock
from skylarkmq.remoting.waiting import Backoff, wait_event

log = logging.getLogger(__name__)

BACKOFF_FIRST_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0
SERVED_S: Final = 60.0
"""Service after which earlier failures are forgotten."""
STOP_LIMIT_S: Final = 55.0
"""Together with the next, below the 60 s that our unit for systemd gives."""
NAMESRV_STOP_LIMIT_S: Final = 3.0
NO_CURE: Final = (1, 2)
"""Exit codes of a start that would fail again: a port, a folder, a configuration."""
EXIT_KILLED: Final = 1

T = TypeVar("T")
Launch = Callable[[], Awaitable[Child]]


class StartFailedError(Exception):
    """A member could not start.

    Attributes:
        code: its exit code.
    """

    def __init__(self, name: str, why: str, code: int) -> None:
        super().__init__(f"{name}: {why}")
        self.code = code


class ProcessSlot:
    """A place for one member: its process, if it has one now, and a new one when that ends.

    Its size is one idea: at each end of a process, what is known of it begins anew, and what is
    known of the place goes on.

    Attributes:
        name: in logs and metrics.
        child: the present process.
        fields: what it said when it was ready; None: it is not.
        restart_count: how often it was started again.
        unanswered_count: questions in a row that the process has not answered.
        hung: why it is taken to hang, and was not killed for it; empty: it is not.
        is_aborted: the present process was told to end, because it hangs.
        aborted_count: how often that was.
    """

    def __init__(self, name: str, launch: Launch, clock: Clock) -> None:
        self.name = name
        self.child: Child | None = None
        self.fields: Mapping[str, Any] | None = None
        self.restart_count = self.unanswered_count = self.aborted_count = 0
        self.hung = ""
        self.is_aborted = False
        self.on_ready: Callable[[], None] = lambda: None
        self._launch = launch
        self._clock = clock
        self._backoff = Backoff(BACKOFF_FIRST_S, BACKOFF_MAX_S)
        self._stopping = asyncio.Event()
        self._why = ""
        self._first: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Mapping[str, Any]:
        """Start the process; return what it says when it is ready for the first time.

        Raises:
            StartFailedError: it ended instead, and would do so again.
        """
        self._task = asyncio.create_task(self._keep(), name=f"process-slot-{self.name}")
        return await self._first

    def terminate(self) -> None:
        """Ask the process to stop, and start none any more."""
        self._stopping.set()
        if self.child is not None:
            self.child.signal(signal.SIGTERM)

    def ask(self) -> None:
        """Ask the process whether it runs."""
        if self.child is not None:
            self.unanswered_count += 1
            self.child.ask()

    def abort(self, why: str) -> Child:
        """Send SIGABRT to the present process, which hangs, and return it."""
        assert self.child is not None
        self._why, self.is_aborted = why, True
        self.aborted_count += 1
        self.child.signal(signal.SIGABRT)
        return self.child

    def kill(self) -> bool:
        """kill -9; return whether there was a process."""
        if self.child is None:
            return False
        self.child.signal(signal.SIGKILL)
        return True

    async def ended(self) -> None:
        """Wait until there is no process, and will be none."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _keep(self) -> None:
        try:
            while not self._stopping.is_set():
                await self._live()
        except StartFailedError as error:
            self._first.set_exception(error)
        except Exception as error:
            log.exception("%s is no longer supervised", self.name)
            if not self._first.done():
                self._first.set_exception(error)
        finally:
            if not self._first.done():
                self._first.cancel()

    async def _live(self) -> None:
        """Run one process to its end, and wait until it may be started again."""
        started_s, self._why = self._clock.monotonic(), ""
        self.unanswered_count, self.hung, self.is_aborted = 0, "", False
        try:
            self.child = await self._launch()
        except OSError as error:
            if not self._first.done():
                raise StartFailedError(self.name, f"cannot be started: {error}", 1) from error
            told = f"cannot be started: {error}"
        else:
            if self._stopping.is_set():  # asked while it was being started
                self.child.signal(signal.SIGTERM)
            pid, code = self.child.pid, await self._watch(self.child)
            if self._stopping.is_set():
                return
            why = f": {self._why}" if self._why else ""
            if code in NO_CURE and not self._first.done():
                raise StartFailedError(self.name, self._why or f"ended with code {code}", code)
            end = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            told = f"(process {pid}) {end}{why}"
        now_s = self._clock.monotonic()
        if now_s - started_s >= SERVED_S:
            self._backoff.failure_count = 0
        wait_s = self._backoff.failed(now_s)
        log.error("%s %s; starting it again in %.1f s", self.name, told, wait_s)
        await wait_event(self._clock, self._stopping, wait_s)
        self.restart_count += not self._stopping.is_set()

    async def _watch(self, child: Child) -> int:
        """Take in what a process reports; return its exit code."""
        while (report := await child.report()) is not None:
            if report["event"] == "alive":
                self.unanswered_count = 0
            elif report["event"] == "failed":
                self._why = str(report["why"])
            else:
                self.fields = report
                if not self._first.done():
                    self._first.set_result(report)
                elif self.restart_count:
                    log.info("%s is ready again", self.name)
                self.on_ready()
        code = await child.ended()
        self.child = self.fields = None
        return code


class Supervisor:
    """A whole fleet. Loop thread."""

    def __init__(self, clock: Clock) -> None:
        self.brokers: Sequence[ProcessSlot] = ()
        self.namesrv: ProcessSlot | None = None
        self.stopping = asyncio.Event()
        self._kill = asyncio.Event()
        self._clock = clock

    @property
    def slots(self) -> list[ProcessSlot]:
        """All members, the name server first."""
        return [*([self.namesrv] if self.namesrv else []), *self.brokers]

    def stop(self) -> None:
        """Begin to stop; the second call kills."""
        (self._kill if self.stopping.is_set() else self.stopping).set()

    async def start_namesrv(self, slot: ProcessSlot) -> Mapping[str, Any] | None:
        """Start the name server; return its report, None when the fleet is to stop.

        Raises:
            StartFailedError: it cannot start.
        """
        self.namesrv = slot
        report = await self._unless_stopping(slot.start())
        slot.on_ready = self._namesrv_is_new
        return report

    async def start_brokers(self, slots: Sequence[ProcessSlot]) -> bool:
        """Start all brokers; return False when the fleet is to stop.

        Raises:
            StartFailedError: one cannot start.
        """
        self.brokers = slots
        started = asyncio.gather(*(slot.start() for slot in slots))
        return await self._unless_stopping(started) is not None

    async def _unless_stopping(self, started: Awaitable[T]) -> T | None:
        """Return the result, or None when `stop` is called first."""
        stopping = asyncio.ensure_future(self.stopping.wait())
        work = asyncio.ensure_future(started)
        both: set[asyncio.Future[Any]] = {work, stopping}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            return work.result() if work.done() and not self.stopping.is_set() else None
        finally:
            stopping.cancel()
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError, StartFailedError):
                await work

    def _namesrv_is_new(self) -> None:
        for slot in self.brokers:
            if slot.child is not None:
                slot.child.name_server_is_new()

    async def drain(self) -> int:
        """Stop all members, the name server last; return the exit code."""
        self.stopping.set()
        limit = self._clock.call_at(self._clock.monotonic() + STOP_LIMIT_S, self._kill.set)
        killed = await self._end(self.brokers)
        limit.cancel()
        if self.namesrv is not None:
            self._kill.clear()  # it was not asked to stop before
            limit_s = self._clock.monotonic() + NAMESRV_STOP_LIMIT_S
            limit = self._clock.call_at(limit_s, self._kill.set)
            killed += await self._end([self.namesrv])
            limit.cancel()
        if killed:
            log.error("killed, because they did not stop: %s", ", ".join(killed))
        return EXIT_KILLED if killed else 0

    async def _end(self, slots: Sequence[ProcessSlot]) -> list[str]:
        """Stop some members; return the names of those that had to be killed."""
        for slot in slots:
            slot.terminate()
        ended = asyncio.ensure_future(_all_ended(slots))
        asked = asyncio.ensure_future(self._kill.wait())
        both: set[asyncio.Future[Any]] = {ended, asked}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        killed = [slot.name for slot in slots if not ended.done() and slot.kill()]
        await ended
        return killed


async def _all_ended(slots: Sequence[ProcessSlot]) -> None:
    for slot in slots:
        await slot.ended()
