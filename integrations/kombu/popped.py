"""A queue with priorities is popped: a message at a time, when one is wanted here.

Who pulls gets them by queue, and who takes many has old ones in hand when an urgent one comes. So
nothing is taken ahead: Kombu asks for a message only while the prefetch limit of its channel lets
it. What is in hand is hidden from others, for a minute at a time, until it is acknowledged. When
its process dies it comes again after a minute at most.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

from skylarkmq.client import IllegalState, NoPermission, ReceiptExpired
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.popped_message import PoppedMessage
from skylarkmq.client.sync import SimpleConsumer
from skylarkmq.protocol.message import MessageQueue

log = logging.getLogger(__name__)

HIDDEN_S: Final = 60.0
"""A message comes to another worker so long after its worker died."""
RENEW_S: Final = 20.0
AGAIN_S: Final = 1.0
"""The wait after no broker could be asked."""


class Delivery(Protocol):
    """One message in hand, however it came."""

    @property
    def queue(self) -> MessageQueue:
        """The queue that it lies in."""
        ...

    @property
    def reconsume_times(self) -> int:
        """How many times it was delivered before."""
        ...

    def ack(self) -> None:
        """It is done."""

    def dead_letter(self, reason: str | None = None) -> None:
        """It is given up."""


class PoppedDelivery:
    """One message that was popped. Any thread."""

    def __init__(self, feed: PoppedFeed, message: PoppedMessage) -> None:
        self._feed = feed
        self._message = message
        # A new handle is on its way, and the old one says nothing any more.
        self._lock = threading.Lock()

    @property
    def queue(self) -> MessageQueue:
        """The queue that it lies in."""
        return self._message.queue

    @property
    def reconsume_times(self) -> int:
        """How many times it was delivered before."""
        return self._message.reconsume_times

    def ack(self) -> None:
        """It is done."""
        self._settle(self._feed.consumer.ack)

    def dead_letter(self, reason: str | None = None) -> None:
        """It is a dead letter of the queue's group; the reason goes to the log alone."""
        log.info("%r is given up: %s", self._message, reason)
        self._settle(self._feed.consumer.dead_letter)

    def hide(self, seconds: float) -> None:
        """Hide it from others from now on; with 0 any worker may have it."""
        with self._lock:
            if self in self._feed.held:
                self._feed.consumer.change_invisible_duration(self._message, seconds)

    def _settle(self, settle: Callable[[PoppedMessage], Any]) -> None:
        """Hide it no longer, and tell the broker. That may be tried again after an error."""
        with self._lock:
            self._feed.held.pop(self, None)
            try:
                settle(self._message)
            except RocketMQError as error:
                if error.retryable:
                    raise
                log.warning("%r is done, and may come again: %s", self._message, error)


class PoppedFeed:
    """Takes the messages of one AMQP queue, each when it is wanted. Any thread.

    Attributes:
        held: what is in hand.
        is_wanted: a message is to be taken. Its taker sets it, and clears it when one has arrived,
            under a lock of his own: who asks again in between wants no second one.
    """

    def __init__(
        self,
        consumer: SimpleConsumer,
        arrived: Callable[[bytes, Delivery], None],
        failed: Callable[[], None],
    ) -> None:
        """Begin with nothing wanted.

        Args:
            consumer: started.
            failed: called when the queue is refused for good.
        """
        self.consumer = consumer
        self.held: dict[PoppedDelivery, None] = {}
        self._arrived = arrived
        self._failed = failed
        self.is_wanted = threading.Event()
        self._stopped = threading.Event()

    def run(self) -> None:
        """Take what is wanted, until `stop`. In a thread of its own."""
        while self.is_wanted.wait() and not self._stopped.is_set():
            try:
                messages = self.consumer.receive(1)
            except IllegalState:  # it has stopped, or the program ends
                return
            except RocketMQError as error:
                if not error.retryable or isinstance(error, NoPermission):
                    log.exception("a queue is consumed no more")
                    self._failed()
                    return
                log.debug("no broker can be asked: %s", error)
                self._stopped.wait(AGAIN_S)
                continue
            for message in messages:
                delivery = PoppedDelivery(self, message)
                self.held[delivery] = None
                self._arrived(message.body, delivery)

    def renew(self) -> None:
        """Hide what is in hand for longer, again and again, until `stop`. In a thread."""
        while not self._stopped.wait(RENEW_S):
            self._hide_all(HIDDEN_S)

    def stop(self) -> None:
        """End it: other workers have what is in hand."""
        self._stopped.set()
        self.is_wanted.set()
        self._hide_all(0)
        self.consumer.stop()

    def _hide_all(self, seconds: float) -> None:
        for delivery in list(self.held):
            try:
                delivery.hide(seconds)
            except ReceiptExpired as error:
                log.warning("a message has come to another worker meanwhile: %s", error)
                self.held.pop(delivery, None)
            except RocketMQError as error:
                log.debug("a message is not hidden for longer yet: %s", error)
