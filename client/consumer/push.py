"""Consumer: a member of a consumer group.

    async with Consumer("127.0.0.1:9876", "orders", group="billing") as consumer:
        await consumer.run(handle)             # ack by returning, retry by raising
        async for message in consumer: ...     # or: ack by asking for the next one

The group's members divide the queues among them; its offsets live on the brokers. Delivery is at
least once: a message whose ack was not committed comes again, for instance the last one of a loop
that is left by `break`, unless `message.ack()` or `consumer.commit()` was awaited for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from skylarkmq.client.clock import sleep
from skylarkmq.client.config import MIB, ConsumerConfig
from skylarkmq.client.consumer.allocate import find_allocation
from skylarkmq.client.consumer.concurrently import Handler, Workers
from skylarkmq.client.consumer.lite_pull import Inside, LitePull
from skylarkmq.client.consumer.message_buffer import MessageBuffer
from skylarkmq.client.consumer.offset_store import OffsetStore
from skylarkmq.client.consumer.pull_service import PullService
from skylarkmq.client.consumer.rebalance import Callbacks, QueuesCallback, Rebalance
from skylarkmq.client.consumer.send_back import SendBack
from skylarkmq.client.consumer.shares import GroupShares
from skylarkmq.client.consumer.start_from import StartFrom
from skylarkmq.client.consumer.subscription import Subscription, Tag
from skylarkmq.client.errors import ConsumerClosed, IllegalState, RocketMQError
from skylarkmq.client.instance import Client
from skylarkmq.protocol.bodies.heartbeat import ConsumerData
from skylarkmq.protocol.flags import retry_topic, validate_group, validate_topic

log = logging.getLogger(__name__)


class Consumer(LitePull):
    """Receives messages of its topics as a member of `group`; clustering.

    One loop. `getone`, `getmany` and iteration acknowledge what they gave before (with
    `ack="auto"`), so one task uses them; several tasks use `run`, or `ack="manual"`.
    """

    def __init__(
        self,
        client: Client | str | None = None,
        *topics: str,
        group: str,
        selector: Tag | None = None,
        start_from: StartFrom = StartFrom.LAST,
        batch_size: int = 32,
        prefetch: int = 1000,
        prefetch_bytes: int = 100 * MIB,
        max_span: int = 2000,
        max_reconsume: int = 16,
        ack: Literal["auto", "manual"] = "auto",
        commit_interval: float = 5.0,
        on_assigned: QueuesCallback | None = None,
        on_revoked: QueuesCallback | None = None,
    ) -> None:
        """Take the settings; nothing is connected before `start`.

        Args:
            client: shared with producers and with consumers of other groups, or name server
                addresses (default as for Client) for a client of this consumer's own.
            selector: which messages of the topics; default all.
            start_from: where a group without committed offsets starts.
            batch_size: messages a pull asks for.
            prefetch, prefetch_bytes: messages held here, handed out ones included.
            max_span: how far the lowest unacknowledged message of a queue may lie behind.
            max_reconsume: retries before a message goes to the dead letter topic.
            ack: with "manual" messages are acknowledged by `message.ack()` alone.
            commit_interval: seconds between commits.
            on_assigned, on_revoked: called, and awaited if need be, with the queues, before new
                ones are pulled and before old ones are given up.
        """
        if (reason := validate_group(group)) is not None:
            raise ValueError(reason)
        self._config = ConsumerConfig(
            group=group,
            batch_size=batch_size,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            max_span=max_span,
            max_reconsume=max_reconsume,
            ack=ack,
            commit_interval_s=commit_interval,
        )
        super().__init__(auto_ack=ack == "auto")
        self._owned = not isinstance(client, Client)
        self._client = client if isinstance(client, Client) else Client(client)
        self._start_from = start_from
        self._callbacks = Callbacks(on_assigned, on_revoked)
        self._subscriptions: dict[str, Subscription] = {}
        self._selectors = {topic: selector for topic in topics}
        for topic in topics:
            _check_topic(topic)
        self._workers: Workers | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._send_back: SendBack | None = None
        self._stopped = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Join the group and take a share of the queues; does nothing when started.

        Raises:
            ConnectionFailed: no name server can be reached.
            IllegalState: stopped before, or the client has a consumer in this group already.
        """
        if self._stopped:
            raise ConsumerClosed("the consumer has stopped")
        if self._tasks:
            return
        await self._client.start()
        services = self._client.services
        for topic, selector in self._selectors.items():
            self._set_subscription(topic, selector)
        self._set_subscription(retry_topic(self.group), None)
        buffer = MessageBuffer(services.clock)
        offsets = OffsetStore(services.consumer_api, services.routes, self.group)
        self._send_back = SendBack(services, self.group, self._config.max_reconsume)
        pulls = PullService(
            self._config,
            services,
            self._subscriptions,
            buffer,
            self._send_back,
            self._client.want_heartbeat,
        )
        rebalance = Rebalance(
            services,
            self.group,
            self._subscriptions,
            offsets,
            pulls,
            GroupShares(self._client, self.group, find_allocation("average")),
            self._start_from,
            self._callbacks,
        )
        self._client.join_consumer(self)
        self._inside = Inside(services, buffer, offsets, pulls, rebalance)
        try:
            await self._join()
        except BaseException:
            await self.stop(drain=False)
            raise
        self._tasks = [
            self._run_task(rebalance.run(), "rebalance"),
            self._run_task(self._commit_loop(), "commit"),
        ]

    async def stop(self, drain: bool = True, timeout: float = 30.0) -> None:  # noqa: ASYNC109
        """Leave the group: end the handlers, commit, tell the brokers, close.

        Args:
            drain: wait for the handlers at work, `timeout` seconds at most; else cancel them.
        """
        if self._stopped:
            return
        self._stopped = True
        inside = self._inside
        try:
            if inside is not None:
                inside.buffer.close()
                await _cancel(self._tasks)
                inside.pulls.halt()
                if self._workers is not None:
                    await self._workers.drain(timeout if drain else 0.0)
        finally:
            try:
                if inside is not None:
                    await self._leave(inside)
            finally:
                self._closed = True
                if self._owned:
                    await self._client.close()

    async def run(self, handler: Handler, *, concurrency: int = 20, max_batch: int = 1) -> None:
        """Give every message to `handler` until the consumer stops.

        A message is acknowledged when the handler returns and handed back for another try when it
        raises. Handlers of one queue run side by side unless `concurrency` is 1.

        Args:
            handler: an async function (or a quick plain one) of one message; with `max_batch`
                above 1 of a list of messages of one queue, which are acknowledged or handed back
                together, except those that the handler acknowledged itself.
            concurrency: how many handlers run at the same time.
        """
        inside = self._running
        if self._workers is not None:
            raise IllegalState("run is under way already")
        if concurrency < 1 or max_batch < 1:
            raise ValueError("concurrency and max_batch are 1 or more")
        self._workers = Workers(
            handler,
            inside.buffer,
            inside.services.clock,
            concurrency=concurrency,
            max_batch=max_batch,
        )
        try:
            await self._workers.wait()
        finally:
            if not self._stopped:
                self._workers = None

    async def subscribe(self, topic: str, selector: Tag | None = None) -> None:
        """Add a topic, or change what is wanted of it from the next pull on."""
        _check_topic(topic)
        self._selectors[topic] = selector
        if self._inside is not None:
            self._set_subscription(topic, selector)
            await self._join()

    async def unsubscribe(self, topic: str) -> None:
        """Give a topic up."""
        self._selectors.pop(topic, None)
        if self._subscriptions.pop(topic, None) is not None:
            await self._join()

    # What the client asks for

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._config.group

    def consumer_data(self) -> ConsumerData:
        """Return this consumer's part of the heartbeat."""
        return ConsumerData(
            consume_from_where=self._start_from.wire_name,
            consume_type="CONSUME_PASSIVELY",
            group_name=self.group,
            message_model="CLUSTERING",
            subscription_data_set=[each.data for each in self._subscriptions.values()],
        )

    def wake(self) -> None:
        """The group's members or a route may have changed: rebalance soon."""
        if self._inside is not None:
            self._inside.rebalance.wake()

    # Inside

    def _set_subscription(self, topic: str, selector: Tag | None) -> None:
        version = self._client.services.clock.now_ms()
        old = self._subscriptions.get(topic)
        if old is not None:
            version = max(version, old.data.sub_version + 1)
        self._subscriptions[topic] = Subscription(topic, selector, version)

    async def _join(self) -> None:
        """Tell the brokers what the group wants now, and divide the queues anew."""
        inside = self._running
        for topic in list(self._subscriptions):
            try:
                if await inside.services.routes.refresh(topic) is None:
                    log.debug("group %s: topic %s does not exist yet", self.group, topic)
            except RocketMQError as error:
                log.warning("group %s: no route of %s: %s", self.group, topic, error)
        await self._client.send_heartbeats()
        if self._tasks or not await inside.rebalance.round():
            inside.rebalance.wake()

    async def _leave(self, inside: Inside) -> None:
        await inside.rebalance.revoke(list(inside.rebalance.assigned))
        await inside.pulls.stop()
        if self._send_back is not None:
            await self._send_back.stop()
        await self._client.leave_consumer(self)

    async def _commit_loop(self) -> None:
        inside = self._running
        while True:
            await sleep(inside.services.clock, self._config.commit_interval_s)
            try:
                await self._commit_assigned()
            except RocketMQError as error:
                log.warning("group %s: %s, tried again in its time", self.group, error)
            except Exception:
                log.exception("group %s: commit failed, tried again in its time", self.group)

    def _run_task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.create_task(work, name=f"skylarkmq-{self.group}-{name}")


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _check_topic(topic: str) -> None:
    if (reason := validate_topic(topic)) is not None:
        raise ValueError(reason)
