"""Where a replica keeps its store: a file system of its own, whose operations can be limited.

A file system in a file is mounted, so that a slow replica holds up nobody else's journal. The limit
is the kernel's, of the block layer: cgroup v1's `blkio.throttle`. Without root, loop mounts or that
controller it is a plain folder, which cannot be slow.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

IMAGE_SIZE: Final = 2 << 30
CONTROLLER: Final = Path("/sys/fs/cgroup/blkio")
LIMIT: Final = "blkio.throttle.write_iops_device"


class Volume:
    """The place of one store."""

    def __init__(self, folder: Path, name: str) -> None:
        self.root = folder / name
        self._image = folder / f"{name}.image"
        self._group = CONTROLLER / f"skylarkmq-failover-{os.getpid()}-{name}"
        self._is_mounted = False

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def can_be_slow(self) -> bool:
        return self._is_mounted and self._group.is_dir()

    def make(self, *, with_root: bool) -> None:
        """Make the folder, and as much of the rest as this machine allows."""
        self.root.mkdir(parents=True)
        if not with_root or shutil.which("mkfs.ext4") is None:
            return
        with self._image.open("wb") as file:
            file.truncate(IMAGE_SIZE)
        subprocess.run(["mkfs.ext4", "-q", str(self._image)], check=True)
        self._is_mounted = _runs("mount", "-o", "loop", str(self._image), str(self.root))
        if self._is_mounted and (CONTROLLER / LIMIT).exists():
            self._group.mkdir()

    def take_in(self, pid: int) -> None:
        """Let limits hold for a process and what it starts."""
        if self._group.is_dir():
            (self._group / "cgroup.procs").write_text(str(pid))

    def limit(self, operations: int) -> None:
        """Let so many writes a second through; 0: as many as there are."""
        device = os.stat(self.root).st_dev
        (self._group / LIMIT).write_text(f"{os.major(device)}:{os.minor(device)} {operations}")

    def lose(self) -> None:
        """The store is gone; nobody has it open."""
        shutil.rmtree(self.store, ignore_errors=True)

    def keep(self, target: Path) -> None:
        """Copy the store, when it is not in a folder that stays."""
        if self._is_mounted and self.store.is_dir():
            _runs("cp", "-r", "--sparse=always", str(self.store), str(target))

    def remove(self) -> None:
        """Take away mount and limit; the files of a plain folder stay."""
        if self._group.is_dir():
            self._group.rmdir()
        if self._is_mounted:
            self._is_mounted = not _runs("umount", str(self.root))
            self._image.unlink()


def _runs(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
