"""A file of the pop journal: batches of records, appended; and all files of a folder, read.

    position  size  field     type
    0         4     magic     b"SKPJ"
    4         2     version   uint16 BE   1
    6         2     zero      uint16 BE
    8         8     number    int64 BE    the file's name, 20 digits
    16        4     crc       uint32 BE   CRC-32 of the 16 bytes before it
    20              frames, one for each turn of the loop that had something to say; then zeros

A frame:

    0         4     size      uint32 BE   bytes of the payload; 0: no frame was written here
    4         4     crc       uint32 BE   CRC-32 of the size and of the payload
    8         size  payload   msgpack list: how far the file was synced by then, then records

A record is a list: a number of `_Op`, then its fields. A queue has a number of its own in each
file, which the record `NAME` before its first use gives it; rows are one flat list of numbers.

The checksum is zlib's and not the CRC-32C of our other files: it runs for each frame, and the
library of that one is slow where no compiler was at hand.

A frame whose checksum is wrong is the end of what can be believed: the records behind it speak of
ones that are missing. After a crash it is what was not synced, and nothing was promised of it. It
is damage when a later frame says that this place had been synced, or when a later file exists.
"""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgpack  # pyright: ignore[reportMissingTypeStubs]

from skylarkmq.common.errors import CorruptFileError
from skylarkmq.common.files import Files
from skylarkmq.store.pop.journal_records import (
    Changed,
    Clean,
    Done,
    Forgot,
    Key,
    KeyState,
    Left,
    Moved,
    PopState,
    Record,
    Row,
    State,
    Took,
    Whole,
)

log = logging.getLogger(__name__)

MAGIC: Final = b"SKPJ"
VERSION: Final = 1
HEAD: Final = struct.Struct(">4sHHq")
CRC: Final = struct.Struct(">I")
FRAME: Final = struct.Struct(">II")
HEAD_SIZE: Final = 20
ROW_SIZE: Final = 6  # numbers
SEARCH_SIZE_MAX: Final = 1 << 16  # of a frame that is looked for behind a damaged place
assert HEAD.size + CRC.size == HEAD_SIZE
assert len(Row._fields) == ROW_SIZE

_NAME_DIGITS: Final = 20
_SIZE: Final = struct.Struct(">I")

# msgpack carries no types.
_pack: Callable[[list[Any]], bytes] = msgpack.packb  # pyright: ignore
_unpack: Callable[[bytes], Any] = msgpack.unpackb  # pyright: ignore


class _Op(IntEnum):
    """What a record is."""

    NAME = 0
    TOOK = 1
    DONE = 2
    CHANGED = 3
    MOVED = 4
    FORGOT = 5
    STATE = 6
    WHOLE = 7
    CLEAN = 8
    LEFT = 9


# Records of a queue and some numbers, each message has one: the value of its op, by its type.
_KEYED: Final[dict[type, int]] = {
    Done: _Op.DONE.value,
    Left: _Op.LEFT.value,
    Changed: _Op.CHANGED.value,
    Moved: _Op.MOVED.value,
}


def file_path(folder: Path, number: int) -> Path:
    """Return the path of a file."""
    return folder / f"{number:0{_NAME_DIGITS}d}"


def file_numbers(files: Files, folder: Path) -> list[int]:
    """Return the numbers of the files that are there, in their order. Blocks."""
    names = files.list(folder)
    return sorted(int(name) for name in names if len(name) == _NAME_DIGITS and name.isdigit())


def file_head(number: int) -> bytes:
    """Return the bytes that a file begins with."""
    head = HEAD.pack(MAGIC, VERSION, 0, number)
    return head + CRC.pack(zlib.crc32(head))


class FrameWriter:
    """Makes the frames of one file: it knows which queues have a number in it."""

    def __init__(self) -> None:
        self._names: dict[Key, int] = {}

    def frame(self, records: Iterable[Record], synced: int) -> bytes:
        """Return a frame.

        Args:
            synced: position up to which the file is known to be on the disk.
        """
        content: list[Any] = [synced]
        for record in records:
            self._add(record, content)
        payload = _pack(content)
        size = _SIZE.pack(len(payload))
        return size + CRC.pack(zlib.crc32(payload, zlib.crc32(size))) + payload

    def _add(self, record: Record, content: list[Any]) -> None:
        if isinstance(record, (Done, Left, Changed, Moved)):
            name = self._name(record.key, content)
            content.append([_KEYED[type(record)], name, *record[1:]])
            return
        match record:
            case Took(key, next_offset, end_physical, rows, attempt_id):
                name = self._name(key, content)
                flat = [number for row in rows for number in row]
                content.append([_Op.TOOK, name, next_offset, end_physical, flat, attempt_id])
            case State(key, state):
                name = self._name(key, content)
                flat = [number for row in state.rows.values() for number in row]
                place = state.next_offset, state.end_physical
                content.append([_Op.STATE, name, *place, flat, state.attempt_id])
            case Forgot(group, topic):
                content.append([_Op.FORGOT, group, topic])
            case Whole(last_serial):
                content.append([_Op.WHOLE, last_serial])
            case _:
                content.append([_Op.CLEAN])

    def _name(self, key: Key, content: list[Any]) -> int:
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = len(self._names)
            content.append([_Op.NAME, name, *key])
        return name


class Frame(NamedTuple):
    """A frame of a file: its place, its bytes with the head, and what it says."""

    position: int
    size: int
    synced: int
    records: list[Record]


class Tear(NamedTuple):
    """Where the files end before their end: what is said behind it is left out."""

    path: Path
    position: int
    is_damage: bool  # of what was on the disk; else it is what a crash leaves


class _Read(NamedTuple):
    """What could be read of a file."""

    records: list[Record]
    end: int  # of the last sound frame
    is_sound: bool  # nothing but zeros follows
    synced: int  # the greatest position that any frame, also behind the end, says was synced

    @property
    def is_whole(self) -> bool:
        """True when older files say nothing more."""
        return any(isinstance(record, Whole) for record in self.records)


def load_state(files: Files, folder: Path) -> PopState:
    """Fold all files of a folder, and log where they are torn or damaged. Blocks.

    Raises:
        CorruptFileError: a file was written by a later release.
        OSError: the disk cannot be read.
    """
    state, tear = fold_files(files, folder)
    if tear is not None and tear.is_damage:
        log.error(
            "%s is damaged at byte %d: what it says from there on of messages in flight and "
            "acknowledged is left out, and those messages are delivered again",
            tear.path,
            tear.position,
        )
    elif tear is not None:
        log.info("%s: the crash has torn its end at byte %d", tear.path, tear.position)
    return state


def fold_files(files: Files, folder: Path) -> tuple[PopState, Tear | None]:
    """Return what all files of a folder add up to, and where that ends early. Blocks.

    Raises:
        CorruptFileError: a file was written by a later release.
        OSError: the disk cannot be read.
    """
    reads: list[tuple[Path, _Read]] = []
    for number in reversed(file_numbers(files, folder)):
        path = file_path(folder, number)
        read = _read_file(path, number, files.read_all(path))
        reads.append((path, read))
        if read.is_whole:
            break
    state, tear = PopState(), None
    for index, (path, read) in enumerate(reversed(reads)):
        for record in read.records:
            state.apply(record)
        if read.is_sound:
            continue
        is_last = index == len(reads) - 1
        tear = Tear(path, read.end, not is_last or read.synced > read.end)
        if tear.is_damage:
            state.is_clean = False
            break
    for key_state in state.keys.values():
        key_state.rows = dict(sorted(key_state.rows.items()))
    return state, tear


def has_head(path: Path, number: int, data: bytes) -> bool:
    """Return whether the bytes of a file begin as one of that number does.

    Raises:
        CorruptFileError: it was written by a later release.
    """
    head = data[:HEAD_SIZE]
    if len(head) < HEAD_SIZE or CRC.unpack_from(head, HEAD.size)[0] != zlib.crc32(
        head[: HEAD.size]
    ):
        return False
    magic, version, _, found = HEAD.unpack_from(head)
    if magic != MAGIC or found != number:
        return False
    if version != VERSION:
        raise CorruptFileError(path, 4, f"version {version} was written by a later release")
    return True


def frames_of(data: bytes) -> Iterator[Frame]:
    """Yield the frames of a file with a head, as far as they can be believed."""
    names: dict[int, Key] = {}
    position = HEAD_SIZE
    while (found := _frame_at(data, position)) is not None:
        payload, end = found
        try:
            synced, records = _decode(payload, names)
        except (ValueError, TypeError, IndexError, KeyError):
            return
        yield Frame(position, end - position, synced, records)
        position = end


def _read_file(path: Path, number: int, data: bytes) -> _Read:
    if not has_head(path, number, data):
        # A file that was just begun, or damage; only zeros are known to be the former.
        return _Read([], 0, not data.strip(b"\0"), 0)
    records: list[Record] = []
    position, synced = HEAD_SIZE, 0
    for frame in frames_of(data):
        synced = max(synced, frame.synced)
        records += frame.records
        position = frame.position + frame.size
    is_sound = not data[position:].strip(b"\0")
    if not is_sound:
        synced = max(synced, _synced_behind(data, position))
    return _Read(records, position, is_sound, synced)


def _frame_at(data: bytes, position: int) -> tuple[bytes, int] | None:
    """Return the payload of a sound frame and where it ends; None when there is none."""
    if position + FRAME.size > len(data):
        return None
    size, crc = FRAME.unpack_from(data, position)
    end = position + FRAME.size + size
    if size == 0 or end > len(data):
        return None
    payload = data[position + FRAME.size : end]
    if zlib.crc32(payload, zlib.crc32(data[position : position + 4])) != crc:
        return None
    return payload, end


def _synced_behind(data: bytes, position: int) -> int:
    """Return what the first sound frame behind a damaged place says was synced; 0 without one."""
    for place in range(position + 1, len(data.rstrip(b"\0"))):
        size = int.from_bytes(data[place : place + 4])
        found = _frame_at(data, place) if size <= SEARCH_SIZE_MAX else None
        if found is not None:
            try:
                content = _unpack(found[0])
            except ValueError:
                continue
            if isinstance(content, list) and content and isinstance(content[0], int):
                return content[0]
    return 0


def _decode(payload: bytes, names: dict[int, Key]) -> tuple[int, list[Record]]:
    """Return how far the file was synced when a frame was written, and its records.

    What it calls queues goes into `names`.

    Raises:
        ValueError, TypeError, IndexError, KeyError: they are not what this release writes.
    """
    content = _unpack(payload)
    found: list[Record] = []
    for op, *fields in content[1:]:
        if op == _Op.NAME:
            name, group, topic, kind, queue_id = fields
            names[name] = Key(str(group), str(topic), int(kind), int(queue_id))
        else:
            found.append(_record(_Op(op), fields, names))
    return int(content[0]), found


def _record(op: _Op, fields: Sequence[Any], names: dict[int, Key]) -> Record:
    match op:
        case _Op.TOOK:
            name, next_offset, end_physical, flat, attempt_id = fields
            return Took(names[name], next_offset, end_physical, tuple(_rows(flat)), attempt_id)
        case _Op.DONE:
            name, offset = fields
            return Done(names[name], offset)
        case _Op.LEFT:
            name, offset, copy_physical = fields
            return Left(names[name], offset, copy_physical)
        case _Op.CHANGED:
            name, offset, serial, visible_ms, attempt = fields
            return Changed(names[name], offset, serial, visible_ms, attempt)
        case _Op.MOVED:
            name, next_offset, end_physical = fields
            return Moved(names[name], next_offset, end_physical)
        case _Op.FORGOT:
            group, topic = fields
            return Forgot(group, topic)
        case _Op.STATE:
            name, next_offset, end_physical, flat, attempt_id = fields
            rows = {row.offset: row for row in _rows(flat)}
            return State(names[name], KeyState(next_offset, end_physical, rows, attempt_id))
        case _Op.WHOLE:
            return Whole(*fields)
        case _Op.CLEAN:
            return Clean()
        case _Op.NAME:  # pragma: no cover - the caller has dealt with it
            raise ValueError(op)


def _rows(flat: list[int]) -> list[Row]:
    if len(flat) % ROW_SIZE:
        raise ValueError(flat)
    return [Row(*flat[at : at + ROW_SIZE]) for at in range(0, len(flat), ROW_SIZE)]
