"""An event loop on a thread of its own, which answers while the broker's loop is held up."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


class LoopThread:
    """A loop of asyncio's own kind, and its thread. The methods belong to the loop that made it."""

    def __init__(self, name: str, on_failure: Callable[[], object] | None = None) -> None:
        """Start the thread; it ends with `stop`, or with the process.

        Args:
            on_failure: called on the thread when the loop has broken and nobody has stopped it.
        """
        self.loop: asyncio.AbstractEventLoop = asyncio.SelectorEventLoop()
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the thread and return its result, or raise its error."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    async def stop(self) -> None:
        """Cancel what still runs in the thread, and end it."""
        with suppress(RuntimeError):  # it has broken
            self.loop.call_soon_threadsafe(self.loop.stop)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
                runner.get_loop().run_forever()
        except BaseException:  # a callback's error ends no loop: it is this thread's end
            log.critical("the loop of %s has broken", self._thread.name, exc_info=True)
            if self._on_failure is not None:
                self._on_failure()
