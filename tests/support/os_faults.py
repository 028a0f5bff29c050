"""The calls of the system below `DiskFiles`, failing on order: the product's own code, a real file.

    system = OsFaults(monkeypatch, tmp_path)
    system.faults.add("pwrite", at=3, times=1, error=errno.ENOSPC, path="", short=100)

Only what `common/files.py` and the modules named beside it call is replaced, and only for files
below the folder. The operations are those of `crash_faults.py`.
"""

from __future__ import annotations

import io
import mmap
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from skylarkmq.common import files
from tests.support.crash_faults import Faults


class OsFaults:
    """Takes the place of the modules `os` and `mmap`."""

    PROT_READ = mmap.PROT_READ

    def __init__(self, patch: pytest.MonkeyPatch, root: Path, *modules: ModuleType) -> None:
        self.faults = Faults()
        self._root = root
        datasync, allocate, path_open = files._datasync, files._allocate, io.open

        def failing_datasync(fd: int) -> None:
            self._check("datasync", fd)
            datasync(fd)

        def failing_allocate(fd: int, position: int, size: int) -> None:
            self._check("allocate", fd)
            allocate(fd, position, size)

        def failing_open(path: Path, *more: Any, **named: Any) -> Any:
            self._check("open", path)
            return path_open(path, *more, **named)

        for module in (files, *modules):
            patch.setattr(module, "os", self)
        patch.setattr(files, "mmap", self)
        patch.setattr(files, "_datasync", failing_datasync)
        patch.setattr(files, "_allocate", failing_allocate)
        patch.setattr(Path, "open", failing_open)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        self._check("open", path)
        return os.open(path, flags, mode)

    def listdir(self, path: Path) -> list[str]:
        self._check("open", path)
        return os.listdir(path)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        return os.pwrite(fd, data[: self._part(fd, len(data))], position)

    def write(self, fd: int, data: memoryview) -> int:
        return os.write(fd, data[: self._part(fd, len(data))])

    def ftruncate(self, fd: int, size: int) -> None:
        self._check("truncate", fd)
        os.ftruncate(fd, size)

    def fsync(self, fd: int) -> None:
        self._check("sync_folder" if _path_of(fd).is_dir() else "datasync", fd)
        os.fsync(fd)

    def mmap(self, fd: int, size: int, **more: int) -> mmap.mmap:
        if size:  # else it is no call of the system
            self._check("map", fd)
        return mmap.mmap(fd, size, **more)

    def _check(self, op: str, file: int | Path) -> None:
        path = _path_of(file)
        if path.is_relative_to(self._root):
            self.faults.check(op, path)

    def _part(self, fd: int, size: int) -> int:
        """How much of a write the system takes."""
        self._check("pwrite", fd)
        path = _path_of(fd)
        return self.faults.part("pwrite", path, size) if path.is_relative_to(self._root) else size


def _path_of(file: int | Path) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{file}")) if isinstance(file, int) else Path(file)
