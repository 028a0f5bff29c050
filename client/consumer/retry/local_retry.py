"""Trying a message again here, after a while, without a broker.

    an ordered consumer      the queue waits with the message: nothing behind it is handed out
    a broadcasting consumer  the others go on; when the tries are used up the message is dropped
    any, when no broker takes a message back

A timer a waiting message; their number is bounded by the prefetch limit. What waits counts as
handed out, so it holds the offset.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/consumer/
ConsumeMessageOrderlyService.java (processConsumeResult, checkReconsumeTimes)
Unlike RocketMQ: a message that a broadcasting consumer failed on is tried again before it is
dropped.
"""

from __future__ import annotations

import logging
from typing import Final

from skylarkmq.client.config import SUSPEND_S
from skylarkmq.client.consumer.message_buffer import MessageBuffer
from skylarkmq.client.consumer.received_message import ReceivedMessage, Returner
from skylarkmq.client.consumer.retry.retry_delay import GROWING, RetryDelay, RetryDelays
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.namespace import Namespace
from skylarkmq.common.clock import Clock, TimerHandle

log = logging.getLogger(__name__)

LOCAL_RETRY_S: Final = 5.0
"""The wait when a message could not even be given up."""
BROADCAST_DELAY_MAX_S: Final = 60.0
"""The growing delay of a broadcasting consumer ends here, because the message holds its offset."""


class LocalRetries:
    """Messages of one consumer that wait here for their next try. Loop thread."""

    def __init__(self, clock: Clock, buffer: MessageBuffer) -> None:
        self._clock = clock
        self._buffer = buffer
        self._timers: set[TimerHandle] = set()

    def later(self, message: ReceivedMessage, delay_s: float) -> None:
        """Hand the message out again after `delay_s`, unless its queue is gone by then."""
        following = message.again()

        def again() -> None:
            self._timers.discard(timer)
            process_queue = following.process_queue
            if process_queue.put_back(following):
                self._buffer.offer(process_queue)

        timer = self._clock.call_at(self._clock.monotonic() + delay_s, again)
        self._timers.add(timer)

    def stop(self) -> None:
        """Forget all that wait; they are not acknowledged, so the group gets them again."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()


class LocalReturner:
    """Tries again here; implements `Returner`."""

    def __init__(
        self,
        retries: LocalRetries,
        dead_letters: Returner,
        tries_max: int | None,
        *,
        orderly: bool,
        broadcasting: bool,
        delays: RetryDelays,
    ) -> None:
        """Take the parts.

        Args:
            delays: before the tries of what a handler failed on.
            dead_letters: makes dead letters of what is given up.
            tries_max: how often a message is tried again; None is without end.
        """
        self._retries = retries
        self._dead_letters = dead_letters
        self._tries_max = tries_max
        self._orderly = orderly
        self._broadcasting = broadcasting
        self._delays = delays

    @property
    def namespace(self) -> Namespace:
        return self._dead_letters.namespace

    @property
    def clock_s(self) -> float:
        return self._dead_letters.clock_s

    async def give_back(
        self, message: ReceivedMessage, delay: RetryDelay, reason: str | None = None
    ) -> None:
        tries = message.reconsume_times
        if self._tries_max is not None and tries >= self._tries_max:
            await self.give_up(message, reason)
            return
        wait_s = delay.seconds(tries, SUSPEND_S if self._orderly else None)
        if not self._orderly and delay == GROWING:
            wait_s = min(wait_s, BROADCAST_DELAY_MAX_S)
        self._retries.later(message, wait_s)

    async def retry(self, message: ReceivedMessage, reason: str | None) -> None:
        try:
            await self.give_back(message, self._delays.after(message.reconsume_times), reason)
        except RocketMQError as error:
            log.warning("%r could not be made a dead letter, retried here: %s", message, error)
            self._retries.later(message, LOCAL_RETRY_S)

    async def give_up(self, message: ReceivedMessage, reason: str | None) -> None:
        if self._broadcasting:
            log.error("%r is given up%s", message, f": {reason}" if reason else "")
            message.finish("dead_letter")
        else:
            await self._dead_letters.give_up(message, reason)
