"""Consumer: a member of a consumer group.

    async with Consumer("127.0.0.1:9876", "orders", group="billing") as consumer:
        await consumer.run(handle)             # ack by returning, retry by raising
        async for message in consumer: ...     # or: ack by asking for the next one

The group's members divide the queues among them; its offsets live on the brokers. Delivery is at
least once: a message whose ack was not committed comes again, for instance the last one of a loop
that is left by `break`, unless `message.ack()` or `consumer.commit()` was awaited for it.

    orderly=True             a queue's messages one after another, on one member at a time
    model="broadcasting"     every member gets every message, and keeps its offsets on its own disk
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from skylarkmq.client.clock import sleep
from skylarkmq.client.config import MIB, AckMode, ConsumerConfig, Model
from skylarkmq.client.consumer.allocate import Assignment
from skylarkmq.client.consumer.calls import ConsumerCalls
from skylarkmq.client.consumer.concurrently import Handler, Workers
from skylarkmq.client.consumer.lite_pull import LitePull
from skylarkmq.client.consumer.parts import Parts, put_together
from skylarkmq.client.consumer.rebalance import Callbacks, QueuesCallback
from skylarkmq.client.consumer.start_from import StartFrom
from skylarkmq.client.consumer.subscription import Selector, Subscription, check_filter
from skylarkmq.client.errors import ConsumerClosed, IllegalState, RocketMQError
from skylarkmq.client.instance import Client
from skylarkmq.client.trace import trace_topic
from skylarkmq.protocol.bodies.heartbeat import ConsumerData
from skylarkmq.protocol.flags import retry_topic, validate_group, validate_topic
from skylarkmq.protocol.remoting_command import RemotingCommand

log = logging.getLogger(__name__)


class Consumer(LitePull, ConsumerCalls):
    """Receives messages of its topics as a member of `group`.

    One loop. `getone`, `getmany` and iteration acknowledge what they gave before (with
    `ack="auto"`), so one task uses them; several tasks use `run`, or `ack="manual"`.

    Cancelling any of its coroutines loses no message and leaves it usable; a cancelled `stop` has
    not waited for the handlers, but has left the group all the same.
    """

    def __init__(
        self,
        client: Client | str | None = None,
        *topics: str,
        group: str,
        model: Model = "clustering",
        selector: Selector | None = None,
        start_from: StartFrom = StartFrom.LAST,
        orderly: bool = False,
        assignment: Assignment = "average",
        batch_size: int = 32,
        prefetch: int = 1000,
        prefetch_bytes: int = 100 * MIB,
        max_span: int = 2000,
        max_reconsume: int | None = None,
        ack: AckMode = "auto",
        commit_interval: float = 5.0,
        consume_timeout: float = 900.0,
        on_assigned: QueuesCallback | None = None,
        on_revoked: QueuesCallback | None = None,
        offsets_folder: str | Path | None = None,
        trace: bool | str = False,
    ) -> None:
        """Take the settings; nothing is connected before `start`.

        Args:
            client: shared with producers and with consumers of other groups, or name server
                addresses (default as for Client) for a client of this consumer's own.
            model: "clustering" divides the messages among the members; "broadcasting" gives all
                to each, whose offsets then lie in a file of its host and user.
            selector: which messages of the topics, `Tag` or `Sql92`; default all.
            start_from: where a group without committed offsets starts.
            orderly: hand out the messages of a queue one after another, on one member alone. A
                message that fails is tried again after 1 s while its queue waits.
            assignment: how the members divide the queues: "average", "circle", "consistent_hash",
                or a strategy object. All members of a group name the same.
            batch_size: messages a pull asks for.
            prefetch, prefetch_bytes: messages held here, handed out ones included, over all queues.
                The last answer for a queue may go beyond the bytes, by one message or 256 KiB.
            max_span: how far the lowest unacknowledged message of a queue may lie behind.
            max_reconsume: retries before a message goes to the dead letter topic; by default 16,
                and for an ordered consumer as many as it takes, as in RocketMQ.
            ack: with "manual" messages are acknowledged by `message.ack()` alone; with "none"
                they are when they are handed out, so one that fails is lost.
            commit_interval: seconds between commits.
            consume_timeout: seconds after which a message that is still with its handler is named
                in the log, once. It stays with the handler, and is not delivered again.
            on_assigned, on_revoked: called, and awaited if need be, with the queues, before new
                ones are pulled and before old ones are given up. What is acknowledged when
                `on_revoked` ends is committed.
            offsets_folder: where a broadcasting consumer keeps its offsets, in a file by the
                client's `instance_name` and the group; default: the user's folder for state.
            trace: tell RocketMQ's trace topic what `run` consumes; a text names another topic.

        Raises:
            ValueError: a setting, a topic or the group cannot be used.
        """
        self._owned = not isinstance(client, Client)
        self._client = client if isinstance(client, Client) else Client(client)
        wrap = self._client.namespace.wrap
        if (reason := validate_group(wrap(group))) is not None:
            raise ValueError(reason)
        self._config = ConsumerConfig(
            group=wrap(group),
            model=model,
            orderly=orderly,
            assignment=assignment,
            batch_size=batch_size,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            max_span=max_span,
            max_reconsume=max_reconsume,
            ack=ack,
            commit_interval_s=commit_interval,
            consume_timeout_s=consume_timeout,
            offsets_folder=None if offsets_folder is None else Path(offsets_folder),
        )
        super().__init__(ack)
        self._trace_topic = trace_topic(trace)
        self._start_from = start_from
        self._callbacks = Callbacks(on_assigned, on_revoked)
        self._subscriptions: dict[str, Subscription] = {}
        self._selectors = {_checked(wrap(topic)): selector for topic in topics}
        self._workers: Workers | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._parts: Parts | None = None
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
        for topic, selector in self._selectors.items():
            self._set_subscription(topic, selector)
        parts = put_together(
            self._client, self._config, self._subscriptions, self._start_from, self._callbacks
        )
        if parts.local_offsets is not None:
            await parts.local_offsets.open()
        try:
            self._client.join_consumer(self)
        except BaseException:
            if parts.local_offsets is not None:
                parts.local_offsets.close()
            raise
        self._parts = parts
        self._inside = parts.inside
        self._start_trace(self.group, self._trace_topic)
        try:
            await self._join()
        except BaseException:
            await self.stop(drain=False)
            raise
        self._tasks = [
            self._run_task(parts.inside.rebalance.run(), "rebalance"),
            self._run_task(self._commit_loop(), "commit"),
            self._run_task(parts.slow_handlers.run(), "overdue"),
        ]
        if parts.locks is not None and parts.keeper is not None:
            self._tasks.append(self._run_task(parts.locks.run(parts.keeper), "locks"))

    async def stop(self, drain: bool = True, timeout: float = 30.0) -> None:  # noqa: ASYNC109
        """Leave the group: end the handlers, commit, tell the brokers, close.

        Args:
            drain: wait for the handlers at work, `timeout` seconds at most; else cancel them.
        """
        if self._stopped:
            return
        self._stopped = True
        parts = self._parts
        try:
            if parts is not None:
                parts.inside.buffer.close()
                await _cancel(self._tasks[:1])  # the rebalance, which would begin to pull again
                parts.inside.pulls.halt()
                # Locks are refreshed and offsets committed as long as handlers are at work.
                if self._workers is not None:
                    await self._workers.drain(timeout if drain else 0.0)
        finally:
            try:
                if parts is not None:
                    await self._leave(parts)
            finally:
                self._closed = True
                try:
                    await self._stop_trace()
                finally:
                    if self._owned:
                        await self._client.close()

    async def run(self, handler: Handler, *, concurrency: int = 20, max_batch: int = 1) -> None:
        """Give every message to `handler` until the consumer stops.

        A message is acknowledged when the handler returns (not with `ack="manual"`) and handed back
        for another try when it raises. Handlers of one queue run side by side unless the consumer
        is ordered. Cancelled, it cancels the handlers; their messages are handed out again.

        Args:
            handler: an async function (or a quick plain one) of one message; with `max_batch`
                above 1 of a list of messages of one queue, which are acknowledged or handed back
                together, except those that the handler acknowledged or handed back itself.
            concurrency: how many handlers run at the same time.

        Raises:
            IllegalState: not started, or `run` is under way already.
        """
        inside = self._running
        if self._workers is not None:
            raise IllegalState("run is under way already")
        if concurrency < 1 or max_batch < 1:
            raise ValueError("concurrency and max_batch are 1 or more")
        self._workers = Workers(
            handler,
            inside.buffer,
            inside.services,
            self._config,
            inside.pulls.counters,
            concurrency=concurrency,
            max_batch=max_batch,
        )
        try:
            await self._workers.wait()
        finally:
            if not self._stopped:
                self._workers = None

    async def subscribe(self, topic: str, selector: Selector | None = None) -> None:
        """Add a topic, or change what is wanted of it from the next pull on.

        Raises:
            FilterRefused: a broker does not filter so; all stays as it was.
            IllegalState: queues were assigned by hand.
        """
        known = _checked(self._client.namespace.wrap(topic))
        inside = self._inside
        if inside is not None:
            inside.standing.check_member()
            await self._find_routes([known])
            candidate = Subscription(known, selector, 0)
            await check_filter(inside.services, self._client.client_id, self.group, candidate)
        self._selectors[known] = selector
        if inside is not None:
            self._set_subscription(known, selector)
            await self._join()

    async def unsubscribe(self, topic: str) -> None:
        """Give a topic up."""
        if self._inside is not None:
            self._inside.standing.check_member()
        known = self._client.namespace.wrap(topic)
        self._selectors.pop(known, None)
        if self._subscriptions.pop(known, None) is not None:
            await self._join()

    # What the client asks for

    @property
    def group(self) -> str:
        """The consumer group, as brokers know it: with the client's namespace."""
        return self._config.group

    def consumer_data(self) -> ConsumerData | None:
        """Return this consumer's part of the heartbeat; None when it is no member of its group."""
        if self._inside is None or self._inside.standing.alone or not self._subscriptions:
            return None
        return ConsumerData(
            consume_from_where=self._start_from.wire_name,
            consume_type="CONSUME_PASSIVELY",
            group_name=self.group,
            message_model=self._config.model.upper(),
            subscription_data_set=[each.data for each in self._subscriptions.values()],
        )

    def wake(self) -> None:
        """The group's members or a route may have changed: rebalance soon."""
        if self._inside is not None:
            self._inside.rebalance.wake()

    async def pushed(self, push: RemotingCommand) -> RemotingCommand | None:
        """Answer a broker that asks this member for something."""
        assert self._parts is not None, "a member has been started"
        return await self._parts.pushes.answer(push, self._workers)

    # Inside

    def _set_subscription(self, topic: str, selector: Selector | None) -> None:
        version = self._client.services.clock.now_ms()
        old = self._subscriptions.get(topic)
        if old is not None:
            version = max(version, old.data.sub_version + 1)
        self._subscriptions[topic] = Subscription(topic, selector, version)

    async def _join(self) -> None:
        """Tell the brokers what the group wants now, and divide the queues anew."""
        inside = self._running
        if not self._subscriptions:
            return  # nobody's member before the first `subscribe` or `assign`
        if not self._config.broadcasting and retry_topic(self.group) not in self._subscriptions:
            self._set_subscription(retry_topic(self.group), None)
        await self._find_routes(list(self._subscriptions))
        if not self._tasks:
            for subscription in list(self._subscriptions.values()):
                await check_filter(
                    inside.services, self._client.client_id, self.group, subscription
                )
        await self._client.send_heartbeats()
        if self._tasks or not await inside.rebalance.round():
            inside.rebalance.wake()

    async def _find_routes(self, topics: Sequence[str]) -> None:
        routes = self._running.services.routes
        for topic in topics:
            try:
                if await routes.refresh(topic) is None:
                    log.debug("group %s: topic %s does not exist yet", self.group, topic)
            except RocketMQError as error:
                log.warning("group %s: no route of %s: %s", self.group, topic, error)

    async def _leave(self, parts: Parts) -> None:
        await _cancel(self._tasks)
        parts.retries.stop()
        rebalance = parts.inside.rebalance
        await rebalance.revoke(list(rebalance.assigned))
        if parts.locks is not None:
            await parts.locks.release_all()
        await parts.inside.pulls.stop()
        await parts.send_back.stop()
        if parts.local_offsets is not None:
            parts.local_offsets.close()
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
    current = asyncio.current_task()  # a callback of the rebalance may stop its own consumer
    others = [task for task in tasks if task is not current]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _checked(topic: str) -> str:
    """Return the topic.

    Raises:
        ValueError: it cannot be one.
    """
    if (reason := validate_topic(topic)) is not None:
        raise ValueError(reason)
    return topic
