"""Checkpoint: how far the files are on the disk; it bounds the recovery after an unclean stop.

RocketMQ's file, `checkpoint`, speaks in store times:

    position  size  field                    type
    0         8     physic_msg_timestamp     int64 BE   commit log synced up to this store time, ms
    8         8     logics_msg_timestamp     int64 BE   consume queues synced up to this, ms
    16        8     index_msg_timestamp      int64 BE   key index synced up to this, ms
    24        4072  zeros

Each field is a lower bound: it is written only after a successful sync of what it speaks of. So an
old checkpoint makes recovery longer, never wrong. No checksum: 24 bytes lie within one disk sector.

Ours, `skylarkmq/recovery-point`, speaks in bytes. With it a recovery need not begin at the start of
a log file, and the index need not be dropped. It carries a copy of the three times. Where they are
not those of `checkpoint`, another broker has run on the store, or a crash came between the two
files; then the recovery point counts for nothing. Its places at which store times go back
(`log/clock_steps.py`) are right all the same.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../StoreCheckpoint.java
"""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from skylarkmq.common.errors import CorruptFileError
from skylarkmq.common.files import Files
from skylarkmq.common.refusal import refusal
from skylarkmq.common.sidecar import Kind, encode_sidecar, read_sidecar
from skylarkmq.store.log.clock_steps import ClockStep

log = logging.getLogger(__name__)

FILE_SIZE = 4096
FIELDS = struct.Struct(">qqq")
assert FIELDS.size == 24

# A record stored within this time before the mark may have been written after a later one.
SAFETY_MS = 3000
UNKNOWN = -1


class IndexPoint(msgspec.Struct, frozen=True, array_like=True):
    """How far the key index is on the disk: its newest file, up to an item."""

    file_name: str  # empty while there is no file
    count: int  # the number that the next item of that file gets
    end_offset: int  # the keys of all records below it are in the files
    end_timestamp: int  # store time of the newest item, ms


class Marks(NamedTuple):
    """The three store times, ms since the epoch, 0 for unknown, and the places of them."""

    physic_timestamp: int = 0
    logics_timestamp: int = 0
    index_timestamp: int = 0
    # End of a record: log and queues are on the disk for everything below it. -1 is unknown.
    commit_log_offset: int = UNKNOWN
    index_point: IndexPoint | None = None
    # Of the queues with units of those records: how many, and the sum of their ends.
    queue_count: int = UNKNOWN
    unit_count: int = UNKNOWN
    clock_steps: tuple[ClockStep, ...] = ()

    @property
    def min_timestamp(self) -> int:
        """Everything stored up to this time is in the log and in the queues on the disk."""
        return max(0, min(self.physic_timestamp, self.logics_timestamp) - SAFETY_MS)

    def without_totals(self) -> Marks:
        """Return the marks without the number of queues and units."""
        return self._replace(queue_count=UNKNOWN, unit_count=UNKNOWN)

    @property
    def times(self) -> tuple[int, int, int]:
        """What RocketMQ's file holds."""
        return self[:3]


class RecoveryPoint(msgspec.Struct, omit_defaults=True):
    """What `recovery-point` holds; the names of the members are those of the file."""

    times: tuple[int, int, int]
    offset: int
    queues: tuple[int, int] | None = None
    clock_steps: tuple[ClockStep, ...] = ()
    index: IndexPoint | None = None

    @classmethod
    def of(cls, marks: Marks, **more: int) -> Self:
        """Return what a file says of marks."""
        queues = None if marks.unit_count == UNKNOWN else (marks.queue_count, marks.unit_count)
        offset, index = marks.commit_log_offset, marks.index_point
        return cls(marks.times, offset, queues, marks.clock_steps, index, **more)

    def added_to(self, marks: Marks) -> Marks:
        """Return marks with the places that belong to their times."""
        marks = marks._replace(clock_steps=self.clock_steps)
        if self.times != marks.times:
            return marks
        queues, units = self.queues or (UNKNOWN, UNKNOWN)
        return Marks(*self.times, self.offset, self.index, queues, units, self.clock_steps)


class Checkpoint:
    """The two files. `save` blocks: queues thread, or the loading and stopping thread."""

    def __init__(self, files: Files, path: Path, point_path: Path) -> None:
        self._files = files
        self._path = path
        self._point_path = point_path

    def load(self) -> Marks:
        """Read the marks; what is missing, too short or contradictory is unknown."""
        if not self._files.exists(self._path):
            return Marks()
        data = self._files.read_all(self._path)[: FIELDS.size]
        if len(data) < FIELDS.size:
            log.warning(
                "%s at byte %d: the file is too short; recovery goes without it",
                self._path,
                len(data),
            )
            return Marks()
        physic, logics, index = (max(0, field) for field in FIELDS.unpack(data))
        marks = Marks(physic, logics, index)
        try:
            point = read_sidecar(self._files, self._point_path, Kind.RECOVERY_POINT, RecoveryPoint)
            return marks if point is None else point.added_to(marks)
        except CorruptFileError as error:
            log.warning("%s; recovery goes by the times in %s", error, self._path)
            return marks

    def save(self, marks: Marks) -> None:
        """Write the marks and sync them.

        Raises:
            OSError: the disk failed, or the machine refused something. A recovery point that is
                refused is no error: the old one stays, and counts for nothing then.
        """
        fresh = not self._files.exists(self._path)
        file = self._files.open(self._path, create=fresh)
        try:
            if file.size < FILE_SIZE:
                file.allocate(0, FILE_SIZE)
            file.pwrite(FIELDS.pack(*marks.times), 0)
            file.datasync()
        finally:
            file.close()
        if fresh:
            self._files.sync_folder(self._path.parent)
        if marks.commit_log_offset != UNKNOWN:
            self._save_point(marks)

    def forget_totals(self) -> None:
        """Take the number of queues and units out of the recovery point. Blocks."""
        marks = self.load()
        if marks.unit_count != UNKNOWN:
            self._save_point(marks.without_totals())

    def _save_point(self, marks: Marks) -> None:
        data = encode_sidecar(Kind.RECOVERY_POINT, RecoveryPoint.of(marks))
        try:
            self._files.make_folder(self._point_path.parent)
            self._files.replace(self._point_path, data, backup=False)
        except OSError as error:
            if refusal(error) is None:
                raise
            log.warning("no room for %s; a recovery would take longer: %s", self._point_path, error)


class Point(NamedTuple):
    """A place in the log, the end of a record, and the queues as they were there."""

    offset: int
    queue_count: int  # queues with at least one unit
    unit_count: int  # the sum of their ends


class PointTracker:
    """Finds the next recovery point: the newest place that is flushed, with its queues' totals.

    The totals are counted when units are published; the log is flushed a little later. So the
    totals are kept with their place until the flush has passed it. Loop thread.
    """

    def __init__(self) -> None:
        self._noted: list[Point] = []

    def note(self, point: Point) -> None:
        """Remember what is published now. Call it each second, and before a checkpoint."""
        while self._noted and self._noted[-1].offset >= point.offset:
            self._noted.pop()
        self._noted.append(point)

    def forget_totals(self) -> None:
        """Forget the totals, which count a queue that has left; the places stay."""
        self._noted = [Point(point.offset, UNKNOWN, UNKNOWN) for point in self._noted]

    def newest(self, flushed_offset: int) -> Point | None:
        """Return the newest place that is flushed; those before it are forgotten."""
        found = None
        for index, point in enumerate(self._noted):
            if point.offset > flushed_offset:
                break
            found = index
        if found is None:
            return None
        del self._noted[:found]
        return self._noted[0]
