"""Units of a queue as they lie in its files (321), for whoever looks for a message that is missing.

With a consumer group the answer tells what the group subscribes to and, for each unit, whether its
tags want the message, or its expression may want it by the bitmap of the queue's extension: units
without a bitmap are all wanted.

Unlike RocketMQ, an answer has at most UNITS_MAX units, and tags codes are never addresses of the
extension.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(queryConsumeQueue)
"""

from __future__ import annotations

from typing import Final

from skylarkmq.broker.filter.consumer_filter import ConsumerFilterManager
from skylarkmq.broker.filter.tag_filter import is_tag_type, tag_filter
from skylarkmq.broker.groups.consumer_manager import ConsumerManager
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.router import Handler
from skylarkmq.broker.processor.name_checks import check_group
from skylarkmq.protocol.bodies.group import SubscriptionData
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.bodies.topic import ConsumeQueueData, QueryConsumeQueueResponseBody
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.headers.fields import decode_fields
from skylarkmq.protocol.headers.topic import QueryConsumeQueueRequestHeader
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.queue.consume_queue import UNIT, UNIT_SIZE, ConsumeQueue

UNITS_MAX: Final = 2000


class AdminQueueProcessor:
    """Shows queues. Loop thread."""

    def __init__(
        self, store: MessageStore, consumers: ConsumerManager, filters: ConsumerFilterManager
    ) -> None:
        self._store = store
        self._consumers = consumers
        self._filters = filters

    def handlers(self) -> dict[int, Handler]:
        """The codes that this processor answers."""
        return {RequestCode.QUERY_CONSUME_QUEUE: self.query_consume_queue}

    def query_consume_queue(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Answer units from an index on (321)."""
        header = decode_fields(QueryConsumeQueueRequestHeader, request.ext_fields)
        topic, queue_id = header.topic, header.queue_id
        queue = self._store.queues.get(topic, queue_id)
        if queue is None:
            raise RemoteProtocolError(
                ResponseCode.SYSTEM_ERROR, f"{queue_id}@{shown(topic)} is not exist!"
            )
        subscription: SubscriptionData | None = None
        filter_data: str | None = None
        if header.consumer_group is not None:
            check_group(header.consumer_group)
            subscription = self._consumers.find_subscription(header.consumer_group, topic)
            filter_data = self._filter_data(header.consumer_group, topic, subscription)
        count = min(max(0, header.count), UNITS_MAX)
        stored = self._stored_units(queue, header.index, count)
        units = list(UNIT.iter_unpack(self._store.queues.resolved(queue, stored)))
        wanted = self._wanted(header.consumer_group, subscription, queue, stored, units)
        body = QueryConsumeQueueResponseBody(
            filter_data=filter_data,
            max_queue_index=queue.max_offset,
            min_queue_index=queue.min_offset,
            queue_data=[
                ConsumeQueueData(
                    eval=is_wanted, physic_offset=offset, physic_size=size, tags_code=tags_code
                )
                for (offset, size, tags_code), is_wanted in zip(units, wanted, strict=True)
            ],
            subscription_data=subscription,
        )
        remark = None
        if not units:
            remark = f"Index {header.index} of {queue_id}@{topic} is not exist!"
        return request.reply(ResponseCode.SUCCESS, remark, body=encode_body(body))

    def _filter_data(
        self, group: str, topic: str, subscription: SubscriptionData | None
    ) -> str | None:
        """What is known of the group's expression, as a JSON text."""
        if subscription is None:
            return f"{group}@{topic} is not online!"
        return self._filters.shown(topic, group)

    def _stored_units(self, queue: ConsumeQueue, index: int, count: int) -> bytes:
        """Units as they lie in the files and, the newest ones, in memory."""
        if not queue.min_offset <= index < queue.max_offset:
            return b""
        units = b""
        while count > 0:
            part = self._store.queues.stored_units(queue, index, count)
            if not part:
                break
            units += part
            index += len(part) // UNIT_SIZE
            count -= len(part) // UNIT_SIZE
        return units

    def _wanted(
        self,
        group: str | None,
        subscription: SubscriptionData | None,
        queue: ConsumeQueue,
        stored: bytes,
        units: list[tuple[int, int, int]],
    ) -> list[bool]:
        """Whether the group wants each unit's message; no when nobody is asked."""
        if group is None or subscription is None:
            return [False] * len(units)
        if is_tag_type(subscription.expression_type):
            wants = tag_filter(subscription.sub_string, subscription.code_set)
            return [wants is None or wants(tags_code) for _, _, tags_code in units]
        data = self._filters.get(queue.topic, group)
        if data is None:
            return [True] * len(units)
        refused = data.record_filter.refused(self._store.queues.bitmaps(queue, stored), 0)
        return [place not in refused for place in range(len(units))]
