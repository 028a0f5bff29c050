"""Where a time begins in a queue: the first message that was stored then or later.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../ConsumeQueue.java (getOffsetInQueueByTime)
"""

from __future__ import annotations

import logging
from typing import Final

from skylarkmq.client.config import OFFSET_TIMEOUT_S
from skylarkmq.client.consumer.subscription import Subscription
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.services import Services
from skylarkmq.client.wire.api_pull import PullRequest, PullStatus, pull
from skylarkmq.protocol.message import MessageQueue

log = logging.getLogger(__name__)

NEAR_COUNT: Final = 2
"""Mostly the found message or the next one is the wanted one."""
FAR_COUNT: Final = 32
PULLS_MAX: Final = 32
"""After as many pulls of messages from one millisecond the search ends, early and never late."""


async def first_since(
    services: Services,
    address: str,
    group: str,
    queue: MessageQueue,
    when_ms: int,
    timeout_s: float = OFFSET_TIMEOUT_S,
) -> int:
    """Return the queue offset of the first message stored at `when_ms` or later.

    Without such a message it is the offset that the next one will get.

    A broker's own search (29) gives the nearest message, which may come before or after the wanted
    one, and any of several that were stored in the same millisecond. So this searches for the
    millisecond before, which finds no message after the wanted one, and reads the messages' times
    from there on. A broker stamps messages in the order of its log, so times ascend within a queue
    unless its clock was set back: then a message of that time may be missed.

    Args:
        address: the broker's master.
        group: in whose name the messages are read; nothing is committed.

    Raises:
        RocketMQError: the broker cannot be asked.
    """
    api = services.consumer_api
    if when_ms <= 0:
        return await api.min_offset(address, queue, timeout_s)
    offset = await api.search_offset(address, queue, when_ms - 1, timeout_s)
    everything = Subscription(queue.topic, None, 0).data
    count = NEAR_COUNT
    for _ in range(PULLS_MAX):
        wish = PullRequest(group, queue, offset, count, subscription=everything)
        try:
            result = await pull(services.remoting, address, wish, timeout_s)
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
