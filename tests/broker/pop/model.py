"""A client that does anything in any order, and what must hold whatever it does.

nothing is lost            what is not acknowledged is there at the end
nothing comes back         what is acknowledged is never handed out again; in an ordered group that
                           counts once all before it is
one handle a message       an older handle than the last one ends nothing
no sooner than its time    what is in hand is handed out to nobody else
the attempts are counted   one more for each delivery that was not given back
the mark passes nothing    the group's offset is not above a message of its queue that is
                           neither acknowledged nor copied to the retries
the highest first          with priorities nobody gets a message while a higher one is there
in order                   an ordered group gets a queue's messages in their order, and none
                           while an earlier one is in somebody's hand
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from skylarkmq.broker.pop.handles import MAIN, Receipt
from skylarkmq.broker.pop.requests import Popped
from tests.broker.pop.pop_rig import GROUP, TOPIC, PopRig, message_of

QUEUES = 2
INVISIBLE_S = 10
SLACK_S = 0.3


@dataclass
class Known:
    """One message as the client knows it."""

    queue_id: int
    offset: int
    deliveries: int = 0  # that count
    receipt: Receipt | None = None  # the last one
    kind: int = MAIN  # of the last one
    until_s: float = 0.0  # nobody else gets it before
    is_done: bool = False
    is_acked: bool = False  # in an ordered queue, where one before it is not done
    is_in_hand: bool = False


class Client:
    """Does things and checks what comes of them."""

    def __init__(
        self, rig: PopRig, seed: int, *, is_fifo: bool, has_priorities: bool = False
    ) -> None:
        self.rig = rig
        self.rng = random.Random(seed)
        self.is_fifo = is_fifo
        self.has_priorities = has_priorities
        self.known: dict[bytes, Known] = {}
        self.stale: list[Receipt] = []
        self.attempts = 0

    async def step(self) -> None:
        """Do one thing."""
        steps = [self.send, self.receive, self.receive, self.receive, self.ack, self.ack,
                 self.ack_stale, self.change, self.give_back, self.wait,
                 self.restart]  # fmt: skip
        await self.rng.choice(steps)()
        self.check_marks()

    async def send(self) -> None:
        for _ in range(self.rng.randrange(1, 5)):
            body, queue_id = b"%d" % len(self.known), self.rng.randrange(QUEUES)
            offset = self.rig.store.max_offset(TOPIC, queue_id)
            self.rig.send(body, queue_id=queue_id)
            self.known[body] = Known(queue_id, offset)

    async def receive(self) -> None:
        count = self.rng.randrange(1, 6)
        self.got(await self._receive(count))

    async def _receive(self, count: int) -> list[Popped]:
        self.attempts += 1
        there = self.there()
        popped = await self.rig.receive(
            count,
            is_fifo=self.is_fifo,
            attempt_id=f"a{self.attempts}",
            invisible_ms=INVISIBLE_S * 1000,
        )
        if self.has_priorities:
            self.check_priorities([self.known[message_of(one).body] for one in popped], there)
        return popped

    def there(self) -> list[Known]:
        """What the next receive may have for certain."""
        now = self.rig.clock.monotonic()
        return [
            known
            for known in self.known.values()
            if not known.is_done and now > known.until_s + SLACK_S
        ]

    def check_priorities(self, popped: list[Known], there: list[Known]) -> None:
        levels = [known.queue_id for known in popped]
        assert levels == sorted(levels, reverse=True), "the highest first"
        left = [known.queue_id for known in there if known not in popped]
        assert not levels or not left or max(left) <= levels[-1], "a higher one waits"

    def got(self, popped: list[Popped]) -> None:
        now = self.rig.clock.monotonic()
        for one in popped:
            known = self.known[message_of(one).body]
            if self.is_fifo:
                self.takes_back(known)
            assert not (known.is_done or known.is_acked), "what is acknowledged comes back"
            assert now >= known.until_s, "it is in hand"
            known.deliveries += 1
            assert one.attempt == known.deliveries, "attempts"
            if self.is_fifo:
                self.check_order(known)
            if known.receipt is not None:
                self.stale.append(known.receipt)
            known.receipt, known.kind = one.receipt, one.receipt.kind
            known.until_s, known.is_in_hand = now + INVISIBLE_S, True

    def queue(self, known: Known) -> list[Known]:
        """The messages of its queue, in their order."""
        return [other for other in self.known.values() if other.queue_id == known.queue_id]

    def takes_back(self, known: Known) -> None:
        """What was acknowledged after a message that comes again comes again, too."""
        for other in self.queue(known):
            if other.is_acked and other.offset > known.offset:
                assert other.receipt is not None
                self.stale.append(other.receipt)
                other.is_acked = False

    def acknowledged(self, known: Known) -> None:
        """Note that a message is done, or is as soon as all before it are."""
        known.is_acked, known.is_in_hand, known.until_s = True, False, 0.0
        for other in self.queue(known) if self.is_fifo else [known]:
            if not (other.is_done or other.is_acked):
                break
            other.is_done = True

    def check_order(self, known: Known) -> None:
        for other in self.queue(known):
            if other.offset < known.offset:
                is_in_hand = not other.is_acked and other.until_s > self.rig.clock.monotonic()
                assert other.is_done or is_in_hand, "order"

    def in_hand(self) -> Known | None:
        held = [known for known in self.known.values() if known.is_in_hand]
        return self.rng.choice(held) if held else None

    def is_over(self, known: Known) -> bool:
        return self.rig.clock.monotonic() >= known.until_s

    async def ack(self) -> None:
        known = self.in_hand()
        if known is None or known.receipt is None:
            return
        may_be_over = self.is_over(known)
        is_done = await self.rig.ack(known.receipt)
        assert is_done or may_be_over, "a handle ends before its time"
        if is_done:
            self.acknowledged(known)

    async def ack_stale(self) -> None:
        if self.stale:
            assert not await self.rig.ack(self.rng.choice(self.stale)), "an old handle"

    async def change(self) -> None:
        known = self.in_hand()
        if known is None or known.receipt is None:
            return
        may_be_over, seconds = self.is_over(known), self.rng.choice([0, 2, 30])
        changed = await self.rig.pop.settlement.change_invisible(
            GROUP, TOPIC, known.receipt, seconds * 1000
        )
        assert changed is not None or may_be_over, "a handle ends before its time"
        if changed is not None:
            self.stale.append(known.receipt)
            known.receipt = changed
            known.until_s = self.rig.clock.monotonic() + seconds

    async def give_back(self) -> None:
        known = self.in_hand()
        if known is None or known.receipt is None or self.is_over(known):
            return
        self.rig.pop.settlement.give_back(GROUP, TOPIC, [known.receipt])
        self.stale.append(known.receipt)
        known.is_in_hand = False
        known.deliveries -= 1
        known.until_s = self.rig.clock.monotonic() + 1

    async def wait(self) -> None:
        await self.rig.advance(self.rng.choice([0.2, 1, 3, 11]))

    async def restart(self) -> None:
        if self.rng.random() < 0.3:
            await self.rig.stop_pop()
            self.rig.restart()
            for known in self.known.values():  # rest after giving back is not kept
                if not known.is_in_hand:
                    known.until_s = 0

    def check_marks(self) -> None:
        marks = {queue_id: self.rig.mark(queue_id) for queue_id in range(QUEUES)}
        for known in self.known.values():
            copied = known.kind != MAIN or (known.is_in_hand and self.is_over(known))
            if not known.is_done and not copied:
                assert marks[known.queue_id] <= known.offset, "the mark passes a message"

    async def finish(self) -> None:
        """Receive and acknowledge until nothing comes."""
        for _ in range(40):
            await self.rig.advance(31)
            popped = await self._receive(32)
            self.got(popped)
            for one in popped:
                assert await self.rig.ack(one.receipt)
                self.acknowledged(self.known[message_of(one).body])
            if not popped and all(known.is_done for known in self.known.values()):
                break
        lost = [body for body, known in self.known.items() if not known.is_done]
        assert not lost, "messages are lost"
        assert self.rig.pop.in_flight.room.count == 0
        for queue_id in range(QUEUES):
            assert self.rig.mark(queue_id) in (-1, self.rig.store.max_offset(TOPIC, queue_id))
        state: Any = self.rig.journal.state()
        assert not any(found.rows for found in state.keys.values())


async def run(seed: int, steps: int, *, is_fifo: bool, has_priorities: bool = False) -> None:
    """Let a client do so many things."""
    rig = PopRig().start(queues=QUEUES, retry_max_times=1000)
    if has_priorities:
        rig.topic(TOPIC, QUEUES, kind="PRIORITY")
    rig.group(retry_max_times=1000, consume_message_orderly=is_fifo)
    client = Client(rig, seed, is_fifo=is_fifo, has_priorities=has_priorities)
    for _ in range(steps):
        await client.step()
    await client.finish()
