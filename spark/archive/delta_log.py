# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""A Delta table's log: the table at one version, and a commit that follows exactly this version.

deltalake puts a commit after others that came in between where it finds no conflict, and it does
not see every one: it lets a commit remove a file that an OPTIMIZE has replaced in between, and then
rows are there twice, or an erased message is there still. So a commit here is tried once, for the
version after the one that is loaded. Whoever comes second loads what the first one did, looks at
it, and decides anew.

Driver process, one thread.
Source: delta-io/delta PROTOCOL.md; seen with deltalake 1.6.6
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from skylarkmq.spark.archive.durability import LogSync, make_folder, mend
from skylarkmq.spark.archive.state import ArchiveError
from skylarkmq.spark.requirements import check_storage_packages
from skylarkmq.spark.storage import Location

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

INFO: Final = "skylarkmq"
"""The key of what our commits say, in their commit info."""
CHECKPOINT_EVERY: Final = 100
"""Versions; deltalake's own default, which it does not apply to what this module commits."""
_HISTORY_STEPS: Final = (1, 40, 400, None)


class ConflictError(ArchiveError):
    """Another commit came first; `DeltaLog.reload` shows it."""


class DataFile(NamedTuple):
    """A file of a table as its log names it."""

    name: str
    """Its path below the table."""
    topic: str
    date: str
    """2026-01-31"""
    size: int
    """Bytes."""
    rows: int | None
    """None where whoever wrote it did not count them; so are the following."""
    first_ms: int | None
    last_ms: int | None
    """The least and the greatest storeTimestamp."""
    first_offset: int | None
    last_offset: int | None
    """The least and the greatest queueOffset, of all its queues."""


class DeltaLog:
    """See the module. `table` is deltalake's view of the version that is loaded."""

    def __init__(self, location: Location, table: DeltaTable) -> None:
        self.location = location
        self.table = table
        self._sync = LogSync(location)
        self._checkpointed = table.version()

    @classmethod
    def open(cls, location: Location, *, version: int | None = None) -> DeltaLog | None:
        """Return the table's log, None where there is no Delta table.

        Raises:
            StorageError, MissingRequirementError: the place cannot be used.
            ArchiveError: there is a table that deltalake cannot read.
        """
        check_storage_packages()
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        if location.path is not None and not location.path.is_dir():
            return None
        with location.errors():
            try:
                table = DeltaTable(
                    location.uri, version=version, storage_options=location.delta_options()
                )
            except TableNotFoundError:
                return None
            except DeltaError as error:
                raise ArchiveError(
                    f"the table {location} cannot be read: {first_line(error)}",
                    hint="Restore its _delta_log from a backup",
                ) from error
        return cls(location, table)

    @classmethod
    def create(
        cls, location: Location, schema: pa.Schema, partition_by: Sequence[str],
        configuration: Mapping[str, str],
    ) -> DeltaLog:  # fmt: skip
        """Make the table, and return its log. One that another job has just made is as good.

        Raises what `open` does.
        """
        check_storage_packages()
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        if location.path is not None:
            make_folder(location.path)
        with location.errors():
            try:
                table = DeltaTable.create(
                    location.uri,
                    schema,
                    partition_by=list(partition_by),
                    configuration=dict(configuration),
                    storage_options=location.delta_options(),
                    raise_if_key_not_exists=False,  # a key of our own is among them
                )
            except DeltaError as error:
                found = cls.open(location)
                if found is None:
                    raise ArchiveError(
                        f"no table can be made in {location}: {first_line(error)}"
                    ) from error
                return found
        log = cls(location, table)
        log.make_durable()
        return log

    @property
    def version(self) -> int:
        """The version that is loaded."""
        return self.table.version()

    def columns(self) -> pa.Schema:
        """Return the columns of the loaded version."""
        import pyarrow as pa

        columns: Any = self.table.schema().to_arrow()
        return pa.schema(columns)

    def add_columns(self, columns: pa.Schema) -> None:
        """Add columns as the next version; it is then loaded.

        Files stay as they are: what a file lacks is null.

        Raises:
            ConflictError: another commit came first; nothing was done.
            ArchiveError: a column is there with another type.
        """
        from deltalake import Schema
        from deltalake.exceptions import CommitFailedError, DeltaError

        try:
            with self.location.errors():
                self.table.alter.add_columns(list(Schema.from_arrow(columns).fields))
        except CommitFailedError as error:
            raise ConflictError(
                f"another commit came first into {self.location}: {first_line(error)}"
            ) from error
        except DeltaError as error:
            raise ArchiveError(
                f"columns cannot be added to {self.location}: {first_line(error)}"
            ) from error
        self.finish()

    def reload(self) -> None:
        """Load the newest version."""
        with self.location.errors():
            self.table.update_incremental()

    def transaction(self, app: str) -> int:
        """Return the version of the newest transaction of a program, 0 for none."""
        return self.table.transaction_version(app) or 0

    def commits(self) -> Iterator[Mapping[str, Any]]:
        """Yield the commit infos of the loaded version and those before, newest first.

        Old ones are not there any more where the log was cleaned up.
        """
        seen = 0
        for limit in _HISTORY_STEPS:
            with self.location.errors():
                found = self.table.history(limit)
            # Fewer than asked for are no end: a version without a commit info gives none.
            yield from found[seen:]
            seen = len(found)

    def files(self) -> list[DataFile]:
        """Return the files of the loaded version, in the order of their names.

        Raises:
            ArchiveError: it has files outside its folder, as a shallow clone has.
        """
        import pyarrow as pa

        with self.location.errors():
            rows: list[dict[str, Any]] = pa.table(
                self.table.get_add_actions(flatten=True)
            ).to_pylist()
        found: list[DataFile] = []
        for row in rows:
            if "://" in row["path"] or row["path"].startswith("/"):
                raise ArchiveError(
                    f"the table {self.location} has files elsewhere: {row['path'][:200]}",
                    hint="Read the table that it was cloned from",
                )
            found.append(
                DataFile(
                    unquote(row["path"]),
                    row.get("partition.topic") or "",
                    str(row.get("partition.date") or ""),
                    row["size_bytes"],
                    row.get("num_records"),
                    _ms(row.get("min.storeTimestamp")),
                    _ms(row.get("max.storeTimestamp")),
                    row.get("min.queueOffset"),
                    row.get("max.queueOffset"),
                )
            )
        return sorted(found)

    def require_plain(self) -> None:
        """Refuse a version whose files do not hold just the rows and columns of the table.

        Raises:
            ArchiveError: another engine has given it deletion vectors or renamed columns.
        """
        metadata = self.table.metadata()
        if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
            raise ArchiveError(
                f"the columns of {self.location} have other names in its files (column mapping)",
                hint="Read it with delta-spark",
            )
        features = self.table.protocol().reader_features or []
        if "deletionVectors" in features and any(True for _ in self.table.deletion_vectors()):
            raise ArchiveError(
                f"another engine has deleted rows of {self.location} by deletion vectors",
                hint="Run REORG TABLE ... APPLY (PURGE) there, or read it with delta-spark",
            )

    def commit(
        self, actions: Sequence[AddAction | RemoveAction], info: str, transaction: tuple[str, int]
    ) -> None:
        """Commit files as the version after the loaded one, which is then loaded.

        Args:
            info: what stands under INFO in the commit info.
            transaction: a program and the number of this commit among its own.

        Raises:
            ConflictError: another commit has this version already; nothing was done.
            StorageError, OSError: it is not known whether it was done.
        """
        from deltalake.exceptions import CommitFailedError

        try:
            with self.location.errors():
                self._write(actions, info, transaction)
        except CommitFailedError as error:
            raise ConflictError(
                f"another commit came first into {self.location}: {first_line(error)}"
            ) from error
        self.finish()

    def finish(self) -> None:
        """Make the newest commit durable and load it; a checkpoint follows when it is time."""
        self.make_durable()
        self.reload()
        if self.version // CHECKPOINT_EVERY == self._checkpointed // CHECKPOINT_EVERY:
            return
        with self.location.errors():
            self._write_checkpoint()
            self.make_durable()
            self._clean_up()
        self._checkpointed = self.version

    # The single steps; a test ends a writer between any two.

    def make_durable(self) -> None:
        """Sync the log on a disk."""
        self._sync.sync()

    def _write(
        self, actions: Sequence[AddAction | RemoveAction], info: str, transaction: tuple[str, int]
    ) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import PostCommitHookProperties

        app, number = transaction
        self.table.create_write_transaction(
            list(actions),
            "append",
            self.table.schema(),
            self.table.metadata().partition_columns,
            commit_properties=CommitProperties(
                custom_metadata={INFO: info},
                max_commit_retries=0,
                app_transactions=[Transaction(app, number)],
            ),
            # `finish` does both, in an order that a power cut cannot hurt.
            post_commithook_properties=PostCommitHookProperties(
                create_checkpoint=False, cleanup_expired_logs=False
            ),
        )

    def _write_checkpoint(self) -> None:
        self.table.create_checkpoint()

    def _clean_up(self) -> None:
        self.table.cleanup_metadata()


def open_to_write(location: Location) -> DeltaLog | None:
    """Return the log for one who commits: what a power cut has cut is removed first."""
    mend(location)
    return DeltaLog.open(location)


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _ms(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp() * 1000)
