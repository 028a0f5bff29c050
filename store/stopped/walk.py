"""Walking over a stopped store's log from record to record, and past damage to the next sound one.

When nothing sound follows, in this file or a later one, that place is the end of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from skylarkmq.protocol.record import RecordStatus, RecordView
from skylarkmq.store.progress import Progress, no_progress
from skylarkmq.store.stopped.reader import NumberedFile, StoppedStore
from skylarkmq.store.stopped.segments import Look, SegmentFile

_PROGRESS_SIZE: Final = 4 << 20


class PlaceKind(Enum):
    """What a walk comes to; after DAMAGE something sound follows, after END nothing."""

    MESSAGE = "message"
    BLANK = "blank"
    DAMAGE = "damage"
    END = "end"


class Place(NamedTuple):
    """One place of the log. `size` is the bytes up to the next place, 0 at the end."""

    kind: PlaceKind
    file: NumberedFile
    position: int
    size: int
    look: Look

    @property
    def record(self) -> RecordView:
        """What stands there."""
        return self.look.record

    def first_bytes(self, size: int) -> bytes:
        """Return what stands there, as far as the look has it: of a message all of it."""
        return self.look.bytes_at(self.position, size)

    @property
    def why(self) -> str:
        """What is wrong here, for a human."""
        return self.record.why or "nothing is written here"

    @property
    def offset(self) -> int:
        """Physical offset."""
        return self.file.start + self.position


_KINDS: Final = {
    RecordStatus.MESSAGE: PlaceKind.MESSAGE,
    RecordStatus.BLANK: PlaceKind.BLANK,
}


def walk(
    store: StoppedStore,
    begin: int | None = None,
    *,
    check_crc: bool = True,
    progress: Progress = no_progress,
    what: str = "reading the log",
) -> Iterator[Place]:
    """Yield what stands in the log from offset `begin`, a record's start, up to its end.

    The last place is the END unless the last file is full.
    """
    files = [file for file in store.log_files if begin is None or file.end > begin]
    total = sum(file.size for file in files)
    done = told = 0
    for index, file in enumerate(files):
        position = max(0, begin - file.start) if begin is not None else 0
        with store.opened_log(file) as opened:
            for place in _places(store, files[index:], opened, position, check_crc=check_crc):
                yield place
                if place.kind is PlaceKind.END:
                    progress(what, total, total)
                    return
                reached = done + place.position + place.size
                if reached - told >= _PROGRESS_SIZE:
                    told = reached
                    progress(what, told, total)
        done += file.size
    progress(what, total, total)


def _places(
    store: StoppedStore,
    files: list[NumberedFile],
    opened: SegmentFile,
    position: int,
    *,
    check_crc: bool,
) -> Iterator[Place]:
    """Yield the places of the first of these files, which is open."""
    for at, size, look, is_followed in opened.pieces(position, check_crc=check_crc):
        kind = _KINDS.get(look.record.status, PlaceKind.DAMAGE)
        is_last = kind is PlaceKind.DAMAGE and not is_followed
        if is_last and not any(_has_record(store, later) for later in files[1:]):
            kind, size = PlaceKind.END, 0
        yield Place(kind, files[0], at, size, look)


def _has_record(store: StoppedStore, file: NumberedFile) -> bool:
    with store.opened_log(file) as opened:
        return opened.find_record(0, opened.size) is not None
