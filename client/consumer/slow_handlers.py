"""A line in the log for messages whose handler takes longer than `consume_timeout`.

Only that: the message stays with its handler and its lease goes on, so nothing runs twice. The
committed offset of its queue waits for it, and pulling stops when `max_span` is reached.

Unlike RocketMQ: the Java client (DefaultMQPushConsumerImpl, cleanExpiredMsg of ProcessQueue.java)
sends a message back after 15 minutes, so that two handlers work on it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import inf
from typing import Final

from skylarkmq.client.clock import sleep
from skylarkmq.client.consumer.process_queue import ProcessQueue
from skylarkmq.client.consumer.received_message import ReceivedMessage
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.message import MessageQueue

log = logging.getLogger(__name__)

LOOKS: Final = 10
"""How often a timeout's length is looked at: a line comes a tenth of it late at most."""
INTERVAL_MAX_S: Final = 15.0


class SlowHandlers:
    """Looks at what is handed out now and then. Loop thread."""

    def __init__(
        self,
        clock: Clock,
        assigned: Mapping[MessageQueue, ProcessQueue[ReceivedMessage]],
        consume_timeout_s: float,
        group: str,
    ) -> None:
        self._clock = clock
        self._assigned = assigned
        self._interval_s = min(consume_timeout_s / LOOKS, INTERVAL_MAX_S)
        self._group = group

    async def run(self) -> None:
        """Look for ever; the consumer cancels it."""
        while True:
            await sleep(self._clock, self._interval_s)
            self.look()

    def look(self) -> None:
        """Name what is overdue, each message once: a line a queue."""
        now_s = self._clock.monotonic()
        for queue, process_queue in self._assigned.items():
            overdue = [each for each in process_queue.held if -inf < each.overdue_s <= now_s]
            for message in overdue:
                message.overdue_s = -inf
            if overdue:
                log.warning(
                    "group %s: %d messages of %s have been with their handlers for longer than "
                    "consume_timeout, the first at offset %d; they stay there, and the committed "
                    "offset waits",
                    self._group, len(overdue), queue, min(each.queue_offset for each in overdue),
                )  # fmt: skip
