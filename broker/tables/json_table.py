"""A table as JSON: in its file, with a `.bak` of the version before, and as the body of an answer.

    {
        "dataVersion":{"counter":3,"timestamp":1700000000000},
        "topicConfigTable":{
            "TopicTest":{"order":false,"perm":6,...},
            "orders":{...}
        }
    }

Standard JSON with quoted keys, tabs, a line for each row; RocketMQ reads it. What RocketMQ writes
(numbers as keys, without quotes) is read. A file that is missing, empty or no JSON gives way to its
`.bak`: a Java broker that dies between its delete and its rename leaves no file at all. What cannot
be read and has no good `.bak` ends the start, and stays as it is. Unlike RocketMQ, which starts
with an empty table then.

The bodies are the answers with all topics (21), all consumer offsets (43) and all groups (201), and
the topics in a registration (103). One is encoded once for each state of the table, some rows in a
turn of the loop: 50,000 rows take 100 ms. A request that comes while one is being encoded waits for
the next, which all that wait share.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../ConfigManager.java (load, loadBak, persist),
common/.../MixAll.java (string2File), common/.../DataVersion.java (nextVersion)
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from skylarkmq.common.clock import Clock
from skylarkmq.common.errors import CorruptFileError
from skylarkmq.common.files import Files
from skylarkmq.protocol.bodies.text import DataVersion, decode_body
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError

log = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)
Answer = RemotingCommand | Coroutine[Any, Any, RemotingCommand]

ROWS_MAX: Final = 10_000_000
"""Values that the tolerant reader takes from a file: it is ours, not a stranger's."""

ROWS_PER_CALL: Final = 256
"""Rows of a table that are encoded in one call, 0.3 ms."""

_encode: Final = msgspec.json.Encoder().encode
_find_position: Final = re.compile(r" at ([0-9]+)").search


def first_version(clock: Clock) -> DataVersion:
    """Return the version of a table that was never changed."""
    return DataVersion(counter=0, timestamp=clock.now_ms())


def next_version(version: DataVersion, clock: Clock) -> DataVersion:
    """Return the version after one more change; versions are compared for equality alone."""
    return DataVersion(counter=version.counter + 1, timestamp=clock.now_ms())


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
    A file that cannot be read and has a good `.bak` is moved to `<name>.broken`, so that the next
    write does not make it the new `.bak`.

    Raises:
        CorruptFileError: what there is cannot be read; nothing was changed.
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


class TableBody:
    """One table's answer. Loop thread."""

    def __init__(
        self,
        name: str,
        state: Callable[[], object],
        take: Callable[[], Iterable[tuple[str, Any]]],
        version: Callable[[], DataVersion] | None = None,
    ) -> None:
        """Make an answer that is encoded when it is asked for.

        Args:
            name: of the table in the body.
            state: another value after every change of the table.
            take: gives the rows as they are now, whatever changes while they are encoded.
            version: the table's data version, which stands in the body before the rows.
        """
        self._name = name
        self._state = state
        self._take = take
        self._version = version
        self._turn = asyncio.Lock()
        self._begun = 0  # times that the table was taken
        self._taken = 0  # of which this one is the body
        self._body = b""
        self._body_state: object = object()  # of the table that the body tells

    def answer(self, request: RemotingCommand) -> Answer:
        """Return the answer to a request, or a coroutine that does when it has to be encoded."""
        if self._body_state == self._state():
            return request.reply(ResponseCode.SUCCESS, body=self._body)
        return self._answered(request)

    async def _answered(self, request: RemotingCommand) -> RemotingCommand:
        return request.reply(ResponseCode.SUCCESS, body=await self.encoded())

    async def encoded(self) -> bytes:
        """Return the table as it is now, or was at a later moment."""
        begun = self._begun
        async with self._turn:
            if self._taken <= begun and self._body_state != self._state():
                await self._encode()
        return self._body

    async def _encode(self) -> None:
        self._begun += 1
        taken, state, rows = self._begun, self._state(), iter(self._take())
        head = b"" if self._version is None else b'"dataVersion":' + _encode(self._version()) + b","
        parts: list[bytes] = []
        while some := dict(islice(rows, ROWS_PER_CALL)):
            parts.append(_encode(some)[1:-1])
            if len(some) == ROWS_PER_CALL:
                await asyncio.sleep(0)
        table = b'"' + self._name.encode() + b'":{' + b",".join(parts) + b"}"
        self._body, self._body_state, self._taken = b"{" + head + table + b"}", state, taken
