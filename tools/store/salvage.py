"""`store salvage`: every sound message of a damaged store in a new folder, as a sound store.

The damaged store is only read. In the new one messages keep their physical offsets and their
queue offsets. Queues and key index are made from the saved log; tables are copied, from their
backup where only that can be read. Times of files are not kept, so messages expire
`fileReservedTime` after the salvage.

Between the sound records are holes of bytes that no reader may come to. RocketMQ's readers go from
record to record, so a hole is filled with records: one for each message that is known to be lost
there, so that later messages keep their queue offsets, and for the rest records of type rollback,
which no consumer ever sees. A hole that reaches the end of its file ends with the blank record that
belongs there.

    lost message    empty body, property SKYLARKMQ_LOST=true, its own topic, queue and queue offset
    the rest        topic SKYLARKMQ_LOST or a part of that name, rollback, a body of zeros
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from skylarkmq.common.errors import StoreError
from skylarkmq.common.files import DiskFiles, StoreFile
from skylarkmq.common.read_only_files import ReadOnlyFiles
from skylarkmq.common.sidecar import Kind, encode_sidecar
from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.protocol.record import (
    MIN_BLANK_SIZE,
    MIN_RECORD_SIZE,
    encode_blank,
    encode_record,
)
from skylarkmq.store.checkpoint import Checkpoint, Marks
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.folder import AbortFile, StorePaths
from skylarkmq.store.log.mapped_file import file_name
from skylarkmq.store.progress import Progress, no_progress
from skylarkmq.store.queue.consume_queue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE
from skylarkmq.store.queue.queue_files import QueueWrite, QueueWriter
from skylarkmq.store.stopped.reader import QueueKey, StoppedStore
from skylarkmq.store.stopped.walk import Place, PlaceKind, walk
from skylarkmq.tools.output import size_text
from skylarkmq.tools.store.derive import HOLE_MAX, IndexWriter, QueueBuilder
from skylarkmq.tools.store.queue_places import queue_places
from skylarkmq.tools.store.tables import BACKUP, TABLES, read_table

LOST: Final = "SKYLARKMQ_LOST"
_LOST_PROPERTY: Final = f"{LOST}\x01true".encode()
_REST_MAX: Final = 1 << 20  # bytes of one record that fills
_BLANK: Final = "blank"  # why of a hole that was a blank record already
_NO_HOST: Final = bytes(8)


class Lost(NamedTuple):
    """A message that cannot be saved."""

    topic: str
    queue_id: int
    queue_offset: int

    @property
    def least_size(self) -> int:
        """Bytes of the smallest record that takes its place."""
        return MIN_RECORD_SIZE + len(self.topic)


@dataclass(slots=True)
class Hole:
    """Bytes of one log file between two sound places."""

    start: int  # physical offsets
    end: int
    ends_file: bool
    why: str
    store_timestamp: int  # of the newest message before it
    lost: list[Lost] = field(default_factory=list[Lost])

    @property
    def is_damage(self) -> bool:
        """True when something may have been lost here."""
        return self.why != _BLANK

    @property
    def room(self) -> int:
        """Bytes that are free for further lost messages."""
        used = sum(one.least_size for one in self.lost)
        return self.end - self.start - used - (MIN_BLANK_SIZE if self.ends_file else 0)


@dataclass(slots=True)
class Plan:
    """Sound runs of records and the holes between them, in log order."""

    file_size: int
    runs: list[list[int]] = field(default_factory=list[list[int]])  # [start, end) offsets
    holes: list[Hole] = field(default_factory=list[Hole])
    unplaced: list[Lost] = field(default_factory=list[Lost])  # no hole had room
    dropped: int = 0  # sound records that were given up for a hole too small to fill
    records: int = 0
    end_offset: int = 0
    store_timestamp: int = 0
    ends: dict[QueueKey, int] = field(default_factory=dict[QueueKey, int])


class Planner:
    """Walks over a log once."""

    def __init__(
        self, store: StoppedStore, levels: DelayLevels, progress: Progress = no_progress
    ) -> None:
        self._store = store
        self._levels = levels
        self._progress = progress
        self._plan = Plan(store.sizes.log)
        self._cursor = store.min_offset  # end of what is accounted for
        self._whys: dict[int, str] = {}  # number of a file -> what is wrong in its open hole
        self._wanted: list[tuple[Lost, int, int, int]] = []  # with hint, lowest, highest offset
        self._seen: dict[QueueKey, int] = {}  # place of the last message of a queue
        self._placed: dict[QueueKey, int] = {}  # hole of the last lost message of a queue
        self._starts: list[int] = []  # of the holes

    def run(self) -> Plan:
        """Return the plan."""
        plan = self._plan
        for place in walk(self._store, progress=self._progress, what="looking"):
            if place.kind is PlaceKind.MESSAGE:
                self._take(place)
            elif place.kind is PlaceKind.BLANK:
                self._skip_to(place.offset)
                self._close_file(place.file.start + plan.file_size)
            else:
                why = place.why
                self._whys.setdefault(place.offset // plan.file_size, why)
        plan.end_offset = plan.runs[-1][1] if plan.runs else self._store.min_offset
        while plan.holes and plan.holes[-1].start >= plan.end_offset:
            plan.holes.pop()
        self._add_last_of_queues()
        self._starts = [hole.start for hole in plan.holes]
        for lost, hint, low, high in self._wanted:
            self._place(lost, hint, low, high)
        return plan

    def _take(self, place: Place) -> None:
        plan = self._plan
        gap = place.offset - self._cursor
        same_file = place.offset // plan.file_size == self._cursor // plan.file_size
        if gap < 0 or (same_file and 0 < gap < MIN_RECORD_SIZE):
            plan.dropped += 1
            return
        self._skip_to(place.offset)
        self._note_lost(place)
        plan.records += 1
        plan.store_timestamp = max(plan.store_timestamp, place.record.store_timestamp)
        self._cursor = place.offset + place.size
        if plan.runs and plan.runs[-1][1] == place.offset:
            plan.runs[-1][1] = self._cursor
        else:
            plan.runs.append([place.offset, self._cursor])

    def _skip_to(self, offset: int) -> None:
        """Account for a hole up to `offset`, file by file."""
        size = self._plan.file_size
        while self._cursor < offset:
            file_end = self._cursor - self._cursor % size + size
            end = min(offset, file_end)
            why = self._whys.pop(self._cursor // size, "no file is there")
            self._add_hole(end, why, ends_file=end == file_end)

    def _add_hole(self, end: int, why: str, *, ends_file: bool) -> None:
        timestamp = self._plan.store_timestamp
        self._plan.holes.append(Hole(self._cursor, end, ends_file, why, timestamp))
        self._cursor = end

    def _close_file(self, file_end: int) -> None:
        """A blank record leads to the end of its file."""
        if self._cursor < file_end:
            self._add_hole(file_end, _BLANK, ends_file=True)

    def _note_lost(self, place: Place) -> None:
        for one in queue_places(place.record, self._levels, self._store.removed)[:1]:
            key = one.topic, one.queue_id
            expected = self._plan.ends.get(key)
            if expected is None:
                expected = self._first_in_log(key, one.queue_offset)
            elif one.queue_offset < expected:
                expected = one.queue_offset  # made again, or a number that does not follow
            low = self._seen.get(key, self._store.min_offset)
            if one.queue_offset - expected <= HOLE_MAX:
                for queue_offset in range(expected, one.queue_offset):
                    self._want(key, queue_offset, low, place.offset)
            self._plan.ends[key] = one.queue_offset + 1
            self._seen[key] = place.offset

    def _first_in_log(self, key: QueueKey, queue_offset: int) -> int:
        """The first queue offset of a queue that the log once held."""
        if self._store.min_offset == 0:
            return 0
        while queue_offset > 0 and self._hint(key, queue_offset - 1) is not None:
            queue_offset -= 1
        return queue_offset

    def _hint(self, key: QueueKey, queue_offset: int) -> int | None:
        """Where a message lay, by its unit; None when that is not known, or it has expired."""
        queue = self._store.queues.get(key)
        unit = None if queue is None else self._store.unit(queue, queue_offset)
        if unit is None or unit.record_size in (0, PRE_BLANK_SIZE):
            return None
        return unit.commit_offset if unit.commit_offset >= self._store.min_offset else None

    def _want(self, key: QueueKey, queue_offset: int, low: int, high: int) -> None:
        hint = self._hint(key, queue_offset)
        self._wanted.append((Lost(*key, queue_offset), -1 if hint is None else hint, low, high))

    def _add_last_of_queues(self) -> None:
        """Add messages that only units tell of, after the last sound one of their queue."""
        end = self._plan.end_offset
        for key, queue in self._store.queues.items():
            _, stop = self._store.bounds(queue)
            begin = self._plan.ends.get(key)
            if begin is None:
                begin = stop
                while begin > 0 and self._hint(key, begin - 1) is not None:
                    begin -= 1
            for queue_offset in range(begin, stop):
                hint = self._hint(key, queue_offset)
                if hint is None or hint >= end:
                    break
                self._want(key, queue_offset, self._seen.get(key, self._store.min_offset), end)

    def _place(self, lost: Lost, hint: int, low: int, high: int) -> None:
        """Find a hole for a lost message, after those of its queue that were placed."""
        key = lost.topic, lost.queue_id
        low = max(low, self._placed.get(key, low))
        holes, starts = self._plan.holes, self._starts
        fitting = [
            hole
            for hole in holes[bisect_left(starts, low) : bisect_left(starts, high)]
            if hole.is_damage and hole.room >= lost.least_size
        ]
        if not fitting:
            self._plan.unplaced.append(lost)
            return
        chosen = next((hole for hole in fitting if hole.start <= hint < hole.end), fitting[0])
        chosen.lost.append(lost)
        self._placed[key] = chosen.start


def filling(hole: Hole) -> Iterator[tuple[int, bytes]]:
    """Yield the records of a hole with their physical offsets; together they have its size."""
    position, slack = hole.start, hole.room
    # The property goes to as many as there is room for, the last ones first.
    unnamed = len(hole.lost) - min(len(hole.lost), slack // len(_LOST_PROPERTY))
    slack -= (len(hole.lost) - unnamed) * len(_LOST_PROPERTY)
    padding = slack if not hole.ends_file and 0 < slack < MIN_RECORD_SIZE else 0
    for number, lost in enumerate(hole.lost):
        is_last = number == len(hole.lost) - 1
        record = _lost_record(
            hole, lost, position, is_named=number >= unnamed, padding=padding if is_last else 0
        )
        yield position, record
        position += len(record)
    while not hole.ends_file and position < hole.end:
        size = _piece(hole.end - position)
        yield position, _rest_record(hole, position, size)
        position += size
    if hole.ends_file:
        yield position, encode_blank(hole.end - position)


def _piece(left: int) -> int:
    """Size of the next filling record: what is left after it is nothing, or enough for one."""
    if left <= _REST_MAX:
        return left
    return _REST_MAX if left - _REST_MAX >= MIN_RECORD_SIZE else left - MIN_RECORD_SIZE


def _lost_record(hole: Hole, lost: Lost, position: int, *, is_named: bool, padding: int) -> bytes:
    """A record in the place of a lost message; padding makes it end where the hole does."""
    return _record(
        hole,
        position,
        topic=lost.topic.encode(),
        queue_id=lost.queue_id,
        queue_offset=lost.queue_offset,
        sys_flag=0,
        body=b"" if is_named else bytes(padding),
        properties=_LOST_PROPERTY + b" " * padding if is_named else b"",
    )


def _rest_record(hole: Hole, position: int, size: int) -> bytes:
    topic = LOST.encode()[: size - MIN_RECORD_SIZE]
    return _record(
        hole,
        position,
        topic=topic,
        queue_id=0,
        queue_offset=0,
        sys_flag=int(MessageSysFlag.TRANSACTION_ROLLBACK_TYPE),
        body=bytes(size - MIN_RECORD_SIZE - len(topic)),
        properties=b"",
    )


def _record(
    hole: Hole,
    position: int,
    *,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    sys_flag: int,
    body: bytes,
    properties: bytes,
) -> bytes:
    return encode_record(
        queue_id=queue_id,
        flag=0,
        queue_offset=queue_offset,
        physical_offset=position,
        sys_flag=sys_flag,
        born_timestamp=hole.store_timestamp,
        born_host=_NO_HOST,
        store_timestamp=hole.store_timestamp,
        store_host=_NO_HOST,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=body,
        topic=topic,
        properties=properties,
    )


_COPY_SIZE: Final = 4 << 20
_SHOWN_MAX: Final = 20
Row = dict[str, Any]


class Salvage:
    """One salvage."""

    def __init__(
        self,
        store: StoppedStore,
        target: Path,
        levels: DelayLevels,
        progress: Progress = no_progress,
    ) -> None:
        """Take the damaged store, and the folder to make.

        Raises:
            StoreError: the folder holds something, or lies in the damaged store.
        """
        self._store = store
        self._levels = levels
        self._progress = progress
        self._files = DiskFiles()
        self._paths = StorePaths(target)
        self._plan = Plan(store.sizes.log)
        self._tables: list[Row] = []
        self._counts = (0, 0, 0)  # units, entries, messages passed over
        if store.min_offset % store.sizes.log:
            raise StoreError(f"{store.log_files[0].path} has no name that fits files of its size")
        if self._files.list(target):
            raise StoreError(f"{target} is not empty; salvage makes a new folder")
        if store.paths.root.resolve() in target.resolve().parents:
            raise StoreError(f"{target} lies in the store that is to be salvaged")

    def run(self) -> Row:
        """Do it, and return what the JSON output says.

        Raises:
            StoreError: the disk has no room for it.
        """
        self._plan = Planner(self._store, self._levels, self._progress).run()
        self._files.make_folder(self._paths.root)
        AbortFile(self._files, self._paths).create()  # until all of it is on the disk
        self._check_room()
        self._copy_log()
        index_timestamp = self._derive()
        self._keep_ends()
        self._copy_tables()
        if self._store.profile:
            self._files.make_folder(self._paths.own)
            data = encode_sidecar(Kind.PROFILE, self._store.profile)
            self._files.replace(self._paths.profile, data, backup=False)
        time = self._plan.store_timestamp
        Checkpoint(self._files, self._paths.checkpoint, self._paths.recovery_point).save(
            Marks(time, time, index_timestamp)
        )
        AbortFile(self._files, self._paths).remove()
        return self._result()

    def _starts(self) -> range:
        """Offsets of the files of the saved log."""
        size = self._plan.file_size
        return range(self._store.min_offset, max(self._plan.end_offset, 1), size)

    def _check_room(self) -> None:
        needed = len(self._starts()) * self._plan.file_size
        free = self._files.space(self._paths.root).free
        if self._plan.runs and needed > free:
            raise StoreError(
                f"{self._paths.root} has room for {size_text(free)}, the log needs "
                f"{size_text(needed)}"
            )

    # The log

    def _copy_log(self) -> None:
        plan, size = self._plan, self._plan.file_size
        self._files.make_folder(self._paths.commit_log)
        if not plan.runs:
            return
        runs = [tuple(run) for run in plan.runs]
        holes = [*plan.holes]
        for start in self._starts():
            self._progress("copying", start - self._store.min_offset, len(self._starts()) * size)
            file = self._files.open(self._paths.commit_log / file_name(start), create=True)
            try:
                file.allocate(0, size)
                while runs and runs[0][0] < start + size:
                    self._copy_run(file, start, *runs.pop(0))
                while holes and holes[0].start < start + size:
                    for offset, record in filling(holes.pop(0)):
                        file.pwrite(record, offset - start)
                file.datasync()
            finally:
                file.close()
        self._files.sync_folder(self._paths.commit_log)

    def _copy_run(self, file: StoreFile, start: int, begin: int, end: int) -> None:
        source = self._store.log_file_at(begin)
        assert source is not None  # the plan's runs were read from there
        opened = ReadOnlyFiles().open(source.path)  # what could be read must still be readable
        try:
            for offset in range(begin, end, _COPY_SIZE):
                data = opened.pread(min(_COPY_SIZE, end - offset), offset - source.start)
                file.pwrite(data, offset - start)
        finally:
            opened.close()

    # What is made of it

    def _derive(self) -> int:
        sizes, shape = self._store.sizes, self._store.sizes.index
        queues = QueueBuilder(
            self._files, self._paths, sizes.queue, self._levels, removed=self._store.removed
        )
        index = None
        if shape is not None and self._store.index_names:
            names = [*self._store.index_names]
            index = IndexWriter(self._files, self._paths.index, shape, names)
        saved = StoppedStore(self._paths.root)
        for place in walk(saved, progress=self._progress, what="building queues and index"):
            if place.kind is PlaceKind.MESSAGE:
                queues.add(place.record)
                if index is not None:
                    index.add(place.record)
        queues.finish()
        entries = timestamp = 0
        if index is not None:
            index.finish()
            entries, timestamp = index.entries, index.end_timestamp
        self._counts = queues.units, entries, queues.passed_over
        return timestamp

    def _keep_ends(self) -> None:
        """Queues whose messages have all expired keep their last unit, and so their place."""
        writer = QueueWriter(self._files, self._store.sizes.queue)
        saved = StoppedStore(self._paths.root).queues
        for key, queue in self._store.queues.items():
            _, end = self._store.bounds(queue)
            unit = self._store.unit(queue, end - 1) if end else None
            if key in saved or unit is None or unit.commit_offset >= self._store.min_offset:
                continue
            if unit.record_size != PRE_BLANK_SIZE:
                folder = self._paths.queue_folder(*key)
                writer.write([QueueWrite(folder, (end - 1) * UNIT_SIZE, UNIT.pack(*unit), True)])
        writer.sync()
        writer.close()

    def _copy_tables(self) -> None:
        self._files.make_folder(self._paths.config)
        if self._store.removed.entries:
            self._store.removed.save(self._files, self._paths.removed_topics)
        for name in TABLES:
            sources = [self._store.paths.config / name, self._store.paths.config / (name + BACKUP)]
            tables = [read_table(self._store, path) for path in sources]
            found = [table for table in tables if table is not None]
            good = next((table for table in found if table.content is not None), None)
            if good is not None:
                data = self._store.files.read_all(good.path)
                self._files.replace(self._paths.config / name, data, backup=False)
            if found:
                origin = None if good is None else good.path.name
                self._tables.append({"name": name, "from": origin})

    # What it came to

    @property
    def lost(self) -> list[Lost]:
        """Messages that are known to be lost."""
        filled = [lost for hole in self._plan.holes for lost in hole.lost]
        return sorted([*filled, *self._plan.unplaced])

    def _result(self) -> Row:
        plan, lost = self._plan, self.lost
        units, entries, passed_over = self._counts
        damaged = [hole for hole in plan.holes if hole.is_damage]
        at_end = self._lost_at_end()
        return {
            "root": str(self._store.paths.root),
            "into": str(self._paths.root),
            "complete": not (
                damaged
                or lost
                or at_end
                or plan.dropped
                or passed_over
                or any(table["from"] is None for table in self._tables)
            ),
            "records": plan.records,
            "end_offset": plan.end_offset,
            "units": units,
            "entries": entries,
            "holes": [
                {
                    "file": str(self._store.paths.commit_log / self._name_at(hole.start)),
                    "position": hole.start % plan.file_size,
                    "size": hole.end - hole.start,
                    "why": hole.why,
                    "filled": [one._asdict() for one in hole.lost],
                }
                for hole in damaged
            ],
            "lost": [one._asdict() for one in lost],
            "unplaced": len(plan.unplaced),
            "lost_at_end": at_end,
            "dropped": plan.dropped,
            "passed_over": passed_over,
            "tables": self._tables,
        }

    def _name_at(self, offset: int) -> str:
        return file_name(offset - offset % self._plan.file_size)

    def _lost_at_end(self) -> list[Row]:
        """Return what units name after the end of the saved log; new messages get those offsets."""
        rows: list[Row] = []
        for (topic, queue_id), queue in self._store.queues.items():
            first, end = self._store.bounds(queue)
            count = 0
            while end - count > first:
                unit = self._store.unit(queue, end - count - 1)
                if unit is None or unit.commit_offset < self._plan.end_offset:
                    break
                count += 1
            if count:
                row = {"topic": topic, "queue_id": queue_id, "first": end - count, "count": count}
                rows.append(row)
        return rows


def lines(result: Row) -> list[str]:
    """The result for humans."""
    text = [
        f"saved {result['records']} records into {result['into']}: the log ends at offset "
        f"{result['end_offset']}, {result['units']} queue units, {result['entries']} index entries"
    ]
    text += [
        f"hole    {hole['file']} at byte {hole['position']}, {hole['size']} bytes: {hole['why']}"
        for hole in result["holes"]
    ]
    text += [
        f"lost    message {one['queue_offset']} of queue {one['queue_id']} of {one['topic']}"
        for one in result["lost"][:_SHOWN_MAX]
    ]
    if len(result["lost"]) > _SHOWN_MAX:
        text.append(f"        and {len(result['lost']) - _SHOWN_MAX} more; --json lists them")
    text += [
        f"lost    {one['count']} messages of queue {one['queue_id']} of {one['topic']} from "
        f"{one['first']} on, after the end of the log"
        for one in result["lost_at_end"]
    ]
    text += [
        f"table   {table['name']}: "
        + ("lost" if table["from"] is None else f"taken from {table['from']}")
        for table in result["tables"]
        if table["from"] != table["name"]
    ]
    if result["dropped"]:
        text.append(f"lost    {result['dropped']} sound records next to holes too small to fill")
    if result["passed_over"]:
        text.append(f"{result['passed_over']} messages are in the log and in no queue")
    return [*text, "nothing was lost" if result["complete"] else "not everything could be saved"]
