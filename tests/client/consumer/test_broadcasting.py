"""A broadcasting consumer: all messages to each member, offsets of its own, failures tried here."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.client import Consumer, IllegalState, ReceivedMessage
from skylarkmq.protocol.codes import RequestCode
from tests.client.consumer.support import GROUP, Group


class Broadcast(Group):
    """Members whose offsets lie in a folder of the test's."""

    def __init__(self, folder: Path, topics: dict[str, int] | None = None) -> None:
        super().__init__(topics)
        self.folder = folder

    async def consumer(self, *topics: str, **settings: Any) -> Consumer:
        return await super().consumer(
            *topics, model="broadcasting", offsets_folder=self.folder, **settings
        )


async def test_every_member_gets_every_message(tmp_path: Path) -> None:
    it = Broadcast(tmp_path)
    for queue_id in range(4):
        it.broker.add("orders", queue_id, b"%d" % queue_id)
    members = [await it.consumer() for _ in range(2)]
    for member in members:
        assert len(member.assignment()) == 4
        assert {(await it.wait(member.getone())).body for _ in range(4)} == set(
            it.broker.bodies("orders")
        )
    data = it.broker.heartbeats[-1].consumer_data_set[0]
    assert data.message_model == "BROADCASTING"
    assert [each.topic for each in data.subscription_data_set] == ["orders"], "no retry topic"
    pulls = it.broker.of_code(RequestCode.PULL_MESSAGE)
    assert {pull.ext_fields["commitOffset"] for pull in pulls} == {"0"}
    assert not it.broker.of_code(RequestCode.UPDATE_CONSUMER_OFFSET)
    await it.stop(*members)
    assert it.broker.offsets == {}


def kept(folder: Path) -> str:
    """The one file of offsets."""
    (path,) = folder.rglob("*.json")
    return path.read_text()


async def test_offsets_are_kept_over_a_restart(tmp_path: Path) -> None:
    it = Broadcast(tmp_path, {"orders": 1})
    it.broker.add("orders", 0, b"a", b"b")
    first = await it.consumer()
    for _ in range(2):
        await (await it.wait(first.getone())).ack()
    await it.stop(first)
    assert '"queueId":0' in kept(tmp_path)
    it.broker.add("orders", 0, b"c")
    it._seed -= 1  # the same instance name again
    second = await it.consumer()
    assert (await it.wait(second.getone())).body == b"c"
    await it.stop(second)


async def test_a_failed_message_is_tried_again_here_and_dropped_in_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    it = Broadcast(tmp_path, {"orders": 1})
    it.broker.add("orders", 0, b"hard", b"easy")
    consumer = await it.consumer(max_reconsume=2)
    tries: list[tuple[bytes, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        tries.append((message.body, message.reconsume_times))
        if message.body == b"hard":
            raise RuntimeError("on purpose")

    running = asyncio.create_task(consumer.run(handle))
    await it.pass_time(9)
    assert tries == [(b"hard", 0), (b"easy", 0)], "the others go on"
    await it.pass_time(2)
    assert tries[2:] == [(b"hard", 1)]
    await it.pass_time(30)
    assert tries[3:] == [(b"hard", 2)]
    with caplog.at_level(logging.ERROR):
        await it.pass_time(60)
    assert len(tries) == 4
    (queue,) = consumer.assignment()
    assert consumer.position(queue) == 2
    assert "given up" in caplog.text
    assert await consumer.lag() == {queue: 0}
    assert not it.broker.of_code(RequestCode.CONSUMER_SEND_MSG_BACK)
    await it.stop(consumer)
    await running


async def test_a_growing_delay_ends_at_a_minute_and_one_of_its_own_choice_does_not(
    tmp_path: Path,
) -> None:
    """A message that waits holds the offset of its queue; a time that was asked for is kept."""
    it = Broadcast(tmp_path, {"orders": 1})
    it.broker.add("orders", 0, b"it")
    consumer = await it.consumer()
    seen_s: list[float] = []

    async def handle(message: ReceivedMessage) -> None:
        seen_s.append(it.clock.monotonic())
        if len(seen_s) == 5:
            await message.nack(delay=timedelta(minutes=5))
            return
        raise RuntimeError("on purpose")

    running = asyncio.create_task(consumer.run(handle))
    await it.pass_time(550)
    await it.stop(consumer)
    await running
    assert [after - before for before, after in pairwise(seen_s)] == [10, 30, 60, 60, 300, 60]


async def test_one_file_is_one_consumer_s(tmp_path: Path) -> None:
    it = Broadcast(tmp_path, {"orders": 1})
    first = await it.consumer()
    it._seed -= 1
    with pytest.raises(IllegalState, match="instance_name"):
        await it.consumer()
    await it.stop(first)
    again = await it.consumer()
    await it.stop(again)


async def test_ordered_and_broadcasting_needs_no_locks(tmp_path: Path) -> None:
    it = Broadcast(tmp_path, {"orders": 1})
    it.broker.add("orders", 0, b"a", b"b", b"c")
    consumer = await it.consumer(orderly=True)
    bodies: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        bodies.append(message.body)
        if len(bodies) == 2:
            raise RuntimeError("on purpose")

    running = asyncio.create_task(consumer.run(handle))
    await it.pass_time(2)
    assert bodies == [b"a", b"b", b"b", b"c"]
    assert not it.broker.of_code(RequestCode.LOCK_BATCH_MQ)
    await it.stop(consumer)
    await running
    assert '"topic":"orders"' in kept(tmp_path)
    assert it.broker.clients[GROUP] == {}
