"""The locks of an ordered consumer's queues, held on the brokers.

    wanted --granted--> held --refreshed every 20 s--> held
           --refused--> asked for again every second
    held   --30 s without an answer of the broker--> asleep: nothing is handed out
    asleep --granted--> held again      --refused--> lost: another member has the queue

The broker forgets a lock 60 s after it was last asked for, and all locks when it restarts. So a
member that cannot reach its broker stops 30 s before another member may begin. After a lost
connection was made again, or another broker has become the master, a member asks at once for the
locks that it held, and 10 s later for the others. (A member that starts within those seconds knows
of no restart, and may get a queue whose owner is still at work.)

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/consumer/RebalanceImpl.java (lock,
lockAll, unlock), ProcessQueue.java (isLockExpired)
Unlike RocketMQ: a queue is dropped when another member has got its lock. It is not kept until the
lock comes back, because its messages may have been handled by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from skylarkmq.client.config import (
    LOCK_GRACE_S,
    LOCK_LOST_S,
    LOCK_REFRESH_S,
    LOCK_RETRY_S,
    LOCK_TIMEOUT_S,
)
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.services import Services
from skylarkmq.client.wire.api_consumer import LockApi
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.remoting.waiting import wait_event

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LockChange:
    """What one refresh has found out."""

    complete: bool
    """False when a broker did not answer."""
    lost: set[MessageQueue]
    """Another member has these."""
    asleep: set[MessageQueue]
    """These are this member's still, and are held again after `wake_up`."""
    acquired: bool
    """True when queues that were wanted are this member's now."""
    asked_s: float
    """When the brokers were asked, monotonic."""


class QueueLocks:
    """The locks of one member. Loop thread."""

    def __init__(self, api: LockApi, services: Services, group: str) -> None:
        self._api = api
        self._services = services
        self._routes = services.routes
        self._clock = services.clock
        self._group = group
        # Until when each lock holds, monotonic.
        self._until_s: dict[MessageQueue, float] = {}
        # Invariant: apart from the keys of _until_s.
        self._wanted: set[MessageQueue] = set()
        self._changed = asyncio.Event()
        self._in_a_hurry = False
        # By address: until when new locks are not asked for, monotonic.
        self._grace_s: dict[str, float] = {}

    def holds(self, queue: MessageQueue) -> bool:
        """Return whether messages of the queue may be handed out."""
        until_s = self._until_s.get(queue)
        return until_s is not None and self._clock.monotonic() < until_s

    async def acquire(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        """Return those of the queues that are locked now; go on asking for the others."""
        fresh = set(queues) - self._wanted
        self._wanted.update(fresh - self._until_s.keys())
        asked_s = self._clock.monotonic()
        granted, _ = await self._ask([queue for queue in queues if self._may_ask(queue)])
        self._note(granted, asked_s)
        missing = set(queues) - granted
        if missing & fresh:
            log.info("group %s: waiting for the locks of %s", self._group, sorted(missing))
            self._changed.set()
        return granted

    async def keep(self, queues: Collection[MessageQueue]) -> None:
        """Give up what is held or wanted beyond these queues."""
        await self.release((self._until_s.keys() | self._wanted).difference(queues))

    async def release(self, queues: Collection[MessageQueue]) -> None:
        """Give locks up; a broker that does not hear of it forgets them after a minute."""
        for queue in queues:
            self._wanted.discard(queue)
            self._until_s.pop(queue, None)
        calls = [
            self._api.unlock(address, mine, LOCK_TIMEOUT_S)
            for address, mine in self._by_address(queues).items()
        ]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                log.debug("group %s: unlocking: %s", self._group, outcome)

    async def release_all(self) -> None:
        """Give up all locks that are held, or may be held because they were asked for."""
        await self.release(self._until_s.keys() | self._wanted)

    async def run(self, follow: Callable[[LockChange], Awaitable[None]]) -> None:
        """Refresh until cancelled; `follow` is awaited with what each refresh has found out."""
        listeners = self._services.reconnect_listeners
        listeners.add(self._reconnected)
        try:
            while True:
                wait_s = LOCK_RETRY_S if self._wanted or self._in_a_hurry else LOCK_REFRESH_S
                if await wait_event(self._clock, self._changed, wait_s):
                    self._changed.clear()
                    if not self._in_a_hurry:
                        continue
                self._in_a_hurry = False
                try:
                    change = await self.refresh()
                    await follow(change)
                    complete = change.complete
                except Exception:
                    complete = False
                    log.exception("group %s: locks not refreshed, tried again soon", self._group)
                self._in_a_hurry = self._in_a_hurry or not complete
        finally:
            listeners.discard(self._reconnected)

    async def refresh(self) -> LockChange:
        """Ask once for all that is held or wanted."""
        held = set(self._until_s)
        wanted = {queue for queue in self._wanted if self._may_ask(queue)}
        asked_s = self._clock.monotonic()
        granted, unknown = await self._ask(held | wanted)
        # Also those that fell asleep while the brokers were asked.
        asleep = {queue for queue in held if not self.holds(queue)}
        # What was released while the brokers were asked is not wanted back.
        stray = granted - self._until_s.keys() - self._wanted
        if stray:
            await self.release(stray)
        self._note(granted - stray - asleep, asked_s)
        lost = (held - granted - unknown) & self._until_s.keys()
        if lost:
            log.warning("group %s: another member has %s now", self._group, sorted(lost))
            for queue in lost:
                del self._until_s[queue]
        waking = granted & asleep & self._until_s.keys()
        return LockChange(not unknown, lost, waking, bool(granted & wanted), asked_s)

    def wake_up(self, change: LockChange) -> set[MessageQueue]:
        """Hold the queues that were asleep again; return them without those released since."""
        awake = change.asleep & self._until_s.keys()
        self._note(awake, change.asked_s)
        return awake

    async def _ask(
        self, queues: Collection[MessageQueue]
    ) -> tuple[set[MessageQueue], set[MessageQueue]]:
        """Ask the brokers; return the granted queues, and those of brokers that did not answer."""
        by_address = self._by_address(queues)
        answers = await asyncio.gather(
            *(self._lock(address, mine) for address, mine in by_address.items())
        )
        granted: set[MessageQueue] = set()
        unknown = set(queues).difference(*by_address.values())
        for mine, answer in zip(by_address.values(), answers, strict=True):
            if answer is None:
                unknown.update(mine)
            else:
                granted |= answer.intersection(mine)
        return granted, unknown

    def _note(self, queues: Collection[MessageQueue], asked_s: float) -> None:
        """Note that these are held from the moment at which the broker was asked."""
        for queue in queues:
            self._wanted.discard(queue)
            self._until_s[queue] = asked_s + LOCK_LOST_S

    def _reconnected(self, address: str) -> None:
        """Renew held locks, which the broker may have forgotten; let other owners do the same."""
        self._grace_s[address] = self._clock.monotonic() + LOCK_GRACE_S
        self._in_a_hurry = True
        self._changed.set()

    def _may_ask(self, queue: MessageQueue) -> bool:
        """Return whether the lock of a queue that is not held may be asked for."""
        address = self._routes.master_address(queue.broker_name) or ""
        grace_s = self._grace_s.get(address)
        if grace_s is not None and self._clock.monotonic() >= grace_s:
            del self._grace_s[address]
            grace_s = None
        return grace_s is None

    def _by_address(self, queues: Collection[MessageQueue]) -> dict[str, list[MessageQueue]]:
        by_address: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            address = self._routes.master_address(queue.broker_name)
            if address is not None:
                by_address[address].append(queue)
        return by_address

    async def _lock(
        self, address: str, queues: Collection[MessageQueue]
    ) -> set[MessageQueue] | None:
        try:
            return await self._api.lock(address, queues, LOCK_TIMEOUT_S)
        except RocketMQError as error:
            log.warning("group %s: no locks from %s: %s", self._group, address, error)
            for topic in {queue.topic for queue in queues}:
                self._services.failed(topic, error)
            return None
