"""The first message of a queue that was stored at a time or later.

A broker's own search (29) gives the nearest message, which may lie before or after the one that is
wanted, and any of several that were stored in the same millisecond. So the millisecond before is
searched for: what that finds lies never behind the wanted one, and from there on the messages'
times are read until it is reached.

A broker stamps messages in the order of its log, so times ascend within a queue, unless its clock
was set back: then a message that was stored in between may be passed over.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../ConsumeQueue.java (getOffsetInQueueByTime)
"""

from __future__ import annotations

import logging
from typing import Final

from skylarkmq.client.config import OFFSET_TIMEOUT_S
from skylarkmq.client.consumer.subscription import Subscription
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.wire.api_consumer import ConsumerApi
from skylarkmq.client.wire.api_pull import PullRequest, PullStatus, pull
from skylarkmq.client.wire.remoting import Remoting
from skylarkmq.protocol.message import MessageQueue

log = logging.getLogger(__name__)

NEAR_COUNT: Final = 2
"""Mostly the found message or the one behind it is the wanted one."""
FAR_COUNT: Final = 32
PULLS_MAX: Final = 32
"""Beyond as many pulls of messages from one millisecond the search ends early, never too late."""


async def first_since(
    api: ConsumerApi,
    remoting: Remoting,
    address: str,
    group: str,
    queue: MessageQueue,
    when_ms: int,
) -> int:
    """Return the queue offset of the first message stored at `when_ms` or later.

    Without such a message it is the offset that the next one will get.

    Args:
        address: the broker's master.
        group: in whose name the messages are read; nothing is committed.

    Raises:
        RocketMQError: the broker cannot be asked.
    """
    if when_ms <= 0:
        return await api.min_offset(address, queue, OFFSET_TIMEOUT_S)
    offset = await api.search_offset(address, queue, when_ms - 1, OFFSET_TIMEOUT_S)
    everything = Subscription(queue.topic, None, 0).data
    count = NEAR_COUNT
    for _ in range(PULLS_MAX):
        wish = PullRequest(group, queue, offset, count, 0, 0, 0, 0, everything)
        try:
            result = await pull(remoting, address, wish, OFFSET_TIMEOUT_S)
        except RocketMQError as error:
            log.warning("times in %s not read, started a little early: %s", queue, error)
            return offset
        for message in result.messages:
            if message.store_timestamp >= when_ms:
                return message.queue_offset
        if result.next_offset <= offset and result.status is not PullStatus.OFFSET_MOVED:
            return offset
        offset = result.next_offset
        count = FAR_COUNT
    return offset
