"""A coordination engine in memory, and a way to it that delays and loses what the seed says.

    engine = Engine(clock)
    mine = SimulatedCoordination(engine, "broker-a", clock, Random(seed), Faults(lost_answer=0.1))

`Engine` alone does at once what it is asked, for simulations that have messages of their own.
`SimulatedCoordination` asks it as a broker does over a network: what is asked arrives later,
perhaps after the one who asks has given up, or never; so may the answer. It keeps the rules of
`skylarkmq.broker.replication.failover.coordination` and uses every freedom that they leave. The
contract tests (`tests/broker/replication/test_coordination_contract.py`) hold it to what etcd does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TypeVar

from skylarkmq.broker.replication.failover.coordination import (
    MISSING,
    NO_LEASE,
    Change,
    CompactedError,
    Condition,
    CoordinationError,
    Entry,
    Event,
    LeaseEndedError,
    Snapshot,
    Swapped,
    check_swap,
)
from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.remoting.waiting import sleep, within

T = TypeVar("T")
Keys = dict[tuple[str, str], Entry]
"""By prefix and key."""


@dataclass
class Lease:
    """A lease that lives; its timer ends it."""

    ttl_s: float
    timer: TimerHandle
    keys: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])


class Engine:
    """Keys, leases and their history, for all prefixes; every call happens at once and whole."""

    def __init__(self, clock: Clock, late_s: Callable[[], float] = lambda: 0.0) -> None:
        """Start empty, at revision 1 as etcd does.

        Args:
            late_s: how much longer than promised a lease lives, asked at each grant and renewal.
        """
        self.revision = 1
        self.compacted_revision = 0
        self.listeners: set[Callable[[], None]] = set()
        """Called after each change."""
        self._clock = clock
        self._late_s = late_s
        self._entries: Keys = {}
        self._leases: dict[int, Lease] = {}
        self._lease_numbers = count(1001)
        self._history: list[tuple[int, dict[tuple[str, str], Entry | None]]] = []

    def read(self, prefix: str) -> Snapshot:
        """Return the keys of a prefix."""
        mine = {key: entry for (of, key), entry in self._entries.items() if of == prefix}
        return Snapshot(self.revision, mine)

    def swap(
        self, prefix: str, conditions: Sequence[Condition], changes: Sequence[Change]
    ) -> Swapped:
        """Make the changes if the conditions hold; never UNKNOWN.

        Raises:
            LeaseEndedError: nothing changed. As in etcd, a condition that fails comes first.
        """
        check_swap(conditions, changes)
        if not all(self._holds(prefix, condition) for condition in conditions):
            return Swapped.REFUSED
        for change in changes:
            if change.lease and change.lease not in self._leases:
                raise LeaseEndedError(f"lease {change.lease} of {change.key} has ended")
        revision = self.revision + 1
        done: dict[tuple[str, str], Entry | None] = {}
        for change in changes:
            place = (prefix, change.key)
            if change.value is not None:
                done[place] = Entry(change.key, change.value, revision, change.lease)
            elif place in self._entries:
                done[place] = None
        self._apply(done)
        return Swapped.DONE

    def grant(self, ttl_s: float) -> int:
        """Return a new lease."""
        lease = next(self._lease_numbers)
        self._leases[lease] = Lease(ttl_s, self._end_later(lease, ttl_s))
        return lease

    def renew(self, lease: int) -> bool:
        """Return whether the lease lived, and let it live again for its time."""
        found = self._leases.get(lease)
        if found is None:
            return False
        found.timer.cancel()
        found.timer = self._end_later(lease, found.ttl_s)
        return True

    def revoke(self, lease: int) -> None:
        """End a lease, if it lives, and delete its keys in one change."""
        found = self._leases.pop(lease, None)
        if found is not None:
            found.timer.cancel()
            self._apply(dict.fromkeys(sorted(found.keys)))

    def compact(self) -> None:
        """Forget all changes so far; watches can go on from the present revision alone."""
        self.compacted_revision = self.revision
        self._history.clear()

    def events(self, prefix: str, after_revision: int) -> list[Event]:
        """Return what happened to a prefix after a revision.

        Raises:
            CompactedError: some of it is forgotten.
        """
        if after_revision < self.compacted_revision:
            raise CompactedError(
                f"changes up to revision {self.compacted_revision} are forgotten: read again"
            )
        return [
            Event(revision, mine)
            for revision, changed in self._history
            if revision > after_revision
            and (mine := {key: entry for (of, key), entry in changed.items() if of == prefix})
        ]

    def _holds(self, prefix: str, condition: Condition) -> bool:
        entry = self._entries.get((prefix, condition.key))
        revision, lease = (entry.revision, entry.lease) if entry else (MISSING, NO_LEASE)
        return condition.revision in (None, revision) and condition.lease in (None, lease)

    def _apply(self, changed: dict[tuple[str, str], Entry | None]) -> None:
        if not changed:
            return
        self.revision += 1
        for place, entry in changed.items():
            before = self._entries.pop(place, None)
            if before is not None and before.lease in self._leases:
                self._leases[before.lease].keys.discard(place)
            if entry is not None:
                self._entries[place] = entry
                if entry.lease:
                    self._leases[entry.lease].keys.add(place)
        self._history.append((self.revision, changed))
        for listener in list(self.listeners):
            listener()

    def _end_later(self, lease: int, ttl_s: float) -> TimerHandle:
        when_s = self._clock.monotonic() + ttl_s + self._late_s()
        return self._clock.call_at(when_s, self.revoke, lease)


@dataclass(frozen=True, slots=True)
class Faults:
    """How bad the way to the engine is; the numbers from 0 to 1 are probabilities."""

    delay_max_s: float = 0.0
    """Each way. Above `timeout_s` some requests happen after their caller gave up."""
    unreachable: float = 0.0
    """A request is known not to have left, as when nothing listens."""
    lost_request: float = 0.0
    lost_answer: float = 0.0
    lost_watch: float = 0.0
    """A watch ends instead of telling an event."""


class SimulatedCoordination:
    """One broker's way to its keys; a `Coordination`.

    Attributes:
        faults: may be changed at any time.
        sends, hears: false while the network lets nothing through in that direction.
    """

    def __init__(
        self,
        engine: Engine,
        prefix: str,
        clock: Clock,
        random: Random | None = None,
        faults: Faults | None = None,
        *,
        timeout_s: float = 2.0,
    ) -> None:
        self.faults = faults or Faults()
        self.sends = True
        self.hears = True
        self._engine = engine
        self._prefix = prefix
        self._clock = clock
        self._random = random or Random(0)
        self._timeout_s = timeout_s

    async def read(self) -> Snapshot:
        return await self._ask(lambda: self._engine.read(self._prefix))

    async def swap(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> Swapped:
        check_swap(conditions, changes)
        asked = (tuple(conditions), tuple(changes))
        try:
            return await self._ask(lambda: self._engine.swap(self._prefix, *asked))
        except NoAnswerError:
            return Swapped.UNKNOWN

    async def grant(self, ttl_s: int) -> int:
        return await self._ask(lambda: self._engine.grant(ttl_s))

    async def renew(self, lease: int) -> bool:
        return await self._ask(lambda: self._engine.renew(lease))

    async def revoke(self, lease: int) -> None:
        await self._ask(lambda: self._engine.revoke(lease))

    async def watch(self, after_revision: int) -> AsyncGenerator[Event]:
        changed = asyncio.Event()
        changed.set()
        self._engine.listeners.add(changed.set)
        try:
            await self._ask(lambda: self._engine.events(self._prefix, after_revision))
            while True:
                await changed.wait()
                changed.clear()
                for event in self._engine.events(self._prefix, after_revision):
                    await self._event_arrives()
                    after_revision = event.revision
                    yield event
        finally:
            self._engine.listeners.discard(changed.set)

    async def _event_arrives(self) -> None:
        if delay_s := self._delay_s():
            await sleep(self._clock, delay_s)
        if not self.hears:
            await sleep(self._clock, self._timeout_s)
        if not self.hears or self._happens(self.faults.lost_watch):
            raise CoordinationError("the watch was lost, as the test wants it: read again")

    async def _ask(self, act: Callable[[], T]) -> T:
        """Let the engine do `act` when the request arrives, and return what it said."""
        # Everything is drawn first: what others do meanwhile does not change this request's fate.
        unreachable = self._happens(self.faults.unreachable)
        lost_request = self._happens(self.faults.lost_request)
        lost_answer = self._happens(self.faults.lost_answer)
        there_s, back_s = self._delay_s(), self._delay_s()
        if unreachable:
            raise CoordinationError("the engine cannot be reached, as the test wants it: try again")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def arrive() -> None:
            if lost_request or not self.sends:
                return
            try:
                give: Callable[[], None] = _giver(answer, act())
            except CoordinationError as error:
                give = _failer(answer, error)
            if not lost_answer:
                self._clock.call_at(self._clock.monotonic() + back_s, hear, give)

        def hear(give: Callable[[], None]) -> None:
            if self.hears and not answer.done():
                give()

        self._clock.call_at(self._clock.monotonic() + there_s, arrive)
        try:
            return await within(self._clock, self._timeout_s, answer)
        except TimeoutError as error:
            raise NoAnswerError("no answer, as the test wants it: try again") from error

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

    def _delay_s(self) -> float:
        delay_max_s = self.faults.delay_max_s
        return self._random.uniform(0, delay_max_s) if delay_max_s else 0.0


class NoAnswerError(CoordinationError):
    """What was asked may have happened; `swap` says UNKNOWN instead."""


def _giver(answer: asyncio.Future[T], value: T) -> Callable[[], None]:
    return lambda: answer.set_result(value)


def _failer(answer: asyncio.Future[T], error: CoordinationError) -> Callable[[], None]:
    return lambda: answer.set_exception(error)
