"""The real disk, whose calls on the log's files fail or wait when a test says so."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from skylarkmq.store.files import DiskFile, DiskFiles, StoreFile

HANG_LIMIT_S = 30.0


class FaultyFiles(DiskFiles):
    """A disk for brokers with real threads.

    Attributes:
        failing: operation (allocate, datasync, pread, pwrite) -> the errno that it fails with.
        failing_once: the same for the next call alone.
        syncing: cleared, syncs wait; set again, they go on.
        within: a part of the path of the files that are meant.
    """

    def __init__(self, within: str = "commitlog") -> None:
        self.failing: dict[str, int] = {}
        self.failing_once: dict[str, int] = {}
        self.syncing = threading.Event()
        self.syncing.set()
        self.within = within

    def open(self, path: Path, *, create: bool = False) -> StoreFile:
        if self.within not in str(path):
            return super().open(path, create=create)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return _FaultyFile(self, path, os.open(path, flags, 0o640))


class _FaultyFile(DiskFile):
    __slots__ = ("_disk",)

    def __init__(self, disk: FaultyFiles, path: Path, fd: int) -> None:
        super().__init__(path, fd)
        self._disk = disk

    def _check(self, op: str) -> None:
        error = self._disk.failing_once.pop(op, None) or self._disk.failing.get(op)
        if error is not None:
            raise OSError(error, os.strerror(error), str(self.path))

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        self._check("pwrite")
        super().pwrite(data, position)

    def pread(self, size: int, position: int) -> bytes:
        self._check("pread")
        return super().pread(size, position)

    def allocate(self, position: int, size: int) -> None:
        self._check("allocate")
        super().allocate(position, size)

    def datasync(self) -> None:
        assert self._disk.syncing.wait(HANG_LIMIT_S)
        self._check("datasync")
        super().datasync()
