"""A whole broker whose topic is consumed by pop, by a group that keeps no order and one that does.

    machine = PopMachine(sync=True, rng=rng)
    await machine.boot()
    await machine.run(60)

The consumers call the service that serves all protocols; what they are told goes into the ledger.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, NamedTuple

from skylarkmq.broker.pop.handles import Receipt
from skylarkmq.broker.pop.requests import Popped, PopRequest
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.properties import encode_properties
from skylarkmq.protocol.record import decode_message
from tests.support.broker_applications import stored
from tests.support.broker_machine import BrokerMachine
from tests.support.pop_ledger import Consumed, Owed, PopLedger, Sent
from tests.support.raw_client import send_fields

TOPIC, QUEUES = "popped", 2
LOOSE, ORDERED = "loose", "ordered"
GROUPS = LOOSE, ORDERED
INVISIBLE_MS = (1000, 4000, 9000)
CLIENTS = "client-a", "client-b"
RETRIES = 10_000  # nothing becomes a dead letter by itself


class Held(NamedTuple):
    """A message in a consumer's hands; the handle may say nothing any more."""

    group: str
    client_id: str
    number: int
    receipt: Receipt

    @property
    def place(self) -> tuple[int, int, int]:
        return self.receipt.kind, self.receipt.queue_id, self.receipt.offset


class PopMachine(BrokerMachine):
    """A broker, its producers and its consumers by pop."""

    def __init__(
        self, *, sync: bool, rng: Random, has_priorities: bool = False, **more: Any
    ) -> None:
        """Make it.

        Args:
            has_priorities: its topic is made with them, at the first boot.
        """
        super().__init__(sync=sync, rng=rng, **more)
        self.has_priorities = has_priorities
        self.owed: Owed | None = None  # after a crash
        self.hands: list[Held] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._attempt = 0

    @property
    def pops(self) -> PopLedger:
        return self.ledger.pops

    async def boot(self, *, watch: bool = True) -> None:
        await super().boot(watch=watch)
        if self.has_priorities:
            fields = {
                "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES),
                "writeQueueNums": str(QUEUES), "perm": "6", "topicFilterType": "SINGLE_TAG",
                "attributes": "+message.type=PRIORITY",
            }  # fmt: skip
            self.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields, done=_succeeded)
        for group in GROUPS:
            body = {
                "groupName": group,
                "retryMaxTimes": RETRIES,
                "consumeMessageOrderly": group == ORDERED,
            }
            self.call(
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                body=json.dumps(body).encode(),
                done=_succeeded,
            )
        await self.pump(0.2)

    async def _stop(self) -> None:
        self.drop_tasks()
        await super()._stop()

    def close(self) -> None:
        self.drop_tasks()
        super().close()

    def drop_tasks(self) -> None:
        """The consumers hang up."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def choices(self) -> list[tuple[int, Callable[[], Awaitable[None] | None]]]:
        """What happens, and how often."""
        return [
            (8, self.send_popped),
            (1, self.send_plain),
            (1, self.send_delayed),
            (16, self.pop),
            (22, self.ack),
            (3, self.change),
            (1, self.give_back),
            (1, self.release),
            (1, self.forward),
            (1, self.delete_topic),
            (14, lambda: self.pump(self.rng.choice((0.1, 0.1, 0.3, 1.0, 2.0)))),
            (2, self.settle),
            (3, self.lag),
            (1, self.restart),
        ]

    # What the applications do

    def send_popped(self) -> None:
        """A message, or a few."""
        for _ in range(self.rng.choice((1, 1, 3))):
            number = self.pops.sent
            self.pops.sent += 1
            level = str(number % QUEUES)  # where the topic has no priorities it says nothing
            text = encode_properties(
                {"UNIQ_KEY": f"{number:032X}", "N": str(number), "_SYS_MSG_PRIORITY_": level}
            )

            def done(answer: RemotingCommand, number: int = number) -> None:
                if "is being deleted" not in (answer.remark or "") and stored(answer):
                    self.pops.note(Sent(number), durable=self.sync)

            fields = send_fields(TOPIC, number % QUEUES, text)
            self.call(RequestCode.SEND_MESSAGE_V2, fields, b"%d" % number, done=done)

    def pop(self) -> None:
        """A receive, which may wait for a while."""
        self.begin_pop(self.rng.choice(GROUPS), self.rng.choice((0.0, 0.0, 1.5)))

    def begin_pop(self, group: str, wait_s: float, count: int | None = None) -> None:
        """Begin a receive."""
        if group == ORDERED and self.rng.random() < 0.7:
            self._attempt += 1  # else it asks again for what it had
        request = PopRequest(
            group,
            TOPIC,
            client_id=self.rng.choice(CLIENTS),
            count=count or self.rng.choice((1, 2, 5)),
            invisible_ms=self.rng.choice(INVISIBLE_MS),
            until_s=self.parts.peer_clock.monotonic() + wait_s,
            attempt_id=f"attempt-{self._attempt}" if group == ORDERED else "",
            is_fifo=group == ORDERED,
            from_min=True,
        )
        self._begin(self._pop, request)

    async def _pop(self, request: PopRequest) -> None:
        received = await self.parts.pop.receiver.receive(request)
        for popped in received:
            self._handed(request, popped)
        config = self.parts.topics.get(TOPIC)
        if config and config.attributes_map.get("message.type") and not request.is_fifo:
            levels = [popped.receipt.queue_id for popped in received]
            assert levels == sorted(levels, reverse=True), "the highest priority first"
            self.pops.power["by priority"] += len(set(levels)) > 1

    def _handed(self, request: PopRequest, popped: Popped) -> None:
        message = decode_message(bytes(popped.record))
        number = int(message.properties["N"])
        assert message.body == b"%d" % number
        held = Held(request.group, request.client_id, number, popped.receipt)
        in_order = request.group == ORDERED
        if self.owed is not None:
            if in_order:
                self.owed.ledger.take_back(request.group, held.place)
            self.owed.check_handed(request.group, number, popped.attempt, in_order=in_order)
        self.pops.handed(request.group, number, held.place, popped.attempt, in_order=in_order)
        self.hands.append(held)

    def ack(self) -> None:
        """A message is consumed; the handle may be an old one."""
        held = self._some()
        if held is not None:
            self._begin(self._end, held, self.parts.pop.settlement.ack)

    def ack_all(self) -> None:
        """All messages in hand are."""
        for held in self.hands:
            self._begin(self._end, held, self.parts.pop.settlement.ack)
        self.hands.clear()

    def forward(self) -> None:
        """A message is given up."""
        held = self._some()
        if held is not None:
            self._begin(self._end, held, self.parts.pop.settlement.forward_to_dlq)

    async def _end(self, held: Held, end: Callable[[str, str, Receipt], Awaitable[bool]]) -> None:
        what, asked = Consumed(held.group, held.number), self.pops.in_order()
        self.pops.asked[what] += 1
        if end == self.parts.pop.settlement.forward_to_dlq:
            self.pops.forwarded.add(what)
        if await end(held.group, TOPIC, held.receipt):
            if not self.pops.is_taken_back(held.group, held.place, asked):
                self.pops.consumed(held.group, held.number, held.place, durable=self.sync)
        else:
            self.pops.asked[what] -= 1
            self.pops.power["handle refused"] += 1

    def change(self) -> None:
        """A message shall come again sooner, or later."""
        held = self._some()
        if held is not None:
            self._begin(self._change, held, self.rng.choice((0, 500, 4000)))

    async def _change(self, held: Held, invisible_ms: int) -> None:
        receipt = await self.parts.pop.settlement.change_invisible(
            held.group, TOPIC, held.receipt, invisible_ms
        )
        if receipt is not None:
            self.pops.power["changed"] += 1
            self.hands.append(held._replace(receipt=receipt))

    def give_back(self) -> None:
        """An answer could not be handed over."""
        held = self._some()
        if held is not None:
            self.parts.pop.settlement.give_back(held.group, TOPIC, [held.receipt])

    def release(self) -> None:
        """A client is gone."""
        self.parts.pop.settlement.release_client(self.rng.choice(CLIENTS), self.rng.choice(GROUPS))

    def delete_topic(self) -> None:
        """The topic goes; the next message makes it anew."""
        if self.rng.random() < 0.5:
            return
        self.pops.gone = self.pops.sent

        def done(answer: RemotingCommand) -> None:
            _succeeded(answer)
            self.pops.gone = self.pops.sent
            self.pops.power["deleted"] += 1

        self.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}, done=done)

    def _some(self) -> Held | None:
        """Take one of the last messages from a hand; the handle stays there, now and then."""
        if not self.hands:
            return None
        held = self.rng.choice(self.hands[-6:])
        if self.rng.random() < 0.9:
            self.hands.remove(held)
        return held

    def _begin(self, work: Callable[..., Awaitable[None]], *given: Any) -> None:
        task = asyncio.ensure_future(self._tolerant(work, *given))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tolerant(self, work: Callable[..., Awaitable[None]], *given: Any) -> None:
        """Run what a peer asked for; a topic that is not there yet is a refusal."""
        try:
            await work(*given)
        except RemoteProtocolError as error:
            if error.response_code != ResponseCode.TOPIC_NOT_EXIST:
                self.failures.append(error)
        except Exception as error:
            self.failures.append(error)

    async def drain(self, seconds: float) -> None:
        """Consume all that comes for a while."""
        for _ in range(round(seconds / 0.5)):
            for group in GROUPS:
                self.begin_pop(group, 0.0, 32)
            await self.pump(0.5)
            self.ack_all()


def _succeeded(answer: RemotingCommand) -> None:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
