"""Waiting entries come out in one order, whatever became a run, was merged or lost in a crash."""

from __future__ import annotations

import random
from heapq import heappop, heappush

import pytest

from skylarkmq.store.timer import index as index_module
from skylarkmq.store.timer.index import GREATEST, TimerIndex, key
from skylarkmq.store.timer.run_file import ENTRY, Merge, RunPart, read_entries, run_path, split
from skylarkmq.store.timer.run_file import write_run as write
from tests.support.crash_disk import CrashDisk


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "MEMORY_MAX", 50)
    monkeypatch.setattr(index_module, "FAN_IN", 4)


class Rig:
    """An index with its files; jobs run at once."""

    def __init__(self, disk: CrashDisk | None = None) -> None:
        self.disk = disk or CrashDisk()
        self.folder = self.disk.root / "timer"
        self.disk.make_folder(self.folder)
        self.index = TimerIndex()
        self.number = 0
        self.offset = 0

    def insert(self, due_ms: int) -> bytes:
        entry = ENTRY.pack(due_ms, self.offset, self.offset * 100, 100)
        self.offset += 1
        self.index.insert(entry)
        self.index.has_read(self.offset)
        return entry

    def freeze(self) -> None:
        self.number += 1
        run = self.index.freeze(self.number, self.offset)
        if run is not None:
            path = run_path(self.folder, run.number)
            assert write(self.disk, path, b"".join(run.entries[: run.count])) == run.count
            self.index.run_written(run)

    def load(self) -> None:
        for run in self.index.unloaded():
            part = RunPart(run_path(self.folder, run.number), run.count, run.taken)
            run.entries, run.next = split(read_entries(self.disk, part)), 0

    def take(self, bound: bytes = GREATEST, count: int = 7) -> list[bytes]:
        self.load()
        self.index.take(bound, count, 1 << 30)
        taken = [item.entry for item in self.index.hand if not item.is_void]
        self.index.confirm(len(self.index.hand))
        return taken

    def take_all(self, bound: bytes = GREATEST) -> list[bytes]:
        found: list[bytes] = []
        while entries := self.take(bound):
            found += entries
        return found

    def merge(self, between: list[bytes] | None = None) -> bool:
        parts = self.index.to_merge()
        if not parts:
            return False
        self.index.merging = parts
        starts = [run.consumed for run in parts]
        self.number += 1
        path = run_path(self.folder, self.number)
        merge = Merge(
            self.disk,
            path,
            [RunPart(run_path(self.folder, run.number), run.count, run.consumed) for run in parts],
        )
        count = None
        while count is None:
            count = merge.step()
            if between is not None:
                between += self.take()
        self.index.replace_merged(self.number, count, starts)
        return True


@pytest.mark.parametrize("seed", range(6))
def test_entries_come_out_in_order_through_memory_runs_and_merges(seed: int) -> None:
    rng, rig = random.Random(seed), Rig()
    waiting: list[bytes] = []
    taken: list[bytes] = []
    expected: list[bytes] = []
    for _ in range(3000):
        action = rng.random()
        if action < 0.7:
            heappush(waiting, rig.insert(rng.randrange(1000)))
            if rig.index.must_freeze(rig.offset):
                rig.freeze()
        elif action < 0.9:
            entries = rig.take(count=rng.randrange(1, 9))
            expected += [heappop(waiting) for _ in entries]
            taken += entries
        else:
            during: list[bytes] = []
            if rig.merge(during):
                taken += during
                expected += [heappop(waiting) for _ in during]
        assert rig.index.waiting_count == len(waiting)
        first = waiting[0] if waiting else GREATEST
        assert rig.index.position <= first
    taken += rig.take_all()
    assert taken == expected + sorted(waiting)
    assert rig.index.runs == []


def test_due_times_bound_what_is_taken() -> None:
    rig = Rig()
    entries = [rig.insert(due) for due in (5, 3, 9, 3)]
    assert rig.take(key(5, 0)) == [entries[1], entries[3]]
    assert rig.take(key(6, 0)) == [entries[0]]
    assert rig.index.head() == entries[2]


def test_a_batch_is_bounded_in_bytes_but_never_empty() -> None:
    rig = Rig()
    for due in range(5):
        rig.insert(due)
    rig.index.take(GREATEST, 100, 250)
    assert len(rig.index.hand) == 2
    rig.index.confirm(2)
    rig.index.take(GREATEST, 100, 1)
    assert len(rig.index.hand) == 1


def test_what_is_in_hand_still_waits() -> None:
    rig = Rig()
    first, _ = rig.insert(1), rig.insert(2)
    rig.index.take(GREATEST, 2, 1000)
    assert rig.index.waiting_count == 2
    assert rig.index.position == first[:16]
    assert rig.index.freeze(1, 2) is None  # nothing is left for a run, and the base must stay
    assert rig.index.base == 0
    rig.index.confirm(1)
    assert (rig.index.waiting_count, rig.index.position) == (1, key(2, 1))


def test_memory_becomes_a_run_when_reading_again_would_take_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_module, "REREAD_MAX", 10)
    rig = Rig()
    rig.insert(1 << 40)
    for _ in range(8):
        rig.insert(1)
        rig.take(key(2, 0))
    assert not rig.index.must_freeze(rig.offset)
    rig.insert(1)
    assert rig.index.must_freeze(rig.offset)
    rig.freeze()
    assert rig.index.base == rig.offset
    assert rig.index.waiting_count == 2


def test_an_empty_memory_moves_the_base_along() -> None:
    rig = Rig()
    rig.insert(1)
    assert rig.index.base == 0
    rig.take()
    rig.index.has_read(5)
    assert rig.index.base == 5


def test_a_state_comes_back() -> None:
    rig = Rig()
    entries = [rig.insert(due) for due in range(100)]
    rig.freeze()
    assert rig.take() == entries[:7]
    late = rig.insert(500)
    state = rig.index.state()
    again = Rig(rig.disk)
    again.index.load(state)
    assert again.index.base == 100
    assert again.index.waiting_count == 93
    assert again.index.position == key(7, 7)
    again.offset = 100
    again.index.insert(late)
    assert again.take_all() == [*entries[7:], late]


@pytest.mark.parametrize("runs", [[[1, 0, 5, 5, 0, 0]], [[1, 0, 5]], [[1, 0, "x", 0, 0, 0]]])
def test_a_state_that_is_none_is_refused(runs: list[list[object]]) -> None:
    state = {"base": 0, "voided": 0, "position": [0, 0], "runs": runs}
    with pytest.raises((KeyError, TypeError, ValueError)):
        TimerIndex().load(state)


def test_entries_with_a_newer_copy_are_void() -> None:
    rig = Rig()
    entries = [rig.insert(due) for due in (4, 3, 2, 1)]
    rig.freeze()
    rig.index.void_below = 200
    rig.index.rolled(rig.index.runs[0], 4, 2)
    assert rig.index.waiting_count == 2
    assert rig.take() == [entries[3], entries[2]]
    assert (rig.index.waiting_count, rig.index.voided) == (0, 0)


def test_spent_runs_become_garbage_once() -> None:
    rig = Rig()
    for _ in range(4):
        rig.insert(1)
        rig.freeze()
    assert rig.merge()
    assert sorted(rig.index.garbage) == [1, 2, 3, 4]
    rig.take()
    assert sorted(rig.index.garbage) == [1, 2, 3, 4, 5]
    assert rig.index.position == GREATEST
