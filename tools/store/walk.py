"""Walking over the commit log from record to record, and past damage to the next sound one.

Where no sound record stands, the next one is searched for by its magic and by the physical offset
that each record carries, so a leftover of another place is not taken for one. When nothing sound
follows, in this file or a later one, that place is the end of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from skylarkmq.protocol.flags import RMQ_SYS_SCHEDULE_TOPIC, MessageSysFlag
from skylarkmq.protocol.properties import find_property
from skylarkmq.protocol.record import (
    BLANK_MAGIC,
    MAGIC_POSITION,
    MESSAGE_MAGIC,
    RecordStatus,
    RecordView,
    read_record,
)
from skylarkmq.protocol.tags_code import cached_tags_code
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.progress import Progress, no_progress
from skylarkmq.store.queue.topic_removal import RemovedTopics
from skylarkmq.store.stopped.reader import NumberedFile, StoppedStore

SEARCH_SIZE: Final = 1 << 20
_PROGRESS_SIZE: Final = 4 << 20
_MESSAGE: Final = MESSAGE_MAGIC.to_bytes(4, "big", signed=True)
_BLANK: Final = BLANK_MAGIC.to_bytes(4, "big", signed=True)
_QUEUED: Final = (0, MessageSysFlag.TRANSACTION_COMMIT_TYPE)
_DISPATCH: Final = b"INNER_MULTI_DISPATCH\x01"
_DISPATCH_OFFSETS: Final = b"INNER_MULTI_QUEUE_OFFSET\x01"
_LMQ_PREFIX: Final = "%LMQ%"


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
    record: RecordView
    view: memoryview

    @property
    def why(self) -> str:
        """What is wrong here, for a human."""
        return self.record.why or "nothing is written here"

    @property
    def offset(self) -> int:
        """Physical offset."""
        return self.file.start + self.position


class QueuePlace(NamedTuple):
    """The unit that a record should have."""

    topic: str
    queue_id: int
    queue_offset: int
    tags_code: int


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
        view = store.view(file.path)
        position = max(0, begin - file.start) if begin is not None else 0
        while position < len(view):
            place = _place(store, files, index, position, view, check_crc=check_crc)
            yield place
            if place.kind is PlaceKind.END:
                progress(what, total, total)
                return
            position += place.size
            if done + position - told >= _PROGRESS_SIZE:
                told = done + position
                progress(what, told, total)
        done += file.size
    progress(what, total, total)


def _place(
    store: StoppedStore,
    files: list[NumberedFile],
    index: int,
    position: int,
    view: memoryview,
    *,
    check_crc: bool,
) -> Place:
    file = files[index]
    record = read_record(view, position, check_crc=check_crc, physical_offset=file.start + position)
    if record.status is RecordStatus.MESSAGE:
        return Place(PlaceKind.MESSAGE, file, position, record.size, record, view)
    left = len(view) - position
    if record.status is RecordStatus.BLANK:
        return Place(PlaceKind.BLANK, file, position, left, record, view)
    following = find_sound(view, file.start, position + 1)
    if following is not None:
        return Place(PlaceKind.DAMAGE, file, position, following - position, record, view)
    if any(
        find_sound(store.view(later.path), later.start, 0) is not None
        for later in files[index + 1 :]
    ):
        return Place(PlaceKind.DAMAGE, file, position, left, record, view)
    return Place(PlaceKind.END, file, position, 0, record, view)


def find_sound(view: memoryview, start_offset: int, position: int) -> int | None:
    """Return the byte place of the first sound record or blank from `position` on, or None."""
    while position < len(view):
        chunk = bytes(view[position : position + SEARCH_SIZE + len(_MESSAGE) + MAGIC_POSITION])
        places = sorted(
            at - MAGIC_POSITION
            for magic in (_MESSAGE, _BLANK)
            for at in _all(chunk, magic)
            if at >= MAGIC_POSITION
        )
        for place in places:
            record = read_record(
                view, position + place, physical_offset=start_offset + position + place
            )
            if record.status is RecordStatus.MESSAGE:
                return position + place
            if record.status is RecordStatus.BLANK and record.size == len(view) - position - place:
                return position + place
        position += SEARCH_SIZE
    return None


def _all(chunk: bytes, wanted: bytes) -> Iterator[int]:
    at = chunk.find(wanted)
    while at >= 0:
        yield at
        at = chunk.find(wanted, at + 1)


def is_queued(record: RecordView) -> bool:
    """Return whether a message belongs into a queue: prepared and rolled-back ones do not."""
    return record.sys_flag & MessageSysFlag.TRANSACTION_MASK in _QUEUED


def queue_places(
    record: RecordView, levels: DelayLevels, removed: RemovedTopics | None = None
) -> list[QueuePlace]:
    """Return the units that a record should have: its own, and those of the light queues it names.

    Args:
        removed: topics whose records have none.

    Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../ConsumeQueue.java (multiDispatchLmqQueue)
    """
    if not is_queued(record):
        return []
    topic = record.topic.decode("utf-8", "replace")
    if removed is not None and removed.hides(topic, record.physical_offset):
        return []
    code = _tags_code(topic, record, levels)
    places = [QueuePlace(topic, record.queue_id, record.queue_offset, code)]
    if record.properties.find(_DISPATCH) >= 0:
        names = (find_property(record.properties, _DISPATCH) or b"").split(b",")
        offsets = (find_property(record.properties, _DISPATCH_OFFSETS) or b"").split(b",")
        if len(names) == len(offsets) and all(offset.isdigit() for offset in offsets):
            for raw, offset in zip(names, offsets, strict=True):
                name = raw.decode("utf-8", "replace")
                queue_id = 0 if name.startswith(_LMQ_PREFIX) else record.queue_id
                places.append(QueuePlace(name, queue_id, int(offset), code))
    return places


def _tags_code(topic: str, record: RecordView, levels: DelayLevels) -> int:
    if topic == RMQ_SYS_SCHEDULE_TOPIC:
        level = levels.level_of(record.properties)
        if level:
            return levels.due_time(level, record.store_timestamp)
    return 0 if record.tags is None else cached_tags_code(record.tags)
