# pyright: reportPrivateUsage=false
"""The messages of all assigned queues that wait for a handler, handed out queue by queue in turn.

An ordered consumer's buffer (`orderly.py`) hands out of a queue only what `_may_give` allows.
Loop thread; any number of tasks may wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from math import inf

from skylarkmq.client.errors import ConsumerClosed, RocketMQError
from skylarkmq.client.received_message import ProcessQueue, ReceivedMessage
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.remoting.waiting import fail_after


class MessageBuffer:
    """Hands out; knows which queues have something."""

    ordered = False
    """It asks `_may_give` before it hands out, and is told by `begin` and `end` of the handlers."""

    def __init__(self, clock: Clock, consume_timeout_s: float = inf) -> None:
        """Take the clock, and how long a handler may have a message before that is worth a line."""
        self._clock = clock
        self._now_s = clock.monotonic
        self._consume_timeout_s = consume_timeout_s
        # Invariant: each queue once at most. It may hold queues that have nothing any more.
        self._turn: deque[ProcessQueue] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self.taken_s = 0.0
        """When messages were taken last, monotonic."""
        self._closed = False
        self._refusal: RocketMQError | None = None  # until somebody has raised it

    def offer(self, process_queue: ProcessQueue) -> None:
        """Say that the queue has messages to hand out; wakes those who wait."""
        if process_queue not in self._turn:
            self._turn.append(process_queue)
        self._wake(process_queue.ready_count)

    def take(self, max_count: int) -> list[ReceivedMessage]:
        """Return the next messages of one queue, none when nothing waits.

        Raises:
            ConsumerClosed: the consumer has stopped.
            RocketMQError: what `refuse` was told; once.
        """
        if self._closed:
            raise ConsumerClosed("the consumer has stopped")
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise refusal
        turn, ordered = self._turn, self.ordered
        while turn:
            process_queue = turn.popleft()
            if ordered and not self._may_give(process_queue):
                continue  # offered again when it may
            taken = process_queue.take(max_count)
            if not taken:
                continue  # it is empty, or offered again when it goes on
            if process_queue._ready:
                turn.append(process_queue)
            self.taken_s = self._now_s()
            overdue_s = self.taken_s + self._consume_timeout_s
            for message in taken:
                message._overdue_s = overdue_s
            return taken
        return []

    def begin(self, queue: MessageQueue) -> None:
        """A handler has begun with messages of the queue."""

    def end(self, queue: MessageQueue) -> None:
        """It has ended."""

    def settle(self, messages: Sequence[ReceivedMessage]) -> None:
        """Acknowledge messages of one queue, as far as their handler has left that open."""
        messages[0]._process_queue.done_all(messages)

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
        if taken:
            return taken
        if timeout_s <= 0:
            await asyncio.sleep(0)  # who asks in a loop must not keep others from bringing them
            return self.take(max_count)
        try:
            async with fail_after(self._clock, timeout_s):
                return await self.get(max_count)
        except TimeoutError:
            return self.take(max_count)

    def refuse(self, error: RocketMQError | None) -> None:
        """Have the next one who asks, or who waits now, raise an error: no message will come.

        None: messages may come again.
        """
        self._refusal = error
        if error is not None:
            self._wake(1)

    def close(self) -> None:
        """End all waiting with ConsumerClosed."""
        self._closed = True
        self._wake(len(self._waiters))

    def _may_give(self, process_queue: ProcessQueue) -> bool:
        return True

    def _wake(self, count: int) -> None:
        while count and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
