"""One receive takes messages: which queues it looks at. `delivering.py` hands out what it finds.

    retries      of 1 of 5 receives first, of the others last; not those of ordered groups
    main         queues that may have something, each in its turn
    in place     what was given back, or came back in an ordered group, before what is new

In a topic of type PRIORITY the queues are levels of priority, and those of its retries, too. A
receive takes of the highest first, of one level the retries first, for they are older. It takes
nothing of a level while a higher one has something that it may have: it ends where that must come
from the disk, also for another receive. A level that has as much in flight as it may is passed
over. Ordered groups take the queues in turn. Unlike RocketMQ, where all retries come last.

A receive looks at a bounded number of units without finding anything; then other work of the loop
comes first. What may have to come from the disk is left to the caller (`Take.cold`), unless there
is something in hand.

Of an ordered group a queue has one open batch: while something of it is in hand, nobody gets
anything of the queue, except the attempt that opened it. That gets the same messages again, so a
lost answer costs nothing. An acknowledgement of a message counts once all before it are done: until
then it comes again with one before it that does, so that who handles them has them in their order.

Loop thread.
Source: apache/rocketmq@rocketmq-all-5.3.3 broker/.../processor/PopMessageProcessor.java
(popMsgFromQueue), broker/.../offset/ConsumerOrderInfoManager.java
"""

from __future__ import annotations

from typing import Final

from skylarkmq.broker.pop.consumption import Source
from skylarkmq.broker.pop.deliveries import NO_HANDLE, PopQueue
from skylarkmq.broker.pop.delivering import Deliverer, Take
from skylarkmq.broker.pop.handles import OLD_RETRY
from skylarkmq.broker.pop.in_flight import InFlight
from skylarkmq.broker.pop.states import ACKNOWLEDGED, RELEASED
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.pop.journal_records import UNKNOWN, Changed, Row, Took

RETRY_FIRST_EVERY: Final = 5
"""One of so many receives looks at the retries first, the others last."""


class Taker:
    """Takes messages for receives. Loop thread."""

    def __init__(self, store: MessageStore, in_flight: InFlight, deliverer: Deliverer) -> None:
        self._store = store
        self._journal = in_flight.journal
        self._room = in_flight.room
        self._arrivals = in_flight.arrivals
        self._deliverer = deliverer

    def take(self, take: Take) -> None:
        """Hand out what there is for a receive."""
        consumption, request = take.consumption, take.request
        if request.attempt_id and request.is_fifo:
            self._repeat(take)
            if take.popped:
                return
        consumption.turns += 1
        retries_first = not request.is_fifo and consumption.turns % RETRY_FIRST_EVERY == 0
        if retries_first:
            self._take_retries(take)
        if consumption.levels and not (request.is_fifo or take.is_over):
            self._take_by_priority(take)
        elif not take.is_over:
            self._take_source(consumption.main, take, request.queue_id)
        if not (request.is_fifo or retries_first or take.is_over):
            self._take_retries(take)

    def _take_retries(self, take: Take) -> None:
        group = take.consumption.group
        if not take.consumption.levels:
            for retries in take.consumption.retries.values():
                if retries.ready and not take.is_over:
                    self._take_source(retries, take, -1)
        parked = group.parked.get(take.consumption.topic)
        while parked and not take.is_over:
            self._deliverer.deliver_parked(parked, take)
        if parked is not None and not parked:
            group.parked.pop(take.consumption.topic, None)
        if group.old_retry is not None and group.old_retry.ready and not take.is_over:
            self._take_source(group.old_retry, take, -1)

    def _take_source(self, source: Source, take: Take, only: int) -> None:
        ready = source.ready
        for _ in range(len(ready)):
            queue = ready.popleft()
            if only >= 0 and queue.queue_id != only:
                ready.append(queue)
                continue
            queue.is_listed = False
            self._take_queue(queue, take)
            if self._arrivals.has_more(queue):
                source.list(queue)
            if take.is_over:
                break

    def _take_by_priority(self, take: Take) -> None:
        consumption, only = take.consumption, take.request.queue_id
        main = consumption.main.queues
        queues = [queue for source in consumption.retries.values() for queue in source.queues]
        queues += main if only < 0 else main[only : only + 1]
        queues = [queue for queue in queues if queue.is_listed or queue.is_reading]
        queues.sort(key=_level, reverse=True)
        for queue in queues:
            queue.source.unlist(queue)
            if queue.is_reading:
                return
            self._take_queue(queue, take)
            if self._arrivals.has_more(queue):
                queue.source.list(queue)
                return
            if take.is_over:
                return

    def _take_queue(self, queue: PopQueue, take: Take) -> None:
        if queue.is_reading:
            return
        if take.request.is_fifo and not self._open_batch(queue, take):
            return
        if queue.again:
            self._take_again(queue, take)
        if not (take.is_over or (queue.is_fifo and queue.again)):
            self._take_new(queue, take)

    def _take_new(self, queue: PopQueue, take: Take) -> None:
        store, source, queue_id = self._store, queue.source, queue.queue_id
        topic = source.topic
        matches = None if source.kind == OLD_RETRY else take.request.matches.stored
        while not take.is_over:
            offset = queue.next_offset
            end = store.max_offset(topic, queue_id)
            if offset >= end:
                return
            room = min(take.room, self._room.left(queue))
            if room <= 0:
                self._room.close(queue)
                return
            if store.is_cold(topic, queue_id, offset):
                if not take.popped:
                    take.cold = (queue, offset, room)
                return
            found = store.get_message(topic, queue_id, offset, room, None, matches)
            self._deliverer.deliver_new(queue, found, take)

    def _take_again(self, queue: PopQueue, take: Take) -> None:
        store, topic = self._store, queue.source.topic
        if queue.is_fifo:
            self._put_in_order(queue, take)
        while queue.again and not take.is_over:
            offset = queue.again[0].offset
            if store.is_cold(topic, queue.queue_id, offset):
                if not take.popped:
                    take.cold = (queue, offset, 1)
                return
            matches = None if queue.source.kind == OLD_RETRY else take.request.matches.stored
            found = store.get_message(topic, queue.queue_id, offset, 1, None, matches)
            self._deliverer.deliver_again(queue, found, take)

    # Ordered groups

    def _open_batch(self, queue: PopQueue, take: Take) -> bool:
        """Begin a batch of an ordered group; False while another one is in hand."""
        queue.is_fifo = True
        if queue.is_blocked:
            return False
        if queue.attempt_id != take.request.attempt_id:
            take.consumption.open_batch(queue, take.request.attempt_id)
        return True

    def _put_in_order(self, queue: PopQueue, take: Take) -> None:
        """Let what was acknowledged after a message that comes again come with it, in order."""
        start = min(delivery.offset for delivery in queue.again)
        for delivery in queue.in_flight.values():
            if delivery.state is ACKNOWLEDGED and delivery.offset > start:
                take.consumption.take_back(delivery)
                delivery.move_to(RELEASED)
                delivery.serial = NO_HANDLE
                delivery.attempt = min(delivery.attempt + 1, take.attempts_max)
                queue.again.append(delivery)
                changed = Changed(queue.key, delivery.offset, NO_HANDLE, 0, delivery.attempt)
                self._journal.note(changed)
        if len(queue.again) > 1:
            ordered = sorted(queue.again, key=lambda delivery: delivery.offset)
            queue.again.clear()
            queue.again.extend(ordered)

    def _repeat(self, take: Take) -> None:
        """Hand the messages in hand of an attempt out again, with new handles, not counted."""
        for queue in take.consumption.attempts.get(take.request.attempt_id, ()):
            if not queue.is_blocked:
                continue  # the time of all is over: it is taken anew
            rows: list[Row] = []
            for delivery in list(queue.in_flight.values()):
                is_acknowledged = delivery.state is ACKNOWLEDGED
                if delivery.serial == NO_HANDLE or (is_acknowledged and not rows):
                    continue  # it comes again by itself; or with one before it that does
                row = self._deliverer.repeat(delivery, take)
                if row is not None:
                    rows.append(row)
            if rows:
                took = Took(queue.key, queue.next_offset, UNKNOWN, tuple(rows), queue.attempt_id)
                self._journal.note(took)


def _level(queue: PopQueue) -> int:
    return queue.queue_id
