"""MessageBuffer: queues in turn, each message to one taker, no wake-up lost by a cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skylarkmq.client import ConsumerClosed
from skylarkmq.client.consumer.message_buffer import MessageBuffer
from skylarkmq.client.received_message import ProcessQueue
from skylarkmq.protocol.message import MessageQueue
from tests.client.consumer.test_process_queue import items
from tests.support.manual_clock import ManualClock, settle


def filled(queue_id: int, *offsets: int) -> Any:
    process_queue = ProcessQueue(MessageQueue("t", "b", queue_id), 0)
    process_queue.add(items(*offsets), 100)
    return process_queue


async def test_queues_take_turns() -> None:
    buffer = MessageBuffer(ManualClock())
    for process_queue in (filled(0, 1, 2, 3), filled(1, 11, 12)):
        buffer.offer(process_queue)
    taken = [[message.queue_offset for message in buffer.take(2)] for _ in range(4)]
    assert taken == [[1, 2], [11, 12], [3], []]


async def test_a_wake_up_passes_on_when_its_taker_is_cancelled() -> None:
    buffer = MessageBuffer(ManualClock())
    first, second = (asyncio.create_task(buffer.get(1)) for _ in range(2))
    await settle()
    buffer.offer(filled(0, 7))
    first.cancel()  # woken, but it will not come
    await settle()
    assert first.cancelled()
    assert [message.queue_offset for message in second.result()] == [7]


async def test_one_message_goes_to_one_taker() -> None:
    buffer = MessageBuffer(ManualClock())
    takers = [asyncio.create_task(buffer.get(5)) for _ in range(3)]
    await settle()
    buffer.offer(filled(0, 1, 2))
    await settle()
    done = [taker for taker in takers if taker.done()]
    assert len(done) == 1
    buffer.close()
    await settle()
    others = [taker for taker in takers if taker not in done]
    assert all(isinstance(taker.exception(), ConsumerClosed) for taker in others)
    with pytest.raises(ConsumerClosed):
        buffer.take(1)


async def test_waiting_within_a_time_takes_what_comes_at_its_end() -> None:
    clock = ManualClock()
    buffer = MessageBuffer(clock)
    assert await buffer.get_within(1, 0) == []
    waiting = asyncio.create_task(buffer.get_within(1, 2.0))
    await settle()
    buffer.offer(filled(0, 7))
    clock.advance(2)  # both in one turn: the message must not get lost between them
    await settle()
    assert [message.queue_offset for message in waiting.result()] == [7]
    waiting = asyncio.create_task(buffer.get_within(1, 2.0))
    await settle()
    clock.advance(2)
    assert await waiting == []
