"""Virtual time, and an engine and a network that lose, delay and reorder. One seed, one course."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from skylarkmq.broker.replication.failover.coordinated_state import STATE, ClusterView, view_of
from skylarkmq.broker.replication.failover.coordination import (
    Change,
    Condition,
    Entry,
    Snapshot,
    Swapped,
)

ANSWER_LIMIT_S = 0.6  # a driver gives an answer up after this long


class World:
    """Runs what is due, in the order of virtual time."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.now_s = 0.0
        self.power: Counter[str] = Counter()
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._due, (self.now_s + delay_s, self._count, call, args))

    def run_until(self, end_s: float) -> None:
        due = self._due
        while due and due[0][0] <= end_s:
            self.now_s, _, call, args = heapq.heappop(due)
            call(*args)
        self.now_s = end_s


class Links:
    """Which ways are cut, and how bad the others are. Names: replicas, and `engine`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.cut: Counter[tuple[str, str]] = Counter()
        self.loss = 0.0
        self.slow = 0.0  # share of messages that take seconds

    def delay_s(self, source: str, target: str) -> float | None:
        """How long a message takes; None: it is lost."""
        rng = self._world.rng
        if self.cut[source, target] > 0 or rng.random() < self.loss:
            return None
        if rng.random() < self.slow:
            return rng.uniform(0.1, 6.0)
        return rng.uniform(0.001, 0.02)


class SimulatedEngine:
    """Linearizable: a request is carried out at one moment between its sending and its answer."""

    def __init__(self, world: World, links: Links) -> None:
        self._world = world
        self._links = links
        self._entries: dict[str, Entry] = {}
        self._leases: dict[int, float] = {}  # when they end
        self._ttl_s: dict[int, float] = {}
        self._lease_count = 0
        self._view: ClusterView | None = None
        self.revision = 1
        self.on_state: Callable[[ClusterView, ClusterView], None] = lambda before, after: None
        self.on_change: Callable[[], None] = lambda: None

    @property
    def view(self) -> ClusterView:
        if self._view is None:
            self._view = view_of(Snapshot(self.revision, dict(self._entries)))
        return self._view

    # What can be asked; each is carried out at its moment.

    def read(self) -> ClusterView:
        return self.view

    def grant(self, ttl_s: float) -> int:
        self._lease_count += 1
        self._ttl_s[self._lease_count] = ttl_s
        self.renew(self._lease_count)
        return self._lease_count

    def renew(self, lease: int) -> bool:
        if lease not in self._ttl_s:
            return False
        self._leases[lease] = self._world.now_s + self._ttl_s[lease]
        # It never ends early, and may end late.
        late_s = self._world.rng.uniform(0.0, 0.5)
        self._world.after(self._ttl_s[lease] + late_s, self._end, lease)
        return True

    def revoke(self, lease: int) -> None:
        if lease in self._leases:
            self._leases[lease] = self._world.now_s
            self._end(lease)

    def _end(self, lease: int) -> None:
        if self._leases.get(lease, self._world.now_s + 1) > self._world.now_s:
            return
        del self._leases[lease], self._ttl_s[lease]
        keys = [key for key, entry in self._entries.items() if entry.lease == lease]
        if keys:
            self._change([Change(key, None) for key in keys])

    def swap(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> Swapped:
        for condition in conditions:
            entry = self._entries.get(condition.key)
            revision, lease = (0, 0) if entry is None else (entry.revision, entry.lease)
            if condition.revision is not None and revision != condition.revision:
                return Swapped.REFUSED
            if condition.lease is not None and lease != condition.lease:
                return Swapped.REFUSED
        if any(change.lease and change.lease not in self._ttl_s for change in changes):
            return Swapped.REFUSED  # LeaseEndedError
        self._change(changes)
        return Swapped.DONE

    def _change(self, changes: Sequence[Change]) -> None:
        before = self.view
        self.revision += 1
        for change in changes:
            if change.value is None:
                self._entries.pop(change.key, None)
            else:
                entry = Entry(change.key, change.value, self.revision, change.lease)
                self._entries[change.key] = entry
        self._view = None
        if any(change.key == STATE for change in changes):
            self.on_state(before, self.view)
        self.on_change()

    # The way there and back

    def ask(
        self,
        name: str,
        call: Callable[[], Any],
        answered: Callable[[Any], None],
        lost: Any,
        late_s: float = 0.0,
    ) -> None:
        """Carry `call` out some time; `answered` gets its result, or `lost` when none comes."""
        state = {"open": True}

        def answer(result: Any) -> None:
            if state["open"]:
                state["open"] = False
                answered(result)

        def arrive() -> None:
            result = call()
            back_s = self._links.delay_s("engine", name)
            if back_s is not None:
                self._world.after(back_s, answer, result)

        there_s = self._links.delay_s(name, "engine")
        if there_s is not None:
            self._world.after(there_s + late_s, arrive)
        self._world.after(ANSWER_LIMIT_S, answer, lost)
