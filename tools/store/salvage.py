"""`store salvage`: every sound message of a damaged store in a new folder, as a sound store.

The damaged store is only read. In the new one messages keep their physical offsets and their queue
offsets; `salvage_plan.py` says what fills the places of those that are lost. Queues and key index
are made from the saved log, tables are copied, from their backup where only that can be read.
Times of files are not kept, so messages expire `fileReservedTime` after the salvage.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from skylarkmq.common.errors import StoreError
from skylarkmq.common.files import DiskFiles, Files, StoreFile
from skylarkmq.common.sidecar import Kind, encode_sidecar
from skylarkmq.store.checkpoint import Checkpoint, Marks
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.folder import AbortFile, StorePaths
from skylarkmq.store.log.mapped_file import file_name
from skylarkmq.store.progress import Progress
from skylarkmq.store.queue.consume_queue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE
from skylarkmq.store.queue.queue_files import QueueWrite, QueueWriter
from skylarkmq.store.stopped.reader import StoppedStore
from skylarkmq.tools.store.derive import IndexWriter, QueueBuilder
from skylarkmq.tools.store.output import size_text
from skylarkmq.tools.store.salvage_plan import Lost, Plan, Planner, filling
from skylarkmq.tools.store.tables import BACKUP, TABLES, read_table
from skylarkmq.tools.store.walk import PlaceKind, no_progress, walk

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
        files: Files | None = None,
    ) -> None:
        """Take the damaged store, and the folder to make.

        Raises:
            StoreError: the folder holds something, or lies in the damaged store.
        """
        self._store = store
        self._levels = levels
        self._progress = progress
        self._files = files or DiskFiles()
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
        view = self._store.view(source.path)
        for offset in range(begin, end, _COPY_SIZE):
            stop = min(offset + _COPY_SIZE, end)
            file.pwrite(view[offset - source.start : stop - source.start], offset - start)

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
        behind = self._behind()
        return {
            "root": str(self._store.paths.root),
            "into": str(self._paths.root),
            "complete": not (
                damaged
                or lost
                or behind
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
            "lost_at_end": behind,
            "dropped": plan.dropped,
            "passed_over": passed_over,
            "tables": self._tables,
        }

    def _name_at(self, offset: int) -> str:
        return file_name(offset - offset % self._plan.file_size)

    def _behind(self) -> list[Row]:
        """Units of messages behind the end of the saved log: those offsets are given out again."""
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
        f"{one['first']} on, behind the end of the log"
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
