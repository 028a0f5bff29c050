"""What a consumer holds is bounded by its prefetch limits, over a real broker with large bodies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from skylarkmq.client import Client, Consumer, Message, Producer, StartFrom
from tests.support.live_broker import live_broker, namesrv_of
from tests.support.patience import LIMIT_S, until

pytestmark = pytest.mark.timing

MIB = 1 << 20
COUNT = 16
QUEUES = 4
BEYOND = MIB
"""An answer goes beyond the room of its queue by one message at most."""


def held_bytes(consumer: Consumer) -> int:
    assigned = consumer._running.rebalance.assigned.values()
    return sum(len(message.stored.body) for queue in assigned for message in queue.held)


@pytest.mark.parametrize("batch_size", [8, 64])
async def test_large_bodies(tmp_path: Path, batch_size: int) -> None:
    limit = 4 * MIB
    async with (
        live_broker(tmp_path, mapped_file_size_commit_log=64 * MIB) as broker,
        Client(namesrv_of(broker), request_timeout=LIMIT_S) as client,
        Producer(client=client, send_timeout=LIMIT_S) as producer,
    ):
        body = Random(1).randbytes(MIB)  # nothing to compress
        await asyncio.gather(*(producer.send(Message("big", body)) for _ in range(COUNT)))
        async with Consumer(
            "big",
            client=client,
            group="g",
            start_from=StartFrom.FIRST,
            prefetch_bytes=limit,
            batch_size=batch_size,
            ack="manual",
        ) as consumer:
            await until(lambda: held_bytes(consumer) >= limit)
            most = 0
            for _ in range(COUNT):
                message = await consumer.getone(LIMIT_S)
                await asyncio.sleep(0.005)  # whatever is to be pulled too much has time to come
                most = max(most, held_bytes(consumer))
                await message.ack()
            assert held_bytes(consumer) == 0
            assert limit <= most <= limit + QUEUES * BEYOND


async def test_what_is_not_acknowledged_counts_until_it_is(tmp_path: Path) -> None:
    async with (
        live_broker(tmp_path) as broker,
        Client(namesrv_of(broker)) as client,
        Producer(client=client, send_timeout=LIMIT_S) as producer,
    ):
        (queue, *_) = await producer.queues("small")
        for number in range(60):
            await producer.send(Message("small", b"%d" % number), queue=queue)
        async with Consumer(
            "small", client=client, group="g", start_from=StartFrom.FIRST, prefetch=40, ack="manual"
        ) as consumer:
            share = 40 // (QUEUES + 1)  # its queues and the retry topic's
            given = [await consumer.getone(LIMIT_S) for _ in range(share)]
            with pytest.raises(TimeoutError):
                await consumer.getone(0.1)
            for message in given:
                await message.ack()
            assert (await consumer.getone(LIMIT_S)).body == b"%d" % share
