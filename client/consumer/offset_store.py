"""A group's offsets on the brokers: where to start, and what was committed.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../consumer/store/RemoteBrokerOffsetStore.java,
client/.../impl/consumer/RebalancePushImpl.java (computePullFromWhereWithException)
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from skylarkmq.client.api_consumer import ConsumerApi
from skylarkmq.client.config import OFFSET_TIMEOUT_S
from skylarkmq.client.consumer.start_from import StartFrom
from skylarkmq.client.errors import RocketMQError, RouteNotFound
from skylarkmq.client.route import RouteTable
from skylarkmq.protocol.flags import is_retry_topic
from skylarkmq.protocol.message import MessageQueue


class OffsetStore:
    """The offsets of one group. Loop thread."""

    def __init__(self, api: ConsumerApi, routes: RouteTable, group: str) -> None:
        self._api = api
        self._routes = routes
        self._group = group
        self._committed: dict[MessageQueue, int] = {}

    async def start_offset(self, queue: MessageQueue, start_from: StartFrom) -> int:
        """Return the queue offset at which the group goes on, or starts.

        Raises:
            RocketMQError: the broker cannot be asked.
        """
        address = self._address(queue)
        committed = await self._api.query_offset(address, self._group, queue, OFFSET_TIMEOUT_S)
        if committed is not None and committed >= 0:
            self._committed[queue] = committed
            return committed
        # Retries are never skipped: what lies in the retry topic was received before.
        if is_retry_topic(queue.topic) or start_from.where == "first":
            return await self._api.min_offset(address, queue, OFFSET_TIMEOUT_S)
        if start_from.where == "last":
            return await self._api.max_offset(address, queue, OFFSET_TIMEOUT_S)
        when_ms = start_from.timestamp_ms
        return await self._api.search_offset(address, queue, when_ms, OFFSET_TIMEOUT_S)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset as the broker has it, None without one."""
        address = self._address(queue)
        return await self._api.query_offset(address, self._group, queue, OFFSET_TIMEOUT_S)

    async def begin(self, queue: MessageQueue) -> int:
        """Return the first queue offset that can still be read."""
        return await self._api.min_offset(self._address(queue), queue, OFFSET_TIMEOUT_S)

    async def end(self, queue: MessageQueue) -> int:
        """Return the queue offset that the next message will get."""
        return await self._api.max_offset(self._address(queue), queue, OFFSET_TIMEOUT_S)

    async def at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the queue offset whose message was stored nearest to that time."""
        address = self._address(queue)
        return await self._api.search_offset(address, queue, timestamp_ms, OFFSET_TIMEOUT_S)

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> list[RocketMQError]:
        """Commit what changed since the last time; return what failed, to be tried again later."""
        changed = [
            (queue, offset)
            for queue, offset in offsets.items()
            if self._committed.get(queue) != offset
        ]
        outcomes = await asyncio.gather(*(self._commit(*item) for item in changed))
        return [error for error in outcomes if error is not None]

    def forget(self, queue: MessageQueue) -> None:
        """Drop what is remembered of a queue that somebody else owns now, or that was moved."""
        self._committed.pop(queue, None)

    async def _commit(self, queue: MessageQueue, offset: int) -> RocketMQError | None:
        try:
            await self._api.update_offset(
                self._address(queue), self._group, queue, offset, OFFSET_TIMEOUT_S
            )
        except RocketMQError as error:
            return error
        self._committed[queue] = offset
        return None

    def _address(self, queue: MessageQueue) -> str:
        address = self._routes.master_address(queue.broker_name)
        if address is None:
            hint = f"Broker {queue.broker_name} has no master at the moment"
            raise RouteNotFound(queue.topic, "no_broker", hint)
        return address
