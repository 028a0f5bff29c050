"""What a topic's window knows after a stop and a kill; of a new master: test_replica_broker.py."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

import pytest

from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.record import decode_messages
from tests.broker.deduplication.rig import (
    KEYS,
    SECONDS,
    SEND,
    TOPIC,
    count,
    fields_of,
    make_topic,
    open_client,
    place,
    send,
)
from tests.support.amounts import slow
from tests.support.broker_process import BrokerProcess
from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient, pull_fields


async def test_a_restart_knows_the_keys(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        client = await open_client(broker)
        places = [place(await send(client, f"k{n}", queue_id=n % 4)) for n in range(300)]
        await make_topic(client, "plain", attributes="")
        await client.close()
    table = json.loads((tmp_path / "config" / "topics.json").read_bytes())["topicConfigTable"]
    assert table[TOPIC]["attributes"] == {SECONDS: "60", KEYS: "1000"}
    assert "attributes" not in table["plain"], "as RocketMQ 4.9 writes it"
    async with live_broker(tmp_path) as broker:
        client = await open_client(broker, None)
        for number, before in enumerate(places):
            answer = await send(client, f"k{number}", queue_id=(number + 1) % 4)
            # The port is another one, and part of the id.
            assert place(answer)[:2] == before[:2]
            assert place(answer)[2][16:] == before[2][16:]
        assert [count(broker, queue_id) for queue_id in range(4)] == [75] * 4
        await client.close()


async def test_a_topic_without_a_window_has_none_after_a_restart(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        client = await open_client(broker)
        await make_topic(client, attributes=f"-{SECONDS},-{KEYS}")
        first = place(await send(client, "K"))
        await client.close()
    async with live_broker(tmp_path) as broker:
        client = await open_client(broker, None)
        assert place(await send(client, "K"))[1] != first[1]
        await client.close()


class _Producer:
    """Sends keys of its own one after the other, some twice; what has no answer comes again."""

    def __init__(self, name: str, rng: Random) -> None:
        self.name = name
        self.rng = rng
        self.next = 0
        self.places: dict[str, str] = {}  # physical offset by key, of what was acknowledged

    async def live(self, address: tuple[str, int]) -> None:
        """Send until the connection ends."""
        try:
            client = await RawClient.open(address)
        except ConnectionError:
            return
        try:
            while True:
                key = f"{self.name}-{self.next}"
                await self.send(client, key)
                self.next += 1
                if self.rng.random() < 0.3:
                    await self.send(client, f"{self.name}-{self.rng.randrange(self.next)}")
        except (ConnectionError, TimeoutError):
            return
        finally:
            await client.close()

    async def send(self, client: RawClient, key: str) -> None:
        """Send a key; its place is that of every earlier answer."""
        queue_id = self.rng.randrange(4)
        answer = await client.call(SEND, fields_of(key, queue_id), key.encode())
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        physical_offset = answer.ext_fields["msgId"][16:]
        assert self.places.setdefault(key, physical_offset) == physical_offset


async def _stored(client: RawClient) -> list[bytes]:
    found: list[bytes] = []
    for queue_id in range(4):
        offset = 0
        while True:
            fields = pull_fields(TOPIC, queue_id, offset, sysFlag="4")
            answer = await client.call(RequestCode.PULL_MESSAGE, fields)
            if answer.code != ResponseCode.SUCCESS:
                break
            messages = decode_messages(answer.body)
            found += [message.body for message in messages]
            offset += len(messages)
    return found


@pytest.mark.timing
@pytest.mark.parametrize(
    ("flush", "kills"),
    [
        slow("SYNC_FLUSH", 1),
        pytest.param("SYNC_FLUSH", 10, marks=pytest.mark.fault),
        pytest.param("ASYNC_FLUSH", 10, marks=pytest.mark.fault),
    ],
)
async def test_whatever_is_killed_and_sent_again_is_stored_once(
    tmp_path: Path, flush: str, kills: int
) -> None:
    rng = Random(1)
    producers = [_Producer(f"p{number}", rng) for number in range(4)]
    for life in range(kills):
        process = await (await BrokerProcess.spawn(tmp_path, {"flushDiskType": flush})).ready()
        client = await RawClient.open(process.address)
        if not life:
            await make_topic(client, attributes=f"+{SECONDS}=86400,+{KEYS}=100000")
        await client.close()
        working = [asyncio.ensure_future(each.live(process.address)) for each in producers]
        wanted = sum(each.next for each in producers) + rng.randrange(50, 200)
        while sum(each.next for each in producers) < wanted:
            await asyncio.wait(working, timeout=0.01)
            assert not any(each.done() for each in working)
        await process.kill()
        await asyncio.gather(*working)
    process = await (await BrokerProcess.spawn(tmp_path, {"flushDiskType": flush})).ready()
    client = await RawClient.open(process.address)
    for producer in producers:
        for number in range(producer.next + 1):  # the last one may have had no answer
            await producer.send(client, f"{producer.name}-{number}")
    expected = [f"{each.name}-{n}".encode() for each in producers for n in range(each.next + 1)]
    assert sorted(await _stored(client)) == sorted(expected)
    await client.close()
    await process.kill()
