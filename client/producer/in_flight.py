"""How much a producer has under way, and waiting for room or for the end of it. Loop thread."""

from __future__ import annotations

import asyncio
from collections import deque

from skylarkmq.client.errors import MessageTooLarge


class _Flush:
    """Somebody who waits for the sends that had begun when he came."""

    __slots__ = ("generation", "left_count", "waiter")

    def __init__(self, generation: int, count: int) -> None:
        self.generation = generation
        self.left_count = count
        self.waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class InFlight:
    """Bounds messages under way by count and by bytes of their bodies.

    A send keeps the `generation` in which it entered; a flush begins a new one and waits for the
    older ones only, so it ends however many sends begin after it.
    """

    def __init__(self, count_max: int, size_max: int) -> None:
        self.count = 0
        self.size = 0
        self.generation = 0
        self.count_max = count_max
        self.size_max = size_max
        self.room_waiters: deque[asyncio.Future[None]] = deque()
        """Who waits for room; read-only outside."""
        self.flushes: list[_Flush] = []
        """Who waits for the end of what is under way; read-only outside."""

    def has_room(self, size: int, count: int = 0) -> bool:
        """Return whether a message may enter now, besides `count` others; `size` is that of all."""
        return self.count + count < self.count_max and self.size + size <= self.size_max

    async def room(self, size: int) -> None:
        """Wait until a message of `size` bytes may enter; it has to enter before the next await.

        Raises:
            MessageTooLarge: it never may. It would take the turns of those who may.
        """
        if size > self.size_max:
            raise MessageTooLarge(size, self.size_max, hint="That is all of max_in_flight_bytes")
        while not self.has_room(size):
            waiter = asyncio.get_running_loop().create_future()
            self.room_waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake_one()  # the wake-up was for somebody who can use it
                raise
            if self.has_room(0):
                self._wake_one()  # one end may make room for several

    async def idle(self) -> None:
        """Wait until nothing that is under way now is so any more."""
        if not self.count:
            return
        flush = _Flush(self.generation, self.count)
        self.generation += 1
        self.flushes.append(flush)
        try:
            await flush.waiter
        finally:
            if flush in self.flushes:
                self.flushes.remove(flush)

    def enter(self, size: int) -> int:
        """Count a message in; return the generation that it leaves with."""
        self.count += 1
        self.size += size
        return self.generation

    def leave(self, size: int, generation: int) -> None:
        """Count a message out and wake who waits for that."""
        self.count -= 1
        self.size -= size
        self.tell(generation)

    def tell(self, generation: int) -> None:
        """Wake who waits for a message of that generation that was counted out."""
        if self.room_waiters:
            self._wake_one()
        if self.flushes:
            self._tell_flushes(generation)

    def _tell_flushes(self, generation: int) -> None:
        for flush in self.flushes:
            if generation <= flush.generation:
                flush.left_count -= 1
                if not flush.left_count and not flush.waiter.done():
                    flush.waiter.set_result(None)
        self.flushes = [flush for flush in self.flushes if flush.left_count]

    def _wake_one(self) -> None:
        while self.room_waiters:
            waiter = self.room_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
