"""The disk under an archive, the windows and the ledgers of jobs: the few calls that change it.

Names are paths below the folder, separated by slashes. The folder is handed in, so that a test can
end a writer at every one of these calls.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_NO_LINKS: Final = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK}


class DurableFolder:
    """A folder on a disk; holds its path alone, so it pickles. OSError where the disk refuses."""

    def __init__(self, root: Path) -> None:
        self.root = root

    # What reads.

    def read(self, name: str) -> bytes:
        """Return a file's bytes; FileNotFoundError when there is none."""
        return (self.root / name).read_bytes()

    def size(self, name: str) -> int | None:
        """Return a file's size in bytes, None when there is no such file."""
        try:
            return (self.root / name).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none when there is no such folder."""
        try:
            return sorted(os.listdir(self.root / folder))
        except FileNotFoundError:
            return []

    def files_below(self, folder: str) -> Iterator[str]:
        """Yield the names, below this folder, of all files below one of its folders."""
        for above, _, names in os.walk(self.root / folder):
            for name in names:
                yield Path(above, name).relative_to(self.root).as_posix()

    # What changes the disk.

    def make_folder(self, name: str) -> None:
        """Make a folder and those above it, if need be; their entries are durable."""
        make_folder(self.root / name)

    def create(self, name: str, data: bytes) -> None:
        """Write a new file and sync its content, not yet its entry."""
        with (self.root / name).open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def rename(self, old: str, new: str) -> None:
        """Move a file."""
        os.rename(self.root / old, self.root / new)

    def rename_new(self, old: str, new: str) -> None:
        """Move a file to a name that must be free: FileExistsError."""
        try:
            os.link(self.root / old, self.root / new)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if (self.root / new).exists():
                raise FileExistsError(errno.EEXIST, "exists", new) from None
            os.rename(self.root / old, self.root / new)
            return
        os.unlink(self.root / old)

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        (self.root / name).unlink(missing_ok=True)

    def remove_folder(self, name: str) -> None:
        """Remove a folder with all that is in it, if it is there."""
        shutil.rmtree(self.root / name, ignore_errors=True)

    def sync_folder(self, name: str) -> None:
        """Make the entries of a folder durable."""
        sync_folder(self.root / name)

    def write_new(self, name: str, data: bytes) -> None:
        """Make a file appear whole under a name that must be free: FileExistsError."""
        temporary = f"{name}.{os.getpid()}.new"
        self.remove(temporary)
        self.create(temporary, data)
        self.rename_new(temporary, name)
        self.sync_folder(name.rpartition("/")[0])

    def replace(self, name: str, data: bytes, temporary: str = "") -> None:
        """Make a file appear whole, in the place of one of that name.

        Args:
            temporary: the name while it is written; beside the file if empty.
        """
        temporary = temporary or f"{name}.{os.getpid()}.new"
        self.remove(temporary)
        self.create(temporary, data)
        self.rename(temporary, name)
        self.sync_folder(name.rpartition("/")[0])


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, if need be; their entries are durable."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def take_lock(path: Path) -> int | None:
    """Open a file, made if need be, and lock it (flock); None when another opener holds the lock.

    Closing the descriptor, or the end of the process, gives the lock back.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor
