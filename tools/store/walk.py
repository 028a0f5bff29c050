"""Walking over the commit log from record to record, and past damage to the next sound one.

Where no sound record stands, `store/stopped/segments.py` searches for the next one. When nothing
sound follows, in this file or a later one, that place is the end of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from skylarkmq.protocol.flags import RMQ_SYS_SCHEDULE_TOPIC, MessageSysFlag
from skylarkmq.protocol.properties import find_property
from skylarkmq.protocol.record import RecordStatus, RecordView
from skylarkmq.protocol.tags_code import cached_tags_code
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.progress import Progress, no_progress
from skylarkmq.store.queue.topic_removal import RemovedTopics
from skylarkmq.store.stopped.reader import NumberedFile, StoppedStore
from skylarkmq.store.stopped.segments import Look, SegmentFile

_PROGRESS_SIZE: Final = 4 << 20
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
    window = b"", 0
    while position < opened.size:
        look = opened.look(position, check_crc=check_crc, known=window)
        if look.begin != window[1]:
            window = opened.window(position)
        kind, size = PlaceKind.MESSAGE, look.record.size
        if look.record.status is RecordStatus.BLANK:
            kind, size = PlaceKind.BLANK, opened.size - position
        elif look.record.status is not RecordStatus.MESSAGE:
            kind, size = PlaceKind.DAMAGE, opened.size - position
            following = opened.find_record(position + 1, opened.size)
            if following is not None:
                size = following - position
            elif not any(_has_record(store, later) for later in files[1:]):
                kind, size = PlaceKind.END, 0
        yield Place(kind, files[0], position, size, look)
        position += size


def _has_record(store: StoppedStore, file: NumberedFile) -> bool:
    with store.opened_log(file) as opened:
        return opened.find_record(0, opened.size) is not None


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
