"""Sends to a topic of type PRIORITY: the queue is that of the priority, whatever was asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylarkmq.broker.controller import BrokerController
from skylarkmq.protocol.batch import BatchItem, encode_batch
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.message import Message
from tests.broker.deduplication.rig import make_topic
from tests.support.live_broker import live_broker
from tests.support.patience import until
from tests.support.raw_client import RawClient, send_fields

SEND, BATCH = 310, 320
TOPIC, LEVELS = "urgent", 4
PRIORITY = "_SYS_MSG_PRIORITY_"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerController]:
    async with live_broker(tmp_path, timer_wheel_enable=True) as controller:
        yield controller


@pytest.fixture
async def client(broker: BrokerController) -> AsyncIterator[RawClient]:
    peer = await RawClient.open(broker.listen_address)
    for topic, kind in ((TOPIC, "PRIORITY"), ("plain", "MIXED")):
        made = await make_topic(peer, topic, attributes=f"+message.type={kind}")
        assert made.code == 0, made.remark
    yield peer
    await peer.close()


def bodies(broker: BrokerController, topic: str = TOPIC) -> list[list[bytes]]:
    """What each queue holds."""
    store = broker.parts.store
    found: list[list[bytes]] = []
    for queue_id in range(LEVELS):
        units = store.queue_units(topic, queue_id, 0, 100)
        messages = [store.look_message(unit.commit_offset) for unit in units]
        found.append([message.body for message in messages if message is not None])
    return found


@pytest.mark.parametrize("kind", list(SerializeType))
@pytest.mark.parametrize(
    ("properties", "level"),
    [
        ("", 0),
        (f"{PRIORITY}\x010", 0),
        (f"K\x01v\x02{PRIORITY}\x012\x02", 2),
        (f"{PRIORITY}\x019", 3),
        (f"{PRIORITY}\x012147483647", 3),
        (f"{PRIORITY}\x012\x02__SHARDINGKEY\x01k", 2),
    ],
)
async def test_the_priority_is_the_queue(
    broker: BrokerController,
    client: RawClient,
    kind: SerializeType,
    properties: str,
    level: int,
) -> None:
    for number, queue_id in enumerate((-1, 1, 99)):
        fields = send_fields(TOPIC, queue_id, properties)
        answer = await client.call(SEND, fields, b"x", serialize_type=kind)
        assert answer.code == 0, answer.remark
        assert (answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]) == (
            str(level),
            str(number),
        )
    counted = broker.parts.stats.topics_in
    assert counted[TOPIC, "priority"].count == 3
    assert (TOPIC, "normal") not in counted


@pytest.mark.parametrize("text", ["-1", "high", "2147483648", "1.5", "٣"])
async def test_what_is_no_priority_is_refused(client: RawClient, text: str) -> None:
    answer = await client.call(SEND, send_fields(TOPIC, 0, f"{PRIORITY}\x01{text}"), b"x")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "a priority is a number from 0 to 2147483647" in (answer.remark or "")


async def test_another_topic_refuses_a_priority_that_asks_for_its_queue(client: RawClient) -> None:
    text = f"{PRIORITY}\x012"
    answer = await client.call(SEND, send_fields("plain", -1, text), b"x")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "--message-type PRIORITY" in (answer.remark or "")
    # As RocketMQ's brokers before 5.4, for clients that know no better: it says nothing there.
    answer = await client.call(SEND, send_fields("plain", 1, text), b"x")
    assert (answer.code, answer.ext_fields["queueId"]) == (0, "1")


async def test_a_delayed_message_comes_at_its_priority(
    broker: BrokerController, client: RawClient
) -> None:
    for text in ("DELAY\x011", "TIMER_DELAY_MS\x01300"):
        answer = await client.call(SEND, send_fields(TOPIC, 0, f"{text}\x02{PRIORITY}\x017"), b"x")
        assert answer.code == 0, answer.remark
    assert bodies(broker) == [[], [], [], []]
    await until(lambda: bodies(broker) == [[], [], [], [b"x", b"x"]])


async def test_each_message_of_a_batch_has_its_own_priority(
    broker: BrokerController, client: RawClient
) -> None:
    items = [
        BatchItem.of(Message(TOPIC, body), {} if text is None else {PRIORITY: text})
        for body, text in ((b"a", "1"), (b"b", "9"), (b"c", None), (b"d", "1"))
    ]
    fields = send_fields(TOPIC, 2, "", m="true")
    answer = await client.call(BATCH, fields, encode_batch(items))
    assert answer.code == 0, answer.remark
    assert bodies(broker) == [[b"c"], [b"a", b"d"], [], [b"b"]]
    assert (answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]) == ("1", "-1")
    assert broker.parts.stats.topics_in[TOPIC, "priority"].count == 4
    wrong = [*items[:1], BatchItem.of(Message(TOPIC, b"e"), {PRIORITY: "-3"})]
    refused = await client.call(BATCH, fields, encode_batch(wrong))
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert sum(map(len, bodies(broker))) == 4, "all or nothing"


async def test_a_topic_that_changes_its_type_is_sent_to_by_its_new_one(
    broker: BrokerController, client: RawClient
) -> None:
    text = f"{PRIORITY}\x012"
    await client.call(SEND, send_fields("plain", 1, text), b"before")
    await make_topic(client, "plain", attributes="+message.type=PRIORITY")
    await client.call(SEND, send_fields("plain", 1, text), b"after")
    assert bodies(broker, "plain") == [[], [b"before"], [b"after"], []]


async def test_a_deduplication_window_goes_with_priorities(
    broker: BrokerController, client: RawClient
) -> None:
    await make_topic(client, TOPIC)  # it gets a window, and keeps its type
    items = [
        BatchItem.of(Message(TOPIC, body), {"UNIQ_KEY": key, PRIORITY: text})
        for body, key, text in ((b"a", "K1", "1"), (b"b", "K2", "3"), (b"again", "K1", "2"))
    ]
    answer = await client.call(BATCH, send_fields(TOPIC, 0, "", m="true"), encode_batch(items))
    assert answer.code == 0, answer.remark
    assert bodies(broker) == [[], [b"a"], [], [b"b"]]
    text = f"UNIQ_KEY\x01K2\x02{PRIORITY}\x010"
    answer = await client.call(SEND, send_fields(TOPIC, 0, text), b"again")
    assert (answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]) == ("3", "0")
    assert sum(map(len, bodies(broker))) == 2
