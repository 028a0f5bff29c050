"""Producers, and consumers by pop, of a broker in another process, until it is gone.

    load = PopLoad(rng)
    living = await load.work(process.address, 100)     # so many answers have come
    await process.kill()
    await living
    load.crashed(killed=True)

Each is on a connection of its own and speaks the codes of 5.x's remoting clients. What they are
told goes into the ledger, and what they are given is held against it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Coroutine
from copy import deepcopy
from random import Random

from skylarkmq.protocol.codes import POLLING_TIMEOUT, RequestCode, ResponseCode
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.pop import Checkpoint, retry_mark, topic_of_delivery
from skylarkmq.protocol.properties import encode_properties
from skylarkmq.protocol.record import decode_messages
from tests.support.patience import LIMIT_S
from tests.support.pop_ledger import Consumed, Owed, Place, PopLedger, Sent
from tests.support.raw_client import RawClient, send_fields

TOPIC, QUEUES = "popped", 2
LOOSE, ORDERED = "loose", "ordered"
GROUPS = LOOSE, ORDERED
INVISIBLE_MS = 800
POLL_MS = 300
RETRIES = 10_000  # nothing becomes a dead letter by itself


class PopLoad:
    """All that talk to one broker, over several lives of it."""

    def __init__(self, rng: Random) -> None:
        self.ledger = PopLedger()
        self.owed: Owed | None = None  # since the last crash
        self.rng = rng
        self.acks = 0
        self._noted = asyncio.Event()
        self._address = ("", 0)
        self._is_sending = True
        self._attempts = itertools.count()

    async def live(self, address: tuple[str, int], *, sending: bool = True) -> None:
        """Work until the connections end.

        Raises:
            AssertionError: a message came that must not, or a request was refused.
        """
        self._address, self._is_sending = address, sending
        await self._until_the_end(self._make_groups)
        jobs: list[Callable[[RawClient], Awaitable[None]]] = [
            *(lambda client, group=group: self._consume(client, group) for group in GROUPS),
            *(lambda client, group=group: self._consume(client, group) for group in GROUPS),
        ]
        if sending:
            jobs += [self._send, self._send]
        await asyncio.gather(*(self._until_the_end(job) for job in jobs))

    async def work(self, address: tuple[str, int], count: int) -> asyncio.Task[None]:
        """Let them live until so many more answers have come; they live on in the task.

        Raises:
            AssertionError: as `live`, or the broker has ended.
        """
        return await self._while_alive(address, self.acked(count), sending=True)

    async def finish(self, address: tuple[str, int]) -> tuple[asyncio.Task[None], int]:
        """Consume until nothing is missing; with how much had to come.

        Raises:
            AssertionError: as `work`, or something is missing after the limit.
        """
        had_to_come: list[int] = []

        async def wait() -> None:
            had_to_come.append(await self.all_came())

        living = await self._while_alive(address, wait(), sending=False)
        return living, had_to_come[0]

    async def _while_alive(
        self, address: tuple[str, int], wait: Coroutine[None, None, None], *, sending: bool
    ) -> asyncio.Task[None]:
        living = asyncio.ensure_future(self.live(address, sending=sending))
        waiting = asyncio.ensure_future(wait)
        await asyncio.wait(
            {living, waiting}, timeout=2 * LIMIT_S, return_when=asyncio.FIRST_COMPLETED
        )
        if not waiting.done():
            waiting.cancel()
            assert living.done(), "nothing is answered any more"
            await living
            raise AssertionError("the broker has ended")
        await waiting
        return living

    async def acked(self, count: int) -> None:
        """Return when so many more sends and acknowledgements were answered."""
        wanted = self.acks + count
        while self.acks < wanted:
            self._noted.clear()
            await self._noted.wait()

    def crashed(self, *, killed: bool) -> None:
        """The broker is gone; what it has answered is owed from now on."""
        self.owed = Owed(deepcopy(self.ledger), killed=killed, keeps_attempts=True)
        self.ledger.begin_life(self.owed)

    async def all_came(self) -> int:
        """Return when nothing is missing any more, with how much had to come.

        Raises:
            AssertionError: something is missing after the limit.
        """
        assert self.owed is not None
        try:
            async with asyncio.timeout(LIMIT_S):
                while True:
                    with contextlib.suppress(AssertionError):
                        return self.owed.check_came(GROUPS, self.ledger.came)
                    await asyncio.sleep(POLL_MS / 1000)  # another process works, and says nothing
        except TimeoutError:
            return self.owed.check_came(GROUPS, self.ledger.came)

    async def _until_the_end(self, job: Callable[[RawClient], Awaitable[None]]) -> None:
        try:
            client = await RawClient.open(self._address)
        except ConnectionError:
            return
        try:
            await job(client)
        except (ConnectionError, TimeoutError):
            return
        finally:
            await client.close()

    async def _make_groups(self, client: RawClient) -> None:
        for group in GROUPS:
            body = {
                "groupName": group,
                "retryMaxTimes": RETRIES,
                "consumeMessageOrderly": group == ORDERED,
            }
            answer = await client.call(
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(body).encode()
            )
            assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def _send(self, client: RawClient) -> None:
        while True:
            number = self.ledger.sent
            self.ledger.sent += 1
            text = encode_properties({"UNIQ_KEY": f"{number:032X}", "N": str(number)})
            fields = send_fields(TOPIC, number % QUEUES, text)
            answer = await client.call(RequestCode.SEND_MESSAGE_V2, fields, b"%d" % number)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            self.ledger.note(Sent(number), durable=True)
            self._count()

    async def _consume(self, client: RawClient, group: str) -> None:
        while True:
            fields = {
                "consumerGroup": group,
                "topic": TOPIC,
                "queueId": "-1",
                "maxMsgNums": str(self.rng.choice((1, 4, 16))),
                "invisibleTime": str(INVISIBLE_MS),
                "pollTime": str(POLL_MS),
                "bornTime": str(int(time.time() * 1000)),
                "initMode": "0",
                "order": str(group == ORDERED).lower(),
                "attemptId": f"attempt-{next(self._attempts)}",
            }
            answer = await client.call(RequestCode.POP_MESSAGE, fields)
            if answer.code in (POLLING_TIMEOUT, ResponseCode.TOPIC_NOT_EXIST):
                continue
            assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
            messages = decode_messages(answer.body)
            for message in messages:
                self._handed(group, message)
            pop_time, revive = int(answer.ext_fields["popTime"]), answer.ext_fields["reviveQid"]
            for message in messages:
                checkpoint = Checkpoint(
                    message.queue_offset,
                    pop_time,
                    INVISIBLE_MS,
                    int(revive),
                    retry_mark(message.topic),
                    "broker-a",
                    message.queue_id,
                    message.queue_offset,
                )
                await self._deal_with(client, group, message, checkpoint)

    def _handed(self, group: str, message: MessageExt) -> None:
        number = int(message.properties["N"])
        assert message.body == b"%d" % number
        attempt = message.reconsume_times + 1
        in_order, place = group == ORDERED, _place(message)
        if self.owed is not None:
            if in_order:
                self.owed.ledger.take_back(group, place)
            self.owed.check_handed(group, number, attempt, in_order=in_order)
        self.ledger.handed(group, number, place, attempt, in_order=in_order)

    async def _deal_with(
        self, client: RawClient, group: str, message: MessageExt, checkpoint: Checkpoint
    ) -> None:
        """Acknowledge a message, or put it off, or forget it; at the end all are acknowledged."""
        luck = self.rng.random() if self._is_sending else 1.0
        if luck < 0.15:
            return
        fields = {
            "consumerGroup": group,
            "topic": topic_of_delivery(TOPIC, group, checkpoint.retry),
            "queueId": str(checkpoint.queue_id),
            "extraInfo": checkpoint.text,
            "offset": str(checkpoint.queue_offset),
        }
        if luck < 0.25:
            fields["invisibleTime"] = str(self.rng.choice((0, 500)))
            answer = await client.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.NO_MESSAGE), answer.remark
            return
        number = int(message.properties["N"])
        what, asked = Consumed(group, number), self.ledger.in_order()
        self.ledger.asked[what] += 1
        answer = await client.call(RequestCode.ACK_MESSAGE, fields)
        if answer.code == ResponseCode.SUCCESS:
            if not self.ledger.is_taken_back(group, _place(message), asked):
                self.ledger.consumed(group, number, _place(message), durable=True)
            self._count()
        else:
            assert answer.code == ResponseCode.NO_MESSAGE, answer.remark
            self.ledger.asked[what] -= 1

    def _count(self) -> None:
        self.acks += 1
        self._noted.set()


def _place(message: MessageExt) -> Place:
    return int(retry_mark(message.topic)), message.queue_id, message.queue_offset
