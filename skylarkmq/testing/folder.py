"""The folder of a test's store, which goes away with the test.

"memory" is a folder on /dev/shm where there is room, else among the temporary files. While it is in
use its file `alive` is locked. Before a test makes such a folder, it removes those without a lock:
they were left by tests that were killed. Two runs at once, and workers of pytest-xdist, get folders
of their own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")
ROOM_MIN: Final = 256 << 20
"""Bytes that must be free for a store in memory; the shared memory of a container often has 64."""
PREFIX: Final = "skylarkmq-test-"
_ALIVE: Final = "alive"


class StoreFolder:
    """A folder that goes away with `remove`, at the process's end, or at the next run's start."""

    def __init__(self, path: Path, lock: int | None) -> None:
        self.path = path
        self._remove = weakref.finalize(self, _remove, path, lock, os.getpid())

    @classmethod
    def in_memory(cls) -> StoreFolder:
        """Make a folder on the fastest place there is. Blocks for a moment."""
        parent = memory_folder()
        _remove_abandoned(parent)
        while True:
            path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            lock = _hold(path)
            if lock is not None:
                return cls(path, lock)

    def remove(self) -> None:
        """Remove the folder with all that is in it. Blocks."""
        self._remove()


def memory_folder() -> Path:
    """Return the folder that folders of stores are made in."""
    if _has_room(MEMORY):
        return MEMORY
    return Path(tempfile.gettempdir())


def _has_room(path: Path) -> bool:
    try:
        stat = os.statvfs(path)
    except OSError:
        return False
    return stat.f_bavail * stat.f_frsize >= ROOM_MIN and os.access(path, os.W_OK | os.X_OK)


def _hold(path: Path) -> int | None:
    """Lock the folder for as long as the descriptor is open; None when somebody else has it."""
    try:
        fd = os.open(path / _ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:  # removed by a run that took it for abandoned
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _remove_abandoned(parent: Path) -> None:
    for name in os.listdir(parent):
        path = parent / name
        if not name.startswith(PREFIX) or not (path / _ALIVE).exists():
            continue  # one that is just being made has no such file yet
        with contextlib.suppress(OSError):  # another user's, or another run is faster
            lock = _hold(path)
            if lock is not None:
                _remove(path, lock, os.getpid())


def _remove(path: Path, lock: int | None, pid: int) -> None:
    if pid != os.getpid():
        return  # a forked child ends: the folder is its parent's
    shutil.rmtree(path, ignore_errors=True)
    if lock is not None:
        os.close(lock)
