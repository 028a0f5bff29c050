"""What of the key index may be trusted at a start; the rest is removed and built again.

Nothing here reads more than a few records and items of each file, so a start never waits for the
index. Files are kept from the oldest on, up to the first that cannot be trusted:

    clean stop     all that agree with the log and follow one another
    unclean stop   up to our own index point (`checkpoint.py`): the files before it whole, its own
                   file up to the item that it names, its slots to be repaired (`file.py`)
    without point  as RocketMQ: full files whose end is covered by the checkpoint's index time

A file agrees with the log when its header names its own first and last item, and the records of
both have the header's times. It follows another that is full when no record between them has keys:
so a file that was removed, doubled or put in another's place is noticed.

Unlike RocketMQ, which after an unclean stop believes such full files and every file after a clean
stop unseen, and never looks for entries that are missing.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../index/IndexService.java (load)
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from skylarkmq.common.files import Files
from skylarkmq.protocol.record import RecordStatus, RecordView, read_record
from skylarkmq.store.checkpoint import IndexPoint, Marks
from skylarkmq.store.errors import StoreProfileError
from skylarkmq.store.index.file import FIRST_ITEM, ITEM_SIZE, IndexFile, IndexShape
from skylarkmq.store.index.keys import record_entries
from skylarkmq.store.log.commit_log import CommitLog
from skylarkmq.store.log.mapped_file_queue import LOST_AND_FOUND

log = logging.getLogger(__name__)

NAME_DIGITS: Final = 17
LOOK_AHEAD: Final = 64
"""Records without keys between two files that are looked at."""


class LoadedIndex(NamedTuple):
    """What a start found."""

    files: tuple[IndexFile, ...]
    last_name: str  # the greatest of all names seen; later ones must be greater
    next_offset: int  # from here on the log is read again
    skip_keys: int  # of the record there, so many keys are in the index
    point: IndexPoint | None  # what is on the disk, for the next checkpoint
    full_timestamp: int  # end time of the last full file, ms
    damaged: IndexFile | None  # the last file, when its slots must be repaired
    removed: int  # files


class IndexLoader:
    """Loads once. Blocks; the loading thread, after the log was recovered."""

    def __init__(
        self, files: Files, folder: Path, shape: IndexShape, commit_log: CommitLog
    ) -> None:
        self._files = files
        self._folder = folder
        self._shape = shape
        self._log = commit_log
        self._damaged: IndexFile | None = None

    def load(self, marks: Marks, *, unclean: bool) -> LoadedIndex:
        """Open what may be trusted, remove the rest; `refuse_other_shapes` comes before."""
        names = self._names(tell=True)
        point = self._usable(marks.index_point, names)
        kept = self._keep(names, point, marks, unclean=unclean)
        if point is not None and point.file_name != (kept[-1].name if kept else ""):
            point = None
        self._remove(names[len(kept) :])
        next_offset, skip_keys = self._end(kept, point)
        if point is None and kept:
            point = self._new_point(kept, next_offset)
        full = [file for file in kept if file.is_full]
        return LoadedIndex(
            files=tuple(kept),
            last_name=max([*names, marks.index_point.file_name if marks.index_point else ""]),
            next_offset=next_offset,
            skip_keys=skip_keys,
            point=point,
            full_timestamp=full[-1].header.end_timestamp if full else 0,
            damaged=self._damaged if self._damaged in kept else None,
            removed=len(names) - len(kept),
        )

    def _names(self, *, tell: bool = False) -> list[str]:
        names: list[str] = []
        for name in self._files.list(self._folder):
            if name.isascii() and name.isdigit() and len(name) == NAME_DIGITS:
                names.append(name)
            elif tell and name != LOST_AND_FOUND:
                log.warning("%s is not an index file; it is left alone", self._folder / name)
        return names

    def _usable(self, point: IndexPoint | None, names: list[str]) -> IndexPoint | None:
        """Return the point, unless its file is missing or the log ends before it."""
        if point is None or point.end_offset > self._log.max_offset:
            return None
        return point if not point.file_name or point.file_name in names else None

    def refuse_other_shapes(self, *, unclean: bool) -> None:
        """Check the sizes only; change nothing.

        Raises:
            StoreProfileError: a file was made with another number of slots.
        """
        for name in self._names():
            path = self._folder / name
            size = self._files.size(path)
            if size == self._shape.file_size or (unclean and size < self._shape.file_size):
                continue
            if not self._has_our_slots(path, size):
                raise StoreProfileError(
                    f"{path} has {size} bytes, maxHashSlotNum={self._shape.slot_count} and "
                    f"maxIndexNum={self._shape.item_count} ask for {self._shape.file_size}; start "
                    "with the numbers that it was written with, or remove it to build it again"
                )

    def _has_our_slots(self, path: Path, size: int) -> bool:
        """Return whether the first item is where our number of slots puts it."""
        if size < self._shape.item_position(FIRST_ITEM) + ITEM_SIZE:
            return True  # it ends before its first item, whichever broker made it
        file = IndexFile.open(self._files, path, self._shape)
        try:
            first = file.item(FIRST_ITEM)
            return bool(first.key_hash) and first.physical_offset == file.header.begin_offset
        finally:
            file.let_go()

    # Which files stay

    def _keep(
        self, names: list[str], point: IndexPoint | None, marks: Marks, *, unclean: bool
    ) -> list[IndexFile]:
        kept: list[IndexFile] = []
        for name in names:
            if point is not None and name > point.file_name:
                break
            file = self._open(name, point)
            if file is None:
                break
            if point is not None and name == point.file_name:
                trusted = self._cut(file, point, unclean=unclean)
            else:
                trusted = not unclean or point is not None or self._is_covered(file, kept, marks)
            if not trusted or not self._agrees(file) or not self._follows(kept, file):
                if trusted:
                    log.warning("%s does not agree with the log", file.path)
                file.let_go()
                break
            kept.append(file)
        return kept

    def _open(self, name: str, point: IndexPoint | None) -> IndexFile | None:
        path = self._folder / name
        size = self._files.size(path)
        is_points = point is not None and name == point.file_name
        if size != self._shape.file_size and not (is_points and self._lengthen(path, size, point)):
            log.warning("%s has %d bytes, not %d", path, size, self._shape.file_size)
            return None
        return IndexFile.open(self._files, path, self._shape)

    def _lengthen(self, path: Path, size: int, point: IndexPoint | None) -> bool:
        """Give the point's file its size back, when a crash came while its end was cut off."""
        if (
            point is None
            or not self._shape.item_position(point.count) <= size < self._shape.file_size
        ):
            return False
        file = self._files.open(path)
        try:
            file.truncate(self._shape.file_size)
            file.datasync()
        finally:
            file.close()
        return True

    @staticmethod
    def _is_covered(file: IndexFile, kept: Sequence[IndexFile], marks: Marks) -> bool:
        """Return whether the file was synced when it was full, by RocketMQ's rule.

        Of two that end in the same millisecond the mark speaks of the first.
        """
        end = file.header.end_timestamp
        if kept and kept[-1].header.end_timestamp == end:
            return False
        return file.is_full and end <= marks.index_timestamp

    def _cut(self, file: IndexFile, point: IndexPoint, *, unclean: bool) -> bool:
        """Take the file up to the item that the point names; False when it is not so long."""
        if not FIRST_ITEM < point.count <= self._shape.item_count:
            return False
        if not unclean and file.header.next_item == point.count:
            return True
        last = file.item(point.count - 1)
        if last.physical_offset > point.end_offset:
            return False
        position = self._shape.item_position(point.count)
        file.file.truncate(position)
        file.file.truncate(self._shape.file_size)
        file.file.datasync()
        timestamp = self._store_time(last.physical_offset)
        file.header = file.header._replace(
            next_item=point.count,
            end_offset=last.physical_offset,
            end_timestamp=point.end_timestamp if timestamp is None else timestamp,
        )
        self._damaged = file
        return True

    def _agrees(self, file: IndexFile) -> bool:
        header = file.header
        if not FIRST_ITEM <= header.next_item <= self._shape.item_count:
            return False
        if file.is_empty:
            return True
        first, last = file.item(FIRST_ITEM), file.item(header.next_item - 1)
        if (first.physical_offset, last.physical_offset) != (
            header.begin_offset,
            header.end_offset,
        ):
            return False
        if not 0 <= header.begin_offset <= header.end_offset < self._log.max_offset:
            return False
        return all(
            self._store_time(offset) in (None, timestamp)
            for offset, timestamp in (
                (header.begin_offset, header.begin_timestamp),
                (header.end_offset, header.end_timestamp),
            )
        )

    def _follows(self, kept: Sequence[IndexFile], file: IndexFile) -> bool:
        if not kept:
            return self._is_first(file)
        end_offset, begin_offset = kept[-1].header.end_offset, file.header.begin_offset
        if not kept[-1].is_full or begin_offset < end_offset:
            return False
        if begin_offset == end_offset or file.is_empty or end_offset < self._log.min_offset:
            return True
        return self._with_keys_after(end_offset) in (None, begin_offset)

    def _is_first(self, file: IndexFile) -> bool:
        """Return whether no file is missing before this one."""
        start = self._log.min_offset
        if file.is_empty or file.header.begin_offset <= start:
            return True
        record = self._record(start)
        if record is not None and record.status is RecordStatus.MESSAGE and record_entries(record):
            return False
        return self._with_keys_after(start) in (None, file.header.begin_offset)

    # The log

    def _record(self, offset: int) -> RecordView | None:
        found = self._log.locate(offset)
        if found is None:
            return None
        mapped, position = found
        return read_record(
            mapped.view,
            position,
            limit=mapped.committed_position,
            check_crc=False,
            physical_offset=offset,
        )

    def _store_time(self, offset: int) -> int | None:
        """Store time of the record at an offset; None when it has expired, -1 without any."""
        if offset < self._log.min_offset:
            return None
        record = self._record(offset)
        if record is None or record.status is not RecordStatus.MESSAGE:
            return -1
        return record.store_timestamp

    def _with_keys_after(self, offset: int) -> int | None:
        """Return the next record after `offset` that has entries; None when it is far."""
        for number in range(LOOK_AHEAD):
            record = self._record(offset)
            if record is None:
                return None
            if record.status is RecordStatus.BLANK:
                offset = self._log.next_file_offset(offset)
            elif record.status is not RecordStatus.MESSAGE:
                return None
            elif number and record_entries(record):
                return offset
            else:
                offset += record.size
        return None

    # The end

    def _end(self, kept: list[IndexFile], point: IndexPoint | None) -> tuple[int, int]:
        """Return where to read on, and how many keys of the record there are in the index."""
        with_items = [file for file in kept if not file.is_empty]
        if point is not None:
            next_offset = point.end_offset
        elif with_items:
            next_offset = with_items[-1].header.end_offset
        else:
            next_offset = 0
        if next_offset < self._log.min_offset:
            return self._log.min_offset, 0
        skip_keys = 0
        for file in reversed(with_items):
            first = file.find_offset(next_offset, file.count)
            skip_keys += file.count - first
            if first > FIRST_ITEM:
                break
        return next_offset, skip_keys

    @staticmethod
    def _new_point(kept: list[IndexFile], next_offset: int) -> IndexPoint | None:
        """Sync the files, and return what is on the disk."""
        for file in kept:
            file.file.datasync()
        for file in reversed(kept):
            if not file.is_empty:
                return IndexPoint(file.name, file.count, next_offset, file.header.end_timestamp)
        return None

    def _remove(self, names: list[str]) -> None:
        for name in names:
            log.warning("removing %s: it is built again from the log", self._folder / name)
            self._files.unlink(self._folder / name)
        if names:
            self._files.sync_folder(self._folder)
