"""How much a producer has under way, and waiting for room or for the end of it. Loop thread."""

from __future__ import annotations

import asyncio
from collections import deque


class InFlight:
    """Bounds messages under way by count and by bytes of their bodies."""

    def __init__(self, count_max: int, size_max: int) -> None:
        self.count = 0
        self.size = 0
        self._count_max = count_max
        self._size_max = size_max
        self._room_waiters: deque[asyncio.Future[None]] = deque()
        self._idle_waiters: list[asyncio.Future[None]] = []

    def has_room(self, size: int) -> bool:
        """Return whether a message of `size` bytes may enter now."""
        return self.count < self._count_max and self.size + size <= self._size_max

    async def room(self, size: int) -> None:
        """Wait until a message of `size` bytes may enter; it has to enter before the next await."""
        while not self.has_room(size):
            waiter = asyncio.get_running_loop().create_future()
            self._room_waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake_one()  # the wake-up was for somebody who can use it
                raise
            if self.has_room(0):
                self._wake_one()  # one end may make room for several

    async def idle(self) -> None:
        """Wait until nothing is under way."""
        while self.count:
            waiter = asyncio.get_running_loop().create_future()
            self._idle_waiters.append(waiter)
            await waiter

    def enter(self, size: int) -> None:
        """Count a message in."""
        self.count += 1
        self.size += size

    def leave(self, size: int) -> None:
        """Count a message out and wake who waits for that."""
        self.count -= 1
        self.size -= size
        if self._room_waiters:
            self._wake_one()
        if not self.count and self._idle_waiters:
            waiters, self._idle_waiters = self._idle_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _wake_one(self) -> None:
        while self._room_waiters:
            waiter = self._room_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
