"""Units of a queue as they lie in its files (321), for whoever looks for a message that is missing.

With a consumer group the answer tells what the group subscribes to and, for each unit, whether its
tags want the message; an expression is asked of records, not of units, so it wants them all here.

Unlike RocketMQ, an answer has at most UNITS_MAX units.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(queryConsumeQueue)
"""

from __future__ import annotations

from typing import Final

from skylarkmq.broker.connection import Connection
from skylarkmq.broker.consumer_manager import ConsumerManager
from skylarkmq.broker.filter.consumer_filter import ConsumerFilterManager
from skylarkmq.broker.filter.tag_filter import Matches, is_tag_type, tag_filter
from skylarkmq.broker.processor.name_checks import check_group
from skylarkmq.broker.router import Handler
from skylarkmq.protocol.bodies.consume_queue import (
    ConsumeQueueData,
    QueryConsumeQueueResponseBody,
)
from skylarkmq.protocol.bodies.heartbeat import SubscriptionData
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.headers.admin import QueryConsumeQueueRequestHeader
from skylarkmq.protocol.headers.fields import decode_fields
from skylarkmq.store.message_store import MessageStore

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
        units = self._store.queue_units(topic, queue_id, header.index, count)
        matches = _matches(subscription)
        body = QueryConsumeQueueResponseBody(
            filter_data=filter_data,
            max_queue_index=queue.max_offset,
            min_queue_index=queue.min_offset,
            queue_data=[
                ConsumeQueueData(
                    eval=matches is not None and matches(unit.tags_code),
                    physic_offset=unit.commit_offset,
                    physic_size=unit.record_size,
                    tags_code=unit.tags_code,
                )
                for unit in units
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


def _matches(subscription: SubscriptionData | None) -> Matches | None:
    """What a group's tags want; None when nobody is asked."""
    if subscription is None:
        return None
    wants = None
    if is_tag_type(subscription.expression_type):
        wants = tag_filter(subscription.sub_string, subscription.code_set)
    return wants or _everything


def _everything(_: int) -> bool:
    return True
