"""Errors of the files that this project writes."""

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
