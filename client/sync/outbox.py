# pyright: reportPrivateUsage=false
"""Messages on their way from threads to the loop thread: a burst of them wakes the loop once.

    put         in the caller's thread: a message that nothing but a lack of room could refuse, and
                for which there is room, joins the burst; others take the way that waits
    work_off    in the loop thread: starts the sends of a burst, in their order

A message that found room keeps it, although the loop thread hears of it later. So what is in flight
may exceed the producer's limits by as many messages as other threads begin at the same moment.
"""

from __future__ import annotations

import concurrent.futures
import threading

from skylarkmq.client.producer.producer import Producer
from skylarkmq.client.send_result import SendResult
from skylarkmq.client.sync.portal import Handed, Portal
from skylarkmq.protocol.message import Message


class Outbox:
    """The messages that threads have put for one asynchronous producer."""

    def __init__(self, portal: Portal, producer: Producer) -> None:
        self.producer = producer
        self._portal = portal
        self._lock = threading.Lock()
        self._burst: list[tuple[Handed[SendResult], Message, float | None]] = []
        self._burst_size = 0
        # Of the burst that the loop thread works off: what has not begun yet.
        self._left_count = 0
        self._left_size = 0

    def put(
        self, message: Message, timeout_s: float | None
    ) -> concurrent.futures.Future[SendResult] | None:
        """Let the message be sent; None when the loop thread has to look at it first.

        Raises:
            IllegalState: the client has stopped.
        """
        sender = self.producer._sender
        if sender is None or not sender.is_ordinary(message):
            return None
        in_flight, size = sender.pipeline.in_flight, len(message.body)
        handed: Handed[SendResult] = Handed()
        with self._lock:
            count = len(self._burst) + self._left_count
            if not in_flight.has_room(size + self._burst_size + self._left_size, count):
                return None
            # An interruption may come between any two steps: first the wake-up, then the message.
            if not self._burst:
                handed.loop = self._portal.post(self._work_off)
            else:
                handed.loop = self._burst[0][0].loop
            self._burst_size += size
            self._burst.append((handed, message, timeout_s))
        return handed.outer

    def _work_off(self) -> None:
        with self._lock:
            burst, self._burst, self._burst_size = self._burst, [], 0
            self._left_count = len(burst)
            self._left_size = sum(len(message.body) for _, message, _ in burst)
        for handed, message, timeout_s in burst:
            try:
                handed.begun(self.producer._start_admitted(message, timeout_s))
            except Exception as error:  # what a call that waits would raise
                handed.failed(error)
            self._left_count -= 1
            self._left_size -= len(message.body)
