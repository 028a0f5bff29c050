"""What is done to a cluster: a function for each kind, which ends when the cause has ended.

Each begins when all replicas are in sync, and mends what it broke; that they are in sync again,
whoever calls waits for. What a function returns is a note for a human.

How long a cause lasts is counted in lease times: some end before anybody may notice, some after a
successor leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.failover.cluster import ETCD, NAMES, REPLICAS, Cluster, StuckError
from tests.failover.network import OUTSIDE

Act = Callable[[Cluster, Random, str], Awaitable[str]]
"""Is given the replica that leads."""

BURST_LEASES: Final = (0.1, 0.03)
"""Without limits for a disk: how long its replica stands still, and how long it goes on."""
LIVE_KEYS: Final = ("maxTopics", "maxGroups")
"""Far above what is needed, so that no value changes what the cluster does."""
SLOW: Final = (4, 10, 30)  # writes a second


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind."""

    act: Act
    needs_network: bool = False
    leases_max: float | None = None
    """How long nothing may be acknowledged; None: as long as the cause lasts, and a little."""


def _hold_s(cluster: Cluster, random: Random) -> float:
    return cluster.lease_s * random.uniform(0.3, 2.5)


def _others(name: str) -> list[str]:
    return [other for other in REPLICAS if other != name]


async def kill_master(cluster: Cluster, random: Random, master: str) -> str:
    cluster.replicas[master].kill()
    standing = await cluster.led(but=master)
    await asyncio.sleep(random.uniform(0, cluster.lease_s))
    cluster.replicas[master].start()
    return f"{master} was killed, {standing.master} leads term {standing.term}"


async def kill_master_at_once(cluster: Cluster, random: Random, master: str) -> str:
    """A supervisor starts it again before anybody else leads."""
    cluster.replicas[master].kill()
    await asyncio.sleep(random.uniform(0, cluster.lease_s / 2))
    cluster.replicas[master].start()
    return f"{master} was killed and started at once"


async def kill_two_masters(cluster: Cluster, random: Random, master: str) -> str:
    cluster.replicas[master].kill()
    second = (await cluster.led(but=master)).master
    await asyncio.sleep(random.uniform(0, cluster.lease_s))
    cluster.replicas[second].kill()
    await asyncio.sleep(_hold_s(cluster, random))
    for name in random.sample([master, second], 2):
        cluster.replicas[name].start()
    return f"{master} was killed, and then {second}"


async def kill_follower(cluster: Cluster, random: Random, master: str) -> str:
    name = random.choice(_others(master))
    cluster.replicas[name].kill()
    await asyncio.sleep(_hold_s(cluster, random))
    cluster.replicas[name].start()
    return f"{name} was killed"


async def kill_followers(cluster: Cluster, random: Random, master: str) -> str:
    for name in _others(master):
        cluster.replicas[name].kill()
    await asyncio.sleep(_hold_s(cluster, random))
    for name in _others(master):
        cluster.replicas[name].start()
    return f"all but {master} were killed"


async def stop_master(cluster: Cluster, random: Random, master: str) -> str:
    """An orderly stop."""
    cluster.replicas[master].terminate()
    await cluster.replicas[master].ended()
    standing = await cluster.led(but=master)
    cluster.replicas[master].start()
    return f"{master} was asked to stop, {standing.master} leads term {standing.term}"


async def switch_over(cluster: Cluster, random: Random, master: str) -> str:
    """No fault, for clients: as an operator asks for it, some times in a row."""
    leaders = [await cluster.switch_over() for _ in range(random.randint(1, 3))]
    return f"{master} handed over, then {', '.join(leaders)} led"


async def _pause(cluster: Cluster, random: Random, name: str) -> str:
    hold_s = _hold_s(cluster, random)
    cluster.replicas[name].pause()
    try:
        await asyncio.sleep(hold_s)
    finally:
        cluster.replicas[name].resume()
    return f"{name} stood still for {hold_s:.1f} s"


async def pause_master(cluster: Cluster, random: Random, master: str) -> str:
    return await _pause(cluster, random, master)


async def pause_follower(cluster: Cluster, random: Random, master: str) -> str:
    return await _pause(cluster, random, random.choice(_others(master)))


async def full_restart(cluster: Cluster, random: Random, master: str) -> str:
    """All replicas are killed, within a moment or at once."""
    pause_s = cluster.lease_s * random.choice((0, 0, 0.07))
    for name in random.sample(REPLICAS, len(REPLICAS)):
        cluster.replicas[name].kill()
        await asyncio.sleep(pause_s)
    for name in random.sample(REPLICAS, len(REPLICAS)):
        cluster.replicas[name].start()
        await asyncio.sleep(cluster.lease_s * random.choice((0, 0.3)))
    return "all replicas were killed and started"


async def full_stop(cluster: Cluster, random: Random, master: str) -> str:
    """All replicas are asked to stop, and started again."""
    for name in random.sample(REPLICAS, len(REPLICAS)):
        cluster.replicas[name].terminate()
    for name in REPLICAS:
        await cluster.replicas[name].ended()
    for name in random.sample(REPLICAS, len(REPLICAS)):
        cluster.replicas[name].start()
    return "all replicas were stopped and started"


async def lose_disk_of_master(cluster: Cluster, random: Random, master: str) -> str:
    """Killed, and its store gone: before anybody else leads, or after that."""
    cluster.replicas[master].kill()
    await asyncio.to_thread(cluster.volumes[master].lose)
    late = random.random() < 0.5
    if late:
        await cluster.led(but=master)
    cluster.replicas[master].start()
    return f"{master} lost its disk, back {'after' if late else 'before'} a successor led"


async def kill_master_while_one_copies(cluster: Cluster, random: Random, master: str) -> str:
    """A follower that lost its disk copies the log, or has just joined: it may lead or not."""
    copying, third = random.sample(_others(master), 2)
    cluster.replicas[copying].kill()
    await asyncio.to_thread(cluster.volumes[copying].lose)
    # Until the set is without the old copy, nobody could lead without it.
    await cluster.until(lambda standing: len(standing.in_sync) == 2, "a set without the lost disk")
    cluster.replicas[copying].start()
    await asyncio.sleep(random.uniform(0, cluster.lease_s))
    cluster.replicas[master].kill()
    standing = await cluster.led(but=master)
    cluster.replicas[master].start()
    return f"{copying} copied when {master} was killed; {third} had all, {standing.master} leads"


async def pause_master_and_kill_a_follower(cluster: Cluster, random: Random, master: str) -> str:
    """Whoever is left leads alone; the old master knows nothing of that term when it goes on."""
    name = random.choice(_others(master))
    cluster.replicas[master].pause()
    try:
        cluster.replicas[name].kill()
        await cluster.led(but=master)
        await asyncio.sleep(random.uniform(0, cluster.lease_s))
    finally:
        cluster.replicas[master].resume()
    cluster.replicas[name].start()
    return f"{master} stood still, {name} was killed"


async def kill_master_without_etcd(cluster: Cluster, random: Random, master: str) -> str:
    """Nobody can follow it until etcd is back; what it acknowledged until then counts."""
    cluster.etcd.kill()
    await asyncio.sleep(_hold_s(cluster, random))
    cluster.replicas[master].kill()
    await asyncio.sleep(_hold_s(cluster, random))
    cluster.etcd.start()
    standing = await cluster.led(but=master)
    cluster.replicas[master].start()
    return f"{master} was killed while etcd was away, {standing.master} leads"


async def etcd_away(cluster: Cluster, random: Random, master: str) -> str:
    hold_s = _hold_s(cluster, random)
    cluster.etcd.kill()
    await asyncio.sleep(hold_s)
    cluster.etcd.start()
    return f"etcd was away for {hold_s:.1f} s"


async def names_away(cluster: Cluster, random: Random, master: str) -> str:
    hold_s = _hold_s(cluster, random)
    cluster.names.kill()
    await asyncio.sleep(hold_s)
    cluster.names.start()
    return f"the name server was away for {hold_s:.1f} s, and comes back empty"


def _cutting(
    targets: Callable[[str], list[str]], what: str, *, into: bool = True, out: bool = True
) -> Act:
    """Return what cuts the master off from some."""

    async def act(cluster: Cluster, random: Random, master: str) -> str:
        hold_s = _hold_s(cluster, random)
        cluster.cut_off(master, targets(master), into=into, out=out)
        try:
            await asyncio.sleep(hold_s)
        finally:
            cluster.network.mend()
        return f"{master} {what} for {hold_s:.1f} s"

    return act


def _all(master: str) -> list[str]:
    return [*_others(master), ETCD, NAMES, OUTSIDE]


def _etcd(_master: str) -> list[str]:
    return [ETCD]


async def cut_follower_off(cluster: Cluster, random: Random, master: str) -> str:
    name = random.choice(_others(master))
    return await _cutting(_all, "was cut off from all")(cluster, random, name)


async def kill_muted_master(cluster: Cluster, random: Random, master: str) -> str:
    """What it has and its followers have not is gone for good, if they lead before it is back."""
    hold_s = cluster.lease_s * random.uniform(0.1, 0.9)
    cluster.cut_off(master, _others(master), into=False, out=True)
    try:
        await asyncio.sleep(hold_s)
        cluster.replicas[master].kill()
    finally:
        cluster.network.mend()
    standing = await cluster.led(but=master)
    cluster.replicas[master].start()
    return f"{master} was not heard for {hold_s:.1f} s and killed, {standing.master} leads"


async def slow_disk(cluster: Cluster, random: Random, master: str) -> str:
    """Of any replica; see the README for what is done where disks have no limits."""
    name = random.choice((master, *_others(master)))
    volume, process, hold_s = (
        cluster.volumes[name],
        cluster.replicas[name],
        _hold_s(cluster, random),
    )
    if volume.can_be_slow:
        operations = random.choice(SLOW)
        volume.limit(operations)
        try:
            await asyncio.sleep(2 * hold_s)
        finally:
            volume.limit(0)
        return f"the disk of {name} did {operations} writes a second for {2 * hold_s:.1f} s"
    still_s, going_s = (part * cluster.lease_s for part in BURST_LEASES)
    turns = max(1, round(2 * hold_s / (still_s + going_s)))
    try:
        for _ in range(turns):
            process.pause()
            await asyncio.sleep(still_s)
            process.resume()
            await asyncio.sleep(going_s)
    finally:
        process.resume()
    return f"{name} stood still in {turns} turns"


async def change_a_live_key(cluster: Cluster, random: Random, master: str) -> str:
    """A key is set right before the master is killed, another one while nobody leads.

    All replicas have both when they are in sync again, whoever leads then.
    """
    wanted = {key: random.randrange(10_000, 50_000) for key in LIVE_KEYS}
    first, second = LIVE_KEYS
    await cluster.set_live(first, wanted[first])
    cluster.replicas[master].kill()
    await cluster.set_live(second, wanted[second])
    cluster.replicas[master].start()
    await cluster.whole()
    for key, value in wanted.items():
        for name, found in (await cluster.live_values(key)).items():
            if found != str(value):
                raise StuckError(f"{name} has {key}={found}, and {value} was acknowledged")
    return f"{master} was killed between two changes of its configuration"


KILL_LEASES_MAX: Final = 2.0
SWITCH_LEASES_MAX: Final = 1.0

FAULTS: Final[dict[str, Fault]] = {
    "kill_master": Fault(kill_master, leases_max=KILL_LEASES_MAX),
    "kill_master_at_once": Fault(kill_master_at_once, leases_max=KILL_LEASES_MAX),
    "kill_two_masters": Fault(kill_two_masters),
    "kill_follower": Fault(kill_follower, leases_max=KILL_LEASES_MAX),
    "kill_followers": Fault(kill_followers),
    "stop_master": Fault(stop_master, leases_max=KILL_LEASES_MAX),
    "switch_over": Fault(switch_over, leases_max=SWITCH_LEASES_MAX),
    "pause_master": Fault(pause_master),
    "pause_follower": Fault(pause_follower),
    "full_restart": Fault(full_restart),
    "full_stop": Fault(full_stop),
    "lose_disk_of_master": Fault(lose_disk_of_master, leases_max=KILL_LEASES_MAX),
    "kill_master_while_one_copies": Fault(kill_master_while_one_copies),
    "pause_master_and_kill_a_follower": Fault(pause_master_and_kill_a_follower),
    "kill_master_without_etcd": Fault(kill_master_without_etcd),
    "change_a_live_key": Fault(change_a_live_key, leases_max=KILL_LEASES_MAX),
    "etcd_away": Fault(etcd_away),
    "names_away": Fault(names_away),
    "slow_disk": Fault(slow_disk, needs_network=True),
    "cut_master_off": Fault(_cutting(_all, "was cut off from all"), True),
    "cut_master_from_followers": Fault(_cutting(_others, "was cut off from its followers"), True),
    "cut_master_from_etcd": Fault(_cutting(_etcd, "was cut off from etcd"), True),
    "mute_master": Fault(_cutting(_others, "was not heard by its followers", into=False), True),
    "kill_muted_master": Fault(kill_muted_master, True),
    "deaf_master": Fault(_cutting(_others, "did not hear its followers", out=False), True),
    "mute_to_etcd": Fault(_cutting(_etcd, "was not heard by etcd", into=False), True),
    "mute_to_all": Fault(_cutting(_all, "was not heard by anybody", into=False), True),
    "deaf_to_all": Fault(_cutting(_all, "heard nobody", out=False), True),
    "cut_follower_off": Fault(cut_follower_off, True),
}


def kinds(*, with_network: bool) -> list[str]:
    """Those that can be had."""
    return [kind for kind, fault in FAULTS.items() if with_network or not fault.needs_network]
