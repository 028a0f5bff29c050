"""What becomes of messages in hand: acknowledged, renewed, given back, given up, or expired.

A client settles a delivery by its handle; otherwise the clock does. Then the message leaves for
a topic of retries or the dead letters (`moves.py`), or comes again in place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from skylarkmq.broker.base.waiting import Outcome
from skylarkmq.broker.net.handlers import refused
from skylarkmq.broker.pop.consumption import Consumption
from skylarkmq.broker.pop.deliveries import NO_HANDLE, Delivery
from skylarkmq.broker.pop.handles import Receipt
from skylarkmq.broker.pop.in_flight import REST_MS, InFlight
from skylarkmq.broker.pop.moves import Moves
from skylarkmq.broker.pop.registry import PopRegistry
from skylarkmq.broker.pop.states import ACQUIRED, MOVING, RELEASED
from skylarkmq.protocol.codes import ResponseCode

RENEWALS_MS: Final = (60_000, 180_000, 300_000, 600_000, 1_800_000, 3_600_000)
RENEWED_MAX_MS: Final = 3 * 3_600_000


class Settlement:
    """Settles deliveries. Loop thread."""

    def __init__(self, registry: PopRegistry, in_flight: InFlight, moves: Moves) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None  # once something was acknowledged
        self._registry = registry
        self._in_flight = in_flight
        self._timeouts = in_flight.timeouts
        self._arrivals = in_flight.arrivals
        self._moves = moves
        self._forwarding: dict[tuple[str, str, Receipt], asyncio.Future[bool]] = {}

    async def ack(self, group: str, topic: str, receipt: Receipt) -> bool:
        """Note that a message is consumed, and return when that is durable.

        Returns:
            False when the handle says nothing any more: its time was over, or it was changed.
        """
        return (await self.ack_all(group, topic, (receipt,)))[0]

    async def ack_all(self, group: str, topic: str, receipts: Sequence[Receipt]) -> list[bool]:
        """Do as `ack` with several, and wait once."""
        self._in_flight.check_open()
        consumption = self._registry.find(group, topic)
        if consumption is None:
            return [False] * len(receipts)
        known: list[bool] = []
        for receipt in receipts:
            delivery = _find(consumption, receipt)
            if delivery is None:
                known.append(receipt in consumption.ended)
                continue
            self._in_flight.acknowledge(consumption, delivery)
            consumption.ended.append(receipt)
            known.append(True)
        if any(known):
            await self._durable()
        return known

    async def change_invisible(
        self, group: str, topic: str, receipt: Receipt, invisible_ms: int, *, suspends: bool = False
    ) -> Receipt | None:
        """Let a message come again at another time, counted from now; return its new handle.

        Args:
            suspends: this delivery does not count; the message rests in place, and nobody has it:
                the new handle says nothing.

        Returns:
            None when the handle says nothing any more.
        """
        self._in_flight.check_open()
        delivery = _find(self._registry.find(group, topic), receipt)
        if delivery is None:
            return None
        serial = delivery.serial = self._in_flight.next_serial()
        delivery.renewals = -1
        if suspends:
            delivery.let_go(RELEASED)
        self._in_flight.hold(delivery, invisible_ms)
        await self._durable()
        return receipt._replace(serial=serial)

    def give_back(self, group: str, topic: str, receipts: Iterable[Receipt]) -> None:
        """Let messages that a client never got come again in place, soon and not counted."""
        consumption = self._registry.find(group, topic)
        for receipt in receipts:
            delivery = _find(consumption, receipt)
            if delivery is not None:
                self._in_flight.rest(delivery)

    def release_client(self, client_id: str, group: str) -> None:
        """Let what the broker prolongs for a client of a group end soon: it is gone.

        What has a time of its own keeps it: its handles may be in other hands.
        """
        found = self._registry.groups.get(group)
        if found is None:
            return
        due_ms = self._timeouts.now_ms() + REST_MS
        for delivery in list(found.clients.get(client_id, ())):
            if delivery.renewals < 0:
                continue
            delivery.renewals = -1
            if delivery.due_ms > due_ms:
                self._in_flight.hold(delivery, REST_MS)

    async def forward_to_dlq(self, group: str, topic: str, receipt: Receipt) -> bool:
        """Store a message among the group's dead letters, then it is done. Once a handle.

        Returns:
            False when the handle says nothing any more.

        Raises:
            RemoteProtocolError: the dead letter could not be stored; the handle is as before.
        """
        self._in_flight.check_open()
        key = group, topic, receipt
        under_way = self._forwarding.get(key)
        if under_way is None:
            consumption = self._registry.find(group, topic)
            delivery = _find(consumption, receipt)
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
        left_ms = delivery.due_ms - self._timeouts.now_ms()
        delivery.move_to(MOVING)
        delivery.serial = NO_HANDLE
        delivery.to_dead_letters = True
        self._timeouts.cancel(delivery)

        def answered(is_kept: bool) -> None:
            if ended.done():
                return  # a batch that fails answers all, also those who have an answer
            del self._forwarding[key]
            if is_kept:
                consumption.ended.append(receipt)
                self._arrivals.relist(delivery.queue)
            elif delivery.state is MOVING:  # nothing else has ended it meanwhile
                delivery.move_to(ACQUIRED)
                delivery.serial = receipt.serial
                delivery.to_dead_letters = False
                self._timeouts.set(delivery, self._timeouts.now_ms() + max(left_ms, REST_MS))
            ended.set_result(is_kept)

        self._moves.add(delivery, answered)
        return ended

    async def _durable(self) -> None:
        """Return when what was noted so far is durable.

        Raises:
            RemoteProtocolError: the disk does not take it; it counts as long as the broker runs.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        ended: Outcome[BaseException | None] = Outcome(loop=self._loop)
        self._in_flight.journal.after(ended.tell)
        error = await ended
        if error is not None:
            raise refused(
                f"the change is in force, but could not be written to the disk: {error}",
                ResponseCode.SERVICE_NOT_AVAILABLE,
            )

    # The clock

    def expired(self, deliveries: list[Delivery]) -> None:
        """Go on with deliveries whose time is over."""
        for delivery in deliveries:
            if delivery.state is RELEASED:
                self._in_flight.come_again(delivery)
            elif not self._prolong(delivery):
                self._expire(delivery)

    def _prolong(self, delivery: Delivery) -> bool:
        """Renew a delivery of a client that wants that; False when it is over.

        The last time is the wait that its group has after such an attempt.
        """
        if delivery.renewals < 0:
            return False
        rest_ms = RENEWED_MAX_MS - (self._timeouts.now_ms() - delivery.since_ms)
        if rest_ms > 0:
            span_ms = min(RENEWALS_MS[min(delivery.renewals, len(RENEWALS_MS) - 1)], rest_ms)
            delivery.renewals += 1
        else:
            group = delivery.queue.source.group.name
            span_ms = self._registry.retry_wait_ms(group, delivery.attempt)
            delivery.renewals = -1
        self._in_flight.hold(delivery, span_ms)
        return True

    def _expire(self, delivery: Delivery) -> None:
        queue = delivery.queue
        is_last = delivery.attempt >= self._registry.attempts_max(queue.source.group.name)
        if not is_last and (queue.is_fifo or not self._has_retries(delivery)):
            self._in_flight.retry_in_place(delivery)
            return
        delivery.let_go(MOVING)
        if is_last:
            delivery.to_dead_letters = True
        self._moves.add(delivery)
        if queue.is_fifo:
            self._arrivals.relist(queue)

    def _has_retries(self, delivery: Delivery) -> bool:
        consumption = delivery.queue.source.group.consumptions.get(delivery.topic)
        return consumption is not None and consumption.has_retries


def _find(consumption: Consumption | None, receipt: Receipt) -> Delivery | None:
    """Return the delivery that a handle names, while it may end that."""
    if consumption is None:
        return None
    queue = consumption.queue_of(receipt.kind, receipt.queue_id)
    delivery = None if queue is None else queue.in_flight.get(receipt.offset)
    if delivery is None or delivery.state is not ACQUIRED or delivery.serial != receipt.serial:
        return None
    return delivery
