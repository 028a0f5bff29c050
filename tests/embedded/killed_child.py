"""An application with a broker inside it, which its test kills.

    python -m tests.embedded.killed_child FOLDER FLUSH FIRST

It sends the numbers from FIRST on and prints each one that was acknowledged, while a group takes
them.
"""

from __future__ import annotations

import asyncio
import sys

from skylarkmq.client import Client, Consumer, Message, Producer, ReceivedMessage, StartFrom
from skylarkmq.embedded import Broker

TOPIC, GROUP = "numbers", "takers"


async def send(producer: Producer, first: int) -> None:
    number = first
    while True:
        numbers = range(number, number + 20)
        await asyncio.gather(*(producer.send(Message(TOPIC, str(each))) for each in numbers))
        sys.stdout.write("".join(f"{each}\n" for each in numbers))
        sys.stdout.flush()
        number += 20


async def take(message: ReceivedMessage) -> None:
    assert message.body.isdigit()


async def main(folder: str, flush: str, first: int) -> None:
    settings = {"flushDiskType": flush}
    async with (
        Broker(folder, settings=settings) as broker,
        Client(broker.namesrv_addr) as client,
        Producer(client=client) as producer,
        Consumer(TOPIC, client=client, group=GROUP, start_from=StartFrom.FIRST) as consumer,
    ):
        taking = asyncio.create_task(consumer.run(take))
        await send(producer, first)
        await taking


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
