"""Log files read piece by piece: what stands at a place, where the next sound record begins.

Pieces come by `pread` and not through a mapping: a bad sector of a dead broker's disk is an error
that one can tell and pass over, where a mapping would kill the process, and a file of 1 GiB needs
1 MiB of memory. Open the file with `ReadOnlyFiles(patient=True)` and it is damage as any other.

A record is found by its magic, by the physical offset that it carries, which must be that of the
very place, by its inner lengths, and by its checksum or by a record that follows it. So neither a
body that holds other records nor the remains of an older file are taken for one.

Pure logic over an open file; one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    MIN_BLANK_SIZE,
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
_CHAIN_COUNT: Final = 3
_MAGICS: Final = tuple(
    magic.to_bytes(4, "big", signed=True) for magic in (MESSAGE_MAGIC, BLANK_MAGIC)
)
_OFFSET_END: Final = PHYSICAL_OFFSET_POSITION + 8
_ZEROS: Final = bytes(WINDOW_SIZE + _OFFSET_END)
_SIZE_SLACK: Final = 3  # bytes of a record's size that may be zeros
_REST_MAX: Final = FIXED_IPV6.size + LENGTHS_SIZE + MAX_TOPIC_SIZE + 0xFFFF


class Look(NamedTuple):
    """What stands at a place, and the piece of the file around it, which begins at `begin`.

    `claimed` is the size of the message that stands there by its head, sound or not; 0 for none.
    """

    record: RecordView
    data: bytes
    begin: int
    claimed: int = 0

    def bytes_at(self, place: int, size: int) -> bytes:
        """Return bytes of the file from `place` on, as far as the piece has them."""
        return self.data[place - self.begin : place - self.begin + size]


class Piece(NamedTuple):
    """Bytes of a file: a message, the blank rest of the file, or what holds no sound record."""

    position: int
    size: int
    look: Look
    is_followed: bool
    """Whether something sound follows what is not sound, in this file."""


class SegmentFile:
    """One open log file."""

    def __init__(self, file: StoreFile, base: int) -> None:
        """Take an open file, and the physical offset of its first byte."""
        self.file = file
        self.base = base
        self.size = file.size

    def window(self, place: int, size: int = WINDOW_SIZE) -> tuple[bytes, int]:
        """Return at least `size` bytes from `place` on, fewer at the file's end, and their begin.

        They begin where a sector does, as `read_record` wants it.
        """
        begin = place - place % SECTOR_SIZE
        stop = place + size
        stop += -stop % SECTOR_SIZE
        # A range that was planned before the file was cut short reaches beyond its end.
        return self.file.pread(max(0, min(stop, self.size) - begin), begin), begin

    def look(self, place: int, *, check_crc: bool, known: tuple[bytes, int] | None = None) -> Look:
        """Return what stands at `place`; a message, however large, lies whole in the piece.

        Args:
            known: a window that begins at or before `place`, to spare a read where it reaches.
        """
        data, begin = known or (b"", 0)
        if begin + len(data) < min(place + _GLANCE_SIZE, self.size):
            data, begin = self.window(place, _GLANCE_SIZE)
        at = place - begin
        if len(data) - at >= HEAD.size:
            size, magic = HEAD.unpack_from(data, at)
            if magic == BLANK_MAGIC and MIN_BLANK_SIZE <= size <= self.size - place:
                return Look(RecordView(RecordStatus.BLANK, size), data, begin)
        size = _claimed_size(data, at, self.base + place)
        if at + size > len(data) < self.size - begin:
            data, begin = self.window(place, size)
        offset = self.base + place
        record = read_record(data, at, check_crc=check_crc, physical_offset=offset)
        return Look(record, data, begin, size)

    def pieces(self, position: int, *, check_crc: bool) -> Iterator[Piece]:
        """Yield what stands in the file from a place on, up to its end."""
        window = b"", 0
        while position < self.size:
            look = self.look(position, check_crc=check_crc, known=window)
            if look.begin != window[1]:
                window = self.window(position)
            following, size = None, look.record.size
            if look.record.status is not RecordStatus.MESSAGE:
                if look.record.status is not RecordStatus.BLANK:
                    following = self.find_record(position + 1, self.size)
                size = (self.size if following is None else following) - position
            yield Piece(position, size, look, following is not None)
            position += size

    def find_record(self, place: int, stop: int) -> int | None:
        """Return where the first sound record begins in [place, stop), None without one.

        The blank record that ends the file counts.
        """
        stop = min(stop, self.size)
        while (place := max(place, self.file.data_start(place) - _SIZE_SLACK)) < stop:
            chunk = self.file.pread(min(WINDOW_SIZE + _OFFSET_END, self.size - place), place)
            # Most of the last file lies there ahead of need; to search in zeros takes ten times as
            # long as to see that they are zeros.
            for start in [] if _ZEROS.startswith(chunk) else _heads(chunk):
                if start >= WINDOW_SIZE or place + start >= stop:
                    break
                if self._is_sound(chunk, start, place + start):
                    return place + start
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
        if any(self.file.pread(min(HEAD.size, self.size), 0)):
            return False
        return self.find_record(0, self.size) is None

    def _is_sound(self, chunk: bytes, start: int, place: int) -> bool:
        """Return whether a sound record, or the file's last blank, has its head in the chunk."""
        size, magic = HEAD.unpack_from(chunk, start)
        if magic == BLANK_MAGIC:
            return bool(size == self.size - place)
        offset = (self.base + place).to_bytes(8, "big")
        if chunk[start + PHYSICAL_OFFSET_POSITION : start + _OFFSET_END] != offset:
            return False
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


def _heads(chunk: bytes) -> list[int]:
    """Return where heads of records and blanks may begin, by their magic."""
    found: list[int] = []
    for magic in _MAGICS:
        at = chunk.find(magic, MAGIC_POSITION)
        while at >= 0:
            found.append(at - MAGIC_POSITION)
            at = chunk.find(magic, at + 1)
    return sorted(found)


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
