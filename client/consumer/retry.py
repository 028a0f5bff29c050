# pyright: reportPrivateUsage=false
"""When a handler fails: the next try, from the broker or from here, and the dead letters.

    a member of a group      code 36 hands the message back; should that fail, a copy is sent to the
                             retry topic. Should that fail too, it is tried again here.
    an ordered consumer      the queue waits here with the message: no later one is handed out
    a broadcasting consumer  it waits here, the others go on; after the last try it is dropped
    queues by hand           it waits here: no one reads the retry topic of a group without members

A message that waits here has a timer; the prefetch limit bounds their number. It counts as handed
out, so it holds the offset.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/consumer/DefaultMQPushConsumerImpl.java
(sendMessageBack), ConsumeMessageOrderlyService.java (processConsumeResult, checkReconsumeTimes)
Unlike RocketMQ: a broadcasting consumer tries a message again before it drops it.
"""

from __future__ import annotations

import logging
from typing import Final

from skylarkmq.client.config import (
    MAX_RECONSUME,
    SEND_BACK_TIMEOUT_S,
    SUSPEND_S,
    ProducerConfig,
)
from skylarkmq.client.consumer.config import ConsumerConfig
from skylarkmq.client.consumer.message_buffer import MessageBuffer
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.producer.send_pipeline import SendPipeline
from skylarkmq.client.received_message import ReceivedMessage, Redelivery
from skylarkmq.client.retry_delay import (
    FIRST_RETRY_LEVEL,
    GROWING,
    RetryDelay,
    RetryDelays,
)
from skylarkmq.client.services import Services
from skylarkmq.client.wire.api_send import SendRequest, send_message_back
from skylarkmq.common.clock import TimerHandle
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.flags import CLIENT_INNER_PRODUCER_GROUP, MessageSysFlag, retry_topic
from skylarkmq.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from skylarkmq.protocol.message import MessageExt

log = logging.getLogger(__name__)

DEAD_LETTER_LEVEL: Final = -1
DEAD_LETTER_REASON: Final = "DEAD_LETTER_REASON"
"""Property of a dead letter: the text that `dead_letter` was given. Ours, not RocketMQ's."""
REASON_SIZE_MAX: Final = 1000
"""Characters; all properties of a message have 32,767 bytes."""
COMPRESSION_BITS: Final = MessageSysFlag.COMPRESSED_FLAG | MessageSysFlag.COMPRESSION_MASK
LOCAL_RETRY_S: Final = 5.0
"""The wait before the next try here, when no broker takes a message."""
BROADCAST_DELAY_MAX_S: Final = 60.0
"""The growing delay of a broadcasting consumer ends here: the message holds its offset."""


class Retries(Redelivery):
    """The failed messages of one consumer. Loop thread."""

    def __init__(self, services: Services, config: ConsumerConfig, buffer: MessageBuffer) -> None:
        super().__init__(services.clock, services.namespace)
        self.is_local = config.orderly or config.broadcasting
        """Messages wait here for their next try, not at the broker."""
        self._services = services
        self._config = config
        self._buffer = buffer
        self._delays = RetryDelays(config.retry_delays_s)
        self._broker_tries_max = MAX_RECONSUME if config.tries_max is None else config.tries_max
        self._timers: set[TimerHandle] = set()
        self._pipeline = SendPipeline(
            ProducerConfig(group=CLIENT_INNER_PRODUCER_GROUP), services, services.random
        )

    async def give_back(
        self, message: ReceivedMessage, delay: RetryDelay, reason: str | None = None
    ) -> None:
        if self.is_local:
            await self._wait_locally(message, delay, reason)
            return
        dead = message.stored.reconsume_times >= self._broker_tries_max
        if dead and reason:  # a broker that makes it a dead letter by itself keeps no reason
            await self.give_up(message, reason)
            return
        try:
            await self._call_back(message, delay.level)
        except RocketMQError as error:
            log.warning("%r could not be handed back, it is sent again instead: %s", message, error)
            await self._send_again(message, delay.level)
        message._finish("dead_letter" if dead else "retry")

    async def retry(self, message: ReceivedMessage, reason: str | None) -> None:
        try:
            await self.give_back(message, self._delays.after(message.reconsume_times), reason)
        except RocketMQError as error:
            log.warning("%r could not be handed back, retried here: %s", message, error)
            if message._is_mine:
                self._later(message, LOCAL_RETRY_S)
        if message._outcome == "dead_letter" and not self._config.broadcasting:
            log.warning("%r is a dead letter of %s: no retry is left", message, self._config.group)

    async def give_up(self, message: ReceivedMessage, reason: str | None) -> None:
        if self._config.broadcasting:
            log.error("%r is given up%s", message, f": {reason}" if reason else "")
            message._finish("dead_letter")
            return
        # Only a copy can carry a reason: code 36 has no field for it.
        first, second = self._call_back, self._send_again
        if reason:
            first, second = second, first
        try:
            await first(message, DEAD_LETTER_LEVEL, reason)
        except RocketMQError as error:
            log.warning("%r: no dead letter yet, the other way is tried: %s", message, error)
            await second(message, DEAD_LETTER_LEVEL, reason)
        message._finish("dead_letter")

    def cancel(self) -> None:
        """Forget the messages that wait here; they are not acknowledged, so the group gets them."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    async def stop(self) -> None:
        """End the sends that are under way."""
        await self._pipeline.stop()

    async def _wait_locally(
        self, message: ReceivedMessage, delay: RetryDelay, reason: str | None
    ) -> None:
        config, tries = self._config, message.reconsume_times
        if config.tries_max is not None and tries >= config.tries_max:
            await self.give_up(message, reason)
            return
        wait_s = delay.seconds(tries, SUSPEND_S if config.orderly else None)
        if not config.orderly and delay == GROWING:
            wait_s = min(wait_s, BROADCAST_DELAY_MAX_S)
        self._later(message, wait_s)

    def _later(self, message: ReceivedMessage, delay_s: float) -> None:
        """Hand the message out again after `delay_s`, unless its queue has gone by then."""
        following = message._again()

        def again() -> None:
            self._timers.discard(timer)
            process_queue = following._process_queue
            if process_queue.put_back(following):
                self._buffer.offer(process_queue)

        timer = self.clock.call_at(self.clock.monotonic() + delay_s, again)
        self._timers.add(timer)

    async def _call_back(
        self, message: ReceivedMessage, delay_level: int, reason: str | None = None
    ) -> None:
        stored = message.stored
        header = ConsumerSendMsgBackRequestHeader(
            offset=stored.physical_offset,
            group=self._config.group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=_own_topic(stored),
            max_reconsume_times=self._broker_tries_max,
        )
        services = self._services
        queue = message._process_queue.queue
        address = services.routes.master_address(queue.broker_name)
        await send_message_back(
            services.remoting,
            address or str(stored.store_host),
            header,
            SEND_BACK_TIMEOUT_S,
        )

    async def _send_again(
        self, message: ReceivedMessage, delay_level: int, reason: str | None = None
    ) -> None:
        """Send a copy to the group's retry topic; the broker makes it a dead letter at the limit.

        A message that is to be a dead letter at once has a limit that it has passed: 4.9 compares
        by >=, 5.x by >.
        """
        stored = message.stored
        properties = dict(stored.properties)
        properties.setdefault(names.ORIGIN_MESSAGE_ID, message.msg_id)
        properties[names.RETRY_TOPIC] = _own_topic(stored)
        properties.pop(names.TRAN_MSG, None)
        properties.pop(names.DELAY, None)
        tries = stored.reconsume_times + 1
        tries_max = self._broker_tries_max
        if delay_level < 0:
            tries_max = min(stored.reconsume_times, tries_max)
            if reason:
                properties[DEAD_LETTER_REASON] = _plain(reason)
        else:
            level = delay_level or FIRST_RETRY_LEVEL + stored.reconsume_times
            properties[names.DELAY] = str(level)
        request = SendRequest(
            retry_topic(self._config.group),
            stored.body,
            names.encode_properties(properties),
            message.msg_id,
            stored.born_timestamp,
            flag=stored.flag,
            sys_flag=stored.sys_flag & COMPRESSION_BITS,
            reconsume_times=tries,
            max_reconsume_times=tries_max,
        )
        send = self._pipeline.begin(request, None, SEND_BACK_TIMEOUT_S)
        try:
            await send.future
        finally:
            self._pipeline.abandon(send)


def _own_topic(stored: MessageExt) -> str:
    """The topic that the message was sent to, as brokers know it."""
    return stored.properties.get(names.RETRY_TOPIC, stored.topic)


def _plain(reason: str) -> str:
    """The text without what parts properties from each other."""
    return "".join(char if char.isprintable() else " " for char in reason[:REASON_SIZE_MAX])
