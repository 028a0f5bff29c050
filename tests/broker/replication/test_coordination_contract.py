"""What replicas may rely on, held against a real etcd and against the one that simulations use."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import count
from random import Random
from typing import Protocol

import pytest

from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.broker.base.endpoints import read_endpoint
from skylarkmq.broker.net.http_client import connect
from skylarkmq.broker.replication.failover.coordination import (
    Change,
    CompactedError,
    Condition,
    Coordination,
    Entry,
    Event,
    LeaseEndedError,
    Snapshot,
    Swapped,
)
from skylarkmq.broker.replication.failover.etcd import Etcd, EtcdConfig, prefix_of
from skylarkmq.remoting.tls import ClientTls
from tests.support.etcd_process import EtcdProcess
from tests.support.patience import LIMIT_S, until
from tests.support.simulated_coordination import Engine, SimulatedCoordination

_numbers = count()


class Rig(Protocol):
    """An engine that is ready, and ways to it."""

    def way(self, broker_name: str = "broker-a") -> Coordination:
        """Return a new way to the keys of a broker name."""
        ...

    async def compact(self, revision: int) -> None:
        """Let the engine forget its history up to the present revision, which is handed in."""
        ...


class SimulatedRig:
    def __init__(self) -> None:
        self.clock = SystemClock(asyncio.get_running_loop())
        self.engine = Engine(self.clock)

    def way(self, broker_name: str = "broker-a") -> Coordination:
        return SimulatedCoordination(self.engine, broker_name, self.clock, timeout_s=LIMIT_S)

    async def compact(self, revision: int) -> None:
        assert revision == self.engine.revision
        self.engine.compact()


class EtcdRig:
    def __init__(self, etcd: EtcdProcess) -> None:
        self.clock = SystemClock(asyncio.get_running_loop())
        self.endpoint = read_endpoint(etcd.url)
        self.config = EtcdConfig(endpoints=(self.endpoint,), request_limit_s=LIMIT_S)
        self.cluster = f"test {next(_numbers)}"
        self.ways: list[Etcd] = []

    def way(self, broker_name: str = "broker-a") -> Coordination:
        self.ways.append(Etcd(self.config, prefix_of(self.cluster, broker_name), self.clock))
        return self.ways[-1]

    async def compact(self, revision: int) -> None:
        connection = await connect(self.endpoint, ClientTls(None))
        answer = await connection.post("/v3/kv/compaction", b'{"revision":"%d"}' % revision)
        assert answer.status == 200, answer
        connection.abort()

    def close(self) -> None:
        for way in self.ways:
            way.close()


@pytest.fixture(params=["simulated", pytest.param("etcd", marks=pytest.mark.timing)])
async def rig(request: pytest.FixtureRequest) -> AsyncGenerator[Rig]:
    if request.param == "simulated":
        yield SimulatedRig()
        return
    made = EtcdRig(request.getfixturevalue("shared_etcd"))
    yield made
    made.close()


async def put(way: Coordination, key: str, value: bytes, lease: int = 0) -> int:
    """Put a key without a condition and return the revision."""
    assert await way.swap([], [Change(key, value, lease)]) is Swapped.DONE
    return (await way.read()).entries[key].revision


async def next_event(watch: AsyncGenerator[Event]) -> Event:
    async with asyncio.timeout(LIMIT_S):
        return await anext(watch)


# Keys and values


async def test_a_key_is_read_as_it_was_put(rig: Rig) -> None:
    way = rig.way()
    before = await way.read()
    assert before.entries == {}
    assert before.revision >= 1

    revision = await put(way, "alive/ü b/%2F", bytes(range(256)))
    await put(way, "state", b"")

    after = await rig.way().read()
    assert after.entries == {
        "alive/ü b/%2F": Entry("alive/ü b/%2F", bytes(range(256)), revision, 0),
        "state": Entry("state", b"", after.revision, 0),
    }
    assert after.revision > revision > before.revision


async def test_a_broker_name_sees_its_own_keys_alone(rig: Rig) -> None:
    await put(rig.way("broker-a"), "state", b"a")
    for name in ("broker-a/", "broker", "broker-a/alive", "broker-a0", "%", "broker-b"):
        assert (await rig.way(name).read()).entries == {}, name
    await put(rig.way("broker-b"), "state", b"b")
    assert (await rig.way("broker-a").read()).entries["state"].value == b"a"


# Swaps


async def test_a_swap_happens_if_all_conditions_hold(rig: Rig) -> None:
    way = rig.way()
    first = await put(way, "state", b"1")
    lease = await way.grant(60)
    await put(way, "master", b"a", lease)

    done = await way.swap(
        [Condition("state", first), Condition("master", lease=lease), Condition("other", 0, 0)],
        [Change("state", b"2"), Change("other", b"x"), Change("master", None)],
    )

    assert done is Swapped.DONE
    read = await way.read()
    assert {key: entry.value for key, entry in read.entries.items()} == {
        "state": b"2",
        "other": b"x",
    }
    assert {entry.revision for entry in read.entries.values()} == {read.revision}


@pytest.mark.parametrize(
    "condition",
    [
        Condition("state", 0),
        Condition("state", 1),
        Condition("missing", 1),
        Condition("state", lease=7),
        Condition("missing", lease=7),
        Condition("leased", lease=0),
        Condition("leased", 0, 0),
    ],
    ids=str,
)
async def test_a_swap_is_refused_whole_if_one_condition_fails(
    rig: Rig, condition: Condition
) -> None:
    way = rig.way()
    revision = await put(way, "state", b"1")
    await put(way, "leased", b"x", await way.grant(60))
    before = await way.read()

    changes = [Change("state", b"2"), Change("new", b"x"), Change("leased", None)]
    refused = await way.swap([Condition("state", revision), condition], changes)

    assert refused is Swapped.REFUSED
    assert await way.read() == before


async def test_a_swap_may_change_nothing(rig: Rig) -> None:
    way = rig.way()
    revision = await put(way, "state", b"1")
    before = await way.read()
    assert await way.swap([Condition("state", revision)], []) is Swapped.DONE
    assert await way.swap([Condition("state", revision - 1)], []) is Swapped.REFUSED
    assert await way.swap([], [Change("missing", None)]) is Swapped.DONE
    assert await way.read() == before


async def test_a_put_of_the_same_value_is_a_change(rig: Rig) -> None:
    way = rig.way()
    first = await put(way, "state", b"1")
    assert await put(way, "state", b"1") > first
    assert await way.swap([Condition("state", first)], [Change("state", b"2")]) is Swapped.REFUSED


async def test_one_of_many_swaps_at_once_wins(rig: Rig) -> None:
    ways = [rig.way() for _ in range(5)]
    revision = await put(ways[0], "state", b"0")

    async def claim(number: int) -> Swapped:
        change = Change("state", b"%d" % number)
        return await ways[number].swap([Condition("state", revision)], [change])

    ends = await asyncio.gather(*map(claim, range(5)))

    assert sorted(end.name for end in ends) == ["DONE", *["REFUSED"] * 4]
    winner = ends.index(Swapped.DONE)
    assert (await ways[0].read()).entries["state"].value == b"%d" % winner


async def test_many_count_together_and_none_is_lost(rig: Rig) -> None:
    await put(rig.way(), "count", b"0")

    async def add(way: Coordination, times: int) -> None:
        while times:
            entry = (await way.read()).entries["count"]
            change = Change("count", b"%d" % (int(entry.value) + 1))
            end = await way.swap([Condition("count", entry.revision)], [change])
            times -= end is Swapped.DONE

    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*(add(rig.way(), 5) for _ in range(4)))

    assert (await rig.way().read()).entries["count"].value == b"20"


async def test_what_no_engine_is_asked(rig: Rig) -> None:
    way = rig.way()
    with pytest.raises(ValueError, match="once"):
        await way.swap([], [Change("state", b"1"), Change("state", b"2")])
    assert (await way.read()).entries == {}


# Leases


async def test_keys_go_with_their_lease(rig: Rig) -> None:
    way = rig.way()
    mine, other = await way.grant(60), await way.grant(60)
    assert mine != other
    await put(way, "master", b"a", mine)
    await put(way, "alive/a", b"a", mine)
    await put(way, "alive/b", b"b", other)
    revision = await put(way, "state", b"1")
    assert (await way.read()).entries["master"].lease == mine

    await way.revoke(mine)

    assert set((await way.read()).entries) == {"alive/b", "state"}
    async with aclosing(way.watch(revision)) as watch:
        event = await next_event(watch)
    assert event.entries == {"master": None, "alive/a": None}


async def test_a_put_binds_a_key_anew(rig: Rig) -> None:
    way = rig.way()
    first, second = await way.grant(60), await way.grant(60)
    await put(way, "freed", b"1", first)
    await put(way, "moved", b"1", first)
    await put(way, "freed", b"2")
    await put(way, "moved", b"2", second)

    await way.revoke(first)
    assert set((await way.read()).entries) == {"freed", "moved"}
    await way.revoke(second)
    assert set((await way.read()).entries) == {"freed"}


async def test_a_lease_that_has_ended_binds_nothing(rig: Rig) -> None:
    way = rig.way()
    lease = await way.grant(60)
    assert await way.renew(lease)
    await way.revoke(lease)
    await way.revoke(lease)
    assert not await way.renew(lease)
    assert not await way.renew(999_999)
    before = await way.read()

    with pytest.raises(LeaseEndedError, match=str(lease)):
        await way.swap([], [Change("state", b"1"), Change("master", b"a", lease)])
    assert await way.read() == before

    refused = await way.swap([Condition("state", 5)], [Change("master", b"a", lease)])
    assert refused is Swapped.REFUSED


@pytest.mark.timing
async def test_a_lease_that_nobody_renews_ends(rig: Rig) -> None:
    way = rig.way()
    lease = await way.grant(1)
    revision = await put(way, "state", b"1")
    await put(way, "master", b"a", lease)

    async with aclosing(rig.way().watch(revision)) as watch:
        told = [await next_event(watch), await next_event(watch)]

    assert [set(event.entries.values()) == {None} for event in told] == [False, True]
    assert set((await way.read()).entries) == {"state"}
    assert not await way.renew(lease)


# Watches


async def test_a_watch_tells_each_change_whole_and_in_order(rig: Rig) -> None:
    way = rig.way()
    revision = await put(way, "state", b"0")
    async with aclosing(rig.way().watch(revision)) as watch:
        waiting = asyncio.ensure_future(next_event(watch))
        await way.swap([], [Change("state", b"1"), Change("master", b"a")])
        first = await waiting
        await put(rig.way("broker-b"), "state", b"not ours")
        for value in (b"2", b"3"):
            await put(way, "state", value)
        await way.swap([], [Change("state", None), Change("missing", None)])
        rest = [await next_event(watch) for _ in range(3)]

    assert first.entries == {
        "state": Entry("state", b"1", first.revision, 0),
        "master": Entry("master", b"a", first.revision, 0),
    }
    assert [set(event.entries) for event in rest] == [{"state"}] * 3
    assert [entry and entry.value for event in rest for entry in event.entries.values()] == [
        b"2",
        b"3",
        None,
    ]
    revisions = [revision, *(event.revision for event in (first, *rest))]
    assert revisions == sorted(set(revisions))
    assert (await way.read()).revision == revisions[-1]


async def test_a_watch_begins_in_the_past(rig: Rig) -> None:
    way = rig.way()
    revisions = [await put(way, "state", b"%d" % number) for number in range(4)]
    for place, after in enumerate(revisions[:-1]):
        async with aclosing(way.watch(after)) as watch:
            told = [await next_event(watch) for _ in revisions[place + 1 :]]
        assert [event.revision for event in told] == revisions[place + 1 :]


async def test_a_watch_of_what_is_forgotten_says_so(rig: Rig) -> None:
    way = rig.way()
    first = await put(way, "state", b"1")
    await put(way, "state", b"2")
    await way.swap([], [Change("state", None)])
    last = (await way.read()).revision
    await rig.compact(last)

    # Also from just before a deletion that is the last thing forgotten.
    for after in (first, last - 1):
        async with aclosing(way.watch(after)) as watch:
            with pytest.raises(CompactedError, match="read again"):
                await next_event(watch)

    async with aclosing(way.watch((await way.read()).revision)) as watch:
        waiting = asyncio.ensure_future(next_event(watch))
        await put(rig.way(), "state", b"3")
        assert set((await waiting).entries) == {"state"}


async def test_watches_do_not_disturb_each_other(rig: Rig) -> None:
    way = rig.way()
    revision = await put(way, "state", b"0")
    async with aclosing(way.watch(revision)) as kept:
        async with aclosing(way.watch(revision)) as ended:
            await put(way, "state", b"1")
            assert (await next_event(ended)).entries.keys() == {"state"}
        await put(way, "state", b"2")
        told = [await next_event(kept) for _ in range(2)]
    assert len({event.revision for event in told}) == 2


@pytest.mark.timing
async def test_a_swap_is_seen_by_all_reads_after_it(rig: Rig) -> None:
    writer, reader = rig.way(), rig.way()
    for number in range(20):
        await put(writer, "state", b"%d" % number)
        assert (await reader.read()).entries["state"].value == b"%d" % number
    await until(lambda: True)


# Both at once


class Told:
    """What one engine did, in words that do not depend on its numbers."""

    def __init__(self, rig: Rig) -> None:
        self.way = rig.way()
        self.leases = [0]
        self.revisions = [0]
        self.began: Snapshot | None = None

    async def do(self, seed: int) -> list[object]:
        """Do one thing that the seed says, and return its end and all keys."""
        random = Random(seed)
        if self.began is None:
            self.began = await self.way.read()
        end: object = None
        lease = random.randrange(len(self.leases))
        kind = random.choices(["swap", "grant", "revoke", "renew"], [8, 2, 1, 1])[0]
        if kind == "grant":
            self.leases.append(await self.way.grant(600))
        elif kind == "revoke" and lease:
            await self.way.revoke(self.leases[lease])
        elif kind == "renew" and lease:
            end = await self.way.renew(self.leases[lease])
        elif kind == "swap":
            end = await self._swap(random)
        read = await self.way.read()
        self.revisions += sorted({e.revision for e in read.entries.values()} - {*self.revisions})
        return [kind, end, *(self._plain(read.entries[key]) for key in sorted(read.entries))]

    async def history(self) -> list[object]:
        """Return what a watch tells of all of it."""
        assert self.began is not None
        assert await self.way.swap([], [Change("end", b"")]) is Swapped.DONE
        told: list[object] = []
        async with aclosing(self.way.watch(self.began.revision)) as watch:
            while "end" not in (event := await next_event(watch)).entries:
                entries = sorted(event.entries.items())
                told.append(
                    [(key, entry and (entry.value, entry.lease > 0)) for key, entry in entries]
                )
        return told

    async def _swap(self, random: Random) -> object:
        keys = ["state", "master", "alive/a"]
        entries = (await self.way.read()).entries

        def condition(key: str) -> Condition:
            entry = entries.get(key)
            old, any_lease = random.choice(self.revisions), random.choice(self.leases)
            revisions = [None, 0, old, *([entry.revision] * 4 if entry else [0])]
            leases = [None, None, 0, any_lease, entry.lease if entry else 0]
            return Condition(key, random.choice(revisions), random.choice(leases))

        def change(key: str) -> Change:
            if random.random() < 0.3:
                return Change(key, None)
            return Change(key, random.randbytes(2), random.choice([0, *self.leases]))

        conditions = [condition(key) for key in random.sample(keys, random.randrange(3))]
        changes = [change(key) for key in random.sample(keys, random.randrange(1, 4))]
        try:
            return await self.way.swap(conditions, changes)
        except LeaseEndedError:
            return LeaseEndedError

    def _plain(self, entry: Entry) -> object:
        place, lease = self.revisions.index(entry.revision), self.leases.index(entry.lease)
        return entry.key, entry.value, place, lease


@pytest.mark.timing
@pytest.mark.parametrize("seed", range(3))
async def test_any_story_goes_the_same_way_in_both(shared_etcd: EtcdProcess, seed: int) -> None:
    seed = int(os.environ.get("SKYLARKMQ_SEED", seed))
    etcd_rig = EtcdRig(shared_etcd)
    real, simulated = Told(etcd_rig), Told(SimulatedRig())
    ends: set[object] = set()
    for step in range(100):
        one, other = await real.do(seed * 1000 + step), await simulated.do(seed * 1000 + step)
        assert one == other, f"step {step}; replay with SKYLARKMQ_SEED={seed}"
        ends.add(one[1])
    assert {Swapped.DONE, Swapped.REFUSED, LeaseEndedError} <= ends
    assert await real.history() == await simulated.history()
    etcd_rig.close()
