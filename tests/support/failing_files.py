"""A real disk whose calls fail or wait where a test says so, for a real broker with its threads.

The crash disk (`crash_disk.py`) is for one thread; this one takes the same faults.
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from skylarkmq.common.files import DiskFile, DiskFiles, StoreFile, write_whole
from tests.support.crash_faults import Faults
from tests.support.patience import LIMIT_S

ALWAYS = 1_000_000  # calls that fail, until `heal`


class FailingFiles(DiskFiles):
    """Takes the place of `DiskFiles`; faults may be ordered while the broker runs.

    Attributes:
        syncing: cleared, syncs of the log wait; set again, they go on.
        writing: the same for writes to it.
        is_waiting: set while such a write waits.
    """

    def __init__(self) -> None:
        self.syncing = threading.Event()
        self.syncing.set()
        self.writing = threading.Event()
        self.writing.set()
        self.is_waiting = threading.Event()
        self._faults = Faults()
        self._lock = threading.Lock()

    def fail(
        self, op: str, *, at: int = 1, times: int = 1, error: int = errno.EIO,
        path: str = "", short: int | None = None,
    ) -> None:  # fmt: skip
        """Let calls of `op` fail: open, map, create, pread, pwrite, datasync, allocate, truncate,
        rename, unlink. See `Faults.add`."""
        with self._lock:
            self._faults.add(op, at=at, times=times, error=error, path=path, short=short)

    def heal(self) -> None:
        """The disk is sound again."""
        with self._lock:
            self._faults.clear()

    @property
    def has_failed(self) -> bool:
        """Whether a call has failed yet, or took a part."""
        with self._lock:
            return bool(self._faults.hit)

    def check(self, op: str, path: Path) -> None:
        with self._lock:
            self._faults.check(op, path)

    def part(self, path: Path, size: int) -> int:
        """How much of a write the system takes."""
        with self._lock:
            return self._faults.part("pwrite", path, size)

    def open(self, path: Path, *, create: bool = False) -> StoreFile:
        self.check("open", path)
        if create:
            self.check("create", path)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return _FailingFile(self, path, os.open(path, flags, 0o640))

    def list(self, path: Path) -> list[str]:
        self.check("open", path)
        return super().list(path)

    def read_all(self, path: Path) -> bytes:
        self.check("open", path)
        return super().read_all(path)

    def sync_folder(self, path: Path) -> None:
        self.check("open", path)
        super().sync_folder(path)

    def replace(self, path: Path, data: bytes, *, backup: bool) -> None:
        self.check("open", path)
        self.check("rename", path)
        super().replace(path, data, backup=backup)

    def unlink(self, path: Path) -> None:
        self.check("unlink", path)
        super().unlink(path)


class _FailingFile(DiskFile):
    __slots__ = ("_files",)

    def __init__(self, files: FailingFiles, path: Path, fd: int) -> None:
        super().__init__(path, fd)
        self._files = files

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        if "commitlog" in str(self.path) and not self._files.writing.is_set():
            self._files.is_waiting.set()
            assert self._files.writing.wait(LIMIT_S)
            self._files.is_waiting.clear()
        write_whole(self._write, self._fd, data, position, self.path)
        self.size = max(self.size, position + len(data))

    def _write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        """What the system does with a write."""
        self._files.check("pwrite", self.path)
        return os.pwrite(fd, data[: self._files.part(self.path, len(data))], position)

    def view(self) -> memoryview:
        self._files.check("map", self.path)
        return super().view()

    def writable_view(self) -> memoryview:
        self._files.check("map", self.path)
        return super().writable_view()

    def pread(self, size: int, position: int) -> bytes:
        self._files.check("pread", self.path)
        return super().pread(size, position)

    def datasync(self) -> None:
        if "commitlog" in str(self.path):
            assert self._files.syncing.wait(LIMIT_S)
        self._files.check("datasync", self.path)
        super().datasync()

    def allocate(self, position: int, size: int) -> None:
        self._files.check("allocate", self.path)
        super().allocate(position, size)

    def truncate(self, size: int) -> None:
        self._files.check("truncate", self.path)
        super().truncate(size)
