# pyright: reportPrivateUsage=false
"""SimpleConsumer: takes messages one by one, without a share of the queues.

    async with SimpleConsumer("orders", group="billing", namesrv_addr="127.0.0.1:9876") as consumer:
        for message in await consumer.receive(16):
            handle(message)
            await consumer.ack(message)

A message that was received is hidden from the group's other consumers for its invisible time. Then
it comes again, to any of them, unless it was acknowledged. So a group may have more consumers than
queues, and one that is stuck holds up nobody.

`pop_receiver.py` has how messages come, `receipts.py` what becomes of them. Loop thread.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

from skylarkmq.client.awaited import must_await
from skylarkmq.client.consumer.pop_receiver import PopReceiver
from skylarkmq.client.consumer.subscription import WHERE_NAMES, Selector, require_selector
from skylarkmq.client.errors import NOT_STARTED, ConsumerClosed, IllegalState, RocketMQError
from skylarkmq.client.instance import Client, OnClient, services_of
from skylarkmq.client.observe.hooks import ReceiveContext, each
from skylarkmq.client.popped_message import PoppedMessage
from skylarkmq.client.producer.trace import Tracer, trace_topic
from skylarkmq.client.wire.api_pop import POP_COUNT_MAX
from skylarkmq.client.wire.pushes import Answer
from skylarkmq.common.settings import checked, seconds_of
from skylarkmq.protocol.bodies.group import ConsumerData
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.flags import validate_group, validate_topic
from skylarkmq.protocol.remoting_command import RemotingCommand

INVISIBLE_MAX_S: Final = 12 * 3600.0
CONSUME_POP: Final = "CONSUME_POP"
"""The consume type of the heartbeat; RocketMQ 5's name."""


class SimpleConsumer(OnClient):
    """Receives messages for as long as it says, and acknowledges each one by itself.

    One loop; several tasks may use it. Cancelling any of its coroutines loses no message.

    It works with SkylarkMQ and with RocketMQ 5; a broker of RocketMQ 4.9 is refused as
    `NotSupported`. A group is consumed by SimpleConsumers or by Consumers, never by both.

    Args:
        topics: what to receive; `subscribe` adds more.
        group: the consumer group.
        client: shared with producers and with consumers of other groups.
        namesrv_addr: in place of `client`: name servers (default as for Client) for a client of
            this consumer's own.
        selector: which messages of the topics, `Tag` or `Sql92`; default all.
        invisible_duration: seconds (or timedelta) for which nobody else gets a message.
        await_duration: seconds that `receive` waits while there is none.
        orderly: the group consumes in order (`consumeMessageOrderly`): the messages of a queue
            come one batch after the other. SkylarkMQ's brokers know it of the group.
        trace: write traces of what is received and acknowledged to RocketMQ's trace topic; a
            text names another topic.

    Raises:
        ValueError: a setting, a topic or the group cannot be used.
        TypeError: a selector is something else.
    """

    @checked
    def __init__(
        self,
        *topics: str,
        group: str,
        client: Client | None = None,
        namesrv_addr: str | None = None,
        selector: Selector | None = None,
        invisible_duration: float | timedelta = 30.0,
        await_duration: float | timedelta = 15.0,
        orderly: bool = False,
        trace: bool | str = False,
    ) -> None:
        """Take the settings, see the class; nothing is connected before `start`."""
        super().__init__(client, namesrv_addr)
        self._group = self._namespace.wrap(group)
        if (reason := validate_group(self._group)) is not None:
            raise ValueError(reason)
        require_selector(selector)
        self._invisible_ms = _milliseconds(invisible_duration)
        self._await_s = seconds_of(await_duration)
        if self._await_s < 0:
            raise ValueError(f"await_duration is 0 or more, not {await_duration}")
        self._orderly = orderly
        self._trace_topic = trace_topic(trace)
        self._tracer: Tracer | None = None
        self._selectors = {self._checked(topic): selector for topic in topics}
        self._receiver: PopReceiver | None = None  # from the start on
        self._starting = asyncio.Lock()
        self._started = False
        self._stopped = False
        self._has_left = False

    # Life

    async def start(self) -> None:
        """Find the topics' brokers and tell them of this member; does nothing when started.

        Raises:
            ConnectionFailed: no name server can be reached.
            FilterRefused: a broker does not filter so.
            IllegalState: the client has a consumer in this group already.
            ConsumerClosed: stopped before.
        """
        async with self._starting:
            if self._stopped:
                raise ConsumerClosed("the consumer has stopped")
            if self._started:
                return
            try:
                await self._client.start()
                services = services_of(self._client)
                receiver = PopReceiver(services, self._group, self._orderly)
                member = _Member(self._group, receiver)
                services.join_consumer(member)
            except BaseException:
                await self._stop_own_client()
                raise
            self._receiver, self._member = receiver, member
            if self._trace_topic is not None:
                group = self._namespace.unwrap(self._group)
                self._tracer = Tracer.join(
                    services, services.unique_ids, group, "CONSUME", self._trace_topic
                )
            try:
                for topic, selector in self._selectors.items():
                    await receiver.subscribe(topic, selector)
                await services.send_heartbeats()
            except BaseException:
                self._stopped = True
                await self._leave(receiver)
                raise
            self._started = True

    async def stop(self) -> None:
        """Leave the group. Receives that wait end with ConsumerClosed.

        Messages that were received and not acknowledged come again when their time is over.
        """
        self._stopped = True
        if self._receiver is not None:
            self._receiver.end()
        async with self._starting:  # one after the other, and after a start that is under way
            self._started = False
            if self._receiver is None or self._has_left:
                await self._stop_own_client()
            else:
                await self._leave(self._receiver)

    async def _leave(self, receiver: PopReceiver) -> None:
        try:
            await receiver.stop()
            await receiver.services.leave_consumer(self._member)
            self._has_left = True
        finally:
            try:
                tracer, self._tracer = self._tracer, None
                if tracer is not None:
                    await tracer.leave()
            finally:
                await self._stop_own_client()

    # What is received

    async def subscribe(self, topic: str, selector: Selector | None = None) -> None:
        """Add a topic, or change what is wanted of it.

        Raises:
            FilterRefused: a broker does not filter so; all stays as it was.
            ConsumerClosed: the consumer has stopped.
        """
        require_selector(selector)
        known = self._checked(topic)
        if self._stopped:
            raise ConsumerClosed("the consumer has stopped")
        if self._started and self._receiver is not None:
            await self._receiver.subscribe(known, selector)
            services_of(self._client).beat_wanted.set()
        self._selectors[known] = selector

    async def unsubscribe(self, topic: str) -> None:
        """Receive a topic no more.

        Raises:
            ConsumerClosed: the consumer has stopped.
        """
        known = self._namespace.wrap(topic)
        if self._stopped:
            raise ConsumerClosed("the consumer has stopped")
        self._selectors.pop(known, None)
        subscriptions = {} if self._receiver is None else self._receiver.subscriptions
        if subscriptions.pop(known, None) is not None:
            services_of(self._client).beat_wanted.set()

    async def receive(
        self,
        max_messages: int = 16,
        *,
        invisible_duration: float | timedelta | None = None,
        timeout: float | timedelta | None = None,  # noqa: ASYNC109
    ) -> list[PoppedMessage]:
        """Return the next messages, of one topic and broker; none when nothing came.

        Args:
            max_messages: 1 to 32.
            invisible_duration: in place of the consumer's.
            timeout: seconds to wait while there is none, in place of `await_duration`.

        Raises:
            RouteNotFound: nobody has the topics.
            NotSupported: the brokers have no pop consumption (RocketMQ 4.9).
            RocketMQError: no broker of the topics can be asked, or all refuse; see `retryable`. One
                of several that refuses is logged.
            ConsumerClosed: the consumer has stopped.
        """
        if not 1 <= max_messages <= POP_COUNT_MAX:
            raise ValueError(f"max_messages is 1 to {POP_COUNT_MAX}, not {max_messages}")
        hidden_ms = self._invisible_ms
        if invisible_duration is not None:
            hidden_ms = _milliseconds(invisible_duration)
        receiver = self._running()
        wait_s = self._await_s if timeout is None else seconds_of(timeout)
        hooks, clock = receiver.services.hooks, receiver.services.clock
        if not hooks:
            return await receiver.receive(max_messages, hidden_ms, wait_s)
        context = ReceiveContext(self._group, clock.monotonic())
        each(hooks, lambda hook: hook.before_receive(context))
        found: list[PoppedMessage] = []
        failure: BaseException | None = None
        try:
            found = await receiver.receive(max_messages, hidden_ms, wait_s)
            now_s = clock.monotonic()
            for message in found:
                message._received_s = now_s
        except BaseException as error:
            failure = error
            raise
        finally:
            each(hooks[::-1], lambda hook: hook.after_receive(context, found, failure))
        return found

    @must_await("consumer")
    async def ack(self, message: PoppedMessage) -> None:
        """Say that a message is done: nobody gets it again.

        Raises:
            ReceiptExpired: its invisible time was over, or it was acknowledged before.
            RocketMQError: the broker did not take it; see `retryable`.
        """
        await self._running().receipts.ack(message)

    @must_await("consumer")
    async def change_invisible_duration(
        self, message: PoppedMessage, duration: float | timedelta
    ) -> None:
        """Hide a message for another time, from now on; with 0 it comes again at once.

        The message can be acknowledged as before. Each delivery counts as an attempt.

        Args:
            duration: seconds, or timedelta; 12 hours at most.

        Raises:
            ReceiptExpired: its invisible time was over, or it was acknowledged before.
            RocketMQError: the broker did not take it; see `retryable`.
        """
        hidden_ms = _milliseconds(duration, least=0)
        await self._running().receipts.change(message, hidden_ms)

    async def dead_letter(self, message: PoppedMessage) -> None:
        """Give a message up: it goes to the group's dead letter topic, `%DLQ%<group>`.

        Raises:
            ReceiptExpired: its invisible time was over meanwhile, or it was acknowledged before;
                in the first case it is a dead letter, and comes again as well.
            RocketMQError: the broker did not take it; see `retryable`.
        """
        await self._running().receipts.dead_letter(message)

    @property
    def group(self) -> str:
        """The consumer group, as brokers know it: with the client's namespace."""
        return self._group

    # Inside

    def _take_back(self, messages: list[PoppedMessage]) -> None:
        """Keep messages that their caller did not get: the next receive has them, or the broker."""
        assert self._receiver is not None, "nothing is received before start"
        self._receiver.receipts.keep(messages)

    def _checked(self, topic: str) -> str:
        known = self._namespace.wrap(topic)
        if (reason := validate_topic(known)) is not None:
            raise ValueError(reason)
        return known

    def _running(self) -> PopReceiver:
        if self._stopped:
            raise ConsumerClosed("the consumer has stopped")
        if not self._started or self._receiver is None:
            raise IllegalState(f"the consumer is {NOT_STARTED}")
        return self._receiver


class _Member:
    """What the client sees of a SimpleConsumer. It implements `Member` of services.py."""

    def __init__(self, group: str, receiver: PopReceiver) -> None:
        self.group = group
        self._receiver = receiver

    def consumer_data(self) -> ConsumerData | None:
        subscriptions = self._receiver.subscriptions.values()
        if not subscriptions:
            return None
        return ConsumerData(
            consume_from_where=WHERE_NAMES["last"],
            consume_type=CONSUME_POP,
            group_name=self.group,
            message_model="CLUSTERING",
            subscription_data_set=[each.data for each in subscriptions],
        )

    def pushed(self, push: RemotingCommand) -> Answer:
        why = f"a SimpleConsumer of {self.group} holds no queues and runs no handlers"
        return push.reply(ResponseCode.SYSTEM_ERROR, why)

    def wake(self) -> None:
        pass  # it has no share of the queues

    def refused(self, error: RocketMQError | None) -> None:
        self._receiver.refuse(error)

    def buffered(self) -> dict[str, tuple[int, int]]:
        held: dict[str, tuple[int, int]] = {}
        for message in list(self._receiver.receipts.ready):
            count, size = held.get(message._known_topic, (0, 0))
            held[message._known_topic] = count + 1, size + message.size
        return held


def _milliseconds(duration: float | timedelta, least: int = 1) -> int:
    seconds = seconds_of(duration)
    if not 0 <= seconds <= INVISIBLE_MAX_S or round(seconds * 1000) < least:
        raise ValueError(f"an invisible time is above 0 s and at most 12 h, not {seconds} s")
    return round(seconds * 1000)
