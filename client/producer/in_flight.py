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


class _Waiter:
    """Somebody who waits for room."""

    __slots__ = ("generation", "granted", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.generation = 0
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()


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
        self.room_waiters: deque[_Waiter] = deque()
        """Who waits for room; read-only outside."""
        self.flushes: list[_Flush] = []
        """Who waits for the end of what is under way; read-only outside."""

    def has_room(self, size: int, count: int = 0) -> bool:
        """Return whether a message may enter now, besides `count` others; `size` is that of all.

        Not before those who wait: small ones would pass a large one by for ever.
        """
        return not self.room_waiters and self._fits(size, count)

    async def room(self, size: int) -> None:
        """Wait until a message of `size` bytes may enter; it has to enter before the next await.

        Room goes to those who wait in the order of their calls.

        Raises:
            MessageTooLarge: it never may. It would take the turns of those who may.
        """
        if size > self.size_max:
            raise MessageTooLarge(size, self.size_max, hint="That is all of max_in_flight_bytes")
        if self.has_room(size):
            return
        waiter = _Waiter(size)
        self.room_waiters.append(waiter)
        try:
            await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.cancelled():
                self.room_waiters.remove(waiter)
                self._grant()
            else:
                self.leave(size, waiter.generation)  # its room is for somebody who can use it
            raise
        # Its place was kept; the message itself takes it now.
        self.count -= 1
        self.size -= size
        self._tell_flushes(waiter.generation)
        if self.room_waiters:  # should no message come, or a smaller one
            asyncio.get_running_loop().call_soon(self._grant)

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
            self._grant()
        if self.flushes:
            self._tell_flushes(generation)

    def _tell_flushes(self, generation: int) -> None:
        for flush in self.flushes:
            if generation <= flush.generation:
                flush.left_count -= 1
                if not flush.left_count and not flush.waiter.done():
                    flush.waiter.set_result(None)
        self.flushes = [flush for flush in self.flushes if flush.left_count]

    def _fits(self, size: int, count: int = 0) -> bool:
        return self.count + count < self.count_max and self.size + size <= self.size_max

    def _grant(self) -> None:
        """Keep room for those who have waited longest, as far as there is any."""
        waiters = self.room_waiters
        while waiters and not waiters[0].granted.done() and self._fits(waiters[0].size):
            waiter = waiters.popleft()
            waiter.generation = self.enter(waiter.size)
            waiter.granted.set_result(None)
