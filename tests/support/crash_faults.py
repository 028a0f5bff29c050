"""Errors of a disk on order: the n-th call of an operation fails, or writes less than asked."""

from __future__ import annotations

import os
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


class Faults:
    """The errors that a disk still has to raise.

    Operations: create pwrite pread datasync allocate truncate rename link unlink sync_folder
    make_folder.
    """

    def __init__(self) -> None:
        self._faults: list[_Fault] = []
        self.raised = 0

    def add(
        self, op: str, *, at: int, times: int, error: int, path: str, short: int | None
    ) -> None:
        """Plan a fault.

        Args:
            at: the first call that fails, counted from now among those that match; 1 is the next.
            times: how many calls fail from there on.
            path: a part of the path of the files that are meant.
            short: bytes that a `pwrite` writes before it fails; None to write nothing.
        """
        self._faults.append(_Fault(op, path, at - 1, times, error, short))

    def clear(self) -> None:
        """The disk is sound again."""
        self._faults.clear()

    def check(self, op: str, path: Path) -> None:
        """Count a call, and raise if it is one that fails."""
        fault = self._due(op, path, short=False)
        if fault is not None:
            raise OSError(fault.error, os.strerror(fault.error), str(path))

    def short_count(self, op: str, path: Path) -> int | None:
        """How many bytes this write gets down, None for all of them."""
        fault = self._due(op, path, short=True)
        return None if fault is None else fault.short

    def _due(self, op: str, path: Path, *, short: bool) -> _Fault | None:
        for fault in self._faults:
            if fault.op != op or fault.path not in str(path) or (fault.short is not None) != short:
                continue
            if fault.calls_until > 0:
                fault.calls_until -= 1
            elif fault.calls_failing > 0:
                fault.calls_failing -= 1
                self.raised += 1
                return fault
        return None
