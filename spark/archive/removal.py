# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Messages out of an archive: whole dates and topics that expire, and single ones that are erased.

    expire   removes files from the table; nothing is written anew
    erase    writes the files that hold such messages anew without them, and puts them in the place
             of the old ones with one commit

Both note in their commit which offsets have gone (`state`), so that no run archives them again.
What they remove is what the table had when they began: messages that come meanwhile stay. When
others replace files meanwhile, as an OPTIMIZE does, they begin anew.

A file that is out of the table still lies there, for readers of older versions, until a vacuum:
`vacuum` is Delta's own. A killed erasure has done all or nothing; the same command does the rest.

Driver process, one thread; no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from skylarkmq.spark.archive.delta_log import DataFile
from skylarkmq.spark.archive.durability import sync_files
from skylarkmq.spark.archive.spans import Spans
from skylarkmq.spark.archive.state import ArchiveError, Change
from skylarkmq.spark.archive.table import ArchiveTable, Commit
from skylarkmq.spark.archive.writer import TableFile, file_path
from skylarkmq.spark.offsets import QueueKey
from skylarkmq.spark.storage import Location

if TYPE_CHECKING:
    from deltalake.transaction import AddAction, RemoveAction

BATCH_ROWS: Final = 4_096
"""Rows that are looked at together."""
FULL_HOURS_MIN: Final = 6
"""No batch takes as long."""
_PLACE: Final = ("brokerName", "queueId", "queueOffset")


def expired(
    files: Sequence[DataFile], *, before: str = "", topics: Sequence[str] = ()
) -> list[DataFile]:
    """Return the files of dates before one, as 2026-01-31, and of some topics; empty: of all."""
    return [
        file
        for file in files
        if (not before or "" < file.date < before) and (not topics or file.topic in topics)
    ]


def expired_where(*, before: str = "", topics: Sequence[str] = ()) -> str:
    """Return the condition that selects the rows of the same files."""
    parts = [f"date < DATE '{before}'"] if before else []
    if topics:
        parts.append(f"topic IN ({', '.join(map(quoted, topics))})")
    return " AND ".join(parts) or "true"


def key_where(keys: Sequence[str]) -> str:
    """Return the condition that selects messages that have one of these keys."""
    return " OR ".join(
        f"array_has(string_to_array(keys, ' '), {quoted(key)})" for key in dict.fromkeys(keys)
    )


def quoted(text: str) -> str:
    """Return a text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def expire(table: ArchiveTable, *, before: str = "", topics: Sequence[str] = ()) -> Spans:
    """Remove whole dates and topics, see `expired`; return the offsets that have gone."""
    work = _Removal(table)

    def change() -> Commit | None:
        if not work.still_stands():
            table.log.require_plain()
            files = expired(table.files(), before=before, topics=topics)
            gone = table.find(expired_where(before=before, topics=topics)) if files else Spans()
            work.plan(gone, {file: [] for file in files})
        return work.commit("expire")

    table.commit(change)
    return work.gone


def erase(
    table: ArchiveTable, where: str, *, on_file: Callable[[int, int], None] | None = None
) -> Spans:
    """Remove the messages that a condition selects; return their offsets.

    The condition itself goes nowhere: a person's key in the log would be one more place to erase.

    Args:
        where: see `ArchiveTable.find`.
        on_file: told how many files of how many were looked at.

    Raises:
        ArchiveError: it is no condition on the columns.
    """
    work = _Removal(table)

    def change() -> Commit | None:
        if not work.still_stands():
            table.log.require_plain()
            gone = table.find(where)
            replaced: dict[DataFile, list[dict[str, Any]]] = {}
            files = touched(table.files(), gone)
            for count, file in enumerate(files, 1):
                parts = rewritten(table.location, file, gone)
                if parts is not None:
                    replaced[file] = parts
                if on_file is not None:
                    on_file(count, len(files))
            work.plan(gone, replaced)
        return work.commit("erase")

    table.commit(change)
    return work.gone


class _Removal:
    """What is to be removed, kept while other commits come first that do not touch it."""

    def __init__(self, table: ArchiveTable) -> None:
        self.gone = Spans()
        self._table = table
        self._replaced: dict[DataFile, list[dict[str, Any]]] | None = None

    def plan(self, gone: Spans, replaced: dict[DataFile, list[dict[str, Any]]]) -> None:
        """Take the offsets to remove, and the files with what comes in their place."""
        self.gone, self._replaced = gone, replaced

    def still_stands(self) -> bool:
        """Return whether there is a plan, and all its files are in the loaded version."""
        return self._replaced is not None and self._replaced.keys() <= set(self._table.files())

    def commit(self, kind: str) -> Commit | None:
        """Return the commit, None when there is nothing to remove."""
        actions: list[AddAction | RemoveAction] = []
        for file, parts in (self._replaced or {}).items():
            actions.append(self._table.remove_action(file))
            actions += map(self._table.add_action, parts)
        return Commit(kind, Change(gone=self.gone), actions) if actions else None


def touched(files: Sequence[DataFile], gone: Spans) -> list[DataFile]:
    """Return the files that may hold some of these offsets, by what the log says of them."""
    bounds: dict[str, tuple[int, int]] = {}
    for key, start, end in gone.items():
        low, high = bounds.get(key.topic, (start, end))
        bounds[key.topic] = min(low, start), max(high, end)
    found: list[DataFile] = []
    for file in files:
        if file.topic not in bounds:
            continue
        low, high = bounds[file.topic]
        if (
            file.first_offset is None
            or file.last_offset is None
            or (file.first_offset < high and file.last_offset >= low)
        ):
            found.append(file)
    return found


def rewritten(location: Location, file: DataFile, gone: Spans) -> list[dict[str, Any]] | None:
    """Write a file anew without some offsets; return what reports say of the new one.

    Returns:
        Nothing in the list when no row is left; None when the file held none of them.
    """
    filesystem = location.filesystem()
    path = file_path(file.topic, file.date, f"{uuid4().hex}-000")
    with (
        location.errors(),
        filesystem.open_input_file(file.name) as opened,
        pq.ParquetFile(opened) as source,
    ):
        # Bodies are read only where something is to go.
        places = source.iter_batches(BATCH_ROWS, columns=list(_PLACE))
        if not any(pc.any(_selected(batch, file.topic, gone)).as_py() for batch in places):
            return None
        columns = source.schema_arrow.remove_metadata()
        out = TableFile(filesystem, path, (file.topic, file.date), columns=columns)
        try:
            for batch in source.iter_batches(BATCH_ROWS):
                out.add(batch.filter(pc.invert(_selected(batch, file.topic, gone))))
            report = out.close()
        except BaseException:
            out.abandon()
            raise
    if not report["rows"]:
        filesystem.delete_file(path)
        return []
    sync_files(location, [path])
    return [report]


def _selected(batch: pa.RecordBatch, topic: str, gone: Spans) -> pa.Array[Any]:
    """Return for each row whether its offset is among some."""
    brokers, queues = batch.column("brokerName"), batch.column("queueId")
    offsets = batch.column("queueOffset")
    found = pa.array([False] * batch.num_rows, pa.bool_())
    places = pa.table({"broker": brokers, "queue": queues, "offset": offsets})
    bounds = places.group_by(["broker", "queue"]).aggregate([("offset", "min"), ("offset", "max")])
    for row in bounds.to_pylist():
        key = QueueKey(topic, row["broker"], row["queue"])
        low, high = row["offset_min"], row["offset_max"] + 1
        runs = gone.runs_within(key, low, high)
        if not runs:
            continue
        listed = [
            offset for start, end in runs for offset in range(max(start, low), min(end, high))
        ]
        same = pc.and_(pc.equal(brokers, row["broker"]), pc.equal(queues, row["queue"]))
        chosen = pc.is_in(offsets, value_set=pa.array(listed, pa.int64()))
        found = pc.or_(found, pc.and_(same, chosen))
    return found


def vacuum(table: ArchiveTable, *, retention_hours: int | None, full: bool = False) -> list[str]:
    """Delete files that have been out of the table for so long; return their names. Delta's own.

    Args:
        retention_hours: None: as the table says, a week by default.
        full: also files that no version names, as those of killed tasks, by their age. A job that
            is at work has such files too, until its batch is committed.

    Raises:
        ArchiveError: `full`, and a retention below FULL_HOURS_MIN.
    """
    if full and retention_hours is not None and retention_hours < FULL_HOURS_MIN:
        raise ArchiveError(
            f"a full vacuum keeps what is younger than {FULL_HOURS_MIN} hours: files that a job "
            "writes now are named by no version yet",
            hint="Leave out full, or keep more",
        )
    table.reload()
    with table.location.errors():
        found = table.log.table.vacuum(
            retention_hours=retention_hours,
            dry_run=False,
            enforce_retention_duration=False,
            full=full,
        )
    table.reload()
    return found
