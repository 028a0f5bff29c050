"""The only door to the disk: every write, sync, allocation, rename and unlink of the store is here.

Tests put another `Files` in its place (one that remembers what was synced), so nothing else in the
store may import `os` for file work. All calls block; those that may run on the event loop are named
in `store/message_store.py`. Failures are `OSError` with the path filled in.

Unlike RocketMQ, a file's blocks are really allocated before anything is written to them, so a full
disk is an error here and never a SIGBUS, and data goes to the file by `pwrite` and to the disk by
`fdatasync`; `mmap.flush` would hold the GIL for the time of the disk.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

# Errors of a lock that another process holds.
_LOCKED = frozenset({errno.EACCES, errno.EAGAIN})
# Errors of a file system that locks no folders, as those on a network.
_LOCKS_NO_FOLDERS = frozenset(
    {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
)


class StoreFile(Protocol):
    """One open file of the store."""

    @property
    def path(self) -> Path: ...
    @property
    def size(self) -> int: ...
    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all of `data` at `position`; a system that takes a part is asked for the rest."""
        ...

    def pread(self, size: int, position: int) -> bytes: ...
    def data_start(self, position: int) -> int:
        """A place not before `position` up to which nothing was ever written."""
        ...

    def datasync(self) -> None: ...
    def allocate(self, position: int, size: int) -> None:
        """Reserve real blocks for the range and grow the file over it if it was shorter."""
        ...

    def truncate(self, size: int) -> None: ...
    def view(self) -> memoryview:
        """A read-only mapping of the whole file as it is sized now; sees later writes."""
        ...

    def writable_view(self) -> memoryview:
        """A shared mapping of the whole file as it is sized now, for stores.

        Stores reach the disk by `datasync`. Only bytes whose blocks `allocate` has reserved may be
        stored to: beyond them a full disk would kill the process.
        """
        ...

    def close(self) -> None:
        """Drop the descriptor; views handed out stay valid until they are dropped."""
        ...


class FileLock(Protocol):
    """An exclusive lock held on a file or folder until `release`."""

    def is_in_place(self) -> bool:
        """Return whether the path still leads to what is locked."""
        ...

    def release(self) -> None: ...


class DiskSpace(NamedTuple):
    """What `df` says of a partition, bytes; blocks reserved for root are in neither."""

    used: int
    free: int


class Files(Protocol):
    """A disk."""

    def open(self, path: Path, *, create: bool = False) -> StoreFile: ...
    def exists(self, path: Path) -> bool: ...
    def list(self, path: Path) -> list[str]:
        """Names in a folder, sorted; empty when there is no such folder."""
        ...

    def size(self, path: Path) -> int: ...
    def make_folder(self, path: Path) -> None:
        """Create the folder and its parents, durably."""
        ...

    def add_folder(self, path: Path) -> tuple[Path, ...]:
        """Create the folder and its missing parents.

        Returns:
            The folders to sync before the new names are durable, the deepest one first.
        """
        ...

    def read_all(self, path: Path) -> bytes: ...
    def replace(self, path: Path, data: bytes, *, backup: bool) -> None:
        """Replace a small file atomically and durably; the old one stays as `<name>.bak`."""
        ...

    def replace_secret(self, path: Path, data: bytes) -> None:
        """Do as `replace`, with a file that its owner alone can read, and no old one kept."""
        ...

    def unlink(self, path: Path) -> None: ...
    def remove_folder(self, path: Path) -> None:
        """Remove a folder; one that is not empty stays."""
        ...

    def sync_folder(self, path: Path) -> None: ...
    def free_bytes(self, path: Path) -> int: ...
    def space(self, path: Path) -> DiskSpace: ...
    def modified_ms(self, path: Path) -> int:
        """When the file was last written to, ms since the epoch."""
        ...

    def lock(self, path: Path) -> FileLock | None:
        """Take the exclusive record lock on byte 0 of `path`; None when another process has it."""
        ...

    def lock_folder(self, path: Path) -> FileLock | None:
        """Take the folder itself, which no removal of a file in it gives away; None as `lock`."""
        ...


if sys.platform == "darwin":  # pragma: no cover - best effort

    def _datasync(fd: int) -> None:
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)

    def _allocate(fd: int, position: int, size: int) -> None:
        chunk = bytes(1 << 20)
        for start in range(position, position + size, len(chunk)):
            os.pwrite(fd, chunk[: position + size - start], start)
else:
    _datasync = os.fdatasync
    _allocate = os.posix_fallocate


def _named(error: OSError, what: str, path: Path) -> OSError:
    """The error of a call that knew a descriptor alone."""
    return OSError(error.errno, f"{error.strerror} ({what})", str(path))


def write_whole(
    write: Callable[[int, bytes | bytearray | memoryview, int], int],
    fd: int,
    data: bytes | bytearray | memoryview,
    position: int,
    path: Path,
) -> None:
    """Write all of `data` by `os.pwrite`, or by what a test has in its place.

    A part is no error: the system takes the rest as well, or says why not.

    Raises:
        OSError: the system refused the data, or the rest of it.
    """
    try:
        written = write(fd, data, position)
        if written != len(data):
            _write_rest(write, fd, memoryview(data), position, written)
    except OSError as error:
        raise _named(error, "write", path) from error


def _write_rest(
    write: Callable[[int, memoryview, int], int],
    fd: int,
    data: memoryview,
    position: int,
    written: int,
) -> None:
    before = written
    while written < len(data):
        taken = write(fd, data[written:], position + written)
        if not taken and not before:
            raise OSError(errno.EIO, "the system takes nothing and does not say why")
        written, before = written + taken, taken


class DiskFile:
    """A `StoreFile` on a real file system."""

    __slots__ = ("_fd", "path", "size")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd
        self.size = os.fstat(fd).st_size

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        write_whole(os.pwrite, self._fd, data, position, self.path)
        self.size = max(self.size, position + len(data))

    def pread(self, size: int, position: int) -> bytes:
        try:
            return os.pread(self._fd, size, position)
        except OSError as error:
            raise _named(error, "read", self.path) from error

    def data_start(self, position: int) -> int:
        try:
            return os.lseek(self._fd, position, os.SEEK_DATA)
        except OSError as error:
            return max(position, self.size) if error.errno == errno.ENXIO else position

    def datasync(self) -> None:
        try:
            _datasync(self._fd)
        except OSError as error:
            raise _named(error, "sync", self.path) from error

    def allocate(self, position: int, size: int) -> None:
        try:
            _allocate(self._fd, position, size)
        except OSError as error:
            raise _named(error, "allocation", self.path) from error
        self.size = max(self.size, position + size)

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise _named(error, "truncation", self.path) from error
        self.size = size

    def view(self) -> memoryview:
        try:
            return memoryview(mmap.mmap(self._fd, self.size, prot=mmap.PROT_READ))
        except OSError as error:
            raise _named(error, "mapping", self.path) from error

    def writable_view(self) -> memoryview:
        try:
            return memoryview(mmap.mmap(self._fd, self.size))
        except OSError as error:
            raise _named(error, "mapping", self.path) from error

    def close(self) -> None:
        os.close(self._fd)


class _HeldLock:
    """A lock that goes with its descriptor."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path

    def is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        os.close(self._fd)


class DiskFiles:
    """The real disk."""

    def open(self, path: Path, *, create: bool = False) -> StoreFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return DiskFile(path, os.open(path, flags, 0o640))

    def exists(self, path: Path) -> bool:
        return path.exists()

    def list(self, path: Path) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def make_folder(self, path: Path) -> None:
        if path.is_dir():
            return
        self.make_folder(path.parent)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o750)
        try:
            self.sync_folder(path.parent)
        except OSError:
            with contextlib.suppress(OSError):
                path.rmdir()  # or the next call takes its name for durable
            raise

    def add_folder(self, path: Path) -> tuple[Path, ...]:
        if path.is_dir():
            return ()
        parents = self.add_folder(path.parent)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o750)
        return (path.parent, *parents)

    def read_all(self, path: Path) -> bytes:
        return path.read_bytes()

    def replace(self, path: Path, data: bytes, *, backup: bool) -> None:
        temporary = self._write_beside(path, data, os.O_TRUNC, 0o640)
        if backup and path.exists():
            self._link_backup(path)
        os.replace(temporary, path)
        self.sync_folder(path.parent)

    def replace_secret(self, path: Path, data: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):  # it may be of others, and readable by them
            os.unlink(path.with_name(path.name + ".tmp"))
        temporary = self._write_beside(path, data, os.O_EXCL, 0o600)
        os.replace(temporary, path)
        self.sync_folder(path.parent)

    @staticmethod
    def _write_beside(path: Path, data: bytes, flag: int, mode: int) -> Path:
        temporary = path.with_name(path.name + ".tmp")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | flag | os.O_CLOEXEC, mode)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            _datasync(fd)
        except OSError as error:
            raise _named(error, "write", temporary) from error
        finally:
            os.close(fd)
        return temporary

    @staticmethod
    def _link_backup(path: Path) -> None:
        # A second name for the old file, moved over the old backup: no moment without a backup.
        staged = path.with_name(path.name + ".bak.tmp")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(staged)
        os.link(path, staged)
        os.replace(staged, path.with_name(path.name + ".bak"))

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def remove_folder(self, path: Path) -> None:
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    def sync_folder(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            raise _named(error, "sync", path) from error
        finally:
            os.close(fd)

    def free_bytes(self, path: Path) -> int:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize

    def space(self, path: Path) -> DiskSpace:
        stat = os.statvfs(path)
        used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
        return DiskSpace(used, stat.f_bavail * stat.f_frsize)

    def modified_ms(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1_000_000

    def lock(self, path: Path) -> FileLock | None:
        # A POSIX record lock: the kind that a Java broker takes on the same byte.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
            os.pwrite(fd, b"lock", 0)
            os.fsync(fd)
        except OSError as error:
            os.close(fd)
            if error.errno in _LOCKED:
                return None
            raise _named(error, "lock", path) from error
        return _HeldLock(fd, path)

    def lock_folder(self, path: Path) -> FileLock | None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _LOCKS_NO_FOLDERS:
                os.close(fd)
                if error.errno in _LOCKED:
                    return None
                raise _named(error, "lock", path) from error
        return _HeldLock(fd, path)
