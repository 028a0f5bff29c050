"""Standard input, line by line, on a thread that nobody waits for when a signal ends the command.

The protocol's library reads it on a thread that it waits for: without this a signal would have no
effect before the next request.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Final

REQUEST_MAX: Final = 1 << 20
"""Bytes of a line; a longer one is cut, and refused as no JSON."""
WAITING_MAX: Final = 16


class Requests:
    """An async iterator of the lines, as texts, until the input ends."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines = asyncio.Queue[bytes](WAITING_MAX)
        threading.Thread(target=self._read, name="skylarkmq-mcp-stdin", daemon=True).start()

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> str:
        line = await self._lines.get()
        if not line:
            raise StopAsyncIteration
        return line.decode("utf-8", "replace")

    def _read(self) -> None:
        with contextlib.suppress(RuntimeError), open(0, "rb", closefd=False) as source:
            line = b"\n"
            while line:  # the empty one is the end
                line = source.readline(REQUEST_MAX)
                asyncio.run_coroutine_threadsafe(self._lines.put(line), self._loop).result()
