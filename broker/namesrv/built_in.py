"""The name server in a broker's process, and the broker's way to it.

    broker's loop   tell(work, done) ---in order---> work(name server)   name server's loop
                    done(result, error) <-----------

A server has it on a thread and a loop of its own. So routes and registrations are answered while a
disk stalls: the broker's loop may then stand in a write, and nobody can take that call back. The
tables belong to the name server's loop alone. What the two hand to one another is not changed
afterwards. A test's broker has its name server on its own loop, where all this is a plain call.

What was told before a request was answered counts for the next question of whoever got the answer:
a loop of asyncio's own kind does what it was handed before it reads what arrived after that. uvloop
reads sockets first, so it is not used here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.broker.namesrv.controller import NamesrvController
from skylarkmq.broker.net.loop_thread import LoopThread
from skylarkmq.common.clock import Clock
from skylarkmq.common.worker import Done

T = TypeVar("T")

THREAD_NAME: Final = "skylarkmq-namesrv"


def _nobody(_result: object, _error: BaseException | None) -> None:
    """Nobody wants to know."""


class BuiltInNamesrv:
    """The name server of a broker's process. Broker's loop.

    Attributes:
        controller: the name server; its tables are for its own loop.
        has_failed: its thread has ended by itself.
    """

    def __init__(
        self,
        make: Callable[[Clock], NamesrvController],
        clock: Clock | None,
        on_failure: Callable[[], object] = lambda: None,
    ) -> None:
        """Make it; `start` serves.

        Args:
            make: makes the name server, with the clock of its loop.
            clock: that of the broker's loop, on which the name server is then; None: it gets a
                thread, and with it a loop and a clock.
            on_failure: called on the broker's loop when the thread has ended by itself.
        """
        self.has_failed = False
        self._on_failure = on_failure
        self._thread: LoopThread | None = None
        if clock is None:
            self._broker_loop = asyncio.get_running_loop()
            self._thread = LoopThread(THREAD_NAME, self._thread_failed)
            clock = SystemClock(self._thread.loop)
        self.controller = make(clock)

    async def start(self) -> None:
        """Serve.

        Raises:
            As `NamesrvController.start`.
        """
        await self._there(self.controller.start())

    async def stop(self, *, cut: str = "") -> None:
        """Serve no more; may be called again.

        Args:
            cut: cut every connection first, for this reason.
        """
        if not self.has_failed:
            await self._there(self._end(cut))
        if self._thread is not None:
            thread, self._thread = self._thread, None
            await thread.stop()

    async def _end(self, cut: str) -> None:
        if cut:
            self.controller.abort(cut)
        await self.controller.stop()

    def tell(self, work: Callable[[NamesrvController], T], done: Done[T] = _nobody) -> None:
        """Have `work` done on the name server's loop, after all that was told before.

        Args:
            done: called on the broker's loop with what `work` returned, or raised; where both have
                one loop, before this returns.
        """
        thread = self._thread
        if thread is None:
            done(*self._outcome(work))
            return

        def there() -> None:
            outcome = self._outcome(work)
            with suppress(RuntimeError):  # the broker's loop has ended
                self._broker_loop.call_soon_threadsafe(done, *outcome)

        try:
            thread.loop.call_soon_threadsafe(there)
        except RuntimeError as error:  # the thread has ended
            done(None, error)

    def _outcome(
        self, work: Callable[[NamesrvController], T]
    ) -> tuple[T | None, BaseException | None]:
        try:
            return work(self.controller), None
        except Exception as error:
            return None, error

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        return await (work if self._thread is None else self._thread.call(work))

    def _thread_failed(self) -> None:
        self.has_failed = True
        with suppress(RuntimeError):  # the broker's loop has ended
            self._broker_loop.call_soon_threadsafe(self._on_failure)
