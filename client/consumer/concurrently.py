"""Running a handler: a fixed number of workers, ack by returning, retry by raising.

    returns            -> done
    raises             -> handed back to the broker for another try (code 36)
    not even that      -> handed out here again after LOCAL_RETRY_S

The workers are the only tasks; a message never gets one of its own.
Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/consumer/
ConsumeMessageConcurrentlyService.java (processConsumeResult, submitConsumeRequestLater)
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from skylarkmq.client.clock import within
from skylarkmq.client.consumer.message_buffer import MessageBuffer
from skylarkmq.client.consumer.received_message import ReceivedMessage
from skylarkmq.client.errors import ConsumerClosed, RocketMQError
from skylarkmq.protocol.clock import Clock, TimerHandle

log = logging.getLogger(__name__)

Handler = Callable[[Any], Awaitable[object] | object]
"""Gets one message, or a list of them with `max_batch` above 1."""

LOCAL_RETRY_S: Final = 5.0


class Workers:
    """The workers of one `run`. Loop thread."""

    def __init__(
        self,
        handler: Handler,
        buffer: MessageBuffer,
        clock: Clock,
        *,
        concurrency: int,
        max_batch: int,
    ) -> None:
        self._handler = handler
        self._buffer = buffer
        self._clock = clock
        self._max_batch = max_batch
        self._timers: set[TimerHandle] = set()
        self._tasks = [
            asyncio.create_task(self._work(), name=f"skylarkmq-handler-{number}")
            for number in range(concurrency)
        ]

    async def wait(self) -> None:
        """Wait until the buffer closes and every worker has ended; cancelled, cancel them."""
        try:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            await self._end()
        for task in done:
            if not task.cancelled():
                task.result()

    async def drain(self, timeout_s: float) -> None:
        """Let the handlers at work end; cancel those that take longer than `timeout_s`.

        The buffer is closed, so that no worker begins another message.
        """
        current = asyncio.current_task()  # a handler may stop its own consumer
        others = [task for task in self._tasks if task is not current]
        try:
            ended = asyncio.gather(*others, return_exceptions=True)
            await within(self._clock, timeout_s, asyncio.shield(ended))
        except TimeoutError:
            log.warning("handlers were still at work after %g s, cancelled", timeout_s)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _end(self) -> None:
        for timer in self._timers:
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            try:
                messages = await self._buffer.get(self._max_batch)
            except ConsumerClosed:
                return
            try:
                outcome = self._handler(messages[0] if self._max_batch == 1 else messages)
                if inspect.isawaitable(outcome):
                    await outcome
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    self._put_back(messages)
                    raise
                await self._give_back(messages)
            except Exception as error:
                log.warning("the handler failed on %r", messages[0], exc_info=error)
                await self._give_back(messages)
            else:
                for message in messages:
                    await message.ack()

    async def _give_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Hand back what the handler has not acknowledged before it failed."""
        for message in messages:
            if not message.process_queue.holds(message.queue_offset):
                continue
            try:
                await message.nack()
            except RocketMQError as error:
                log.warning("%r could not be handed back, retried here: %s", message, error)
                self._retry_here(message)

    def _put_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Let messages be handed out again."""
        for message in messages:
            if message.process_queue.put_back(message):
                self._buffer.offer(message.process_queue)

    def _retry_here(self, message: ReceivedMessage) -> None:
        def again() -> None:
            self._timers.discard(timer)
            self._put_back([message])

        timer = self._clock.call_at(self._clock.monotonic() + LOCAL_RETRY_S, again)
        self._timers.add(timer)
