"""Rebalance: shares that come and go, where a queue starts, what is told to the user."""

from __future__ import annotations

from typing import Any

from skylarkmq.client import (
    Consumer,
    StartFrom,
)
from skylarkmq.client.config import REVOKE_DRAIN_S
from skylarkmq.protocol.message import MessageQueue
from tests.client.consumer.support import GROUP, Group
from tests.support.fake_cluster import STORE_MS
from tests.support.fake_queues import Stored, Topic


async def test_two_members_share_the_queues_and_one_takes_over_from_the_other() -> None:
    it = Group({"orders": 4})
    told: list[tuple[str, str, list[int]]] = []

    def note(who: str, what: str) -> Any:
        return lambda queues: told.append((who, what, [queue.queue_id for queue in queues]))

    def notes(who: str) -> dict[str, Any]:
        return {"on_assigned": note(who, "assigned"), "on_revoked": note(who, "revoked")}

    first = await it.consumer(**notes("first"))
    assert [queue.queue_id for queue in first.assignment()] == [0, 1, 2, 3]
    second = await it.consumer(**notes("second"))
    await it.pass_time(1)
    assert [queue.queue_id for queue in first.assignment()] == [0, 1]
    assert [queue.queue_id for queue in second.assignment()] == [2, 3]
    it.broker.add("orders", 3, b"once")
    await it.pass_time(1)
    assert await it.wait(first.getmany()) == {}, "the queue is pulled by its new owner alone"
    assert (await it.wait(second.getone())).body == b"once"
    await it.wait(second.commit())
    await it.wait(first.stop())
    await it.pass_time(1)
    assert [queue.queue_id for queue in second.assignment()] == [0, 1, 2, 3]
    assert told == [
        ("first", "assigned", [0, 1, 2, 3]),
        ("first", "revoked", [2, 3]),
        ("second", "assigned", [2, 3]),
        ("first", "revoked", [0, 1]),
        ("second", "assigned", [0, 1]),
    ]
    await it.stop(second)


async def test_a_revoked_queue_is_committed_before_it_goes_and_late_acks_are_void() -> None:
    it = Group({"orders": 2})
    it.broker.add("orders", 1, *[b"%d" % n for n in range(5)])
    order: list[str] = []

    async def revoked(queues: list[MessageQueue]) -> None:
        order.append("callback")
        await given[1].ack()

    first = await it.consumer(ack="manual", on_revoked=revoked)
    given = [await it.wait(first.getone()) for _ in range(3)]
    await given[0].ack()
    it.broker.offsets.clear()
    second = await it.consumer()
    await it.pass_time(1)
    assert order == ["callback"]
    assert it.offset(1) == 2, "also what the callback acked"
    await it.pass_time(REVOKE_DRAIN_S)
    await given[2].ack()
    await it.wait(first.commit())
    assert it.offset(1) == 2, "the queue is not ours any more"
    got = await it.wait(second.getone())
    assert got.body == b"2"
    await it.wait(first.stop())
    await it.stop(second)


async def test_a_failing_callback_does_not_stop_the_rebalance() -> None:
    it = Group({"orders": 2})

    def fail(queues: list[MessageQueue]) -> None:
        raise RuntimeError("on purpose")

    consumer = await it.consumer(on_assigned=fail, on_revoked=fail)
    assert len(consumer.assignment()) == 2
    await it.stop(consumer)


async def test_a_topic_that_comes_later_is_found() -> None:
    it = Group({"other": 1})
    consumer = await it.consumer("fresh")
    assert consumer.assignment() == []
    from tests.support.fake_cluster import _topic

    it.broker.topics["fresh"] = _topic(2)
    it.broker.add("fresh", 0, b"hello")
    message = await it.wait(consumer.getone(timeout=15))
    assert message.body == b"hello"
    await it.stop(consumer)


async def test_subscribe_and_unsubscribe_while_running() -> None:
    it = Group({"orders": 2, "bills": 1})
    consumer = await it.consumer("orders")
    await it.wait(consumer.subscribe("bills"))
    await it.pass_time(1)
    assert {queue.topic for queue in consumer.assignment()} == {"orders", "bills"}
    await it.wait(consumer.unsubscribe("orders"))
    await it.pass_time(1)
    assert {queue.topic for queue in consumer.assignment()} == {"bills"}
    topics = [
        each.topic for each in it.broker.heartbeats[-1].consumer_data_set[0].subscription_data_set
    ]
    assert sorted(topics) == [f"%RETRY%{GROUP}", "bills"]
    await it.stop(consumer)


async def test_a_broker_that_restarts_gets_the_group_back() -> None:
    it = Group({"orders": 1})
    consumer = await it.consumer()
    it.broker.connect_error = ConnectionRefusedError("down")
    it.broker.lose_all()
    it.broker.clients.clear()
    await it.pass_time(10)
    it.broker.connect_error = None
    it.broker.add("orders", 0, b"after")
    message = await it.wait(consumer.getone(timeout=10))
    assert message.body == b"after"
    await it.stop(consumer)


async def test_a_young_group_starts_where_it_is_told() -> None:
    for start_from, expected in (
        (StartFrom.FIRST, b"0"),
        (StartFrom.LAST, b"new"),
        (StartFrom("timestamp", STORE_MS + 3), b"3"),
    ):
        it = Group({"orders": 1})
        it.broker.add("orders", 0, *[b"%d" % n for n in range(5)])
        consumer = await it.consumer(start_from=start_from)
        it.broker.add("orders", 0, b"new")
        assert (await it.wait(consumer.getone())).body == expected
        await it.stop(consumer)


async def test_a_known_group_goes_on_where_it_was() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, *[b"%d" % n for n in range(5)])
    it.broker.offsets[GROUP, "orders", 0] = 3
    consumer = await it.consumer(start_from=StartFrom.FIRST)
    assert (await it.wait(consumer.getone())).body == b"3"
    await it.stop(consumer)


async def test_a_queue_that_is_made_meanwhile_is_read_from_its_beginning() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"old")
    consumer = await it.consumer(start_from=StartFrom.LAST)
    queues = it.broker.topics["orders"].queues
    queues.append([Stored(b"%d" % n, {}, store_timestamp=it.clock.now_ms()) for n in range(3)])
    await it.pass_time(40)
    assert len(consumer.assignment()) == 2
    assert [(await it.wait(consumer.getone())).body for _ in range(3)] == [b"0", b"1", b"2"]
    await it.stop(consumer)


async def test_a_broker_that_comes_back_brings_no_old_messages_to_a_new_group() -> None:
    it = Group({"orders": 1})
    other = it.cluster.broker("broker-b", {})
    consumer = await it.consumer(start_from=StartFrom.LAST)
    other.topics["orders"] = Topic([[]])
    now_ms = it.clock.now_ms()
    other.topics["orders"].queues[0] = [
        Stored(b"old", {}, store_timestamp=now_ms - 3_600_000),
        Stored(b"new", {}, store_timestamp=now_ms + 1000),
    ]
    await it.pass_time(40)
    assert (await it.wait(consumer.getone())).body == b"new"
    await it.stop(consumer)


async def test_a_queue_that_is_taken_away_is_given_up() -> None:
    it = Group({"orders": 2})
    consumer = await it.consumer()
    del it.broker.topics["orders"].queues[1]
    await it.pass_time(40)
    assert [queue.queue_id for queue in consumer.assignment()] == [0]
    await it.stop(consumer)


async def test_members_divide_by_the_strategy_that_they_name() -> None:
    it = Group({"orders": 5})
    members = [await it.consumer(assignment="circle") for _ in range(2)]
    await it.pass_time(1)
    shares = [[queue.queue_id for queue in member.assignment()] for member in members]
    assert shares == [[0, 2, 4], [1, 3]]
    await it.wait(members[0].stop())
    await it.stop(members[1])


async def test_a_strategy_that_fails_leaves_the_queues_as_they_are() -> None:
    it = Group({"orders": 2})
    broken = False

    def strategy(queues: Any, ids: Any, client_id: str) -> Any:
        if broken:
            raise RuntimeError("on purpose")
        return queues

    consumer = await it.consumer(assignment=strategy)
    broken = True
    it.broker.notify(GROUP)
    await it.pass_time(5)
    assert len(consumer.assignment()) == 2
    await it.stop(consumer)


async def test_a_topic_that_is_left_and_joined_again_at_once_is_pulled_on() -> None:
    it = Group({"orders": 1, "bills": 1})
    consumer = await it.consumer("orders", "bills")
    await it.wait(consumer.unsubscribe("orders"))
    await it.wait(consumer.subscribe("orders"))
    await it.pass_time(2)
    it.broker.add("orders", 0, b"0")
    assert (await it.wait(consumer.getone(timeout=10))).body == b"0"
    await it.stop(consumer)


async def test_a_callback_may_subscribe_and_seek() -> None:
    it = Group({"orders": 1, "bills": 1})
    it.broker.add("orders", 0, *[b"%d" % n for n in range(5)])

    async def assigned(queues: list[MessageQueue]) -> None:
        if queues[0].topic == "orders":
            consumer.seek(queues[0], 4)
            await consumer.subscribe("bills")

    consumer = Consumer("orders", group=GROUP, start_from=StartFrom.FIRST, on_assigned=assigned)
    consumer._client = it.client()
    await it.wait(consumer.start())
    await it.pass_time(2)
    assert {queue.topic for queue in consumer.assignment()} == {"orders", "bills"}
    assert (await it.wait(consumer.getone())).body == b"4"
    await it.stop(consumer)
