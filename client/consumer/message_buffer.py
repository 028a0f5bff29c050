"""The messages of all assigned queues that wait for a handler, handed out queue by queue in turn.

Loop thread; any number of tasks may wait.
"""

from __future__ import annotations

import asyncio
from collections import deque

from skylarkmq.client.clock import fail_after
from skylarkmq.client.consumer.process_queue import ProcessQueue
from skylarkmq.client.consumer.received_message import ReceivedMessage
from skylarkmq.client.errors import ConsumerClosed
from skylarkmq.protocol.clock import Clock


class MessageBuffer:
    """Hands out; knows which queues have something."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Invariant: each queue once at most. It may hold queues that have nothing any more.
        self._turn: deque[ProcessQueue[ReceivedMessage]] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def offer(self, process_queue: ProcessQueue[ReceivedMessage]) -> None:
        """Say that the queue has messages to hand out; wakes those who wait."""
        if process_queue not in self._turn:
            self._turn.append(process_queue)
        self._wake(process_queue.ready_count)

    def take(self, max_count: int) -> list[ReceivedMessage]:
        """Return the next messages of one queue, none when nothing waits.

        Raises:
            ConsumerClosed: the consumer has stopped.
        """
        if self._closed:
            raise ConsumerClosed("the consumer has stopped")
        turn = self._turn
        for _ in range(len(turn)):
            process_queue = turn.popleft()
            taken = process_queue.take(max_count)
            if process_queue.ready_count and not process_queue.paused:
                turn.append(process_queue)
            if taken:
                return taken
        return []

    async def get(self, max_count: int) -> list[ReceivedMessage]:
        """Return the next messages of one queue, at least one; wait for it.

        Raises:
            ConsumerClosed: the consumer has stopped, or stops meanwhile.
        """
        while not (taken := self.take(max_count)):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake(1)  # the wake-up was for somebody who can use it
                raise
        return taken

    async def get_within(self, max_count: int, timeout_s: float | None) -> list[ReceivedMessage]:
        """Do as `get`; after `timeout_s` return what is there, maybe nothing."""
        if timeout_s is None:
            return await self.get(max_count)
        taken = self.take(max_count)
        if taken or timeout_s <= 0:
            return taken
        try:
            async with fail_after(self._clock, timeout_s):
                return await self.get(max_count)
        except TimeoutError:
            return self.take(max_count)

    def close(self) -> None:
        """End all waiting with ConsumerClosed."""
        self._closed = True
        self._wake(len(self._waiters))

    def _wake(self, count: int) -> None:
        while count and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
