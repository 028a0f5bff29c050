"""Handing a message back for another try: code 36, or a send to the retry topic when that fails.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/consumer/DefaultMQPushConsumerImpl.java
(sendMessageBack)
"""

from __future__ import annotations

import logging
from typing import Final

from skylarkmq.client.api_send import SendRequest, send_message_back
from skylarkmq.client.config import SEND_BACK_TIMEOUT_S, ProducerConfig
from skylarkmq.client.consumer.received_message import ReceivedMessage
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.send_pipeline import SendPipeline
from skylarkmq.client.services import Services
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.flags import CLIENT_INNER_PRODUCER_GROUP, MessageSysFlag, retry_topic
from skylarkmq.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from skylarkmq.protocol.message import MessageExt

log = logging.getLogger(__name__)

FIRST_RETRY_LEVEL: Final = 3
"""Delay level of the first retry (10 s); each further one waits a level longer."""
COMPRESSION_BITS: Final = MessageSysFlag.COMPRESSED_FLAG | MessageSysFlag.COMPRESSION_MASK


class SendBack:
    """Hands back the messages of one consumer; implements `Returner`."""

    def __init__(self, services: Services, group: str, max_reconsume: int) -> None:
        self._services = services
        self._group = group
        self._max_reconsume = max_reconsume
        self._pipeline = SendPipeline(
            ProducerConfig(group=CLIENT_INNER_PRODUCER_GROUP),
            services.remoting,
            services.routes,
            services.clock,
            services.random,
        )

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> None:
        """Let the group get the message again after `delay_level`; -1 makes it a dead letter.

        Raises:
            RocketMQError: neither way worked.
        """
        stored = message.stored
        header = ConsumerSendMsgBackRequestHeader(
            offset=stored.physical_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            max_reconsume_times=self._max_reconsume,
        )
        services = self._services
        address = services.routes.master_address(message.queue.broker_name)
        try:
            await send_message_back(
                services.remoting,
                address or str(stored.store_host),
                header,
                SEND_BACK_TIMEOUT_S,
            )
        except RocketMQError as error:
            log.warning("%r could not be handed back, it is sent again instead: %s", message, error)
            await self._send_again(stored, message.topic, message.msg_id, delay_level)

    async def stop(self) -> None:
        """End what is under way."""
        await self._pipeline.stop()

    async def _send_again(
        self, stored: MessageExt, topic: str, msg_id: str, delay_level: int
    ) -> None:
        """Send a copy to the group's retry topic; the broker makes it a dead letter at the limit.

        A message that is to be a dead letter at once claims to have had all its tries.
        """
        properties = dict(stored.properties)
        properties.setdefault(names.ORIGIN_MESSAGE_ID, msg_id)
        properties[names.RETRY_TOPIC] = topic
        properties.pop(names.TRAN_MSG, None)
        tries = stored.reconsume_times + 1
        if delay_level < 0:
            tries = max(tries, self._max_reconsume)
            properties.pop(names.DELAY, None)
        else:
            level = delay_level or FIRST_RETRY_LEVEL + stored.reconsume_times
            properties[names.DELAY] = str(level)
        request = SendRequest(
            retry_topic(self._group),
            stored.body,
            names.encode_properties(properties),
            msg_id,
            stored.born_timestamp,
            flag=stored.flag,
            sys_flag=stored.sys_flag & COMPRESSION_BITS,
            reconsume_times=tries,
            max_reconsume_times=self._max_reconsume,
        )
        send = self._pipeline.begin(request, None, SEND_BACK_TIMEOUT_S)
        try:
            await send.future
        finally:
            self._pipeline.abandon(send)
