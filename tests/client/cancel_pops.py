"""Rows of the table of cancelled calls: SimpleConsumer."""

from __future__ import annotations

from typing import Any

from skylarkmq.client import PoppedMessage, ReceiptExpired, SimpleConsumer
from skylarkmq.client.instance import services_of
from tests.client.cancel_place import Place, Row
from tests.client.consumer.support import GROUP
from tests.support.cancelling import Driven

COUNT = 6


async def new(place: Place, **settings: Any) -> SimpleConsumer:
    place.broker.add("orders", 0, *(b"%d" % n for n in range(COUNT)))
    return SimpleConsumer("orders", group=GROUP, client=place.client, **settings)


async def started(place: Place) -> SimpleConsumer:
    consumer = await new(place)
    await place.run(consumer.start())
    return consumer


async def waiting(place: Place) -> SimpleConsumer:
    """There is nothing, and soon something."""
    consumer = SimpleConsumer("orders", group=GROUP, client=place.client)
    await place.run(consumer.start())
    bodies = [b"%d" % n for n in range(COUNT)]
    place.at_step(6, lambda: place.broker.add("orders", 0, *bodies))
    return consumer


async def a_message(place: Place) -> tuple[SimpleConsumer, PoppedMessage]:
    consumer = await started(place)
    (message,) = await place.run(consumer.receive(1))
    return consumer, message


async def entered(_: Place, consumer: SimpleConsumer) -> None:
    async with consumer:
        await consumer.receive()


async def ended(place: Place, consumer: SimpleConsumer, _: Driven) -> None:
    """Nothing is left in anybody's hand but what a caller has got, and another one can begin."""
    await place.run(consumer.stop())
    assert services_of(place.client).members == {}
    following = SimpleConsumer("orders", group=GROUP, client=place.client)
    await place.run(following.start())
    await place.run(following.stop())


async def receives(place: Place, consumer: SimpleConsumer, driven: Driven) -> None:
    """All messages come, those too that the cancelled call had taken."""
    had: Any = driven.result or []
    bodies: set[bytes] = {message.body for message in had}

    async def rest() -> None:
        while len(bodies) < COUNT:
            found = await consumer.receive()
            assert found
            bodies.update(message.body for message in found)

    await place.run(rest())
    assert bodies == {b"%d" % n for n in range(COUNT)}
    await ended(place, consumer, driven)


async def unblocked(place: Place, consumer: SimpleConsumer, driven: Driven) -> None:
    """The block was left, or it was never entered."""
    if place.client._services is None:
        await place.run(place.client.start())
    await ended(place, consumer, driven)
    # What the block itself received stays in its hand; nothing else does.
    if driven.reached and not place.broker.pops.deliveries:
        assert place.broker.pops.in_hand == {}


async def done(place: Place, subject: tuple[SimpleConsumer, PoppedMessage], d: Driven) -> None:
    consumer, message = subject
    try:
        await place.run(consumer.ack(message))
    except ReceiptExpired:
        assert place.broker.pops.done, "it was done, though nobody waited for the answer"
    await ended(place, consumer, d)


async def changed(place: Place, subject: tuple[SimpleConsumer, PoppedMessage], d: Driven) -> None:
    consumer, message = subject
    try:
        await place.run(consumer.ack(message))
    except ReceiptExpired:
        assert place.broker.pops.changes, "there is a new handle, and nobody waited for it"
    await ended(place, consumer, d)


def change(_: Place, subject: tuple[SimpleConsumer, PoppedMessage]) -> Any:
    consumer, message = subject
    return consumer.change_invisible_duration(message, 60)


S = "SimpleConsumer."
POPS = [
    Row(S + "start", new, lambda _, c: c.start(), unblocked),
    Row(S + "__aenter__", new, entered, unblocked),
    Row(S + "__aexit__", new, entered, unblocked),
    Row(S + "stop", started, lambda _, c: c.stop(), ended),
    Row(S + "receive", started, lambda _, c: c.receive(), receives),
    Row(S + "receive (in time)", waiting, lambda _, c: c.receive(timeout=30), receives),
    Row(S + "subscribe", started, lambda _, c: c.subscribe("rpc"), receives),
    Row(S + "unsubscribe", started, lambda _, c: c.unsubscribe("rpc"), receives),
    Row(S + "ack", a_message, lambda _, s: s[0].ack(s[1]), done),
    Row(S + "change_invisible_duration", a_message, change, changed),
    Row(S + "dead_letter", a_message, lambda _, s: s[0].dead_letter(s[1]), done),
]
