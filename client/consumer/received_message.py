"""A message as a consumer gets it, with its acknowledgement.

    handed out -> ack          done; the group's offset moves once all before it are done as well
               -> nack         the group gets it again after a while: from the broker, or for an
                               ordered or broadcasting consumer here
               -> dead_letter  given up
               -> nothing      stays this member's however long it takes, and holds the offset

Nothing is ever handed out a second time while the first one is at work with it: RocketMQ brokers
give no leases, and unlike the Java client this one sends nothing back behind a slow handler.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from math import inf
from typing import Protocol

from skylarkmq.client.consumer.process_queue import ProcessQueue
from skylarkmq.client.consumer.retry_delay import RetryDelay, retry_delay
from skylarkmq.client.message_view import StoredView
from skylarkmq.client.namespace import Namespace
from skylarkmq.client.observe.hooks import ConsumeOutcome
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.message import MessageExt, MessageQueue


class Returner(Protocol):
    """What becomes of messages that their handlers could not use."""

    @property
    def namespace(self) -> Namespace:
        """The client's, for the names that the application sees."""
        ...

    @property
    def clock_s(self) -> float:
        """Monotonic seconds of the client's clock."""
        ...

    async def give_back(
        self, message: ReceivedMessage, delay: RetryDelay, reason: str | None = None
    ) -> None:
        """Let the group get the message again; too many tries make it a dead letter.

        Raises:
            RocketMQError: no broker took it; it stays with its handler.
        """
        ...

    async def retry(self, message: ReceivedMessage, reason: str | None) -> None:
        """Do so, after the consumer's `retry_delays`; when no broker takes it let it come again
        here, after a while.

        Args:
            reason: kept with a message that becomes a dead letter by it.
        """
        ...

    async def give_up(self, message: ReceivedMessage, reason: str | None) -> None:
        """Make the message a dead letter.

        Raises:
            RocketMQError: no broker took it; it stays with its handler.
        """
        ...


class ReceivedMessage(StoredView):
    """One message of one queue. Made by the consumer; not to be made or changed by users."""

    __slots__ = (
        "_local_tries",
        "_process_queue",
        "_returner",
        "outcome",
        "overdue_s",
        "received_s",
    )

    def __init__(
        self,
        message: MessageExt,
        process_queue: ProcessQueue[ReceivedMessage],
        returner: Returner,
        local_tries: int = 0,
    ) -> None:
        # One a message: the bases' attributes are set here, without their constructors.
        self.queue_offset = message.queue_offset
        # A retried message lies in the group's retry topic; its own topic stands in a property.
        topic = message.properties.get(names.RETRY_TOPIC, message.topic)
        namespace = returner.namespace
        self.topic = namespace.unwrap(topic) if namespace else topic
        self.overdue_s = inf
        """When its handler will have been at work for too long, monotonic. The consumer's own."""
        self.received_s = 0.0
        """When it came, monotonic; only with metrics. The consumer's own."""
        self._message = message
        self._process_queue = process_queue
        self._returner = returner
        self._local_tries = local_tries
        self._body: bytes | None = None
        self.outcome: ConsumeOutcome | None = None
        """What became of it; None as long as that is its handler's to say. The consumer's own."""

    @property
    def queue(self) -> MessageQueue:
        """The queue it came from; of the retry topic when it is a retry."""
        return self._returner.namespace.unwrap_queue(self._process_queue.queue)

    @property
    def reconsume_times(self) -> int:
        """How many times it was handed back before."""
        return self._message.reconsume_times + self._local_tries

    # What becomes of it

    async def ack(self) -> None:
        """It is done. The group's offset moves on once all before it are done as well.

        Nothing happens when it was done or handed back before, or when its queue is not this
        consumer's any more. It is committed with the next `commit_interval`, or by `commit()`.
        """
        self.finish()

    async def nack(self, delay_level: int | None = None, *, delay: timedelta | None = None) -> None:
        """Let the group get it again, after a while; beyond `max_reconsume` it is a dead letter.

        An ordered consumer waits with the whole queue (1 s unless told), so that nothing overtakes
        the message. A broadcasting one tries again by itself.

        Args:
            delay_level: 1 to 18 (1 s to 2 h); by default the delay grows with each try: 10 s,
                30 s, 1 m, ... 2 h.
            delay: instead; up to 2 h. A broker delays by levels, so it is rounded up to the next.

        Raises:
            RocketMQError: no broker took it; it stays unacknowledged.
            ValueError: the delay is none.
        """
        wish = retry_delay(delay_level, delay)
        if self.is_mine:
            await self._returner.give_back(self, wish)

    async def dead_letter(self, reason: str | None = None) -> None:
        """Give it up: it goes to the group's dead letter topic, `%DLQ%<group>`.

        So does what its handler failed on too often, with the last error as its reason.

        A broadcasting consumer has no such topic: the message is done, and a line logged.

        Args:
            reason: kept with the message, as property `DEAD_LETTER_REASON`.

        Raises:
            RocketMQError: no broker took it; it stays unacknowledged.
        """
        if self.is_mine:
            await self._returner.give_up(self, reason)

    async def extend(self, seconds: float) -> None:
        """Say that it takes longer: `consume_timeout` counts anew, as `seconds` from now.

        Nothing but the warning depends on it; the message stays with its handler in any case.
        """
        if seconds <= 0:
            raise ValueError(f"seconds is above 0, not {seconds}")
        self.overdue_s = self._returner.clock_s + seconds

    def process(self, *, requeue: bool = True) -> AbstractAsyncContextManager[ReceivedMessage]:
        """Acknowledge when the block ends; on an error hand it back and let the error through.

        Args:
            requeue: false makes a failed message a dead letter at once.
        """
        return _processing(self, requeue)

    def __repr__(self) -> str:
        queue = self._process_queue.queue
        return (
            f"<ReceivedMessage {self.msg_id} of {self.topic}, queue {queue.broker_name}/"
            f"{queue.queue_id} offset {self.queue_offset}, try {self.reconsume_times + 1}>"
        )

    # For the consumer's own use

    @property
    def process_queue(self) -> ProcessQueue[ReceivedMessage]:
        """Where it waits for its ack."""
        return self._process_queue

    @property
    def is_mine(self) -> bool:
        """Whether its handler still has a say: not done, not handed back, not revoked."""
        return self.outcome is None and self._process_queue.holds(self.queue_offset)

    def finish(self, outcome: ConsumeOutcome = "ok") -> bool:
        """No more work with it; False when its handler had no say any more."""
        if self.outcome is not None:
            return False
        self.outcome = outcome
        return self._process_queue.done(self.queue_offset)

    def again(self) -> ReceivedMessage:
        """Return what stands for it at the next try here; this object has no say any more."""
        self.outcome = "suspended"
        self.overdue_s = inf  # it waits for its time, not for its handler
        return ReceivedMessage(
            self._message, self._process_queue, self._returner, self._local_tries + 1
        )

    async def retry(self, error: BaseException | None = None) -> None:
        """Do as `nack`, but when no broker takes it let it come again here, after a while.

        Args:
            error: what the handler raised; the reason of a message that becomes a dead letter.
        """
        if self.is_mine:
            reason = None if error is None else f"{type(error).__name__}: {error}"
            await self._returner.retry(self, reason)


@asynccontextmanager
async def _processing(message: ReceivedMessage, requeue: bool) -> AsyncGenerator[ReceivedMessage]:
    try:
        yield message
    except Exception as error:
        if requeue:
            await message.retry(error)
        else:
            await message.dead_letter(f"{type(error).__name__}: {error}")
        raise
    await message.ack()
