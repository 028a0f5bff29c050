# pyright: reportPrivateUsage=false
"""Running a handler: a fixed number of workers, ack by returning, retry by raising.

    returns            -> done (with `ack="manual"`: only what the handler acknowledged itself)
    raises             -> handed back for another try (code 36, or here for an ordered consumer)
    not even that      -> handed out here again after a while
    cancelled          -> handed out again, or left to the next member

The workers are the only tasks; a message never gets one of its own. An ordered consumer has the
same workers over another buffer (orderly.py).

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/consumer/
ConsumeMessageConcurrentlyService.java (processConsumeResult, submitConsumeRequestLater)
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from math import inf
from types import CoroutineType
from typing import Any, Final

from skylarkmq.client.consumer.config import ConsumerConfig
from skylarkmq.client.consumer.counters import ConsumerCounters
from skylarkmq.client.consumer.message_buffer import MessageBuffer
from skylarkmq.client.errors import ConsumerClosed
from skylarkmq.client.observe.hooks import ConsumeContext, each
from skylarkmq.client.received_message import ConsumeOutcome, ProcessQueue, ReceivedMessage
from skylarkmq.client.services import Services
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.remoting.stream import CLOSE_TIMEOUT_S
from skylarkmq.remoting.waiting import sleep, within

log = logging.getLogger(__name__)

Handler = Callable[[ReceivedMessage], Awaitable[object] | object]
"""Gets one message; an async function, or a quick plain one."""
BatchHandler = Callable[[list[ReceivedMessage]], Awaitable[object] | object]
"""Gets messages of one queue: the handler of a `run` with `max_batch` above 1."""

SLOW_CHECKS: Final = 10
"""Checks in a timeout: a line comes a tenth of it late at most."""
SLOW_CHECK_MAX_S: Final = 15.0

acting_task: ContextVar[asyncio.Task[Any] | None] = ContextVar("acting_task", default=None)
"""In a thread that a handler runs in: the worker that waits for it."""


class Workers:
    """The workers of one `run`. Loop thread."""

    def __init__(
        self,
        handler: Handler | BatchHandler,
        buffer: MessageBuffer,
        services: Services,
        config: ConsumerConfig,
        counters: ConsumerCounters,
        *,
        concurrency: int,
        max_batch: int,
    ) -> None:
        self._handler = handler
        self._buffer = buffer
        self._services = services
        self._config = config
        self._counters = counters
        self._max_batch = max_batch
        self._acks = config.ack == "auto"
        self._tasks = [
            asyncio.create_task(self._work(), name=f"skylarkmq-handler-{number}")
            for number in range(concurrency)
        ]

    @property
    def concurrency(self) -> int:
        """How many handlers run at the same time."""
        return len(self._tasks)

    async def wait(self) -> None:
        """Wait until the buffer closes and every worker has ended; cancelled, cancel them."""
        try:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for task in done:
            if not task.cancelled():
                task.result()

    def has(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether the task is one of the workers."""
        return task in self._tasks

    def cancel(self, caller: asyncio.Task[Any] | None) -> None:
        """Cancel all handlers but the caller's."""
        for task in self._tasks:
            if task is not caller:
                task.cancel()

    async def drain(self, timeout_s: float, caller: asyncio.Task[Any] | None) -> None:
        """Let the handlers at work end; cancel those that take longer than `timeout_s`.

        The buffer is closed, so that no worker begins another message. A handler that goes on
        after its cancellation is left alone: its messages count as not done.

        Args:
            caller: who wants this; when it is a handler it is neither waited for nor cancelled.
        """
        others = [task for task in self._tasks if task is not caller]
        if not await self._ended(others, timeout_s):
            log.warning("handlers were still at work after %g s, cancelled", timeout_s)
        for task in others:
            task.cancel()
        if not await self._ended(others, CLOSE_TIMEOUT_S):
            log.error("handlers go on after their cancellation; they are not waited for")

    async def handle(
        self, messages: Sequence[ReceivedMessage], began_s: float
    ) -> tuple[ConsumeOutcome, BaseException | None]:
        """Call the handler in the task of the caller, with one message or several of one queue.

        `began_s` is now, monotonic.
        Return what became of the messages, and the handler's error.

        Raises:
            asyncio.CancelledError: this task was cancelled; the messages are handed out again.
        """
        handler: Callable[[Any], object] = self._handler  # of the kind that max_batch says
        hooks = self._services.hooks
        first = messages[0]
        context = None
        if hooks:
            context = self._context(messages)
            each(hooks, lambda hook: hook.before_consume(context))
        outcome: ConsumeOutcome = "cancelled"
        failure: BaseException | None = None
        try:
            try:
                result = handler(first if self._max_batch == 1 else messages)
                # A look at the type alone tells most of them; isawaitable takes six times as long.
                if type(result) is CoroutineType or (
                    result is not None and inspect.isawaitable(result)
                ):
                    await result
                if self._acks:
                    if self._max_batch == 1:
                        first._finish()
                    else:
                        self._buffer.settle(messages)
                outcome = first._outcome or "ok"
            except (Exception, asyncio.CancelledError) as error:
                failure = error
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                    raise
                await self._failed(messages, error)
                outcome = messages[-1]._outcome or "retry"
        except BaseException as error:
            # Wherever that was: also while the handler's failure was being answered.
            failure = failure or error
            self._put_back(messages)
            raise
        finally:
            self._counters.handled(first._process_queue, len(messages), began_s, outcome == "ok")
            if context is not None:
                seen = context, outcome, failure
                each(hooks[::-1], lambda hook: hook.after_consume(*seen))
        return outcome, failure

    async def _work(self) -> None:
        buffer, max_batch, acks_first = self._buffer, self._max_batch, self._config.ack == "none"
        ordered = buffer.ordered
        while True:
            try:
                messages = buffer.take(max_batch) or await buffer.get(max_batch)
            except ConsumerClosed:
                return
            if acks_first:
                for message in messages:
                    message._finish()
            if not ordered:
                await self.handle(messages, buffer.taken_s)
                continue
            queue = messages[0]._process_queue.queue
            buffer.begin(queue)
            try:
                await self.handle(messages, buffer.taken_s)
            finally:
                buffer.end(queue)

    async def _failed(self, messages: Sequence[ReceivedMessage], error: BaseException) -> None:
        """Hand back what the handler has not settled before it failed."""
        log.warning("the handler failed on %r", messages[0], exc_info=error)
        for message in messages:
            await message._retry(error)

    def _put_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Let messages be handed out again."""
        for message in messages:
            if message._outcome is None and message._process_queue.put_back(message):
                self._buffer.offer(message._process_queue)

    def _context(self, messages: Sequence[ReceivedMessage]) -> ConsumeContext:
        first = messages[0]
        return ConsumeContext(
            self._config.group, first.queue, messages, self._services.clock.monotonic()
        )

    async def _ended(self, tasks: Sequence[asyncio.Task[None]], timeout_s: float) -> bool:
        """Wait for the tasks at most that long; False when that was not enough."""
        if not tasks:
            return True
        ended = asyncio.gather(*tasks, return_exceptions=True)
        try:
            await within(self._services.clock, timeout_s, asyncio.shield(ended))
        except TimeoutError:
            return False
        return True


async def watch_slow_handlers(
    clock: Clock,
    assigned: Mapping[MessageQueue, ProcessQueue],
    consume_timeout_s: float,
    group: str,
) -> None:
    """Log a line, once, for messages whose handler takes longer than `consume_timeout_s`.

    The message stays with its handler, so it is not handled twice. The committed offset of its
    queue waits for it, and pulling stops when `max_span` is reached. Runs until it is cancelled.

    Unlike RocketMQ: the Java client (DefaultMQPushConsumerImpl, cleanExpiredMsg of
    ProcessQueue.java) sends a message back after 15 minutes, so that two handlers work on it.
    """
    while True:
        await sleep(clock, min(consume_timeout_s / SLOW_CHECKS, SLOW_CHECK_MAX_S))
        now_s = clock.monotonic()
        for queue, process_queue in assigned.items():
            overdue = [each for each in process_queue.held if -inf < each._overdue_s <= now_s]
            for message in overdue:
                message._overdue_s = -inf
            if overdue:
                log.warning(
                    "group %s: %d messages of %s have been with their handlers for longer than "
                    "consume_timeout, the first at offset %d; they stay there, and the committed "
                    "offset waits",
                    group, len(overdue), queue, min(each.queue_offset for each in overdue),
                )  # fmt: skip
