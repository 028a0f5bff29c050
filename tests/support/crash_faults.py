"""Errors of a disk on order: the n-th call of an operation fails, takes a part, or takes long."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass
class _Fault:
    op: str
    path: str
    calls_until: int
    calls_failing: int
    error: int
    short: int | None


@dataclass
class _Slow:
    op: str
    path: str
    calls_until: int
    meanwhile: Callable[[], object]


class Faults:
    """The errors that a disk still has to raise.

    Operations: open map create pwrite pread datasync allocate truncate rename link unlink
    sync_folder make_folder. `open` is every call that needs a descriptor, also for a folder or for
    a file that is read as a whole; `map` every mapping.
    """

    def __init__(self) -> None:
        self._faults: list[_Fault] = []
        self._slow: list[_Slow] = []
        self.raised = 0
        self.hit: list[tuple[str, Path]] = []  # the calls that failed, or took a part

    def add(
        self, op: str, *, at: int, times: int, error: int, path: str, short: int | None
    ) -> None:
        """Plan a fault.

        Args:
            at: the first call that fails, counted from now among those that match; 1 is the next.
            times: how many calls fail from there on.
            path: a part of the path of the files that are meant.
            short: bytes that the system takes of the `pwrite` at `at`, which is no error; the
                `times` calls behind it fail. None to fail at once.
        """
        self._faults.append(_Fault(op, path, at - 1, times, error, short))

    def slow_down(self, op: str, *, at: int, path: str, meanwhile: Callable[[], object]) -> None:
        """Let one call take long: `meanwhile` runs before it returns.

        A sync covers what was written before it began, and nothing of what `meanwhile` writes.
        """
        self._slow.append(_Slow(op, path, at - 1, meanwhile))

    def clear(self) -> None:
        """The disk is sound again."""
        self._faults.clear()
        self._slow.clear()

    def check(self, op: str, path: Path) -> None:
        """Count a call, and raise if it is one that fails."""
        fault = self._due(op, path, short=False)
        if fault is not None:
            fault.calls_failing -= 1
            raise OSError(fault.error, os.strerror(fault.error), str(path))

    def part(self, op: str, path: Path, size: int) -> int:
        """How many bytes the system takes of this write."""
        fault = self._due(op, path, short=True)
        if fault is None or fault.short is None:
            return size
        short, fault.short = fault.short, None  # from now on it fails
        return min(short, size)

    def linger(self, op: str, path: Path) -> None:
        """Let the end of a call wait, if it is the slow one."""
        for slow in self._slow:
            if slow.op != op or slow.path not in str(path):
                continue
            slow.calls_until -= 1
            if slow.calls_until < 0:
                self._slow.remove(slow)
                self.hit.append((op, path))
                slow.meanwhile()
                return

    def _due(self, op: str, path: Path, *, short: bool) -> _Fault | None:
        for fault in self._faults:
            if fault.op != op or fault.path not in str(path) or (fault.short is not None) != short:
                continue
            if fault.calls_until > 0:
                fault.calls_until -= 1
            elif fault.calls_failing > 0 or short:
                self.raised += 1
                self.hit.append((op, path))
                return fault
        return None
