"""Log files read piece by piece: what stands at a place, where the next sound record begins.

Pieces come by `pread` and not through a mapping: a bad sector of a dead broker's disk is an error
that one can tell and pass over, where a mapping would kill the process, and a file of 1 GiB needs
1 MiB of memory.

A record is found by its magic, by the physical offset that it carries, which must be that of the
very place, by its inner lengths, and by its checksum or by a record that follows it. So neither a
body that holds other records nor the remains of an older file are taken for one.

Pure logic over an open file; in driver and executors, one thread.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Final, NamedTuple

from skylarkmq.common.files import StoreFile
from skylarkmq.protocol.flags import MAX_TOPIC_SIZE
from skylarkmq.protocol.record import (
    BLANK_MAGIC,
    FIXED_IPV4_SIZE,
    FIXED_IPV6,
    HEAD,
    HOSTS_BITS,
    HOSTS_SHIFT,
    LENGTHS_SIZE,
    MAGIC_POSITION,
    MESSAGE_MAGIC,
    PHYSICAL_OFFSET_POSITION,
    SECTOR_SIZE,
    VIEW_BY_HOSTS,
    VIEW_IPV4,
    RecordStatus,
    RecordView,
    read_record,
)

WINDOW_SIZE: Final = 1 << 20
_GLANCE_SIZE: Final = 4096
_BLOCK_SIZE: Final = 4096
_UNREADABLE: Final = b"\xff"
_CHAIN_COUNT: Final = 3
_MAGIC: Final = MESSAGE_MAGIC.to_bytes(4, "big", signed=True)
_OFFSET_END: Final = PHYSICAL_OFFSET_POSITION + 8
_ZEROS: Final = bytes(WINDOW_SIZE + _OFFSET_END)
_SIZE_SLACK: Final = 3  # bytes of a record's size that may be zeros
_REST_MAX: Final = FIXED_IPV6.size + LENGTHS_SIZE + MAX_TOPIC_SIZE + 0xFFFF


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """The records of one file that begin at [begin, end), byte places within it. Picklable.

    Attributes:
        path: of the file.
        base: physical offset of the file's first byte.
        is_cut: `end` is the begin of a record, which another range has.
        is_last: nothing was written after `end`.
        next_file: where the next file begins, a byte place as `end` is; None when none follows.
    """

    path: str
    base: int
    begin: int
    end: int
    is_cut: bool = False
    is_last: bool = False
    next_file: int | None = None


class Look(NamedTuple):
    """What stands at a place, and the piece of the file around it, which begins at `begin`.

    `claimed` is the size of the message that stands there by its head, sound or not; 0 for none.
    """

    record: RecordView
    data: bytes
    begin: int
    claimed: int = 0


class SegmentFile:
    """One open log file."""

    def __init__(self, file: StoreFile, base: int, *, patient: bool = False) -> None:
        """Take an open file.

        Args:
            base: physical offset of its first byte.
            patient: what the disk cannot read counts as damage instead of raising OSError.
        """
        self.file = file
        self.base = base
        self.size = file.size
        self._patient = patient

    def window(self, place: int, size: int = WINDOW_SIZE) -> tuple[bytes, int]:
        """Return at least `size` bytes from `place` on, fewer at the file's end, and their begin.

        They begin where a sector does, as `read_record` wants it.
        """
        begin = place - place % SECTOR_SIZE
        stop = place + size
        stop += -stop % SECTOR_SIZE
        # A range that was planned before the file was cut short reaches beyond its end.
        return self._pread(max(0, min(stop, self.size) - begin), begin), begin

    def look(self, place: int, *, check_crc: bool) -> Look:
        """Return what stands at `place`; a message, however large, lies whole in the piece."""
        data, begin = self.window(place, _GLANCE_SIZE)
        at = place - begin
        if len(data) - at >= HEAD.size:
            size, magic = HEAD.unpack_from(data, at)
            if magic == BLANK_MAGIC and size == self.size - place:
                return Look(RecordView(RecordStatus.BLANK, size), data, begin)
        size = _claimed_size(data, at, self.base + place)
        if at + size > len(data) < self.size - begin:
            data, begin = self.window(place, size)
        offset = self.base + place
        record = read_record(data, at, check_crc=check_crc, physical_offset=offset)
        return Look(record, data, begin, size)

    def find_record(self, place: int, stop: int) -> int | None:
        """Return where the first sound record begins in [place, stop), None without one."""
        stop = min(stop, self.size)
        while (place := max(place, self.file.data_start(place) - _SIZE_SLACK)) < stop:
            chunk = self._pread(min(WINDOW_SIZE + _OFFSET_END, self.size - place), place)
            # Most of the last file lies there ahead of need; to search in zeros takes ten times as
            # long as to see that they are zeros.
            at = -1 if _ZEROS.startswith(chunk) else chunk.find(_MAGIC, MAGIC_POSITION)
            while at >= 0:
                start = at - MAGIC_POSITION
                if start >= WINDOW_SIZE or place + start >= stop:
                    break
                offset = (self.base + place + start).to_bytes(8, "big")
                if chunk[
                    start + PHYSICAL_OFFSET_POSITION : start + _OFFSET_END
                ] == offset and self._is_record(place + start):
                    return place + start
                at = chunk.find(_MAGIC, at + 1)
            place += WINDOW_SIZE
        return None

    def cuts(self, step: int, stop: int) -> list[int]:
        """Return begins of records, about `step` bytes from each other, before `stop`.

        The first is 0. Each is a sound record that sound ones follow.
        """
        found = [0]
        place = step
        while place < stop:
            start = self.find_record(place, stop)
            if start is None:
                break
            if self._is_chain(start):
                found.append(start)
                place = start + step
            else:
                place = start + 1
        return found

    def is_blank(self) -> bool:
        """Return whether nothing was ever written here: a file made ahead of need.

        Zeros in front are not enough: a disk that was rescued has zeros where it was unreadable.
        """
        if any(self._pread(min(HEAD.size, self.size), 0)):
            return False
        return self.find_record(0, self.size) is None

    def _is_record(self, place: int) -> bool:
        found = self.look(place, check_crc=True).record
        if found.status is RecordStatus.MESSAGE:
            return True
        found = self.look(place, check_crc=False).record
        return found.status is RecordStatus.MESSAGE and self._is_begin(place + found.size)

    def _is_begin(self, place: int) -> bool:
        """Return whether a message or the file's blank rest begins at `place`."""
        if place >= self.size:
            return False
        status = self.look(place, check_crc=False).record.status
        return status in (RecordStatus.MESSAGE, RecordStatus.BLANK)

    def _is_chain(self, place: int) -> bool:
        for _ in range(_CHAIN_COUNT):
            found = self.look(place, check_crc=True).record
            if found.status is not RecordStatus.MESSAGE:
                return found.status in (RecordStatus.BLANK, RecordStatus.UNWRITTEN)
            place += found.size
        return True

    def _pread(self, size: int, position: int) -> bytes:
        try:
            return self.file.pread(size, position)
        except OSError as error:
            if error.errno != errno.EIO or not self._patient:
                raise
        parts: list[bytes] = []
        place, stop = position, position + size
        while place < stop:
            following = min(place - place % _BLOCK_SIZE + _BLOCK_SIZE, stop)
            parts.append(self._block(following - place, place))
            place = following
        return b"".join(parts)

    def _block(self, size: int, position: int) -> bytes:
        try:
            return self.file.pread(size, position)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return _UNREADABLE * size


def _claimed_size(data: bytes, position: int, physical_offset: int) -> int:
    """Return the size of the message whose head stands at `position`, 0 when it is not one.

    Believed only when it fits the body's size, so that damage does not make one read a gigabyte.
    """
    if len(data) - position < FIXED_IPV4_SIZE:
        return 0
    fields = VIEW_IPV4.unpack_from(data, position)
    hosts: int = fields[6] & HOSTS_BITS
    if hosts:
        layout = VIEW_BY_HOSTS[hosts >> HOSTS_SHIFT]
        if len(data) - position < layout.size:
            return 0
        fields = layout.unpack_from(data, position)
    size, body_size = int(fields[0]), int(fields[10])
    if fields[1] != MESSAGE_MAGIC or fields[5] != physical_offset or body_size < 0:
        return 0
    return size if FIXED_IPV4_SIZE + LENGTHS_SIZE <= size - body_size <= _REST_MAX else 0
