"""What the log cannot say by its messages, as records of a system topic; their fold. No I/O.

Between replicas only the commit log is copied. So a master writes its tables into it: queue 0 of
SKYLARKMQ_SYS_METADATA. A record's body is JSON:

    kind      "change": rows have these values now. "snapshot": a part of all rows
    version   of this form; a reader refuses higher ones
    term      of the master that wrote it
    base      queue offset of the first record of the newest whole snapshot; -1 before the first
    logBegin  where the master's log began; followers may remove what lies below
    rows      [table, key, value], whole rows; null: there is no such row any more
    begin     snapshot: queue offset of its first record; -1 in that one
    part      snapshot: number of the record in it, from 0 on
    isLast    snapshot: it is whole with this one

    ... S0 S1 c S2 c c c [S0 c S1 c c      the bracket: a master died before its snapshot was whole
        ^ base of all that follow S2

A snapshot tells the rows of the moment of its first record. Changes may stand between its parts;
they came later and win. Whoever begins anew reads from the base that the last record names. The
rows of a record are whole and absolute, so a record that is folded twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

import msgspec

from skylarkmq.common.errors import StoreError

VERSION: Final = 1
NO_BASE: Final = -1
NOTHING: Final = msgspec.Raw(b"null")
DELETING: Final = "deleting"
"""Table of the topics whose settings are deleted and whose queues are still there."""
REMOVED: Final = "removed"
"""No table: such a row says that the queues of a topic are removed, up to this place of the log."""

Tables = dict[str, dict[str, msgspec.Raw]]
"""Table -> key -> value."""


class MetadataError(StoreError):
    """A record that cannot be read here; cause and cure for the operator."""


class Change(msgspec.Struct, array_like=True, frozen=True):
    """A row as it is now; NOTHING as its value: it is gone."""

    table: str
    key: str
    value: msgspec.Raw = NOTHING

    @property
    def is_gone(self) -> bool:
        """True when there is no such row any more."""
        return bytes(self.value) == b"null"


class MetadataRecord(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, kw_only=True):
    """The body of one record."""

    kind: Literal["change", "snapshot"]
    version: int = VERSION
    term: int
    base: int = NO_BASE
    log_begin: int = 0
    rows: list[Change] = []
    begin: int = NO_BASE
    part: int = 0
    is_last: bool = False


class _Version(msgspec.Struct):
    version: int = VERSION


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(MetadataRecord).decode
_decode_version: Final = msgspec.json.Decoder(_Version).decode


def encode_value(value: Any) -> msgspec.Raw:
    """Return a row's value as JSON."""
    return msgspec.Raw(_encode(value))


def encode_metadata(record: MetadataRecord) -> bytes:
    """Return the body of a record."""
    return _encode(record)


def decode_metadata(body: bytes) -> MetadataRecord:
    """Return the record of a body.

    Raises:
        MetadataError: it is none, or of a later form.
    """
    try:
        version = _decode_version(body).version
        if version <= VERSION:
            return _decode(body)
    except msgspec.MsgspecError as error:
        raise MetadataError(f"a record of {len(body)} bytes is no metadata: {error}") from error
    raise MetadataError(
        f"metadata of version {version}, {VERSION} is known here: a newer broker wrote it; update "
        "this one"
    )


def in_parts(rows: Iterable[Change], size_max: int) -> Iterator[list[Change]]:
    """Cut rows into the parts of records: at least one part, which may be empty.

    Args:
        size_max: bytes of JSON in a part; a single row may be larger.
    """
    part, size = list[Change](), 0
    for row in rows:
        row_size = len(row.table) + len(row.key) + len(bytes(row.value)) + 16
        if part and size + row_size > size_max:
            yield part
            part, size = [], 0
        part.append(row)
        size += row_size
    yield part


class MetadataFold:
    """The tables after some records, which come in the order of their queue offsets.

    Attributes:
        tables: the rows; of a fold that is not whole, those that changed since it began.
        is_whole: a whole snapshot was folded, and every change since.
        base: queue offset of the first record of that snapshot, else NO_BASE.
        term: of the last record; 0 before the first.
    """

    def __init__(self) -> None:
        self.tables: Tables = {}
        self.is_whole = False
        self.base = NO_BASE
        self.term = 0
        self._collected: Tables | None = None  # of a snapshot that is not whole yet
        self._begin = NO_BASE  # of that
        self._part = 0  # the next one of that
        self._later: list[Change] = []  # changes since that began

    def take(self, queue_offset: int, record: MetadataRecord) -> bool:
        """Fold one more record; return whether a snapshot has become whole with it."""
        self.term = record.term
        if record.kind == "change":
            apply(self.tables, record.rows)
            if self._collected is not None:
                self._later += record.rows
            return False
        begin = queue_offset if record.part == 0 else record.begin
        if record.part == 0:
            self._collected, self._begin, self._part = {}, begin, 0
            self._later = []
        if self._collected is None or begin != self._begin or record.part != self._part:
            return False  # its first records are gone, or never came
        self._part += 1
        apply(self._collected, record.rows)
        if not record.is_last:
            return False
        apply(self._collected, self._later)
        self.tables, self._collected, self._later = self._collected, None, []
        self.is_whole, self.base = True, begin
        return True


def apply(tables: Tables, rows: Iterable[Change]) -> None:
    """Bring rows into tables."""
    for row in rows:
        if row.table == REMOVED:
            tables.setdefault(DELETING, {}).pop(row.key, None)
            continue
        table = tables.setdefault(row.table, {})
        if row.is_gone:
            table.pop(row.key, None)
        else:
            table[row.key] = row.value


def begin_of(record: MetadataRecord, queue_offset: int) -> int:
    """Return from which queue offset on to fold when this is the last record; NO_BASE: unknown."""
    if record.kind == "snapshot" and record.is_last:
        return queue_offset if record.part == 0 else record.begin
    return record.base
