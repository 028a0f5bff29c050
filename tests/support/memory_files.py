"""A disk in memory for what reads and writes small tables: whole files, no handles."""

from __future__ import annotations

from pathlib import Path

from skylarkmq.common.files import DiskSpace, FileLock, StoreFile
from skylarkmq.common.table_file import TableWriter
from tests.support.workers import ManualWorker


class MemoryFiles:
    """Implements the part of `skylarkmq.common.files.Files` that tables need.

    Attributes:
        texts: what each file holds.
        error: raised by the next writes until it is None again.
        write_count: how many files were replaced.
    """

    def __init__(self, texts: dict[Path, bytes] | None = None) -> None:
        self.texts = dict(texts or {})
        self.error: OSError | None = None
        self.write_count = 0

    def exists(self, path: Path) -> bool:
        return path in self.texts

    def read_all(self, path: Path) -> bytes:
        return self.texts[path]

    def replace(self, path: Path, data: bytes, *, backup: bool) -> None:
        if self.error is not None:
            raise self.error
        self.write_count += 1
        if backup and path in self.texts:
            self.texts[path.with_name(path.name + ".bak")] = self.texts[path]
        self.texts[path] = bytes(data)

    def unlink(self, path: Path) -> None:
        del self.texts[path]

    def list(self, path: Path) -> list[str]:
        return sorted(name.name for name in self.texts if name.parent == path)

    def size(self, path: Path) -> int:
        return len(self.texts[path])

    def make_folder(self, path: Path) -> None:
        """Folders need no making here."""

    def add_folder(self, path: Path) -> tuple[Path, ...]:
        return ()

    def remove_folder(self, path: Path) -> None:
        """Folders need no removing here."""

    def sync_folder(self, path: Path) -> None:
        """Nothing is ever lost here."""

    def free_bytes(self, path: Path) -> int:
        return 1 << 40

    def space(self, path: Path) -> DiskSpace:
        return DiskSpace(0, 1 << 40)

    def modified_ms(self, path: Path) -> int:
        return 0

    def open(self, path: Path, *, create: bool = False) -> StoreFile:
        raise NotImplementedError("tables are read and written whole")

    def lock(self, path: Path) -> FileLock | None:
        raise NotImplementedError("tables are not locked")

    def lock_folder(self, path: Path) -> FileLock | None:
        raise NotImplementedError("tables are not locked")


class Tables:
    """A table writer over a disk in memory, whose worker moves only when it is told."""

    def __init__(self, texts: dict[Path, bytes] | None = None) -> None:
        self.files = MemoryFiles(texts)
        self.worker = ManualWorker("tables")
        self.writer = TableWriter(self.files, self.worker)
