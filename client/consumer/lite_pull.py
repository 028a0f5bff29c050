"""The pulling face of a consumer: messages on request, positions, commits, pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from skylarkmq.client.config import AckMode
from skylarkmq.client.consumer.message_buffer import MessageBuffer
from skylarkmq.client.consumer.offset_store import OffsetStore
from skylarkmq.client.consumer.process_queue import ProcessQueue
from skylarkmq.client.consumer.pull_service import PullService
from skylarkmq.client.consumer.rebalance import Rebalance
from skylarkmq.client.consumer.received_message import ReceivedMessage
from skylarkmq.client.errors import ConsumerClosed, IllegalState, RequestTimeout
from skylarkmq.client.services import Services
from skylarkmq.protocol.flags import is_retry_topic
from skylarkmq.protocol.message import MessageQueue


@dataclass(frozen=True, slots=True)
class Inside:
    """The parts of a started consumer."""

    services: Services
    buffer: MessageBuffer
    offsets: OffsetStore
    pulls: PullService
    rebalance: Rebalance


class LitePull:
    """Hands messages out on request; base of Consumer, which owns the life of the parts."""

    def __init__(self, ack: AckMode) -> None:
        self._ack = ack
        self._inside: Inside | None = None
        self._closed = False
        self._given: list[ReceivedMessage] = []

    # Messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        try:
            return await self.getone()
        except ConsumerClosed:
            raise StopAsyncIteration from None

    async def getone(self, timeout: float | None = None) -> ReceivedMessage:  # noqa: ASYNC109
        """Return the next message; with `ack="auto"` what was given before is done now.

        Raises:
            RequestTimeout: none came within `timeout` seconds.
            ConsumerClosed: the consumer has stopped.
        """
        buffer = self._running.buffer
        self._ack_given()
        messages = await buffer.get_within(1, timeout)
        if not messages:
            raise RequestTimeout(f"no message within {timeout:g} s")
        self._give(messages)
        return messages[0]

    async def getmany(
        self,
        max_records: int = 500,
        timeout: float | None = 0.0,  # noqa: ASYNC109
    ) -> dict[MessageQueue, list[ReceivedMessage]]:
        """Return the next messages by queue; with `ack="auto"` what was given before is done now.

        Args:
            max_records: how many at most, over all queues.
            timeout: seconds to wait while there are none; None waits for ever.

        Raises:
            ConsumerClosed: the consumer has stopped.
        """
        buffer = self._running.buffer
        self._ack_given()
        taken = await buffer.get_within(max_records, timeout)
        given: list[ReceivedMessage] = []
        by_queue: dict[MessageQueue, list[ReceivedMessage]] = {}
        while taken:
            given += taken
            by_queue.setdefault(taken[0].queue, []).extend(taken)
            taken = buffer.take(max_records - len(given)) if len(given) < max_records else []
        self._give(given)
        return by_queue

    # Offsets

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit now instead of at the next interval.

        Without `offsets`: what is acknowledged; with `ack="auto"` that is everything given so far.
        With `offsets`: these, for assigned queues, whatever is acknowledged here.

        Raises:
            RocketMQError: a broker did not take it; tried again at the next interval.
            RebalanceInProgress: a queue is not assigned.
        """
        inside = self._running
        if offsets is None:
            self._ack_given()
            await self._commit_assigned()
            return
        for queue in offsets:
            inside.rebalance.held(queue)
        errors = await inside.offsets.commit(offsets)
        if errors:
            raise errors[0]

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue as the broker has it; None without one."""
        return await self._running.offsets.committed(queue)

    def position(self, queue: MessageQueue) -> int:
        """Return the queue offset of the next message to be given.

        Raises:
            RebalanceInProgress: the queue is not assigned.
        """
        return self._running.rebalance.held(queue).position

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at `offset`; what was prefetched or given of the queue before counts no more.

        Raises:
            RebalanceInProgress: the queue is not assigned.
        """
        if offset < 0:
            raise ValueError("a queue offset is 0 or more")
        self._running.rebalance.reposition(queue, offset)

    async def seek_to_beginning(self, *queues: MessageQueue) -> None:
        """Go on at the first message that can still be read; without queues, of all assigned."""
        inside = self._running
        for queue in queues or self.assignment():
            self.seek(queue, await inside.offsets.begin(queue))

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Go on with the next message to be stored; without queues, of all assigned."""
        inside = self._running
        for queue in queues or self.assignment():
            self.seek(queue, await inside.offsets.end(queue))

    async def seek_to_time(self, when: datetime, *queues: MessageQueue) -> None:
        """Go on with the message stored nearest to `when` (UTC without zone)."""
        inside = self._running
        aware = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
        when_ms = int(aware.timestamp() * 1000)
        for queue in queues or self.assignment():
            self.seek(queue, await inside.offsets.at_time(queue, when_ms))

    async def begin_offsets(self, *queues: MessageQueue) -> dict[MessageQueue, int]:
        """Return the first readable offset of each queue."""
        offsets = self._running.offsets
        found = await asyncio.gather(*(offsets.begin(queue) for queue in queues))
        return dict(zip(queues, found, strict=True))

    async def end_offsets(self, *queues: MessageQueue) -> dict[MessageQueue, int]:
        """Return the offset that the next message of each queue will get."""
        offsets = self._running.offsets
        found = await asyncio.gather(*(offsets.end(queue) for queue in queues))
        return dict(zip(queues, found, strict=True))

    async def lag(self) -> dict[MessageQueue, int]:
        """Return for each assigned queue how many messages are not acknowledged yet."""
        held = self._running.rebalance.assigned
        ends = await self.end_offsets(*self.assignment())
        return {
            queue: max(0, end - held[queue].commit_offset)
            for queue, end in ends.items()
            if queue in held
        }

    # Queues

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that this member owns now, its group's retry topic apart."""
        assigned = self._running.rebalance.assigned
        return sorted(queue for queue in assigned if not is_retry_topic(queue.topic))

    def pause(self, *queues: MessageQueue) -> None:
        """Give and pull nothing of these queues until `resume`."""
        self._running.rebalance.pause(queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Undo `pause`."""
        inside = self._running
        for process_queue in inside.rebalance.resume(queues):
            inside.buffer.offer(process_queue)

    def paused(self) -> set[MessageQueue]:
        """Return the paused queues."""
        return self._running.rebalance.paused

    # Inside

    @property
    def _running(self) -> Inside:
        if self._closed:
            raise ConsumerClosed("the consumer has stopped")
        if self._inside is None:
            raise IllegalState("the consumer is not started")
        return self._inside

    def _ack_given(self) -> None:
        given, self._given = self._given, []
        for message in given:
            message.finish()

    def _give(self, messages: list[ReceivedMessage]) -> None:
        self._given = messages if self._ack != "manual" else []
        if self._ack == "none":
            self._ack_given()

    async def _commit_assigned(self) -> None:
        inside = self._running
        held: dict[MessageQueue, ProcessQueue[ReceivedMessage]] = inside.rebalance.assigned
        offsets = {queue: process_queue.commit_offset for queue, process_queue in held.items()}
        errors = await inside.offsets.commit(offsets)
        if errors:
            raise errors[0]
