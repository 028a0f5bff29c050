"""Tells that a group was moved: messages in the topic OFFSET_MOVED_EVENT.

A pull from an offset that its queue does not have is answered with one that it has (code 21). The
group has then lost messages, or starts over, so each such answer is also a message: the body is
JSON, tag and key are the group. Loop thread.

    {"consumerGroup":"g","messageQueue":{"brokerName":"b","queueId":0,"topic":"T"},
     "offsetNew":5,"offsetRequest":0}

Unlike RocketMQ, events are bounded, so that a client that asks again and again cannot fill the
disk: BURST at a time, and EVENTS_PER_S over long; what is left out is counted in the log.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/PullMessageProcessor.java
(generateOffsetMovedEvent), common/.../protocol/topic/OffsetMovedEvent.java
"""

from __future__ import annotations

import logging
from typing import Final

from skylarkmq.broker.base.token_bucket import TokenBucket
from skylarkmq.common.clock import Clock
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.bodies.group import OffsetMovedEvent
from skylarkmq.protocol.bodies.text import MessageQueueBody, encode_body
from skylarkmq.protocol.flags import RMQ_SYS_OFFSET_MOVED_EVENT
from skylarkmq.protocol.headers.pull import PullMessageRequestHeader
from skylarkmq.protocol.properties import encode_properties
from skylarkmq.protocol.tags_code import tags_code
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.results import STORED, MessageInner, PutMessageResult

log = logging.getLogger(__name__)

BURST: Final = 1000.0
"""Events at once: a clean-up moves many groups in many queues."""
EVENTS_PER_S: Final = 1.0


class OffsetMovedEvents:
    """Stores the events of one broker."""

    def __init__(
        self, broker_name: str, store: MessageStore, clock: Clock, store_host: bytes
    ) -> None:
        self._broker_name = broker_name
        self._store = store
        self._clock = clock
        self._store_host = store_host
        self._bucket = TokenBucket(clock, BURST, EVENTS_PER_S)

    def note(self, header: PullMessageRequestHeader, new_offset: int) -> None:
        """Note a pull that was answered with another offset than it asked for."""
        if not self._bucket.take():
            return
        if left_out := self._bucket.left_out():
            log.warning("%d events of moved offsets were left out", left_out)
        event = OffsetMovedEvent(
            consumer_group=header.consumer_group,
            message_queue=MessageQueueBody(
                broker_name=self._broker_name, queue_id=header.queue_id, topic=header.topic
            ),
            offset_new=new_offset,
            offset_request=header.queue_offset,
        )
        # In a turn of its own: this one may be a sender's, whose message woke the pull.
        self._clock.call_at(self._clock.monotonic(), self._put, event)

    def _put(self, event: OffsetMovedEvent) -> None:
        group = event.consumer_group
        properties = {names.KEYS: group, names.TAGS: group, names.DELAY: "0"}
        inner = MessageInner(
            topic=RMQ_SYS_OFFSET_MOVED_EVENT,
            queue_id=0,
            body=encode_body(event),
            properties=encode_properties(properties).encode(),
            born_host=self._store_host,
            store_host=self._store_host,
            born_timestamp=self._clock.now_ms(),
            tags_code=tags_code(group),
            wait_store_ok=False,
        )
        self._store.put_message(inner, self._done)

    @staticmethod
    def _done(result: PutMessageResult) -> None:
        if result.status not in STORED:
            log.warning("an event of a moved offset is lost: %s %s", result.status, result.why)
