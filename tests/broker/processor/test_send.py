"""Sends over the wire: retries and dead letters, delays, both paths, batches; what is counted."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylarkmq.broker.base.stats import SIZE_BOUNDS
from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.net.addresses import bind
from skylarkmq.protocol.batch import BatchItem, encode_batch
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.message import Message, MessageExt
from skylarkmq.protocol.message_id import decode_offset_message_id
from skylarkmq.protocol.record import decode_messages
from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient, pull_fields, send_fields

SEND, SEND_V1, BATCH, PULL = 310, 10, 320, 11


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerController]:
    async with live_broker(tmp_path) as controller:
        yield controller


async def read(client: RawClient, topic: str, queue_id: int = 0) -> list[MessageExt]:
    return decode_messages((await client.call(PULL, pull_fields(topic, queue_id))).body)


@pytest.mark.parametrize(("times", "topic"), [(2, "%RETRY%g"), (3, "%DLQ%g")])
async def test_a_retry_that_was_tried_often_enough_becomes_a_dead_letter(
    client: RawClient, times: int, topic: str
) -> None:
    properties = "RETRY_TOPIC\x01T\x02DELAY\x010\x02TAGS\x01A"
    fields = send_fields("%RETRY%g", 0, properties, j=str(times), l="3")
    answer = await client.call(SEND, fields, b"again")
    assert answer.code == 0, answer.remark
    (message,) = await read(client, topic)
    assert (message.body, message.reconsume_times) == (b"again", times)
    assert message.properties["RETRY_TOPIC"] == "T"
    other = {"%RETRY%g": "%DLQ%g", "%DLQ%g": "%RETRY%g"}[topic]
    assert await read(client, other) == []


async def test_a_delayed_send_is_parked_and_its_answer_names_the_parking_place(
    broker: BrokerController, client: RawClient
) -> None:
    answer = await client.call(SEND, send_fields("T", 1, "DELAY\x013\x02TAGS\x01A"), b"later")
    assert answer.code == 0
    assert await read(client, "T", 1) == []
    _, offset = decode_offset_message_id(answer.ext_fields["msgId"])
    parked = broker.parts.store.look_message(offset)
    assert parked is not None
    assert (parked.topic, parked.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
    assert (parked.properties["REAL_TOPIC"], parked.properties["REAL_QID"]) == ("T", "1")
    (unit,) = broker.parts.store.queue_units("SCHEDULE_TOPIC_XXXX", 2, 0, 1)
    assert unit.tags_code == parked.store_timestamp + 10_000


PATHS = [
    (SEND, SerializeType.JSON, {}),
    (SEND, SerializeType.MSGPACK, {}),
    (SEND, SerializeType.ROCKETMQ, {}),
    (SEND, SerializeType.JSON, {"unknown": "field"}),
]


@pytest.mark.parametrize(("code", "kind", "more"), PATHS)
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"e": "4"}, ResponseCode.SYSTEM_ERROR),
        ({"e": "-1"}, ResponseCode.SUCCESS),
        ({"f": "8"}, ResponseCode.SUCCESS),
        ({"i": "p\x01" + "v" * 32_750}, ResponseCode.MESSAGE_ILLEGAL),
        ({"i": "p\x01v\0v"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"f": "4"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"f": "1"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"i": "TRAN_MSG\x01true"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"i": "DELAY\x01x"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"i": "DELAY\x010"}, ResponseCode.SUCCESS),
        ({"i": "CLUSTER\x01mine"}, ResponseCode.SUCCESS),
        ({"i": "a\x01b\x02POP_CK\x011 2 3"}, ResponseCode.SUCCESS),
        ({"m": "true"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION),
    ],
)
async def test_every_path_says_the_same(
    client: RawClient,
    code: int,
    kind: int,
    more: dict[str, str],
    changes: dict[str, str],
    expected: int,
) -> None:
    await client.call(SEND, send_fields("T"), b"makes the topic")
    fields = {**send_fields("T"), **more, **changes}
    answer = await client.call(code, fields, b"x", serialize_type=kind)
    assert (answer.code, answer.serialize_type) == (expected, kind), answer.remark
    assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"
    if expected == ResponseCode.SUCCESS:
        queue_id = int(answer.ext_fields["queueId"])
        stored = (await read(client, "T", queue_id))[-1]
        assert stored.properties["CLUSTER"] == "DefaultCluster"
        assert "POP_CK" not in stored.properties


async def test_one_read_with_all_kinds_of_sends_keeps_their_order(client: RawClient) -> None:
    await client.call(SEND, send_fields("T"), b"first")
    long = {
        "producerGroup": "pg", "topic": "T", "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0",
        "bornTimestamp": "1700000000000", "flag": "0", "properties": "",
    }  # fmt: skip
    two = encode_batch([Message("T", b"b0"), Message("T", b"b1")])
    opaques = [
        client.send(SEND, send_fields("T"), b"plain"),
        client.send(SEND_V1, long, b"long"),
        client.send(SEND, send_fields("bad topic"), b"refused"),
        client.send(BATCH, send_fields("T", m="true"), two),
        client.send(SEND, send_fields("T", x="y"), b"full"),
        client.send(SEND, send_fields("T"), b"one way", oneway=True),
        client.send(SEND, send_fields("N"), b"new topic"),
        client.send(SEND, send_fields("T", 0, "WAIT\x01false"), b"last"),
    ]
    answers = [await client.answer(each) for each in (*opaques[:5], *opaques[6:])]
    offsets = [answer.ext_fields.get("queueOffset") for answer in answers]
    assert offsets == ["1", "2", None, "3", "5", "0", "7"]
    assert [message.body for message in await read(client, "T")] == [
        b"first", b"plain", b"long", b"b0", b"b1", b"full", b"one way", b"last"
    ]  # fmt: skip


async def test_a_one_way_send_that_is_refused_is_silent(client: RawClient) -> None:
    for fields in (send_fields("bad topic"), send_fields("T", 99), send_fields("T", e="x")):
        client.send(SEND, fields, b"x", oneway=True)
    await client.call(9999)
    assert len(client.frames) == 1


async def test_every_message_of_a_batch_has_its_own_id(
    broker: BrokerController, client: RawClient
) -> None:
    await client.call(SEND, send_fields("T"), b"first")
    messages = [Message("T", b"%d" % number, tags="X", keys="k") for number in range(10)]
    answer = await client.call(BATCH, send_fields("T", m="true"), encode_batch(messages))
    ids = answer.ext_fields["msgId"].split(",")
    places = [decode_offset_message_id(each)[1] for each in ids]
    found = [broker.parts.store.look_message(place) for place in places]
    assert [message.body for message in found if message is not None] == [
        b"%d" % number for number in range(10)
    ]
    assert answer.ext_fields["queueOffset"] == "1"


async def test_sends_are_refused_before_the_configured_time(tmp_path: Path) -> None:
    async with live_broker(tmp_path, start_accept_send_request_time_stamp=2**62) as broker:
        client = await RawClient.open(broker.listen_address)
        answer = await client.call(SEND, send_fields("T"), b"x")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "does not take messages yet" in (answer.remark or "")
        await client.close()


async def test_the_size_of_a_message_counts_to_the_byte(client: RawClient) -> None:
    await client.call(SEND, send_fields("T"), b"x")
    for more in ({}, {"unknown": "field"}):
        assert (await client.call(SEND, send_fields("T", **more), bytes(4_194_304))).code == 0
        answer = await client.call(SEND, send_fields("T", **more), bytes(4_194_305))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL


async def test_a_delayed_message_counts_under_the_topic_it_was_sent_to(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        client = await RawClient.open(broker.listen_address)
        await client.call(SEND, send_fields("T"), b"0123")
        for topic in ("T", "T", "U"):
            answer = await client.call(SEND, send_fields(topic, 0, "DELAY\x0118"), b"01234567")
            assert answer.code == 0, answer.remark
        counted = {
            key: (traffic.count, traffic.sizes.count)
            for key, traffic in broker.parts.stats.topics_in.items()
        }
        assert counted == {
            ("T", "normal"): (1, 1),
            ("T", "delay"): (2, 2),
            ("U", "delay"): (1, 1),
        }
        await client.close()


@pytest.mark.parametrize("kind", [SerializeType.JSON, SerializeType.ROCKETMQ])
async def test_sizes_of_records_are_on_the_page(
    broker: BrokerController, client: RawClient, kind: int
) -> None:
    """Of sends on every path, of which many come at once."""
    changes = [{}, {"unknown": "field"}, {"i": "DELAY\x0118"}] * 9
    sent = [
        client.send(SEND, {**send_fields("T"), **more}, bytes(300 * place), serialize_type=kind)
        for place, more in enumerate(changes)
    ]
    answers = [await client.answer(opaque) for opaque in sent]
    items = [BatchItem(0, bytes(size), b"") for size in (0, 2000, 4000)]
    batch = await client.call(BATCH, send_fields("T", m="true"), encode_batch(items))
    assert {answer.code for answer in [*answers, batch]} == {0}
    stored = []
    for name in ",".join(answer.ext_fields["msgId"] for answer in [*answers, batch]).split(","):
        message = broker.parts.store.look_message(decode_offset_message_id(name)[1])
        assert message is not None
        stored.append(message.store_size)
    sizes = [*stored[: len(sent)], sum(stored[len(sent) :]) // len(items)]
    assert broker.metrics_address is not None
    url = "http://{}:{}/metrics".format(*broker.metrics_address)
    with await asyncio.to_thread(urllib.request.urlopen, url) as page:
        lines = page.read().decode().splitlines()

    def shown(start: str, mark: str = "") -> float:
        found = [line for line in lines if line.startswith(f"rocketmq_{start}{{") and mark in line]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    assert shown("messages_in_total") == len(stored)
    assert shown("message_size_count") == len(sizes) == len(stored) - len(items) + 1
    assert shown("throughput_in_total") == sum(stored)
    assert shown("message_size_sum") == sum(sizes)
    for bound in SIZE_BOUNDS:
        below = len([size for size in sizes if size <= bound])
        assert shown("message_size_bucket", f'le="{float(bound)}"') == below


def has_ipv6() -> bool:
    try:
        bind("::1", 0).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
async def test_over_ipv6_records_and_ids_carry_long_hosts(tmp_path: Path) -> None:
    for count in (2, 4):  # the second broker goes on with the same store
        async with live_broker(tmp_path, bind_address="::1") as broker:
            client = await RawClient.open(broker.listen_address)
            for _ in range(2):
                answer = await client.call(SEND, send_fields("T"), b"x")
                host, place = decode_offset_message_id(answer.ext_fields["msgId"])
                assert (host.ip, len(answer.ext_fields["msgId"])) == ("::1", 56)
                assert broker.parts.store.look_message(place) is not None
            for offset in range(count):
                pulled = await client.call(PULL, pull_fields("T", 0, offset))
                message = decode_messages(pulled.body)[0]
                assert (message.queue_offset, message.born_host.ip) == (offset, "::1")
            await client.close()
