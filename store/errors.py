"""Errors of the store. An outcome that the protocol names is a status, not one of these."""

from __future__ import annotations

from pathlib import Path


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


class StoreFullError(StoreError):
    """No next file: the disk has no room for it, or has not made it yet. This passes."""


class NoBufferError(StoreFullError):
    """The transient pool has no buffer for the next file, and that is to be refused."""


class StoreLockedError(StoreError):
    """Another broker has the store open."""


class StoreProfileError(StoreError):
    """The files in the folder have other sizes than the configuration says."""
