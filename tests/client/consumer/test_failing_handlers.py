"""What becomes of messages whose handler fails: the delays before their tries, the reason that a
dead letter carries, and bodies that cannot be opened."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from skylarkmq.client import Consumer, PeekReader, ReceivedMessage, UnreadableBody
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.flags import MessageSysFlag
from tests.client.consumer.support import GROUP, Group
from tests.client.consumer.test_orderly import Ordered
from tests.support.fake_queues import Stored

SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK


async def fail(message: ReceivedMessage) -> None:
    raise LookupError(f"no customer for {message.body.decode()}")


async def runs(it: Group, consumer: Consumer, handler: Any, seconds: float) -> None:
    running = asyncio.create_task(consumer.run(handler))
    await it.pass_time(seconds)
    await it.stop(consumer)
    await running


async def test_the_delays_of_a_consumer_s_own_choice_are_used_in_their_order() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"it")
    delays = [1, timedelta(seconds=6), 60]
    consumer = await it.consumer(retry_delays=delays, max_reconsume=4)
    await runs(it, consumer, fail, 5)
    levels = [each.ext_fields["delayLevel"] for each in it.broker.of_code(SEND_BACK)]
    assert levels == ["1", "3", "5", "5"], "rounded up to a level; the last one for all that follow"


async def test_a_consumer_that_waits_by_itself_keeps_its_delays_as_they_are() -> None:
    it = Ordered({"orders": 1})
    it.broker.add("orders", 0, b"it")
    consumer = await it.consumer(retry_delays=[0.5, 4])
    seen: list[float] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(it.clock.monotonic())
        await fail(message)

    await runs(it, consumer, handle, 9)
    assert [after - before for before, after in pairwise(seen)] == [0.5, 4, 4]


@pytest.mark.parametrize("delays", [[-1], [7201], [1, timedelta(hours=3)]])
def test_a_delay_that_no_level_has_is_refused(delays: list[Any]) -> None:
    with pytest.raises(ValueError, match="retry_delays are 0 to 7200 s each"):
        Consumer("orders", namesrv_addr="ns:9876", group=GROUP, retry_delays=delays)


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_dead_letter_carries_the_handler_s_last_error(
    orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    it = Ordered({"orders": 1}) if orderly else Group({"orders": 1})
    it.broker.add("orders", 0, b"it")
    consumer = await it.consumer(max_reconsume=1)
    await runs(it, consumer, fail, 5)
    (stored,) = it.broker.topics[f"%DLQ%{GROUP}"].queues[0]
    assert stored.properties["DEAD_LETTER_REASON"] == "LookupError: no customer for it"
    (told,) = [line for line in caplog.messages if "dead letter" in line]
    assert told.endswith(f"try 2> is a dead letter of {GROUP}: no retry is left")


def with_a_bad_body(it: Group) -> None:
    """The second of three is flagged as compressed, and is not."""
    it.broker.add("orders", 0, b"first")
    bad = Stored(b"plain", {"UNIQ_KEY": "BAD"}, sys_flag=MessageSysFlag.COMPRESSED_FLAG)
    it.broker.topics["orders"].queues[0].append(bad)
    it.broker.add("orders", 0, b"third")


async def test_a_body_that_cannot_be_opened_goes_the_way_of_a_failure() -> None:
    it = Group({"orders": 1})
    with_a_bad_body(it)
    consumer = await it.consumer(max_reconsume=2)
    bodies: list[bytes] = []
    await runs(it, consumer, lambda message: bodies.append(message.body), 5)
    assert bodies == [b"first", b"third"]
    assert len(it.broker.of_code(SEND_BACK)) == 2
    dead = it.broker.topics[f"%DLQ%{GROUP}"].queues[0][-1]
    assert dead.properties["DEAD_LETTER_REASON"].startswith("UnreadableBody: the body of BAD")
    assert (dead.body, dead.sys_flag) == (b"plain", MessageSysFlag.COMPRESSED_FLAG)
    assert it.offset(0) == 3


@pytest.mark.parametrize("by_hand", [False, True])
async def test_it_is_an_error_of_the_message_and_not_of_the_stream(by_hand: bool) -> None:
    it = Group({"orders": 1})
    with_a_bad_body(it)
    if by_hand:
        reader: Any = PeekReader("orders", stop="now")
        reader._client = it.client()
        await it.wait(reader.start())
        messages = [await it.wait(anext(reader)) for _ in range(3)]
    else:
        reader = await it.consumer()
        messages = [await it.wait(reader.getone()) for _ in range(3)]
    assert [messages[0].body, messages[2].body] == [b"first", b"third"]
    with pytest.raises(UnreadableBody, match=r"the producer at 192\.0\.2\.20:10911 sent it so"):
        messages[1].body  # noqa: B018
    await it.wait(reader.stop())
