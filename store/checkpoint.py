"""Checkpoint: up to which store time the files are on the disk; it bounds an unclean recovery.

    position  size  field                    type
    0         8     physic_msg_timestamp     int64 BE   commit log synced up to this store time, ms
    8         8     logics_msg_timestamp     int64 BE   consume queues synced up to this, ms
    16        8     index_msg_timestamp      int64 BE   key index synced up to this, ms
    24        4072  zeros

Every field is a lower bound: written only after a successful sync of what it speaks of, so an old
checkpoint makes recovery longer, never wrong. No checksum: 24 bytes lie within one disk sector.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../StoreCheckpoint.java
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from skylarkmq.store.files import Files

FILE_SIZE = 4096
FIELDS = struct.Struct(">qqq")
assert FIELDS.size == 24

# A record stored within this time before the mark may have been written after one behind it.
SAFETY_MS = 3000


class Marks(NamedTuple):
    """The three store times, ms since the epoch; 0 is unknown."""

    physic_timestamp: int = 0
    logics_timestamp: int = 0
    index_timestamp: int = 0

    @property
    def min_timestamp(self) -> int:
        """Everything stored up to this time is in the log and in the queues on the disk."""
        return max(0, min(self.physic_timestamp, self.logics_timestamp) - SAFETY_MS)


class Checkpoint:
    """The checkpoint file. `save` blocks: queues thread, or the loading and stopping thread."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path

    def load(self) -> Marks:
        """Read the marks; all zero when the file is missing or too short to hold them."""
        if not self._files.exists(self._path):
            return Marks()
        data = self._files.read_all(self._path)[: FIELDS.size]
        if len(data) < FIELDS.size:
            return Marks()
        return Marks(*(max(0, field) for field in FIELDS.unpack(data)))

    def save(self, marks: Marks) -> None:
        """Write the marks and sync them."""
        fresh = not self._files.exists(self._path)
        file = self._files.open(self._path, create=fresh)
        try:
            if file.size < FILE_SIZE:
                file.allocate(0, FILE_SIZE)
            file.pwrite(FIELDS.pack(*marks), 0)
            file.datasync()
        finally:
            file.close()
        if fresh:
            self._files.sync_folder(self._path.parent)
