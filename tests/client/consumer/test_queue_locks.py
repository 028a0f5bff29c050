"""QueueLocks: what is held, wanted, asleep and lost, over a lock service that a test scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, cast

from skylarkmq.client import ConnectionFailed, MessageQueue, RocketMQError
from skylarkmq.client.config import LOCK_GRACE_S, LOCK_LOST_S
from skylarkmq.client.consumer.queue_locks import LockChange, QueueLocks
from tests.support.manual_clock import ManualClock, advance_async, settle

ONE, TWO = (MessageQueue("orders", "broker-a", number) for number in range(2))
ADDRESS = "broker-a:10911"


class Locks:
    """The service: grants what is not refused, after a gate; implements `LockApi`."""

    def __init__(self) -> None:
        self.asked: list[set[MessageQueue]] = []
        self.given_up: list[set[MessageQueue]] = []
        self.refused: set[MessageQueue] = set()
        self.down = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def lock(
        self, address: str, queues: Collection[MessageQueue], timeout_s: float
    ) -> set[MessageQueue]:
        self.asked.append(set(queues))
        await self.gate.wait()
        if self.down:
            raise ConnectionFailed(address, "down")
        return set(queues) - self.refused

    async def unlock(
        self, address: str, queues: Collection[MessageQueue], timeout_s: float
    ) -> None:
        self.given_up.append(set(queues))


class Rig:
    """The locks of one member, and what they told it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.api = Locks()
        self.routes = self
        self.reconnect_listeners: set[Any] = set()
        self.doubted: list[str] = []
        self.locks = QueueLocks(cast(Any, self.api), cast(Any, self), "billing")
        self.told: list[tuple[str, set[MessageQueue]]] = []

    def failed(self, topic: str, error: RocketMQError) -> None:
        self.doubted.append(topic)

    def master_address(self, broker_name: str) -> str:
        return ADDRESS

    async def follow(self, change: LockChange) -> None:
        if change.lost:
            self.told.append(("lost", change.lost))
        if change.asleep:
            assert not any(self.locks.holds(queue) for queue in change.asleep)
            self.told.append(("asleep", change.asleep))
            awake = self.locks.wake_up(change)
            assert all(self.locks.holds(queue) for queue in awake)
            self.told.append(("awake", awake))
        if change.acquired:
            self.told.append(("acquired", set()))

    async def refreshed(self) -> bool:
        change = await self.locks.refresh()
        await self.follow(change)
        return change.complete


async def test_held_until_the_broker_has_been_silent_for_too_long() -> None:
    rig = Rig()
    assert await rig.locks.acquire([ONE]) == {ONE}
    rig.clock.advance(LOCK_LOST_S - 1)
    assert rig.locks.holds(ONE)
    assert await rig.refreshed()
    rig.api.down = True
    rig.clock.advance(LOCK_LOST_S - 1)
    assert not await rig.refreshed()
    assert rig.locks.holds(ONE)
    rig.clock.advance(1)
    assert not rig.locks.holds(ONE)
    rig.api.down = False
    assert await rig.refreshed()
    assert rig.told == [("asleep", {ONE}), ("awake", {ONE})]
    assert rig.locks.holds(ONE)


async def test_a_lock_counts_from_when_it_was_asked_for() -> None:
    rig = Rig()
    rig.api.gate.clear()
    asking = asyncio.create_task(rig.locks.acquire([ONE]))
    await settle()
    rig.clock.advance(LOCK_LOST_S)
    rig.api.gate.set()
    assert await asking == {ONE}
    assert not rig.locks.holds(ONE), "the broker's answer was as long under way"


async def test_a_queue_released_while_the_broker_is_asked_is_given_up_once_more() -> None:
    rig = Rig()
    await rig.locks.acquire([ONE, TWO])
    rig.api.gate.clear()
    refreshing = asyncio.create_task(rig.refreshed())
    await settle()
    await rig.locks.release([ONE])
    rig.api.gate.set()
    await refreshing
    assert not rig.locks.holds(ONE)
    assert rig.locks.holds(TWO)
    assert rig.api.given_up == [{ONE}, {ONE}], "the second one is behind the answer"
    await rig.refreshed()
    assert rig.api.asked[-1] == {TWO}


async def test_what_is_wanted_is_asked_for_every_second_until_it_comes_or_is_given_up() -> None:
    rig = Rig()
    rig.api.refused = {ONE, TWO}
    assert await rig.locks.acquire([ONE, TWO]) == set()
    running = asyncio.create_task(rig.locks.run(rig.follow))
    await advance_async(rig.clock, 3.5)
    assert rig.api.asked == [{ONE, TWO}] * 4
    await rig.locks.keep([ONE])
    rig.api.refused = set()
    await advance_async(rig.clock, 1)
    assert rig.told == [("acquired", set())]
    assert rig.locks.holds(ONE)
    assert rig.api.asked[4:] == [{ONE}]
    await advance_async(rig.clock, 21)
    assert rig.api.asked[5:] == [{ONE}]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert rig.reconnect_listeners == set()
    assert rig.clock.pending_count == 0


async def test_a_refusal_of_what_is_held_is_its_loss() -> None:
    rig = Rig()
    await rig.locks.acquire([ONE, TWO])
    rig.api.refused = {TWO}
    assert await rig.refreshed()
    assert rig.told == [("lost", {TWO})]
    assert rig.locks.holds(ONE)
    assert not rig.locks.holds(TWO)


async def test_after_a_reconnect_owners_come_first() -> None:
    rig = Rig()
    await rig.locks.acquire([ONE])
    running = asyncio.create_task(rig.locks.run(rig.follow))
    await settle()
    for listener in rig.reconnect_listeners:
        listener(ADDRESS)
    await settle()
    assert rig.api.asked[1:] == [{ONE}], "at once"
    assert await rig.locks.acquire([TWO]) == set()
    await advance_async(rig.clock, LOCK_GRACE_S - 1)
    assert all(TWO not in asked for asked in rig.api.asked)
    await advance_async(rig.clock, 2)
    assert rig.locks.holds(TWO)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_may_have_been_granted_is_given_up_when_the_asking_was_cancelled() -> None:
    rig = Rig()
    rig.api.gate.clear()
    asking = asyncio.create_task(rig.locks.acquire([ONE]))
    await settle()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await rig.locks.release_all()
    assert rig.api.given_up == [{ONE}]


async def test_a_lock_that_runs_out_while_the_broker_is_asked_wakes_its_queue() -> None:
    rig = Rig()
    await rig.locks.acquire([ONE])
    rig.clock.advance(LOCK_LOST_S - 1)
    rig.api.gate.clear()
    refreshing = asyncio.create_task(rig.refreshed())
    await settle()
    rig.clock.advance(2)
    assert not rig.locks.holds(ONE), "who takes messages now passes the queue over"
    rig.api.gate.set()
    assert await refreshing
    assert rig.locks.holds(ONE)
    assert rig.told == [("asleep", {ONE}), ("awake", {ONE})]


async def test_a_broker_that_gives_no_answer_may_have_been_replaced() -> None:
    rig = Rig()
    rig.api.down = True
    assert await rig.locks.acquire([ONE, TWO]) == set()
    assert rig.doubted == ["orders"]
