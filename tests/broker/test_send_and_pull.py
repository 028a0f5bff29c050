"""Sending and pulling over the wire, against a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylarkmq.broker.controller import BrokerController
from skylarkmq.protocol.batch import encode_batch
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.message import Message
from skylarkmq.protocol.message_id import decode_offset_message_id
from skylarkmq.protocol.record import decode_messages
from tests.support.live_broker import live_broker
from tests.support.patience import until
from tests.support.raw_client import RawClient, pull_fields, send_fields

pytestmark = pytest.mark.timing

SEND, SEND_V1, BATCH = 310, 10, 320
PULL = 11
CODECS = [SerializeType.JSON, SerializeType.ROCKETMQ, SerializeType.MSGPACK]


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BrokerController]:
    async with live_broker(tmp_path, flush_disk_type=request.param) as controller:
        yield controller


@pytest.mark.parametrize("codec", CODECS)
async def test_a_message_comes_back_as_it_was_sent(client: RawClient, codec: int) -> None:
    properties = "KEYS\x01k1\x02UNIQ_KEY\x01AB\x02WAIT\x01true\x02TAGS\x01TagA"
    for number in range(3):  # the first one goes the slow path: its topic is new
        answer = await client.call(
            SEND, send_fields("T", 1, properties), b"hello%d" % number, serialize_type=codec
        )
        assert answer.code == 0, answer.remark
        assert answer.serialize_type == codec
        assert answer.ext_fields["queueOffset"] == str(number)
        assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"
        assert answer.ext_fields["TRACE_ON"] == "true"
        host, offset = decode_offset_message_id(answer.ext_fields["msgId"])
        assert host.ip == "127.0.0.1"
    pulled = await client.call(PULL, pull_fields("T", 1), serialize_type=codec)
    assert (pulled.code, pulled.remark) == (0, "FOUND")
    assert pulled.ext_fields["nextBeginOffset"] == pulled.ext_fields["maxOffset"] == "3"
    messages = decode_messages(pulled.body)
    assert [message.body for message in messages] == [b"hello0", b"hello1", b"hello2"]
    assert messages[2].physical_offset == offset
    for message in messages:
        assert message.properties == {
            "KEYS": "k1",
            "UNIQ_KEY": "AB",
            "TAGS": "TagA",
            "CLUSTER": "DefaultCluster",
        }


async def test_both_roads_store_the_same_record(
    broker: BrokerController, client: RawClient
) -> None:
    properties = "UNIQ_KEY\x01AB\x02WAIT\x01true\x02TAGS\x01TagA"
    fields = send_fields("T", 0, properties)
    await client.call(SEND, fields, b"body")  # makes the topic
    long = {
        "producerGroup": "pg", "topic": "T", "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0",
        "bornTimestamp": "1700000000000", "flag": "0", "properties": properties,
    }  # fmt: skip
    plain = await client.call(SEND, fields, b"body")
    full = await client.call(SEND_V1, long, b"body")
    records = [
        broker.parts.store.look_message(decode_offset_message_id(answer.ext_fields["msgId"])[1])
        for answer in (plain, full)
    ]
    first, second = records
    assert first is not None
    assert second is not None
    for name in ("topic", "queue_id", "flag", "sys_flag", "born_timestamp", "born_host"):
        assert getattr(first, name) == getattr(second, name)
    assert first.properties == second.properties
    assert (first.body, first.body_crc) == (second.body, second.body_crc)
    assert first.store_size == second.store_size


async def test_a_read_right_after_the_answer_finds_the_message(client: RawClient) -> None:
    for number in range(50):
        opaque = client.send(SEND, send_fields("T"), b"%d" % number)
        assert (await client.answer(opaque)).code == 0
        pulled = await client.call(PULL, pull_fields("T", 0, number))
        assert [message.body for message in decode_messages(pulled.body)] == [b"%d" % number]


async def test_pipelined_sends_keep_their_order(client: RawClient) -> None:
    await client.call(SEND, send_fields("T"), b"first")
    opaques = [client.send(SEND, send_fields("T"), b"%d" % number) for number in range(500)]
    offsets = [int((await client.answer(each)).ext_fields["queueOffset"]) for each in opaques]
    assert offsets == list(range(1, 501))


async def test_a_batch_is_stored_in_order_with_one_id_each(client: RawClient) -> None:
    messages = [Message("T", b"m%d" % number, tags="X") for number in range(4)]
    fields = send_fields("T", 2, "WAIT\x01true", m="true")
    answer = await client.call(BATCH, fields, encode_batch(messages))
    assert answer.code == 0, answer.remark
    assert len(answer.ext_fields["msgId"].split(",")) == 4
    assert answer.ext_fields["queueOffset"] == "0"
    pulled = await client.call(PULL, pull_fields("T", 2))
    stored = decode_messages(pulled.body)
    assert [message.body for message in stored] == [b"m0", b"m1", b"m2", b"m3"]
    assert all(message.properties["CLUSTER"] == "DefaultCluster" for message in stored)


async def test_a_one_way_send_is_stored_and_not_answered(client: RawClient) -> None:
    client.send(SEND, send_fields("T"), b"quiet", oneway=True)
    answer = await client.call(SEND, send_fields("T"), b"loud")
    assert answer.ext_fields["queueOffset"] == "1"
    assert len(client.frames) == 1


@pytest.mark.parametrize(
    ("fields", "body", "code", "word"),
    [
        (send_fields("bad topic"), b"x", ResponseCode.SYSTEM_ERROR, "topic"),
        (send_fields("T" * 128), b"x", ResponseCode.SYSTEM_ERROR, "topic"),
        (send_fields("../etc"), b"x", ResponseCode.SYSTEM_ERROR, "topic"),
        (send_fields("SCHEDULE_TOPIC_XXXX"), b"x", ResponseCode.NO_PERMISSION, "forbidden"),
        (send_fields("T", c="nothing"), b"x", ResponseCode.TOPIC_NOT_EXIST, "not exist"),
        (send_fields("TBW102", 99), b"x", ResponseCode.SYSTEM_ERROR, "illegal"),
        (send_fields("TBW102"), bytes(4194305), ResponseCode.MESSAGE_ILLEGAL, "4194304"),
        (send_fields("TBW102", 0, "a\x01" + "v" * 32767), b"x", 13, "32767"),
        (
            send_fields("TBW102", 0, "TRAN_MSG\x01true"),
            b"x",
            ResponseCode.MESSAGE_ILLEGAL,
            "PGROUP",
        ),
        (send_fields("TBW102", 0, "DELAY\x01soon"), b"x", ResponseCode.MESSAGE_ILLEGAL, "DELAY"),
        (send_fields("TBW102", e="one"), b"x", ResponseCode.SYSTEM_ERROR, "integer"),
        (send_fields("TBW102", m="true"), b"x", ResponseCode.MESSAGE_ILLEGAL, "batch"),
        (send_fields("%RETRY%no/group"), b"x", ResponseCode.SYSTEM_ERROR, "topic"),
    ],
)
async def test_refusals_carry_rocketmqs_code_and_a_useful_remark(
    client: RawClient, fields: dict[str, str], body: bytes, code: int, word: str
) -> None:
    answer = await client.call(SEND, fields, body)
    assert answer.code == code, answer.remark
    assert word in (answer.remark or "")
    assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"
    assert (await client.call(SEND, send_fields("TBW102"), b"fine")).code == 0


async def test_an_unknown_code_is_answered_with_three(client: RawClient) -> None:
    answer = await client.call(9999)
    assert (answer.code, answer.remark) == (3, " request type 9999 not supported")


async def test_a_held_pull_is_woken_by_the_message_that_it_wants(
    broker: BrokerController, client: RawClient
) -> None:
    await client.call(SEND, send_fields("T", 0, "TAGS\x01B"), b"old")
    hold = pull_fields("T", 0, 1, sysFlag="6", subscription="A")
    opaque = client.send(PULL, hold)
    other = await RawClient.open(broker.listen_address)
    await other.call(SEND, send_fields("T", 0, "TAGS\x01B"), b"unwanted")
    assert broker.parts.holding.count == 1
    await other.call(SEND, send_fields("T", 0, "TAGS\x01A"), b"wanted")
    answer = await client.answer(opaque)
    assert [message.body for message in decode_messages(answer.body)] == [b"wanted"]
    assert answer.ext_fields["nextBeginOffset"] == "3"
    assert broker.parts.holding.count == 0
    await other.close()


async def test_a_held_pull_goes_with_its_connection(
    broker: BrokerController, client: RawClient
) -> None:
    await client.call(SEND, send_fields("T"), b"x")
    other = await RawClient.open(broker.listen_address)
    other.send(PULL, pull_fields("T", 0, 1, sysFlag="6"))
    await other.call(9999)
    assert broker.parts.holding.count == 1
    await other.close()
    await until(lambda: broker.parts.holding.count == 0)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"queueOffset": "5"}, ResponseCode.PULL_OFFSET_MOVED),
        ({"queueOffset": "-1"}, ResponseCode.PULL_OFFSET_MOVED),
        ({"queueOffset": "2"}, ResponseCode.PULL_NOT_FOUND),
        ({"subscription": "nobody"}, ResponseCode.PULL_RETRY_IMMEDIATELY),
        ({"queueId": "3"}, ResponseCode.PULL_NOT_FOUND),
        ({"queueId": "3", "queueOffset": "9"}, ResponseCode.PULL_OFFSET_MOVED),
        ({"queueId": "99"}, ResponseCode.SYSTEM_ERROR),
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"expressionType": "SQL92"}, ResponseCode.SYSTEM_ERROR),
        ({"sysFlag": "0"}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
        ({"consumerGroup": "no group!"}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_codes_of_pulls_that_find_nothing(
    client: RawClient, more: dict[str, str], code: int
) -> None:
    for _ in range(2):
        await client.call(SEND, send_fields("T"), b"x")
    answer = await client.call(PULL, {**pull_fields("T"), **more})
    assert answer.code == code, answer.remark
    if code in (19, 20, 21):
        assert answer.ext_fields.keys() >= {
            "suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset"
        }  # fmt: skip


async def test_361_means_the_same_as_11(client: RawClient) -> None:
    await client.call(SEND, send_fields("T"), b"x")
    answer = await client.call(RequestCode.LITE_PULL_MESSAGE, pull_fields("T"))
    assert answer.code == 0


async def test_the_fast_port_serves_everything(broker: BrokerController) -> None:
    host, port = broker.listen_address
    fast = await RawClient.open((host, port - 2))
    assert (await fast.call(SEND, send_fields("T"), b"x")).code == 0
    assert (await fast.call(PULL, pull_fields("T"))).code == 0
    await fast.close()


async def test_the_codec_is_offered_once_and_echoed(broker: BrokerController) -> None:
    client = await RawClient.open(broker.listen_address)
    answer = await client.call(SEND, send_fields("T", **{"skylarkmq.codec": "msgpack.1"}), b"x")
    assert answer.ext_fields["skylarkmq.codec"] == "msgpack.1"
    again = await client.call(SEND, send_fields("T"), b"x")
    assert "skylarkmq.codec" not in again.ext_fields
    await client.close()


async def test_a_bad_frame_costs_its_connection_only(broker: BrokerController) -> None:
    good, bad = [await RawClient.open(broker.listen_address) for _ in range(2)]
    opaque = bad.send(9999)
    bad.writer.write(b"\x7f\xff\xff\xff")
    assert (await bad.answer(opaque)).code == 3, "what stood before the bad frame is served"
    await bad.closed()
    assert (await good.call(SEND, send_fields("T"), b"x")).code == 0
    assert broker.parts.stats.protocol_errors["too_large"] == 1
    await good.close()


async def test_a_restart_keeps_messages_topics_and_numbers(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as first:
        client = await RawClient.open(first.listen_address)
        for number in range(10):
            await client.call(SEND, send_fields("Kept", 3), b"%d" % number)
        await client.close()
    async with live_broker(tmp_path) as second:
        client = await RawClient.open(second.listen_address)
        pulled = await client.call(PULL, pull_fields("Kept", 3))
        assert [m.body for m in decode_messages(pulled.body)] == [b"%d" % n for n in range(10)]
        answer = await client.call(SEND, send_fields("Kept", 3), b"next")
        assert answer.ext_fields["queueOffset"] == "10"
        await client.close()
