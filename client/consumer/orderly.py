# pyright: reportPrivateUsage=false
"""Ordered consumption: the messages of a queue one after another, on one member alone.

    among the members   the queue is locked on its broker (41); queue_locks.py
    in this member      of a queue that has messages at work nothing more is handed out
    a failed message    waits here (retry.py), and the queue with it; of a batch also what was
                        handed out behind it, unless its handler acknowledged that itself

A queue that is to go to another member stays while a handler has messages of it: no more of them
are handed out, the lock is kept, and the handler's end wakes the rebalance. It also stays while a
message that `getone`, `getmany` or iteration gave, or that its handler will acknowledge later, is
not settled; but no longer than `consume_timeout`, in case it was forgotten.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/consumer/
ConsumeMessageOrderlyService.java, RebalancePushImpl.java (removeUnnecessaryMessageQueue)
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import takewhile

from skylarkmq.client.consumer.assignor import Assignor
from skylarkmq.client.consumer.message_buffer import MessageBuffer
from skylarkmq.client.consumer.offset_store import OffsetStore
from skylarkmq.client.consumer.pull_service import PullService
from skylarkmq.client.consumer.queue_locks import LockChange, QueueLocks
from skylarkmq.client.consumer.rebalance import Callbacks, Rebalance
from skylarkmq.client.consumer.subscription import StartFrom
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.received_message import ProcessQueue, ReceivedMessage
from skylarkmq.client.services import Services
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.message import MessageQueue

log = logging.getLogger(__name__)


class OrderedBuffer(MessageBuffer):
    """Hands out of one queue only after all that it handed out before is done. Loop thread."""

    ordered = True

    def __init__(self, clock: Clock, consume_timeout_s: float, locks: QueueLocks | None) -> None:
        """Take the parts.

        Args:
            locks: None for a broadcasting consumer, which shares its queues with no one.
        """
        super().__init__(clock, consume_timeout_s)
        self.on_freed: Callable[[], None] | None = None
        """Called when a handler has ended with a queue that is to be given up."""
        self.locks = locks
        # A queue that was repositioned is another process queue, but the same queue to its handler.
        self._busy: Counter[MessageQueue] = Counter()
        self._leaving: set[MessageQueue] = set()
        self._kept: dict[MessageQueue, ProcessQueue] = {}

    def offer(self, process_queue: ProcessQueue) -> None:
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

    def settle(self, messages: Sequence[ReceivedMessage]) -> None:
        """Acknowledge them up to one that is to come again: what is behind it comes after it."""
        before = list(takewhile(lambda message: message._outcome != "suspended", messages))
        if before:
            super().settle(before)
        for message in messages[len(before) :]:
            if message._outcome is None and message._process_queue.put_back(message):
                self.offer(message._process_queue)

    def is_busy(self, queue: MessageQueue, process_queue: ProcessQueue | None) -> bool:
        """Return whether a handler, or the application by hand, has messages of the queue."""
        if queue in self._busy or process_queue is None:
            return queue in self._busy
        now_s = self._clock.monotonic()
        return any(each._is_mine and each._overdue_s > now_s for each in process_queue.given())

    def leave(self, queues: set[MessageQueue]) -> None:
        """Hand out nothing more of these queues; those of the last call that are not named now
        stay after all."""
        stay = self._leaving - queues
        self._leaving = queues
        for queue in stay:
            waiting = self._kept.pop(queue, None)
            if waiting is not None and not waiting.dropped:
                self.offer(waiting)

    def _may_give(self, process_queue: ProcessQueue) -> bool:
        queue = process_queue.queue
        if process_queue.out_count:
            return False  # its last ack offers it again
        if queue in self._busy or queue in self._leaving:
            self._kept[queue] = process_queue
            return False
        # A lock that comes back offers the queue again.
        return self.locks is None or self.locks.holds(queue)


class OrderedRebalance(Rebalance):
    """Takes queues that are locked, gives up queues that no handler has, follows the locks."""

    def __init__(
        self,
        buffer: OrderedBuffer,
        services: Services,
        group: str,
        offsets: OffsetStore,
        pulls: PullService,
        assignor: Assignor,
        start_from: StartFrom,
        callbacks: Callbacks,
    ) -> None:
        super().__init__(services, group, offsets, pulls, assignor, start_from, callbacks)
        self._buffer = buffer
        self._locks = buffer.locks
        self._lost: set[MessageQueue] = set()
        buffer.on_freed = self.wake

    async def follow(self, change: LockChange) -> None:
        """Do what a change of the locks asks for."""
        if change.lost:
            self._lost.update(change.lost)
            self.wake()
        if change.asleep:
            await self._catch_up(change.asleep)
            assert self._locks is not None, "its changes are followed"
            for queue in self._locks.wake_up(change):
                if queue in self.assigned:
                    self._buffer.offer(self.assigned[queue])
        if change.acquired:
            self.wake()

    async def _catch_up(self, queues: Collection[MessageQueue]) -> None:
        """Go on where the group is, in case another member had the queue in between."""
        for queue in queues:
            try:
                committed = await self._offsets.committed(queue)
            except RocketMQError as error:
                log.warning("no committed offset of %s, going on all the same: %s", queue, error)
                continue
            held = self.assigned.get(queue)
            if held is not None and committed is not None and committed > held.commit_offset:
                log.warning("%s was elsewhere for a while, going on at %d", queue, committed)
                self.reposition(queue, committed)

    async def _give_up(
        self, queues: Sequence[MessageQueue], share: Collection[MessageQueue]
    ) -> None:
        lost = set(self._lost)
        # Without a commit: another member commits the group's offsets there now.
        await self.revoke(sorted(lost), commit=False)
        self._lost -= lost
        leaving = {queue for queue in queues if queue not in lost}
        self._buffer.leave(leaving)
        if self._locks is not None:
            await self._locks.keep({*queues, *share})
        held, is_busy = self.assigned, self._buffer.is_busy
        # The others wait for their handlers, whose end wakes the rebalance.
        await self.revoke(
            [each for each in queues if each in leaving and not is_busy(each, held.get(each))]
        )

    async def _wait_for_owners(self) -> None:
        """Wait for nothing: the owner before gives its lock up when it is done."""

    async def _admit(self, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
        if self._locks is None:
            return queues
        locked = await self._locks.acquire(queues)
        return [queue for queue in queues if queue in locked]

    async def _release(self, queues: Sequence[MessageQueue]) -> None:
        if self._locks is not None:
            await self._locks.release(queues)
