# pyright: reportPrivateUsage=false
"""The messages of one queue between the broker and the handlers, and how far the group has come.

    pulled -> ready -> handed out -> done           put_back: handed out -> ready, for another try

    offsets   ... 41 | 42  43  44  45  46 | 47
                  done  not done (43, 45 done)  pull_offset, the next to ask for
    commit_offset = 42: everything below it is done, even if something above it is done too

Acks may come in any order; the commit offset moves only to the lowest offset that is not done.
A queue that is revoked or repositioned is dropped and never used again. Acks that come later reach
the dropped object and change nothing.

What a handler makes of a message:

    ack          done
    nack         the group gets it again after a while: from the broker, or for an ordered or
                 broadcasting consumer from here
    dead_letter  given up
    nothing      it stays with this member, however long that takes, and holds the offset

No message is handed out a second time while a handler has it. RocketMQ's brokers give no leases,
and unlike the Java client this one does not send a message back while a slow handler works on it.

Pure state; only a `Redelivery` does I/O.
Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/consumer/ProcessQueue.java
(putMessage, removeMessage)
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from math import inf
from threading import get_ident
from typing import Any, Final, Literal

from skylarkmq.client.awaited import DONE, must_await
from skylarkmq.client.message_view import StoredMessage
from skylarkmq.client.namespace import Namespace
from skylarkmq.client.retry_delay import RetryDelay, retry_delay
from skylarkmq.common.clock import Clock
from skylarkmq.common.settings import require_positive, seconds_of
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.protocol.message import MessageExt, MessageQueue
from skylarkmq.protocol.record import (
    BODY,
    PROPERTIES,
    QUEUE_OFFSET,
    RECONSUME_TIMES,
    SIZE,
    SYS_FLAG,
    TOPIC,
    RecordParts,
    message_of,
)

COMPRESSED_FLAG: Final = MessageSysFlag.COMPRESSED_FLAG

ConsumeOutcome = Literal["ok", "retry", "dead_letter", "suspended", "cancelled"]


class Redelivery:
    """Takes messages that their handlers could not use.

    This one gives them to nobody: for a message that a broker had handled outside its queue.
    `retry.py` has the one that lets the group get them again.
    """

    def __init__(self, clock: Clock, namespace: Namespace) -> None:
        self.clock = clock
        self.namespace = namespace
        self.thread_id = get_ident()
        """Of the loop."""

    async def give_back(
        self, message: ReceivedMessage, delay: RetryDelay, reason: str | None = None
    ) -> None:
        """Let the group get the message again; after too many tries it is a dead letter.

        Args:
            reason: kept with a message that becomes a dead letter now.

        Raises:
            RocketMQError: no broker took it; it stays with its handler.
        """
        message._finish("retry")

    async def retry(self, message: ReceivedMessage, reason: str | None) -> None:
        """Give the message back after the consumer's `retry_delays`.

        When no broker takes it, it comes again here, after a while.
        """
        message._finish("retry")

    async def give_up(self, message: ReceivedMessage, reason: str | None) -> None:
        """Make the message a dead letter.

        Raises:
            RocketMQError: no broker took it; it stays with its handler.
        """
        message._finish("dead_letter")


class ProcessQueue:
    """One assigned queue. Loop thread."""

    __slots__ = (
        "_held",
        "_on_idle",
        "_on_room",
        "_ready",
        "_unacked",
        "asked_s",
        "dropped",
        "handled_s",
        "held_bytes",
        "on_drained",
        "paused",
        "pull_offset",
        "queue",
    )

    def __init__(
        self,
        queue: MessageQueue,
        start_offset: int,
        on_room: Callable[[], None] | None = None,
        on_idle: Callable[[ProcessQueue], None] | None = None,
    ) -> None:
        """Start at `start_offset`, the first queue offset to ask for.

        Args:
            on_room: called after each message that is done: there may be room for more.
            on_idle: called when all messages that were handed out are done.
        """
        self.queue = queue
        self.pull_offset = start_offset
        self.dropped = False
        self.paused = False
        self.held_bytes = 0
        # When its last pull began and its last handler ended, monotonic: for request 307.
        self.asked_s: float | None = None
        self.handled_s: float | None = None
        self.on_drained: Callable[[], None] | None = None
        """Set while the queue is about to go and hands out nothing more; called when no message
        is at work any more."""
        self._on_room = on_room
        self._on_idle = on_idle
        # Invariant: ascending, a part of what is not done.
        self._ready: deque[ReceivedMessage] = deque()
        # Invariant: ascending, each offset once, all below pull_offset; its first is not done.
        self._unacked: deque[int] = deque()
        # Invariant: what is not done: the keys are a part of _unacked, _ready is of the values.
        self._held: dict[int, ReceivedMessage] = {}

    @property
    def commit_offset(self) -> int:
        """The queue offset below which everything is done."""
        return self._unacked[0] if self._unacked else self.pull_offset

    @property
    def position(self) -> int:
        """The queue offset of the next message to be handed out."""
        return self._ready[0].queue_offset if self._ready else self.pull_offset

    @property
    def ready_count(self) -> int:
        """Messages that wait to be handed out."""
        return len(self._ready)

    @property
    def held_count(self) -> int:
        """Messages pulled and not done, handed out or not."""
        return len(self._held)

    @property
    def out_count(self) -> int:
        """Messages handed out and not done."""
        return len(self._held) - len(self._ready)

    @property
    def held(self) -> Iterable[ReceivedMessage]:
        """The messages pulled and not done, handed out or not."""
        return self._held.values()

    @property
    def span(self) -> int:
        """How far the messages not done reach from the lowest of them, in offsets."""
        return self.pull_offset - self._unacked[0] if self._unacked else 0

    def add(self, messages: Sequence[ReceivedMessage], next_offset: int) -> int:
        """Take what a pull brought; return how many messages were new.

        Args:
            messages: ascending by offset; those below `pull_offset` are known and left out.
            next_offset: where to go on, above all of them.
        """
        held, ready, unacked = self._held, self._ready, self._unacked
        before, pull_offset, held_bytes = len(ready), self.pull_offset, self.held_bytes
        for message in messages:
            offset = message.queue_offset
            if offset < pull_offset:
                continue
            ready.append(message)
            unacked.append(offset)
            held[offset] = message
            held_bytes += message.size
            pull_offset = offset + 1
        self.held_bytes = held_bytes
        self.pull_offset = max(pull_offset, next_offset)
        return len(ready) - before

    def take(self, max_count: int) -> list[ReceivedMessage]:
        """Hand out the next messages; none while paused, dropped or about to go."""
        if self.paused or self.dropped or self.on_drained is not None:
            return []
        ready = self._ready
        if max_count == 1 and ready:
            return [ready.popleft()]
        if max_count < len(ready):
            return [ready.popleft() for _ in range(max_count)]
        taken = list(ready)
        ready.clear()
        return taken

    def done(self, offset: int) -> bool:
        """Note that the message at `offset` needs no more work; False when known, or dropped."""
        message = self._held.pop(offset, None)
        if message is None or self.dropped:
            return False
        self.held_bytes -= message.size
        self._went_on()
        return True

    def done_all(self, messages: Iterable[ReceivedMessage]) -> None:
        """Note that the work with some of its messages has ended well, as far as that is open."""
        held, size = self._held, 0
        for message in messages:
            if message._outcome is None:
                message._outcome = "ok"
                if held.pop(message.queue_offset, None) is not None:
                    size += message.size
        if size and not self.dropped:
            self.held_bytes -= size
            self._went_on()

    def _went_on(self) -> None:
        """Follow messages that are done: the offset, and those who wait for it."""
        held, unacked = self._held, self._unacked
        while unacked and unacked[0] not in held:
            unacked.popleft()
        if self._on_room is not None:
            self._on_room()
        if self._on_idle is not None and not self.out_count:
            self._on_idle(self)
        if self.on_drained is not None and not self.out_count:
            self.on_drained()

    def given(self) -> list[ReceivedMessage]:
        """Return the messages that were handed out and are not done."""
        waiting = {message.queue_offset for message in self._ready}
        return [message for at, message in self._held.items() if at not in waiting]

    def holds(self, offset: int) -> bool:
        """Return whether the message at `offset` is here and not done."""
        return not self.dropped and offset in self._held

    def put_back(self, message: ReceivedMessage) -> bool:
        """Hand a message out again, in the order of the offsets.

        It may be another object of the same offset, which replaces the first one. False when it
        is done, or the queue dropped.
        """
        if not self.holds(message.queue_offset):
            return False
        place = 0
        for waiting in self._ready:
            if waiting.queue_offset > message.queue_offset:
                break
            place += 1
        self._ready.insert(place, message)
        self._held[message.queue_offset] = message
        if self.on_drained is not None and not self.out_count:
            self.on_drained()
        return True

    def drop(self) -> None:
        """End it: from now on no message is handed out, acknowledged or pulled."""
        self.dropped = True
        self._ready.clear()
        self._held.clear()
        if self._on_room is not None:
            self._on_room()


class ReceivedMessage(StoredMessage):
    """One message of one queue. The consumer makes it; users do not make or change one."""

    __slots__ = (
        "_local_tries",
        "_outcome",
        "_overdue_s",
        "_parts",
        "_process_queue",
        "_received_s",
        "_redelivery",
    )

    def __init__(
        self,
        parts: RecordParts,
        process_queue: ProcessQueue,
        redelivery: Redelivery,
        local_tries: int = 0,
    ) -> None:
        # Hot path, once a message: the attributes of the bases are set without their constructors,
        # and most of the message is made when somebody asks for it.
        self._parts = parts
        self.queue_offset = parts[QUEUE_OFFSET]
        self.size = parts[SIZE]
        # When its handler will have had it for too long, monotonic.
        self._overdue_s = inf
        # When it came, monotonic; only with metrics.
        self._received_s = 0.0
        self._process_queue = process_queue
        self._redelivery = redelivery
        self._local_tries = local_tries
        self._body = None if parts[SYS_FLAG] & COMPRESSED_FLAG else parts[BODY]
        # What became of it; None while its handler decides.
        self._outcome: ConsumeOutcome | None = None

    @property
    def _message(self) -> MessageExt:
        try:
            return self._made
        except AttributeError:
            self._made = message_of(self._parts)
        return self._made

    @property
    def topic(self) -> str:
        """Its topic, without the client's namespace."""
        topic = self._parts[TOPIC]
        if names.RETRY_TOPIC in self._parts[PROPERTIES]:
            # It lies in the group's retry topic; its own topic stands in a property.
            topic = self._message.properties.get(names.RETRY_TOPIC, topic)
        return self._redelivery.namespace.unwrap(topic)

    @property
    def origin_topic(self) -> str:
        """The same: consumers know no retry topics."""
        return self.topic

    @property
    def queue(self) -> MessageQueue:
        """The queue it came from; of the retry topic when it is a retry."""
        return self._redelivery.namespace.unwrap_queue(self._process_queue.queue)

    @property
    def reconsume_times(self) -> int:
        """How many times it was handed back before."""
        return self._parts[RECONSUME_TIMES] + self._local_tries

    # What becomes of it

    def ack(self) -> Coroutine[Any, Any, None]:
        """Say that it is done. The group's offset moves on when all before it are done too.

        This changes nothing when it was done or handed back before, or when its queue has gone to
        another consumer. The next `commit_interval`, or `commit()`, commits it.
        """
        if get_ident() != self._redelivery.thread_id:  # it hands the call to the loop
            return self._ack()
        self._finish()  # here, so that a forgotten `await` loses nothing
        return DONE

    async def _ack(self) -> None:
        self._finish()

    @must_await("message")
    async def nack(
        self, delay_level: int | None = None, *, delay: float | timedelta | None = None
    ) -> None:
        """Let the group get it again after a while; beyond `max_reconsume` it is a dead letter.

        An ordered consumer lets the whole queue wait (1 s by default), so that no message overtakes
        this one. A broadcasting consumer tries again by itself.

        Args:
            delay_level: 1 to 18 (1 s to 2 h); by default the delay grows with each try: 10 s,
                30 s, 1 m, ... 2 h.
            delay: instead, seconds or a timedelta; up to 2 h. A broker delays by levels, so it is
                rounded up to the next.

        Raises:
            RocketMQError: no broker took it; it stays unacknowledged.
            ValueError: no such delay is possible.
        """
        wish = retry_delay(delay_level, delay)
        if self._is_mine:
            await self._redelivery.give_back(self, wish)

    @must_await("message")
    async def dead_letter(self, reason: str | None = None) -> None:
        """Give it up: it goes to the group's dead letter topic, `%DLQ%<group>`.

        A message whose handler failed too often goes there too, with the last error as reason.
        A broadcasting consumer has no such topic: the message is done, and a line is logged.

        Args:
            reason: kept with the message, as property `DEAD_LETTER_REASON`.

        Raises:
            RocketMQError: no broker took it; it stays unacknowledged.
        """
        if self._is_mine:
            await self._redelivery.give_up(self, reason)

    @must_await("message")
    async def extend(self, seconds: float | timedelta) -> None:
        """Let `consume_timeout` end `seconds` from now.

        Only the warning in the log depends on it: the message stays with its handler in any case.
        """
        longer_s = seconds_of(seconds)
        require_positive("seconds", longer_s)
        self._overdue_s = self._redelivery.clock.monotonic() + longer_s

    def process(self, *, requeue: bool = True) -> AbstractAsyncContextManager[ReceivedMessage]:
        """Acknowledge it when the block ends; after an error hand it back, and raise the error.

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

    # For the consumer's own files: users see no name that begins with an underscore.

    @property
    def _is_mine(self) -> bool:
        """True while its handler decides: it is not done, not handed back, not revoked."""
        return self._outcome is None and self._process_queue.holds(self.queue_offset)

    def _finish(self, outcome: ConsumeOutcome = "ok") -> bool:
        """Note that the work with it has ended; False when that was noted before, or is void."""
        if self._outcome is not None:
            return False
        self._outcome = outcome
        return self._process_queue.done(self.queue_offset)

    def _again(self) -> ReceivedMessage:
        """Return the message for its next try here; this object counts no more."""
        self._outcome = "suspended"
        self._overdue_s = inf  # it waits for its time, not for its handler
        return ReceivedMessage(
            self._parts, self._process_queue, self._redelivery, self._local_tries + 1
        )

    async def _retry(self, error: BaseException | None = None) -> None:
        """Do as `nack`; when no broker takes it, it comes again here, after a while.

        Args:
            error: what the handler raised; the reason of a message that becomes a dead letter.
        """
        if self._is_mine:
            reason = None if error is None else f"{type(error).__name__}: {error}"
            await self._redelivery.retry(self, reason)


@asynccontextmanager
async def _processing(message: ReceivedMessage, requeue: bool) -> AsyncGenerator[ReceivedMessage]:
    try:
        yield message
    except Exception as error:
        if requeue:
            await message._retry(error)
        else:
            await message.dead_letter(f"{type(error).__name__}: {error}")
        raise
    await message.ack()
