"""An ordered consumer: one message of a queue at a time, in this member and among the members."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from skylarkmq.client import Consumer, MessageQueue, ReceivedMessage
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.client.consumer.support import GROUP, Group
from tests.support.fake_locks import LockingBroker
from tests.support.manual_clock import settle


class Ordered(Group):
    """Ordered consumers over a broker with locks."""

    broker: LockingBroker

    def __init__(self, topics: dict[str, int] | None = None) -> None:
        super().__init__(topics)
        old = self.broker
        self.cluster.brokers.clear()
        self.broker = LockingBroker(self.cluster, old.name, topics or {"orders": 4})
        self.broker.clock = self.clock
        self.broker.owners = {}
        self.cluster.network.listen(self.broker.address, self.broker)
        self.cluster.brokers.append(self.broker)

    async def consumer(self, *topics: str, **settings: Any) -> Consumer:
        return await super().consumer(*topics, orderly=True, **settings)

    def owner(self, queue_id: int) -> str | None:
        return self.broker.owner(GROUP, "orders", queue_id)


class Seen:
    """A handler that watches the order, and fails or waits as told."""

    def __init__(self, *, fail: dict[bytes, int] | None = None) -> None:
        self.bodies: list[bytes] = []
        self.tries: list[int] = []
        self.running: set[MessageQueue] = set()
        self.most = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.fail = fail or {}

    async def __call__(self, message: ReceivedMessage) -> None:
        assert message.queue not in self.running, "two handlers of one queue"
        self.running.add(message.queue)
        self.most = max(self.most, len(self.running))
        try:
            self.bodies.append(message.body)
            self.tries.append(message.reconsume_times)
            await asyncio.sleep(0)
            await self.gate.wait()
            if self.fail.get(message.body, 0) > 0:
                self.fail[message.body] -= 1
                raise RuntimeError("on purpose")
        finally:
            self.running.discard(message.queue)


def bodies(count: int, mark: str = "") -> list[bytes]:
    return [f"{mark}{number}".encode() for number in range(count)]


async def test_the_messages_of_a_queue_run_one_after_another_and_queues_side_by_side() -> None:
    it = Ordered({"orders": 3})
    for queue_id in range(3):
        it.broker.add("orders", queue_id, *bodies(40, f"{queue_id}-"))
    consumer = await it.consumer()
    seen = Seen()
    running = asyncio.create_task(consumer.run(seen, concurrency=8))
    await it.pass_time(1)
    for queue_id in range(3):
        mark = f"{queue_id}-"
        assert [each for each in seen.bodies if each.startswith(mark.encode())] == bodies(40, mark)
    assert seen.most == 3
    await it.stop(consumer)
    await running
    assert [it.offset(queue_id) for queue_id in range(3)] == [40] * 3


async def test_a_failed_message_is_tried_again_here_while_its_queue_waits() -> None:
    it = Ordered({"orders": 2})
    it.broker.add("orders", 0, b"a", b"b", b"c")
    it.broker.add("orders", 1, b"other")
    consumer = await it.consumer()
    seen = Seen(fail={b"b": 2})
    running = asyncio.create_task(consumer.run(seen))
    await it.pass_time(0.9)
    assert sorted(seen.bodies) == [b"a", b"b", b"other"]
    await it.pass_time(1)
    assert seen.bodies[3:] == [b"b"]
    await it.pass_time(1)
    assert seen.bodies[3:] == [b"b", b"b", b"c"]
    assert seen.tries[-3:] == [1, 2, 0]
    assert not it.broker.of_code(RequestCode.CONSUMER_SEND_MSG_BACK)
    await it.stop(consumer)
    await running
    assert it.offset(0) == 3


async def test_after_max_reconsume_it_is_a_dead_letter_and_the_queue_goes_on() -> None:
    it = Ordered({"orders": 1})
    it.broker.add("orders", 0, b"a", b"b")
    consumer = await it.consumer(max_reconsume=2)
    seen = Seen(fail={b"a": 99})
    running = asyncio.create_task(consumer.run(seen))
    await it.pass_time(4)
    assert seen.bodies == [b"a", b"a", b"a", b"b"]
    assert it.broker.bodies(f"%DLQ%{GROUP}") == [b"a"]
    await it.stop(consumer)
    await running


async def test_without_a_limit_it_is_tried_on_and_on() -> None:
    it = Ordered({"orders": 1})
    it.broker.add("orders", 0, b"a", b"b")
    consumer = await it.consumer()
    seen = Seen(fail={b"a": 99})
    running = asyncio.create_task(consumer.run(seen))
    await it.pass_time(40)
    assert seen.bodies == [b"a"] * 41
    await it.stop(consumer)
    await running
    assert it.offset(0) in (None, 0)


async def test_nack_says_how_long_the_queue_waits_also_while_the_handler_goes_on() -> None:
    it = Ordered({"orders": 1})
    it.broker.add("orders", 0, b"a", b"b")
    consumer = await it.consumer()
    order: list[bytes] = []
    finish = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        order.append(message.body)
        if len(order) == 1:
            await message.nack(delay=timedelta(seconds=7))
            await finish.wait()
            await message.ack()  # it has no say any more

    running = asyncio.create_task(consumer.run(handle, concurrency=3))
    await it.pass_time(8)
    assert order == [b"a"], "its handler is still at work"
    finish.set()
    await settle()
    assert order == [b"a", b"a", b"b"]
    await it.stop(consumer)
    await running


async def test_a_failed_batch_comes_again_in_order_without_what_was_acknowledged() -> None:
    it = Ordered({"orders": 1})
    it.broker.add("orders", 0, *bodies(5))
    consumer = await it.consumer()
    batches: list[list[bytes]] = []

    async def handle(messages: list[ReceivedMessage]) -> None:
        batches.append([message.body for message in messages])
        if len(batches) == 1:
            await messages[0].ack()
            raise RuntimeError("the rest failed")

    running = asyncio.create_task(consumer.run(handle, concurrency=2, max_batch=3))
    await it.pass_time(2)
    assert batches == [[b"0", b"1", b"2"], [b"1", b"2", b"3"], [b"4"]]
    await it.stop(consumer)
    await running


async def test_a_queue_moves_to_another_member_only_after_its_handler_has_ended() -> None:
    it = Ordered({"orders": 2})
    for queue_id in range(2):
        it.broker.add("orders", queue_id, *bodies(5, f"{queue_id}-"))
    first = await it.consumer()
    slow, other = Seen(), Seen()
    slow.gate.clear()
    running = [asyncio.create_task(first.run(slow))]
    await it.pass_time(1)
    assert sorted(slow.bodies) == [b"0-0", b"1-0"]
    second = await it.consumer()
    running.append(asyncio.create_task(second.run(other)))
    await it.pass_time(70)
    assert other.bodies == [], "the first one refreshes its locks meanwhile"
    assert sorted(slow.bodies) == [b"0-0", b"1-0"]
    slow.gate.set()
    await it.pass_time(3)
    owners = {it.owner(queue_id) for queue_id in range(2)}
    assert owners == {first._client.client_id, second._client.client_id}
    mark = "0-" if any(each.startswith(b"0-") for each in other.bodies) else "1-"
    assert [each for each in slow.bodies + other.bodies if each.startswith(mark.encode())] == (
        bodies(5, mark)
    )
    await it.stop(first, second)
    await asyncio.gather(*running)
    assert [it.offset(queue_id) for queue_id in range(2)] == [5, 5]


async def test_a_dead_member_is_followed_when_its_locks_run_out() -> None:
    it = Ordered({"orders": 1})
    it.broker.add("orders", 0, *bodies(3))
    it.broker.seize(GROUP, "orders", 0, "dead-member")
    consumer = await it.consumer()
    seen = Seen()
    running = asyncio.create_task(consumer.run(seen))
    await it.pass_time(30)
    assert seen.bodies == []
    it.broker.owners.clear()
    await it.pass_time(3)
    await it.pass_time(0)
    assert seen.bodies == bodies(3)
    await it.stop(consumer)
    await running


async def test_a_lost_lock_drops_the_queue_and_commits_nothing_for_it() -> None:
    it = Ordered({"orders": 1})
    it.broker.add("orders", 0, *bodies(4))
    gone: list[MessageQueue] = []
    consumer = await it.consumer(on_revoked=gone.extend, commit_interval=500)
    seen = Seen()
    seen.gate.clear()
    running = asyncio.create_task(consumer.run(seen))
    await it.pass_time(1)
    it.broker.seize(GROUP, "orders", 0, "another")
    it.broker.offsets[GROUP, "orders", 0] = 3
    await it.pass_time(21)
    assert [queue.queue_id for queue in gone] == [0]
    seen.gate.set()
    await it.pass_time(1)
    assert seen.bodies == [b"0"], "nothing more is handed out"
    assert it.offset(0) == 3, "the other member's word counts"
    it.broker.owners.clear()
    await it.pass_time(2)
    assert seen.bodies == [b"0", b"3"]
    await it.stop(consumer)
    await running


@pytest.mark.parametrize("moved_to", [None, 3])
async def test_without_a_word_of_the_broker_nothing_is_handed_out(moved_to: int | None) -> None:
    it = Ordered({"orders": 1})
    it.broker.add("orders", 0, *bodies(4))
    consumer = await it.consumer()
    seen = Seen()
    seen.gate.clear()
    running = asyncio.create_task(consumer.run(seen))
    await it.pass_time(1)
    it.broker.refuse(RequestCode.LOCK_BATCH_MQ, *[ResponseCode.SYSTEM_ERROR] * 200)
    await it.pass_time(35)
    seen.gate.set()
    await it.pass_time(10)
    assert seen.bodies == [b"0"], "the lock is too old"
    it.broker.refusals.clear()
    if moved_to is not None:
        it.broker.offsets[GROUP, "orders", 0] = moved_to
    await it.pass_time(2)
    assert seen.bodies == ([b"0", b"1", b"2", b"3"] if moved_to is None else [b"0", b"3"])
    await it.stop(consumer)
    await running


async def test_a_broker_that_forgot_its_locks_is_asked_again() -> None:
    it = Ordered({"orders": 1})
    consumer = await it.consumer()
    seen = Seen()
    running = asyncio.create_task(consumer.run(seen))
    it.broker.owners.clear()
    it.broker.lose_all()
    await it.pass_time(25)
    assert it.owner(0) == consumer._client.client_id
    it.broker.add("orders", 0, b"after")
    await it.pass_time(5)
    assert seen.bodies == [b"after"]
    await it.stop(consumer)
    await running


async def test_stop_gives_the_locks_up() -> None:
    it = Ordered({"orders": 3})
    consumer = await it.consumer()
    assert {it.owner(queue_id) for queue_id in range(3)} == {consumer._client.client_id}
    assert it.broker.owner(GROUP, f"%RETRY%{GROUP}", 0), "the retry topic is locked, too"
    await it.stop(consumer)
    assert it.broker.owners == {}


async def test_a_handler_of_before_a_seek_keeps_the_queue_until_it_ends() -> None:
    it = Ordered({"orders": 1})
    it.broker.add("orders", 0, *bodies(4))
    consumer = await it.consumer()
    seen = Seen()
    seen.gate.clear()
    running = asyncio.create_task(consumer.run(seen, concurrency=4))
    await it.pass_time(1)
    (queue,) = consumer.assignment()
    consumer.seek(queue, 2)
    await it.pass_time(1)
    assert seen.bodies == [b"0"]
    seen.gate.set()
    await it.pass_time(1)
    assert seen.bodies == [b"0", b"2", b"3"]
    await it.stop(consumer)
    await running


async def test_getone_gives_the_next_of_a_queue_after_the_ack() -> None:
    it = Ordered({"orders": 2})
    it.broker.add("orders", 0, b"0-0", b"0-1")
    it.broker.add("orders", 1, b"1-0")
    consumer = await it.consumer(ack="manual")
    one, other = [await it.wait(consumer.getone()) for _ in range(2)]
    assert sorted([one.body, other.body]) == [b"0-0", b"1-0"]
    waiting = asyncio.create_task(consumer.getone())
    await it.pass_time(1)
    assert not waiting.done()
    first = one if one.queue.queue_id == 0 else other
    await first.ack()
    assert (await it.wait(waiting)).body == b"0-1"
    await it.stop(consumer)


async def test_a_cancelled_run_leaves_the_queue_as_it_was() -> None:
    it = Ordered({"orders": 1})
    it.broker.add("orders", 0, *bodies(3))
    consumer = await it.consumer()
    seen = Seen()
    seen.gate.clear()
    running = asyncio.create_task(consumer.run(seen, concurrency=2))
    await it.pass_time(1)
    running.cancel()
    await settle()
    assert [(await it.wait(consumer.getone())).body for _ in range(3)] == bodies(3)
    await it.stop(consumer)


async def test_nothing_of_a_batch_overtakes_a_message_that_its_handler_handed_back() -> None:
    it = Ordered({"orders": 1})
    it.broker.add("orders", 0, *bodies(5))
    consumer = await it.consumer()
    batches: list[list[bytes]] = []

    async def handle(messages: Sequence[ReceivedMessage]) -> None:
        batches.append([message.body for message in messages])
        if len(batches) == 1:
            await messages[1].nack()
            await messages[3].ack()

    running = asyncio.create_task(consumer.run(handle, max_batch=10))
    await it.pass_time(0.9)
    await it.wait(consumer.commit())
    assert it.offset(0) == 1
    assert len(batches) == 1
    await it.pass_time(1)
    assert batches[1:] == [[b"1", b"2", b"4"]]
    await it.stop(consumer)
    await running
    assert it.offset(0) == 5


async def test_nothing_that_getmany_gave_overtakes_it_either() -> None:
    it = Ordered({"orders": 1})
    it.broker.add("orders", 0, *bodies(3))
    consumer = await it.consumer()
    (given,) = (await it.wait(consumer.getmany(timeout=5))).values()
    await given[0].nack()
    (again,) = (await it.wait(consumer.getmany(timeout=5))).values()
    assert [message.body for message in again] == bodies(3)
    await it.stop(consumer)
