"""The files of consume queues: reading, and writing in the background.

    consumequeue/<topic>/<queueId>/<20 digits>    name: byte offset of the first unit

A file has its full length from the start, but blocks only a little ahead of the write position: at
most as much again as it holds, so ten thousand queues of a few messages cost 40 MB. Handles are
opened on need and kept in bounded caches, one for readers (loop thread) and one for the writer
(queues thread), so neither closes the other's.

Syncs come in slices, and new folders wait for them like everything else: the first units of ten
thousand queues bring as many files and folders to the disk, which must not keep the units of others
from being written.

Crash story: nothing here is needed to recover a message. What the last checkpoint does not cover is
cut off and built again from the log (`recovery.py`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from skylarkmq.common.files import Files, StoreFile
from skylarkmq.common.refusal import failed_sync, is_no_space
from skylarkmq.store.log.mapped_file import file_name
from skylarkmq.store.queue.consume_queue import PRE_BLANK, UNIT_SIZE

log = logging.getLogger(__name__)

ALLOCATE_MIN = 4096  # blocks of a new file, bytes; doubled as it grows
ALLOCATE_AHEAD = 65536  # until they are this many


@lru_cache(maxsize=1024)  # making a path costs as much as reading what it leads to
def path_of(folder: Path, start: int) -> Path:
    """Return the file of a queue, or of an extension, that begins at a byte offset."""
    return folder / file_name(start)


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
    """Units of one queue on their way to its files."""

    folder: Path
    position: int  # byte offset of the first one
    data: bytes
    starts_queue: bool = False  # no file of this queue exists: pad before the first unit


class QueueWriter:
    """Writes in the background and syncs what it wrote. Queues thread, or the loading thread."""

    def __init__(self, files: Files, file_size: int, handle_limit: int = 256) -> None:
        self._files = files
        self._file_size = file_size
        self._handles = HandleCache(files, handle_limit)
        self._allocated: dict[Path, int] = {}
        self._unsynced: dict[Path, int] = {}  # file -> bytes written since its last sync
        self._unsynced_folders: dict[Path, None] = {}
        # What a sync in slices still has to do, the next one last.
        self._files_left: list[Path] = []
        self._folders_left: list[Path] = []

    def write(self, writes: list[QueueWrite]) -> None:
        """Write everything, after what was there before. Blocks."""
        for write in writes:
            position = write.position
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
            OSError: as `sync_some`.
        """
        self.begin_sync()
        while not self.sync_some(len(self._files_left) + len(self._folders_left)):
            pass

    def begin_sync(self) -> None:
        """Let the next calls of `sync_some` bring what is written by now to the disk."""
        self._files_left = list(reversed(self._unsynced))
        self._folders_left = list(reversed(self._unsynced_folders))

    def sync_some(self, count: int) -> bool:
        """Sync up to `count` files and folders. Blocks. True when what was begun is done.

        Raises:
            OSError: a sync failed, or the machine refused a descriptor; what is not synced is
                synced by the next call that begins anew.
        """
        for _ in range(count):
            if self._files_left:
                self._sync_file(self._files_left.pop())
            elif self._folders_left:
                self._sync_folder(self._folders_left.pop())
            else:
                break
        return not self._files_left and not self._folders_left

    def sync_full(self, least_size: int, count: int) -> bool:
        """Sync up to `count` files that have `least_size` unsynced bytes or more. Blocks.

        Returns:
            True when no more are left.

        Raises:
            OSError: as `sync_some`.
        """
        full = [path for path, size in self._unsynced.items() if size >= least_size]
        for path in full[:count]:
            self._sync_file(path)
        return len(full) <= count

    def _sync_file(self, path: Path) -> None:
        if path in self._unsynced:
            file = self._handles.get(path)
            try:
                file.datasync()
            except OSError as error:
                raise failed_sync(error) from error
            del self._unsynced[path]

    def _sync_folder(self, folder: Path) -> None:
        if folder in self._unsynced_folders:
            try:
                self._files.sync_folder(folder)
            except OSError as error:
                if is_no_space(error):
                    raise failed_sync(error) from error
                raise  # it may be that the folder could not be opened
            del self._unsynced_folders[folder]

    def remove(self, path: Path) -> bool:
        """Delete a file that is not the last of its queue, the oldest first. Blocks.

        Its name is gone for good with the next sync, or before another one of this folder goes: a
        queue that lost a file in its middle would have to be built again.

        Returns:
            False when there is no such file, or the system keeps it.

        Raises:
            OSError: the folder could not be synced.
        """
        self._sync_folder(path.parent)
        self.forget(path)
        try:
            self._files.unlink(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            log.error("cannot remove an expired file: %s", error)
            return False
        self._unsynced_folders[path.parent] = None
        return True

    def forget(self, path: Path) -> None:
        """Forget a file or folder that another part cuts or removes."""
        self._handles.forget(path)
        self._allocated.pop(path, None)
        self._unsynced.pop(path, None)
        self._unsynced_folders.pop(path, None)

    def close(self) -> None:
        self._handles.close()

    def _pad(self, folder: Path, position: int) -> None:
        start = position - position % self._file_size
        padding = PRE_BLANK * ((position - start) // UNIT_SIZE)
        self._write_part(folder, start, 0, memoryview(padding))

    def _write_part(self, folder: Path, start: int, within: int, data: memoryview) -> None:
        path = path_of(folder, start)
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
        self._unsynced[path] = self._unsynced.get(path, 0) + len(data)

    def _open_for_write(self, folder: Path, path: Path, within: int) -> int:
        # A file that is there and short was made when the disk had no room to size it.
        if not self._files.exists(path) or self._files.size(path) < self._file_size:
            for parent in self._files.add_folder(folder):
                self._unsynced_folders[parent] = None
            # The name of the file before this one first: a queue whose first name was lost and
            # whose second one was kept would seem to begin in the middle.
            self._sync_folder(folder)
            self._handles.get(path, create=True).truncate(self._file_size)
            self._unsynced_folders[folder] = None
        if len(self._allocated) > 4096:
            self._allocated.clear()
        allocated = within - within % ALLOCATE_AHEAD
        self._allocated[path] = allocated
        return allocated


def allocation_end(end: int) -> int:
    """Return up to where a queue file that is written up to `end` should have blocks."""
    if end > ALLOCATE_AHEAD:
        return end - end % ALLOCATE_AHEAD + ALLOCATE_AHEAD
    target = ALLOCATE_MIN
    while target < end:
        target *= 2
    return target


class QueueReader:
    """Reads from the files. One thread; each call blocks briefly."""

    def __init__(self, files: Files, file_size: int, handle_limit: int = 256) -> None:
        self._handles = HandleCache(files, handle_limit)
        self._file_size = file_size

    def units(self, folder: Path, first_unit: int, max_count: int) -> bytes:
        """Return the units from `first_unit` on, never past the end of its file.

        Raises:
            FileNotFoundError: the file was removed.
        """
        position = first_unit * UNIT_SIZE
        within = position % self._file_size
        size = min(max_count * UNIT_SIZE, self._file_size - within)
        return self._handles.get(path_of(folder, position - within)).pread(size, within)

    def forget(self, path: Path) -> None:
        self._handles.forget(path)

    def close(self) -> None:
        self._handles.close()
