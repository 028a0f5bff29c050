"""Each fault does something to the cluster, and leaves it mended."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, cast

import pytest

from tests.failover.cluster import REPLICAS, Standing, StuckError
from tests.failover.faults import FAULTS, kinds

LEASE_S = 0.01
ROUNDS = 4  # a fault has turns that it takes by chance


class FakeProcess:
    def __init__(self) -> None:
        self.is_running, self.is_paused, self.done = True, False, 0

    def start(self) -> None:
        self.is_running = True

    def kill(self) -> None:
        self.is_running, self.is_paused = False, False
        self.done += 1

    terminate = kill

    async def ended(self) -> None:
        assert not self.is_running

    def pause(self) -> None:
        assert self.is_running
        self.is_paused = True
        self.done += 1

    def resume(self) -> None:
        self.is_paused = False


class FakeVolume:
    def __init__(self, process: FakeProcess, *, can_be_slow: bool) -> None:
        self._process = process
        self.can_be_slow = can_be_slow
        self.limited, self.done = 0, 0

    def limit(self, operations: int) -> None:
        assert self.can_be_slow
        self.limited = operations
        self.done += 1

    def lose(self) -> None:
        assert not self._process.is_running, "a store is taken from a process that has it open"
        self.done += 1


class FakeNetwork:
    def __init__(self) -> None:
        self.cuts: set[tuple[str, str]] = set()
        self.done = 0

    def mend(self) -> None:
        self.cuts.clear()


class Forgetful(dict[str, str]):
    """The keys of a replica that takes none."""

    def __missing__(self, key: str) -> str:
        return "7"

    def __setitem__(self, key: str, value: str) -> None:
        """Forget it."""


class FakeCluster:
    """What faults use of a cluster; whoever runs longest leads."""

    def __init__(self, *, can_be_slow: bool = True) -> None:
        self.lease_s = LEASE_S
        self.replicas = {name: FakeProcess() for name in REPLICAS}
        self.volumes = {
            name: FakeVolume(process, can_be_slow=can_be_slow)
            for name, process in self.replicas.items()
        }
        self.names, self.etcd, self.network = FakeProcess(), FakeProcess(), FakeNetwork()
        self.live: dict[str, dict[str, str]] = {name: {} for name in REPLICAS}

    async def led(self, but: str = "") -> Standing:
        assert self.etcd.is_running
        able = [
            name
            for name, process in self.replicas.items()
            if process.is_running and not process.is_paused and name != but
        ]
        return Standing(2, able[0], tuple(REPLICAS), tuple(able))

    async def until(self, met: Callable[[Standing], bool], what: str) -> Standing:
        alive = tuple(name for name, process in self.replicas.items() if process.is_running)
        standing = Standing(1, "r1", alive, alive)
        assert met(standing), what
        return standing

    async def switch_over(self) -> str:
        self.network.done += 1
        return "r2"

    async def whole(self) -> Standing:
        assert all(process.is_running for process in self.replicas.values())
        return Standing(2, "r2", REPLICAS, REPLICAS)

    async def set_live(self, key: str, value: int) -> None:
        for values in self.live.values():
            values[key] = str(value)

    async def live_values(self, key: str) -> dict[str, str]:
        return {name: values[key] for name, values in self.live.items()}

    def cut_off(self, name: str, others: Iterable[str], *, into: bool, out: bool) -> None:
        self.network.cuts |= {(other, name) for other in others if into}
        self.network.cuts |= {(name, other) for other in others if out}
        self.network.done += 1

    @property
    def processes(self) -> list[FakeProcess]:
        return [*self.replicas.values(), self.names, self.etcd]

    @property
    def done(self) -> int:
        places: list[Any] = [*self.processes, *self.volumes.values(), self.network]
        return sum(place.done for place in places)


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("can_be_slow", [True, False])
async def test_a_fault_breaks_something_and_mends_it(kind: str, can_be_slow: bool) -> None:
    for seed in range(ROUNDS):
        cluster: Any = FakeCluster(can_be_slow=can_be_slow)
        note = await FAULTS[kind].act(cluster, Random(seed), "r1")
        assert note
        assert cluster.done > 0
        assert all(process.is_running for process in cluster.processes)
        assert not any(process.is_paused for process in cluster.processes)
        assert not cluster.network.cuts
        assert not any(volume.limited for volume in cluster.volumes.values())


@pytest.mark.parametrize("kind", kinds(with_network=False))
async def test_a_fault_for_loopback_cuts_nothing(kind: str) -> None:
    cluster: Any = FakeCluster(can_be_slow=False)
    cluster.cut_off = None  # is never called
    await FAULTS[kind].act(cluster, Random(1), "r1")


async def test_a_change_that_a_replica_does_not_have_afterwards_is_told() -> None:
    cluster = FakeCluster()
    cluster.live["r3"] = Forgetful()
    with pytest.raises(StuckError, match=r"r3 has maxTopics=7, and .* was acknowledged"):
        await FAULTS["change_a_live_key"].act(cast(Any, cluster), Random(1), "r1")


def test_faults_of_the_network_need_one() -> None:
    assert set(kinds(with_network=True)) == set(FAULTS)
    assert {"cut_master_off", "mute_master"} <= set(FAULTS) - set(kinds(with_network=False))
