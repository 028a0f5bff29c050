"""A thread with an event loop of its own, for as long as one asynchronous context lasts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

T = TypeVar("T")

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class LoopThread(Generic[T]):
    """Enters a context in a loop of its own, and leaves it when it is asked to. Any thread.

    Attributes:
        started: what the context gave, or why it could not be entered.
        ended: set when the thread is over; what the context raised then.
    """

    def __init__(
        self,
        context: Callable[[], AbstractAsyncContextManager[T]],
        name: str,
        loop_factory: LoopFactory | None = None,
    ) -> None:
        """Take the context; the thread begins with `start`."""
        self.started: Future[T] = Future()
        self.ended: Future[None] = Future()
        self._context = context
        self._loop_factory = loop_factory
        self._stopping: Future[None] = Future()
        # A daemon: a program that ends without a stop ends here, too, as if it were killed.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; `started` says when the context is entered.

        Raises:
            RuntimeError: it has been started before.
        """
        if self._thread.ident is not None:
            raise RuntimeError("it has run, and runs once: make a new one for another block")
        self._thread.start()

    def stop(self) -> None:
        """Ask for the end, once; `ended` says when it came."""
        self._stopping.set_result(None)

    def join(self) -> None:
        """Wait until the thread is over; after `stop`."""
        self._thread.join()

    async def _serve(self) -> None:
        async with self._context() as entered:
            self.started.set_result(entered)
            await asyncio.wrap_future(self._stopping)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._loop_factory) as runner:
                runner.run(self._serve())
        except BaseException as error:
            if not self.started.done():
                self.started.set_exception(error)
                self.ended.set_result(None)
            else:
                self.ended.set_exception(error)
        else:
            self.ended.set_result(None)
