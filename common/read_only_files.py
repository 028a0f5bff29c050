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
from typing import Any, NoReturn

from skylarkmq.common.files import DiskFile, DiskFiles, StoreFile

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

    def _refuse(self, path: Path, *_: Any, **__: Any) -> NoReturn:
        raise _read_only(path)

    make_folder = add_folder = replace = unlink = remove_folder = lock = lock_folder = _refuse

    def is_folder(self, path: Path) -> bool:
        return path.is_dir()

    def lock_holder(self, path: Path) -> int | None:
        """Return the process that has byte 0 of `path` locked; None when no process has.

        It is 0 for a process that cannot be seen. Closing any descriptor of a file drops the locks
        that this very process has on it, so do not call this while this process may hold one.
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
