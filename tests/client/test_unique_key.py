"""A message's id of the application's own, and topics that store a message of one id once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylarkmq.client import (
    Admin,
    DeduplicationWindow,
    Message,
    MessageQueue,
    NotSupported,
    Producer,
    SendResult,
)
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.errors import LocalProtocolError
from skylarkmq.remoting.connection import Peer
from skylarkmq.testing import RunningBroker, run_broker

WINDOW = DeduplicationWindow(600, 1000)
KEYS = ["order-7", "Ärger, mit Komma", "a" * 3000]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with (
        run_broker(store=tmp_path) as broker,
        Admin(namesrv_addr=broker.namesrv_addr) as admin,
    ):
        await admin.create_topic("orders", deduplication=WINDOW)
        yield broker


@pytest.fixture
async def producer(broker: RunningBroker) -> AsyncIterator[Producer]:
    async with Producer(namesrv_addr=broker.namesrv_addr) as producer:
        yield producer


def place(result: SendResult) -> tuple[MessageQueue, int, str]:
    return result.queue, result.queue_offset, result.offset_msg_id


@pytest.mark.parametrize("key", KEYS)
async def test_a_message_sent_twice_is_stored_once(producer: Producer, key: str) -> None:
    first = await producer.send(Message("orders", b"x", unique_key=key))
    again = await producer.send(Message("orders", b"y", unique_key=key))
    assert first.msg_id == again.msg_id == key
    assert place(again) == place(first)


async def test_every_way_of_sending_takes_the_key(
    broker: RunningBroker, producer: Producer
) -> None:
    keys = [f"{key} {number}" for number in range(3) for key in KEYS]
    messages = [Message("orders", b"%d" % n, unique_key=key) for n, key in enumerate(keys)]
    first = await producer.send_batch(messages[:3])
    assert [result.msg_id for result in first] == keys[:3]
    many = await producer.send_many(messages[:6])
    assert [place(result) for result in many[:3] if isinstance(result, SendResult)] != []
    for message in messages:
        await producer.send_nowait(message)
        await producer.send_oneway(message)
    last = [await producer.send(message) for message in messages]
    assert [result.offset_msg_id for result in last[:3]] == [one.offset_msg_id for one in first]
    found = await broker.messages("orders")
    assert sorted(message.msg_id for message in found) == sorted(keys)


async def test_of_a_batch_that_was_stored_in_part_every_id_is_true(producer: Producer) -> None:
    known = await producer.send(Message("orders", b"b", unique_key="b"))
    batch = [Message("orders", each.encode(), unique_key=each) for each in "abc"]
    a, b, c = await producer.send_batch(batch)
    assert b.offset_msg_id == known.offset_msg_id
    assert [each.queue_offset for each in (a, b, c)] == [-1, -1, -1]
    for key, result in (("a", a), ("c", c)):
        again = await producer.send(Message("orders", b"", unique_key=key))
        assert again.offset_msg_id == result.offset_msg_id


async def test_a_retry_after_a_lost_answer_leaves_one_copy(
    broker: RunningBroker, producer: Producer
) -> None:
    lost = broker.faults.drop_reply(RequestCode.SEND_MESSAGE)
    queues = await producer.queues("orders")
    async with Producer(namesrv_addr=broker.namesrv_addr, try_timeout=0.2) as other:
        result = await other.send(Message("orders", b"once"), queue=queues[0])
    assert (lost.hits, result.unknown_tries, result.queue) == (1, 1, queues[0])
    assert [message.msg_id for message in await broker.messages("orders")] == [result.msg_id]


@pytest.mark.parametrize("key", ["", "a\x01b", "a\x02b", "\ud800"])
def test_what_cannot_be_an_id_is_refused(key: str) -> None:
    with pytest.raises(LocalProtocolError, match=r"unique_key|UTF-8"):
        Message("orders", b"", unique_key=key)


# Administration


async def test_a_window_is_given_changed_and_taken_away(
    broker: RunningBroker, producer: Producer
) -> None:
    async with Admin(namesrv_addr=broker.namesrv_addr) as admin:
        (name,) = await admin.deduplication_windows("orders")
        assert await admin.deduplication_windows("orders") == {name: WINDOW}
        await admin.update_topic("orders", queues=2)
        assert await admin.deduplication_windows("orders") == {name: WINDOW}
        smaller = DeduplicationWindow(5)
        await admin.update_topic("orders", deduplication=smaller)
        assert await admin.deduplication_windows("orders") == {name: smaller}
        await admin.update_topic("orders", deduplication=False)
        assert await admin.deduplication_windows("orders") == {name: None}
        for _ in range(2):
            await producer.send(Message("orders", b"x", unique_key="K"))
        assert len(await broker.messages("orders")) == 2


async def test_nothing_is_asked_of_a_broker_without_windows(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Admin(namesrv_addr=broker.namesrv_addr) as admin:
        monkeypatch.setattr(admin._services, "peer", _apache)
        with pytest.raises(NotSupported, match=r"RocketMQ 4\.9\.4, which has no deduplication"):
            await admin.create_topic("other", deduplication=WINDOW)
        with pytest.raises(NotSupported):
            await admin.update_topic("orders", deduplication=False)
        assert "other" not in await admin.list_topics()


async def _apache(_: str) -> Peer:
    return Peer(version=401, ours=False)
