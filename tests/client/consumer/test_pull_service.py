"""Pulling: prefetch limits, moved offsets, refusals, no busy loop at a peer that never holds."""

from __future__ import annotations

import asyncio
import zlib

import pytest

from skylarkmq.client import MessageQueue
from skylarkmq.client.errors import ProtocolError
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.client.consumer.support import GROUP, Group
from tests.support.fake_cluster import Stored
from tests.support.manual_clock import settle

PULL = RequestCode.PULL_MESSAGE
QUEUE = MessageQueue("orders", "broker-a", 0)


def pulled(it: Group) -> list[dict[str, str]]:
    return [r.ext_fields for r in it.broker.of_code(PULL) if r.ext_fields["topic"] == "orders"]


async def test_prefetch_is_bounded_by_count() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, *[b"%d" % n for n in range(1000)])
    consumer = await it.consumer(prefetch=100, ack="manual")
    await it.pass_time(60)
    offsets = [int(fields["queueOffset"]) for fields in pulled(it)]
    # The retry topic's queue has an equal share, so 50 for this one.
    assert max(offsets) + 32 <= 64
    taken = [await it.wait(consumer.getone()) for _ in range(40)]
    await it.pass_time(1)
    assert max(int(fields["queueOffset"]) for fields in pulled(it)) == max(offsets), (
        "handed out ones count until they are done"
    )
    for message in taken:
        await message.ack()
    await it.pass_time(1)
    assert max(int(fields["queueOffset"]) for fields in pulled(it)) > max(offsets)
    await it.stop(consumer)


async def test_prefetch_is_bounded_by_bytes() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, *[bytes(10_000)] * 100)
    consumer = await it.consumer(prefetch_bytes=100_000, batch_size=4, ack="manual")
    await it.pass_time(60)
    held = consumer._running.rebalance.assigned[QUEUE]
    assert 50_000 <= held.held_bytes < 50_000 + 4 * 10_200
    await it.stop(consumer)


async def test_the_span_is_bounded() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, *[b"%d" % n for n in range(500)])
    consumer = await it.consumer(max_span=100, ack="manual")
    lowest = await it.wait(consumer.getone())
    for _ in range(98):
        await (await it.wait(consumer.getone())).ack()
    await it.pass_time(5)
    held = consumer._running.rebalance.assigned[QUEUE]
    assert held.commit_offset == 0
    assert held.span <= 128
    await lowest.ack()
    await it.pass_time(1)
    assert held.commit_offset == 99
    assert held.pull_offset > 128
    await it.stop(consumer)


async def test_an_offset_below_the_queue_jumps_forward_and_keeps_what_is_held() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, *[b"%d" % n for n in range(100)])
    consumer = await it.consumer(batch_size=10, prefetch=20, ack="manual")
    first = await it.wait(consumer.getone())
    it.broker.topics["orders"].min_offset[0] = 50
    await first.ack()
    seen = [first.body]
    while seen[-1] != b"55":
        message = await it.wait(consumer.getone())
        await message.ack()
        seen.append(message.body)
    assert seen[:10] == [b"%d" % n for n in range(10)]
    assert seen[-6:] == [b"%d" % n for n in range(50, 56)]
    await it.wait(consumer.commit())
    assert it.offset(0) == 56
    await it.stop(consumer)


async def test_an_offset_beyond_the_queue_starts_it_anew() -> None:
    it = Group({"orders": 1})
    it.broker.offsets[GROUP, "orders", 0] = 500
    it.broker.add("orders", 0, b"0", b"1")
    consumer = await it.consumer()
    await it.pass_time(1)
    it.broker.add("orders", 0, b"2")
    assert (await it.wait(consumer.getone())).body == b"2"
    await it.wait(consumer.commit())
    assert it.offset(0) == 3
    await it.stop(consumer)


async def test_a_missing_heartbeat_is_made_good() -> None:
    it = Group({"orders": 1})
    consumer = await it.consumer()
    before = len(it.broker.heartbeats)
    it.broker.clients.clear()  # the broker forgot the group
    it.broker.release_pulls()
    it.broker.add("orders", 0, b"0")
    assert (await it.wait(consumer.getone(timeout=5))).body == b"0"
    assert len(it.broker.heartbeats) > before
    await it.stop(consumer)


@pytest.mark.parametrize(
    ("code", "delay_s"),
    [
        (ResponseCode.SYSTEM_ERROR, 3.0),
        (ResponseCode.FLOW_CONTROL, 0.02),
        (ResponseCode.SYSTEM_BUSY, 1.5),
    ],
)
async def test_refusals_are_followed_by_their_pause(code: int, delay_s: float) -> None:
    it = Group({"orders": 1})
    consumer = await it.consumer()
    await it.pass_time(1)
    before = len(pulled(it))
    it.broker.refuse(PULL, code, code)
    it.broker.add("orders", 0, b"0")  # ends the held pull; the next ones are refused
    await it.pass_time(0)
    assert len(pulled(it)) == before + 1
    if code != ResponseCode.FLOW_CONTROL:
        await it.pass_time(delay_s / 4)
        assert len(pulled(it)) == before + 1
    await it.pass_time(delay_s)
    assert len(pulled(it)) > before + 1
    await it.stop(consumer)


async def test_a_peer_that_never_holds_is_not_asked_in_a_busy_loop() -> None:
    it = Group({"orders": 1})
    consumer = await it.consumer()
    original = it.broker._pull

    def never_hold(request, stream, header, *, may_hold):  # type: ignore[no-untyped-def]
        return original(request, stream, header, may_hold=False)

    it.broker._pull = never_hold  # type: ignore[method-assign]
    it.broker.release_pulls()
    before = len(pulled(it))
    await settle(500)
    assert len(pulled(it)) - before <= 2, "time stands still, so does the puller"
    await it.pass_time(1)
    assert 10 <= len(pulled(it)) - before <= 25
    it.broker.add("orders", 0, b"0")
    assert (await it.wait(consumer.getone())).body == b"0"
    await it.stop(consumer)


async def test_a_body_that_cannot_be_read_is_asked_for_again_later() -> None:
    it = Group({"orders": 1})
    consumer = await it.consumer()
    await it.pass_time(0)
    held = next(each for each in it.broker.held if each.header.topic == "orders")
    fields = {
        "suggestWhichBrokerId": "0", "nextBeginOffset": "5", "minOffset": "0", "maxOffset": "5",
    }  # fmt: skip
    held.stream.say(held.request.reply(0, ext_fields=fields, body=b"no record"))
    it.broker.held.remove(held)
    await it.pass_time(1)
    assert consumer.position(QUEUE) == 0, "nothing is skipped"
    it.broker.add("orders", 0, b"0")
    assert (await it.wait(consumer.getone(timeout=5))).body == b"0"
    await it.stop(consumer)


async def test_compressed_bodies_open_under_a_cap() -> None:
    it = Group({"orders": 1})
    queue = it.broker.topics["orders"].queues[0]
    for body in (b"fine" * 100, bytes(17 * 1024 * 1024)):
        queue.append(Stored(zlib.compress(body), {}, sys_flag=0x301))
    consumer = await it.consumer()
    fine = await it.wait(consumer.getone())
    assert fine.body == b"fine" * 100
    bomb = await it.wait(consumer.getone())
    with pytest.raises(ProtocolError):
        _ = bomb.body
    await it.stop(consumer)


async def test_a_wish_beyond_rocketmq_s_batch_names_its_bytes() -> None:
    it = Group({"orders": 1})
    consumer = await it.consumer(batch_size=200)
    await it.pass_time(0)
    assert pulled(it)[0]["maxMsgBytes"] == str(4 * 1024 * 1024)
    await it.stop(consumer)


async def test_a_pull_on_a_dead_connection_is_made_again() -> None:
    it = Group({"orders": 1})
    consumer = await it.consumer()
    waiting = asyncio.create_task(consumer.getone())
    await it.pass_time(1)
    it.broker.silent = True
    await it.pass_time(70)  # the heartbeats find the silence and close the connection
    it.broker.silent = False
    it.broker.add("orders", 0, b"0")
    message = await it.wait(waiting)
    assert message.body == b"0"
    await it.stop(consumer)


async def test_large_answers_are_asked_for_as_far_as_there_is_room() -> None:
    for prefetch_bytes, echo, expected in (
        (2 * 300 * 1024, True, str(300 * 1024)),
        (2 * 100 * 1024, True, None),
        (100 * 1024 * 1024, True, str(4 * 1024 * 1024)),
        (100 * 1024 * 1024, False, None),
    ):
        it = Group({"orders": 1}, codec="auto")
        it.broker.echo_codec = echo
        consumer = await it.consumer(prefetch_bytes=prefetch_bytes)
        await it.pass_time(1)
        assert pulled(it)[0].get("maxMsgBytes") == expected
        await it.stop(consumer)
