"""Where the windows of the job `metrics` are kept.

    <output>/
      part-000000000017.parquet       rows that became final with batch 17; no file without rows
      _skylarkmq/
        lock                          held (flock) by the job that writes
        checkpoint/                   Spark's: the offsets of each batch
        state/000000000017.json       open windows and watermark after batch 17, and the query's id

A batch is done with its state file; the rows are there before. Killed between the two, the batch
comes again with the same offsets, gives the same rows, and writes the same file once more; one
that is done already and comes again is passed over. Readers that list the folder see each row once.

Columns of a row: windowStart, windowEnd (timestamp, UTC; end exclusive), topic, tag (null: none),
kind (window, late, ahead: see `windows`), messages, retries, deadLetters, storedBytes, bodyBytes
(null: not asked for), delayMsSum, delayMsMin, delayMsMax, delayMsP50, delayMsP95, delayMsP99,
delayCounts (how many delays are at most DELAY_BOUNDS_MS each), batchId.

Driver process, one thread.
"""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from skylarkmq.spark.archive.commits import META, lock_table
from skylarkmq.spark.durable_folder import DurableFolder
from skylarkmq.spark.jobs.common import JobError
from skylarkmq.spark.jobs.reporting import USAGE
from skylarkmq.spark.jobs.windows import PERCENTS, StateError, WindowBook, WindowRow

STATES: Final = f"{META}/state"
CHECKPOINT: Final = f"{META}/checkpoint"
KEPT_STATES: Final = 2

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


class WindowFiles:
    """An output folder; `open` first. With `dry` nothing is written, and no earlier state read."""

    def __init__(self, root: str | Path, *, dry: bool = False) -> None:
        self._dry = dry
        self._files = DurableFolder(Path(root).absolute())
        self._lock: int | None = None

    @property
    def checkpoint(self) -> str:
        """Where Spark keeps the offsets."""
        return str(self._files.root / CHECKPOINT)

    def open(self) -> None:
        """Make the folders and take the lock; `close` gives it back.

        Raises:
            JobError: the folder holds something else.
            RocketMQError: another job has it.
            OSError: the disk refuses.
        """
        if not self._dry:
            there = {*self._files.names(""), *self._files.names(META)} - {META, "lock"}
            if there and not (self._files.root / STATES).is_dir():
                raise JobError(
                    f"{self._files.root} is not empty, and holds no windows of an earlier run: "
                    "give another --output",
                    exit_code=USAGE,
                )
            self._files.make_folder(STATES)
            self._lock = lock_table(self._files, "metrics")

    def close(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def load(self, window_ms: int, delay_ms: int, event_time: str) -> tuple[WindowBook, str]:
        """Return the book after the last batch that is done, and the id of its query.

        A new book and an empty id where nothing is done yet.

        Raises:
            JobError: what is there was written with other settings, or is damaged.
        """
        names = [] if self._dry else self._states()
        if not names:
            return WindowBook(window_ms, delay_ms, event_time), ""
        name = f"{STATES}/{names[-1]}"
        try:
            document: dict[str, Any] = json.loads(self._files.read(name))
            book = WindowBook.from_json(document["book"], window_ms, delay_ms, event_time)
            return book, str(document["query_id"])
        except StateError as error:
            raise JobError(
                f"{self._files.root} holds the result of an earlier run, and {error}. "
                "Give the same settings, or another --output."
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise JobError(
                f"{self._files.root / name} is damaged ({error}). Its batch cannot be told from "
                "the ones before: start again with another --output."
            ) from error

    def write(self, book: WindowBook, rows: Sequence[WindowRow], *, body_bytes: bool) -> None:
        """Write the rows of the book's batch; `finish` follows. OSError where the disk refuses."""
        if rows and not self._dry:
            sink = io.BytesIO()
            pq.write_table(rows_table(rows, book.window_ms, body_bytes=body_bytes), sink)
            self._replace(f"part-{book.batch_id:012d}.parquet", sink.getvalue())

    def finish(self, book: WindowBook, query_id: str) -> None:
        """Say that the book's batch is done. OSError where the disk refuses."""
        if self._dry:
            return
        document = {"query_id": query_id, "book": book.as_json()}
        self._replace(f"{STATES}/{book.batch_id:012d}.json", json.dumps(document).encode())
        for name in self._states()[:-KEPT_STATES]:
            self._files.remove(f"{STATES}/{name}")

    def _states(self) -> list[str]:
        return [name for name in self._files.names(STATES) if name.endswith(".json")]

    def _replace(self, name: str, data: bytes) -> None:
        """Make a file appear whole, in the place of one of that name."""
        # Not beside it: readers that list the folder would see the part.
        self._files.replace(name, data, f"{META}/{name.rpartition('/')[2]}.new")


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
