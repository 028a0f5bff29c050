"""A whole table as JSON: the answers with all topics (21), all consumer offsets (43) and all groups
(201), and the topics in a registration (103).

It is encoded once for each state of the table, and some rows in a turn of the loop: 50,000 rows
take 100 ms. Who asks while one is being encoded waits for the next, which all who wait share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from itertools import islice
from typing import Any, Final

import msgspec

from skylarkmq.broker.tables.persist import ROWS_PER_CALL
from skylarkmq.protocol.bodies.text import DataVersion
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.command import RemotingCommand

Answer = RemotingCommand | Coroutine[Any, Any, RemotingCommand]

_encode: Final = msgspec.json.Encoder().encode


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
