"""A journal over a disk in memory, and a state beside it that is what the journal should say."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from pathlib import Path

from skylarkmq.broker.pop.journal import JournalMode, PopJournal
from skylarkmq.common.files import Files
from skylarkmq.store.pop.journal_records import Key, KeyState, PopState, Record, Row
from tests.support.crash_disk import CrashDisk
from tests.support.manual_clock import ManualClock, settle
from tests.support.workers import ManualWorker, rest

INTERVAL_S = 0.5
KEY = Key("G", "T", 0, 0)


class Memory:
    """The state of a service that notes all it does."""

    def __init__(self, state: PopState) -> None:
        self.state = state

    @property
    def last_serial(self) -> int:
        return self.state.last_serial

    def keys(self) -> list[Key]:
        return list(self.state.keys)

    def state_of(self, key: Key) -> KeyState | None:
        return self.state.keys.get(key)


class JournalRig:
    """One life of a journal."""

    def __init__(self, files: Files | None = None, *, sync: bool = False) -> None:
        self.files = files or CrashDisk()
        assert isinstance(self.files, CrashDisk)
        self.folder: Path = self.files.root / "skylarkmq" / "pop"
        self.clock = ManualClock()
        self.worker = ManualWorker("pop")
        self.failures: list[BaseException] = []
        self.journal = PopJournal(
            self.folder,
            self.files,
            self.worker,
            self.clock,
            JournalMode(sync, INTERVAL_S),
            self.failures.append,
        )
        self.memory = Memory(PopState())
        self.noted: list[Record] = []
        self.told: list[BaseException | None] = []

    def start(self) -> PopState:
        """Load, believe all, and begin; return what was loaded."""
        loaded = self.journal.load()
        self.memory.state = deepcopy(loaded)
        self.journal.begin(loaded, self.memory)
        return loaded

    def note(self, *records: Record) -> None:
        for record in records:
            self.noted.append(record)
            self.memory.state.apply(deepcopy(record))
            self.journal.note(record)

    async def keep(self, *records: Record) -> BaseException | None:
        """Note, wait for the answer, and return it."""
        self.note(*records)
        count = len(self.told)
        self.journal.after(self.told.append)
        await rest(self.worker)
        (answer,) = self.told[count:]
        return answer

    async def advance(self, seconds: float) -> None:
        for _ in range(round(seconds / INTERVAL_S)):
            self.clock.advance(INTERVAL_S)
            await rest(self.worker)

    async def stop(self) -> None:
        task = asyncio.ensure_future(self.journal.stop())
        while not task.done():
            await settle(2)
            self.worker.run_all()
        await task
        assert self.clock.pending_count == 0

    def names(self) -> list[str]:
        return [name.lstrip("0") for name in self.files.list(self.folder)]

    def loaded(self) -> PopState:
        """What another life would find now."""
        return JournalRig(self.files).journal.load()


def row(offset: int, serial: int = 1, attempt: int = 1, visible_ms: int = 1000) -> Row:
    return Row(offset, offset * 100, serial, visible_ms, attempt)
