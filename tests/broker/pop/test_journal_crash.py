"""The journal through kills and power cuts, wherever they come: what was told is there.

What is loaded is the state after some record that was noted, none of those before it left out, and
not before the last one that was told to be kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from random import Random
from typing import NamedTuple

import pytest

from skylarkmq.broker.pop import journal as journal_module
from skylarkmq.broker.pop import journal_folder
from skylarkmq.store.pop import journal_file
from skylarkmq.store.pop.journal_records import (
    Changed,
    Done,
    Forgot,
    Key,
    KeyState,
    Left,
    Moved,
    PopState,
    Record,
    Row,
    Took,
)
from tests.broker.pop.journal_rig import INTERVAL_S, JournalRig
from tests.support.amounts import slow
from tests.support.crash_disk import CrashDisk
from tests.support.crash_explorer import CrashFailure, seeds
from tests.support.crash_states import CrashState, Keep, Names
from tests.support.manual_clock import settle

KEYS = [Key(f"G{number % 3}", f"T{number % 2}", number % 3, number) for number in range(9)]
STATES, STEPS = 9, 250


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_folder, "ALLOCATION", 4096)
    monkeypatch.setattr(journal_folder, "RESERVE", 1024)
    monkeypatch.setattr(journal_folder, "CHANGE_SIZE", 3000)
    monkeypatch.setattr(journal_folder, "CHANGE_TIMES", 2)
    monkeypatch.setattr(journal_module, "SLICE_ROWS", 4)


class Point(NamedTuple):
    """A disk at some step, and what had been noted and told by then."""

    disk: CrashDisk
    op: str
    base: PopState
    noted: list[Record]
    written: int  # records that were told to be kept by the flush mode
    synced: int  # records that outlast a power cut


class Machine(JournalRig):
    """A journal that is told random things by somebody who remembers what he was told."""

    def __init__(self, rng: Random, disk: CrashDisk, *, sync: bool) -> None:
        super().__init__(disk, sync=sync)
        self.sync = sync
        self.rng = rng
        self.written = 0
        self.synced = 0
        self.keeps_all = False
        self._kept: dict[tuple[int, str], Point] = {}
        self._steps: Counter[str] = Counter()
        self.base = PopState()

    def begin(self) -> None:
        self.base = deepcopy(self.start())
        assert isinstance(self.files, CrashDisk)
        self.files.before_step = self._before

    def _before(self, op: str, _path: object) -> None:
        """Keep a moment before each kind of step, each as likely as the others."""
        self._steps[op] += 1
        if self.keeps_all or self.rng.random() * self._steps[op] < 1:
            self._kept[self._steps[op] if self.keeps_all else 0, op] = self._point(op)

    @property
    def points(self) -> list[Point]:
        return list(self._kept.values())

    def _point(self, op: str) -> Point:
        assert isinstance(self.files, CrashDisk)
        return Point(
            self.files.snapshot(), op, self.base, list(self.noted), self.written, self.synced
        )

    def ask(self, *, is_synced: bool = False) -> None:
        count = len(self.noted)

        def told(error: BaseException | None) -> None:
            assert error is None
            self.written = max(self.written, count)
            if self.sync or is_synced:
                self.synced = max(self.synced, count)

        self.journal.after(told, is_synced=is_synced)

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            action = self.rng.random()
            if action < 0.75:
                self.note(*(self.record() for _ in range(self.rng.choice((1, 1, 2, 5)))))
                self.ask()
            elif action < 0.78:
                self.ask(is_synced=True)
            elif action < 0.86:
                self.clock.advance(INTERVAL_S)
            elif action < 0.9:
                count = self.written
                await self.advance(2 * INTERVAL_S)
                self.synced = max(self.synced, count)
            await settle(self.rng.choice((1, 2, 5)))
            for _ in range(self.rng.choice((0, 0, 1, 3))):
                self.worker.step()

    def record(self) -> Record:
        rng, keys = self.rng, self.memory.state.keys
        key = rng.choice(KEYS)
        state = keys.get(key) or KeyState()
        action = rng.random()
        if action < 0.4 or not state.rows:
            serial = self.memory.last_serial + rng.choice((0, 1))
            first = state.next_offset
            offsets = range(first, first + rng.randrange(6))
            rows = tuple(Row(n, 100 * n, serial, rng.randrange(9), 1) for n in offsets)
            return Took(key, first + 6, 100 * first + 500, rows, rng.choice(("", "a")))
        offset = rng.choice(list(state.rows))
        if action < 0.8:
            return Done(key, offset)
        if action < 0.85:
            return Left(key, offset, rng.randrange(1000))
        if action < 0.95:
            serial = self.memory.last_serial + 1
            return Changed(key, offset, serial, rng.randrange(9), rng.randrange(5))
        if action < 0.98:
            return Moved(key, rng.randrange(100), rng.randrange(1000))
        return Forgot(rng.choice((None, key.group)), rng.choice((None, key.topic)))


def states_after(base: PopState, noted: list[Record]) -> Iterator[tuple[int, PopState]]:
    state = deepcopy(base)
    yield 0, state
    for count, record in enumerate(noted, 1):
        state.apply(record)
        yield count, state


def check(point: Point, state: CrashState, rng: Random) -> CrashDisk:
    """Load what a crash has left, and return the disk."""
    disk = point.disk.crash(state, rng)
    found = JournalRig(disk).journal.load()
    least = point.written if state.keep is Keep.KILL else point.synced
    fits = [
        count
        for count, expected in states_after(point.base, point.noted)
        if found.keys == expected.keys and found.last_serial >= expected.last_serial
    ]
    assert fits, f"no prefix of what was noted: {found}"
    assert fits[-1] >= least, f"the state after {fits} of {len(point.noted)}, {least} were told"
    return disk


async def live_on(rng: Random, disk: CrashDisk, *, sync: bool) -> int:
    """Live on with what a crash has left, and end by another one; how many ends were tried."""
    machine = Machine(rng, disk, sync=sync)
    machine.begin()
    await machine.run(25)
    tried = 0
    for point in rng.sample(machine.points, min(2, len(machine.points))):
        for state in point.disk.crash_states(rng, 4):
            check(point, state, rng)
            tried += 1
    return tried


async def explore(seed: int, *, sync: bool, count: int = STATES) -> Counter[str]:
    rng = Random(seed)
    machine = Machine(rng, CrashDisk(rng.choice((Names.STRICT, Names.ORDERED))), sync=sync)
    machine.begin()
    await machine.run(STEPS)
    power = Counter[str](files=int(machine.names()[-1]))
    for point in machine.points:
        power[point.op] += 1
        states = Random(rng.random())
        for state in point.disk.crash_states(states, count):
            try:
                disk = check(point, state, states)
                # What was left is lived on with, and that life ends by another crash.
                again = Machine(states, disk, sync=sync)
                again.begin()
                await again.run(25)
                for second in again.points:
                    for last in second.disk.crash_states(states, 4):
                        check(second, last, states)
                        power["second"] += 1
            except Exception as error:
                flush = "SYNC" if sync else "ASYNC"
                raise CrashFailure(
                    f"{error!r}\nreplay with SKYLARKMQ_SEED={seed}: {point.op}, {state}, {flush}"
                ) from error
            power["states"] += 1
    return power


@pytest.mark.parametrize("sync", [False, True], ids=["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize(
    ("count", "states"),
    [(1, 3), slow(4, STATES), pytest.param(60, STATES, marks=pytest.mark.fault)],
)
async def test_any_crash_leaves_what_was_told(count: int, states: int, sync: bool) -> None:
    power: Counter[str] = Counter()
    chosen = seeds(count)
    for seed in chosen:
        power.update(await explore(seed, sync=sync, count=states))
    if len(chosen) > 1:
        assert power["files"] >= 3 * len(chosen), power
        assert power["second"] > 100, power


@pytest.mark.parametrize("sync", [False, True], ids=["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_every_step_of_a_change_of_file_and_of_a_start(sync: bool) -> None:
    rng = Random(1)
    machine = Machine(rng, CrashDisk(), sync=sync)
    machine.keeps_all = True
    machine.begin()
    while "3" not in machine.names():
        await machine.run(10)
    ops = Counter(point.op for point in machine.points)
    assert ops["unlink"] and ops["create"] >= 3 and ops["sync_folder"], ops
    for point in machine.points[-60:]:
        for state in point.disk.crash_states(rng, 6):
            check(point, state, rng)
    left = machine.points[-1].disk.crash(CrashState(Keep.KILL), rng)
    start = Machine(rng, left, sync=sync)
    start.keeps_all = True
    start.base = start.loaded()
    assert isinstance(start.files, CrashDisk)
    start.files.before_step = start._before
    start.start()
    assert len(start.points) > 4
    for point in start.points:
        for state in point.disk.crash_states(rng, 8):
            check(point, state, rng)


# The rules, each taken away


def told_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    append = journal_folder.OpenFile.append

    def broken(self: journal_folder.OpenFile, *given: object) -> object:
        datasync = self.file.datasync
        self.file.datasync = lambda: None  # type: ignore[method-assign]
        try:
            return append(self, *given)  # type: ignore[arg-type]
        finally:
            self.file.datasync = datasync  # type: ignore[method-assign]

    patch.setattr(journal_folder.OpenFile, "append", broken)


def a_new_file_before_the_old_one_is_synced(patch: pytest.MonkeyPatch) -> None:
    change = journal_module.PopJournal._change_file

    def broken(self: journal_module.PopJournal, file: journal_folder.OpenFile) -> None:
        file.file.datasync = lambda: None  # type: ignore[method-assign]
        change(self, file)

    patch.setattr(journal_module.PopJournal, "_change_file", broken)


def older_files_removed_before_all_is_said(patch: pytest.MonkeyPatch) -> None:
    take = journal_module.PopJournal._take

    def broken(
        self: journal_module.PopJournal, begun: journal_folder.OpenFile, number: int
    ) -> None:
        take(self, begun, number)
        self._removes_at = begun.synced

    patch.setattr(journal_module.PopJournal, "_take", broken)


def older_files_removed_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    pack = journal_module.PopJournal._pack

    def broken(self: journal_module.PopJournal, file: journal_folder.OpenFile) -> bytes:
        was_under_way = self._snapshot.is_under_way
        packed = pack(self, file)
        if was_under_way and not self._snapshot.is_under_way:
            self._folder.remove(self._folder.numbers[:-1])
        return packed

    patch.setattr(journal_module.PopJournal, "_pack", broken)


def names_of_files_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CrashDisk, "sync_folder", lambda self, path: None)


def what_follows_damage_believed(patch: pytest.MonkeyPatch) -> None:
    at = journal_file._frame_at

    def broken(data: bytes, position: int) -> tuple[bytes, int] | None:
        for place in range(position, len(data.rstrip(b"\0"))):
            found = at(data, place)
            if found is not None:
                return found
        return None

    patch.setattr(journal_file, "_frame_at", broken)


def a_file_that_says_all_is_taken_for_another(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journal_file._Read, "is_whole", property(lambda self: bool(self.records)))


MUTATIONS = [
    told_before_the_sync,
    a_new_file_before_the_old_one_is_synced,
    older_files_removed_before_all_is_said,
    older_files_removed_before_the_sync,
    names_of_files_not_synced,
    what_follows_damage_believed,
    a_file_that_says_all_is_taken_for_another,
]


@pytest.mark.fault
@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
async def test_a_broken_journal_is_caught(mutate: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)  # type: ignore[operator]
        for seed in range(200):
            for sync in (True, False):
                try:
                    await explore(seed, sync=sync)
                except (CrashFailure, OSError, AssertionError):
                    return
    raise AssertionError("it went unnoticed")
