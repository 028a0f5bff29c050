"""Pulling: one task per assigned queue asks for messages, ahead of the handlers, within limits.

    room, not paused -> pull (held by the broker while there is nothing) -> process queue -> buffer
    refused or failed -> a pause by the kind of failure -> again

The limits of count and bytes hold for the whole consumer; each queue has an equal share of them.
Each queue has one pull under way: the answer says where to go on, and a guess would be wrong after
every filtered message. Pulls of all queues share the connections.
A pull to a SkylarkMQ master carries the group's offset, because it takes requests in their order.
Unlike RocketMQ's client, which sends the offset with every pull: the threads of a Java broker may
take a pull after a commit that was sent later, and so move the group back.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/consumer/DefaultMQPushConsumerImpl.java
(pullMessage), PullMessageService.java, PullAPIWrapper.java (pullKernelImpl,
recalculatePullFromWhichNode), client/.../impl/factory/MQClientInstance.java
(findBrokerAddressInSubscribe)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from skylarkmq.client.config import (
    PULL_ERROR_DELAY_S,
    PULL_FLOW_CONTROL_DELAY_S,
    PULL_SUSPEND_MS,
    PULL_TIMEOUT_S,
)
from skylarkmq.client.consumer.config import ConsumerConfig
from skylarkmq.client.consumer.counters import ConsumerCounters
from skylarkmq.client.consumer.last_read import LastRead
from skylarkmq.client.consumer.message_buffer import MessageBuffer
from skylarkmq.client.consumer.queue_locks import QueueLocks
from skylarkmq.client.consumer.subscription import Subscription
from skylarkmq.client.errors import (
    AWAY_CODES,
    BrokerError,
    ConnectionFailed,
    FilterRefused,
    RequestTimeout,
    RocketMQError,
    RouteNotFound,
)
from skylarkmq.client.observe.hooks import each
from skylarkmq.client.received_message import ProcessQueue, ReceivedMessage, Redelivery
from skylarkmq.client.services import Services
from skylarkmq.client.wire.api_pull import (
    PLAIN_PULL_COUNT,
    PullRequest,
    PullResult,
    PullStatus,
    pull,
)
from skylarkmq.client.wire.route import RouteTable
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.flags import MASTER_ID, is_retry_topic
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.properties import tag_in
from skylarkmq.protocol.record import PROPERTIES
from skylarkmq.remoting.connection import Peer
from skylarkmq.remoting.waiting import sleep

log = logging.getLogger(__name__)

NOT_KNOWN_YET: Final[frozenset[int]] = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    }
)
"""The broker has no fresh heartbeat of this client: a new one, and again soon."""
NOT_KNOWN_DELAY_S: Final = 1.0
BUSY_CODES: Final = AWAY_CODES | {int(ResponseCode.SYSTEM_BUSY)}
BUSY_DELAY_S: Final = 1.0
LOST_DELAY_S: Final = 0.5
EMPTY_FAST_S: Final = 0.01
"""An empty answer that comes sooner was not held: the next pull waits a little."""
EMPTY_DELAY_S: Final = 0.05


class PullSources:
    """The brokers that the queues of one reader are pulled from.

    A master that would have to read from its disk suggests a slave; the queue is pulled there until
    that broker suggests another. While the master is away any slave will do.
    """

    def __init__(self, routes: RouteTable) -> None:
        self._routes = routes
        # Invariant: other brokers than masters only.
        self._broker_ids: dict[MessageQueue, int] = {}

    def of(self, queue: MessageQueue) -> tuple[str, bool]:
        """Return the address to pull from, and whether that is the master.

        Raises:
            RouteNotFound: no broker of that name is known.
        """
        addresses = self._routes.broker(queue.broker_name)
        for broker_id in (self._broker_ids.get(queue, MASTER_ID), MASTER_ID, *sorted(addresses)):
            if broker_id in addresses:
                return addresses[broker_id], broker_id == MASTER_ID
        hint = f"Broker {queue.broker_name} is gone at the moment"
        raise RouteNotFound(queue.topic, "no_broker", hint)

    def suggested(self, queue: MessageQueue, broker_id: int) -> None:
        """Note the broker that an answer names to be asked next."""
        if broker_id == MASTER_ID:
            self._broker_ids.pop(queue, None)
        else:
            self._broker_ids[queue] = broker_id

    def forget(self, queue: MessageQueue) -> None:
        """Begin with the master again: the queue is gone, or its source failed."""
        self._broker_ids.pop(queue, None)


class PullService:
    """The pulling tasks of one consumer. Loop thread."""

    def __init__(
        self,
        services: Services,
        config: ConsumerConfig,
        subscriptions: Mapping[str, Subscription],
        buffer: MessageBuffer,
        redelivery: Redelivery,
        locks: QueueLocks | None,
    ) -> None:
        self.subscriptions = subscriptions
        self.counters = ConsumerCounters(services.clock)
        self.inline = False
        """Each pull says what it wants: the consumer is no member of the group."""
        self.reposition: Callable[[MessageQueue, int], None] | None = None
        """Starts a queue anew at another offset; set by the rebalance."""
        self._config = config
        self._services = services
        self._buffer = buffer
        self._redelivery = redelivery
        self._locks = locks
        self._sources = PullSources(services.routes)
        self._tasks: dict[ProcessQueue, asyncio.Task[None]] = {}
        self._room_events: dict[ProcessQueue, asyncio.Event] = {}
        self._refused: set[MessageQueue] = set()
        """Queues whose last pull was refused for its filter; when all are, the reader is told."""

    def new_queue(self, queue: MessageQueue, offset: int) -> ProcessQueue:
        """Return a process queue that wakes its puller when there is room."""
        event = asyncio.Event()
        on_idle = self._buffer.offer if self._config.orderly else None
        process_queue: ProcessQueue = ProcessQueue(queue, offset, event.set, on_idle)
        self._room_events[process_queue] = event
        return process_queue

    def start(self, process_queue: ProcessQueue) -> None:
        """Pull for the queue until it is dropped."""
        queue = process_queue.queue
        task = asyncio.create_task(
            self._pull_loop(process_queue),
            name=f"skylarkmq-pull-{queue.topic}-{queue.broker_name}-{queue.queue_id}",
        )
        self._tasks[process_queue] = task
        task.add_done_callback(lambda ended: self._ended(process_queue, ended))

    def renew(self, topic: str) -> None:
        """Pull anew for the topic's queues, because what is wanted of it has changed.

        A pull that the broker holds since before would lead beyond what it does not select.
        """
        for process_queue, task in list(self._tasks.items()):
            if process_queue.queue.topic == topic and not task.cancelling():
                task.cancel()
                self.start(process_queue)

    def is_started(self, process_queue: ProcessQueue) -> bool:
        """Return whether the queue is being pulled."""
        return process_queue in self._tasks

    def cancel(self, process_queue: ProcessQueue) -> None:
        """Drop the queue and end its task; a pull that the broker holds is forgotten."""
        process_queue.drop()
        self._room_events.pop(process_queue, None)
        task = self._tasks.get(process_queue)
        if task is not None:
            task.cancel()

    def keep(self, process_queue: ProcessQueue) -> None:
        """Keep a queue that was about to be given up."""
        process_queue.on_drained = None
        self._buffer.offer(process_queue)

    def wake(self, process_queue: ProcessQueue) -> None:
        """Pull again for a queue that was paused."""
        event = self._room_events.get(process_queue)
        if event is not None:
            event.set()

    def halt(self) -> None:
        """Stop pulling; messages that are held stay and can still be acknowledged."""
        for task in self._tasks.values():
            task.cancel()

    async def stop(self) -> None:
        """End all tasks and drop their queues."""
        tasks = list(self._tasks.values())
        for process_queue in list(self._tasks):
            self.cancel(process_queue)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, process_queue: ProcessQueue, task: asyncio.Task[None]) -> None:
        if self._tasks.get(process_queue) is not task:
            return  # another one has taken its place
        del self._tasks[process_queue]
        self._sources.forget(process_queue.queue)

    async def _pull_loop(self, process_queue: ProcessQueue) -> None:
        clock, last = self._services.clock, self._last_read(process_queue.queue)
        while not process_queue.dropped:
            await self._wait_for_room(process_queue)
            subscription = self.subscriptions.get(process_queue.queue.topic)
            if subscription is None:
                return  # unsubscribed: the rebalance that follows gives the queue up
            offset, asked_s = process_queue.pull_offset, clock.monotonic()
            try:
                if self.inline and await self._has_new_life(process_queue, last):
                    return
                result = await self._pull(process_queue, subscription)
            except RocketMQError as error:
                if self._is_deleted(process_queue, error):
                    return
                await sleep(clock, self._delay_after(error, process_queue.queue))
                continue
            except Exception:
                log.exception("pulling %s failed, tried again later", process_queue.queue)
                await sleep(clock, PULL_ERROR_DELAY_S)
                continue
            if process_queue.dropped:
                return
            if result.status is PullStatus.OFFSET_MOVED:
                if self._moved(process_queue, result):
                    return
            else:
                self._take(process_queue, subscription, result)
            last.took(result.records)
            stood_still = process_queue.pull_offset == offset
            if stood_still and clock.monotonic() - asked_s < EMPTY_FAST_S:
                await sleep(clock, EMPTY_DELAY_S)

    async def _wait_for_room(self, process_queue: ProcessQueue) -> None:
        while not process_queue.dropped and (
            process_queue.paused or self._room(process_queue) <= 0
        ):
            event = self._room_events[process_queue]
            event.clear()
            await event.wait()

    def _room(self, process_queue: ProcessQueue) -> int:
        """Return how many messages the queue may still hold; 0 or less means wait."""
        config = self._config
        queue_count = max(1, len(self._tasks))
        share = max(1, config.prefetch // queue_count)
        if process_queue.held_bytes >= self._bytes_share() or process_queue.span >= config.max_span:
            return 0
        room = share - process_queue.held_count
        # A nearly full queue waits for a worthwhile pull instead of asking message by message.
        return room if room * 2 >= min(share, config.batch_size) else 0

    def _bytes_share(self) -> int:
        return max(1, self._config.prefetch_bytes // max(1, len(self._tasks)))

    def _bytes_wish(self, process_queue: ProcessQueue, peer: Peer | None) -> int:
        """Return how many bytes to ask for; 0 leaves it to a broker that knows no such wish."""
        asks = self._config.batch_size > PLAIN_PULL_COUNT or (
            peer is not None and peer.has_big_pulls
        )
        return self._bytes_share() - process_queue.held_bytes if asks else 0

    def _last_read(self, queue: MessageQueue) -> LastRead:
        return LastRead(self._services, self._config.group, queue)

    async def _has_new_life(self, process_queue: ProcessQueue, last: LastRead) -> bool:
        """Look at what was read last, on a new connection; True when the queue starts anew.

        Raises:
            RocketMQError: the broker cannot be asked.
        """
        queue, offset = process_queue.queue, process_queue.pull_offset
        address, is_master = self._sources.of(queue)
        place, is_new = await last.place(address, offset, of_master=is_master)
        if process_queue.dropped:
            return True
        if is_new:
            self._start_anew(queue, place)
        else:
            process_queue.pull_offset = place
        return is_new

    async def _pull(self, process_queue: ProcessQueue, subscription: Subscription) -> PullResult:
        queue = process_queue.queue
        address, is_master = self._sources.of(queue)
        if not is_master and self._services.routes.master_address(queue.broker_name) is None:
            self._services.doubt(queue.topic)  # one of its slaves may have become the master
        peer = self._services.known_peer(address)
        commits = is_master and peer is not None and peer.ours and not self._config.broadcasting
        # By its absence our broker knows a reader that looks at the log's life by itself.
        commits = commits and not self.inline and self._may_tell(queue)
        wish = PullRequest(
            self._config.group,
            queue,
            process_queue.pull_offset,
            min(self._config.batch_size, self._room(process_queue)),
            0 if self.inline else subscription.data.sub_version,
            process_queue.commit_offset if commits else 0,
            PULL_SUSPEND_MS,
            self._bytes_wish(process_queue, peer),
            subscription.data if self.inline else None,
        )
        asked_s = process_queue.asked_s = self._services.clock.monotonic()
        try:
            result = await pull(self._services.remoting, address, wish, PULL_TIMEOUT_S)
        except RocketMQError:
            self._sources.forget(queue)
            raise
        self._refused.discard(queue)
        if result.records:
            self.counters.pulled(queue, len(result.records), asked_s)
        self._sources.suggested(queue, result.suggested_broker_id)
        return result

    def _take(
        self,
        process_queue: ProcessQueue,
        subscription: Subscription,
        result: PullResult,
    ) -> None:
        records, redelivery = result.records, self._redelivery
        if subscription.tags:
            records = [each for each in records if subscription.wants(tag_in(each[PROPERTIES]))]
        messages = [ReceivedMessage(each, process_queue, redelivery) for each in records]
        hooks = self._services.hooks
        if hooks and messages:
            each(hooks, lambda hook: hook.received(self._config.group, messages))
        if process_queue.add(messages, result.next_offset):
            self._buffer.offer(process_queue)

    def _may_tell(self, queue: MessageQueue) -> bool:
        """Return whether pulls may carry the group's offset of the queue."""
        # Without its lock a queue may be another member's, who has come further.
        return self._locks is None or self._locks.holds(queue)

    def _start_anew(self, queue: MessageQueue, offset: int) -> None:
        assert self.reposition is not None, "the rebalance sets it before it starts a queue"
        self.reposition(queue, offset)

    def _moved(self, process_queue: ProcessQueue, result: PullResult) -> bool:
        """Follow an offset that the broker moved; True when the queue starts anew.

        Forward: the messages in between are gone from the broker; what is held here still counts.
        Back: the queue was cut or made anew, so offsets held here mean other messages now.
        """
        queue, offset = process_queue.queue, process_queue.pull_offset
        following = result.next_offset
        log.warning(
            "offset %d is outside %s, which has %d to %d; going on at %d",
            offset, queue, result.min_offset, result.max_offset, following,
        )  # fmt: skip
        if following < offset:
            self._start_anew(queue, following)
            return True
        process_queue.add([], following)
        return False

    def _is_deleted(self, process_queue: ProcessQueue, error: RocketMQError) -> bool:
        """Follow a topic that its broker has no more; true when the queue starts anew.

        Its messages are gone, and offsets go on from 0 should it be created again.
        """
        queue = process_queue.queue
        if not isinstance(error, BrokerError) or error.code != ResponseCode.TOPIC_NOT_EXIST:
            return False
        if process_queue.dropped or not process_queue.pull_offset:
            return False
        if error.broker_addr != self._services.routes.master_address(queue.broker_name):
            return False  # a slave may not have heard of the topic yet
        log.warning("%s is gone from its broker; should it come again, it is read from 0", queue)
        self._start_anew(queue, 0)
        return True

    def _delay_after(self, error: RocketMQError, queue: MessageQueue) -> float:
        """Log the failure and return how long to wait, in seconds."""
        random = self._services.random
        self._services.failed(queue.topic, error)
        if isinstance(error, ConnectionFailed | RequestTimeout):
            log.debug("pulling %s: %s", queue, error)
            return LOST_DELAY_S * random.uniform(0.5, 1.5)
        if isinstance(error, BrokerError):
            if error.code in NOT_KNOWN_YET:
                log.debug("pulling %s: %s", queue, error)
                self._services.beat_wanted.set()
                return NOT_KNOWN_DELAY_S
            if isinstance(error, FilterRefused):
                self._refused.add(queue)
                pulled = {
                    each.queue for each in self._tasks if not is_retry_topic(each.queue.topic)
                }
                if pulled <= self._refused:
                    self._buffer.refuse(error)
            if error.code == ResponseCode.FLOW_CONTROL:
                return PULL_FLOW_CONTROL_DELAY_S
            if error.code in BUSY_CODES:
                return BUSY_DELAY_S * random.uniform(0.5, 1.5)
        log.warning("pulling %s: %s", queue, error)
        return PULL_ERROR_DELAY_S
