"""Starts and closes, cancelled or asked for twice at a time, with all that hangs on them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from skylarkmq.client import Consumer, Producer, StartFrom
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.remoting_command import RemotingCommand
from tests.client.cancel_place import Place
from tests.client.consumer.support import GROUP
from tests.support.cancelling import Cut, cancelled_after, drive
from tests.support.manual_clock import settle


async def test_closing_ends_the_answers_to_pushes_also_when_it_is_cancelled() -> None:
    for way in ("waiting", "woken"):
        for at in range(6):
            place = Place()
            client = place.client
            await client.start()
            await services_of(client).peer(place.broker.address)
            never = asyncio.Event()
            services_of(client).pushes.on(999, lambda _, __, never=never: never.wait())
            (stream,) = place.broker.streams
            stream.say(RemotingCommand.request(999))
            await settle()
            assert "skylarkmq-push-999" in {task.get_name() for task in asyncio.all_tasks()}
            driven = await drive(place.clock, client.stop(), Cut(way, at))
            await place.run(client.stop())
            await settle()
            place.check_nothing_left()
            if not driven.reached:
                break


async def test_a_client_of_its_own_ends_with_a_start_that_is_cancelled(tmp_path: Path) -> None:
    for at in range(40):
        place = Place()
        consumer = Consumer(
            "orders", group=GROUP, model="broadcasting", start_from=StartFrom.FIRST,
            offsets_folder=tmp_path,
        )  # fmt: skip
        consumer._client = place.client
        ended = await cancelled_after(at, consumer.start())
        await place.it.pass_time(10)
        if ended:
            await place.run(consumer.stop())
            return
        place.check_nothing_left()
    raise AssertionError("it never starts")


async def test_two_who_start_at_the_same_time_start_once() -> None:
    place = Place()
    producer = Producer(client=place.client, group="P")
    await place.run(asyncio.wait_for(asyncio.gather(producer.start(), producer.start()), None))
    assert services_of(place.client)._producer_groups["P"] == 1
    consumer = place.new_consumer("orders", start_from=StartFrom.LAST)
    both = asyncio.gather(consumer.start(), consumer.start(), return_exceptions=True)
    assert await place.run(asyncio.wait_for(both, None)) == [None, None]
    await place.run(producer.stop())
    await place.end()


async def test_a_stop_while_it_starts() -> None:
    for turns in range(1, 30):
        place = Place()
        producer = Producer(group="P")
        producer._client = place.client
        starting = asyncio.create_task(producer.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        ended = starting.done()
        await place.run(producer.stop())
        await asyncio.gather(starting, return_exceptions=True)
        await settle()
        place.check_nothing_left()
        if ended:
            return
    raise AssertionError("it never starts")
