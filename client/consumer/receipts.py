# pyright: reportPrivateUsage=false
"""What becomes of messages that a SimpleConsumer popped: done, hidden for longer, or given back.

Messages that a cancelled receive has taken wait here for the next one, and go back to the broker
when none comes.

Source: apache/rocketmq@rocketmq-all-5.3.3 client/.../impl/consumer/DefaultMQPushConsumerImpl.java
(ackAsync, changePopInvisibleTimeAsync)
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

from skylarkmq.client.config import SEND_BACK_TIMEOUT_S
from skylarkmq.client.consumer.retry import DEAD_LETTER_LEVEL
from skylarkmq.client.errors import ReceiptExpired, RocketMQError, RouteNotFound
from skylarkmq.client.observe.hooks import SettleContext, Settling, each
from skylarkmq.client.popped_message import PoppedMessage
from skylarkmq.client.services import Services
from skylarkmq.client.wire import api_pop
from skylarkmq.client.wire.api_send import send_message_back
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from skylarkmq.remoting.waiting import sleep

log = logging.getLogger(__name__)
T = TypeVar("T")

HAND_OVER_S: Final = 1.0
"""How long messages that a cancelled receive has taken wait for the next one."""


class Receipts:
    """Settles messages by the handles of their deliveries. Loop thread."""

    def __init__(self, services: Services, group: str) -> None:
        """Take the group, as brokers know it."""
        self.ready: deque[PoppedMessage] = deque()
        """Taken for a receive that was cancelled."""
        self._services = services
        self._group = group
        self._hand_overs: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = False

    def take(self, max_messages: int) -> list[PoppedMessage]:
        """Return what waits here."""
        ready = self.ready
        return [ready.popleft() for _ in range(min(max_messages, len(ready)))]

    def keep(self, messages: list[PoppedMessage]) -> None:
        """Keep messages that their caller did not get: the next receive has them, or the broker."""
        if messages:
            self.ready.extend(messages)
            task = self.spawn(self._return_later(messages), "hand-over")
            self._hand_overs.add(task)
            task.add_done_callback(self._hand_overs.discard)

    async def stop(self) -> None:
        """Wait for all tasks, and give back what nobody came for."""
        self._stopped = True
        for task in self._hand_overs:
            task.cancel()
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        await self._give_back(self.take(len(self.ready)))

    async def ack(self, message: PoppedMessage) -> None:
        """Say that a message is done; see `SimpleConsumer.ack`."""
        await self._settle(message, "ack", 0, self._ack(message))

    async def change(self, message: PoppedMessage, hidden_ms: int) -> None:
        """Hide a message for another time; see `SimpleConsumer.change_invisible_duration`."""
        call = self._change(message, hidden_ms)
        await self._settle(message, "change_invisible_duration", hidden_ms, call)

    async def dead_letter(self, message: PoppedMessage) -> None:
        """Give a message up; see `SimpleConsumer.dead_letter`."""
        _check_open(message)
        services = self._services
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.commit_log_offset,
            group=self._group,
            delay_level=DEAD_LETTER_LEVEL,
            origin_msg_id=message.msg_id,
            origin_topic=message._known_topic,
            max_reconsume_times=0,
        )
        address = master_of(services, message.topic, message.broker_name)
        await send_message_back(services.remoting, address, header, SEND_BACK_TIMEOUT_S)
        await self.ack(message)

    def drop(self, strays: Sequence[PoppedMessage]) -> None:
        """Acknowledge messages that nobody wants."""
        if strays:
            self.spawn(self._drop(strays), "strays")

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task that `stop` waits for."""
        task = asyncio.create_task(work, name=f"skylarkmq-{self._group}-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Inside

    async def _drop(self, strays: Iterable[PoppedMessage]) -> None:
        for message in strays:
            try:
                await self._ack(message)
            except RocketMQError as error:
                log.debug("%r comes again: %s", message, error)

    async def _return_later(self, messages: list[PoppedMessage]) -> None:
        if not self._stopped:
            await sleep(self._services.clock, HAND_OVER_S)
        rest = [message for message in messages if message in self.ready]
        for message in rest:
            self.ready.remove(message)
        await self._give_back(rest)

    async def _give_back(self, messages: Iterable[PoppedMessage]) -> None:
        calls = (self._change(message, 0) for message in messages)
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                log.debug("a message comes again only when its time is over: %s", outcome)

    async def _settle(
        self,
        message: PoppedMessage,
        operation: Settling,
        hidden_ms: int,
        call: Coroutine[Any, Any, None],
    ) -> None:
        """Say what becomes of a message, and tell the hooks."""
        hooks = self._services.hooks
        if not hooks:
            await call
            return
        now_s = self._services.clock.monotonic()
        context = SettleContext(self._group, message, operation, now_s, hidden_ms)
        each(hooks, lambda hook: hook.before_settle(context))
        failure: BaseException | None = None
        try:
            await call
        except BaseException as error:
            failure = error
            raise
        finally:
            each(hooks[::-1], lambda hook: hook.after_settle(context, failure))

    async def _ack(self, message: PoppedMessage) -> None:
        _check_open(message)
        services = self._services
        await api_pop.ack(
            services.remoting,
            master_of(services, message.topic, message.broker_name),
            self._group,
            message._known_topic,
            message._checkpoint,
            services.config.request_timeout_s,
        )
        message._is_done = True

    async def _change(self, message: PoppedMessage, hidden_ms: int) -> None:
        _check_open(message)
        services = self._services
        message._checkpoint = await api_pop.change_invisible_time(
            services.remoting,
            master_of(services, message.topic, message.broker_name),
            self._group,
            message._known_topic,
            message._checkpoint,
            hidden_ms,
            services.config.request_timeout_s,
        )


def _check_open(message: PoppedMessage) -> None:
    """Refuse what was acknowledged before.

    Raises:
        ReceiptExpired: it was.
    """
    if message._is_done:
        why = "it was acknowledged before"
        raise ReceiptExpired(ResponseCode.NO_MESSAGE, why, message.broker_name)


def master_of(services: Services, topic: str, broker_name: str) -> str:
    """Return the address of a broker's master.

    Raises:
        RouteNotFound: there is none at the moment.
    """
    address = services.routes.master_address(broker_name)
    if address is None:
        raise RouteNotFound(topic, "no_broker", f"Broker {broker_name} is gone at the moment")
    return address
