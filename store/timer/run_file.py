"""A run: waiting entries in the order of their due times, in a file that is never changed.

    position  size   field         type
    0         4      magic         b"SKTR"
    4         2      version       uint16 BE   1
    6         2      zero          uint16 BE
    8         8      number        int64 BE    the file's name, 20 digits
    16        8      count         int64 BE    entries
    24        4      crc           uint32 BE   CRC-32C of the 24 bytes before it
    28        36     zeros
    64        8192   page 0        each page: 292 entries (fewer in the last one), zeros up to
                                   8188, then uint32 BE the CRC-32C of those

An entry, 28 bytes:

    0         8      due_ms           int64 BE   ms since the epoch, not negative
    8         8      queue_offset     int64 BE   in the timer topic's queue
    16        8      physical_offset  int64 BE   where the record starts in the log
    24        4      record_size      int32 BE   bytes

So the bytes of two entries compare as the entries do: by due time, then by queue offset.

Written whole and synced before a checkpoint names it. Everything here blocks; timer thread.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from skylarkmq.common.crc import crc32c
from skylarkmq.common.errors import CorruptFileError
from skylarkmq.common.files import Files, StoreFile

ENTRY: Final = struct.Struct(">qqqi")
ENTRY_SIZE: Final = 28
KEY_SIZE: Final = 16  # of the part that orders them
DUE_SIZE: Final = 8  # of the due time, which it begins with
HEAD: Final = struct.Struct(">4sHHqq")
CRC: Final = struct.Struct(">I")
MAGIC: Final = b"SKTR"
VERSION: Final = 1
HEAD_SIZE: Final = 64
PAGE_SIZE: Final = 8192
PAGE_ENTRIES: Final = 292
READ_PAGES: Final = 4  # of one run, at a time
assert ENTRY.size == ENTRY_SIZE
assert PAGE_ENTRIES * ENTRY_SIZE + CRC.size <= PAGE_SIZE

_NAME_DIGITS: Final = 20
_PAGE_BYTES: Final = PAGE_ENTRIES * ENTRY_SIZE
MERGE_STEP: Final = 16_384  # entries


class RunPart(NamedTuple):
    """The entries of a run from one of them on."""

    path: Path
    entry_count: int
    start: int


def run_path(folder: Path, number: int) -> Path:
    """Return the path of a run."""
    return folder / f"{number:0{_NAME_DIGITS}d}"


class RunWriter:
    """Writes one run, piece by piece."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._file: StoreFile | None = None
        self._buffer = bytearray()
        self._position = HEAD_SIZE
        self._count = 0

    def add(self, entries: bytes) -> None:
        """Write more entries, which follow those before.

        Raises:
            OSError: the disk refused; what is there of the file is of no use.
        """
        file = self._opened()
        self._buffer += entries
        self._count += len(entries) // ENTRY_SIZE
        whole = len(self._buffer) - len(self._buffer) % _PAGE_BYTES
        if whole:
            starts = range(0, whole, _PAGE_BYTES)
            pages = [_page(self._buffer[at : at + _PAGE_BYTES]) for at in starts]
            file.pwrite(b"".join(pages), self._position)
            self._position += len(pages) * PAGE_SIZE
            del self._buffer[:whole]

    def finish(self) -> int:
        """Sync the run and return how many entries it has.

        Raises:
            OSError: as `add`.
        """
        file = self._opened()
        if self._buffer:
            file.pwrite(_page(self._buffer), self._position)
        head = HEAD.pack(MAGIC, VERSION, 0, int(self._path.name), self._count)
        file.pwrite((head + CRC.pack(crc32c(head))).ljust(HEAD_SIZE, b"\0"), 0)
        file.datasync()
        self.close()
        self._files.sync_folder(self._path.parent)
        return self._count

    def close(self) -> None:
        """Let the file go."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> StoreFile:
        if self._file is None:
            self._file = self._files.open(self._path, create=True)
            self._file.truncate(0)
        return self._file


def write_run(files: Files, path: Path, entries: bytes) -> int:
    """Write a whole run and sync it. Its number of entries.

    Raises:
        OSError: the disk refused; what is there of the file is of no use.
    """
    writer = RunWriter(files, path)
    try:
        writer.add(entries)
        return writer.finish()
    finally:
        writer.close()


def _page(entries: bytearray) -> bytes:
    body = bytes(entries).ljust(PAGE_SIZE - CRC.size, b"\0")
    return body + CRC.pack(crc32c(body))


def check_run(files: Files, path: Path, count: int) -> None:
    """Compare the head and the length of a run with what the checkpoint says.

    Raises:
        CorruptFileError, OSError: it is not that run, or not there.
    """
    file = files.open(path)
    try:
        head = file.pread(HEAD_SIZE, 0)
        pages = -(-count // PAGE_ENTRIES)
        if len(head) < HEAD_SIZE or file.size < HEAD_SIZE + pages * PAGE_SIZE:
            raise CorruptFileError(path, file.size, "the file is too short")
        if CRC.unpack_from(head, HEAD.size)[0] != crc32c(head[: HEAD.size]):
            raise CorruptFileError(path, HEAD.size, "the CRC-32C does not match")
        if HEAD.unpack_from(head) != (MAGIC, VERSION, 0, int(path.name), count):
            raise CorruptFileError(path, 0, "this is another run")
    finally:
        file.close()


def read_entries(files: Files, part: RunPart, max_pages: int = READ_PAGES) -> bytes:
    """Return whole entries from `part.start` on, up to the end of some page.

    Raises:
        CorruptFileError, OSError: they cannot be read.
    """
    first = part.start // PAGE_ENTRIES
    last = min(first + max_pages, -(-part.entry_count // PAGE_ENTRIES))
    file = files.open(part.path)
    try:
        data = file.pread((last - first) * PAGE_SIZE, HEAD_SIZE + first * PAGE_SIZE)
    finally:
        file.close()
    entries: list[bytes] = []
    for number in range(first, last):
        page = data[(number - first) * PAGE_SIZE : (number - first + 1) * PAGE_SIZE]
        position = HEAD_SIZE + number * PAGE_SIZE
        if len(page) < PAGE_SIZE:
            raise CorruptFileError(part.path, position, "the file is too short")
        if CRC.unpack_from(page, PAGE_SIZE - CRC.size)[0] != crc32c(page[: -CRC.size]):
            raise CorruptFileError(part.path, position, "the CRC-32C of a page does not match")
        here = min(PAGE_ENTRIES, part.entry_count - number * PAGE_ENTRIES)
        entries.append(page[: here * ENTRY_SIZE])
    return b"".join(entries)[(part.start - first * PAGE_ENTRIES) * ENTRY_SIZE :]


class _Source:
    """One of the runs that are merged, a few pages of it in memory."""

    def __init__(self, files: Files, part: RunPart) -> None:
        self._files = files
        self._part = part
        self._next = part.start
        self.entries: list[bytes] = []

    @property
    def has_more(self) -> bool:
        """True while more follows what is in memory."""
        return self._next < self._part.entry_count

    def fill(self) -> None:
        if self.entries or not self.has_more:
            return
        data = read_entries(self._files, self._part._replace(start=self._next))
        self.entries = split(data)
        self._next += len(self.entries)

    def take(self, bound: bytes | None) -> list[bytes]:
        """Take the entries up to `bound`, all of them without one."""
        end = len(self.entries) if bound is None else bisect_right(self.entries, bound)
        taken = self.entries[:end]
        del self.entries[:end]
        return taken


class Merge:
    """Several runs on their way into one, step by step, so that other work comes in between."""

    def __init__(self, files: Files, path: Path, parts: Sequence[RunPart]) -> None:
        self._sources = [_Source(files, part) for part in parts]
        self._writer = RunWriter(files, path)

    def step(self) -> int | None:
        """Go on for a while; the number of entries when all is written and synced, else None.

        Raises:
            CorruptFileError, OSError: a run cannot be read, or the new one not written.
        """
        try:
            written = 0
            while written < MERGE_STEP:
                chunk = self._chunk()
                if not chunk:
                    return self._writer.finish()
                self._writer.add(b"".join(chunk))
                written += len(chunk)
        except BaseException:
            self._writer.close()
            raise
        return None

    def close(self) -> None:
        """Give up."""
        self._writer.close()

    def _chunk(self) -> list[bytes]:
        for source in self._sources:
            source.fill()
        self._sources = [source for source in self._sources if source.entries]
        # What lies up to the first of the last entries in memory is in memory from every run.
        bound = min(
            (source.entries[-1] for source in self._sources if source.has_more), default=None
        )
        chunk = [entry for source in self._sources for entry in source.take(bound)]
        chunk.sort()
        return chunk


def split(data: bytes) -> list[bytes]:
    """Return the single entries of bytes that hold some."""
    return [data[at : at + ENTRY_SIZE] for at in range(0, len(data), ENTRY_SIZE)]
