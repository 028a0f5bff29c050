"""`store rebuild`: queues and key index made again from the log, which stays as it is."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from skylarkmq.common.errors import StoreError
from skylarkmq.protocol.flags import validate_topic
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.index.keys import ENTRY_SIZE, record_entries
from skylarkmq.store.progress import Progress, no_progress
from skylarkmq.store.stopped.reader import QueueFolder, StoppedStore
from skylarkmq.store.stopped.walk import Place, PlaceKind, walk
from skylarkmq.tools.store.derive import IndexWriter, QueueBuilder, remove_files
from skylarkmq.tools.store.ownership import changing
from skylarkmq.tools.store.queue_places import queue_places

Result = dict[str, Any]


class Rebuild:
    """One rebuilding, or the look at what it would do."""

    def __init__(
        self,
        store: StoppedStore,
        levels: DelayLevels,
        *,
        queues: bool = True,
        index: bool = True,
        progress: Progress = no_progress,
    ) -> None:
        self._store = store
        self._levels = levels
        self._does_queues = queues
        self._does_index = index
        self._progress = progress
        self._damages: list[dict[str, Any]] = []
        self._records = 0
        self._last_ms = 0
        if index and store.sizes.index is None:
            raise StoreError("nothing tells the shape of the index files; give --slots and --items")
        for topic, _ in store.queues:
            why = validate_topic(topic)
            if why is not None:
                raise StoreError(f"{store.paths.consume_queue / topic} is no queue's folder: {why}")

    def plan(self) -> Result:
        """Count what would be written; changes nothing."""
        units = entries = 0
        keys: set[tuple[str, int]] = set()
        for place in self._messages():
            found = queue_places(place.record, self._levels, self._store.removed)
            keys.update((one.topic, one.queue_id) for one in found)
            units += len(found)
            entries += len(record_entries(place.record)) // ENTRY_SIZE
        return self._result(len(keys), units, entries, 0, written=False)

    def write(self) -> Result:
        """Do it.

        Raises:
            StoreLockedError: a broker runs on the store.
        """
        store, paths = self._store, self._store.paths
        with changing(store) as change:
            queues = index = None
            if self._does_queues:
                for folder in store.queues.values():
                    remove_files(change.files, [file.path for file in folder.ext_files])
                queues = QueueBuilder(
                    change.files,
                    paths,
                    store.sizes.queue,
                    self._levels,
                    _without_ext(store),
                    store.removed,
                )
            if self._does_index and store.sizes.index is not None:
                names = store.index_names
                remove_files(change.files, [paths.index / name for name in names])
                index = IndexWriter(change.files, paths.index, store.sizes.index, [*names])
            for place in self._messages():
                if queues is not None:
                    queues.add(place.record)
                if index is not None:
                    index.add(place.record)
            if queues is not None:
                queues.finish()
            if index is not None:
                index.finish()
            change.store_timestamp = self._last_ms
            change.index_timestamp = (
                store.marks.index_timestamp if index is None else index.end_timestamp
            )
        return self._result(
            0 if queues is None else queues.queue_count,
            0 if queues is None else queues.units,
            0 if index is None else index.entries,
            0 if queues is None else queues.passed_over,
            written=True,
        )

    def _messages(self) -> Any:
        self._damages = _gaps(self._store)
        self._records = 0
        for place in walk(self._store, progress=self._progress, what="rebuilding"):
            if place.kind is PlaceKind.MESSAGE:
                self._records += 1
                self._last_ms = max(self._last_ms, place.record.store_timestamp)
                yield place
            elif place.kind is PlaceKind.DAMAGE:
                self._damages.append(damage_row(place))

    def _result(
        self, queue_count: int, units: int, entries: int, passed_over: int, *, written: bool
    ) -> Result:
        return {
            "root": str(self._store.paths.root),
            "written": written,
            "records": self._records,
            "queues": queue_count if self._does_queues else 0,
            "units": units if self._does_queues else 0,
            "entries": entries if self._does_index else 0,
            "passed_over": passed_over,
            "damages": [*self._damages],
        }


def _without_ext(store: StoppedStore) -> StoppedStore:
    """The store as it is once the extensions are gone."""
    for key, folder in [*store.queues.items()]:
        store.queues[key] = QueueFolder(folder.topic, folder.queue_id, folder.files)
    return store


def _gaps(store: StoppedStore) -> list[dict[str, Any]]:
    """Log files that are missing between others."""
    files = store.log_files
    return [
        {
            "file": str(file.path),
            "position": 0,
            "size": file.start - before.end,
            "why": "log files are missing before this one",
        }
        for before, file in pairwise(files)
        if before.end < file.start
    ]


def damage_row(place: Place) -> dict[str, Any]:
    """A damaged place of the log as the JSON outputs have it."""
    return {
        "file": str(place.file.path),
        "position": place.position,
        "size": place.size,
        "why": place.why,
    }


def lines(result: Result) -> list[str]:
    """The result for humans."""
    did = "rebuilt" if result["written"] else "would rebuild"
    text = [
        f"{did} {result['units']} units of {result['queues']} queues and {result['entries']} "
        f"index entries from {result['records']} records"
    ]
    text += [
        f"damage  {one['file']} at byte {one['position']}, {one['size']} bytes: {one['why']}"
        for one in result["damages"]
    ]
    if result["passed_over"]:
        text.append(f"{result['passed_over']} messages fit into no queue and were passed over")
    if not result["written"]:
        text.append("nothing was changed; do it with --write")
    return text
