"""ReceivedMessage: what a handler may do with it, once."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from skylarkmq.client import Consumer, ReceivedMessage
from skylarkmq.client.retry_delay import LEVELS_S, RetryDelay, retry_delay
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.client.consumer.support import GROUP, Group


async def one(it: Group, **settings: Any) -> tuple[Consumer, ReceivedMessage]:
    """A consumer with one message in hand."""
    it.broker.add("orders", 0, b"it")
    consumer = await it.consumer(ack="manual", **settings)
    return consumer, await it.wait(consumer.getone())


@pytest.mark.parametrize(
    ("level", "delay", "expected"),
    [
        (None, None, RetryDelay(0)),
        (0, None, RetryDelay(0)),
        (18, None, RetryDelay(18)),
        (None, timedelta(seconds=10), RetryDelay(3, 10.0)),
        (None, timedelta(seconds=11), RetryDelay(4, 11.0)),
        (None, timedelta(0), RetryDelay(1, 0.0)),
        (None, timedelta(hours=2), RetryDelay(18, 7200.0)),
    ],
)
def test_a_delay_is_a_level_never_a_shorter_one(
    level: int | None, delay: timedelta | None, expected: RetryDelay
) -> None:
    assert retry_delay(level, delay) == expected


@pytest.mark.parametrize(
    ("level", "delay"),
    [(19, None), (-1, None), (3, timedelta(1)), (None, timedelta(hours=3)), (None, -timedelta(1))],
)
def test_other_delays_are_refused(level: int | None, delay: timedelta | None) -> None:
    with pytest.raises(ValueError, match="delay"):
        retry_delay(level, delay)


def test_the_growing_delay_is_the_broker_s() -> None:
    assert [RetryDelay().seconds(tries) for tries in (0, 1, 2, 15, 99)] == [
        10, 30, 60, 7200, 7200,
    ]  # fmt: skip
    assert RetryDelay().seconds(5, 1.0) == 1.0
    assert RetryDelay(1).seconds(5, 1.0) == 1.0 == LEVELS_S[0]
    assert RetryDelay(2, 1.5).seconds(0) == 1.5


async def test_nack_with_a_time_names_the_level_that_is_long_enough() -> None:
    it = Group({"orders": 1})
    consumer, message = await one(it)
    await it.wait(message.nack(delay=timedelta(seconds=31)))
    (back,) = it.broker.of_code(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert back.ext_fields["delayLevel"] == "5"
    await it.wait(message.nack())
    await message.ack()
    assert len(it.broker.of_code(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1, "it has had its say"
    await it.stop(consumer)
    assert it.offset(0) == 1


async def test_a_dead_letter_carries_its_reason() -> None:
    it = Group({"orders": 1})
    consumer, message = await one(it)
    await it.wait(message.dead_letter("no such\x01customer\x02" + "x" * 2000))
    await it.stop(consumer)
    assert not it.broker.of_code(RequestCode.CONSUMER_SEND_MSG_BACK)
    (copy,) = it.broker.of_code(RequestCode.SEND_MESSAGE_V2)
    fields = copy.ext_fields
    assert (fields["b"], fields["j"], fields["l"]) == (f"%RETRY%{GROUP}", "1", "0")
    (stored,) = it.broker.topics[f"%DLQ%{GROUP}"].queues[0]
    reason = stored.properties["DEAD_LETTER_REASON"]
    assert reason.startswith("no such customer xxx")
    assert len(reason) == 1000
    assert "DELAY" not in stored.properties
    assert it.offset(0) == 1


async def test_a_reason_is_given_up_before_the_dead_letter_is() -> None:
    it = Group({"orders": 1})
    consumer, message = await one(it)
    it.broker.refuse(RequestCode.SEND_MESSAGE_V2, *[ResponseCode.MESSAGE_ILLEGAL] * 9)
    await it.wait(message.dead_letter("bad"))
    assert it.broker.bodies(f"%DLQ%{GROUP}") == [b"it"]
    await it.stop(consumer)


async def test_process_lets_the_error_through_and_never_loses_the_message() -> None:
    it = Group({"orders": 1})
    consumer, message = await one(it)
    it.broker.refuse(RequestCode.CONSUMER_SEND_MSG_BACK, ResponseCode.SYSTEM_ERROR)
    it.broker.refuse(RequestCode.SEND_MESSAGE_V2, *[ResponseCode.MESSAGE_ILLEGAL] * 9)

    async def fail() -> None:
        async with message.process():
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await it.wait(fail())
    again = await it.wait(consumer.getone())
    assert (again.body, again.reconsume_times) == (b"it", 1), "tried again here"
    async with again.process():
        pass
    await it.stop(consumer)
    assert it.offset(0) == 1


async def test_a_slow_handler_is_named_once_and_keeps_its_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"slow", b"quick")
    consumer = await it.consumer(consume_timeout=100)
    calls: list[bytes] = []
    gate = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        calls.append(message.body)
        if message.body == b"slow":
            await gate.wait()

    running = asyncio.create_task(consumer.run(handle))
    with caplog.at_level(logging.WARNING):
        await it.pass_time(99)
        assert "consume_timeout" not in caplog.text
        await it.pass_time(12)
        assert caplog.text.count("consume_timeout") == 1
        await it.pass_time(2000)
    assert caplog.text.count("consume_timeout") == 1
    assert calls == [b"slow", b"quick"], "not delivered again"
    assert not it.broker.of_code(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert it.offset(0) in (None, 0)
    gate.set()
    await it.stop(consumer)
    await running
    assert it.offset(0) == 2


async def test_extend_puts_the_line_off(caplog: pytest.LogCaptureFixture) -> None:
    it = Group({"orders": 1})
    consumer, message = await one(it, consume_timeout=100)
    await it.pass_time(90)
    await message.extend(300)
    with caplog.at_level(logging.WARNING):
        await it.pass_time(295)
        assert "consume_timeout" not in caplog.text
        await it.pass_time(20)
    assert "the first at offset 0" in caplog.text
    with pytest.raises(ValueError, match="seconds"):
        await message.extend(0)
    await it.stop(consumer)


async def test_ack_none_is_done_when_it_is_handed_out() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"a", b"b", b"c")
    consumer = await it.consumer(ack="none")
    assert (await it.wait(consumer.getone())).body == b"a"

    async def fail(message: ReceivedMessage) -> None:
        raise RuntimeError("on purpose")

    running = asyncio.create_task(consumer.run(fail))
    await it.pass_time(30)
    await it.stop(consumer)
    await running
    assert it.offset(0) == 3
    assert not it.broker.of_code(RequestCode.CONSUMER_SEND_MSG_BACK)


async def test_run_with_manual_acks_leaves_them_to_the_handler() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"kept", b"acked", b"failed")
    consumer = await it.consumer(ack="manual")
    held: list[ReceivedMessage] = []

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"kept":
            held.append(message)
        elif message.body == b"acked":
            await message.ack()
        elif message.reconsume_times == 0:
            raise RuntimeError("on purpose")
        else:
            await message.ack()

    running = asyncio.create_task(consumer.run(handle))
    await it.pass_time(20)
    assert it.offset(0) in (None, 0)
    assert len(it.broker.of_code(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1
    await held[0].ack()
    await it.pass_time(6)
    assert it.offset(0) == 3
    await it.stop(consumer)
    await running
