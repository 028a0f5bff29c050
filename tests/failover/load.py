"""Clients of the cluster: senders and readers through the SDK, and whoever asks a replica directly.

What they do is written to the history. A message carries nothing but its body, which no other send
has; where it is, its reader says.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from random import Random
from typing import Final

from skylarkmq.client import Client, Message, Producer
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.send_result import SendStatus
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.record import decode_messages
from tests.failover.consumers import LivingConsumers
from tests.failover.history import History, Operation, digest
from tests.support.raw_client import RawClient, pull_fields

Address = tuple[str, int]

TOPIC: Final = "proof"
QUEUES: Final = 4
WINDOW: Final = "+skylarkmq.deduplication.seconds=3600,+skylarkmq.deduplication.keys=100000"
SENDERS: Final = 4
EVERY_S: Final = 0.04
"""Between the sends of one sender."""
SIZES: Final = (10, 100, 400, 1000, 1900)
TRY_LIMIT_S: Final = 1.5
ASK_LIMIT_S: Final = 2.0
ASK_EVERY_S: Final = 0.5
DRAIN_LIMIT_S: Final = 120.0
now = time.monotonic


class NotReadError(AssertionError):
    """A replica that should show everything did not."""


class Load:
    """All clients of one run."""

    def __init__(
        self,
        history: History,
        namesrv: str,
        addresses: dict[str, Address],
        seed: int,
        *,
        has_window: bool = False,
    ):
        """Take where to send and read; nothing runs before `start`.

        Args:
            addresses: of replicas that are asked for what they show, by name.
            has_window: the topic stores a message of a unique key once, see `create_topic`.
        """
        self._has_window = has_window
        self.history = history
        self._addresses = addresses
        self._random = Random(seed)
        self._client = Client(namesrv, request_timeout=ASK_LIMIT_S, route_refresh=1.0)
        self._acked: set[str] = set()
        self.consumers = LivingConsumers(namesrv, TOPIC, history)
        """They live through everything, and each is to see all that is acknowledged."""
        self._offsets = [0] * QUEUES  # the highest acknowledged of each queue
        self._senders: list[asyncio.Task[None]] = []
        self._readers: list[asyncio.Task[None]] = []
        self._answered = asyncio.Event()
        self._is_sending = True
        self._is_reading = True

    async def start(self) -> None:
        """Let all of them begin."""
        await self._client.start()
        await self.consumers.start()
        self._senders = [asyncio.ensure_future(self._send(number)) for number in range(SENDERS)]
        self._readers = [*self.consumers.tasks, asyncio.ensure_future(self._ask_around())]

    async def acks(self, count: int, limit_s: float) -> None:
        """Wait for so many further acknowledgements.

        Raises:
            TimeoutError: they do not come.
        """
        goal = self.history.acked + count
        async with asyncio.timeout(limit_s):
            while self.history.acked < goal:
                self.look()
                self._answered.clear()
                await self._answered.wait()

    def look(self) -> None:
        """Raise what ended one of them."""
        for task in (*self._senders, *self._readers):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def drain(self) -> bool:
        """End the senders, and wait until all consumers have got what was acknowledged."""
        self._is_sending = False
        await asyncio.gather(*self._senders)
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_LIMIT_S):
                while not self.consumers.have(self._acked):
                    self.look()
                    await asyncio.sleep(0.1)
        return self.consumers.have(self._acked)

    async def stop(self) -> None:
        """End all of them."""
        self._is_sending = self._is_reading = False
        tasks = (*self._senders, *self._readers)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.consumers.stop()
        with suppress(RocketMQError, OSError):
            await self._client.stop()

    async def read_all(self, address: Address, who: str, *, final: bool) -> int:
        """Read every queue from its first offset to its last and return how many there were.

        Raises:
            NotReadError: an answer was none of those that say what there is.
        """
        count = 0
        client = await RawClient.open(address)
        try:
            for queue_id in range(QUEUES):
                count += await self._read_queue(client, queue_id, who, final=final)
        finally:
            await client.close()
        return count

    async def _read_queue(self, client: RawClient, queue_id: int, who: str, *, final: bool) -> int:
        queue = {"topic": TOPIC, "queueId": str(queue_id)}
        answer = await client.call(RequestCode.GET_MAX_OFFSET, queue)
        end, offset, count = int(answer.ext_fields["offset"]), 0, 0
        while offset < end:
            found = await self._pull(client, queue_id, offset, who, final=final)
            if not found:
                raise NotReadError(f"{who} shows nothing at {queue_id}:{offset}, its end is {end}")
            count += len(found)
            offset = found[-1] + 1
        return count

    async def _pull(
        self, client: RawClient, queue_id: int, offset: int, who: str, *, final: bool = False
    ) -> list[int]:
        start = now()
        fields = pull_fields(TOPIC, queue_id, offset, group="looking")
        answer = await client.call(RequestCode.PULL_MESSAGE, fields)
        return self._note(answer, start, who, final=final)

    def _note(self, answer: RemotingCommand, start: float, who: str, *, final: bool) -> list[int]:
        if answer.code != ResponseCode.SUCCESS:
            return []
        messages = decode_messages(answer.body)
        for message in messages:
            self._read(who, start, message.queue_id, message.queue_offset, message.body, final)
        return [message.queue_offset for message in messages]

    def _read(
        self, who: str, start: float, queue_id: int, offset: int, body: bytes, final: bool = False
    ) -> str:
        told = digest(body)
        queue = f"{TOPIC}/{queue_id}"
        self.history.add(
            Operation("read", who, start, now(), "read", queue, offset, told, final=final)
        )
        return told

    # The tasks

    async def _send(self, number: int) -> None:
        """Send one message after the other; every second sender tries each again by itself."""
        retries = 2 * (number % 2)
        producer = Producer(
            client=self._client,
            group=f"P_{number}",
            retries=retries,
            try_timeout=TRY_LIMIT_S,
            send_timeout=TRY_LIMIT_S * (retries + 1),
        )
        await producer.start()
        count = 0
        while self._is_sending:
            count += 1
            filler = self._random.randbytes(self._random.choice(SIZES))
            await self._send_one(producer, number, f"{number}-{count} ".encode() + filler, retries)
            await asyncio.sleep(EVERY_S)
        await producer.stop()

    async def _send_one(self, producer: Producer, number: int, body: bytes, retries: int) -> None:
        who, start, told = f"sender {number}", now(), digest(body)
        queue, offset, detail = "", -1, "cancelled"
        is_acked = False
        try:
            result = await producer.send(Message(TOPIC, body))
            queue, offset = f"{TOPIC}/{result.queue.queue_id}", result.queue_offset
            is_acked = result.status is SendStatus.SEND_OK
            detail = "" if is_acked else result.status.value
        except RocketMQError as error:
            detail = f"{type(error).__name__}: {error}"[:200]
        finally:
            self.history.add(
                Operation(
                    *("send", who, start, now(), "acked" if is_acked else "unknown"),
                    *(queue, offset, told, 1 if self._has_window else retries + 1),
                    detail=detail,
                )
            )
        if is_acked:
            self._acked.add(told)
            place = result.queue.queue_id
            self._offsets[place] = max(self._offsets[place], offset)
            self._answered.set()

    async def _ask_around(self) -> None:
        """Ask replicas at random, leading or not, for what they show at a random place."""
        while self._is_reading:
            await asyncio.sleep(ASK_EVERY_S)
            name = self._random.choice(sorted(self._addresses))
            queue_id = self._random.randrange(QUEUES)
            # Often near the end, where an old master and a new one could differ.
            end = self._offsets[queue_id]
            offset = max(0, end - self._random.choice((0, 2, 20, end)))
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(ASK_LIMIT_S):
                    client = await RawClient.open(self._addresses[name])
                    try:
                        await self._pull(client, queue_id, offset, name)
                    finally:
                        client.writer.close()


async def create_topic(address: Address, *, with_window: bool = False) -> None:
    """Create the topic at whoever leads.

    Args:
        with_window: a message that is sent again under its unique key is stored once.

    Raises:
        AssertionError: it was refused.
    """
    fields = {
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "readQueueNums": str(QUEUES),
        "writeQueueNums": str(QUEUES),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": WINDOW if with_window else "",
    }
    client = await RawClient.open(address)
    try:
        answer = await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    finally:
        await client.close()
