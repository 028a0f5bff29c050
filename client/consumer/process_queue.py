"""Messages of one queue between the broker and the handlers, and how far the group has come.

    pulled -> ready -> handed out -> done           put_back: handed out -> ready, for another try

    offsets   ... 41 | 42  43  44  45  46 | 47
                  done  unacked (43, 45 done)  pull_offset, next to be asked for
    commit_offset = 42: everything below it is done, whatever is done beyond it

An ack may come in any order; the commit offset moves only to the lowest offset that is not done.
Pure state, no I/O. A queue that is revoked or repositioned is dropped and never used again; acks
that come later go to the dropped object and change nothing.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/consumer/ProcessQueue.java
(putMessage, removeMessage)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from skylarkmq.protocol.message import MessageQueue


class QueuedMessage(Protocol):
    """What the queue needs to know of a message."""

    @property
    def queue_offset(self) -> int:
        """Its number in the queue."""
        ...

    @property
    def size(self) -> int:
        """Its bytes, as counted for the prefetch limit."""
        ...


M = TypeVar("M", bound=QueuedMessage)


class ProcessQueue(Generic[M]):
    """One assigned queue. Loop thread."""

    __slots__ = (
        "_done_ahead",
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
        on_idle: Callable[[ProcessQueue[M]], None] | None = None,
    ) -> None:
        """Start at `start_offset`, the first queue offset to ask for.

        Args:
            on_room: called after each message that is done, because there may be room for more.
            on_idle: called when all that was handed out is done.
        """
        self.queue = queue
        self.pull_offset = start_offset
        self.dropped = False
        self.paused = False
        self.held_bytes = 0
        # When its last pull began and its last handler ended, monotonic: for who asks (307).
        self.asked_s: float | None = None
        self.handled_s: float | None = None
        self.on_drained: Callable[[], None] | None = None
        """Set while the queue is to go and nothing more is handed out; called when nothing that
        was is left at work."""
        self._on_room = on_room
        self._on_idle = on_idle
        # Invariant: ascending, a part of what is not done.
        self._ready: deque[M] = deque()
        # Invariant: ascending, each offset once, all below pull_offset; its first is not done.
        self._unacked: deque[int] = deque()
        # Invariant: a subset of _unacked, without its first.
        self._done_ahead: set[int] = set()
        # Invariant: the keys are _unacked without _done_ahead; _ready is a part of the values.
        self._held: dict[int, M] = {}

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
    def held(self) -> Iterable[M]:
        """The messages pulled and not done, handed out or not."""
        return self._held.values()

    @property
    def span(self) -> int:
        """How far the messages not done reach from the lowest of them, in offsets."""
        return self.pull_offset - self._unacked[0] if self._unacked else 0

    def add(self, messages: Sequence[M], next_offset: int) -> int:
        """Take what a pull brought; return how many messages were new.

        Args:
            messages: ascending by offset; those below `pull_offset` are known and passed over.
            next_offset: where to go on, beyond all of them.
        """
        added = 0
        for message in messages:
            offset = message.queue_offset
            if offset < self.pull_offset:
                continue
            self._ready.append(message)
            self._unacked.append(offset)
            self._held[offset] = message
            self.held_bytes += message.size
            self.pull_offset = offset + 1
            added += 1
        self.pull_offset = max(self.pull_offset, next_offset)
        return added

    def take(self, max_count: int) -> list[M]:
        """Hand out the next messages, none when paused, dropped or to go."""
        if self.paused or self.dropped or self.on_drained is not None:
            return []
        ready = self._ready
        return [ready.popleft() for _ in range(min(max_count, len(ready)))]

    def done(self, offset: int) -> bool:
        """The message at `offset` needs no more work; False when that was known or is void."""
        message = self._held.pop(offset, None)
        if message is None or self.dropped:
            return False
        self.held_bytes -= message.size
        unacked, ahead = self._unacked, self._done_ahead
        if offset == unacked[0]:
            unacked.popleft()
            while unacked and unacked[0] in ahead:
                ahead.discard(unacked.popleft())
        else:
            ahead.add(offset)
        if self._on_room is not None:
            self._on_room()
        if self._on_idle is not None and not self.out_count:
            self._on_idle(self)
        if self.on_drained is not None and not self.out_count:
            self.on_drained()
        return True

    def given(self) -> list[M]:
        """Return the messages that were handed out and are not done."""
        waiting = {message.queue_offset for message in self._ready}
        return [message for at, message in self._held.items() if at not in waiting]

    def holds(self, offset: int) -> bool:
        """Return whether the message at `offset` is here and not done."""
        return not self.dropped and offset in self._held

    def put_back(self, message: M) -> bool:
        """Let a message that was handed out be handed out again, in the order of the offsets.

        It may be another object for the same offset, which takes the first one's place. False
        when it is done or the queue dropped.
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
        """End: nothing is handed out, acknowledged or pulled any more."""
        self.dropped = True
        self._ready.clear()
        self._held.clear()
        if self._on_room is not None:
            self._on_room()
