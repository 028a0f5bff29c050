"""The disk below an archive: the few calls that change it, each whole and durable when it returns.

Names are paths below the table's folder, parted by slashes. Handed in, so that a test can end a
writer at every one of these calls.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from skylarkmq.spark.archive.state import ArchiveError

META: Final = "_skylarkmq"
LOCK: Final = f"{META}/lock"
_NO_LINKS: Final = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK}


class TableFiles:
    """A folder on a disk. Driver process, one thread. OSError where the disk refuses."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock: int | None = None

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
        """Yield the names, below the table, of all files below a folder."""
        for above, _, names in os.walk(self.root / folder):
            for name in names:
                yield Path(above, name).relative_to(self.root).as_posix()

    # What changes the disk.

    def make_folder(self, name: str) -> None:
        """Make a folder and those above it, if need be; their entries are durable."""
        path = self.root / name
        missing = [path, *path.parents]
        missing = missing[: next(i for i, folder in enumerate(missing) if folder.is_dir())]
        path.mkdir(parents=True, exist_ok=True)
        for folder in reversed(missing):
            _sync(folder.parent)

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
        _sync(self.root / name)

    def write_new(self, name: str, data: bytes) -> None:
        """Make a file appear whole under a name that must be free: FileExistsError."""
        temporary = f"{name}.{os.getpid()}.new"
        self.remove(temporary)
        self.create(temporary, data)
        self.rename_new(temporary, name)
        self.sync_folder(name.rpartition("/")[0])

    # One writer at a time.

    def lock(self, holder: str) -> None:
        """Take the table for this process until `unlock`, or until the process ends.

        Args:
            holder: a line that the next one who wants it is shown.

        Raises:
            ArchiveError: somebody has it.
        """
        descriptor = os.open(self.root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
            os.close(descriptor)
            raise ArchiveError(
                f"another job writes into {self.root}: {other or 'unknown'}",
                hint="Wait for it, or stop it; readers need not wait",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)
        self._lock = descriptor

    def unlock(self) -> None:
        """Give the table back; nothing if it is not held."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
