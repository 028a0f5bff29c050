"""`store truncate`: the log ends at an offset, and queues and index with it.

For a damaged end that must go, or a store that is to be set back. What is cut off is gone, so
without `--write` it is only counted.
"""

from __future__ import annotations

from typing import Any

from skylarkmq.common.errors import CorruptFileError, StoreError
from skylarkmq.common.files import Files
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.index.file import FIRST_ITEM, IndexFile
from skylarkmq.store.progress import Progress, no_progress
from skylarkmq.store.queue.consume_queue import UNIT_SIZE
from skylarkmq.store.queue.queue_scanner import QueueScanner
from skylarkmq.store.stopped.reader import NumberedFile, QueueKey, StoppedStore
from skylarkmq.store.stopped.walk import PlaceKind, walk
from skylarkmq.tools.output import size_text, table
from skylarkmq.tools.store.derive import IndexWriter, expired_end, remove_files
from skylarkmq.tools.store.ownership import Change, changing
from skylarkmq.tools.store.queue_places import queue_places

Result = dict[str, Any]


class Truncation:
    """One truncation, looked at first."""

    def __init__(
        self, store: StoppedStore, end: int, levels: DelayLevels, progress: Progress = no_progress
    ) -> None:
        """Find out what lies after the new end.

        Raises:
            StoreError: no record or blank begins at `end`.
        """
        self._store = store
        self._end = end
        self._levels = levels
        self._progress = progress
        self._look()

    def _look(self) -> None:
        store, end = self._store, self._end
        self._records = self._last_ms = 0  # the newest message that stays
        self._log_end = end
        self._cut: dict[QueueKey, list[int]] = {}  # [first, last] queue offset
        file = self._last_file()
        if file is None:
            raise StoreError(f"no log file holds offset {end}")
        self._check_border(file.start)
        for place in walk(store, file.start, progress=self._progress, what="looking"):
            if place.kind is not PlaceKind.MESSAGE:
                continue
            if place.offset < end:
                self._last_ms = max(self._last_ms, place.record.store_timestamp)
                continue
            self._records += 1
            self._log_end = place.offset + place.size
            for one in queue_places(place.record, self._levels, self._store.removed):
                span = self._cut.setdefault(
                    (one.topic, one.queue_id), [one.queue_offset, one.queue_offset]
                )
                span[1] = one.queue_offset
        self._last_ms = self._last_ms or self._newest_before(file.start)

    def _last_file(self) -> NumberedFile | None:
        """Return the file in which the log is to end; one that was cut short may end there."""
        files = [file for file in self._store.log_files if file.start <= self._end <= file.end]
        return files[-1] if files else None

    def _check_border(self, file_start: int) -> None:
        before = after = file_start
        for place in walk(self._store, file_start, check_crc=False):
            if place.offset == self._end:
                return
            if place.offset > self._end:
                break
            before, after = place.offset, place.offset + place.size
        if after == self._end:
            return
        raise StoreError(
            f"no record begins at offset {self._end}; the one before it begins at {before}"
        )

    def _newest_before(self, offset: int) -> int:
        earlier = [file for file in self._store.log_files if file.start < offset]
        newest = 0
        for place in walk(self._store, earlier[-1].start, check_crc=False) if earlier else ():
            if place.offset >= offset:
                break
            newest = max(newest, place.record.store_timestamp)
        return newest

    def plan(self) -> Result:
        """What is cut, as the JSON output has it; changes nothing."""
        return self._result(written=False)

    def write(self) -> Result:
        """Do it.

        Raises:
            StoreLockedError: a broker runs on the store.
        """
        with changing(self._store) as change:
            self._look()  # a broker may have run since the first look
            kept, skip_from = self._kept_index()
            self._cut_log(change.files)
            self._cut_queues(change.files)
            change.index_timestamp = self._cut_index(change, kept, skip_from)
            change.store_timestamp = self._last_ms
        return self._result(written=True)

    def _cut_log(self, files: Files) -> None:
        store = self._store
        remove_files(files, [file.path for file in store.log_files if file.start > self._end])
        last = self._last_file()
        if last is None:
            return
        opened = files.open(last.path)
        try:
            opened.truncate(self._end - last.start)
            # With zeros after the end, and no blocks: the next broker asks for them.
            opened.truncate(max(last.size, store.sizes.log))
            opened.datasync()
        finally:
            opened.close()

    def _cut_queues(self, files: Files) -> None:
        scanner = QueueScanner(files, self._store.sizes.queue)
        for key, queue in self._store.queues.items():
            first, end = self._store.bounds(queue)
            kept = expired_end(self._store, queue, self._end)
            folder = self._store.paths.queue_folder(*key)
            if kept == first == 0:
                scanner.remove_all(folder)
            elif kept < end:
                scanner.cut(folder, kept * UNIT_SIZE)

    def _kept_index(self) -> tuple[int, int]:
        """How many index files stay, and the last record whose keys they have."""
        count, last = 0, -1
        for name in self._store.index_names:
            try:
                file = self._store.index_file(name)
            except CorruptFileError:
                break
            header = file.header
            file.let_go()
            if not file.is_full or not 0 <= header.end_offset < self._end:
                break
            count, last = count + 1, header.end_offset
        return count, last

    def _cut_index(self, change: Change, count: int, last: int) -> int:
        store, shape = self._store, self._store.sizes.index
        names = store.index_names
        if shape is None or not names:
            return 0
        remove_files(change.files, [store.paths.index / name for name in names[count:]])
        store.refresh()
        kept = None
        if count:
            kept = IndexFile.open(change.files, store.paths.index / names[count - 1], shape)
        skip = 0 if kept is None else _keys_at_end(kept)
        writer = IndexWriter(change.files, store.paths.index, shape, names[count:], kept)
        begin = None if kept is None or last < store.min_offset else last
        for place in walk(store, begin, progress=self._progress, what="indexing"):
            if place.offset >= self._end:
                break
            if place.kind is PlaceKind.MESSAGE:
                writer.add(place.record, skip if place.offset == last else 0)
        writer.finish()
        return writer.end_timestamp

    def _result(self, *, written: bool) -> Result:
        return {
            "root": str(self._store.paths.root),
            "written": written,
            "end_offset": self._end,
            "old_end_offset": self._log_end,
            "records": self._records,
            "bytes": self._log_end - self._end,
            "queues": [
                {"topic": topic, "queue_id": queue_id, "first": first, "last": last}
                for (topic, queue_id), (first, last) in sorted(self._cut.items())
            ],
        }


def _keys_at_end(file: IndexFile) -> int:
    """How many entries of its last record a full file has; the rest is in the next one."""
    number = file.header.next_item - 1
    offset, count = file.header.end_offset, 0
    while number >= FIRST_ITEM and file.item(number).physical_offset == offset:
        number, count = number - 1, count + 1
    return count


def lines(result: Result) -> list[str]:
    """The result for humans."""
    did = "cut off" if result["written"] else "would cut off"
    text = [
        f"{did} {result['records']} messages, {size_text(result['bytes'])}: the log ends at offset "
        f"{result['end_offset']} in place of {result['old_end_offset']}"
    ]
    if result["queues"]:
        columns = ("topic", "queue_id", "first", "last")
        rows = [[queue[column] for column in columns] for queue in result["queues"]]
        text += ["", *table(("topic", "queue_id", "first cut", "last cut"), rows)]
    if not result["written"]:
        text.append("nothing was changed; do it with --write")
    return text
