"""Queries by time over several queues, and scans that go on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from skylarkmq.client import Admin, Message, MessageQueue, NotFound, Producer
from skylarkmq.client.admin.base import from_ms
from skylarkmq.client.clock import ceil_ms, floor_ms
from skylarkmq.testing import run_broker
from tests.client.admin.support import site


@pytest.mark.timing
@pytest.mark.parametrize("address", ["localhost", "127.0.0.1"])
async def test_an_offset_id_finds_its_message_where_the_broker_has_a_name(
    tmp_path: Path, address: str
) -> None:
    async with site(tmp_path, broker_ip1=address) as it:
        await it.send("orders", 2)
        sent = (await it.producer.send(Message("orders", b"it"))).offset_msg_id
        found = await it.admin.message(sent.lower())
        assert found is not None and (found.body, found.queue.broker_name) == (b"it", "broker-a")
        elsewhere = "C0000201" + sent[8:]
        assert await it.admin.message(elsewhere) is None, "another broker's message"
        assert await it.admin.message(f"{sent[:16]}{10**9:016X}") is None
        with pytest.raises(ValueError, match="msg_id="):
            await it.admin.message("nonsense")


async def test_by_time_the_oldest_of_all_queues_come() -> None:
    async with (
        run_broker() as broker,
        broker.client() as client,
        Admin(client=client) as admin,
        Producer(client=client) as producer,
    ):
        await admin.create_topic("orders", queues=3)
        start = broker.now()
        queues = await producer.queues("orders")
        for number in range(40):
            queue = queues[0] if number < 35 else queues[1 + number % 2]
            await producer.send(Message("orders", b"%d" % number), queue=queue)
            await broker.advance(1)
        stop = broker.now()
        for limit in (1, 4, 36, 39, 64):
            found = await admin.query("orders", start=start, stop=stop, limit=limit)
            assert [int(one.body) for one in found] == list(range(min(limit, 40)))
        late = found[36].stored_at
        found = await admin.query("orders", start=late, limit=2)
        assert [int(one.body) for one in found] == [36, 37]
        found = await admin.query("orders", start=start, stop=late + timedelta(microseconds=1))
        assert [int(one.body) for one in found] == list(range(37))
        assert len(await admin.query("orders", start=start, stop=late)) == 36
        found = [await admin.ranges("orders", start=start, stop=late), await admin.ranges("orders")]
        sizes = [[end - begin for begin, end in ranges.values()] for ranges in found]
        assert [sorted(each) for each in sizes] == [[0, 1, 35], [2, 3, 35]]


async def test_by_key_times_count_to_the_millisecond() -> None:
    async with (
        run_broker() as broker,
        broker.client() as client,
        Admin(client=client) as admin,
        Producer(client=client) as producer,
    ):
        times = []
        for number in range(3):
            await producer.send(Message("orders", b"%d" % number, keys="k"))
            times.append((await broker.messages("orders"))[-1].store_timestamp)
            await broker.advance(0.3)
        middle = from_ms(times[1])
        assert middle is not None

        async def found(**limits: datetime) -> list[bytes]:
            return [one.body for one in await admin.query("orders", key="k", **limits)]

        assert await found(start=middle) == [b"1", b"2"]
        assert await found(stop=middle) == [b"0"]
        assert await found(start=middle, stop=middle + timedelta(milliseconds=1)) == [b"1"]


async def test_how_a_group_stands_to_a_message(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        await it.admin.create_topic("orders", queues=1)
        await it.send("orders", 3)
        await it.consume("orders", "billing", 2)
        messages = [message async for message in it.admin.scan("orders")]
        tracks = [await it.admin.track(message, "billing") for message in messages]
        assert [each.is_passed for each in tracks] == [True, True, False]
        with pytest.raises(NotFound, match="no group absent"):
            await it.admin.track(messages[0], "absent")


def test_instants_between_two_ms() -> None:
    exact = datetime(2026, 5, 4, 3, 2, 1, 123000, tzinfo=UTC)
    later = exact + timedelta(microseconds=1)
    assert floor_ms(exact) == ceil_ms(exact) == floor_ms(later) == ceil_ms(later) - 1
    assert from_ms(floor_ms(exact)) == exact


async def test_a_scan_does_not_go_on_without_a_queue(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        await it.admin.create_topic("orders", queues=1)
        await it.send("orders", 2)
        here = MessageQueue("orders", "broker-a", 0)
        away = MessageQueue("orders", "broker-b", 0)
        with pytest.raises(NotFound, match="broker-b"):
            await anext(it.admin.scan("orders", after={here: 1, away: 0}))
        assert len([one async for one in it.admin.scan("orders", after={here: 1})]) == 1
        letters = it.admin.dead_letters("billing", after={away: 7})
        with pytest.raises(NotFound, match="leave it out"):
            await anext(letters)
        assert letters.progress.positions == {away: 7}
