"""The pulling face of a consumer: messages on request, positions, commits, pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from skylarkmq.client.config import AckMode
from skylarkmq.client.consumer.message_buffer import MessageBuffer
from skylarkmq.client.consumer.offsets.offset_store import OffsetStore
from skylarkmq.client.consumer.process_queue import ProcessQueue
from skylarkmq.client.consumer.pull_service import PullService
from skylarkmq.client.consumer.queues.assigned import Standing
from skylarkmq.client.consumer.queues.rebalance import Rebalance
from skylarkmq.client.consumer.received_message import ReceivedMessage
from skylarkmq.client.consumer.subscription import Selector
from skylarkmq.client.errors import NOT_STARTED, ConsumerClosed, IllegalState, RequestTimeout
from skylarkmq.client.instants import ceil_ms
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
    standing: Standing


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
        With `offsets`: these, for assigned queues; what was given below them is acknowledged by it.
        One beyond what was given, or below what is acknowledged, lasts until the next interval.

        Raises:
            RocketMQError: a broker did not take it; tried again at the next interval.
            RebalanceInProgress: a queue is not assigned, or its lock not held at the moment.
        """
        inside = self._running
        if offsets is None:
            self._ack_given()
            await self._commit_assigned()
            return
        known = {self._wrapped(queue): offset for queue, offset in offsets.items()}
        held = {queue: inside.rebalance.held(queue) for queue in known}
        for queue, process_queue in held.items():
            for message in process_queue.given():
                if message.queue_offset < known[queue]:
                    message.finish()
        errors = await inside.offsets.commit(known)
        if errors:
            raise errors[0]

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue as it is kept; None without one.

        Raises:
            RocketMQError: the broker cannot be asked.
        """
        return await self._running.offsets.committed(self._wrapped(queue))

    def position(self, queue: MessageQueue) -> int:
        """Return the queue offset of the next message to be given.

        Raises:
            RebalanceInProgress: the queue is not assigned.
        """
        return self._running.rebalance.held(self._wrapped(queue)).position

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at `offset`; what was prefetched or given of the queue before counts no more.

        Raises:
            RebalanceInProgress: the queue is not assigned.
        """
        if offset < 0:
            raise ValueError("a queue offset is 0 or more")
        self._running.rebalance.reposition(self._wrapped(queue), offset)

    async def seek_to_beginning(self, *queues: MessageQueue) -> None:
        """Go on at the first message that can still be read; without queues, of all assigned.

        Raises:
            RebalanceInProgress: a queue that was named is not assigned.
            RocketMQError: a broker cannot be asked; nothing has moved.
        """
        await self._seek_each(queues, self._running.offsets.begin)

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Go on with the next message to be stored; without queues, of all assigned.

        Raises:
            RebalanceInProgress: a queue that was named is not assigned.
            RocketMQError: a broker cannot be asked; nothing has moved.
        """
        await self._seek_each(queues, self._running.offsets.end)

    async def seek_to_time(self, where: MessageQueue | str, when: datetime) -> None:
        """Go on with the first message that was stored at `when` or later.

        No such message is passed over, and none of before comes, unless very many were stored in
        the millisecond before, or the broker's clock was set back meanwhile.

        Args:
            where: a queue, or a topic: all its queues that are assigned.
            when: by the broker's clock, to the millisecond.

        Raises:
            RebalanceInProgress: the queue is not assigned.
            RocketMQError: a broker cannot be asked; nothing has moved.
        """
        offsets, when_ms = self._running.offsets, ceil_ms(when)
        if isinstance(where, str):
            queues = [queue for queue in self.assignment() if queue.topic == where]
            if not queues:
                return
        else:
            queues = [where]
        await self._seek_each(queues, lambda queue: offsets.at_time(queue, when_ms))

    async def begin_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the first readable offset of each queue, assigned or not."""
        return await self._each_of(queues, self._running.offsets.begin)

    async def end_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the offset that the next message of each queue will get."""
        return await self._each_of(queues, self._running.offsets.end)

    async def offsets_for_time(
        self, queues: Iterable[MessageQueue], when: datetime
    ) -> dict[MessageQueue, int]:
        """Return for each queue the offset of the first message stored at `when` or later.

        Without such a message it is the offset that the next one will get. See `seek_to_time`.
        """
        offsets, when_ms = self._running.offsets, ceil_ms(when)
        return await self._each_of(queues, lambda queue: offsets.at_time(queue, when_ms))

    async def lag(self) -> dict[MessageQueue, int]:
        """Return for each assigned queue how many messages are not acknowledged yet."""
        held = self._running.rebalance.assigned
        ends = await self.end_offsets(self.assignment())
        return {
            queue: max(0, end - held[self._wrapped(queue)].commit_offset)
            for queue, end in ends.items()
            if self._wrapped(queue) in held
        }

    # Queues

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that this member owns now, its group's retry topic apart."""
        inside = self._running
        unwrap = inside.services.namespace.unwrap_queue
        assigned = inside.rebalance.assigned
        return sorted(unwrap(queue) for queue in assigned if not is_retry_topic(queue.topic))

    async def assign(
        self, queues: Iterable[MessageQueue], selector: Selector | None = None
    ) -> None:
        """Take these queues, in place of all others, without a division among members.

        For a started consumer that was given no topics and has not subscribed to any. It is no
        member of its group then: it takes no share from those that are, and what their handlers
        failed on does not come here. Its offsets are those of the group; what its own handler
        failed on is tried again here. A queue without a committed offset starts by `start_from`.

        Args:
            queues: none gives all up.
            selector: which messages of them; default all.

        Raises:
            IllegalState: not started, or the consumer has subscribed to topics.
            FilterRefused: a broker does not filter so; nothing has changed.
            RocketMQError: no name server knows where the topics are, or a broker cannot be asked
                whether it filters so; nothing has changed.
        """
        inside = self._running
        wanted = {self._wrapped(queue) for queue in queues}
        await inside.standing.assign(wanted, selector, inside.pulls, inside.rebalance)

    def pause(self, *queues: MessageQueue) -> None:
        """Give and pull nothing of these queues until `resume`."""
        self._running.rebalance.pause([self._wrapped(queue) for queue in queues])

    def resume(self, *queues: MessageQueue) -> None:
        """Undo `pause`."""
        inside = self._running
        for process_queue in inside.rebalance.resume([self._wrapped(queue) for queue in queues]):
            inside.buffer.offer(process_queue)

    def paused(self) -> set[MessageQueue]:
        """Return the paused queues."""
        inside = self._running
        return {inside.services.namespace.unwrap_queue(queue) for queue in inside.rebalance.paused}

    def buffered(self) -> dict[str, tuple[int, int]]:
        """Return how many messages are held here of each topic, those at work included, and their
        stored bytes. Any thread.
        """
        held: dict[str, tuple[int, int]] = {}
        if self._inside is not None:
            for queue, process_queue in list(self._inside.rebalance.assigned.items()):
                count, size = held.get(queue.topic, (0, 0))
                count, size = count + process_queue.held_count, size + process_queue.held_bytes
                held[queue.topic] = count, size
        return held

    # Inside

    @property
    def _running(self) -> Inside:
        if self._closed:
            raise ConsumerClosed("the consumer has stopped")
        if self._inside is None:
            raise IllegalState(f"the consumer is {NOT_STARTED}")
        return self._inside

    def _wrapped(self, queue: MessageQueue) -> MessageQueue:
        return self._running.services.namespace.wrap_queue(queue)

    async def _each_of(
        self, queues: Iterable[MessageQueue], find: Callable[[MessageQueue], Awaitable[int]]
    ) -> dict[MessageQueue, int]:
        wanted = list(queues)
        found = await asyncio.gather(*(find(self._wrapped(queue)) for queue in wanted))
        return dict(zip(wanted, found, strict=True))

    async def _seek_each(
        self, queues: Sequence[MessageQueue], find: Callable[[MessageQueue], Awaitable[int]]
    ) -> None:
        """Seek, once all offsets are known; a queue that nobody named may go meanwhile."""
        held = self._running.rebalance.held
        for queue in queues:
            held(self._wrapped(queue))
        found = await self._each_of(queues or self.assignment(), find)
        present = self._running.rebalance.assigned
        for queue, offset in found.items():
            if queues or self._wrapped(queue) in present:
                self.seek(queue, offset)

    def _ack_given(self) -> None:
        given, self._given = self._given, []
        for message in given:
            message.finish()

    def _give(self, messages: list[ReceivedMessage]) -> None:
        # Should several tasks wait at the same time, none's message is forgotten.
        self._given = [*self._given, *messages] if self._ack != "manual" else []
        if self._ack == "none":
            self._ack_given()

    def take_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Give these again: they did not come into the hands of who asked. For the SDK's own use.

        With `ack="none"` they are done all the same.
        """
        back = {id(message) for message in messages}
        self._given = [message for message in self._given if id(message) not in back]
        for message in messages:
            if message.outcome is None and message.process_queue.put_back(message):
                self._running.buffer.offer(message.process_queue)

    async def _commit_assigned(self, anew: bool = False) -> None:
        inside = self._running
        held: dict[MessageQueue, ProcessQueue[ReceivedMessage]] = inside.rebalance.assigned
        offsets = {queue: process_queue.commit_offset for queue, process_queue in held.items()}
        errors = await inside.offsets.commit(offsets, anew=anew)
        if errors:
            raise errors[0]
