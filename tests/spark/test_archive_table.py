"""An archive's promises, with a writer that is killed at every change it makes to the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.spark.archive import commits as archive_commits
from skylarkmq.spark.archive.compaction import compact, groups
from skylarkmq.spark.durable_folder import DurableFolder
from skylarkmq.spark.offsets import QueueKey
from tests.spark.support.archives import (
    DAY_MS,
    T0_MS,
    DyingFolder,
    Killed,
    Place,
    append,
    committed,
    listed,
    open_writer,
    run_of,
)

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
EVERYTHING = sorted((r["topic"], "broker-a", r["queueId"], r["queueOffset"])
                    for batch in BATCHES for task in batch for r in task)  # fmt: skip


def places_of(batch: Batch) -> list[Place]:
    return [
        (r["topic"], "broker-a", r["queueId"], r["queueOffset"]) for task in batch for r in task
    ]


def from_the_end(writer: archive_commits.ArchiveWriter, batch: Batch) -> Batch:
    """What a source gives that was told to go on where the table ends."""
    ends = {key: writer.state.next_offset(key) or 0 for key in (Q0, Q1)}
    return [
        [
            r
            for r in task
            if r["queueOffset"] >= ends[QueueKey(r["topic"], "broker-a", r["queueId"])]
        ]
        for task in batch
    ]


def job(files: DurableFolder, done: list[Place], *, again: bool) -> None:
    """Archive everything and compact in between; `done` is what was acknowledged.

    Args:
        again: the source gives all from the beginning, as with a lost or old checkpoint.
    """
    with open_writer(files) as writer:
        writer.begin(START)
        for number, batch in enumerate(BATCHES):
            append(writer, str(number), batch if again else from_the_end(writer, batch))
            done += places_of(batch)
            if number == 1:
                compact(writer, groups(writer.state))


def check(path: Path, done: list[Place]) -> None:
    """What readers see between a kill and the next run."""
    seen = committed(path)
    assert len(set(seen)) == len(seen)
    assert set(done) <= set(seen)
    shown = listed(path)
    assert len(set(shown)) == len(shown)
    assert set(shown) <= set(seen)


def deaths(path: Path, run: Callable[[DurableFolder], None], step: int = 1) -> Iterator[int]:
    """Run with a disk on which the writer dies at change 0, 1, 2 ... until it lives."""
    for changes in count(0, step):
        folder = path / str(changes)
        try:
            run(DyingFolder(folder, changes))
        except Killed:
            yield changes
        else:
            yield changes
            return


@pytest.fixture(autouse=True)
def snapshots_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_commits, "SNAPSHOT_EVERY", 2)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # takes long; no power is lost here


@pytest.mark.parametrize(("again", "step"), [(False, 4), (True, 1)])
def test_killed_anywhere_then_run_again(tmp_path: Path, again: bool, step: int) -> None:
    done: list[Place] = []
    for changes in deaths(tmp_path, lambda files: job(files, done, again=again), step):
        path = tmp_path / str(changes)
        if (path / archive_commits.TABLE).exists():
            check(path, done)
        job(DurableFolder(path), [], again=again)
        assert committed(path) == listed(path) == EVERYTHING, changes
        assert not list((path / archive_commits.STAGING).iterdir())
        done.clear()
    assert changes > 80  # the matrix has not shrunk to nothing


def test_killed_twice(tmp_path: Path) -> None:
    """The run that ends what a killed one left half done is killed itself."""
    for first in deaths(tmp_path / "first", lambda files: job(files, [], again=True), 23):
        for second in count(2, 17):
            path = tmp_path / f"{first}-{second}"
            died = 0
            for files in (DyingFolder(path, first), DyingFolder(path, second)):
                try:
                    job(files, [], again=True)
                except Killed:
                    died += 1
            if (path / archive_commits.TABLE).exists():
                check(path, [])
            job(DurableFolder(path), [], again=True)
            assert committed(path) == listed(path) == EVERYTHING, (first, second)
            if died < 2:
                break
