"""The result of the job `metrics`: a Delta table of final rows, and what is not final yet.

    <output>/
      _delta_log/ part-....parquet    the table; each batch's rows are one transaction of it
      _skylarkmq/state.json           what the next batch starts from
      _skylarkmq/run, lock            the run at work (`hold`)

    {"v": 1, "query": ..., "run": ..., "book": "...",    windows and watermark after batch N
     "offsets": {...},                                   where batch N + 1 begins in each queue
     "rows": [...], "to_send": true}                     batch N's, while they are not done with

A batch is counted, then

    1  the state says that it is, and has its rows
    2  the rows are committed, as transaction N of the query: a Delta table takes each number once
    3  the rows are sent to a topic, if one was named, and the state says so

Killed before 1, the next run counts the messages of the batch, which may be cut into batches in
another way. Killed after it, the next run takes the rows from the state: it commits them unless the
table has transaction N, and sends them, with the same ids, unless the state says that they were. So
no message counts twice and none is left out. The state is replaced on the condition that no other
run did, before a commit, so of two runs one goes on.

Spark's checkpoint is not needed for that: it lies in a folder of the driver for as long as a run.

Late rows are rows of the same table, by their kind. Columns: windowStart, windowEnd (timestamp,
UTC; end exclusive), topic, tag (null: none), kind (window, late, ahead), messages, retries,
deadLetters, storedBytes, bodyBytes (null: not asked for), delayMsSum, delayMsMin, delayMsMax,
delayMsP50, delayMsP95, delayMsP99, delayCounts (how many delays are at most DELAY_BOUNDS_MS each),
batchId.

Driver process, one thread.
Source: delta-io/delta PROTOCOL.md (Transaction Identifiers)
"""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from skylarkmq.spark.archive.delta_log import ConflictError, DeltaLog, open_to_write
from skylarkmq.spark.archive.durability import sync_files
from skylarkmq.spark.clock import BlockingClock, SystemClock
from skylarkmq.spark.jobs.common import JobError, UsageError
from skylarkmq.spark.jobs.reporting import instant
from skylarkmq.spark.jobs.windows import (
    PERCENTS,
    StateError,
    WindowBook,
    WindowRow,
    rows_json,
    rows_of_json,
)
from skylarkmq.spark.ledgers.hold import Hold
from skylarkmq.spark.ledgers.objects import ChangedError, objects_at
from skylarkmq.spark.offsets import QueueOffsets
from skylarkmq.spark.storage import Location

if TYPE_CHECKING:
    from deltalake.transaction import AddAction

META: Final = "_skylarkmq"
"""Below the table; readers and VACUUM of Delta pass over such names."""
STATE: Final = "state.json"
STATE_VERSION: Final = 1
QUERY_KEY: Final = "skylarkmq.metrics"
"""The key of a table's configuration under which the id of its query stands."""
TRIES: Final = 50
"""How often a commit begins anew because another engine's came first."""

_INSTANT: Final = pa.timestamp("us", tz="UTC")
_COUNTS: Final = (
    "messages", "retries", "deadLetters", "storedBytes", "bodyBytes", "delayMsSum", "delayMsMin",
    "delayMsMax", *(f"delayMsP{percent}" for percent in PERCENTS),
)  # fmt: skip
_TYPES: Final[dict[str, pa.DataType]] = {
    "windowStart": _INSTANT,
    "windowEnd": _INSTANT,
    "topic": pa.string(),
    "tag": pa.string(),
    "kind": pa.string(),
    **dict.fromkeys(_COUNTS, pa.int64()),
    "delayCounts": pa.list_(pa.int64()),
    "batchId": pa.int64(),
}
SCHEMA: Final = pa.schema(list(_TYPES.items()))


class WindowTable:
    """The table of an output, and its state; a context manager. With `dry` nothing is touched."""

    def __init__(
        self, place: Location, *, dry: bool = False, clock: BlockingClock | None = None
    ) -> None:
        self.place = place
        self.query_id = ""
        self.offsets = QueueOffsets()
        """Where counting goes on; empty before the first batch."""
        self.pending: list[WindowRow] = []
        """The last batch's rows, when it is not known that they were committed and sent."""
        self.to_send = False
        """Whether it is not known that they were sent."""
        self._dry = dry
        self._clock: BlockingClock = clock or SystemClock()
        self._objects = objects_at(place.child(META))
        self._hold = Hold(place.child(META), "metrics", clock)
        self._log: DeltaLog | None = None
        self._state: dict[str, Any] = {}
        self._tag: str | None = None

    def __enter__(self) -> Self:
        """Take the output for this run, and make the table if need be.

        Raises:
            JobError: something else lies there.
            InUseError: another run has it.
            StorageError, OSError: it cannot be used.
        """
        if self._dry:
            return self
        log = open_to_write(self.place)
        if log is None and [name for name in self.place.names() if name != META]:
            raise UsageError(
                f"{self.place} is not empty, and holds no windows of an earlier run: "
                "give another --output"
            )
        if log is not None and QUERY_KEY not in log.table.metadata().configuration:
            raise UsageError(
                f"{self.place} is a table, and holds no windows of an earlier run: "
                "give another --output"
            )
        self._hold.__enter__()
        try:
            if log is None:
                configuration = {QUERY_KEY: uuid.uuid4().hex}
                log = DeltaLog.create(self.place, SCHEMA, (), configuration)
            else:
                log.reload()
            self._log = log
            self.query_id = str(log.table.metadata().configuration[QUERY_KEY])
        except BaseException:
            self._hold.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if not self._dry:
            self._hold.__exit__()

    def load(self, window_ms: int, delay_ms: int, event_time: str) -> WindowBook:
        """Return the book after the last batch; a new one where nothing was counted yet.

        `offsets` and `pending` are set as well.

        Raises:
            JobError: what is there was written with other settings, or is damaged.
        """
        found = None if self._dry else self._objects.read(STATE)
        if found is None:
            if self._has(0):
                raise JobError(
                    f"{self.place} has rows, and {self.place.child(META).child(STATE)} is gone: "
                    "counting again would double messages. Give another --output, or take this "
                    "one away whole."
                )
            return WindowBook(window_ms, delay_ms, event_time)
        try:
            document: dict[str, Any] = json.loads(found.data)
            if document["v"] != STATE_VERSION or document["query"] != self.query_id:
                raise ValueError("it is of another release, or of another table")
            book = WindowBook.from_json(document["book"], window_ms, delay_ms, event_time)
            self.offsets = QueueOffsets.from_json(document["offsets"])
            rows = rows_of_json(document["rows"])
            self.to_send = bool(document["to_send"])
        except StateError as error:
            raise JobError(
                f"{self.place} holds the result of an earlier run, and {error}. "
                "Give the same settings, or another --output."
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise JobError(
                f"{self.place.child(META).child(STATE)} is damaged ({error}). What was counted "
                "cannot be told: start again with another --output."
            ) from error
        self._state, self._tag = document, found.tag
        self.pending = [] if self._has(book.batch_id) and not self.to_send else rows
        return book

    def begin(self, book: WindowBook, offsets: QueueOffsets) -> None:
        """Note where the first batch begins. Raises what `write` does.

        Without this, a run that begins at the end and finds nothing would leave the next one to
        begin at another end.
        """
        self.write(book, (), offsets, body_bytes=False, to_send=False)

    def write(
        self, book: WindowBook, rows: Sequence[WindowRow], offsets: QueueOffsets, *,
        body_bytes: bool, to_send: bool,
    ) -> None:  # fmt: skip
        """Keep the book's batch and commit its rows; durable when it returns.

        Args:
            offsets: where the next batch begins.
            to_send: rows will be sent; `sent` says that they are.

        Raises:
            JobError, HoldLostError: another run writes there.
            StorageError, OSError: it is not known whether it was written.
        """
        self.offsets = self.offsets.updated(offsets).knowing(offsets.before)
        if self._dry:
            return
        state = {
            "v": STATE_VERSION,
            "query": self.query_id,
            "book": book.as_json(),
            "offsets": self.offsets.to_json(),
            "rows": rows_json(rows),
            "to_send": bool(rows) and to_send,
        }
        self._put(state)
        self.commit(rows, book.window_ms, body_bytes=body_bytes)

    def commit(self, rows: Sequence[WindowRow], window_ms: int, *, body_bytes: bool) -> None:
        """Commit a batch's rows unless the table has them. Raises what `write` does."""
        if not rows or self._log is None:
            return
        number = rows[0].batch_id
        log, add = self._log, None
        for _ in range(TRIES):
            if self._has(number):
                return
            if add is None:
                table = rows_table(rows, window_ms, body_bytes=body_bytes)
                add = self._add(table, number, [row.key.start_ms for row in rows])
            try:
                log.commit([add], json.dumps({"batch": number}), (self.query_id, number))
            except ConflictError:
                log.reload()
                continue
            return
        raise JobError(
            f"others have committed to {self.place} first, {TRIES} times in a row: "
            "run the job again"
        )

    def sent(self) -> None:
        """Note that the last batch's rows are sent. Raises what `write` does."""
        if not self._dry:
            self._put({**self._state, "rows": [], "to_send": False})

    # Inside

    def _put(self, state: Mapping[str, Any]) -> None:
        self._hold.check()
        self._state = {**state, "run": self._hold.run_id}
        try:
            self._tag = self._objects.write(STATE, json.dumps(self._state).encode(), self._tag)
        except ChangedError as error:
            raise JobError(f"{error}: only one can count there") from None

    def _has(self, number: int) -> bool:
        """Return whether the table has the rows of this batch or of a later one."""
        if self._log is None:
            return False
        last = self._log.table.transaction_version(self.query_id)
        return last is not None and last >= number

    def _add(self, rows: pa.Table, number: int, starts_ms: Sequence[int]) -> AddAction:
        """Write a file of rows; return what adds it to the table."""
        from deltalake.transaction import AddAction

        name = f"part-{number:012d}-{uuid.uuid4().hex}.parquet"
        filesystem = self.place.filesystem()
        with self.place.errors():
            with filesystem.open_output_stream(name) as file:
                pq.write_table(rows, file)
            size = filesystem.get_file_info(name).size
        sync_files(self.place, [name])
        edges = {
            edge: {"windowStart": instant(choose(starts_ms)), "batchId": number}
            for edge, choose in (("minValues", min), ("maxValues", max))
        }
        return AddAction(
            path=name,
            size=size or 0,
            partition_values={},
            modification_time=self._clock.now_ms(),
            data_change=True,
            stats=json.dumps({"numRecords": rows.num_rows, **edges, "nullCount": {}}),
        )


def rows_table(rows: Sequence[WindowRow], window_ms: int, *, body_bytes: bool) -> pa.Table:
    """Return the rows as a table with SCHEMA."""
    return pa.Table.from_pylist(
        [row_values(row, window_ms, body_bytes=body_bytes) for row in rows], schema=SCHEMA
    )


def row_values(row: WindowRow, window_ms: int, *, body_bytes: bool) -> dict[str, Any]:
    """Return a row by column; instants are microseconds since the epoch."""
    tally = row.tally
    return {
        "windowStart": row.key.start_ms * 1000,
        "windowEnd": (row.key.start_ms + window_ms) * 1000,
        "topic": row.key.topic,
        "tag": row.key.tag or None,
        "kind": row.kind,
        "messages": tally.messages,
        "retries": tally.retries,
        "deadLetters": tally.dead_letters,
        "storedBytes": tally.stored_bytes,
        "bodyBytes": tally.body_bytes if body_bytes else None,
        "delayMsSum": tally.delay_ms_sum,
        "delayMsMin": tally.delay_ms_min,
        "delayMsMax": tally.delay_ms_max,
        **{f"delayMsP{percent}": tally.percentile(percent) for percent in PERCENTS},
        "delayCounts": tally.delays,
        "batchId": row.batch_id,
    }
