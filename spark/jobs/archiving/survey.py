"""What the job `archive` has before it: where each queue goes on, how much there is, what is gone.

Driver process, one thread. Imports neither pyspark nor pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from skylarkmq.spark.archive.commits import TABLE, load
from skylarkmq.spark.archive.files import TableFiles
from skylarkmq.spark.archive.spans import gaps
from skylarkmq.spark.archive.state import TableState
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.jobs.common import USAGE, Cell, JobError, JobSettings, Summary, Table
from skylarkmq.spark.offsets import QueueKey, QueueOffsets
from skylarkmq.spark.options import Subject
from skylarkmq.spark.reading.positions import (
    EARLIEST,
    LATEST,
    Position,
    instant_ms,
    resolve,
)
from skylarkmq.spark.reading.queue_view import QueueView
from skylarkmq.spark.settings import ConnectionSettings

if TYPE_CHECKING:
    from skylarkmq.spark.jobs.archiving.run import ArchiveOptions

HOLE_COLUMNS: Final = ("topic", "broker", "queue", "from_offset", "to_offset", "messages")


@dataclass(frozen=True, slots=True)
class Survey:
    """Each readable queue, as it is when the job starts."""

    start: QueueOffsets
    """Where archiving goes on."""
    new: QueueOffsets
    """Of these, the queues that the table does not know."""
    begins: Mapping[QueueKey, int]
    ends: Mapping[QueueKey, int]

    @property
    def backlog(self) -> int:
        """Messages that can be archived now."""
        return sum(
            max(0, self.ends[key] - max(at, self.begins[key])) for key, at in self.start.items()
        )

    def expired(self, key: QueueKey) -> int:
        """Messages of a queue that are gone before they were archived."""
        return max(0, self.begins[key] - self.start[key])

    def remade(self, key: QueueKey) -> bool:
        """Whether a queue ends before the table does: its offsets are used anew."""
        return self.ends[key] < self.start[key]


def view_of(options: ArchiveOptions, settings: JobSettings) -> QueueView:
    """Return the queues that the job reads; asks nobody yet."""
    connection = ConnectionSettings.from_options(settings.connector_options())
    client = BlockingClient(connection)
    subject = Subject(topics=options.topics, pattern=options.pattern or "")
    return QueueView(client, subject, client.clock, patience_s=connection.retry_timeout_s)


def starting(text: str) -> Position:
    """Return what --starting says.

    Raises:
        JobError: neither a word nor a time.
    """
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text in words:
        return words[text]
    try:
        return Position("time", instant_ms(text), option="--starting")
    except ValueError as error:
        raise JobError(
            f"--starting {text[:40]!r}: earliest, latest, or {error}", exit_code=USAGE
        ) from error


def survey(options: ArchiveOptions, state: TableState, view: QueueView) -> Survey:
    """Return where each queue goes on; asks name servers and brokers.

    A queue that the table does not know, of a topic that it knows, came later: it starts at its
    first message, whatever --starting says.

    Raises:
        JobError: --starting is wrong.
        RocketMQError: no such topic, or no answer.
    """
    position = starting(options.starting)
    queues = view.patiently(view.queues)
    known = {key: at for key in queues if (at := state.next_offset(key)) is not None}
    topics = set(state.topics())
    grown = [key for key in queues if key not in known and key.topic in topics]
    fresh = [key for key in queues if key not in known and key.topic not in topics]
    new: dict[QueueKey, int] = {}
    if grown:
        new |= view.patiently(lambda: resolve(EARLIEST, grown, view.brokers, ""))
    if fresh:
        new |= view.patiently(lambda: resolve(position, fresh, view.brokers, ""))
    return Survey(
        QueueOffsets({**known, **new}),
        QueueOffsets(new),
        view.patiently(lambda: view.brokers.min_offsets(queues)),
        view.patiently(lambda: view.brokers.max_offsets(queues)),
    )


def dry_run(options: ArchiveOptions, files: TableFiles, view: QueueView) -> Summary:
    """Return what a run would archive."""
    there = files.size(TABLE) is not None
    state = load(files) if there else TableState()
    found = survey(options, state, view)
    rows: list[tuple[Cell, ...]] = [
        (
            key.topic, key.broker_name, key.queue_id, start, found.ends[key],
            max(0, found.ends[key] - max(start, found.begins[key])), found.expired(key),
        )
        for key, start in found.start.items()
    ]  # fmt: skip
    columns = ("topic", "broker", "queue", "from_offset", "to_offset", "messages", "expired")
    figures = {
        "table": str(files.root),
        "table_exists": there,
        "archived_messages": sum(file.rows for file in state.files.values()),
        "archived_files": len(state.files),
        "messages_to_archive": found.backlog,
    }
    tables = (Table("queues", columns, rows), *holes_table(state))
    return Summary("archive", figures, tables, tuple(_warnings(found)), dry_run=True)


def _warnings(found: Survey) -> Iterator[str]:
    if any(found.expired(key) for key in found.start):
        yield (
            "Messages have expired before they were archived: the job fails on them, or with "
            "--allow-data-loss goes on behind them."
        )
    if any(found.remade(key) for key in found.start):
        yield (
            "A queue ends before the table does: its topic was made anew, or its broker lost "
            "messages. Archive into another folder from here on."
        )


def holes_table(state: TableState) -> list[Table]:
    """Return a table of the offsets that the archive lacks in between, none when it lacks none."""
    rows = [
        (*key, low, high, high - low)
        for key in state.spans.queues()
        for low, high in gaps(
            state.spans.runs(key),
            state.start.get(key, state.spans.runs(key)[0][0]),
            state.spans.end(key) or 0,
        )
    ]
    return [Table("holes: not archived", HOLE_COLUMNS, rows)] if rows else []
