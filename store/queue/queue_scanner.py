"""Finding and moving the ends of queues while the store is being loaded.

A crash may leave a file of the unsynced part missing, empty or short. What follows such a place
goes: the log has it. At a clean start nothing of that kind is to be expected, so a wrong size is
refused there; a file that is missing between two others is noted, and the queue is built again.

All calls block; loading thread.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from skylarkmq.common.files import Files
from skylarkmq.store.errors import StoreProfileError
from skylarkmq.store.log.mapped_file import file_name, is_file_name
from skylarkmq.store.queue.consume_queue import UNIT, UNIT_SIZE, is_valid_unit

log = logging.getLogger(__name__)

SCAN_SIZE = 4096 * UNIT_SIZE
LAST_UNITS_SIZE = 64 * UNIT_SIZE
RECOVERED_FILES = 3  # newest files that are looked through for the end of a queue


class QueueExtent(NamedTuple):
    """What the files of a queue hold, in unit numbers."""

    first_offset: int
    end_offset: int
    has_gap: bool = False  # a file is missing after the end, and others follow it
    last_units: bytes = b""  # the newest units, as far as the scan had them in hand


class QueueScanner:
    """Finds and moves the end of what lies in a folder of files of one size."""

    def __init__(self, files: Files, file_size: int) -> None:
        self._files = files
        self._file_size = file_size

    def scan(self, folder: Path, *, unclean: bool) -> QueueExtent | None:
        """Return the units that the folder of a queue holds, None when it has no file.

        Args:
            unclean: the machine went down, so of the files that were not synced any may be
                missing or shorter than it should; `cut` removes what cannot be trusted.

        Raises:
            StoreProfileError: a file has another size than `mappedFileSizeConsumeQueue`.
        """
        found = self._starts(folder, unclean=unclean)
        if not found:
            return None
        starts = self._without_gap(list(found))
        end, last_units = starts[max(0, len(starts) - RECOVERED_FILES)], b""
        for start in starts[-RECOVERED_FILES:]:
            size, units = self._valid_units(found[start])
            end, last_units = start + size, units or last_units
            if size < self._file_size:
                break
        has_gap = len(starts) < len(found)
        if not has_gap:
            self._remove_after(folder, starts, end)
        return QueueExtent(starts[0] // UNIT_SIZE, end // UNIT_SIZE, has_gap, last_units)

    def cut(self, folder: Path, position: int) -> None:
        """Remove what lies from byte `position` on: later files go, the rest becomes zeros."""
        starts = list(self._starts(folder, unclean=True))
        starts = self._remove_after(folder, starts, position)
        within = position % self._file_size
        if position - within in starts:
            file = self._files.open(folder / file_name(position - within))
            try:
                file.truncate(within)
                file.truncate(self._file_size)
                file.datasync()  # or the units come back after a checkpoint that covers them
            finally:
                file.close()

    def remove_all(self, folder: Path) -> None:
        """Remove every file of the folder, durably."""
        paths = self._starts(folder, unclean=True).values()
        for path in reversed(paths):
            self._files.unlink(path)
        if paths:
            self._files.sync_folder(folder)

    def _starts(self, folder: Path, *, unclean: bool) -> dict[int, Path]:
        """Return the files of a folder by the byte at which each begins."""
        found: dict[int, Path] = {}
        for name in self._files.list(folder):
            path = folder / name
            if not is_file_name(name):
                raise StoreProfileError(f"{path} is not a queue file; move it out of the folder")
            size = self._files.size(path)
            if size != self._file_size:
                if size > self._file_size or not unclean:
                    raise StoreProfileError(
                        f"{path} has {size} bytes, mappedFileSizeConsumeQueue is "
                        f"{self._file_size}; "
                        "start with the size that the store was written with, or, when this "
                        "file alone was cut, remove it: it is built again from the log"
                    )
                self._lengthen(path, size)
            found[int(name)] = path
        if unclean:
            starts = list(found)
            kept = self._without_gap(starts)
            if len(kept) < len(starts):
                starts = self._remove_after(folder, starts, starts[len(kept)])
                found = {start: found[start] for start in starts}
        return found

    def _without_gap(self, starts: list[int]) -> list[int]:
        for index, start in enumerate(starts):
            if start != starts[0] + index * self._file_size:
                return starts[:index]
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

    def _valid_units(self, path: Path) -> tuple[int, bytes]:
        """Return the bytes of written units at the front of a file, and the last of these units."""
        file = self._files.open(path)
        try:
            position, step, last_units = 0, LAST_UNITS_SIZE, b""
            while position < self._file_size:
                chunk = file.pread(min(step, self._file_size - position), position)
                size = 0
                for commit_offset, record_size, _ in UNIT.iter_unpack(chunk):
                    if not is_valid_unit(commit_offset, record_size):
                        break
                    size += UNIT_SIZE
                if size:
                    last_units = chunk[max(0, size - LAST_UNITS_SIZE) : size]
                position += size
                if size < len(chunk):
                    break
                step = min(step * 4, SCAN_SIZE)
            return position, last_units
        finally:
            file.close()

    def _remove_after(self, folder: Path, starts: list[int], end: int) -> list[int]:
        """Remove the files that begin at or after `end`, durably, and return the others.

        The first file stays, so that the queue keeps its place.
        """
        removed = [start for start in starts[1:] if start >= end]
        for start in removed:
            log.info("removing %s: it lies after the end of its queue", folder / file_name(start))
            self._files.unlink(folder / file_name(start))
        if removed:
            self._files.sync_folder(folder)
        return starts[: len(starts) - len(removed)]
