"""Standard input, line by line, on a thread that nobody waits for when a signal ends the command.

The protocol's library reads it on a thread that it waits for: without this a signal would have no
effect before the next request. It makes a task for each request, which ends when the answer is
written: whoever sends more than that, or reads no answers, waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Final

REQUEST_MAX: Final = 1 << 20
"""Bytes of a line; a longer one is cut, and refused as no JSON."""
WAITING_MAX: Final = 16
TASKS_MAX: Final = 256
"""Tasks of the loop, from which on no line is handed out."""
PAUSE_S: Final = 0.01


class Requests:
    """An async iterator of the lines, as texts, until the input ends."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines = asyncio.Queue[bytes](WAITING_MAX)
        threading.Thread(target=self._read, name="skylarkmq-mcp-stdin", daemon=True).start()

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> str:
        while len(asyncio.all_tasks()) > TASKS_MAX:  # noqa: ASYNC110 - nobody tells that one ends
            await asyncio.sleep(PAUSE_S)
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
