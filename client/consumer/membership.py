"""Membership: the parts of a started consumer, from joining its group to leaving it.

    clustering            offsets on the brokers; a share of the queues; failures go to the broker
    clustering, ordered   also: queues are locked, failed messages wait here
    broadcasting          offsets here; all queues; failed messages are tried again here
    queues by hand        no member: `assign(queues)` in place of a division among the members

    join     routes -> filters checked (46) -> heartbeat (34) -> a first division of the queues
    begin    the tasks: rebalance, commits, locks, a check for slow handlers
    halt     no new queues, no new messages; locks are kept and offsets committed, because handlers
             may still be at work
    leave    queues revoked, with their offsets committed -> locks given up -> farewell (35)

A consumer that was started without topics is not a member yet. Its first `subscribe` makes it one.
Its first `assign` makes it one that stands alone: it does not tell the brokers that it is in the
group, so it takes no share from the members; each pull says what is wanted. It uses the group's
offsets all the same.

Loop thread.
Unlike RocketMQ: the Java client (DefaultLitePullConsumer, assign) counts as a member, and no one
consumes the queues that the division gives to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterable, Sequence
from typing import Any, Final

from skylarkmq.client.config import (
    FIRST_LOOK_S,
    LATER_LOOK_S,
    LOOKS_S,
    MISSING_ROUTE_REFRESH_S,
)
from skylarkmq.client.consumer.assignor import Assignor
from skylarkmq.client.consumer.broker_requests import BrokerRequests
from skylarkmq.client.consumer.config import ConsumerConfig
from skylarkmq.client.consumer.handlers import watch_slow_handlers
from skylarkmq.client.consumer.local_offsets import LocalOffsets, offsets_path
from skylarkmq.client.consumer.message_buffer import MessageBuffer
from skylarkmq.client.consumer.offset_store import OffsetStore
from skylarkmq.client.consumer.orderly import OrderedBuffer, OrderedRebalance
from skylarkmq.client.consumer.pull_service import PullService
from skylarkmq.client.consumer.queue_locks import QueueLocks
from skylarkmq.client.consumer.rebalance import Callbacks, Rebalance
from skylarkmq.client.consumer.retry import Retries
from skylarkmq.client.consumer.subscription import (
    WHERE_NAMES,
    Selector,
    StartFrom,
    Subscription,
    check_filter,
)
from skylarkmq.client.errors import IllegalState, RocketMQError
from skylarkmq.client.services import Services
from skylarkmq.client.wire.api_consumer import LockApi
from skylarkmq.client.wire.route import TopicRoute
from skylarkmq.protocol.bodies.group import ConsumerData
from skylarkmq.protocol.flags import is_retry_topic, retry_topic
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.waiting import sleep, within

log = logging.getLogger(__name__)

COMMIT_ANEW_S: Final = 60.0
"""How often offsets are committed that did not move. Without that a late commit of a queue's former
owner, or the loss of offsets on a broker, would last until the queue moves on. RocketMQ's client
commits them each time."""

LEAVE_S: Final = 0.5
"""How long each step of leaving may take when the time for a stop is over."""


class Membership:
    """The parts of one started consumer. It implements `Member` of services.py.

    Its size is one idea: the order in which the parts begin and end.
    """

    def __init__(
        self,
        services: Services,
        config: ConsumerConfig,
        start_from: StartFrom,
        callbacks: Callbacks,
    ) -> None:
        """Make the parts; nothing is asked or begun yet."""
        self.services = services
        self.config = config
        self.group = config.group
        self._start_from = start_from
        clock, group = services.clock, config.group
        self._local: LocalOffsets | None = None
        self.locks: QueueLocks | None = None
        if config.broadcasting:
            name = services.config.instance_name
            self._local = LocalOffsets(offsets_path(group, name, config.offsets_folder))
        elif config.orderly:
            api = LockApi(services.remoting, services.client_id, group)
            self.locks = QueueLocks(api, services, group)
        self.offsets = offsets = OffsetStore(services, group, self._local, self.locks)
        self.assignor = assignor = Assignor(services, config)
        ordered: OrderedBuffer | None = None
        if config.orderly:
            ordered = OrderedBuffer(clock, config.consume_timeout, self.locks)
        self.buffer = ordered or MessageBuffer(clock, config.consume_timeout)
        self.retries = Retries(services, config, self.buffer)
        self.pulls = pulls = PullService(
            services, config, assignor.subscriptions, self.buffer, self.retries, self.locks
        )
        self.rebalance = (
            Rebalance(services, group, offsets, pulls, assignor, start_from, callbacks)
            if ordered is None
            else OrderedRebalance(
                ordered, services, group, offsets, pulls, assignor, start_from, callbacks
            )
        )
        self.requests = BrokerRequests(services, config, offsets, pulls, self.rebalance, self.locks)
        self._tasks: list[asyncio.Task[None]] = []
        self.refusal: RocketMQError | None = None
        """What all brokers of its topics refuse it with now."""
        self._anew = False
        self._looks_end_s = 0.0
        self._look_wanted = asyncio.Event()

    # Life

    async def open(self, selectors: Iterable[tuple[str, Selector | None]]) -> None:
        """Take the topics, read the local offsets, and be the client's consumer of the group.

        Raises:
            IllegalState: the client has a consumer in this group already, or another consumer of
                this process uses the file.
            RocketMQError: the file cannot be read.
        """
        for topic, selector in selectors:
            self.assignor.subscribe(topic, selector)
        try:
            if self._local is not None:
                await self._local.open()
            self.services.join_consumer(self)
        except BaseException:
            if self._local is not None:
                self._local.close()
            raise

    async def join(self) -> None:
        """Tell the brokers what the group wants now, and divide the queues anew.

        Raises:
            FilterRefused: a broker does not filter so.
            NoPermission: the group is consumed in another way, at the start.
        """
        wanted = self.assignor.subscriptions
        if not wanted:
            # No member: before the first `subscribe` or `assign`, or after the last one.
            self.rebalance.wake()
            return
        if not self.config.broadcasting and retry_topic(self.group) not in wanted:
            self.assignor.subscribe(retry_topic(self.group), None)
        await self._find_routes(list(wanted))
        self._looks_end_s = self.services.clock.monotonic() + LOOKS_S
        self._look_wanted.set()
        if not self._tasks:
            for subscription in list(wanted.values()):
                await check_filter(self.services, self.group, subscription)
        await self.services.send_heartbeats()
        refusal = None if self._tasks else self.services.refusal_of(self)
        if refusal is not None:
            raise refusal
        if self._tasks or not await self.rebalance.round():
            self.rebalance.wake()

    def begin(self) -> None:
        """Start the tasks."""
        self.services.reconnect_listeners.add(self._reconnected)
        self._run(self.rebalance.run(), "rebalance")
        self._run(self._look_for_topics(), "topics")
        self._run(self._commit_loop(), "commit")
        timeout_s, assigned = self.config.consume_timeout, self.rebalance.assigned
        watch = watch_slow_handlers(self.services.clock, assigned, timeout_s, self.group)
        self._run(watch, "overdue")
        if self.locks is not None and isinstance(self.rebalance, OrderedRebalance):
            self._run(self.locks.run(self.rebalance.follow), "locks")

    async def halt(self) -> None:
        """Take no new queues and hand out nothing more."""
        self.buffer.close()
        self.rebalance.close()
        await _cancel(self._tasks[:1])  # the rebalance, which would begin to pull again
        self.pulls.halt()

    async def leave(self, end_s: float) -> None:
        """Give up all queues, and tell the brokers.

        Args:
            end_s: after it each broker that does not answer is waited for LEAVE_S at most, with the
                offsets, the locks and the farewell.
        """
        self.services.reconnect_listeners.discard(self._reconnected)
        await _cancel(self._tasks)
        self.retries.cancel()
        queues = list(self.rebalance.assigned)
        try:
            await self.rebalance.tell_revoked(queues)
            await self._by(end_s, self.rebalance.revoke(queues, anew=True, told=True), "offsets")
            if self.locks is not None:
                await self._by(end_s, self.locks.release_all(), "locks")
        finally:
            await self.pulls.stop()
            await self.retries.stop()
            if self._local is not None:
                self._local.close()
            await self._by(end_s, self.services.leave_consumer(self), "farewell")

    # What the application asks for

    async def subscribe(self, topic: str, selector: Selector | None) -> None:
        """Add a topic, or change what is wanted of it from the next pull on.

        Raises:
            FilterRefused: a broker does not filter so; all stays as it was.
            IllegalState: queues were assigned by hand.
        """
        self.check_member()
        await self._find_routes([topic])
        await check_filter(self.services, self.group, Subscription(topic, selector, 0))
        self.assignor.subscribe(topic, selector)
        try:
            await self.join()
        finally:
            self.pulls.renew(topic)

    async def assign(self, queues: Collection[MessageQueue], selector: Selector | None) -> None:
        """Take these queues, and give up all others.

        Raises:
            IllegalState: the consumer has subscribed to topics.
            FilterRefused: a broker does not filter so.
            RocketMQError: no name server knows where the topics are, or a broker cannot be asked
                whether it can filter so.
        """
        assignor, services = self.assignor, self.services
        self._check_unsubscribed()
        topics = {queue.topic for queue in queues}
        await asyncio.gather(*(services.routes.refresh(topic) for topic in topics))
        for topic in topics:
            wanted = Subscription(topic, selector, 0)
            await check_filter(services, self.group, wanted, inline=True)
        self._check_unsubscribed()  # it may have subscribed meanwhile
        assignor.assigned = frozenset(queues)
        self.pulls.inline = self.retries.is_local = True
        for topic in assignor.subscriptions.keys() - topics:
            del assignor.subscriptions[topic]
        for topic in topics:
            old = assignor.subscriptions.get(topic)
            assignor.subscribe(topic, selector)
            new = assignor.subscriptions[topic]
            if old is not None and old.data.sub_string != new.data.sub_string:
                self.pulls.renew(topic)
        try:
            if not await self.rebalance.round():
                self.rebalance.wake()
        except BaseException:
            self.rebalance.wake()  # the round that follows in the background does the rest
            raise

    @property
    def assigned_by_hand(self) -> bool:
        """True for a consumer whose queues were assigned by hand: it is no member of the group."""
        return self.assignor.assigned is not None

    def check_member(self) -> None:
        """Check that the consumer may subscribe to topics.

        Raises:
            IllegalState: queues were assigned by hand.
        """
        if self.assigned_by_hand:
            raise IllegalState("queues were assigned to this consumer by hand, so it has no topics")

    async def commit_assigned(self, *, anew: bool = False) -> None:
        """Commit what is acknowledged.

        Args:
            anew: also what is committed already.

        Raises:
            RocketMQError: a broker did not take it.
        """
        held = self.rebalance.assigned
        offsets = {queue: process_queue.commit_offset for queue, process_queue in held.items()}
        errors = await self.offsets.commit(offsets, anew=anew)
        if errors:
            raise errors[0]

    # What the client asks for

    def consumer_data(self) -> ConsumerData | None:
        subscriptions = self.assignor.subscriptions
        if self.assigned_by_hand or not subscriptions:
            return None
        return ConsumerData(
            consume_from_where=WHERE_NAMES[self._start_from.where],
            consume_type="CONSUME_PASSIVELY",
            group_name=self.group,
            message_model=self.config.model.upper(),
            subscription_data_set=[each.data for each in subscriptions.values()],
        )

    async def pushed(self, push: RemotingCommand) -> RemotingCommand | None:
        return await self.requests.answer(push)

    def wake(self) -> None:
        self.rebalance.wake()

    def refused(self, error: RocketMQError | None) -> None:
        self.refusal = error
        self.buffer.refuse(error)

    def buffered(self) -> dict[str, tuple[int, int]]:
        held: dict[str, tuple[int, int]] = {}
        for queue, process_queue in list(self.rebalance.assigned.items()):
            count, size = held.get(queue.topic, (0, 0))
            count, size = count + process_queue.held_count, size + process_queue.held_bytes
            held[queue.topic] = count, size
        return held

    # Inside

    async def _by(self, end_s: float, work: Coroutine[Any, Any, None], what: str) -> None:
        """Wait for the end of `work` until `end_s`, or a little longer."""
        clock = self.services.clock
        try:
            await within(clock, max(end_s - clock.monotonic(), LEAVE_S), work)
        except TimeoutError:
            log.warning("group %s: a broker did not answer in time: %s", self.group, what)

    def _check_unsubscribed(self) -> None:
        if not self.assigned_by_hand and self.assignor.subscriptions:
            raise IllegalState("the consumer has subscribed to topics, so its queues come by those")

    async def _find_routes(self, topics: Sequence[str]) -> None:
        routes = self.services.routes
        for topic in topics:
            try:
                if await routes.refresh(topic) is None and not is_retry_topic(topic):
                    log.warning(
                        "group %s: there is no topic %s yet; it is looked for every %g s, "
                        "after %g s every %g s",
                        self.group, topic, LATER_LOOK_S, LOOKS_S, MISSING_ROUTE_REFRESH_S,
                    )  # fmt: skip
            except RocketMQError as error:
                log.warning("group %s: no route of %s: %s", self.group, topic, error)

    async def _look_for_topics(self) -> None:
        """Look often for topics that do not exist yet, for LOOKS_S after each `join`.

        A topic that appears wakes the members of its client (`Services`). A borrowed route is not
        the topic's: a producer of the same client has just sent to it, so that it appears soon.
        """
        clock, routes = self.services.clock, self.services.routes
        while True:
            await self._look_wanted.wait()
            self._look_wanted.clear()
            wait_s = FIRST_LOOK_S
            while clock.monotonic() < self._looks_end_s:
                missing = [
                    topic
                    for topic in self.assignor.subscriptions
                    if not is_retry_topic(topic) and not _is_there(routes.known(topic))
                ]
                if not missing:
                    break
                await sleep(clock, wait_s)
                wait_s = min(2 * wait_s, LATER_LOOK_S)
                for topic in missing:
                    try:
                        await routes.refresh(topic)
                    except RocketMQError as error:
                        log.debug("group %s: no route of %s: %s", self.group, topic, error)

    def _reconnected(self, address: str) -> None:
        """Commit all offsets again: a restarted broker has lost those of its last seconds."""
        self._anew = True

    async def _commit_loop(self) -> None:
        clock = self.services.clock
        anew_s = clock.monotonic() + COMMIT_ANEW_S
        while True:
            await sleep(clock, self.config.commit_interval)
            anew, self._anew = self._anew or clock.monotonic() >= anew_s, False
            if anew:
                anew_s = clock.monotonic() + COMMIT_ANEW_S
            try:
                await self.commit_assigned(anew=anew)
            except RocketMQError as error:
                log.warning("group %s: offsets wait for the next commit: %s", self.group, error)
            except Exception:
                log.exception("group %s: offsets wait for the next commit", self.group)

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=f"skylarkmq-{self.group}-{name}")
        self._tasks.append(task)


def _is_there(route: TopicRoute | None) -> bool:
    """Return whether the topic exists, as far as the client knows."""
    return route is not None and not route.borrowed


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
