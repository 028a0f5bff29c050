"""Errors of the files that this project writes, and what the system's are called."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final


class StoreError(Exception):
    """Anything that keeps the store from opening or going on."""


class CorruptFileError(StoreError):
    """A file holds bytes that the store cannot have written there.

    Attributes:
        path: the file.
        position: byte place within it.
        why: what is wrong with it, for a human.
    """

    def __init__(self, path: Path, position: int, why: str) -> None:
        super().__init__(f"{path} at byte {position}: {why}")
        self.path = path
        self.position = position
        self.why = why


_CURES: Final = {
    errno.EACCES: "{who} may not use it: change its owner, or name another path",
    errno.EPERM: "{who} may not use it: change its owner, or name another path",
    errno.EROFS: "this file system is only for reading: name a path on another one",
}


def reason(error: Exception) -> str:
    """Return an error in one line; what the system refuses names its path, and the cure."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    if error.filename is None:
        return error.strerror
    cure = _CURES.get(error.errno or 0, "").format(who=_who_runs_this())
    return f"{error.filename}: {error.strerror}" + (f"; {cure}" if cure else "")


def _who_runs_this() -> str:
    """Return the user of this process by its number: a container's has no name outside it."""
    return f"user {os.geteuid()}" if hasattr(os, "geteuid") else "whoever runs this"
