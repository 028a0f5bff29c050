"""The folder of the journal, and the file in it that is written to. What blocks is the worker's."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from skylarkmq.common.files import Files, StoreFile
from skylarkmq.common.refusal import refusal
from skylarkmq.store.pop.journal_file import (
    FrameWriter,
    file_head,
    file_numbers,
    file_path,
    load_state,
)
from skylarkmq.store.pop.journal_records import PopState

ALLOCATION: Final = 1 << 20
"""Bytes of a file that are allocated at a time."""
RESERVE: Final = ALLOCATION // 2
"""Allocated and not written yet; with less, more is allocated, and without receives end."""
CHANGE_SIZE: Final = 8 << 20
"""A file that is smaller than that is not followed by another one."""
CHANGE_TIMES: Final = 4
"""Nor one that is smaller than so many times its own snapshot."""


class Written(NamedTuple):
    """What a job has done to a file."""

    allocated: int  # end of its blocks
    no_space: OSError | None  # why it has no more of them
    is_written: bool  # False: there was no room


class OpenFile:
    """The file that is written to."""

    def __init__(self, file: StoreFile, frames: FrameWriter, position: int, allocated: int) -> None:
        self.file = file
        self.frames = frames
        # Invariant: synced <= position <= allocated.
        self.position = position
        self.synced = position
        self.allocated = allocated
        self.change_size = 0  # from this size on another file follows
        self.note_snapshot(position)

    def note_snapshot(self, size: int) -> None:
        """Note what it takes to say all."""
        self.change_size = max(CHANGE_SIZE, CHANGE_TIMES * size)

    def append(self, data: bytes, position: int, allocated: int) -> Written:
        """Write and sync; have blocks ahead. On the worker; changes nothing here.

        Raises:
            OSError: the disk has failed.
        """
        end, no_space = position + len(data), None
        if allocated - end < RESERVE:
            size = _rounded(end + RESERVE - allocated)
            try:
                self.file.allocate(allocated, size)
                allocated += size
            except OSError as error:
                if refusal(error) is None:
                    raise
                no_space = error
        if end > allocated:
            return Written(allocated, no_space, is_written=False)
        if data:
            self.file.pwrite(data, position)
        self.file.datasync()
        return Written(allocated, no_space, is_written=True)


class JournalFolder:
    """The files of the journal.

    Attributes:
        numbers: of the files that are there, oldest first.
    """

    def __init__(self, folder: Path, files: Files) -> None:
        """Take the disk; nothing is touched yet."""
        self._folder = folder
        self._files = files
        self.numbers: list[int] = []

    def load(self) -> PopState:
        """Return what the files say. Blocks; raises as `PopJournal.load`."""
        self.numbers = file_numbers(self._files, self._folder)
        return load_state(self._files, self._folder)

    def discard(self) -> None:
        """Remove all files. Blocks."""
        self.remove(file_numbers(self._files, self._folder))
        self.numbers = []

    @property
    def next_number(self) -> int:
        """The number of a file that follows."""
        return self.numbers[-1] + 1 if self.numbers else 1

    def try_begin(self, number: int, frames: FrameWriter, frame: bytes) -> OpenFile | OSError:
        """Do as `begin`; return why there is no room for it."""
        try:
            return self.begin(number, frames, frame)
        except OSError as error:
            if refusal(error) is None:
                raise
            return error

    def begin(self, number: int, frames: FrameWriter, frame: bytes) -> OpenFile:
        """Begin a file with a frame, durably. Blocks.

        Raises:
            OSError: the disk refused; the file is gone again.
        """
        path, data = file_path(self._folder, number), file_head(number) + frame
        self._files.make_folder(self._folder)
        file = self._files.open(path, create=True)
        try:
            file.truncate(0)
            allocated = _rounded(len(data) + RESERVE)
            file.allocate(0, allocated)
            file.pwrite(data, 0)
            file.datasync()
            self._files.sync_folder(self._folder)
        except OSError:
            file.close()
            with suppress(OSError):
                self._files.unlink(path)
            raise
        return OpenFile(file, frames, len(data), allocated)

    def remove(self, numbers: list[int]) -> None:
        """Remove files. Blocks."""
        for number in numbers:
            with suppress(FileNotFoundError):
                self._files.unlink(file_path(self._folder, number))
        if numbers:
            self._files.sync_folder(self._folder)


def _rounded(size: int) -> int:
    return -(-size // ALLOCATION) * ALLOCATION
