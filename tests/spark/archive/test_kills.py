"""An archive's promises: a writer that ends between any two steps, and a machine without power."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from skylarkmq.spark.archive import delta_log, durability
from skylarkmq.spark.archive.delta_log import DeltaLog
from skylarkmq.spark.archive.removal import erase, expire, vacuum
from skylarkmq.spark.archive.state import ArchiveError
from skylarkmq.spark.archive.table import ArchiveTable
from skylarkmq.spark.offsets import QueueKey
from tests.spark.support.archives import (
    DAY_MS,
    T0_MS,
    Killed,
    Place,
    append,
    commit,
    committed,
    dying_after,
    open_table,
    reports_of,
    run_of,
)
from tests.support.amounts import slow

Batch = list[list[dict[str, Any]]]
Q0, Q1 = QueueKey("%RETRY%g", "broker-a", 0), QueueKey("%RETRY%g", "broker-a", 1)

# Three batches of two tasks; the second one's rows lie in two dates.
BATCHES: list[Batch] = [
    [run_of(Q0.topic, 0, 0, 3), run_of(Q1.topic, 1, 5, 7)],
    [
        run_of(Q0.topic, 0, 3, 5) + run_of(Q0.topic, 0, 5, 6, stored_ms=T0_MS + DAY_MS),
        run_of(Q1.topic, 1, 7, 9, stored_ms=T0_MS + DAY_MS),
    ],
    [run_of(Q0.topic, 0, 6, 8), []],
]
START = {Q0: 0, Q1: 5}
ERASED = [(Q0.topic, "broker-a", 0, 2)]
"""Has the key k2, of the first batch."""
EXPIRED = [place for place in ((Q0.topic, "broker-a", 0, 5), (Q1.topic, "broker-a", 1, 7),
                               (Q1.topic, "broker-a", 1, 8))]  # fmt: skip


def places_of(batch: Batch) -> list[Place]:
    return [
        (r["topic"], "broker-a", r["queueId"], r["queueOffset"]) for task in batch for r in task
    ]


EVERYTHING = sorted(place for batch in BATCHES for place in places_of(batch))


def from_the_end(table: ArchiveTable, batch: Batch) -> Batch:
    """What a source gives that was told to go on where the table ends."""
    ends = {key: table.state.next_offset(key) or 0 for key in (Q0, Q1)}
    return [
        [
            r
            for r in task
            if r["queueOffset"] >= ends[QueueKey(r["topic"], "broker-a", r["queueId"])]
        ]
        for task in batch
    ]


def job(path: Path, done: list[Place], *, again: bool) -> None:
    """Archive everything; `done` is what was acknowledged.

    Args:
        again: the source gives all from the beginning, and tasks leave out what is there.
    """
    table = open_table(path)
    table.begin(START)
    for batch in BATCHES:
        if again:
            known = table.state.spans.copy()
            commit(table, reports_of(table, batch, known=known))
        else:
            append(table, *from_the_end(table, batch))
        done += places_of(batch)


def deaths(path: Path, run: Callable[[Path], object], step: int = 1) -> Iterator[int]:
    """Run in a folder of its own so that the writer dies before step 0, 1, 2 ... until it lives."""
    for steps in count(0, step):
        folder = path / str(steps)
        try:
            with dying_after(steps):
                run(folder)
        except Killed:
            yield steps
        else:
            yield steps
            return


@pytest.fixture(autouse=True)
def checkpoints_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_log, "CHECKPOINT_EVERY", 2)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # takes long; no power is lost here


@pytest.mark.parametrize("every", [15, slow(1)])
@pytest.mark.parametrize("again", [False, True], ids=["goes on", "from the beginning"])
def test_killed_anywhere_then_run_again(tmp_path: Path, again: bool, every: int) -> None:
    done: list[Place] = []
    for steps in deaths(tmp_path, lambda path: job(path, done, again=again), every):
        path = tmp_path / str(steps)
        seen = committed(path)
        assert len(set(seen)) == len(seen)
        assert set(done) <= set(seen)
        job(path, [], again=again)
        assert committed(path) == EVERYTHING, steps
        done.clear()
    assert steps > 40  # the matrix has not shrunk to nothing


@pytest.mark.parametrize(("one", "other"), [(41, 23), slow(13, 11)])
def test_killed_twice(tmp_path: Path, one: int, other: int) -> None:
    """The run that goes on after a killed one is killed itself."""
    for first in deaths(tmp_path / "first", lambda path: job(path, [], again=False), one):
        for second in count(2, other):
            path = tmp_path / f"{first}-{second}"
            died = 0
            for steps in (first, second):
                try:
                    with dying_after(steps):
                        job(path, [], again=False)
                except Killed:
                    died += 1
            job(path, [], again=False)
            assert committed(path) == EVERYTHING, (first, second)
            if died < 2:
                break


@pytest.mark.parametrize("every", [7, slow(1)])
@pytest.mark.parametrize("what", ["erase", "expire"])
def test_killed_while_messages_go(tmp_path: Path, what: str, every: int) -> None:
    """All of it has gone or nothing, and the same command does the rest; nothing comes back."""
    job(tmp_path / "made", [], again=False)

    def remove(path: Path) -> None:
        if not path.exists():
            shutil.copytree(tmp_path / "made", path)
        table = open_table(path)
        if what == "erase":
            erase(table, "keys = 'k2 q0'")
        else:
            expire(table, before="2026-01-03", topics=[Q0.topic, "none"])
        vacuum(table, retention_hours=0)

    gone = set(ERASED if what == "erase" else EVERYTHING)
    for steps in deaths(tmp_path, remove, every):
        path = tmp_path / str(steps)
        assert committed(path) in (EVERYTHING, left := sorted(set(EVERYTHING) - gone)), steps
        remove(path)
        assert committed(path) == left
        job(path, [], again=True)  # whatever the source gives again
        assert committed(path) == left
        files = {str(p.relative_to(path)) for p in path.glob("topic=*/**/*.parquet")}
        named = {file.name for file in open_table(path).files()}
        # What a killed erasure wrote and did not commit holds none of what was to go.
        assert named <= files and len(files - named) <= 1
    assert steps > 5


class Disk:
    """Remembers what was synced, and takes the power away."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._synced: dict[Path, int] = {}
        self._entries: set[Path] = set()
        monkeypatch.setattr(durability, "sync_path", self.sync)

    def sync(self, path: Path) -> None:
        if path.is_dir():
            self._entries |= set(path.iterdir())
        else:
            self._synced[path] = path.stat().st_ino

    def cut(self, chance: random.Random) -> None:
        """Leave of each file that was not synced nothing, an empty or a cut one, or all of it."""
        for folder, _, names in os.walk(self._root, topdown=False):
            for path in (Path(folder, name) for name in names):
                synced = self._synced.get(path) == path.stat().st_ino
                fate = chance.choice(("gone", "empty", "cut", "whole"))
                if path not in self._entries and fate == "gone":
                    path.unlink()
                elif not synced and fate != "whole":
                    size = path.stat().st_size
                    os.truncate(path, size // 2 if fate == "cut" else 0)
            if Path(folder) not in self._entries and chance.random() < 0.3:
                shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("seed", "every"), [(0, 17), (4, 17), *(slow(seed, 5) for seed in range(8))]
)
def test_without_power_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, every: int
) -> None:
    """What was acknowledged is there after any power cut, and a run goes on from any leftover."""
    chance = random.Random(seed)
    done: list[Place] = []
    for steps in count(seed, every):
        path = tmp_path / str(steps)
        with monkeypatch.context() as patch:
            disk = Disk(path, patch)
            try:
                with dying_after(steps):
                    job(path, done, again=False)
            except Killed:
                is_alive = False
            else:
                is_alive = True
            disk.cut(chance)
            made = path.exists() and DeltaTable.is_deltatable(str(path))
            if made or done:
                table = open_table(path)  # this mends
                seen = committed(path)
                assert set(done) <= set(seen), (seed, steps)
                assert len(set(seen)) == len(seen)
                assert table.state.present().count() == len(seen)
                assert not table.state.note
            else:
                shutil.rmtree(path, ignore_errors=True)
        job(path, [], again=False)
        assert committed(path) == EVERYTHING, (seed, steps)
        done.clear()
        if is_alive:
            return


class Nothing(random.Random):
    """The fate of what was not synced: nothing is left of it."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


def test_log_files_go_after_the_checkpoint_that_stands_for_them_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power goes when the log is cleaned up: of the commits only the checkpoint is left."""
    path = tmp_path / "table"
    disk = Disk(path, monkeypatch)
    open_table(path)
    at_once = {"delta.logRetentionDuration": "interval 0 days"}
    DeltaTable(str(path)).alter.set_table_properties(at_once)
    clean_up = DeltaLog._clean_up

    def cleaned_up_and_killed(log: DeltaLog) -> None:
        clean_up(log)
        raise Killed

    monkeypatch.setattr(DeltaLog, "_clean_up", cleaned_up_and_killed)
    table = open_table(path)
    with pytest.raises(Killed):
        for batch in BATCHES:
            append(table, *batch)
    assert not (path / "_delta_log" / f"{0:020d}.json").exists()
    before = committed(path)
    disk.cut(Nothing())
    assert not open_table(path).state.note
    assert committed(path) == before == sorted(places_of(BATCHES[0]))


def test_a_log_cut_elsewhere_is_not_mended(tmp_path: Path) -> None:
    """Only the newest file can be cut by a power failure; a hole before it is damage."""
    job(tmp_path, [], again=False)
    for path in (tmp_path / "_delta_log").glob("*checkpoint*"):
        path.unlink()
    cut = tmp_path / "_delta_log" / f"{2:020d}.json"
    os.truncate(cut, cut.stat().st_size // 2)
    with pytest.raises(ArchiveError, match="cannot be read"):
        open_table(tmp_path)
    assert cut.exists()
