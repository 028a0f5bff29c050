"""Between the broker's tables and their JSON files, each with a `.bak` of the version before.

    {
        "dataVersion":{"counter":3,"timestamp":1700000000000},
        "topicConfigTable":{
            "TopicTest":{"order":false,"perm":6,...},
            "orders":{...}
        }
    }

Standard JSON with quoted keys, tabs, a line for each row; RocketMQ reads it. What RocketMQ writes
(numbers as keys, without quotes) is read. A file that is missing, empty or no JSON gives way to its
`.bak`: a Java broker that dies between its delete and its rename leaves no file at all. What can
not be read and has no good `.bak` ends the start, and stays as it is.

Unlike RocketMQ, which starts with an empty table then.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../ConfigManager.java (load, loadBak, persist),
common/.../MixAll.java (string2File)
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from skylarkmq.common.errors import CorruptFileError
from skylarkmq.common.files import Files
from skylarkmq.common.table_file import TableWriter, Text
from skylarkmq.protocol.bodies.text import DataVersion, decode_body
from skylarkmq.protocol.errors import RemoteProtocolError

log = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)
Done = Callable[[BaseException | None], None]
Take = Callable[[], Text | None]

ROWS_MAX: Final = 10_000_000
"""Values that the tolerant reader takes from a file: it is ours, not a stranger's."""

ROWS_PER_CALL: Final = 256
"""Rows of a table that are encoded in one call, 0.3 ms."""

_encode: Final = msgspec.json.Encoder().encode
_find_position: Final = re.compile(r" at ([0-9]+)").search


def table_text(name: str, rows: Mapping[str, Any], version: DataVersion | None) -> bytes:
    """Return the text of a table's file; `rows` are the objects of the table called `name`.

    Other threads get their turn between every ROWS_PER_CALL rows: one call of the encoder keeps
    them out from its begin to its end.
    """
    head = b"" if version is None else b'\t"dataVersion":' + _encode(version) + b",\n"
    lines: list[bytes] = []
    remaining = iter(rows.items())
    while some := dict(islice(remaining, ROWS_PER_CALL)):
        # A quote inside a text is escaped, so the mark between two rows is found nowhere else.
        lines.append(_encode(some)[1:-1].replace(b'},"', b'},\n\t\t"'))
        os.sched_yield()
    body = b"{\n\t\t" + b",\n\t\t".join(lines) + b"\n\t}" if lines else b"{}"
    return b"{\n" + head + b"\t" + _encode(name) + b":" + body + b"\n}"


def load_table(files: Files, path: Path, cls: type[T]) -> T | None:
    """Return what the file or its `.bak` holds, None when neither is there. Blocks.

    Makes the folder too, so that the table can be written later.
    A file that can not be read and has a good `.bak` is moved to `<name>.broken`, so that the next
    write does not make it the new `.bak`.

    Raises:
        CorruptFileError: what there is can not be read; nothing was changed.
    """
    files.make_folder(path.parent)
    backup = path.with_name(path.name + ".bak")
    data = files.read_all(path) if files.exists(path) else b""
    fault: CorruptFileError | None = None
    if data.strip():
        try:
            return _decode(path, data, cls)
        except CorruptFileError as error:
            fault = error
    spare = files.read_all(backup) if files.exists(backup) else b""
    if not spare.strip():
        if fault is not None:
            raise CorruptFileError(
                path,
                fault.position,
                f"{fault.why}; there is no {backup.name}: put a good copy in its place, or remove "
                "it to begin with an empty table",
            ) from fault
        return None
    try:
        table = _decode(backup, spare, cls)
    except CorruptFileError as error:
        raise CorruptFileError(
            error.path,
            error.position,
            f"{error.why}; {fault or f'{path} is missing or empty'}: put a good copy in the place "
            "of one, or remove both to begin with an empty table",
        ) from error
    log.warning("%s; reading %s", fault or f"{path} is missing or empty", backup.name)
    if files.exists(path):
        files.replace(path.with_name(path.name + ".broken"), data, backup=False)
        files.unlink(path)
        files.sync_folder(path.parent)
    return table


def _decode(path: Path, data: bytes, cls: type[T]) -> T:
    try:
        return decode_body(cls, data, node_count_max=ROWS_MAX)
    except RemoteProtocolError as error:
        match = _find_position(error.remark)
        raise CorruptFileError(path, int(match[1]) if match else 0, error.remark) from error


class TableFile:
    """Follows which changes of one table are on the disk, and frees those who wait. Loop thread."""

    def __init__(self, writer: TableWriter, path: Path, take: Take) -> None:
        """Make a table without changes.

        Args:
            take: takes the table as it is on the loop, and returns what makes the text of that on
                the tables thread; None when what is on the disk still says how everything is.
        """
        self._writer = writer
        self._path = path
        self._take = take
        # Invariant: durable <= writing <= changes; they count changes since the start.
        self.changes = 0
        self._writing = 0
        self._durable = 0
        self.is_under_way = False
        self._again = False
        self._waiters: list[tuple[int, Done]] = []

    @property
    def pending(self) -> bool:
        """Whether something changed that is not on the disk yet."""
        return self._durable < self.changes

    def changed(self) -> None:
        """Note a change and have it written."""
        self.mark()
        self.write()

    def mark(self) -> None:
        """Note a change that waits for the next write."""
        self.changes += 1

    def persisted(self, done: Done) -> None:
        """Call `done` once all changes so far are on the disk, at once when they are.

        After a write that failed, `done` gets its error; the changes stay pending, and the next
        call or change tries again.
        """
        if not self.pending:
            done(None)
            return
        self._waiters.append((self.changes, done))
        self.write()

    async def flush(self) -> None:
        """Return when everything is on the disk; a failure is logged."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_: BaseException | None) -> None:
            if not written.done():
                written.set_result(None)

        self.persisted(done)
        await written

    def write(self) -> None:
        """Have every change so far written: now, or right after the write under way."""
        if self.is_under_way:
            self._again = self.changes > self._writing
            return
        self.is_under_way = True
        text = self._take()
        self._writing = self.changes
        if text is None:
            self._written(None)
        else:
            self._put(text)

    def _put(self, text: Text) -> None:
        self._writer.write(self._path, text, self._written)

    def _written(self, error: BaseException | None) -> None:
        self.is_under_way = False
        if error is None:
            self._durable = self._writing
        else:
            log.error("%s could not be written: %s", self._path, error)
        served = [done for change, done in self._waiters if change <= self._writing]
        self._waiters = [item for item in self._waiters if item[0] > self._writing]
        if self._again:
            self._again = False
            self.write()
        for done in served:
            done(error)
