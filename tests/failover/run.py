"""A run: faults one after the other while clients send and read, and what the checker says to it.

Each fault finds all replicas in sync, and is over when they are so again and sends are
acknowledged. When that does not come, the run ends there with the violation `stuck`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.failover.checker import Verdict, check
from tests.failover.cluster import REPLICAS, Cluster, StuckError
from tests.failover.consumers import CONSUMERS
from tests.failover.faults import FAULTS, kinds
from tests.failover.history import History, Operation, read_history
from tests.failover.load import Load, NotReadError, create_topic
from tests.failover.logs import LogComparison, compare_logs, stored_messages
from tests.failover.network import Loopback, Namespaces

FIRST_ACKS: Final = 100
ACKS_AFTER: Final = 40
RESUME_LIMIT_S: Final = 60.0
STOP_LIMIT_S: Final = 60.0
CALM_LEASES: Final = (0.2, 1.5)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does."""

    seed: int
    minutes: float = 30.0
    faults: Sequence[str] = ()
    """These, once each in this order, whatever time it takes; else random ones for `minutes`."""

    @property
    def has_window(self) -> bool:
        """Whether the topic has a deduplication window: with every second seed."""
        return self.seed % 2 == 1


@dataclass(slots=True)
class Result:
    """What a run came to."""

    plan: Plan
    lease_s: float
    verdict: Verdict
    faults: Counter[str] = field(default_factory=Counter[str])
    logs: LogComparison | None = None
    slow_disk: str = "limits of the volume's operations"
    took_s: float = 0.0

    @property
    def is_good(self) -> bool:
        return self.verdict.is_good

    def summary(self) -> dict[str, Any]:
        """All of it, for a file."""
        verdict = self.verdict
        gaps = {kind: max(each) for kind, each in verdict.gaps.items()}
        return {
            "seed": self.plan.seed,
            "seconds": round(self.took_s, 1),
            "lease_s": self.lease_s,
            "deduplication_window": self.plan.has_window,
            "faults": dict(sorted(self.faults.items())),
            "acked": verdict.acked,
            "not_acked": verdict.unknown,
            "not_acked_but_stored": verdict.unknown_kept,
            "read": verdict.read,
            "messages": verdict.kept,
            "longest_unavailability_s": {k: round(gap, 2) for k, gap in sorted(gaps.items())},
            "longest_unavailability_leases": {
                kind: round(gap / self.lease_s, 2) for kind, gap in sorted(gaps.items())
            },
            "log_bytes_compared": self.logs.size if self.logs else 0,
            "log_ends": self.logs.ends if self.logs else {},
            "slow_disk": self.slow_disk,
            "violations": dict(verdict.counts),
            "examples": verdict.examples,
        }


class Run:
    """One run on a cluster that it makes and ends."""

    def __init__(
        self, folder: Path, network: Namespaces | Loopback, plan: Plan, say: Say, lease_s: int = 3
    ) -> None:
        self.cluster = Cluster(folder, network, lease_s)
        self._plan = plan
        self._say = say
        self._random = Random(plan.seed)
        self._history = History(folder / "history.jsonl")
        addresses = {name: self.cluster.address(name) for name in REPLICAS}
        self._load = Load(
            *(self._history, self.cluster.namesrv, addresses, plan.seed),
            has_window=plan.has_window,
        )
        self._violations: list[tuple[str, str]] = []
        self._faults: Counter[str] = Counter()
        self._consumers: list[str] = []
        self._begun = time.monotonic()
        self._is_stuck = False

    async def run(self) -> Result:
        """Do all of it; nothing that it started is left."""
        logs: LogComparison | None = None
        slow = ""
        try:
            await asyncio.to_thread(self.cluster.make)
            can_be_slow = all(volume.can_be_slow for volume in self.cluster.volumes.values())
            slow = "limits of the volume's operations" if can_be_slow else "stopped in short turns"
            try:
                await self._start()
                await self._break()
                await self._read_the_end()
            except (StuckError, NotReadError) as error:
                self._is_stuck = True
                self._violate("stuck", str(error))
            await self._load.stop()
            await self._stop_replicas()
            for end in self.cluster.unasked_ends():
                self._violate("ended", end)
            if not self._is_stuck:  # else logs may have ends that nobody has confirmed
                logs = await asyncio.to_thread(self._compare)
            if self._violations:
                await asyncio.to_thread(self.cluster.keep_stores)
        finally:
            await self._load.stop()
            self._history.close()
            await asyncio.to_thread(self.cluster.end)
        return await asyncio.to_thread(self._judge, logs, slow)

    async def _start(self) -> None:
        self._say("starting 3 replicas, a name server and etcd")
        await self.cluster.start()
        standing = await self.cluster.led()
        master = self.cluster.address(standing.master)
        await create_topic(master, with_window=self._plan.has_window)
        await self._load.start()
        await self._acks(FIRST_ACKS)
        self._say(f"{standing.master} leads term {standing.term}, sends are acknowledged")

    async def _acks(self, count: int) -> None:
        try:
            await self._load.acks(count, RESUME_LIMIT_S)
        except TimeoutError:
            standing = await self.cluster.standing()
            text = f"no {count} acknowledgements within {RESUME_LIMIT_S:.0f} s: {standing}"
            raise StuckError(text) from None

    async def _break(self) -> None:
        if self._plan.faults:
            for kind in self._plan.faults:
                await self._fault(kind)
            return
        end = self._begun + 60 * self._plan.minutes
        bag: list[str] = []
        while time.monotonic() < end:
            if not bag:  # each kind once before any comes again
                bag = kinds(with_network=self.cluster.network.can_cut)
                self._random.shuffle(bag)
            await self._fault(bag.pop())

    async def _fault(self, kind: str) -> None:
        await asyncio.sleep(self.cluster.lease_s * self._random.uniform(*CALM_LEASES))
        standing = await self.cluster.whole()
        self._history.new_gap()
        start, note = time.monotonic(), "it did not end"
        self._faults[kind] += 1
        try:
            note = await FAULTS[kind].act(self.cluster, self._random, standing.master)
            await self.cluster.whole()
            await self._acks(ACKS_AFTER)
        finally:
            self._history.add(
                Operation("fault", kind, start, time.monotonic(), "done", detail=note)
            )
            self._history.flush()
            self._progress(kind, note)
        for end in self.cluster.unasked_ends():
            raise StuckError(end)

    def _progress(self, kind: str, note: str) -> None:
        history, passed = self._history, time.monotonic() - self._begun
        gap_s = max(history.longest_gap, history.gap(time.monotonic()))
        leases = gap_s / self.cluster.lease_s
        self._say(
            f"{passed // 60:3.0f}:{passed % 60:02.0f}  {kind:32} {gap_s:5.1f} s ({leases:.1f} "
            f"leases) without an acknowledgement  acked {history.acked:,}  read {history.read:,}  "
            f"{note}"
        )

    async def _read_the_end(self) -> None:
        self._say("reading everything once more")
        if not await self._load.drain():
            self._say("not every consumer got everything that was acknowledged")
        self._consumers += CONSUMERS
        standing = await self.cluster.whole()
        await self._load.read_all(self.cluster.address(standing.master), "end", final=True)

    async def _stop_replicas(self) -> None:
        running = [process for process in self.cluster.replicas.values() if process.is_running]
        for process in running:
            process.resume()
            process.terminate()
        for process in running:
            try:
                async with asyncio.timeout(STOP_LIMIT_S):
                    await process.ended()
            except TimeoutError:
                self._violate("ended", f"{process.name} did not stop in {STOP_LIMIT_S:.0f} s")
                process.kill()

    def _compare(self) -> LogComparison | None:
        stores = {name: volume.store for name, volume in self.cluster.volumes.items()}
        missing = [name for name, root in stores.items() if not (root / "commitlog").is_dir()]
        if missing:
            self._violate("logs", f"no log at {', '.join(missing)}")
            return None
        try:
            logs = compare_logs(stores)
            for difference in logs.differences:
                self._violate("logs", difference)
            for name, root in stores.items():
                for read in stored_messages(root, f"store of {name}", logs.end):
                    self._history.add(read)
        except AssertionError as error:
            self._violate("logs", str(error))
            return None
        return logs

    def _judge(self, logs: LogComparison | None, slow: str) -> Result:
        lease_s = self.cluster.lease_s
        bounds = {
            kind: fault.leases_max * lease_s
            for kind, fault in FAULTS.items()
            if fault.leases_max is not None
        }
        verdict = check(
            read_history(self._history.path),
            consumers=self._consumers,
            bounds=bounds,
            is_over=not self._is_stuck,
        )
        for rule, text in self._violations:
            verdict.violation(rule, text)
        took_s = time.monotonic() - self._begun
        return Result(self._plan, lease_s, verdict, self._faults, logs, slow, took_s)

    def _violate(self, rule: str, text: str) -> None:
        self._violations.append((rule, text))
        self._say(f"VIOLATION {rule}: {text}")
        with suppress(OSError):
            (self.cluster.folder / "violations.txt").open("a").write(f"{rule}: {text}\n")
