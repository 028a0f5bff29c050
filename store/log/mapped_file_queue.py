"""The files of the commit log in order, found by arithmetic: file = (offset - first) // size.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../MappedFileQueue.java
"""

from __future__ import annotations

import logging
from pathlib import Path

from skylarkmq.common.files import Files
from skylarkmq.store.errors import StoreProfileError
from skylarkmq.store.log.mapped_file import (
    BLOCK_SIZE,
    MappedFile,
    file_name,
    first_written,
    is_blank,
    is_file_name,
)

log = logging.getLogger(__name__)

LOST_AND_FOUND = "lost+found"  # in the root of each ext4 partition
BROKEN = ".broken"  # ends the names of files with what was cut off


class MappedFileQueue:
    """Log files without a gap, oldest first. Loop thread; `load` and `truncate` block."""

    def __init__(self, files: Files, folder: Path, file_size: int) -> None:
        self._files = files
        self.folder = folder
        self.file_size = file_size
        self.mapped: list[MappedFile] = []
        self._unallocated: Path | None = None

    @property
    def last(self) -> MappedFile | None:
        return self.mapped[-1] if self.mapped else None

    @property
    def min_offset(self) -> int:
        """Byte offset of the oldest file, 0 without files."""
        return self.mapped[0].start_offset if self.mapped else 0

    def find(self, offset: int) -> MappedFile | None:
        """Return the file that holds the byte at `offset`, None without one."""
        if not self.mapped:
            return None
        index = (offset - self.mapped[0].start_offset) // self.file_size
        return self.mapped[index] if 0 <= index < len(self.mapped) else None

    def add(self, mapped: MappedFile) -> None:
        """Add the next file after the last one."""
        self.mapped.append(mapped)

    def drop_first(self) -> MappedFile:
        """Let the log begin at the second file; the first one is the caller's to close."""
        return self.mapped.pop(0)

    def load(self) -> None:
        """Map every file of the folder; each is taken as full until recovery says otherwise.

        A last file that is shorter than the others was being allocated when the process ended; it
        holds no message and goes with the first `truncate`.

        Raises:
            StoreProfileError: a name is not 20 digits, a size is not the configured one, or a file
                is missing between two others.
        """
        names = [name for name in self._files.list(self.folder) if name != LOST_AND_FOUND]
        for name in names:
            if not is_file_name(name):
                raise StoreProfileError(
                    f"{self.folder / name} is not a log file; move it out of the folder"
                )
        if names and self._files.size(self.folder / names[-1]) < self.file_size:
            self._leave_out_unallocated(names)
        for name in names:
            self._load_one(self.folder / name)

    def _leave_out_unallocated(self, names: list[str]) -> None:
        path = self.folder / names[-1]
        start_offset = int(names[-1])
        follows = len(names) > 1 and int(names[-2]) + self.file_size == start_offset
        size = self._files.size(path)
        if not (follows or (start_offset == 0 and len(names) == 1)) or not self._is_blank(path):
            raise StoreProfileError(self._wrong_size(path, size))
        log.warning("%s goes: its allocation was cut short at %d bytes", path, size)
        self._unallocated = path
        names.pop()

    def _wrong_size(self, path: Path, size: int) -> str:
        cause = f"{path} has {size} bytes, mappedFileSizeCommitLog is {self.file_size}; "
        if any(self._files.size(other) == self.file_size for other in self._others(path)):
            return cause + (
                "other files have that size, so this one was cut or is foreign: put a good copy "
                "in its place, or save what is there with `skylarkmq store salvage`"
            )
        return cause + "start with the size that the store was written with"

    def _others(self, path: Path) -> list[Path]:
        names = self._files.list(self.folder)
        return [self.folder / name for name in names if name not in (path.name, LOST_AND_FOUND)]

    def _is_blank(self, path: Path) -> bool:
        file = self._files.open(path)
        try:
            return first_written(file, 0) is None
        finally:
            file.close()

    def _load_one(self, path: Path) -> None:
        size = self._files.size(path)
        if size != self.file_size:
            raise StoreProfileError(self._wrong_size(path, size))
        start_offset = int(path.name)
        last = self.last
        if last is not None and last.start_offset + self.file_size != start_offset:
            raise StoreProfileError(
                f"{path} does not follow {last.file.path}: a log file between them is missing; "
                "put it back, or save what is there with `skylarkmq store salvage`"
            )
        mapped = MappedFile(self._files.open(path), start_offset, self.file_size)
        mapped.rewind(self.file_size)
        self.mapped.append(mapped)

    def remove_after(self, end_offset: int) -> None:
        """Remove the files that begin after an offset, durably; before `load`. Blocks.

        Some of them may be gone already, from the middle too.
        """
        names = [name for name in self._files.list(self.folder) if is_file_name(name)]
        for name in reversed(names):
            if int(name) > end_offset:
                self._files.unlink(self.folder / name)
        self._files.sync_folder(self.folder)

    def remove_all(self) -> None:
        """Remove every file: nothing was ever stored in them. Blocks."""
        for mapped in self.mapped:
            mapped.close()
            self._files.unlink(mapped.file.path)
        if self.mapped:
            self._files.sync_folder(self.folder)
        self.mapped.clear()

    def truncate(self, end_offset: int, *, clear_size: int = 0) -> None:
        """Make `end_offset` the end of the log; remove the files after it.

        Args:
            clear_size: so many bytes after the end may hold leftovers; they become zeros.
        """
        removed = self._unallocated is not None
        if self._unallocated is not None:
            self._files.unlink(self._unallocated)
            self._unallocated = None
        while self.mapped and self.mapped[-1].start_offset > end_offset:
            mapped = self.mapped.pop()
            log.info("removing %s: it starts after the end of the log", mapped.file.path)
            mapped.close()
            self._files.unlink(mapped.file.path)
            removed = True
        if removed:
            self._files.sync_folder(self.folder)
        last = self.last
        if last is None:
            return
        position = end_offset - last.start_offset
        if clear_size:
            last.clear(position, clear_size)
        last.rewind(position)

    def copy_out(self, offset: int, size: int, folder: Path) -> Path:
        """Copy bytes of the log, durably, into a file of its own, which is new. Blocks.

        Holes stay holes. The file's name tells the offset of its first byte.

        Raises:
            OSError: with ENOSPC or EDQUOT when the disk has no room; what was copied is removed.
        """
        self._files.make_folder(folder)
        path = folder / f"{file_name(offset)}{BROKEN}"
        number = 1
        while self._files.exists(path):  # kept by a start that was cut short
            number += 1
            path = folder / f"{file_name(offset)}.{number}{BROKEN}"
        copy = self._files.open(path, create=True)
        try:
            for mapped in self.mapped:
                stop = min(mapped.size, offset + size - mapped.start_offset)
                position = mapped.file.data_start(max(0, offset - mapped.start_offset))
                while position < stop:
                    data = mapped.file.pread(min(BLOCK_SIZE, stop - position), position)
                    if not is_blank(data):
                        copy.pwrite(data, mapped.start_offset + position - offset)
                    position = mapped.file.data_start(position + len(data))
            copy.datasync()
        except OSError:
            self._files.unlink(path)
            raise
        finally:
            copy.close()
        self._files.sync_folder(folder)
        return path

    def close(self) -> None:
        for mapped in self.mapped:
            mapped.close()
        self.mapped.clear()
