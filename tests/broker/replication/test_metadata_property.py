"""Random changes at a master, its log cut anywhere: whoever takes over has what was answered."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, NamedTuple

import pytest

from skylarkmq.broker.replication.metadata import metadata_queue, metadata_snapshots
from tests.broker.replication.metadata_rig import Replica, copy
from tests.store.support import inner
from tests.support.amounts import slow
from tests.support.crash_disk import CrashDisk
from tests.support.crash_explorer import seeds
from tests.support.manual_clock import ManualClock

TOPICS = [f"T{number}" for number in range(6)]
GROUPS = [f"g{number}" for number in range(4)]


@pytest.fixture(autouse=True)
def _many_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let them be in several records each, and follow each other soon."""
    monkeypatch.setattr(metadata_queue, "PART_SIZE", 600)
    monkeypatch.setattr(metadata_snapshots, "CHANGES_MAX", 2000)
    monkeypatch.setattr(metadata_snapshots, "SNAPSHOT_SHARE", 1)


class Mark(NamedTuple):
    """A moment of a master's life."""

    end: int  # of its log
    tables: dict[str, Any]
    bodies: dict[tuple[str, int], list[bytes]]


class Life:
    """What happens to a master."""

    def __init__(self, master: Replica, rng: Random) -> None:
        self.master = master
        self.rng = rng
        self.number = 0
        self.marks: list[Mark] = []

    async def run(self, count: int) -> None:
        choices = [
            (6, self.topic),
            (2, self.delete),
            (2, self.put_delayed),
            (3, self.group),
            (1, self.delete_group),
            (8, self.put),
            (6, self.commit),
            (2, self.configure),
            (4, self.wait),
            (3, self.mark),
        ]
        weights = [weight for weight, _ in choices]
        for action in self.rng.choices([action for _, action in choices], weights, k=count):
            result = action()
            if result is not None:
                await result
        await self.mark()

    @property
    def known(self) -> list[str]:
        return [name for name in TOPICS if name in self.master.parts.topics.table]

    def topic(self) -> None:
        name = self.rng.choice(TOPICS)
        if name not in self.master.parts.topics.deleting:
            self.master.topic(name, self.rng.randint(1, 3))

    async def delete(self) -> None:
        if self.known:
            task = self.master.parts.deletion.delete(self.rng.choice(self.known))
            if self.rng.random() < 0.7:
                await self.master.rest()
                assert await task is None

    def group(self) -> None:
        self.master.group(self.rng.choice(GROUPS), retry_max_times=self.rng.randint(0, 9))

    def delete_group(self) -> None:
        name = self.rng.choice(GROUPS)
        self.master.parts.groups.delete(name)
        self.master.parts.offsets.remove_group(name)

    def put(self) -> None:
        for name in self.known:
            if self.rng.random() < 0.5:
                self.number += 1
                size = self.rng.choice((10, 10, 5000, 20_000))
                self.master.put(name, 0, b"%d " % self.number + b"x" * size)

    def put_delayed(self) -> None:
        for name in self.known:
            delayed = inner(name, 0, b"delayed", properties=b"DELAY\x011")
            parked = self.master.store.delay_levels.redirect(delayed, 1)
            self.master.store.put_message(parked, self.master.results.append)

    def commit(self) -> None:
        for name in self.known:
            end = self.master.store.max_offset(name, 0)
            if end:
                self.master.commit(self.rng.choice(GROUPS), name, 0, self.rng.randint(0, end))

    async def configure(self) -> None:
        texts = {"maxTopics": str(self.rng.randint(100, 200))}
        writing = asyncio.ensure_future(self.master.parts.live_config.update(texts))
        await self.master.rest()
        await writing

    async def wait(self) -> None:
        await self.master.advance(self.rng.choice((0.25, 1, 6)))

    async def mark(self) -> None:
        """Note what the master has when all changes are answered."""
        written = asyncio.ensure_future(self.master.parts.metadata.written())
        await self.master.rest()
        await written
        self.marks.append(Mark(self.master.store.commit_log.stored_offset, *state_of(self.master)))


def state_of(replica: Replica) -> tuple[dict[str, Any], dict[tuple[str, int], list[bytes]]]:
    bodies = {
        (name, 0): replica.bodies(name) for name in replica.parts.topics.table if name in TOPICS
    }
    return replica.tables(), bodies


@pytest.mark.parametrize("count", [2, slow(6)])
async def test_a_log_cut_anywhere_gives_the_tables_of_that_moment(count: int) -> None:
    for seed in seeds(count):
        rng = Random(seed)
        clock = ManualClock()
        master = Replica(clock)
        master.start()
        life = Life(await master.lead(), rng)
        await life.run(150)
        follower = Replica(clock)
        follower.start()
        for mark in life.marks:
            if rng.random() < 0.3:  # it stops somewhere in between
                begin = follower.store.commit_log.wrote_offset
                copy(master, follower, rng, upto=rng.randint(begin, mark.end))
                await follower.rest()
                before = follower.tables()
                follower = Replica(clock, await follower.stop())
                folded = follower.start()
                assert folded.cut_to is None
                if folded.is_whole:
                    assert follower.tables() == before, seed
            copy(master, follower, rng, upto=mark.end)
            await follower.rest()
            tables, bodies = state_of(follower)
            assert tables == mark.tables, seed
            assert bodies == mark.bodies, seed
        await follower.lead(2)
        assert state_of(follower)[0] == {**life.marks[-1].tables, "deleting": set()}, seed


@pytest.mark.parametrize("count", [2, slow(4)])
async def test_a_replica_whose_log_was_cut_forgets_what_was_in_the_rest(count: int) -> None:
    for seed in seeds(count):
        rng = Random(seed)
        clock = ManualClock()
        master = Replica(clock)
        master.start()
        life = Life(await master.lead(), rng)
        await life.run(100)
        mark = rng.choice(life.marks)
        ahead = Replica(clock)
        ahead.start()
        copy(master, ahead, rng)
        await ahead.rest()
        # Its files beside the log stay, as they do at a cut.
        disk = await ahead.stop()
        for name in list(disk.contents()):
            if not name.startswith(("config/", "skylarkmq/timer/")):
                disk.unlink(disk.root / name)
        cut = Replica(clock, disk)
        cut.start()
        copy(master, cut, rng, upto=mark.end)
        await cut.rest()
        assert cut.parts.metadata.fold().is_whole
        assert cut.tables() == mark.tables, seed


@pytest.mark.parametrize("count", [2, slow(6)])
async def test_after_a_power_cut_the_tables_are_those_of_the_log_that_is_left(count: int) -> None:
    for seed in seeds(count):
        rng = Random(seed)
        clock = ManualClock()
        master = Replica(clock, flush_disk_type="SYNC_FLUSH")
        master.start()
        life = Life(await master.lead(), rng)
        await life.run(60)
        follower = Replica(clock, flush_disk_type="SYNC_FLUSH")
        follower.start()
        copy(master, follower, rng, upto=rng.choice(life.marks).end)
        if rng.random() < 0.5:
            await follower.rest()
        for victim in (master, follower):
            for state in victim.disk.crash_states(rng, 4):
                await check_crashed(clock, master, victim, victim.disk.crash(state, rng), seed)
        # What was answered under SYNC_FLUSH is there.
        states = master.disk.crash_states(rng, 3)
        for state in states:
            crashed = Replica(clock, master.disk.crash(state, rng))
            folded = crashed.start()
            assert folded.is_whole
            if folded.cut_to is None:
                assert crashed.tables() == life.marks[-1].tables, (seed, state)


async def check_crashed(
    clock: ManualClock, master: Replica, victim: Replica, disk: CrashDisk, seed: int
) -> None:
    crashed = Replica(clock, disk)
    folded = crashed.start()
    if not folded.is_whole:
        assert victim is not master
        return
    end = crashed.store.commit_log.wrote_offset
    like = Replica(clock)
    like.start()
    copy(master, like, upto=end)
    await like.rest()
    assert crashed.tables() == like.tables(), seed
    if folded.cut_to is None:  # it goes on
        copy(master, crashed)
        await crashed.rest()
        assert state_of(crashed) == state_of(master), seed
