"""The disk of a test's broker: the real one, without its waits, and with faults on demand.

    syncs       left out unless the profile wants them: what a killed process has written is in
                the system's memory, and no test pulls the plug of the machine
    the log     not allocated ahead in profile "test", so that an empty broker takes kilobytes

Faults are set by `faults.py`. Jobs of the store come from its threads, so what they look at is one
reference each.
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Final

from skylarkmq.common.files import DiskFile, DiskFiles, DiskSpace, FileLock, StoreFile

HELD_SYNC_MAX_S: Final = 60.0
"""A sync that is held goes on after this, so that a forgotten fault does not hang the run."""
FULL: Final = DiskSpace(used=100, free=0)


class TestFiles(DiskFiles):
    """The files of one life of a broker; what a killed one still writes reaches nothing."""

    __test__ = False  # no test class, for all its name

    def __init__(self, *, syncs: bool, sparse_log: bool) -> None:
        self.syncs = syncs
        self.sparse_log = sparse_log
        self.is_full = False
        self.sync_error: int | None = None  # errno of every sync of the log, None: they work
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.is_dead = False

    def check_alive(self, path: Path) -> None:
        """Raise when the broker was killed."""
        if self.is_dead:
            raise OSError(errno.EIO, "the broker was killed", str(path))

    def check_room(self, path: Path) -> None:
        """Raise when the disk is full."""
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def open(self, path: Path, *, create: bool = False) -> StoreFile:
        if create:
            self.check_alive(path)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return _TestFile(self, path, os.open(path, flags, 0o640))

    def make_folder(self, path: Path) -> None:
        self.check_alive(path)
        if self.syncs:
            super().make_folder(path)
        else:
            path.mkdir(mode=0o750, parents=True, exist_ok=True)

    def replace(self, path: Path, data: bytes, *, backup: bool) -> None:
        if self.is_dead:
            return
        self.check_room(path)
        if self.syncs:
            super().replace(path, data, backup=backup)
            return
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_bytes(data)
        if backup and path.exists():
            os.replace(path, path.with_name(path.name + ".bak"))
        os.replace(temporary, path)

    def unlink(self, path: Path) -> None:
        if not self.is_dead:
            super().unlink(path)

    def sync_folder(self, path: Path) -> None:
        if self.syncs:
            super().sync_folder(path)

    def free_bytes(self, path: Path) -> int:
        return 0 if self.is_full else super().free_bytes(path)

    def space(self, path: Path) -> DiskSpace:
        """As full as the fault says; else empty: the machine's disk is no test's business."""
        if self.is_full:
            return FULL
        found = super().space(path)
        return DiskSpace(0, found.used + found.free)

    def lock(self, path: Path) -> FileLock | None:
        self.check_alive(path)
        return super().lock(path)

    def lock_folder(self, path: Path) -> FileLock | None:
        self.check_alive(path)
        return super().lock_folder(path)


class _TestFile(DiskFile):
    __slots__ = ("_files", "_is_log")

    def __init__(self, files: TestFiles, path: Path, fd: int) -> None:
        super().__init__(path, fd)
        self._files = files
        self._is_log = path.parent.name == "commitlog"

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        if self._is_log:  # else it would be acknowledged
            self._files.check_alive(self.path)
        if not self._files.is_dead:
            super().pwrite(data, position)

    def datasync(self) -> None:
        files = self._files
        if self._is_log:
            files.may_sync.wait(HELD_SYNC_MAX_S)
            files.check_alive(self.path)
            if files.sync_error is not None:
                raise OSError(files.sync_error, os.strerror(files.sync_error), str(self.path))
        if files.syncs and not files.is_dead:
            super().datasync()

    def allocate(self, position: int, size: int) -> None:
        if self._files.is_dead:
            return
        if self._is_log:  # queues and index use what is left, and go on at once when it is healed
            self._files.check_room(self.path)
        if self._files.sparse_log and self._is_log:
            super().truncate(max(self.size, position + size))
        else:
            super().allocate(position, size)

    def truncate(self, size: int) -> None:
        if not self._files.is_dead:
            super().truncate(size)
