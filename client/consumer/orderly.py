"""Ordered consumption: the messages of a queue one after another, on one member alone.

    among the members   the queue is locked on its broker (41); queue_locks.py
    in this member      of a queue that has messages at work nothing more is handed out
    a failed message    waits here (local_retry.py), and the queue with it

A queue that is to go to another member while a handler is at work with it stays until the handler
ends: nothing more is handed out, the lock is kept, and the handler's end wakes the rebalance. So it
does while a message that `getone`, `getmany` or iteration gave, or whose handler has left its ack
for later, is not settled; but no longer than `consume_timeout`, in case it was forgotten.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/consumer/
ConsumeMessageOrderlyService.java, RebalancePushImpl.java (removeUnnecessaryMessageQueue)
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection

from skylarkmq.client.consumer.message_buffer import MessageBuffer
from skylarkmq.client.consumer.offset_store import OffsetStore
from skylarkmq.client.consumer.process_queue import ProcessQueue
from skylarkmq.client.consumer.queue_locks import QueueLocks
from skylarkmq.client.consumer.rebalance import Rebalance
from skylarkmq.client.consumer.received_message import ReceivedMessage
from skylarkmq.client.errors import RocketMQError
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.message import MessageQueue

log = logging.getLogger(__name__)


class OrderedBuffer(MessageBuffer):
    """Hands out of one queue only after all that it handed out before is done. Loop thread."""

    def __init__(self, clock: Clock, consume_timeout_s: float, locks: QueueLocks | None) -> None:
        """Take the parts.

        Args:
            locks: None for a broadcasting consumer, whose queues are nobody else's affair.
        """
        super().__init__(clock, consume_timeout_s)
        self.on_freed: Callable[[], None] | None = None
        """Called when a handler has ended with a queue that is to be given up."""
        self._locks = locks
        # A queue that was repositioned is another process queue, but the same queue to its handler.
        self._busy: Counter[MessageQueue] = Counter()
        self._leaving: set[MessageQueue] = set()
        self._kept: dict[MessageQueue, ProcessQueue[ReceivedMessage]] = {}

    def offer(self, process_queue: ProcessQueue[ReceivedMessage]) -> None:
        super().offer(process_queue)
        if process_queue.queue in self._leaving and self.on_freed is not None:
            self.on_freed()

    def begin(self, queue: MessageQueue) -> None:
        self._busy[queue] += 1

    def end(self, queue: MessageQueue) -> None:
        self._busy[queue] -= 1
        if self._busy[queue] > 0:
            return
        del self._busy[queue]
        waiting = self._kept.pop(queue, None)
        if waiting is not None and not waiting.dropped:
            self.offer(waiting)
        if queue in self._leaving and self.on_freed is not None:
            self.on_freed()

    def is_busy(
        self, queue: MessageQueue, process_queue: ProcessQueue[ReceivedMessage] | None
    ) -> bool:
        """Return whether a handler, or who took them by hand, is at work with messages of it."""
        if queue in self._busy or process_queue is None:
            return queue in self._busy
        now_s = self._clock.monotonic()
        return any(each.is_mine and each.overdue_s > now_s for each in process_queue.given())

    def leave(self, queues: set[MessageQueue]) -> None:
        """Hand out nothing more of these queues; those that were named before and are not now
        stay after all."""
        stay = self._leaving - queues
        self._leaving = queues
        for queue in stay:
            waiting = self._kept.pop(queue, None)
            if waiting is not None and not waiting.dropped:
                self.offer(waiting)

    def _may_give(self, process_queue: ProcessQueue[ReceivedMessage]) -> bool:
        queue = process_queue.queue
        if process_queue.out_count:
            return False  # its last ack offers it again
        if queue in self._busy or queue in self._leaving:
            self._kept[queue] = process_queue
            return False
        # A lock that comes back offers the queue again.
        return self._locks is None or self._locks.holds(queue)


class QueueKeeper:
    """Decides which queues begin and go, and follows the locks. Implements the `QueueGate` of
    rebalance.py and `LockListener`. Loop thread."""

    def __init__(
        self, buffer: OrderedBuffer, locks: QueueLocks | None, offsets: OffsetStore
    ) -> None:
        """Take the parts; `locks` is None for a broadcasting consumer."""
        self._buffer = buffer
        self._locks = locks
        self._offsets = offsets
        self._followed: Rebalance | None = None
        self._lost: set[MessageQueue] = set()

    def follow(self, rebalance: Rebalance) -> None:
        """Take the rebalance that this is the gate of; before its first round."""
        self._followed = rebalance
        self._buffer.on_freed = rebalance.wake

    @property
    def _rebalance(self) -> Rebalance:
        assert self._followed is not None, "a gate is followed before the first round"
        return self._followed

    # For the rebalance

    async def may_go(
        self, gone: Collection[MessageQueue], share: Collection[MessageQueue]
    ) -> list[MessageQueue]:
        """Return those of the queues that can be given up now; the others wait for their handlers.

        Args:
            share: what this member is to have.
        """
        lost = set(self._lost)
        # Without a commit: the group's offsets there are another member's affair now.
        await self._rebalance.revoke(sorted(lost), commit=False)
        self._lost -= lost
        leaving = {queue for queue in gone if queue not in lost}
        self._buffer.leave(leaving)
        if self._locks is not None:
            await self._locks.keep({*gone, *share})
        held, is_busy = self._rebalance.assigned, self._buffer.is_busy
        return [queue for queue in gone if queue in leaving and not is_busy(queue, held.get(queue))]

    async def admit(self, queues: Collection[MessageQueue]) -> Collection[MessageQueue]:
        """Return those of the queues that are locked now."""
        return queues if self._locks is None else await self._locks.acquire(queues)

    async def release(self, queues: Collection[MessageQueue]) -> None:
        """Let others have these queues, which were given up."""
        if self._locks is not None:
            await self._locks.release(queues)

    # For the locks

    def acquired(self) -> None:
        self._rebalance.wake()

    async def waking(self, queues: Collection[MessageQueue]) -> None:
        """Go on where the group is, in case another member had the queue in between."""
        for queue in queues:
            try:
                committed = await self._offsets.committed(queue)
            except RocketMQError as error:
                log.warning("no committed offset of %s, going on all the same: %s", queue, error)
                continue
            held = self._rebalance.assigned.get(queue)
            if held is not None and committed is not None and committed > held.commit_offset:
                log.warning("%s was elsewhere for a while, going on at %d", queue, committed)
                self._rebalance.reposition(queue, committed)

    def awake(self, queues: Collection[MessageQueue]) -> None:
        for queue in queues:
            held = self._rebalance.assigned.get(queue)
            if held is not None:
                self._buffer.offer(held)

    def lost(self, queues: Collection[MessageQueue]) -> None:
        self._lost.update(queues)
        self._rebalance.wake()
