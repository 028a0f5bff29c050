"""The outbox: many messages, one wake-up; room and errors as if each call had waited."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from skylarkmq.client import Message, RocketMQError, TooManyInFlight
from skylarkmq.client.errors import IllegalState
from skylarkmq.client.producer.in_flight import InFlight
from skylarkmq.client.producer.outgoing import check_properties, properties_text
from skylarkmq.client.producer.sender import ORDINARY_TEXT_MAX
from skylarkmq.client.sync import Client, PeekReader, Producer
from skylarkmq.client.sync.outbox import Outbox

LIMIT_S = 20
BODY = b"1234"


class Rig:
    """An outbox on a loop that the test turns, before a producer that only counts."""

    def __init__(self, count_max: int = 3, size_max: int = 1000) -> None:
        self.loop = asyncio.get_running_loop()
        self.in_flight = InFlight(count_max, size_max)
        self.wake_ups: list[Callable[[], object]] = []
        self.ordinary = True
        self.error: Exception | None = None
        self.sent: list[tuple[Message, float | None]] = []
        self.inner: list[asyncio.Future[Any]] = []
        pipeline = SimpleNamespace(in_flight=self.in_flight)
        self.producer: Any = SimpleNamespace(
            _sender=SimpleNamespace(pipeline=pipeline, is_ordinary=lambda _: self.ordinary),
            _start_admitted=self.start,
        )
        portal: Any = SimpleNamespace(post=self.post)
        self.outbox = Outbox(portal, self.producer)

    def post(self, callback: Callable[[], object]) -> asyncio.AbstractEventLoop:
        self.wake_ups.append(callback)
        return self.loop

    def start(self, message: Message, timeout: float | None) -> asyncio.Future[Any]:
        if self.error is not None:
            raise self.error
        self.in_flight.enter(len(message.body))
        self.sent.append((message, timeout))
        self.inner.append(self.loop.create_future())
        return self.inner[-1]

    def put(self, body: bytes = BODY) -> concurrent.futures.Future[Any] | None:
        return self.outbox.put(Message("T", body), None)

    def work_off(self) -> None:
        wake_ups, self.wake_ups = self.wake_ups, []
        for wake_up in wake_ups:
            wake_up()


async def test_a_burst_wakes_the_loop_once_and_keeps_its_order() -> None:
    rig = Rig()
    messages = [Message("T", b"%d" % number) for number in range(3)]
    futures = [rig.outbox.put(message, float(at)) for at, message in enumerate(messages)]
    assert len(rig.wake_ups) == 1
    rig.work_off()
    assert rig.sent == [(message, float(at)) for at, message in enumerate(messages)]
    for number, inner in enumerate(rig.inner):
        inner.set_result(number)
        rig.in_flight.leave(1, 0)
    await asyncio.sleep(0)
    assert [future.result(0) for future in futures if future is not None] == [0, 1, 2]
    assert rig.put() is not None
    assert len(rig.wake_ups) == 1


async def test_what_waits_for_the_loop_takes_room() -> None:
    rig = Rig(count_max=3)
    assert [rig.put() is None for _ in range(4)] == [False, False, False, True]
    rig.work_off()
    assert rig.in_flight.count == 3
    assert rig.put() is None
    rig.in_flight.leave(len(BODY), 0)
    assert rig.put() is not None
    assert rig.put() is None


async def test_its_bytes_take_room_too() -> None:
    rig = Rig(count_max=100, size_max=10)
    assert [rig.put(b"12345") is None for _ in range(3)] == [False, False, True]
    rig.work_off()
    assert rig.put(b"1") is None
    assert rig.put(b"") is not None


async def test_room_is_held_while_a_burst_is_worked_off() -> None:
    rig = Rig(count_max=3)
    for _ in range(3):
        rig.put()
    during: list[object] = []
    start = rig.start

    def starting(message: Message, timeout: float | None) -> asyncio.Future[Any]:
        during.append(rig.put())
        return start(message, timeout)

    rig.producer._start_admitted = starting
    rig.work_off()
    assert during == [None] * 3


async def test_what_the_loop_must_look_at_first_is_left_to_it() -> None:
    rig = Rig()
    rig.ordinary = False
    assert rig.put() is None
    rig.ordinary = True
    rig.producer._sender = None
    assert rig.put() is None
    assert rig.wake_ups == []


async def test_an_error_of_the_start_is_the_futures() -> None:
    rig = Rig()
    rig.error = IllegalState("the producer has stopped")
    future = rig.put()
    assert future is not None
    rig.work_off()
    with pytest.raises(IllegalState, match="the producer has stopped"):
        future.result(0)
    rig.error = None
    assert [rig.put() is None for _ in range(4)] == [False, False, False, True]


@pytest.mark.parametrize("begun", [True, False])
async def test_a_future_that_is_cancelled_cancels_the_send(begun: bool) -> None:
    rig = Rig()
    future = rig.put()
    assert future is not None
    if begun:
        rig.work_off()
    assert future.cancel()
    if not begun:
        rig.work_off()
    await asyncio.sleep(0)
    assert rig.inner[0].cancelled()
    await asyncio.sleep(0)
    done, _ = concurrent.futures.wait([future], 0)
    assert done == {future}


async def test_a_call_that_is_interrupted_leaves_nothing_behind() -> None:
    rig = Rig(count_max=1)
    outbox: Any = rig.outbox
    burst = outbox._burst

    class Interrupted(list[Any]):
        def append(self, item: object) -> None:
            raise KeyboardInterrupt

    outbox._burst = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        rig.put(b"x" * 1000)
    outbox._burst = burst
    rig.work_off()
    assert rig.put(b"x" * 1000) is not None
    assert len(rig.wake_ups) == 1


def test_an_ordinary_message_fits_whatever_its_texts_are() -> None:
    size = ORDINARY_TEXT_MAX // 3
    message = Message("T", b"", tags="\u20ac" * size, keys="\u20ac" * size, sharding_key="k" * size)
    check_properties(properties_text(message, "0" * 56, {"INSTANCE_ID": "n" * 255}))


def test_errors_are_raised_at_once(namesrv: str, topic: str) -> None:
    with Producer(namesrv_addr=namesrv, max_message_size=10, max_in_flight_bytes=100) as producer:
        producer.send_nowait(Message(topic, b"x")).result(LIMIT_S)
        for bad, kind in (
            (Message("no topic!", b"x"), ValueError),
            (Message(topic, b"x" * 11), RocketMQError),
            (Message(topic, b"x", properties={"a": "b" * 40_000}), RocketMQError),
            (b"x", TypeError),
        ):
            with pytest.raises(kind):
                producer.send_nowait(bad)  # type: ignore[arg-type]
    with pytest.raises(IllegalState):
        producer.send_nowait(Message(topic, b"x"))


def test_the_limit_holds_while_the_loop_is_busy(namesrv: str, topic: str) -> None:
    with Client(namesrv) as client, Producer(client=client, max_in_flight=5) as producer:
        producer.send_nowait(Message(topic, b"x")).result(LIMIT_S)
        is_busy, goes_on = threading.Event(), threading.Event()

        def busy() -> None:
            is_busy.set()
            goes_on.wait(LIMIT_S)

        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            held = threads.submit(client._portal.call, busy)
            assert is_busy.wait(LIMIT_S)
            futures = [producer.send_nowait(Message(topic, b"x")) for _ in range(5)]
            sixth = threads.submit(producer.send_nowait, Message(topic, b"x"))
            assert not any(future.done() for future in (*futures, sixth))
            goes_on.set()
            held.result(LIMIT_S)
            with suppress(TooManyInFlight):  # unless answers were there before it
                sixth.result(LIMIT_S).result(LIMIT_S)
        assert len({future.result(LIMIT_S).msg_id for future in futures}) == 5


def test_messages_of_one_thread_keep_their_order(namesrv: str, topic: str) -> None:
    with Producer(namesrv_addr=namesrv) as producer:
        queue = producer.send(Message(topic, b"0", sharding_key="k")).queue
        for number in range(1, 60):  # by the outbox, and in between by the road that waits
            body = b"%d" % number
            if number % 7:
                producer.send_nowait(Message(topic, body, sharding_key="k"))
            else:
                producer.send_nowait(Message(topic, body, properties={"p": "v"}), queue=queue)
        producer.flush()
    with PeekReader(topic, namesrv_addr=namesrv, stop="now") as reader:
        assert [int(message.body) for message in reader] == list(range(60))
