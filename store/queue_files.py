"""The files of consume queues: reading units, writing them in the background, finding their end.

    consumequeue/<topic>/<queueId>/<20 digits>    name: byte offset of the first unit

A file has its full length from the start, but blocks only a little ahead of the write position: at
most as much again as it holds, so ten thousand queues of a few messages cost 40 MB. Handles are
opened on need and kept in bounded caches, one for readers (loop thread) and one for the writer
(queues thread), so neither closes the other's.

Crash story: nothing here is needed to recover a message. What the last checkpoint does not cover is
cut off and built again from the log (`recovery.py`).
"""

from __future__ import annotations

import errno
import logging
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

from skylarkmq.store.consume_queue import PRE_BLANK, UNIT, UNIT_SIZE, is_valid_unit
from skylarkmq.store.errors import StoreProfileError
from skylarkmq.store.files import Files, StoreFile
from skylarkmq.store.mapped_file import NAME_DIGITS, file_name

log = logging.getLogger(__name__)

ALLOCATE_MIN = 4096  # blocks of a new file, bytes; doubled as it grows
ALLOCATE_AHEAD = 65536  # until they are this many
SCAN_SIZE = 4096 * UNIT_SIZE
RECOVERED_FILES = 3  # newest files that are looked through for the end of a queue


class HandleCache:
    """Open files by path, the least recently used closed first. One thread."""

    def __init__(self, files: Files, limit: int) -> None:
        self._files = files
        self._limit = limit
        self._open: OrderedDict[Path, StoreFile] = OrderedDict()

    def get(self, path: Path, *, create: bool = False) -> StoreFile:
        """Open the file, or return the handle that is open."""
        file = self._open.get(path)
        if file is None:
            file = self._open[path] = self._files.open(path, create=create)
            if len(self._open) > self._limit:
                self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end(path)
        return file

    def forget(self, path: Path) -> None:
        file = self._open.pop(path, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


class QueueWrite(NamedTuple):
    """Units of one queue on their way to its file."""

    folder: Path
    first_unit: int  # queue offset of the first one
    data: bytes
    starts_queue: bool  # no file of this queue exists: pad in front of the first unit


class QueueWriter:
    """Writes units and syncs what it wrote. Queues thread, or the loading thread."""

    def __init__(self, files: Files, file_size: int, handle_limit: int = 256) -> None:
        self._files = files
        self._file_size = file_size
        self._handles = HandleCache(files, handle_limit)
        self._allocated: dict[Path, int] = {}
        self._unsynced: dict[Path, None] = {}
        self._unsynced_folders: dict[Path, None] = {}

    def write(self, writes: list[QueueWrite]) -> None:
        """Write every list of units behind the ones before it. Blocks."""
        for write in writes:
            position = write.first_unit * UNIT_SIZE
            data = memoryview(write.data)
            if write.starts_queue and position % self._file_size:
                self._pad(write.folder, position)
            while data:
                within = position % self._file_size
                part = data[: self._file_size - within]
                self._write_part(write.folder, position - within, within, part)
                data = data[len(part) :]
                position += len(part)

    def sync(self) -> None:
        """Bring everything written since the last call to the disk. Blocks.

        Raises:
            OSError: a sync failed. Never with ENOSPC, which passes for a full disk that may be
                asked again: the kernel may have dropped the pages and report success next time.
        """
        try:
            for path in list(self._unsynced):
                self._handles.get(path).datasync()
                del self._unsynced[path]
            for folder in list(self._unsynced_folders):
                self._files.sync_folder(folder)
                del self._unsynced_folders[folder]
        except OSError as error:
            why = f"the sync of consume queues failed: {error}"
            raise OSError(errno.EIO, why, error.filename) from error

    def forget(self, path: Path) -> None:
        """The file was cut or removed behind our back."""
        self._handles.forget(path)
        self._allocated.pop(path, None)
        self._unsynced.pop(path, None)

    def close(self) -> None:
        self._handles.close()

    def _pad(self, folder: Path, position: int) -> None:
        start = position - position % self._file_size
        padding = PRE_BLANK * ((position - start) // UNIT_SIZE)
        self._write_part(folder, start, 0, memoryview(padding))

    def _write_part(self, folder: Path, start: int, within: int, data: memoryview) -> None:
        path = folder / file_name(start)
        allocated = self._allocated.get(path)
        if allocated is None:
            allocated = self._open_for_write(folder, path, within)
        file = self._handles.get(path)
        end = within + len(data)
        if end > allocated:
            target = min(self._file_size, allocation_end(end))
            file.allocate(allocated, target - allocated)
            self._allocated[path] = target
        file.pwrite(data, within)
        self._unsynced[path] = None

    def _open_for_write(self, folder: Path, path: Path, within: int) -> int:
        # A file that is there and short was made when the disk had no room to size it.
        if not self._files.exists(path) or self._files.size(path) < self._file_size:
            self._files.make_folder(folder)
            if folder in self._unsynced_folders:
                # The name of the file before this one first: a queue whose first name was lost
                # and whose second one was kept would seem to begin in the middle.
                self._files.sync_folder(folder)
            self._handles.get(path, create=True).truncate(self._file_size)
            self._unsynced_folders[folder] = None
        if len(self._allocated) > 4096:
            self._allocated.clear()
        allocated = within - within % ALLOCATE_AHEAD
        self._allocated[path] = allocated
        return allocated


def allocation_end(end: int) -> int:
    """Up to where a queue file that is written up to `end` should have blocks."""
    if end > ALLOCATE_AHEAD:
        return end - end % ALLOCATE_AHEAD + ALLOCATE_AHEAD
    target = ALLOCATE_MIN
    while target < end:
        target *= 2
    return target


class QueueReader:
    """Reads units from the files. Loop thread, or the loading thread; each call blocks briefly."""

    def __init__(self, files: Files, file_size: int, handle_limit: int = 256) -> None:
        self._handles = HandleCache(files, handle_limit)
        self._file_size = file_size

    def units(self, folder: Path, first_unit: int, max_count: int) -> bytes:
        """Bytes of the units from `first_unit` on, never past the end of its file.

        Raises:
            FileNotFoundError: the file was removed.
        """
        position = first_unit * UNIT_SIZE
        within = position % self._file_size
        size = min(max_count * UNIT_SIZE, self._file_size - within)
        return self._handles.get(folder / file_name(position - within)).pread(size, within)

    def forget(self, path: Path) -> None:
        self._handles.forget(path)

    def close(self) -> None:
        self._handles.close()


class QueueExtent(NamedTuple):
    """What the files of a queue hold, in unit numbers."""

    first_offset: int
    end_offset: int


class QueueScanner:
    """Finds and moves the end of queues while the store is being loaded. Blocks."""

    def __init__(self, files: Files, file_size: int) -> None:
        self._files = files
        self._file_size = file_size

    def scan(self, folder: Path, *, unclean: bool) -> QueueExtent | None:
        """Return the units that the folder holds, None when it has no file.

        Args:
            unclean: the machine went down, so of the files that were not synced any may be
                missing or shorter than it should; `cut` removes what cannot be trusted.

        Raises:
            StoreProfileError: a file has another size than `mappedFileSizeConsumeQueue`.
        """
        starts = self._starts(folder, unclean=unclean)
        if not starts:
            return None
        end = starts[max(0, len(starts) - RECOVERED_FILES)]
        for start in starts[-RECOVERED_FILES:]:
            end = start + self._valid_size(folder / file_name(start))
            if end < start + self._file_size:
                break
        self._remove_after(folder, starts, end)
        return QueueExtent(starts[0] // UNIT_SIZE, end // UNIT_SIZE)

    def cut(self, folder: Path, end_offset: int) -> None:
        """Remove the units from `end_offset` on; what is behind becomes zeros."""
        position = end_offset * UNIT_SIZE
        starts = self._starts(folder, unclean=True)
        starts = self._remove_after(folder, starts, position)
        within = position % self._file_size
        if position - within in starts:
            file = self._files.open(folder / file_name(position - within))
            try:
                file.truncate(within)
                file.truncate(self._file_size)
                file.datasync()  # or the units come back, behind a checkpoint that covers them
            finally:
                file.close()

    def _starts(self, folder: Path, *, unclean: bool) -> list[int]:
        starts: list[int] = []
        for name in self._files.list(folder):
            path = folder / name
            if len(name) != NAME_DIGITS or not (name.isascii() and name.isdigit()):
                raise StoreProfileError(f"{path} is not a queue file; move it out of the folder")
            size = self._files.size(path)
            if size != self._file_size:
                if size > self._file_size or not unclean:
                    raise StoreProfileError(
                        f"{path} has {size} bytes, mappedFileSizeConsumeQueue is "
                        f"{self._file_size}; start with the size that the store was written with"
                    )
                self._lengthen(path, size)
            starts.append(int(name))
        if unclean:
            starts = self._remove_behind_gap(folder, starts)
        return starts

    def _lengthen(self, path: Path, size: int) -> None:
        """Give a file its size back: the crash came between making and sizing it, or in `cut`."""
        log.warning("%s has %d bytes, cut short by the crash; lengthening it", path, size)
        file = self._files.open(path)
        try:
            file.truncate(self._file_size)
            file.datasync()
        finally:
            file.close()

    def _remove_behind_gap(self, folder: Path, starts: list[int]) -> list[int]:
        for index, start in enumerate(starts):
            if start != starts[0] + index * self._file_size:
                return self._remove_after(folder, starts, start)
        return starts

    def _valid_size(self, path: Path) -> int:
        """Bytes of units at the front of a file, up to the first that was never written."""
        file = self._files.open(path)
        try:
            position, step = 0, 64 * UNIT_SIZE
            while position < self._file_size:
                chunk = file.pread(min(step, self._file_size - position), position)
                for commit_offset, record_size, _ in UNIT.iter_unpack(chunk):
                    if not is_valid_unit(commit_offset, record_size):
                        return position
                    position += UNIT_SIZE
                step = min(step * 4, SCAN_SIZE)
            return position
        finally:
            file.close()

    def _remove_after(self, folder: Path, starts: list[int], end: int) -> list[int]:
        """Remove the files that begin at or behind `end`, durably, and return the others.

        The first file stays, so that the queue keeps its place.
        """
        removed = [start for start in starts[1:] if start >= end]
        for start in removed:
            log.info("removing %s: behind the end of its queue", folder / file_name(start))
            self._files.unlink(folder / file_name(start))
        if removed:
            self._files.sync_folder(folder)
        return starts[: len(starts) - len(removed)]
