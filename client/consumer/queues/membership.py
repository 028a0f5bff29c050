"""A consumer's part in its group, from joining to leaving.

    join     routes -> filters checked (46) -> heartbeat (34) -> a first division of the queues
    begin    the tasks: rebalance, commits, locks, a look at slow handlers
    halt     no new queues, no new messages; locks are kept and offsets committed, because handlers
             may be at work still
    leave    queues revoked, with their offsets committed -> locks given up -> farewell (35)

Loop thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from skylarkmq.client.clock import sleep
from skylarkmq.client.config import (
    FIRST_LOOK_S,
    LATER_LOOK_S,
    LOOKS_S,
    MISSING_ROUTE_REFRESH_S,
    ConsumerConfig,
)
from skylarkmq.client.consumer.parts import Parts
from skylarkmq.client.consumer.subscription import Selector, Subscription, check_filter
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.instance import Client
from skylarkmq.client.services import Member
from skylarkmq.protocol.flags import is_retry_topic, retry_topic

log = logging.getLogger(__name__)

COMMIT_ANEW_S: Final = 60.0
"""How often offsets are committed that did not move: a late commit of a queue's last owner, or a
broker that lost some, would else stand until the queue moves on. RocketMQ's client does so each
time."""


def subscribe_to(
    client: Client,
    subscriptions: dict[str, Subscription],
    topic: str,
    selector: Selector | None,
) -> None:
    """Put down what is wanted of a topic, with a version above the last one's."""
    version = client.services.clock.now_ms()
    old = subscriptions.get(topic)
    if old is not None:
        version = max(version, old.data.sub_version + 1)
    subscriptions[topic] = Subscription(topic, selector, version)


class Membership:
    """The membership of one started consumer."""

    def __init__(
        self,
        client: Client,
        config: ConsumerConfig,
        subscriptions: dict[str, Subscription],
        parts: Parts,
    ) -> None:
        """Take the parts; `subscriptions` is shared with the consumer, which changes it."""
        self._client = client
        self._config = config
        self._group = config.group
        self._subscriptions = subscriptions
        self._parts = parts
        self._tasks: list[asyncio.Task[None]] = []
        self._anew = False
        self._looks_end_s = 0.0
        self._look_wanted = asyncio.Event()

    async def join(self) -> None:
        """Tell the brokers what the group wants now, and divide the queues anew.

        Raises:
            FilterRefused: a broker does not filter so.
        """
        wanted = self._subscriptions
        if not wanted:
            # Nobody's member, before the first `subscribe` or `assign`, or after the last one.
            self._parts.inside.rebalance.wake()
            return
        if not self._config.broadcasting and retry_topic(self._group) not in wanted:
            subscribe_to(self._client, wanted, retry_topic(self._group), None)
        await self._find_routes(list(wanted))
        self._looks_end_s = self._client.services.clock.monotonic() + LOOKS_S
        self._look_wanted.set()
        if not self._tasks:
            for subscription in list(wanted.values()):
                await self._check(subscription)
        await self._client.send_heartbeats()
        rebalance = self._parts.inside.rebalance
        if self._tasks or not await rebalance.round():
            rebalance.wake()

    async def check(self, topic: str, selector: Selector | None) -> None:
        """Ask the brokers whether they can filter a topic so.

        Raises:
            FilterRefused: one cannot.
        """
        await self._find_routes([topic])
        await self._check(Subscription(topic, selector, 0))

    def begin(self, commit: Callable[[bool], Awaitable[None]]) -> None:
        """Start the tasks.

        Args:
            commit: commits what is acknowledged; with true also what is committed already.
        """
        parts = self._parts
        self._client.services.reconnect_listeners.add(self._reconnected)
        self._run(parts.inside.rebalance.run(), "rebalance")
        self._run(self._look_for_topics(), "topics")
        self._run(self._commit_loop(commit), "commit")
        self._run(parts.slow_handlers.run(), "overdue")
        if parts.locks is not None and parts.keeper is not None:
            self._run(parts.locks.run(parts.keeper), "locks")

    async def halt(self) -> None:
        """Take no new queues and hand out nothing more."""
        inside = self._parts.inside
        inside.buffer.close()
        inside.rebalance.close()
        await _cancel(self._tasks[:1])  # the rebalance, which would begin to pull again
        inside.pulls.halt()

    async def leave(self, member: Member) -> None:
        """Give everything up, and tell the brokers."""
        parts = self._parts
        self._client.services.reconnect_listeners.discard(self._reconnected)
        await _cancel(self._tasks)
        parts.retries.stop()
        try:
            rebalance = parts.inside.rebalance
            await rebalance.revoke(list(rebalance.assigned), anew=True)
            if parts.locks is not None:
                await parts.locks.release_all()
        finally:
            await parts.inside.pulls.stop()
            await parts.send_back.stop()
            if parts.local_offsets is not None:
                parts.local_offsets.close()
            await self._client.leave_consumer(member)

    async def _check(self, subscription: Subscription) -> None:
        await check_filter(self._client.services, self._group, subscription)

    async def _find_routes(self, topics: Sequence[str]) -> None:
        routes = self._client.services.routes
        for topic in topics:
            try:
                if await routes.refresh(topic) is None and not is_retry_topic(topic):
                    log.warning(
                        "group %s: there is no topic %s yet; it is looked for every %g s, "
                        "after %g s every %g s",
                        self._group, topic, LATER_LOOK_S, LOOKS_S, MISSING_ROUTE_REFRESH_S,
                    )  # fmt: skip
            except RocketMQError as error:
                log.warning("group %s: no route of %s: %s", self._group, topic, error)

    async def _look_for_topics(self) -> None:
        """Look often for topics that do not exist yet, for LOOKS_S after each `join`.

        A topic that appears wakes the members of its client (`Services`).
        """
        clock, routes = self._client.services.clock, self._client.services.routes
        while True:
            await self._look_wanted.wait()
            self._look_wanted.clear()
            wait_s = FIRST_LOOK_S
            while clock.monotonic() < self._looks_end_s:
                missing = [
                    topic
                    for topic in self._subscriptions
                    if not is_retry_topic(topic) and routes.known(topic) is None
                ]
                if not missing:
                    break
                await sleep(clock, wait_s)
                wait_s = min(2 * wait_s, LATER_LOOK_S)
                for topic in missing:
                    try:
                        await routes.refresh(topic)
                    except RocketMQError as error:
                        log.debug("group %s: no route of %s: %s", self._group, topic, error)

    def _reconnected(self, address: str) -> None:
        """A broker that was started again has lost the offsets of its last seconds."""
        self._anew = True

    async def _commit_loop(self, commit: Callable[[bool], Awaitable[None]]) -> None:
        clock = self._client.services.clock
        anew_s = clock.monotonic() + COMMIT_ANEW_S
        while True:
            await sleep(clock, self._config.commit_interval_s)
            anew, self._anew = self._anew or clock.monotonic() >= anew_s, False
            if anew:
                anew_s = clock.monotonic() + COMMIT_ANEW_S
            try:
                await commit(anew)
            except RocketMQError as error:
                log.warning("group %s: %s, tried again in its time", self._group, error)
            except Exception:
                log.exception("group %s: commit failed, tried again in its time", self._group)

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=f"skylarkmq-{self._group}-{name}")
        self._tasks.append(task)


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
