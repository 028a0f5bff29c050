"""A consumer's part in its group, from joining to leaving.

    join     routes -> filters checked (46) -> heartbeat (34) -> a first division of the queues
    begin    the tasks: rebalance, commits, locks, a look at slow handlers
    halt     no new queues, no new messages; locks are kept and offsets committed, because handlers
             may be at work still
    leave    queues revoked, with their offsets committed -> locks given up -> farewell (35)

Loop thread.

The parts of a started consumer, put together by what it is.

clustering            offsets on the brokers; a share of the queues; failures go to the broker
clustering, ordered   also: queues are locked, failures wait here
broadcasting          offsets here; all queues; failures are tried again here

Queues by hand: `assign(queues)` in place of a group's division.

A consumer that was started without topics is nobody's member. Its first `subscribe` makes it a
member of its group; its first `assign` makes it one that stands alone: it tells no broker that it
is in the group, so it takes no share from the members; each pull says what is wanted. Its offsets
are those of the group all the same.

Unlike RocketMQ: the Java client (DefaultLitePullConsumer, assign) counts as a member, and queues
that the division gives to it are consumed by nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from skylarkmq.client.clock import sleep
from skylarkmq.client.config import (
    FIRST_LOOK_S,
    LATER_LOOK_S,
    LOOKS_S,
    MAX_RECONSUME,
    MISSING_ROUTE_REFRESH_S,
    ConsumerConfig,
)
from skylarkmq.client.consumer.allocate import find_allocation
from skylarkmq.client.consumer.broker_requests import ConsumerPushes
from skylarkmq.client.consumer.handlers import SlowHandlers
from skylarkmq.client.consumer.local_offsets import LocalOffsets, offsets_path
from skylarkmq.client.consumer.message_buffer import MessageBuffer
from skylarkmq.client.consumer.offset_store import OffsetStore
from skylarkmq.client.consumer.orderly import OrderedBuffer, QueueKeeper
from skylarkmq.client.consumer.pull_service import PullService
from skylarkmq.client.consumer.queue_locks import QueueLocks
from skylarkmq.client.consumer.rebalance import Callbacks, Rebalance
from skylarkmq.client.consumer.received_message import Returner
from skylarkmq.client.consumer.retry import LocalRetries, LocalReturner, SendBack
from skylarkmq.client.consumer.retry_delay import RetryDelays
from skylarkmq.client.consumer.shares import AllShares, FixedShares, GroupShares, Shares
from skylarkmq.client.consumer.subscription import Selector, StartFrom, Subscription, check_filter
from skylarkmq.client.errors import IllegalState, RocketMQError
from skylarkmq.client.instance import Client
from skylarkmq.client.services import Member, Services
from skylarkmq.client.wire.api_consumer import LockApi
from skylarkmq.protocol.flags import is_retry_topic, retry_topic
from skylarkmq.protocol.message import MessageQueue

log = logging.getLogger(__name__)

COMMIT_ANEW_S: Final = 60.0
"""How often offsets are committed that did not move: a late commit of a queue's last owner, or a
broker that lost some, would else stand until the queue moves on. RocketMQ's client does so each
time."""


class Standing:
    """Whether a consumer is a member or stands alone, and its shares. Implements `Shares`."""

    def __init__(
        self,
        services: Services,
        group: str,
        subscriptions: dict[str, Subscription],
        as_member: Shares,
        returner: Returner,
    ) -> None:
        """Take the parts.

        Args:
            as_member: the shares of a member.
            returner: takes back messages of one that stands alone: here, because nobody reads the
                retry topic of a group without members.
        """
        self.alone = False
        self._services = services
        self._group = group
        self._subscriptions = subscriptions
        self._as_member = as_member
        self._returner = returner
        self._fixed = FixedShares()

    @property
    def settled(self) -> bool:
        """Whether the last answer is final."""
        return self.alone or self._as_member.settled

    @property
    def takes_over(self) -> bool:
        """Whether queues may come from members that are still there."""
        return not self.alone and self._as_member.takes_over

    async def of(self, topic: str) -> set[MessageQueue] | None:
        """Return this consumer's queues of the topic."""
        return await (self._fixed if self.alone else self._as_member).of(topic)

    def check_member(self) -> None:
        """See that topics may be subscribed to.

        Raises:
            IllegalState: queues were assigned by hand.
        """
        if self.alone:
            raise IllegalState("queues were assigned to this consumer by hand, so it has no topics")

    async def assign(
        self,
        queues: Collection[MessageQueue],
        selector: Selector | None,
        pulls: PullService,
        rebalance: Rebalance,
    ) -> None:
        """Take these queues, and give up all others.

        Raises:
            IllegalState: the consumer has subscribed to topics.
            FilterRefused: a broker does not filter so.
            RocketMQError: no name server knows where the topics are, or a broker cannot be asked
                whether it can filter so.
        """
        if not self.alone and self._subscriptions:
            raise IllegalState(BY_TOPICS)
        topics = {queue.topic for queue in queues}
        await asyncio.gather(*(self._services.routes.refresh(topic) for topic in topics))
        for topic in topics:
            wanted = Subscription(topic, selector, 0)
            await check_filter(self._services, self._group, wanted, inline=True)
        if not self.alone and self._subscriptions:
            raise IllegalState(BY_TOPICS)  # it has subscribed meanwhile
        if not self.alone:
            self.alone = True
            pulls.stand_alone(self._returner)
        for topic in list(self._subscriptions):
            if topic not in topics:
                del self._subscriptions[topic]
        version = self._services.clock.now_ms()
        renewed: list[str] = []
        for topic in topics:
            old, new = self._subscriptions.get(topic), Subscription(topic, selector, version)
            self._subscriptions[topic] = new
            if old is not None and old.data.sub_string != new.data.sub_string:
                renewed.append(topic)
        self._fixed.fix(queues)
        for topic in renewed:
            pulls.renew(topic, rebalance)
        try:
            if not await rebalance.round():
                rebalance.wake()
        except BaseException:
            rebalance.wake()  # the round that follows in the background does the rest
            raise


@dataclass(frozen=True, slots=True)
class Inside:
    """The parts of a started consumer."""

    services: Services
    buffer: MessageBuffer
    offsets: OffsetStore
    pulls: PullService
    rebalance: Rebalance
    standing: Standing


@dataclass(frozen=True, slots=True)
class Parts:
    """What belongs to one started consumer."""

    inside: Inside
    send_back: SendBack
    retries: LocalRetries
    slow_handlers: SlowHandlers
    keeper: QueueKeeper | None
    locks: QueueLocks | None
    local_offsets: LocalOffsets | None
    pushes: ConsumerPushes


def put_together(
    client: Client,
    config: ConsumerConfig,
    subscriptions: dict[str, Subscription],
    start_from: StartFrom,
    callbacks: Callbacks,
) -> Parts:
    """Make the parts; nothing is asked or begun yet. The client has been started."""
    services, group = client.services, config.group
    clock = services.clock
    local = _local_offsets(client, config)
    locks = _locks(client, config)
    keeper: QueueKeeper | None = None
    # Without its lock a queue may be another member's, who has come further.
    may_tell = None if locks is None else locks.holds
    offsets = OffsetStore(services, group, local, may_tell)
    if config.orderly:
        buffer: MessageBuffer = OrderedBuffer(clock, config.consume_timeout_s, locks)
        assert isinstance(buffer, OrderedBuffer)
        keeper = QueueKeeper(buffer, locks, offsets)
    else:
        buffer = MessageBuffer(clock, config.consume_timeout_s)
    retries = LocalRetries(clock, buffer)
    tries_max = MAX_RECONSUME if config.tries_max is None else config.tries_max
    delays = RetryDelays(config.retry_delays_s)
    send_back = SendBack(services, group, tries_max, retries, delays)
    pulls = PullService(
        config,
        services,
        subscriptions,
        buffer,
        _returner(config, send_back, retries),
        client.want_heartbeat,
        may_tell,
    )
    returner_alone = _local_returner(config, send_back, retries)
    standing = Standing(services, group, subscriptions, _shares(client, config), returner_alone)
    rebalance = Rebalance(
        services,
        group,
        subscriptions,
        offsets,
        pulls,
        standing,
        start_from,
        callbacks,
        keeper,
    )
    if keeper is not None:
        keeper.follow(rebalance)
    return Parts(
        Inside(services, buffer, offsets, pulls, rebalance, standing),
        send_back,
        retries,
        SlowHandlers(clock, rebalance.assigned, config.consume_timeout_s, group),
        keeper,
        locks,
        local,
        ConsumerPushes(services, config, subscriptions, offsets, rebalance, pulls.counters, locks),
    )


def _shares(client: Client, config: ConsumerConfig) -> Shares:
    if config.broadcasting:
        return AllShares(client)
    return GroupShares(client, config.group, find_allocation(config.assignment))


def _locks(client: Client, config: ConsumerConfig) -> QueueLocks | None:
    if not config.orderly or config.broadcasting:
        return None
    services, group = client.services, config.group
    api = LockApi(services.remoting, client.client_id, group)
    return QueueLocks(api, services, group)


def _local_offsets(client: Client, config: ConsumerConfig) -> LocalOffsets | None:
    if not config.broadcasting:
        return None
    instance_name = client.services.config.instance_name
    return LocalOffsets(offsets_path(config.group, instance_name, config.offsets_folder))


def _returner(config: ConsumerConfig, send_back: SendBack, retries: LocalRetries) -> Returner:
    if not config.orderly and not config.broadcasting:
        return send_back
    return _local_returner(config, send_back, retries)


def _local_returner(config: ConsumerConfig, send_back: SendBack, retries: LocalRetries) -> Returner:
    return LocalReturner(
        retries,
        send_back,
        config.tries_max,
        orderly=config.orderly,
        broadcasting=config.broadcasting,
        delays=RetryDelays(config.retry_delays_s),
    )


BY_TOPICS: Final = "the consumer has subscribed to topics, so its queues come by those"


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
