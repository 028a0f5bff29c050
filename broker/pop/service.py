"""Pop consumption for whoever speaks a protocol: receive, acknowledge, change the invisible time.

    receive   what is there is handed out at once; else it waits, first come first served, and is
              woken in the turn after the one that publishes something, also a retry
    done      acknowledged, or moved to another topic: in memory at once, answered when it is as
              durable in the journal as the flush mode makes it
    lapse     within SLOT_MS of its time a message leaves for a topic of retries (`moves.py`) with
              one more attempt, or for the dead letters; where order counts it comes again in place

The group's offset is the first message that is not done (`deliveries.py`). Where somebody else
changes that in the table of offsets, an administrator for one, the change wins: nothing is in
flight then, and handles from before say nothing any more. A message that was never handed over is
given back: it comes again in place after a second, not counted.

Only a master does this. What is in flight is not replicated: after a failover it comes again.

Source: apache/rocketmq@rocketmq-all-5.3.3 broker/.../processor/PopMessageProcessor.java,
AckMessageProcessor.java, ChangeInvisibleTimeProcessor.java
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final, Protocol

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.base.waiting import Outcome, result_of
from skylarkmq.broker.net.handlers import refused
from skylarkmq.broker.net.places import PLACES_MAX, Places
from skylarkmq.broker.pop.consumption import Consumption, PopGroup, Source, Waiter, let_go
from skylarkmq.broker.pop.deliveries import NOBODY, Delivery, Lapses, PopQueue
from skylarkmq.broker.pop.handles import OLD_RETRY, PLUS_RETRY, RETRY, Receipt
from skylarkmq.broker.pop.journal_check import verified
from skylarkmq.broker.pop.moves import Moves
from skylarkmq.broker.pop.outside import Outside
from skylarkmq.broker.pop.registry import PopRegistry
from skylarkmq.broker.pop.requests import Popped, PopRequest
from skylarkmq.broker.pop.restoring import LiveState, StoredQueues, restore
from skylarkmq.broker.pop.taking import Limits, Take, Taker
from skylarkmq.broker.requests.processor import Context
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.host_address import network_at
from skylarkmq.store.pop.journal_records import (
    ACKNOWLEDGED,
    UNKNOWN,
    Changed,
    Done,
    Forgot,
    Left,
    Moved,
    PopState,
    Took,
)
from skylarkmq.store.results import GetMessageResult

log = logging.getLogger(__name__)

WAITING_MAX: Final = 1024
"""Receives that wait for messages of one group and topic."""
WAITING_IN_ALL_MAX: Final = PLACES_MAX
"""The same of all; addresses share it."""
ID_SIZE_MAX: Final = 255
REST_MS: Final = 1000
"""After so long a message comes again that was not handed over, or whose client is gone."""
RENEWALS_MS: Final = (60_000, 180_000, 300_000, 600_000, 1_800_000, 3_600_000)
RENEWED_MAX_MS: Final = 3 * 3_600_000

Told = Callable[[BaseException | None], None]


class Journal(Protocol):
    """Where changes are written down; see `PopJournal`."""

    def load(self) -> PopState: ...

    def discard(self) -> None: ...

    def begin(self, state: PopState, live: LiveState) -> None: ...

    def note(self, record: Took | Done | Left | Changed | Moved | Forgot) -> None: ...

    def after(self, done: Told, *, is_synced: bool = False) -> None: ...

    def refusal(self) -> str | None: ...

    async def stop(self) -> None: ...


class PopService:
    """Hands out messages one by one. Loop thread."""

    def __init__(
        self, context: Context, journal: Journal, peer_clock: Clock, stats: BrokerStats
    ) -> None:
        """Make it; nothing is handed out before `start`.

        Args:
            peer_clock: what waiting clients are measured by.
        """
        self._loop: asyncio.AbstractEventLoop | None = None  # once something was acknowledged
        self._store = context.store
        self._topics = context.topics
        self._offsets = context.offsets
        self._clock = context.clock
        self._peer_clock = peer_clock
        self._stats = stats
        self.journal = journal
        config = context.config
        self.registry = PopRegistry(context)
        self.lapses = Lapses(context.clock, self._lapsed)
        limits = Limits(
            config.pop_inflight_max_per_queue,
            config.pop_inflight_max_per_group,
            config.pop_inflight_max,
        )
        self._limits = limits
        self.taker = Taker(
            context.store,
            context.clock,
            self.lapses,
            limits,
            journal,
            self.registry,
            self._settle,
            stats,
        )
        self._retries = PLUS_RETRY if config.enable_retry_topic_v2 else RETRY
        self.moves = Moves(context.store, context.topics, context.clock, self, self._retries)
        self._places: Places[Waiter] = Places(WAITING_IN_ALL_MAX, Waiter.end)
        self._is_running = False
        self._may_wait = False
        self._has_begun = False
        self._listens = False
        self._loaded: PopState | None = None
        self._forwarding: dict[tuple[str, str, Receipt], asyncio.Future[bool]] = {}
        self._to_wake: list[Consumption] = []
        self._is_waking = False
        self._outside = Outside(context, self)

    # Life cycle

    def load(self) -> None:
        """Read what was in flight at the last stop; the store and the tables are loaded. Blocks.

        Raises:
            CorruptFileError: the journal was written by a later release.
            OSError: the disk failed.
        """
        store = self._store
        if store.follows:
            self.journal.discard()  # its log may have been cut, and have grown anew
            return
        recovery = store.recovery
        self._loaded = verified(
            self.journal.load(),
            StoredQueues(store, self._offsets),
            store.commit_log.max_offset,
            is_store_clean=recovery is not None and recovery.clean,
        )

    def start(self) -> None:
        """Hand out from now on, also after `stop`. This is a master, its store has started.

        The first time it blocks for a write of the journal, if something was in flight.

        Raises:
            OSError: the disk refused that.
        """
        self._is_running = self._may_wait = True
        self.moves.start()
        self.lapses.start()
        loaded, self._loaded = self._loaded, None
        if not self._has_begun:
            self._has_begun = True
            kept = restore(loaded or PopState(), self.registry, self.taker)
            self.journal.begin(kept, LiveState(self.registry, self.taker, self._store))
        if self.registry.groups:
            self._listen()
        for queue in self.registry.queues():
            for delivery in queue.in_flight.values():
                if (
                    delivery.due_ms < 0
                    and delivery.copy_physical == UNKNOWN
                    and not delivery.is_acked
                    and delivery not in queue.again
                ):  # a copy was under way
                    self.lapses.hold(delivery, self.lapses.now_ms())
            self.relist(queue)

    def end_polls(self) -> None:
        """Answer receives that wait, and let none wait from now on; all else goes on."""
        self._may_wait = False
        for consumption in list(self.registry.all()):
            consumption.line.wake_all()

    def end_polls_of(self, topics: Container[str]) -> int:
        """Answer receives that wait for messages of these topics; return how many there were."""
        count = 0
        for consumption in self.registry.all():
            if consumption.line.count and consumption.topic in topics:
                count += consumption.line.count
                consumption.line.end_all()
        return count

    async def stop(self) -> None:
        """Hand out nothing more: answer receives that wait, and end copies under way.

        What is in flight stays known, for `start`.
        """
        self._is_running = False
        self.end_polls()
        self.lapses.stop()
        await self.moves.stop()

    async def close(self) -> None:
        """End the journal, after `stop`. The store still writes, the offsets are written after."""
        await self.journal.stop()

    # Receive

    async def receive(self, request: PopRequest, remote_address: str = "") -> list[Popped]:
        """Return messages for a client, waiting for the first one until the request's time is over.

        Whoever cancels it has nothing in hand.

        Args:
            remote_address: of the client, for what is made on demand.

        Returns:
            None when there was nothing until then.

        Raises:
            RemoteProtocolError: SYSTEM_BUSY when too many wait, of all those addresses have
                shares; or the code for what is wrong with topic, group or permission.
        """
        consumption = self._open(request, remote_address)
        may_wait = self._may_wait and request.until_s > self._peer_clock.monotonic()
        is_first = not consumption.line.count or request.attempt_id in consumption.attempts
        if is_first or not may_wait:
            popped = await self._take(consumption, request, None)
            if popped or not may_wait:
                return popped
        return await self._wait(consumption, request, remote_address)

    async def wait_ready(self, request: PopRequest, remote_address: str = "") -> bool:
        """Return True as soon as a receive may find something, False when the time is over.

        Nothing is taken. Raises as `receive`.
        """
        consumption = self._open(request, remote_address)
        if consumption.has_ready(request):
            return True
        if not self._may_wait or request.until_s <= self._peer_clock.monotonic():
            return False
        waiter = self._join_line(consumption, request, remote_address)
        timer = self._peer_clock.call_at(request.until_s, waiter.tell, False)
        try:
            await waiter.wait()
            return consumption.has_ready(request)
        finally:
            timer.cancel()
            self._leave_line(consumption, waiter)

    @property
    def waiting_count(self) -> int:
        """How many receives wait."""
        return self._places.count

    def waiting(self, group: str, topic: str) -> int:
        """Return how many receives wait for messages of a group and topic."""
        consumption = self.registry.find(group, topic)
        return 0 if consumption is None else consumption.line.count

    def ready(self, group: str, topic: str) -> int:
        """Return about how many messages receives of a group and topic may get now."""
        consumption = self.registry.find(group, topic)
        return 0 if consumption is None else self.ready_of(consumption)

    def ready_of(self, consumption: Consumption) -> int:
        """Return the same of a group in a topic."""
        count = len(consumption.group.parked.get(consumption.topic, ()))
        for source in consumption.own_sources():
            for queue in source.queues:
                end = self._store.max_offset(queue.source.topic, queue.queue_id)
                count += max(0, end - queue.next_offset) + len(queue.again)
        return count

    def _check_running(self) -> None:
        if not self._is_running:
            raise refused(
                "this broker is not a master now, or stops", ResponseCode.SERVICE_NOT_AVAILABLE
            )

    def _open(self, request: PopRequest, remote_address: str) -> Consumption:
        self._check_running()
        why = self.journal.refusal()
        if why is not None:
            raise refused(why, ResponseCode.SERVICE_NOT_AVAILABLE)
        if max(len(request.attempt_id), len(request.client_id)) > ID_SIZE_MAX:
            raise refused(
                f"an attempt id or client id has more than {ID_SIZE_MAX} characters",
                ResponseCode.MESSAGE_ILLEGAL,
            )
        self._listen()
        return self.registry.open(request, remote_address)

    def _listen(self) -> None:
        if not self._listens:
            self._listens = True
            self._store.add_arrival_listener(self._arrived)

    def _join_line(
        self, consumption: Consumption, request: PopRequest, remote_address: str
    ) -> Waiter:
        waiter = Waiter(request, network_at(remote_address))
        if consumption.line.count >= WAITING_MAX or not self._places.take(waiter.network, waiter):
            self._stats.rejected("pop", "queue_full")
            raise refused("polling full", ResponseCode.SYSTEM_BUSY)
        consumption.line.add(waiter)
        return waiter

    def _leave_line(self, consumption: Consumption, waiter: Waiter) -> None:
        self._places.leave(waiter.network, waiter)
        consumption.line.leave(waiter)

    async def _wait(
        self, consumption: Consumption, request: PopRequest, remote_address: str
    ) -> list[Popped]:
        waiter = self._join_line(consumption, request, remote_address)
        timer = self._peer_clock.call_at(request.until_s, waiter.tell, False)
        try:
            if consumption.has_ready(request):
                consumption.line.wake()
            while self._may_wait and request.until_s > self._peer_clock.monotonic():
                await waiter.wait()
                if waiter.is_over or not self._may_wait:
                    break
                if self.registry.find(request.group, request.topic) is not consumption:
                    return await self.receive(request, remote_address)  # it was deleted
                self.registry.open(request, remote_address)
                popped = await self._take(consumption, request, waiter)
                if popped:
                    return popped
                consumption.line.pass_on(waiter)
        finally:
            timer.cancel()
            self._leave_line(consumption, waiter)
        return []

    async def _take(
        self, consumption: Consumption, request: PopRequest, waiter: Waiter | None
    ) -> list[Popped]:
        attempts_max = self.registry.attempts_max(request.group)
        while True:
            take = Take(consumption, request, attempts_max)
            self.taker.take(take)
            if take.cold is not None:
                if waiter is not None:
                    consumption.line.pass_on(waiter)  # others need not wait for the disk
                await self._take_cold(take, *take.cold)
            for delivery in take.dead:
                self.moves.add(delivery)
            if take.popped:
                traffic = self._stats.topic_out(consumption.topic, request.group)
                traffic.count += len(take.popped)
                traffic.bytes += take.size
                return take.popped
            if take.cold is None and not take.is_unfinished:
                return []
            if self.registry.find(request.group, request.topic) is not consumption:
                return []
            if take.is_unfinished:
                await asyncio.sleep(0)

    async def _take_cold(self, take: Take, queue: PopQueue, offset: int, count: int) -> None:
        """Read off the loop and hand that out; nobody else reads of the queue meanwhile."""
        matches, life = take.request.matches.stored, queue.life
        topic, queue_id = queue.source.topic, queue.queue_id
        queue.is_reading = True
        try:
            result: GetMessageResult = await result_of(
                lambda done: self._store.get_message_cold(
                    topic, queue_id, offset, count, None, matches, done
                )
            )
        finally:
            if queue.life == life:
                queue.is_reading = False
                self.relist(queue)
        if queue.life != life or not self._is_running:
            return
        if queue.again and queue.again[0].offset == offset:
            self.taker.use_again(queue, result, take)
        elif queue.next_offset == offset:
            self.taker.use(queue, result, take)

    # What ends a delivery

    async def ack(self, group: str, topic: str, receipt: Receipt) -> bool:
        """Note that a message is consumed, and return when that is durable.

        Returns:
            False when the handle says nothing any more: it lapsed, or was changed.
        """
        return (await self.ack_all(group, topic, (receipt,)))[0]

    async def ack_all(self, group: str, topic: str, receipts: Sequence[Receipt]) -> list[bool]:
        """Do as `ack` with several, and wait once."""
        self._check_running()
        consumption = self.registry.find(group, topic)
        if consumption is None:
            return [False] * len(receipts)
        known: list[bool] = []
        for receipt in receipts:
            delivery = _find(consumption, receipt)
            if delivery is None:
                known.append(receipt in consumption.ended)
                continue
            self._acknowledge(consumption, delivery)
            consumption.ended.append(receipt)
            known.append(True)
        if any(known):
            await self._durable()
        return known

    async def change_invisible(
        self,
        group: str,
        topic: str,
        receipt: Receipt,
        invisible_ms: int,
        *,
        suspends: bool = False,
    ) -> Receipt | None:
        """Let a message come again at another time, counted from now; return its new handle.

        Args:
            suspends: this delivery does not count; the message rests in place, and nobody has it:
                the new handle says nothing.

        Returns:
            None when the handle says nothing any more.
        """
        self._check_running()
        consumption = self.registry.find(group, topic)
        delivery = None if consumption is None else _find(consumption, receipt)
        if consumption is None or delivery is None:
            return None
        serial = delivery.serial = self.taker.next_serial()
        delivery.renewals = -1
        if suspends:
            let_go(delivery)
        self._hold(delivery, invisible_ms)
        await self._durable()
        return receipt._replace(serial=serial)

    def renew(self, group: str, topic: str, receipt: Receipt, invisible_ms: int) -> bool:
        """Let a message come again at another time; its handle stays what it is.

        Returns:
            False when the handle says nothing any more.
        """
        consumption = self.registry.find(group, topic)
        delivery = None if consumption is None else _find(consumption, receipt)
        if delivery is None:
            return False
        self._hold(delivery, invisible_ms)
        return True

    def give_back(self, group: str, topic: str, receipts: Iterable[Receipt]) -> None:
        """Let messages that a client never got come again in place, soon and not counted."""
        consumption = self.registry.find(group, topic)
        for receipt in receipts:
            delivery = None if consumption is None else _find(consumption, receipt)
            if delivery is not None:
                self._rest(delivery)

    def release_client(self, client_id: str, group: str) -> None:
        """Let what the broker prolongs for a client of a group lapse soon: it is gone.

        What has a time of its own keeps it: its handles may be in other hands.
        """
        found = self.registry.groups.get(group)
        if found is None:
            return
        due_ms = self.lapses.now_ms() + REST_MS
        for delivery in list(found.clients.get(client_id, ())):
            if delivery.renewals < 0:
                continue
            delivery.renewals = -1
            if delivery.due_ms > due_ms:
                self._hold(delivery, REST_MS)

    async def forward_to_dlq(self, group: str, topic: str, receipt: Receipt) -> bool:
        """Store a message among the group's dead letters, then it is done. Once a handle.

        Returns:
            False when the handle says nothing any more.

        Raises:
            RemoteProtocolError: the dead letter could not be stored; the handle is as before.
        """
        self._check_running()
        key = group, topic, receipt
        under_way = self._forwarding.get(key)
        if under_way is None:
            consumption = self.registry.find(group, topic)
            delivery = None if consumption is None else _find(consumption, receipt)
            if consumption is None or delivery is None:
                if consumption is None or receipt not in consumption.ended:
                    return False
                await self._durable()  # it was acknowledged a moment ago
                return True
            under_way = self._forward(consumption, delivery, receipt)
        if not await asyncio.shield(under_way):
            raise refused("the dead letter could not be stored, try again later")
        await self._durable()
        return True

    def _forward(
        self, consumption: Consumption, delivery: Delivery, receipt: Receipt
    ) -> asyncio.Future[bool]:
        ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        key = consumption.group.name, consumption.topic, receipt
        self._forwarding[key] = ended
        left_ms, life = delivery.due_ms - self.lapses.now_ms(), delivery.queue.life
        delivery.serial = NOBODY
        delivery.to_dead_letters = True
        self.lapses.release(delivery)

        def told(is_kept: bool) -> None:
            del self._forwarding[key]
            if is_kept:
                consumption.ended.append(receipt)
                self.relist(delivery.queue)
            elif delivery.queue.life == life:
                delivery.serial = receipt.serial
                delivery.to_dead_letters = False
                self.lapses.hold(delivery, self.lapses.now_ms() + max(left_ms, REST_MS))
            ended.set_result(is_kept)

        self.moves.add(delivery, told)
        return ended

    async def _durable(self) -> None:
        """Return when what was noted so far is durable.

        Raises:
            RemoteProtocolError: the disk does not take it; it counts as long as the broker runs.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        ended: Outcome[BaseException | None] = Outcome(loop=self._loop)
        self.journal.after(ended.tell)
        error = await ended
        if error is not None:
            raise refused(
                f"the change is in force, but could not be written to the disk: {error}",
                ResponseCode.SERVICE_NOT_AVAILABLE,
            )

    def _acknowledge(self, consumption: Consumption, delivery: Delivery) -> None:
        """Note that a message is consumed; in an ordered queue as soon as all before it are."""
        queue = delivery.queue
        if not queue.is_fifo or delivery is queue.first:
            self._done(consumption, delivery)
            return
        self.taker.keep_acknowledged(delivery)
        self._note_change(delivery, ACKNOWLEDGED)
        self.relist(queue)

    def _done(self, consumption: Consumption | None, delivery: Delivery) -> None:
        queue = delivery.queue
        self._end(delivery)
        if queue.is_fifo:
            while (first := queue.first) is not None and first.is_acked:
                self._end(first)
            if not queue.in_flight and consumption is not None:
                self.taker.close_batch(queue, consumption)
            if not queue.is_blocked:
                self.relist(queue)
        elif self.taker.full:
            self._make_room(queue)

    def _end(self, delivery: Delivery) -> None:
        self.taker.end(delivery)
        self.journal.note(Done(delivery.queue.key, delivery.offset))

    def _make_room(self, queue: PopQueue) -> None:
        """Go on with queues that were full, not before a quarter of the room is free again."""
        limits, group = self._limits, queue.source.group
        again: list[PopQueue] = []
        if group.in_flight == limits.per_group * 3 // 4 or (
            self.taker.in_flight == limits.in_all * 3 // 4
        ):
            again = list(self.taker.full)
        elif queue.is_full and len(queue.in_flight) <= limits.per_queue * 3 // 4:
            again = [queue]
        for queue in again:
            self.unblock(queue)

    def unblock(self, queue: PopQueue) -> None:
        """Take from a queue again that was full."""
        self.taker.full.discard(queue)
        queue.is_full = False
        self.relist(queue)

    def relist(self, queue: PopQueue) -> None:
        """Let receives look at a queue again, if it has something for them."""
        if not queue.is_listed and self.taker.has_more(queue):
            queue.source.list(queue)
            self._wake(queue.source)

    def _hold(self, delivery: Delivery, invisible_ms: int) -> None:
        """Let a delivery lapse at another time, and note that."""
        self.lapses.hold(delivery, self.lapses.now_ms() + invisible_ms)
        self._note_change(delivery, self._clock.now_ms() + invisible_ms)

    def _note_change(self, delivery: Delivery, visible_ms: int) -> None:
        self.journal.note(
            Changed(
                delivery.queue.key,
                delivery.offset,
                delivery.serial,
                visible_ms,
                delivery.attempt,
            )
        )

    def _rest(self, delivery: Delivery) -> None:
        """Take a message back from nobody: after a moment it comes again in place."""
        let_go(delivery)
        self._hold(delivery, REST_MS)

    # The clock

    def _lapsed(self, deliveries: list[Delivery]) -> None:
        """Go on with deliveries whose time is over."""
        for delivery in deliveries:
            if delivery.serial == NOBODY:
                self._come_again(delivery)
            elif not self._prolong(delivery):
                self._lapse(delivery)

    def _prolong(self, delivery: Delivery) -> bool:
        """Renew a delivery of a client that wants that; False when it is over.

        The last time is the wait that its group has after such an attempt.
        """
        if delivery.renewals < 0:
            return False
        rest_ms = RENEWED_MAX_MS - (self.lapses.now_ms() - delivery.since_ms)
        if rest_ms > 0:
            span_ms = min(RENEWALS_MS[min(delivery.renewals, len(RENEWALS_MS) - 1)], rest_ms)
            delivery.renewals += 1
        else:
            group = delivery.queue.source.group.name
            span_ms = self.registry.retry_wait_ms(group, delivery.attempt)
            delivery.renewals = -1
        self._hold(delivery, span_ms)
        return True

    def _lapse(self, delivery: Delivery) -> None:
        queue = delivery.queue
        let_go(delivery)
        if delivery.attempt >= self.registry.attempts_max(queue.source.group.name):
            delivery.to_dead_letters = True
            self.moves.add(delivery)
        elif queue.is_fifo or not self._has_retries(delivery):
            self.stays(delivery)
            return
        else:
            self.moves.add(delivery)
        if queue.is_fifo:
            self.relist(queue)

    def _has_retries(self, delivery: Delivery) -> bool:
        consumption = delivery.queue.source.group.consumptions.get(delivery.topic)
        return consumption is not None and consumption.has_retries

    def _come_again(self, delivery: Delivery) -> None:
        queue = delivery.queue
        if delivery.topic and queue.source.kind == OLD_RETRY:
            queue.source.group.park(delivery)
            self._wake_topic(queue.source.group, delivery.topic)
        else:
            queue.again.append(delivery)
            self.relist(queue)

    # What `Moves` asks

    def prepare(self, topic: str, group: str) -> None:
        """Read what is stored in a topic of retries from now on."""
        consumption = self.registry.find(group, topic)
        if consumption is not None and self._retries not in consumption.retries:
            self.registry.extend(consumption)

    def left(self, delivery: Delivery, copy_physical: int) -> None:
        """Note where a copy lies that a power cut may still take; an ordered queue goes on."""
        queue = delivery.queue
        delivery.copy_physical = copy_physical
        self.journal.note(Left(queue.key, delivery.offset, copy_physical))
        if queue.is_fifo and not queue.is_blocked:
            self.relist(queue)

    def moved(self, delivery: Delivery) -> None:
        """Note that a message is done: its copy is on the disk, or it cannot be read any more."""
        group = delivery.queue.source.group
        if delivery.to_dead_letters:
            self._stats.dead_letter(delivery.topic, group.name).count += 1
        else:
            self._stats.topic_back(delivery.topic, group.name).count += 1
        self._done(group.consumptions.get(delivery.topic), delivery)

    def stays(self, delivery: Delivery) -> None:
        """Let a message come again in place, with one more attempt."""
        delivery.attempt += 1
        self._note_change(delivery, self._clock.now_ms())
        self._come_again(delivery)

    # Arrivals

    def _arrived(self, topic: str, queue_id: int, _max_offset: int) -> None:
        sources = self.registry.by_topic.get(topic)
        if sources is None:
            return
        for source in sources.values():
            if queue_id < len(source.queues):
                queue = source.queues[queue_id]
                if not (queue.is_listed or queue.is_full or queue.is_reading) and not (
                    queue.is_fifo and queue.is_blocked
                ):
                    source.list(queue)
                    self._wake(source)

    def _wake(self, source: Source) -> None:
        """Wake who waits for a source, in the next turn: this may be a sender's."""
        if source.asked_topic:
            self._wake_topic(source.group, source.asked_topic)
        else:
            for topic in source.group.consumptions:
                self._wake_topic(source.group, topic)

    def _wake_topic(self, group: PopGroup, topic: str) -> None:
        consumption = group.consumptions.get(topic)
        if consumption is None or not consumption.line.count:
            return
        self._to_wake.append(consumption)
        if not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._wake_all)

    def _wake_all(self) -> None:
        self._is_waking = False
        to_wake, self._to_wake = self._to_wake, []
        for consumption in dict.fromkeys(to_wake):
            consumption.line.wake()

    def _settle(self, queue: PopQueue) -> None:
        source = queue.source
        self._offsets.advance(source.group.name, source.topic, queue.queue_id, queue.mark)


def _find(consumption: Consumption, receipt: Receipt) -> Delivery | None:
    """Return the delivery that a handle names, while it may end that."""
    queue = consumption.queue_of(receipt.kind, receipt.queue_id)
    delivery = None if queue is None else queue.in_flight.get(receipt.offset)
    if delivery is None or delivery.serial != receipt.serial or not receipt.serial:
        return None
    if delivery.is_acked:
        return None
    return delivery
