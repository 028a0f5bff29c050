"""Which queues this member of the group owns, and the change from one division to the next.

    each round: members (38) and queues (route) of every topic -> this member's share
    revoked queues: on_revoked awaited -> acked offsets committed -> dropped
    new queues:     start offset asked for -> on_assigned awaited -> pulled

A round comes when the broker says that members changed (40), when a route changed, and every 20 s.
What cannot be found out (no broker answers) leaves the queues of that topic as they are.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/consumer/RebalanceImpl.java
(rebalanceByTopic, updateProcessQueueTableInRebalance)
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from skylarkmq.client.clock import wait_event
from skylarkmq.client.config import REBALANCE_INTERVAL_S, REBALANCE_RETRY_S
from skylarkmq.client.consumer.allocate import allocate, allocate_averagely
from skylarkmq.client.consumer.offset_store import OffsetStore
from skylarkmq.client.consumer.process_queue import ProcessQueue
from skylarkmq.client.consumer.pull_service import PullService
from skylarkmq.client.consumer.received_message import ReceivedMessage
from skylarkmq.client.consumer.start_from import StartFrom
from skylarkmq.client.consumer.subscription import Subscription
from skylarkmq.client.errors import RebalanceInProgress, RocketMQError
from skylarkmq.client.instance import Client
from skylarkmq.client.route import MASTER_ID, TopicRoute
from skylarkmq.protocol.flags import is_retry_topic
from skylarkmq.protocol.message import MessageQueue

log = logging.getLogger(__name__)

QueuesCallback = Callable[[list[MessageQueue]], Awaitable[None] | None]
MEMBERS_TRIES: Final = 3
"""How many brokers of a topic are asked for the members before the round gives up on it."""


class Rebalance:
    """The assigned queues of one consumer. Loop thread."""

    def __init__(
        self,
        client: Client,
        group: str,
        subscriptions: dict[str, Subscription],
        offsets: OffsetStore,
        pulls: PullService,
        start_from: StartFrom,
        on_assigned: QueuesCallback | None,
        on_revoked: QueuesCallback | None,
    ) -> None:
        self.assigned: dict[MessageQueue, ProcessQueue[ReceivedMessage]] = {}
        self._client = client
        self._group = group
        self._subscriptions = subscriptions
        self._offsets = offsets
        self._pulls = pulls
        self._start_from = start_from
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._wanted = asyncio.Event()
        self._paused: set[MessageQueue] = set()
        self._listed = True

    def wake(self) -> None:
        """Let a round come now."""
        self._wanted.set()

    async def run(self) -> None:
        """Come round for ever; the consumer cancels it."""
        clock, complete = self._client.services.clock, True
        while True:
            wait_s = REBALANCE_INTERVAL_S if complete else REBALANCE_RETRY_S
            await wait_event(clock, self._wanted, wait_s)
            try:
                complete = await self.round()
            except Exception:
                complete = False
                log.exception("group %s: rebalance failed, tried again soon", self._group)

    async def round(self) -> bool:
        """Divide once; False when something is missing, so that the next round comes soon."""
        self._wanted.clear()
        complete = self._listed = True
        share: set[MessageQueue] = set()
        for topic in list(self._subscriptions):
            mine = await self._share_of(topic)
            if mine is None:
                complete = False
                share.update(queue for queue in self.assigned if queue.topic == topic)
            else:
                share.update(mine)
        await self.revoke([queue for queue in self.assigned if queue not in share])
        fresh = sorted(queue for queue in share if queue not in self.assigned)
        return await self._assign(fresh) and complete and self._listed

    async def revoke(self, queues: Sequence[MessageQueue]) -> None:
        """Give queues up, after the user's callback and with their acked offsets committed."""
        if not queues:
            return
        await self._tell(self._on_revoked, queues)
        held = {queue: self.assigned[queue] for queue in queues if queue in self.assigned}
        offsets = {queue: held_queue.commit_offset for queue, held_queue in held.items()}
        for error in await self._offsets.commit(offsets):
            log.warning("group %s: offset not committed at revoke: %s", self._group, error)
        for queue in held:
            # Not the one of before the await: it may have been repositioned meanwhile.
            process_queue = self.assigned.pop(queue, None)
            if process_queue is not None:
                self._pulls.cancel(process_queue)
            self._offsets.forget(queue)

    def reposition(self, queue: MessageQueue, offset: int) -> None:
        """Drop what is held of the queue and go on at `offset`.

        Raises:
            RebalanceInProgress: the queue is not assigned.
        """
        old = self.held(queue)
        self._pulls.cancel(old)
        self._offsets.forget(queue)
        self._start(queue, offset)

    def held(self, queue: MessageQueue) -> ProcessQueue[ReceivedMessage]:
        """Return the process queue of an assigned queue.

        Raises:
            RebalanceInProgress: the queue is not assigned.
        """
        process_queue = self.assigned.get(queue)
        if process_queue is None:
            raise RebalanceInProgress(f"{queue} is not assigned to this consumer at the moment")
        return process_queue

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out and pull nothing of these queues, also when they go away and come back."""
        for queue in queues:
            self._paused.add(queue)
            if queue in self.assigned:
                self.assigned[queue].paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> list[ProcessQueue[ReceivedMessage]]:
        """Undo `pause`; return the queues that may have something to hand out."""
        resumed: list[ProcessQueue[ReceivedMessage]] = []
        for queue in queues:
            self._paused.discard(queue)
            process_queue = self.assigned.get(queue)
            if process_queue is not None:
                process_queue.paused = False
                self._pulls.wake(process_queue)
                resumed.append(process_queue)
        return resumed

    @property
    def paused(self) -> set[MessageQueue]:
        """The paused queues."""
        return set(self._paused)

    async def _share_of(self, topic: str) -> set[MessageQueue] | None:
        """Return this member's queues of the topic, None when that cannot be found out."""
        services = self._client.services
        route = services.routes.known(topic)
        if route is None:
            try:
                route = await services.routes.refresh(topic)
            except RocketMQError as error:
                log.warning("group %s: no route of %s: %s", self._group, topic, error)
                return None
        if route is None:
            return set()  # nobody has the topic yet; the missing routes are asked for regularly
        ids = await self._member_ids(route)
        if ids is None:
            return None
        client_id = self._client.client_id
        if client_id not in ids:
            await self._client.send_heartbeats()
            ids = await self._member_ids(route) or ids
        if client_id not in ids:
            # As in Java: who is not in the list owns nothing, because the others divide without it.
            log.warning("group %s: the broker does not list this client", self._group)
            self._listed = False
        return set(allocate(allocate_averagely, route.subscribe_queues, ids, client_id))

    async def _member_ids(self, route: TopicRoute) -> list[str] | None:
        services = self._client.services
        addresses = [broker[MASTER_ID] for broker in route.brokers.values() if MASTER_ID in broker]
        services.random.shuffle(addresses)
        timeout_s = services.config.request_timeout_s
        for address in addresses[:MEMBERS_TRIES]:
            try:
                return await services.consumer_api.consumer_ids(address, self._group, timeout_s)
            except RocketMQError as error:
                log.debug("group %s: members not known: %s", self._group, error)
        self._client.want_heartbeat()
        return None

    async def _assign(self, queues: Sequence[MessageQueue]) -> bool:
        """Take new queues over; False when a start offset could not be found out."""
        if not queues:
            return True
        starts = await asyncio.gather(
            *(self._offsets.start_offset(queue, self._start_from) for queue in queues),
            return_exceptions=True,
        )
        taken: list[MessageQueue] = []
        for queue, start in zip(queues, starts, strict=True):
            if isinstance(start, int):
                self.assigned[queue] = self._pulls.new_queue(queue, start)
                taken.append(queue)
            elif isinstance(start, RocketMQError):
                log.warning("group %s: no start offset of %s: %s", self._group, queue, start)
            else:
                raise start
        if taken:
            log.info("group %s: assigned %s", self._group, taken)
            await self._tell(self._on_assigned, taken)
        for queue in taken:
            process_queue = self.assigned.get(queue)
            # The callback may have sought, which starts a queue by itself.
            if process_queue is not None and not self._pulls.is_started(process_queue):
                self._begin(process_queue)
        return len(taken) == len(queues)

    def _start(self, queue: MessageQueue, offset: int) -> None:
        process_queue = self._pulls.new_queue(queue, offset)
        self.assigned[queue] = process_queue
        self._begin(process_queue)

    def _begin(self, process_queue: ProcessQueue[ReceivedMessage]) -> None:
        queue = process_queue.queue
        process_queue.paused = queue in self._paused
        self._pulls.start(process_queue, self)

    async def _tell(self, callback: QueuesCallback | None, queues: Sequence[MessageQueue]) -> None:
        """Call the user's callback; retry topics are the consumer's own affair."""
        visible = [queue for queue in queues if not is_retry_topic(queue.topic)]
        if callback is None or not visible:
            return
        try:
            outcome = callback(visible)
            if inspect.isawaitable(outcome):
                await outcome
        except Exception:
            log.exception("group %s: a rebalance callback failed, going on", self._group)
