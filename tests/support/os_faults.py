"""The calls of the system below `DiskFiles`, failing on order: the product's own code, a real file.

    os_faults = OsFaults(monkeypatch)
    os_faults.faults.add("pwrite", at=3, times=1, error=errno.ENOSPC, path="", short=100)

Only what `common/files.py` calls is replaced. The operations are those of `crash_faults.py`.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.common import files
from tests.support.crash_faults import Faults


class OsFaults:
    """Takes the place of the modules `os` and `mmap` in `common/files.py`."""

    PROT_READ = mmap.PROT_READ

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.faults = Faults()
        datasync, allocate = files._datasync, files._allocate

        def failing_datasync(fd: int) -> None:
            self.faults.check("datasync", _path_of(fd))
            datasync(fd)

        def failing_allocate(fd: int, position: int, size: int) -> None:
            self.faults.check("allocate", _path_of(fd))
            allocate(fd, position, size)

        patch.setattr(files, "os", self)
        patch.setattr(files, "mmap", self)
        patch.setattr(files, "_datasync", failing_datasync)
        patch.setattr(files, "_allocate", failing_allocate)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        self.faults.check("open", path)
        return os.open(path, flags, mode)

    def listdir(self, path: Path) -> list[str]:
        self.faults.check("open", path)
        return os.listdir(path)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        path = _path_of(fd)
        self.faults.check("pwrite", path)
        return os.pwrite(fd, data[: self.faults.part("pwrite", path, len(data))], position)

    def write(self, fd: int, data: memoryview) -> int:
        path = _path_of(fd)
        self.faults.check("pwrite", path)
        return os.write(fd, data[: self.faults.part("pwrite", path, len(data))])

    def ftruncate(self, fd: int, size: int) -> None:
        self.faults.check("truncate", _path_of(fd))
        os.ftruncate(fd, size)

    def mmap(self, fd: int, size: int, **more: int) -> mmap.mmap:
        if size:  # else it is no call of the system
            self.faults.check("map", _path_of(fd))
        return mmap.mmap(fd, size, **more)


def _path_of(fd: int) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{fd}"))
