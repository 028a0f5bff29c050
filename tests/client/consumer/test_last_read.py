"""Readers with positions of their own, at a log that became shorter: nothing new is skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skylarkmq.client import Consumer, MessageQueue, PeekReader, StartFrom, Tag
from skylarkmq.client.consumer.local_offsets import offsets_path
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.client.consumer.support import GROUP, Group
from tests.client.consumer.test_assigned import alone
from tests.client.consumer.test_broadcasting import Broadcast
from tests.support.fake_queues import STORE_MS, Stored
from tests.support.manual_clock import settle

QUEUE = MessageQueue("orders", "broker-a", 0)
LATER_MS = STORE_MS + 1_000_000


def shorter(it: Group, kept: int, count: int, stored_ms: int = LATER_MS) -> list[bytes]:
    """The broker comes back with a shorter log, and takes messages; returns their bodies."""
    queue = it.broker.topics["orders"].queues[0]
    del queue[kept:]
    bodies = [b"new-%d" % number for number in range(count)]
    for number, body in enumerate(bodies):
        unique = {"UNIQ_KEY": f"N{number}"}
        queue.append(Stored(body, unique, store_timestamp=stored_ms + number))
    for stream in list(it.broker.streams):
        stream.lose(ConnectionResetError("the power is gone"))
    return bodies


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def taken(it: Group, consumer: Consumer, count: int) -> list[bytes]:
    return [(await it.wait(consumer.getone())).body for _ in range(count)]


# Queues by hand


@pytest.mark.parametrize("count", [3, 10, 30])
async def test_an_assigned_queue_goes_on_with_the_new_messages(count: int) -> None:
    """The log ends before its position, just there, and behind it."""
    it = Group({"orders": 1})
    it.broker.add("orders", 0, *numbered(20))
    consumer = await alone(it)
    await it.wait(consumer.assign([QUEUE]))
    assert await taken(it, consumer, 20) == numbered(20)
    bodies = shorter(it, 10, count)
    assert await taken(it, consumer, count) == bodies
    await it.wait(consumer.commit())
    assert it.offset(0) == 10 + count
    await it.stop(consumer)


async def test_before_its_first_message_it_knows_the_one_before() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, *numbered(20))
    it.broker.offsets[GROUP, "orders", 0] = 20
    consumer = await alone(it)
    await it.wait(consumer.assign([QUEUE]))
    await settle()
    bodies = shorter(it, 15, 10)
    assert await taken(it, consumer, 10) == bodies
    await it.stop(consumer)


async def test_a_reconnect_to_the_same_log_repeats_nothing() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, *numbered(20))
    consumer = await alone(it)
    await it.wait(consumer.assign([QUEUE]))
    assert await taken(it, consumer, 20) == numbered(20)
    for _ in range(2):
        bodies = shorter(it, len(it.broker.bodies("orders")), 5, LATER_MS)
        assert await taken(it, consumer, 5) == bodies
    pulls = it.broker.of_code(RequestCode.PULL_MESSAGE)
    looks = [each for each in pulls if each.ext_fields["maxMsgNums"] == "1"]
    assert len(looks) == 2, "one on each new connection"
    await it.stop(consumer)


async def test_what_was_passed_over_for_a_selector_is_looked_through_again() -> None:
    """The last wanted message is still there, and those behind it are not."""
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"mine", TAGS="mine")
    it.broker.add("orders", 0, *numbered(10), TAGS="other")
    consumer = await alone(it)
    await it.wait(consumer.assign([QUEUE], Tag("mine")))
    assert await taken(it, consumer, 1) == [b"mine"]
    await settle()
    shorter(it, 5, 0)
    queue = it.broker.topics["orders"].queues[0]
    for number in range(20):
        stored_ms = LATER_MS + number
        queue.append(Stored(b"wanted", {"TAGS": "mine"}, store_timestamp=stored_ms))
    assert await taken(it, consumer, 20) == [b"wanted"] * 20
    await it.stop(consumer)


@pytest.mark.parametrize("tells", [True, False])
async def test_nobody_can_tell(tells: bool) -> None:
    """The message has expired, or the broker refuses."""
    it = Group({"orders": 1})
    it.broker.add("orders", 0, *numbered(20))
    consumer = await alone(it)
    await it.wait(consumer.assign([QUEUE]))
    assert await taken(it, consumer, 20) == numbered(20)
    if tells:
        it.broker.topics["orders"].min_offset[0] = 20
    else:
        it.broker.refuse(RequestCode.PULL_MESSAGE, ResponseCode.NO_PERMISSION)
    bodies = shorter(it, 20, 5)
    assert await taken(it, consumer, 5) == bodies
    await it.stop(consumer)


async def test_a_seek_forward_is_not_taken_back() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, *numbered(60))
    consumer = await alone(it, prefetch=4)
    await it.wait(consumer.assign([QUEUE]))
    assert await taken(it, consumer, 1) == [b"0"]
    consumer.seek(QUEUE, 50)
    assert await taken(it, consumer, 1) == [b"50"]
    shorter(it, 60, 0)
    assert await taken(it, consumer, 9) == numbered(60)[51:]
    await it.stop(consumer)


# PeekReader


@pytest.mark.parametrize("stored_ms", [LATER_MS, STORE_MS - 1_000_000])
async def test_a_peek_reader_goes_on_with_the_new_messages(stored_ms: int) -> None:
    """Without times that tell, of a clock that was set back, it begins again."""
    it = Group({"orders": 1})
    it.broker.add("orders", 0, *numbered(20))
    reader = PeekReader("orders")
    reader._client = it.client()
    await it.wait(reader.start())
    assert [(await it.wait(anext(reader))).body for _ in range(20)] == numbered(20)
    bodies = shorter(it, 10, 30, stored_ms)
    wanted = bodies if stored_ms == LATER_MS else [*numbered(10), *bodies]
    assert [(await it.wait(anext(reader))).body for _ in wanted] == wanted
    await it.wait(reader.stop())


async def test_a_peek_reader_that_ends_gives_nothing_newer_than_its_end() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, *numbered(200))
    reader = PeekReader("orders", stop="now")
    reader._client = it.client()
    await it.wait(reader.start())
    first = [(await it.wait(anext(reader))).body for _ in range(5)]
    shorter(it, 10, 300)

    async def rest() -> list[bytes]:
        return [message.body async for message in reader]

    found = first + await it.wait(rest())
    assert found == numbered(len(found))
    await it.wait(reader.stop())


# Broadcasting


async def once(it: Broadcast, count: int, **settings: Any) -> list[bytes]:
    """One life of the program: take some messages, and stop."""
    it._seed = 0  # the same instance name
    consumer = await it.consumer(**settings)
    found: list[bytes] = []
    for _ in range(count):
        message = await it.wait(consumer.getone())
        found.append(message.body)
        await message.ack()
    await it.stop(consumer)
    return found


@pytest.mark.parametrize("start", [StartFrom.LAST, StartFrom.FIRST])
@pytest.mark.parametrize("count", [5, 20, 50])
async def test_the_file_is_of_an_emptied_cluster(
    tmp_path: Path, start: StartFrom, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    it = Broadcast(tmp_path, {"orders": 1})
    it.broker.add("orders", 0, *numbered(20))
    assert await once(it, 20) == numbered(20)
    bodies = shorter(it, 0, count)
    assert await once(it, count, start_from=start) == bodies
    assert "is of another cluster" in caplog.text
    caplog.clear()
    bodies = shorter(it, count, 3, LATER_MS + 1000)
    assert await once(it, 3, start_from=start) == bodies
    assert "another cluster" not in caplog.text


async def test_the_file_is_of_another_cluster(tmp_path: Path) -> None:
    """What lies there is older than what was read: times tell nothing, it begins at the first."""
    it = Broadcast(tmp_path, {"orders": 1})
    it.broker.add("orders", 0, *numbered(20))
    await once(it, 20)
    other = Broadcast(tmp_path, {"orders": 1})
    for number in range(50):
        stored = Stored(b"b%d" % number, {}, store_timestamp=STORE_MS - 30 + number)
        other.broker.topics["orders"].queues[0].append(stored)
    bodies = other.broker.bodies("orders")
    assert await once(other, 50, start_from=StartFrom.LAST) == bodies


async def test_files_without_messages_count_as_before(tmp_path: Path) -> None:
    """Java's, and those of earlier releases."""
    it = Broadcast(tmp_path, {"orders": 1})
    it.broker.add("orders", 0, *numbered(20))
    path = offsets_path(GROUP, "member-1", tmp_path)
    path.parent.mkdir(parents=True)
    queue = '{"brokerName":"broker-a","queueId":0,"topic":"orders"}'
    path.write_text(f'{{"offsetTable":{{{queue}:17}}}}')
    assert await once(it, 3) == numbered(20)[17:]
    written = path.read_text()
    assert written.startswith(f'{{"offsetTable":{{{queue}:20}},"lastMessages":')
    assert '[["orders","broker-a",0,19,' in written


async def test_a_commit_while_the_broker_is_away_is_kept_and_goes_on_where_it_is_sure(
    tmp_path: Path,
) -> None:
    it = Broadcast(tmp_path, {"orders": 1})
    it.broker.add("orders", 0, *numbered(10))
    await once(it, 10)
    it.broker.add("orders", 0, *numbered(15)[10:])
    it._seed = 0
    consumer = await it.consumer()
    for _ in range(5):
        await (await it.wait(consumer.getone())).ack()
    it.broker.refuse(RequestCode.PULL_MESSAGE, *[ResponseCode.SYSTEM_BUSY] * 3)
    await it.wait(consumer.commit())
    file = offsets_path(GROUP, "member-1", tmp_path)
    left = file.read_bytes()
    assert b":15}" in left and b'"broker-a",0,9,' in left
    await it.stop(consumer)
    file.write_bytes(left)  # as a kill leaves it
    assert await once(it, 5) == numbered(15)[10:]
