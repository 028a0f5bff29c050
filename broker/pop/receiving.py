"""Receives: what is there is handed out at once; else a receive waits in its group's line."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from typing import Final

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.base.waiting import result_of
from skylarkmq.broker.net.handlers import refused
from skylarkmq.broker.net.places import PLACES_MAX, Places
from skylarkmq.broker.pop.consumption import Consumption, Waiter
from skylarkmq.broker.pop.deliveries import PopQueue
from skylarkmq.broker.pop.delivering import Deliverer, Take
from skylarkmq.broker.pop.in_flight import InFlight
from skylarkmq.broker.pop.moves import Moves
from skylarkmq.broker.pop.registry import PopRegistry
from skylarkmq.broker.pop.requests import Popped, PopRequest
from skylarkmq.broker.pop.taking import Taker
from skylarkmq.broker.requests.processor import Context
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.host_address import network_at
from skylarkmq.store.results import GetMessageResult

WAITING_MAX: Final = 1024
"""Receives that wait for messages of one group and topic."""
WAITING_IN_ALL_MAX: Final = PLACES_MAX
"""The same of all; addresses share it."""
ID_SIZE_MAX: Final = 255


class Receiver:
    """Answers receives, at once or when something has come. Loop thread."""

    def __init__(
        self,
        context: Context,
        peer_clock: Clock,
        registry: PopRegistry,
        in_flight: InFlight,
        moves: Moves,
        stats: BrokerStats,
    ) -> None:
        self._store = context.store
        self._peer_clock = peer_clock
        self._registry = registry
        self._in_flight = in_flight
        self._arrivals = in_flight.arrivals
        self._deliverer = Deliverer(context, registry, in_flight, moves, stats)
        self._taker = Taker(context.store, in_flight, self._deliverer)
        self._stats = stats
        self._places: Places[Waiter] = Places(WAITING_IN_ALL_MAX, Waiter.end)
        self._may_wait = False

    def start(self) -> None:
        """Let receives wait from now on, also after `end_polls`."""
        self._may_wait = True

    def end_polls(self) -> None:
        """Answer receives that wait, and let none wait from now on; all else goes on."""
        self._may_wait = False
        for consumption in list(self._registry.all()):
            consumption.line.wake_all()

    def end_polls_of(self, topics: Container[str]) -> int:
        """Answer receives that wait for messages of these topics; return how many there were."""
        count = 0
        for consumption in self._registry.all():
            if consumption.line.count and consumption.topic in topics:
                count += consumption.line.count
                consumption.line.end_all()
        return count

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
        consumption = self._registry.find(group, topic)
        return 0 if consumption is None else consumption.line.count

    def ready_of(self, consumption: Consumption) -> int:
        """Return about how many messages receives of a group in a topic may get now."""
        count = len(consumption.group.parked.get(consumption.topic, ()))
        for source in consumption.own_sources():
            for queue in source.queues:
                end = self._store.max_offset(queue.source.topic, queue.queue_id)
                count += max(0, end - queue.next_offset) + len(queue.again)
        return count

    def _open(self, request: PopRequest, remote_address: str) -> Consumption:
        self._in_flight.check_open()
        why = self._in_flight.journal.refusal()
        if why is not None:
            raise refused(why, ResponseCode.SERVICE_NOT_AVAILABLE)
        if max(len(request.attempt_id), len(request.client_id)) > ID_SIZE_MAX:
            raise refused(
                f"an attempt id or client id has more than {ID_SIZE_MAX} characters",
                ResponseCode.MESSAGE_ILLEGAL,
            )
        self._arrivals.listen()
        return self._registry.open(request, remote_address)

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
                if self._registry.find(request.group, request.topic) is not consumption:
                    return await self.receive(request, remote_address)  # it was deleted
                self._registry.open(request, remote_address)
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
        attempts_max = self._registry.attempts_max(request.group)
        while True:
            take = Take(consumption, request, attempts_max)
            self._taker.take(take)
            if take.cold is not None:
                if waiter is not None:
                    consumption.line.pass_on(waiter)  # others need not wait for the disk
                await self._take_cold(take, *take.cold)
            if take.popped:
                traffic = self._stats.topic_out(consumption.topic, request.group)
                traffic.count += len(take.popped)
                traffic.bytes += take.size
                return take.popped
            if take.cold is None and not take.is_unfinished:
                return []
            if self._registry.find(request.group, request.topic) is not consumption:
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
                self._arrivals.relist(queue)
        if queue.life != life or not self._in_flight.is_open:
            return
        if queue.again and queue.again[0].offset == offset:
            self._deliverer.deliver_again(queue, result, take)
        elif queue.next_offset == offset:
            self._deliverer.deliver_new(queue, result, take)
