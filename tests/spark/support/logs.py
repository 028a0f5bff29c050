"""Log files for tests, in memory: written record by record, damaged at will."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from skylarkmq.common.read_only_files import patient_pread
from skylarkmq.protocol.record import decode_message, encode_blank
from skylarkmq.spark.log.log_batches import LogBatches, SegmentRange
from skylarkmq.spark.log.log_options import LogOptions
from skylarkmq.spark.schema import LOG_COLUMNS, names
from skylarkmq.store.stopped.segments import SegmentFile
from tests.spark.support.records import Written, row_of, rows_in

BASE = 3 << 20
PATH = f"/data/store/commitlog/{BASE:020d}"
ALL = names(LOG_COLUMNS)


class MemoryFile:
    """An open log file; blocks of it may be unreadable."""

    def __init__(self, data: bytes | bytearray) -> None:
        self.data = data
        self.unreadable: set[int] = set()  # begins of blocks of 4096 bytes
        self.is_patient = False
        self.before_read: Callable[[], None] = lambda: None

    @property
    def path(self) -> Path:
        return Path(PATH)

    @property
    def size(self) -> int:
        return len(self.data)

    def pread(self, size: int, position: int) -> bytes:
        if self.is_patient:
            return patient_pread(self._pread, size, position, set())
        return self._pread(size, position)

    def _pread(self, size: int, position: int) -> bytes:
        self.before_read()
        assert size >= 0 and position >= 0
        first = position - position % 4096
        if self.unreadable.intersection(range(first, position + size, 4096)):
            raise OSError(errno.EIO, "Input/output error", PATH)
        return bytes(self.data[position : position + size])

    def data_start(self, position: int) -> int:
        while position < len(self.data) and not any(self.data[position : position + 4096]):
            position += 4096
        return position


def written_log(
    records: Sequence[Written], *, size: int | None = None, blank: bool = True
) -> tuple[bytearray, list[int]]:
    """The bytes of a file of such records and where each begins; its rest is blank or zeros."""
    log, places = bytearray(), list[int]()
    for record in records:
        places.append(len(log))
        numbers = {**record.numbers, "physical": BASE + len(log)}
        log += replace(record, numbers=numbers).encode()
    rest = (size or len(log) + 100) - len(log)
    log += (encode_blank(rest) if blank else b"") + bytes(rest - (8 if blank else 0))
    return log, places


def rows_of(log: bytes | bytearray, places: Sequence[int]) -> list[dict[str, Any]]:
    """What must be read of the records at these places."""
    rows: list[dict[str, Any]] = []
    for place in places:
        row = row_of(decode_message(bytes(log), place))
        del row["brokerName"]
        row["segment"], row["position"], row["crcOk"] = f"{BASE:020d}", place, True
        row["recordKind"] = ("message", "prepared", "commit", "rollback")[row["sysFlag"] >> 2 & 3]
        rows.append(row)
    return rows


def spans_of(file: SegmentFile, step: int = 0, *, is_last: bool = True) -> list[SegmentRange]:
    """The ranges of a file, cut each `step` bytes or so."""
    starts = file.cuts(step, file.size) if step else [0]
    ends = [*starts[1:], file.size]
    return [
        SegmentRange(PATH, BASE, begin, end, end != file.size, is_last and end == file.size)
        for begin, end in zip(starts, ends, strict=True)
    ]


def read_log(
    log: bytes | bytearray | MemoryFile,
    columns: Sequence[str] = ALL,
    *,
    step: int = 0,
    is_last: bool = True,
    reader: LogBatches | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Rows of a file; a reader a range as in Spark, or one for all under `stop`."""
    stored = log if isinstance(log, MemoryFile) else MemoryFile(log)
    parsed = LogOptions.parse({"path": "/data", **{k: str(v) for k, v in options.items()}})
    stored.is_patient = parsed.on_corruption != "fail"
    file = SegmentFile(stored, BASE)
    rows: list[dict[str, Any]] = []
    for span in spans_of(file, step, is_last=is_last):
        for batch in (reader or LogBatches(columns, parsed)).read(file, span):
            batch.validate(full=True)
            rows += rows_in(batch)
    return rows
