"""Building the key index: entries go into the newest file; a full one is followed by the next.

A builder belongs to the index thread, except `files`, a tuple that is replaced and never changed,
so that others may look at it. It knows how far it has come:

    next_offset   all entries of the records below it are in the index
    skip_keys     so many keys of the record at next_offset are in it too, when the disk was full
                  between two files; mostly 0

The entries come with what is published, or from the log: when the index is behind (after a crash,
when it was deleted, when too much was published at once), `read_slice` reads the records again. It
does not compare their checksums, because the answer to a query is checked anyway. It passes over
damage; the next sound record is found by its magic and the offset that it carries.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../index/IndexService.java (buildIndex,
getAndCreateLastIndexFile, deleteExpiredFile), DefaultMessageStore.java (ReputMessageService)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from skylarkmq.common.files import Files
from skylarkmq.protocol.record import (
    FIXED_IPV6,
    MESSAGE_MAGIC,
    RecordStatus,
    RecordView,
    read_record,
)
from skylarkmq.store.index.file import IndexFile, IndexShape, repair
from skylarkmq.store.index.keys import ENTRY_SIZE, offset_of, record_entries
from skylarkmq.store.index.loader import LoadedIndex
from skylarkmq.store.log.mapped_file import MappedFile

log = logging.getLogger(__name__)
SLICE_SIZE: Final = 256 * 1024
SLICE_RECORDS: Final = 400
RECORD_MAX: Final = 32 << 20
"""Bytes that a record may have: no frame on the wire has more than half of it."""
RECORD_MIN: Final = FIXED_IPV6.size  # bytes without which a record may not show its size
_MAGIC: Final = (MESSAGE_MAGIC & 0xFFFFFFFF).to_bytes(4, "big")
_MAGIC_AT: Final = 4


class LogSlice(NamedTuple):
    """What was read from a slice of the log."""

    entries: bytearray
    next_offset: int  # where the next slice begins
    record_count: int
    passed_over: int  # bytes of damage


def read_slice(mapped: MappedFile, offset: int, end_offset: int) -> LogSlice:
    """Read the records of one file from `offset` on. Blocks; index thread.

    Args:
        mapped: the file that holds `offset`; its owner holds it meanwhile.
        end_offset: a record boundary after `offset`, up to which the log is published.
    """
    position = offset - mapped.start_offset
    rest = min(end_offset - mapped.start_offset, mapped.size) - position
    data = mapped.file.pread(min(SLICE_SIZE, rest), position)
    entries = bytearray()
    at = count = passed_over = 0
    while at < len(data) and count < SLICE_RECORDS:
        record = read_record(data, at, check_crc=False, physical_offset=offset + at)
        if record.status is RecordStatus.MESSAGE:
            entries += record_entries(record)
            at += record.size
            count += 1
        elif record.status is RecordStatus.BLANK:
            return LogSlice(entries, mapped.start_offset + mapped.size, count, passed_over)
        elif len(data) < min(rest, RECORD_MAX) and _is_cut(record, len(data) - at):
            if at:
                break  # the next slice begins with it
            data = mapped.file.pread(min(rest, RECORD_MAX, max(record.size, RECORD_MIN)), position)
        else:
            following = _next_candidate(data, at, at_end=len(data) == rest)
            passed_over += following - at
            at = following
    return LogSlice(entries, offset + at, count, passed_over)


def _is_cut(record: RecordView, remaining: int) -> bool:
    """Return whether the record may be whole and only the bytes that were read end too early."""
    return remaining < RECORD_MIN or (
        record.status is RecordStatus.TORN and record.size > remaining
    )


def _next_candidate(data: bytes, at: int, *, at_end: bool) -> int:
    """Return the next place where a record may begin, after one that holds none."""
    found = data.find(_MAGIC, at + 1 + _MAGIC_AT)
    if found >= 0:
        return found - _MAGIC_AT
    if at_end:
        return len(data)
    return max(at + 1, len(data) - _MAGIC_AT - len(_MAGIC) + 1)


class Progress(NamedTuple):
    """The outcome of a job of the builder."""

    next_offset: int
    entry_count: int  # added
    record_count: int = 0  # read again from the log
    passed_over: int = 0  # bytes of damage in the log
    error: OSError | None = None  # why it stopped; the log was readable, the index not writable


class IndexBuilder:
    """Adds entries to the files. Index thread, or the stopping thread."""

    def __init__(
        self,
        files: Files,
        folder: Path,
        shape: IndexShape,
        now_ms: Callable[[], int],
    ) -> None:
        self._files = files
        self._folder = folder
        self._shape = shape
        self._now_ms = now_ms
        self._halted = False
        self._last_name = ""  # names of later files are greater
        self._damaged: IndexFile | None = None
        self._repairing: Iterator[None] | None = None
        self.files: tuple[IndexFile, ...] = ()
        self.next_offset = 0
        self.skip_keys = 0

    def take(self, loaded: LoadedIndex) -> None:
        """Go on where a start found the index."""
        self.files = loaded.files
        self._last_name = loaded.last_name
        self._damaged = loaded.damaged
        self.next_offset, self.skip_keys = loaded.next_offset, loaded.skip_keys

    def repair_some(self) -> bool:
        """Repair a slice of the damaged file; return whether nothing more is left to repair.

        Raises:
            OSError: the disk has no room, or cannot be read; the next call begins again.
        """
        file = self._damaged
        if file is None:
            return True
        try:
            if self._repairing is None:
                file.map()
                self._repairing = repair(file)
            for _ in self._repairing:
                return False
        except BaseException:
            self._repairing = None
            raise
        self._damaged = self._repairing = None
        return True

    def repair_all(self) -> bool:
        """Repair all that is left. False when that failed and the file was removed.

        The start after a clean stop does not check the slots.
        """
        try:
            while not self.repair_some():
                pass
        except OSError as error:
            damaged = self.files[-1]
            log.warning("removing %s, which could not be repaired: %s", damaged.path, error)
            self._damaged = None
            self.files = self.files[:-1]
            self._remove([damaged])
            return False
        return True

    @property
    def readable(self) -> tuple[IndexFile, ...]:
        """The files to search: all but one whose slots are still to be repaired."""
        return self.files[:-1] if self._damaged is not None else self.files

    def build(self, entries: bytearray, end_offset: int) -> Progress:
        """Add the entries of published records, which follow those that were added before.

        Nothing is added after a failure, until `catch_up` has begun again where it happened.
        """
        if self._halted:
            return Progress(self.next_offset, 0)
        return self._add(entries, end_offset)

    def catch_up(self, mapped: MappedFile, offset: int, end_offset: int) -> Progress:
        """Read a slice of the log from `offset` on and add it.

        Args:
            offset: `next_offset`, or the start of the log when that lies after it.
        """
        self._halted = False
        if offset != self.next_offset:
            self.next_offset, self.skip_keys = offset, 0
        found = read_slice(mapped, offset, end_offset)
        progress = self._add(found.entries, found.next_offset)
        return progress._replace(record_count=found.record_count, passed_over=found.passed_over)

    def _add(self, entries: bytearray, end_offset: int) -> Progress:
        added, count = 0, len(entries) // ENTRY_SIZE
        if self.skip_keys and count and offset_of(entries, 0) == self.next_offset:
            added = self.skip_keys
        first = added
        try:
            while added < count:
                added = self._writable().put(entries, added)
        except OSError as error:
            self._halt(entries, added)
            return Progress(self.next_offset, added - first, error=error)
        self.next_offset, self.skip_keys = end_offset, 0
        return Progress(end_offset, added - first)

    def _halt(self, entries: bytearray, added: int) -> None:
        """Remember the record that was reached, and how many of its keys are in."""
        self._halted = True
        offset = offset_of(entries, added * ENTRY_SIZE)
        keys = 0
        while keys < added and offset_of(entries, (added - 1 - keys) * ENTRY_SIZE) == offset:
            keys += 1
        self.next_offset, self.skip_keys = offset, keys

    def _writable(self) -> IndexFile:
        last = self.files[-1] if self.files else None
        if last is not None and not last.is_full:
            return last
        name = next_name(self._now_ms(), self._last_name)
        before = None if last is None else last.header
        made = IndexFile.create(self._files, self._folder / name, self._shape, before)
        if last is not None:
            last.unmap()
        self._last_name = name
        self.files = (*self.files, made)
        log.info("the key index goes on in %s", made.path)
        return made

    def settle(self, full: Sequence[IndexFile]) -> None:
        """Note that full files were synced: nothing will be stored to them again."""
        for file in full:
            file.unsynced = False
            file.rest()

    def expire(self, log_min_offset: int) -> None:
        """Remove the files whose records have all left the log; never the last one. Blocks."""
        expired: list[IndexFile] = []
        for file in self.files[:-1]:
            if file.header.end_offset >= log_min_offset:
                break
            expired.append(file)
            log.info("removing %s: its messages are gone", file.path)
        self.files = self.files[len(expired) :]
        self._remove(expired)

    def _remove(self, removed: list[IndexFile]) -> None:
        for file in removed:
            file.is_removed = True
            file.let_go()
            self._files.unlink(file.path)
        if removed:
            self._files.sync_folder(self._folder)

    def close(self) -> None:
        """Let all files go."""
        files, self.files = self.files, ()
        for file in files:
            file.let_go()


def next_name(now_ms: int, last_name: str) -> str:
    """Return the next file's name: the local time, or the last name + 1 if the clock went back."""
    seconds, milliseconds = divmod(now_ms, 1000)
    name = f"{datetime.fromtimestamp(seconds):%Y%m%d%H%M%S}{milliseconds:03d}"
    if last_name and int(name) <= int(last_name):
        return f"{int(last_name) + 1:017d}"
    return name
