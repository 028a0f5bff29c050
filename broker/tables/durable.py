"""Waiting until a changed table is on the disk, before its change is acknowledged.

Unlike RocketMQ, whose answers say nothing about the disk: a power cut right after "topic created"
loses the topic there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError


class DurableTable(Protocol):
    """A manager whose table lives in a file."""

    @property
    def pending(self) -> bool:
        """Whether something changed that is not on the disk yet."""
        ...

    def persisted(self, done: Callable[[BaseException | None], None]) -> None:
        """Call `done` once all changes so far are on the disk, or with what kept them from it."""
        ...


async def durable(*tables: DurableTable) -> None:
    """Return when every change made so far to these tables is on the disk.

    Raises:
        RemoteProtocolError: SERVICE_NOT_AVAILABLE; a table could not be written. The change is in
            force in memory and written with the next one.
    """
    for table in tables:
        if table.pending:
            await _written(table)


async def _written(table: DurableTable) -> None:
    written: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        if not written.done():
            written.set_result(error)

    table.persisted(done)
    error = await written
    if error is not None:
        raise RemoteProtocolError(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"the change is in force, but could not be written to the disk: {error}",
        )
