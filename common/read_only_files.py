"""The disk for those who only look: the door of `files.py` with nothing but its reading half.

Tools for stopped stores open everything through it, so that they need no more than the right to
read, leave no trace but times of access, and cannot change a store by mistake.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from pathlib import Path

from skylarkmq.common.files import DiskFile, DiskFiles, FileLock, StoreFile

# `struct flock`, whose order is the system's: what is asked for and where each answer stands.
if sys.platform == "darwin":  # pragma: no cover - best effort, design section 3.14
    _FLOCK = struct.Struct("qqihh")
    _QUESTION = _FLOCK.pack(0, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
    _KIND, _PROCESS = 3, 2
else:
    _FLOCK = struct.Struct("hhqqi0q")
    _QUESTION = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    _KIND, _PROCESS = 0, 4


class ReadOnlyFiles(DiskFiles):
    """The real disk; every change fails with EROFS, and a write to an open file with EBADF."""

    def open(self, path: Path, *, create: bool = False) -> StoreFile:
        if create:
            raise _read_only(path)
        return DiskFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def make_folder(self, path: Path) -> None:
        raise _read_only(path)

    def add_folder(self, path: Path) -> tuple[Path, ...]:
        raise _read_only(path)

    def replace(self, path: Path, data: bytes, *, backup: bool) -> None:
        raise _read_only(path)

    def unlink(self, path: Path) -> None:
        raise _read_only(path)

    def remove_folder(self, path: Path) -> None:
        raise _read_only(path)

    def lock(self, path: Path) -> FileLock | None:
        raise _read_only(path)

    def lock_folder(self, path: Path) -> FileLock | None:
        raise _read_only(path)

    def is_folder(self, path: Path) -> bool:
        return path.is_dir()

    def lock_holder(self, path: Path) -> int | None:
        """Process that has byte 0 of `path` locked, 0 when it cannot be seen; None for nobody.

        Closing any descriptor of a file drops the locks that this very process has on it, so who
        may hold one must not ask.
        """
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            answer = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, _QUESTION)[: _FLOCK.size])
        finally:
            os.close(fd)
        return None if answer[_KIND] == fcntl.F_UNLCK else max(0, answer[_PROCESS])


def _read_only(path: Path) -> OSError:
    return OSError(errno.EROFS, "opened for reading alone", str(path))
