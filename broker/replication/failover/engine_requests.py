"""Asks the coordination engine, in tasks of their own, and tells the state machine the answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

from skylarkmq.broker.replication.failover.coordinated_state import (
    ALIVE,
    ClusterView,
    CoordinatedStateError,
    view_of,
)
from skylarkmq.broker.replication.failover.coordination import (
    Change,
    Coordination,
    CoordinationError,
    LeaseEndedError,
    Snapshot,
    Swapped,
)
from skylarkmq.broker.replication.failover.replica_events import (
    Event,
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
from skylarkmq.common.clock import Clock
from skylarkmq.common.throttled_log import ThrottledLog
from skylarkmq.remoting.waiting import sleep

log = logging.getLogger(__name__)

Ask = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Runs something as a task; its failure ends the process."""


class EngineRequests:
    """What one replica asks of the engine. Loop thread.

    Attributes:
        view: what the engine held when it was seen last.
        mastership_changes: how often another replica, or this one, has begun to lead since the
            first look.
    """

    def __init__(
        self,
        me: str,
        rules: FailoverRules,
        coordination: Coordination,
        clock: Clock,
        ask: Ask,
        hear: Callable[[Event], None],
    ) -> None:
        self.view: ClusterView | None = None
        self.mastership_changes = 0
        self._me = me
        self._rules = rules
        self._coordination = coordination
        self._clock = clock
        self._ask = ask
        self._hear = hear
        self._throttled = ThrottledLog(clock, log)
        self._read_s = float("-inf")  # when the engine answered last
        self._lease = 0  # the last one that was got
        self._under_way: set[str] = set()  # kinds of requests that the engine has not answered
        self._wanted_read = 0  # number of a read that was asked for meanwhile
        self._is_over = False

    def start(self) -> None:
        """Watch the engine from now on."""
        self._ask(self._watch())

    def end(self) -> None:
        """Begin no more reads."""
        self._is_over = True

    async def give_up_lease(self) -> None:
        """End the lease at once, so that others may lead, or go on without."""
        if self._lease:
            try:
                await self._coordination.revoke(self._lease)
            except CoordinationError as error:
                log.warning("the lease is left to end by itself: %s", error)

    @property
    def is_reachable(self) -> bool:
        """Whether the engine has answered within the last lease."""
        return self._clock.monotonic() - self._read_s <= self._rules.lease_s

    def _unreached(self, error: Exception) -> None:
        text = f"the coordination engine does not answer: {error}; trying again"
        self._throttled.tell("engine", text)

    def register(self, action: Register) -> None:
        """Take a lease, and put `alive/<me>` under it."""
        self._ask(self._register(action))

    async def _register(self, action: Register) -> None:
        asked_s = self._clock.monotonic()
        try:
            lease = await self._coordination.grant(int(self._rules.lease_s))
            change = Change(ALIVE + self._me, action.record.to_json(), lease)
            done = await self._coordination.swap((), (change,)) is Swapped.DONE
        except CoordinationError as error:
            self._unreached(error)
            done, lease = False, 0
        self._lease = lease
        self._hear(Registered(lease, asked_s) if done else NotRegistered())

    def renew(self, action: Renew) -> None:
        """Renew the lease."""
        if "renew" not in self._under_way:  # else the next beat asks again
            self._under_way.add("renew")
            self._ask(self._renew(action.lease))

    async def _renew(self, lease: int) -> None:
        asked_s = self._clock.monotonic()
        try:
            lives = await self._coordination.renew(lease)
        except CoordinationError as error:
            self._unreached(error)
            return
        finally:
            self._under_way.discard("renew")
        self._hear(Renewed(lease, asked_s) if lives else LeaseEnded(lease))

    def read(self, action: Read) -> None:
        """Read what the engine holds."""
        if "read" in self._under_way:  # an engine that does not answer gets no heap of them
            self._wanted_read = action.read
        else:
            self._under_way.add("read")
            self._ask(self._read(action.read))

    async def _read(self, number: int) -> None:
        try:
            snapshot = await self._coordination.read()
        except CoordinationError as error:
            self._unreached(error)
            return
        finally:
            self._under_way.discard("read")
            wanted, self._wanted_read = self._wanted_read, 0
            if wanted and not self._is_over:
                self.read(Read(wanted))
        self._read_s = self._clock.monotonic()
        self._observe(snapshot, number)

    def _observe(self, snapshot: Snapshot, read: int) -> None:
        try:
            view = view_of(snapshot)
        except CoordinatedStateError as error:
            self._throttled.tell("nonsense", str(error))
            return
        before = self.view
        if before is None or view.revision >= before.revision:
            self.view = view
            if before is not None and view.state is not None and before.state is not None:
                self.mastership_changes += view.state.term - before.state.term
        self._hear(Observed(view, read))

    def swap(self, action: Swap) -> None:
        """Swap once."""
        self._ask(self._swap(action))

    async def _swap(self, action: Swap) -> None:
        try:
            outcome = await self._coordination.swap(action.conditions, action.changes)
        except LeaseEndedError:
            outcome = Swapped.REFUSED
        except CoordinationError as error:
            self._unreached(error)
            outcome = Swapped.UNKNOWN  # nothing happened: the same one is tried again
        self._hear(SwapEnded(action.swap, outcome))

    async def _watch(self) -> None:
        """Have the engine's changes at once; reads at each beat make up for a late watch."""
        while True:
            try:
                snapshot = await self._coordination.read()
                entries = dict(snapshot.entries)
                async with aclosing(self._coordination.watch(snapshot.revision)) as events:
                    async for event in events:
                        for key, entry in event.entries.items():
                            if entry is None:
                                entries.pop(key, None)
                            else:
                                entries[key] = entry
                        self._observe(Snapshot(event.revision, dict(entries)), 0)
            except CoordinationError as error:
                self._unreached(error)
            await sleep(self._clock, self._rules.beat_s)
