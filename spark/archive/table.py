# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""An archive as one Delta table: what it has, and the commits of the jobs that write it.

    columns     those of the source, and `date`: of storeTimestamp, in UTC
    partitions  topic, date
    files       topic=orders/date=2026-01-31/part-3f9c02d1-000.parquet

The values of the partitions stand in the log, and in the path percent-encoded as Delta's writers
do. %RETRY%g lies in topic=%25RETRY%25g; the log, whose paths are URLs, has topic=%2525RETRY%2525g.

How a batch comes into the table, and what a kill between two steps leaves:

    1  tasks write and sync data files     files that no commit names: no reader sees them
    2  the driver commits them: all of them, the offsets that they hold, and number N as one
       version of the log                  the batch is there, whole
    3  the log is synced                   as 2; on a disk only now is it told to anyone

A commit of an archive says which offsets it has (`state`), and carries the number N of its own
transaction. It is made for one version of the table (`delta_log`), so of two jobs that write at
once one comes first. The other loads what is there then, and commits its files after it if they
hold no offset that is there now; else its tasks write again without these.

Driver process, one thread.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from skylarkmq.spark import schema
from skylarkmq.spark.archive.delta_log import (
    INFO,
    ConflictError,
    DataFile,
    DeltaLog,
    first_line,
    open_to_write,
)
from skylarkmq.spark.archive.durability import LOG
from skylarkmq.spark.archive.spans import Spans
from skylarkmq.spark.archive.state import (
    NOWHERE,
    ArchiveError,
    ArchiveState,
    Change,
    Note,
    read_note,
    sum_up,
    write_note,
)
from skylarkmq.spark.archive.writer import STATISTICS, spans_of
from skylarkmq.spark.clock import SystemClock
from skylarkmq.spark.offsets import QueueKey, QueueOffsets
from skylarkmq.spark.storage import Location

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake.transaction import AddAction, RemoveAction

APP: Final = "skylarkmq-archive"
"""The program of our transactions."""
FORMAT_KEY: Final = "skylarkmq.archive"
FORMAT: Final = "1"
PARTITIONS: Final = ("topic", "date")
TRIES: Final = 50
"""How often a commit begins anew because others come first."""
_PLACE: Final = ("topic", "brokerName", "queueId", "queueOffset")


def table_schema() -> pa.Schema:
    """Return the columns of an archive."""
    import pyarrow as pa

    return schema.arrow_schema(schema.names()).append(pa.field("date", pa.date32()))


def known_of(offsets: QueueOffsets) -> QueueOffsets:
    """Return the offsets of queues whose message before is known."""
    return offsets.without(offsets.keys() - offsets.before.keys())


@dataclass(frozen=True, slots=True)
class Commit:
    """What is to be committed."""

    kind: str
    change: Change
    actions: Sequence[AddAction | RemoveAction] = ()


class ArchiveTable:
    """An archive at one version, and commits to it; see the module.

    Attributes:
        state: what it has, at the loaded version.
        run: the id of the run that commits.
    """

    def __init__(self, log: DeltaLog) -> None:
        self.log = log
        self.run = uuid.uuid4().hex[:12]
        self._now_ms = SystemClock().now_ms
        self._state_version = -1
        self.state = self._load()

    @classmethod
    def open(cls, location: Location, *, to_write: bool = False) -> ArchiveTable:
        """Return the archive of a place.

        Raises:
            ArchiveError: no archive there, a damaged one, one of a later release.
            StorageError: the place cannot be used.
        """
        log = open_to_write(location) if to_write else DeltaLog.open(location)
        if log is None:
            raise ArchiveError(
                f"there is no archive in {location}", hint="The job archive makes one"
            )
        return cls(log)

    @classmethod
    def open_or_make(cls, location: Location) -> ArchiveTable:
        """Return the archive of a place to write into; make one where there is nothing.

        Raises:
            ArchiveError: as `open`, and where something else lies there.
        """
        log = open_to_write(location)
        if log is None:
            if not _is_empty(location):
                raise ArchiveError(
                    f"{location} is not empty, and no archive", hint="Name another place"
                )
            columns = ",".join(STATISTICS)
            configuration = {FORMAT_KEY: FORMAT, "delta.dataSkippingStatsColumns": columns}
            log = DeltaLog.create(location, table_schema(), PARTITIONS, configuration)
        return cls(log)

    @property
    def location(self) -> Location:
        """Where it lies."""
        return self.log.location

    def files(self) -> list[DataFile]:
        """Return the files of the loaded version."""
        return self.log.files()

    def reload(self) -> None:
        """Load the newest version."""
        self.log.reload()
        self.state = self._load()

    def begin(self, start: Mapping[QueueKey, int]) -> None:
        """Note where the archive begins in queues that are new to it.

        Without this, a queue that is empty now would begin at `latest` again with the next run, and
        what came between the two runs would be missing.
        """

        def change() -> Commit | None:
            known = [key for key in start if self.state.next_offset(key) is not None]
            new = QueueOffsets(start).without(known)
            plain = QueueOffsets(new, {})  # as earlier releases read it
            return Commit("start", Change(start=plain, ends=known_of(new))) if new else None

        self.commit(change)

    def append(
        self,
        files: Sequence[Mapping[str, Any]],
        spans: Spans,
        ends: QueueOffsets = NOWHERE,
    ) -> None:
        """Commit what tasks have written; durable when it returns.

        Args:
            files: of the tasks' reports.
            spans: the offsets that the files hold.
            ends: where the batch ends.

        Raises:
            OverlapError: an offset would be there twice; nothing was done.
        """
        if files:
            adds = [self.add_action(file) for file in files]
            commit = Commit("append", Change(spans=spans, ends=known_of(ends)), adds)
            self.commit(lambda: commit)

    def add_action(self, file: Mapping[str, Any]) -> AddAction:
        """Return what adds a file that a task reports."""
        from deltalake.transaction import AddAction

        return AddAction(
            path=file["path"],
            size=file["size"],
            partition_values={"topic": file["topic"], "date": file["date"]},
            modification_time=self._now_ms(),
            data_change=True,
            stats=json.dumps(file["stats"]),
        )

    def remove_action(self, file: DataFile) -> RemoveAction:
        """Return what removes a file."""
        from deltalake.transaction import RemoveAction

        return RemoveAction(
            path=file.name,
            data_change=True,
            deletion_timestamp=self._now_ms(),
            size=file.size,
            partition_values={"topic": file.topic, "date": file.date},
        )

    def find(self, where: str | None) -> Spans:
        """Return the offsets of the rows of the loaded version that a condition selects.

        Args:
            where: SQL, as DataFusion reads it; None selects all.

        Raises:
            ArchiveError: it is no condition on the columns.
        """
        import pyarrow as pa
        from deltalake.exceptions import DeltaError

        # In parentheses, since the parser passes over what follows a condition.
        predicate = None if where is None else f"({where})"
        try:
            with self.location.errors():
                rows = self.log.table.scan(columns=list(_PLACE), predicate=predicate)
                return spans_of(pa.table(rows))
        except DeltaError as error:
            raise ArchiveError(
                f"no condition on the columns of the archive: {first_line(error)}"
            ) from error

    def commit(self, change: Callable[[], Commit | None]) -> None:
        """Commit what `change` says for the loaded version; ask it again when others come first.

        Durable when it returns. Nothing is done where `change` gives None.

        Raises:
            OverlapError: it would archive an offset twice; nothing was done.
            ArchiveError: others came first time and again.
            StorageError, OSError: it was not done, or it is not known; a new run finds out.
        """
        for _ in range(TRIES):
            self._catch_up()
            wanted = change()
            if wanted is None:
                return
            self.state.check(wanted.change)
            token = uuid.uuid4().hex
            info = write_note(
                self.state,
                wanted.change,
                kind=wanted.kind,
                run=self.run,
                token=token,
            )
            version, number = self.log.version, self.state.number + 1
            try:
                self.log.commit(wanted.actions, info, (APP, number))
            except Exception as error:
                # The answer to a commit that was made may be lost: then it is there all the same.
                if not self._was_made(token, error):
                    continue
                self.log.finish()
            if self.log.version == version + 1:
                self.state.apply(wanted.change)
                self._state_version = self.log.version
            self._catch_up()
            return
        raise ArchiveError(
            f"others have committed to {self.location} first, {TRIES} times in a row",
            hint="Run the job again; several may archive at once, but not every second",
        )

    def _catch_up(self) -> None:
        """Take in what others have committed up to the loaded version, also right after a commit.

        A state of an older version would have the next commit follow what it does not know.
        """
        if self._state_version != self.log.version:
            self.state = self._load()

    def _was_made(self, token: str, error: Exception) -> bool:
        """Return whether a commit that failed is there; load what is there.

        Raises:
            Exception: `error`, if it is no conflict, and the commit was not made.
        """
        try:
            self.log.reload()
        except Exception:
            raise error from None
        newer = takewhile(lambda note: note.number > self.state.number, self._notes())
        if any(note.token == token for note in newer):
            return True
        self._catch_up()
        if not isinstance(error, ConflictError):
            raise error
        return False

    def _notes(self) -> Iterator[Note]:
        """Yield what our commits say, newest first."""
        for info in self.log.commits():
            if INFO in info:
                yield read_note(info[INFO], str(self.location))

    def _load(self) -> ArchiveState:
        """Return what the archive has at the loaded version.

        Raises:
            ArchiveError: it is no archive, or one of a later release.
        """
        metadata = self.log.table.metadata()
        self._state_version = self.log.version
        version = metadata.configuration.get(FORMAT_KEY)
        if version is None:
            raise ArchiveError(
                f"the table {self.location} is no archive", hint="Name another place"
            )
        if version != FORMAT or tuple(metadata.partition_columns) != PARTITIONS:
            raise ArchiveError(
                f"the archive {self.location} is of version {version}, this release knows {FORMAT}",
                hint="Use the release that wrote it, or a later one",
            )
        newest = self.log.transaction(APP)
        if newest == 0:
            return ArchiveState()
        state = None if self._was_restored() else sum_up(self._notes(), newest)
        return state or self._rebuilt(newest)

    def _was_restored(self) -> bool:
        """Return whether the table was set back to an older version after our newest commit."""
        for info in self.log.commits():
            if INFO in info:
                return False
            if info.get("operation") == "RESTORE":
                return True
        return False

    def _rebuilt(self, newest: int) -> ArchiveState:
        state = ArchiveState(newest)
        state.spans = self.find(None)
        state.note = (
            f"What the archive says of its offsets is not in the log of {self.location} any more, "
            "or was set back with the table: it is taken from the rows. Queues without a row, and "
            "what was expired or erased, are not known."
        )
        return state


def _is_empty(location: Location) -> bool:
    """Return whether nothing lies at a place, but for a log that is no table yet."""
    from pyarrow.fs import FileSelector

    if location.path is not None and not location.path.exists():
        return True
    with location.errors():
        found = location.filesystem().get_file_info(FileSelector("", allow_not_found=True))
    return all(entry.base_name == LOG for entry in found)
