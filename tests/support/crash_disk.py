"""A disk in memory that remembers what was synced and rebuilds what a crash leaves of it.

Takes the place of `skylarkmq.common.files.DiskFiles` in the store's own constructors.

    disk = CrashDisk()
    ... run a store on it, at paths below disk.root ...
    for state in disk.crash_states(rng, 12):
        after = disk.crash(state, rng)      # a fresh disk, mounted at a root of its own

`crash_states.py` tells when names, sizes and pages become durable. `before_step` is called in front
of every change of the disk, also inside `replace`: a `snapshot` taken there is the machine as it
stood at that point.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from skylarkmq.common.files import DiskSpace, write_whole
from tests.support.crash_faults import Faults
from tests.support.crash_image import PAGE_SIZE, Inode, pages_of
from tests.support.crash_states import CrashState, Names, NameSpace, folder_of

_mounts = itertools.count(1)


class CrashDisk:
    """Implements `skylarkmq.common.files.Files`. One thread."""

    def __init__(self, names: Names = Names.STRICT, free: int | None = None) -> None:
        self.free = free  # bytes, None for plenty
        self.used_percent: int | None = None  # what `space` says, None for the truth
        self.root = Path(f"/crash-disk/{next(_mounts)}")
        self.faults = Faults()
        self.calls: Counter[str] = Counter()
        self.before_step: Callable[[str, Path], None] | None = None
        self._prefix = str(self.root)
        self._folders = {""}
        self.name_space = NameSpace(names)
        self._touches = itertools.count()
        self.locked: dict[Path, CrashLock] = {}
        self.now_ms: Callable[[], int] = lambda: 0  # the machine's clock, for times of files

    def fail(
        self, op: str, *, at: int = 1, times: int = 1, error: int = errno.EIO,
        path: str = "", short: int | None = None,
    ) -> None:  # fmt: skip
        """Let calls of `op` fail: see `Faults.add`."""
        self.faults.add(op, at=at, times=times, error=error, path=path, short=short)

    # Files

    def open(self, path: Path, *, create: bool = False) -> CrashFile:
        key = self._key(path)
        self.faults.check("open", path)
        inode = self.name_space.live.get(key)
        if inode is None:
            if not create or folder_of(key) not in self._folders:
                raise _missing(path)
            self._step("create", path)
            inode = Inode()
            self._change({key: inode})
        return CrashFile(self, path, key, inode)

    def exists(self, path: Path) -> bool:
        key = self._key(path)
        return key in self.name_space.live or key in self._folders

    def list(self, path: Path) -> list[str]:
        folder = self._key(path)
        self.faults.check("open", path)
        entries = (*self.name_space.live, *self._folders)
        return sorted(
            entry[len(folder) + 1 :] for entry in entries if entry and folder_of(entry) == folder
        )

    def size(self, path: Path) -> int:
        return len(self._inode(path).live)

    def make_folder(self, path: Path) -> None:
        if self._key(path) not in self._folders:
            self.make_folder(path.parent)
            self._step("make_folder", path)
            self._folders.add(self._key(path))
            self.name_space.folders.add(self._key(path))

    def add_folder(self, path: Path) -> tuple[Path, ...]:
        if self._key(path) in self._folders:
            return ()
        parents = self.add_folder(path.parent)
        self._step("make_folder", path)
        self._folders.add(self._key(path))
        self.name_space.folder_made(self._key(path))
        return (path.parent, *parents)

    def read_all(self, path: Path) -> bytes:
        self.faults.check("open", path)
        return bytes(self._inode(path).live)

    def replace(self, path: Path, data: bytes, *, backup: bool) -> None:
        """The steps of `DiskFiles.replace`, each a place for a crash or an error."""
        temporary = path.with_name(path.name + ".tmp")
        file = self.open(temporary, create=True)
        file.truncate(0)
        file.write_on(data)
        file.datasync()
        live, key = self.name_space.live, self._key(path)
        if backup and key in live:
            staged = path.with_name(path.name + ".bak.tmp")
            if self.exists(staged):
                self.unlink(staged)
            self._step("link", staged)
            self._change({key + ".bak.tmp": live[key]})
            self._step("rename", staged)
            self._change({key + ".bak": live[key + ".bak.tmp"], key + ".bak.tmp": None})
        self._step("rename", path)
        self._change({key: live[key + ".tmp"], key + ".tmp": None})
        self.sync_folder(path.parent)

    def replace_secret(self, path: Path, data: bytes) -> None:
        self.replace(path, data, backup=False)

    def unlink(self, path: Path) -> None:
        self._inode(path)
        self._step("unlink", path)
        self._change({self._key(path): None})

    def remove_folder(self, path: Path) -> None:
        """Durable at once, so who calls this has synced the folder's own names before."""
        key = self._key(path)
        if key not in self._folders:
            raise _missing(path)
        if self.list(path):
            return
        self._step("remove_folder", path)
        self._folders.discard(key)
        self.name_space.folder_removed(key)

    def sync_folder(self, path: Path) -> None:
        self.faults.check("open", path)
        if self._key(path) not in self._folders:
            raise _missing(path)
        self._step("sync_folder", path)
        self.name_space.folder_synced(self._key(path))
        self.faults.linger("sync_folder", path)

    def free_bytes(self, path: Path) -> int:
        return 1 << 40 if self.free is None else self.free

    def space(self, path: Path) -> DiskSpace:
        self.faults.check("space", path)
        if self.used_percent is not None:
            return DiskSpace(self.used_percent * 10**6, (100 - self.used_percent) * 10**6)
        inodes = {id(inode): inode for inode in self.name_space.live.values()}
        used = sum(len(inode.blocks) * PAGE_SIZE for inode in inodes.values())
        return DiskSpace(used, self.free_bytes(path))

    def modified_ms(self, path: Path) -> int:
        return self._inode(path).modified_ms

    def lock(self, path: Path) -> CrashLock | None:
        if path in self.locked and self.locked[path].is_in_place():
            return None
        file = self.open(path, create=True)
        file.pwrite(b"lock", 0)
        file.datasync()
        return CrashLock(self, path)

    def lock_folder(self, path: Path) -> CrashLock | None:
        assert self._key(path) in self._folders
        self.faults.check("open", path)
        return None if path in self.locked else CrashLock(self, path)

    # What the files of this disk call

    def _step(self, op: str, path: Path) -> None:
        if self.before_step is not None:
            self.before_step(op, path)
        self.calls[op] += 1
        self.faults.check(op, path)

    def _key(self, path: Path) -> str:
        text = str(path)
        assert text.startswith(self._prefix), f"{path} lies outside of {self.root}"
        return text[len(self._prefix) :]

    def inode(self, path: Path) -> Inode | None:
        """What a path leads to; None for a folder, and when there is nothing."""
        return self.name_space.live.get(self._key(path))

    def _inode(self, path: Path) -> Inode:
        inode = self.name_space.live.get(self._key(path))
        if inode is None:
            raise _missing(path)
        return inode

    def _change(self, names: dict[str, Inode | None]) -> None:
        before = [self.name_space.live[key] for key in names if key in self.name_space.live]
        self.name_space.change(names)
        remaining = {id(inode) for inode in self.name_space.live.values()}
        for inode in before:
            if id(inode) not in remaining and self.free is not None:
                self.free += len(inode.blocks) * PAGE_SIZE

    def reserve(self, inode: Inode, position: int, size: int) -> int:
        """Take blocks for a range of a file; return how much of it has some, from its start on."""
        missing = [page for page in pages_of(position, size) if page not in inode.blocks]
        got = missing
        if self.free is not None:
            got = missing[: self.free // PAGE_SIZE]
            self.free -= len(got) * PAGE_SIZE
        inode.blocks.update(got)
        if len(got) == len(missing):
            return size
        return max(0, missing[len(got)] * PAGE_SIZE - position)

    # Crashes

    def snapshot(self) -> CrashDisk:
        """The machine as it stands, apart from what goes on with it."""
        twin = CrashDisk(self.name_space.mode, self.free)
        twin._folders = set(self._folders)
        twin.name_space = self.name_space.copy()
        return twin

    def crash_states(self, rng: Random, count: int) -> Sequence[CrashState]:
        """`count` ways to end here: the plain ones first, then chosen by `rng`."""
        return self.name_space.states(rng, count)

    def crash(self, state: CrashState, rng: Random) -> CrashDisk:
        """The disk that is left, clean, mounted at another root. This one is not changed."""
        after = CrashDisk(self.name_space.mode, self.free)
        files, folders = self.name_space.after(state, rng)
        after._folders = folders
        after.name_space.folders = set(folders)
        for key, image in files.items():
            inode = Inode()
            inode.live, inode.durable = bytearray(image), bytearray(image)
            inode.blocks.update(pages_of(0, len(image)))
            after.name_space.live[key] = after.name_space.durable[key] = inode
        return after

    def contents(self) -> dict[str, bytes]:
        """Every file's live bytes by its path below the root."""
        return {key[1:]: bytes(inode.live) for key, inode in sorted(self.name_space.live.items())}


class CrashFile:
    """Implements `skylarkmq.common.files.StoreFile`: one open handle."""

    def __init__(self, disk: CrashDisk, path: Path, key: str, inode: Inode) -> None:
        self._disk = disk
        self._key = key
        self._inode = inode
        self._closed = False
        self.path = path
        self.size = len(inode.live)

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        write_whole(self._write, 0, data, position, self.path)
        self.size = max(self.size, position + len(data))

    def write_on(self, data: bytes) -> None:
        """Write by as many calls as it takes, as `DiskFiles` writes the text of a table."""
        written = 0
        while written < len(data):
            written += self._write(0, memoryview(data)[written:], written)

    def _write(self, _fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        """What the system does: it takes what there is room for, and returns its size."""
        disk, inode = self._disk, self._begin("pwrite")
        size = disk.faults.part("pwrite", self.path, len(data))
        room = disk.reserve(inode, position, size)
        if not room and data:
            raise _no_space(self.path)
        part = memoryview(data)[:room]
        inode.modified_ms = disk.now_ms()
        for start in range(0, len(part), PAGE_SIZE):
            if start and disk.before_step is not None:
                disk.before_step("pwrite", self.path)  # killed between two pages of one write
            before = len(inode.live)
            inode.write(part[start : start + PAGE_SIZE], position + start, next(disk._touches))
            if len(inode.live) != before:
                disk.name_space.resized(self._key, inode)
        disk.faults.linger("pwrite", self.path)
        return len(part)

    def pread(self, size: int, position: int) -> bytes:
        self._check_open()
        self._disk.faults.check("pread", self.path)
        return bytes(self._inode.live[position : position + size])

    def data_start(self, position: int) -> int:
        live = self._inode.live
        while position < len(live) and not any(live[position : position + PAGE_SIZE]):
            position += PAGE_SIZE - position % PAGE_SIZE
        return position

    def datasync(self) -> None:
        try:
            inode = self._begin("datasync")
        except OSError:
            self._inode.lose()
            raise
        self._disk.name_space.file_synced(inode)
        inode.sync()
        self._disk.faults.linger("datasync", self.path)

    def allocate(self, position: int, size: int) -> None:
        inode = self._begin("allocate")
        if self._disk.reserve(inode, position, size) < size:
            got = max(inode.blocks, default=-1) + 1
            self._resize(min(max(len(inode.live), got * PAGE_SIZE), position + size))
            raise _no_space(self.path)
        self._resize(max(len(inode.live), position + size))
        self.size = max(self.size, position + size)
        self._disk.faults.linger("allocate", self.path)

    def truncate(self, size: int) -> None:
        inode = self._begin("truncate")
        cut = [page for page in inode.blocks if page * PAGE_SIZE >= size]
        inode.blocks.difference_update(cut)
        if self._disk.free is not None:
            self._disk.free += len(cut) * PAGE_SIZE
        self._resize(size)
        self.size = size

    def _resize(self, size: int) -> None:
        inode = self._inode
        if size == len(inode.live):
            return
        assert not inode.mapped, "the size changes while the file is mapped for stores"
        start = min(size, len(inode.live))
        for page in pages_of(start, len(inode.live) - start):
            inode.touch(page, next(self._disk._touches))
        inode.resize(size)
        self._disk.name_space.resized(self._key, inode)

    def view(self) -> memoryview:
        self._check_open()
        if self.size == 0:
            raise ValueError("cannot mmap an empty file")
        self._disk.faults.check("map", self.path)
        return memoryview(self._inode.live)[: self.size].toreadonly()

    def writable_view(self) -> memoryview:
        self._check_open()
        self._disk.faults.check("map", self.path)
        self._inode.mapped = True
        return memoryview(self._inode.live)[: self.size]

    def close(self) -> None:
        self._check_open()
        self._closed = True

    def _begin(self, op: str) -> Inode:
        self._check_open()
        self._disk._step(op, self.path)
        return self._inode

    def _check_open(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self.path))


class CrashLock:
    """Implements `skylarkmq.common.files.FileLock`."""

    def __init__(self, disk: CrashDisk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._inode = disk.inode(path)
        disk.locked[path] = self

    def is_in_place(self) -> bool:
        return self._disk.inode(self._path) is self._inode

    def release(self) -> None:
        if self._disk.locked.get(self._path) is self:
            del self._disk.locked[self._path]


def _missing(path: Path) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def _no_space(path: Path) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
