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
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

from skylarkmq.client.config import MIB, AckMode, ConsumerConfig, Model
from skylarkmq.client.consumer.calls import ConsumerCalls
from skylarkmq.client.consumer.concurrently import Handler, Workers, acting_task
from skylarkmq.client.consumer.lite_pull import LitePull
from skylarkmq.client.consumer.offsets.start_from import StartFrom
from skylarkmq.client.consumer.parts import Parts, put_together
from skylarkmq.client.consumer.queues.allocate import Assignment
from skylarkmq.client.consumer.queues.membership import Membership, subscribe_to
from skylarkmq.client.consumer.queues.rebalance import Callbacks, QueuesCallback
from skylarkmq.client.consumer.subscription import Selector, Subscription, require_selector
from skylarkmq.client.errors import ConsumerClosed, IllegalState, RocketMQError
from skylarkmq.client.instance import Client
from skylarkmq.client.observe.trace import trace_topic
from skylarkmq.client.started import Started
from skylarkmq.protocol.bodies.heartbeat import ConsumerData
from skylarkmq.protocol.flags import validate_group, validate_topic
from skylarkmq.protocol.remoting_command import RemotingCommand


class Consumer(LitePull, ConsumerCalls, Started):
    """Receives messages of its topics as a member of `group`.

    One loop. `getone`, `getmany` and iteration acknowledge what they gave before (with
    `ack="auto"`), so one task uses them; several tasks use `run`, or `ack="manual"`.

    Cancelling any of its coroutines loses no message and leaves it usable.

    Args:
        client: shared with producers and with consumers of other groups, or name server
            addresses (default as for Client) for a client of this consumer's own.
        model: "clustering" divides the messages among the members; "broadcasting" gives all
            to each, whose offsets then lie in a file of its host and user.
        selector: which messages of the topics, `Tag` or `Sql92`; default all.
        start_from: where a group without committed offsets starts. `StartFrom.LAST` is RocketMQ's:
            a topic that is still young is read from its first message all the same; `StartFrom.NOW`
            is not.
        orderly: hand out the messages of a queue one after another, on one member alone. A
            message that fails is tried again after 1 s while its queue waits.
        assignment: how the members divide the queues: "average", "circle", "consistent_hash",
            or a strategy object. All members of a group name the same.
        batch_size: messages a pull asks for.
        prefetch, prefetch_bytes: messages held here, handed out ones included, over all queues.
            The last answer for a queue may go beyond the bytes, by one message or 256 KiB.
        max_span: how far the lowest unacknowledged message of a queue may lie behind.
        retry_delays: seconds (or timedelta) before the first retry of a message whose handler
            failed, the second, and so on; the last one for all that follow. Brokers delay by
            levels, so each is rounded up to the next: 1, 5, 10, 30 s, 1 m, ... 2 h. Default:
            10 s, 30 s, 1 m, ... 2 h; for an ordered consumer 1 s.
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
        TypeError: a selector, a topic or `start_from` is something else.
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
        retry_delays: Iterable[float | timedelta] = (),
        ack: AckMode = "auto",
        commit_interval: float = 5.0,
        consume_timeout: float = 900.0,
        on_assigned: QueuesCallback | None = None,
        on_revoked: QueuesCallback | None = None,
        offsets_folder: str | Path | None = None,
        trace: bool | str = False,
    ) -> None:
        """Take the settings, see the class; nothing is connected before `start`."""
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
            retry_delays_s=tuple(
                delay.total_seconds() if isinstance(delay, timedelta) else delay
                for delay in retry_delays
            ),
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
        require_selector(selector)
        if not isinstance(start_from, StartFrom):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"start_from is StartFrom.LAST, NOW, FIRST or timestamp, not {start_from!r}"
            )
        self._selectors = {_checked(wrap(topic)): selector for topic in topics}
        self._workers: Workers | None = None
        self._parts: Parts | None = None
        self._membership: Membership | None = None
        self._starting = asyncio.Lock()
        self._ending: asyncio.Task[None] | None = None
        self._started = False
        self._stopped = False

    async def start(self) -> None:
        """Join the group and take a share of the queues; does nothing when started.

        Raises:
            ConnectionFailed: no name server can be reached.
            IllegalState: stopped before, or the client has a consumer in this group already.
        """
        async with self._starting:
            if self._stopped:
                raise ConsumerClosed("the consumer has stopped")
            if not self._started:
                await self._start()

    async def _start(self) -> None:
        await self._client.start()
        for topic, selector in self._selectors.items():
            subscribe_to(self._client, self._subscriptions, topic, selector)
        parts = put_together(
            self._client, self._config, self._subscriptions, self._start_from, self._callbacks
        )
        try:
            if parts.local_offsets is not None:
                await parts.local_offsets.open()
            self._client.join_consumer(self)
        except BaseException:
            if parts.local_offsets is not None:
                parts.local_offsets.close()
            if self._owned:
                await self._client.close()
            raise
        self._parts = parts
        self._inside = parts.inside
        membership = Membership(self._client, self._config, self._subscriptions, parts)
        self._membership = membership
        self._start_trace(self.group, self._trace_topic)
        try:
            await membership.join()
        except BaseException as error:
            stopped = self._stopped
            await self.stop(drain=False)
            if stopped and isinstance(error, RocketMQError):
                raise ConsumerClosed("the consumer was stopped while it started") from error
            raise
        if self._stopped:
            await self.stop()
            raise ConsumerClosed("the consumer was stopped while it started")
        membership.begin(self._commit_assigned)
        self._started = True

    async def stop(self, drain: bool = True, timeout: float = 30.0) -> None:  # noqa: ASYNC109
        """Leave the group: end the handlers, commit, tell the brokers, close.

        It goes on when it is cancelled, then without the handlers' drain; called again, it waits
        for its end. A handler may call it, and is not waited for.

        Args:
            drain: wait for the handlers at work, `timeout` seconds at most; else cancel them.
        """
        caller = acting_task.get() or asyncio.current_task()
        workers = self._workers
        if self._ending is None:
            self._stopped = True
            work = self._end(timeout if drain else 0.0, caller)
            self._ending = asyncio.create_task(work, name=f"skylarkmq-{self.group}-stop")
            self._ending.add_done_callback(_look)
        elif caller is self._ending or (workers is not None and workers.has(caller)):
            return  # a callback or a handler, which what is under way waits for
        try:
            await asyncio.shield(self._ending)
        except asyncio.CancelledError:
            if workers is not None and not self._ending.done():
                workers.cancel(caller)
            raise

    async def _end(self, drain_s: float, caller: asyncio.Task[Any] | None) -> None:
        membership = self._membership
        try:
            if membership is not None:
                await membership.halt()
                if self._workers is not None:
                    await self._workers.drain(drain_s, caller)
        finally:
            try:
                if membership is not None:
                    await membership.leave(self)
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
            BrokerError: a broker refuses this consumer's heartbeats or subscription for good, so
                that nothing would ever come; handlers at work are cancelled.
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
            ConsumerClosed: the consumer has stopped.
        """
        require_selector(selector)
        self._check_open()
        known = _checked(self._client.namespace.wrap(topic))
        inside = self._inside
        membership = self._membership
        if inside is not None and membership is not None:
            inside.standing.check_member()
            await membership.check(known, selector)
        self._selectors[known] = selector
        if membership is not None:
            subscribe_to(self._client, self._subscriptions, known, selector)
            try:
                await membership.join()
            finally:
                if inside is not None:
                    inside.pulls.renew(known, inside.rebalance)

    async def unsubscribe(self, topic: str) -> None:
        """Give a topic up.

        Raises:
            IllegalState: queues were assigned by hand.
            ConsumerClosed: the consumer has stopped.
        """
        self._check_open()
        if self._inside is not None:
            self._inside.standing.check_member()
        known = self._client.namespace.wrap(topic)
        self._selectors.pop(known, None)
        if self._subscriptions.pop(known, None) is not None and self._membership is not None:
            await self._membership.join()

    def _check_open(self) -> None:
        if self._stopped:
            raise ConsumerClosed("the consumer has stopped")

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

    def refused(self, error: RocketMQError) -> None:
        """A broker refuses this client for good: `run` or the next `getone` raises the error."""
        if self._inside is not None:
            self._inside.buffer.refuse(error)

    async def pushed(self, push: RemotingCommand) -> RemotingCommand | None:
        """Answer a broker that asks this member for something."""
        assert self._parts is not None, "a member has been started"
        return await self._parts.pushes.answer(push, self._workers)


def _look(ending: asyncio.Task[None]) -> None:
    """Look at how a stop ended, in case nobody waits for it any more."""
    if not ending.cancelled():
        ending.exception()


def _checked(topic: str) -> str:
    """Return the topic.

    Raises:
        ValueError: it cannot be one.
        TypeError: it is no text; several topics are given one by one.
    """
    if not isinstance(topic, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"a topic is text, not {type(topic).__name__}; several topics are given one by one: "
            "Consumer(client, 'orders', 'returns', group=...)"
        )
    if (reason := validate_topic(topic)) is not None:
        raise ValueError(reason)
    return topic
