"""The disk for those who only look: the door of `files.py` with nothing but its reading half.

Tools for stopped stores open everything through it, so that they need no more than the right to
read, leave no trace but times of access, and cannot change a store by mistake. They read by
`pread`: a bad sector of the disk is an error there, where a mapping would kill the process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

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


_BLOCK_SIZE: Final = 4096
_UNREADABLE: Final = b"\xff"


class PatientFile(DiskFile):
    """An open file in which bytes that the disk cannot read are all 0xFF, which nothing is."""

    __slots__ = ("unreadable",)

    def __init__(self, path: Path, fd: int, unreadable: set[int]) -> None:
        """Take an open file, and where to note the begins of blocks that cannot be read."""
        super().__init__(path, fd)
        self.unreadable = unreadable

    def pread(self, size: int, position: int) -> bytes:
        size = max(0, min(size, self.size - position))
        return patient_pread(super().pread, size, position, self.unreadable)


class ReadOnlyFiles(DiskFiles):
    """The real disk; every change fails with EROFS, and a write to an open file with EBADF."""

    def __init__(self, *, patient: bool = False) -> None:
        """Take how to read.

        Args:
            patient: what the disk cannot read is damage, see `PatientFile`, and no OSError.
        """
        self._patient = patient
        self.unreadable: defaultdict[Path, set[int]] = defaultdict(set)
        """Begins of the blocks of 4096 bytes that could not be read, by file."""

    def open(self, path: Path, *, create: bool = False) -> StoreFile:
        if create:
            raise _read_only(path)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return PatientFile(path, fd, self.unreadable[path]) if self._patient else DiskFile(path, fd)

    def read_all(self, path: Path) -> bytes:
        try:
            return super().read_all(path)
        except OSError as error:
            if error.errno != errno.EIO or not self._patient:
                raise
        file = self.open(path)
        try:
            return file.pread(file.size, 0)
        finally:
            file.close()

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


def patient_pread(
    pread: Callable[[int, int], bytes], size: int, position: int, unreadable: set[int]
) -> bytes:
    """Read as `pread`, block by block where the disk cannot; a bad block is asked for once."""
    stop = position + size
    first = position - position % _BLOCK_SIZE
    if unreadable.isdisjoint(range(first, stop, _BLOCK_SIZE)):
        try:
            return pread(size, position)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            if stop <= first + _BLOCK_SIZE:
                unreadable.add(first)
    if stop <= first + _BLOCK_SIZE:
        return _UNREADABLE * size
    parts: list[bytes] = []
    while position < stop:
        following = min(position - position % _BLOCK_SIZE + _BLOCK_SIZE, stop)
        parts.append(patient_pread(pread, following - position, position, unreadable))
        position = following
    return b"".join(parts)


def _read_only(path: Path) -> OSError:
    return OSError(errno.EROFS, "opened for reading alone", str(path))
