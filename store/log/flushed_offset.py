"""The flushed offset on the disk: below it the log was synced, whenever a process ended.

`skylarkmq/flushed-offset` has the framing of `sidecar.py`, in a form of constant size:

    position  size  field
    0         12    head, kind 5
    12        17    payload   msgpack {"offset": uint64}
    29        4     crc       CRC-32C

Written in place by the flush thread after each sync of the log has returned, and not synced itself:
what it says was true before it was said. A process that is killed leaves it as new as the last
sync; a power cut leaves an older one, for the page may reach the disk late and never early. The 33
bytes lie within one sector, so it is whole; one that rots counts for nothing.

It speaks of the log that our last run left. If another broker has run on the store, which the
recovery point tells (`checkpoint.py`), it counts for nothing either. So a start syncs it once,
before there is a recovery point of that start.

Unlike RocketMQ, which knows what was on the disk only by the store times of `checkpoint`.
"""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import Final

from skylarkmq.common.errors import CorruptFileError
from skylarkmq.common.files import Files, StoreFile
from skylarkmq.common.refusal import is_no_space, refusal
from skylarkmq.common.sidecar import CRC, HEAD, MAGIC, VERSION, Kind, read_sidecar, seal
from skylarkmq.store.checkpoint import UNKNOWN

log = logging.getLogger(__name__)

_KEY: Final = b"\x81\xa6offset\xcf"  # a map of one, "offset", and a uint64 that follows
_RECORD = struct.Struct(f">4sHHI{len(_KEY)}sQ")
assert _RECORD.size + CRC.size == 33
_PAYLOAD_SIZE: Final = _RECORD.size - HEAD.size


class FlushedOffset:
    """The file. All calls block; one thread at a time: loading, flush, stopping."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._file: StoreFile | None = None

    def load(self) -> int:
        """Return what the file says; -1 is unknown."""
        try:
            said = read_sidecar(self._files, self._path, Kind.FLUSHED_OFFSET, dict[str, int]) or {}
        except CorruptFileError as error:
            log.warning("%s; recovery goes without it", error)
            return UNKNOWN
        return said.get("offset", UNKNOWN)

    def open(self, offset: int) -> None:
        """Say, durably, that the log is synced up to its end, and be ready for `write`.

        Without room for the file the store goes on without it.
        """
        self._files.make_folder(self._path.parent)
        data = encode(offset)
        try:
            if not self._files.exists(self._path) or self._files.size(self._path) != len(data):
                self._files.replace(self._path, data, backup=False)
            self._file = self._files.open(self._path)
            self._file.pwrite(data, 0)
            self._file.datasync()
        except OSError as error:
            if not is_no_space(error):
                raise
            self._give_up(error)

    def write(self, offset: int) -> None:
        """Say that the log is synced up to an offset, after it was."""
        if self._file is None:
            return
        try:
            self._file.pwrite(encode(offset), 0)
        except OSError as error:
            if refusal(error) is None:
                raise
            self.close()  # what it says stays true
            log.warning("no room for %s, which stays as it is: %s", self._path, error)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _give_up(self, error: OSError) -> None:
        """Remove what an earlier run has said: the log may have been cut below it."""
        self.close()
        if self._files.exists(self._path):
            self._files.unlink(self._path)
            self._files.sync_folder(self._path.parent)
        log.warning("no room for %s; a damaged end of the log would be cut: %s", self._path, error)


def encode(offset: int) -> bytes:
    """Return the file's bytes."""
    return seal(_RECORD.pack(MAGIC, VERSION, Kind.FLUSHED_OFFSET, _PAYLOAD_SIZE, _KEY, offset))
