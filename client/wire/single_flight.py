"""One call under way per key, shared by all who want its result at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from skylarkmq.client.errors import IllegalState

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Owns the shared calls, one task each; `stop` ends them. Loop thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: dict[str, asyncio.Task[T]] = {}
        self._stopped = False

    async def run(self, key: str, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Join the call under way for `key`, or start one; return its result or raise its error.

        Cancelling one who waits does not end the call for the others.

        Raises:
            IllegalState: stopped, before or meanwhile.
        """
        call = self._calls.get(key)
        if call is None:
            if self._stopped:
                raise IllegalState("the client has stopped")
            call = asyncio.create_task(start(), name=f"skylarkmq-{self._name}-{key}")
            self._calls[key] = call
            call.add_done_callback(lambda done: self._ended(key, done))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if call.cancelled() and task is not None and not task.cancelling():
                raise IllegalState("the client has stopped") from None
            raise

    def cancel(self) -> None:
        """Cancel the calls under way and refuse new ones."""
        self._stopped = True
        for call in self._calls.values():
            call.cancel()

    async def stop(self) -> None:
        """Do that, and wait for their end."""
        calls = list(self._calls.values())
        self.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def _ended(self, key: str, call: asyncio.Task[T]) -> None:
        if self._calls.get(key) is call:
            del self._calls[key]
        if not call.cancelled():
            call.exception()  # seen here, in case nobody waits for it any more
