"""What every object of the facade stands on: its asynchronous twin, made again after a fork."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, Generic, Protocol, TypeVar

from skylarkmq.client.errors import IllegalState
from skylarkmq.client.sync.portal import Portal


class Startable(Protocol):
    """An object of the SDK that is started."""

    async def start(self) -> None:
        """Start; nothing happens when it is started."""
        ...


A = TypeVar("A", bound=Startable)
T = TypeVar("T")


in_callback: ContextVar[bool] = ContextVar("skylarkmq_in_callback", default=False)
"""Set in threads that run callbacks of an object that may be starting at the moment."""


class Inner(Generic[A]):
    """Holds the asynchronous object of one facade object. Any thread."""

    def __init__(
        self,
        portal: Portal,
        make: Callable[[], A],
        when_stopped: Callable[[str], IllegalState] = IllegalState,
    ) -> None:
        """Make the object now; an argument that is no good is refused here and not at `start`."""
        self.portal = portal
        self._when_stopped = when_stopped
        self._make = make
        self._object = make()
        self._starting = asyncio.Lock()
        self._generation = portal.generation
        self._started = False
        self._start_again = False
        self._stopped = False

    def current(self) -> A:
        """Return the object of this process, made anew after a fork; not started here."""
        portal = self.portal
        if self._generation != portal.generation:
            with portal.lock:
                if self._generation != portal.generation:
                    portal.keep(self._object)
                    self._object = self._make()
                    self._starting = asyncio.Lock()
                    self._start_again = self._started and not self._stopped
                    self._generation = portal.generation
        return self._object

    def live(self) -> A:
        """Return it, started if it was started before a fork."""
        if self._stopped and self.portal.closed:
            raise self._when_stopped("it has stopped, and its client is closed")
        current = self.current()
        if self._start_again and not in_callback.get():
            self.portal.run(self._start)
            self._start_again = False
        return current

    def start(self) -> None:
        """Start it; threads that do so at the same time wait for the same end."""
        self.live()
        self.portal.run(self._start)
        self._started = True

    def end(self, work: Callable[[A], Coroutine[Any, Any, None]]) -> None:
        """Stop it by `work`; in a child that has not used it there is nothing to stop."""
        self._stopped = True
        portal = self.portal
        if self._generation == portal.generation and portal.begun and not portal.closed:
            try:
                portal.run(lambda: work(self._object))
            except IllegalState:
                if not portal.closed:
                    raise
                # Another thread has closed the client meanwhile, and all on it with that.

    @property
    def stopped(self) -> bool:
        """Whether its end was asked for."""
        return self._stopped

    def run(
        self,
        work: Callable[[A], Coroutine[Any, Any, T]],
        take_back: Callable[[A, T], object] | None = None,
    ) -> T:
        """Run a coroutine of it, and return its result or raise its error.

        Args:
            take_back: see `Portal.run`.
        """
        current = self.live()
        if take_back is None:
            return self.portal.run(lambda: work(current))
        return self.portal.run(lambda: work(current), lambda result: take_back(current, result))

    def call(self, work: Callable[[A], T]) -> T:
        """Call a plain method of it in the loop thread."""
        current = self.live()
        return self.portal.call(lambda: work(current))

    def future(self, work: Callable[[A], asyncio.Future[T]]) -> concurrent.futures.Future[T]:
        """Start something of it whose end is waited for elsewhere."""
        current = self.live()
        return self.portal.future(lambda: work(current))

    async def _start(self) -> None:
        async with self._starting:
            await self._object.start()
