"""Timed messages of real clients, against a real broker and its clock."""

from __future__ import annotations

import time
from pathlib import Path

from skylarkmq.protocol.batch import encode_batch
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.message import Message, MessageExt
from skylarkmq.protocol.message_id import decode_offset_message_id
from skylarkmq.protocol.record import decode_messages
from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient, pull_fields, send_fields

SEND, SEND_V1, BATCH, PULL, SEND_BACK = 310, 10, 320, 11, 36
WHEEL = "rmq_sys_wheel_timer"
SUSPEND = 6  # a pull's flags: its own subscription, and wait for a message


async def delivered(client: RawClient, offset: int = 0, codec: int = 0) -> list[MessageExt]:
    """What a held pull of queue 1 gets once something is delivered."""
    fields = pull_fields("T", 1, offset, sysFlag=str(SUSPEND), suspendTimeoutMillis="15000")
    answer = await client.call(PULL, fields, serialize_type=codec)
    assert answer.code == 0, answer.remark
    return decode_messages(answer.body)


async def test_a_timed_message_wakes_a_held_pull(tmp_path: Path) -> None:
    async with live_broker(tmp_path, timer_precision_ms=10) as broker:
        client = await RawClient.open(broker.listen_address)
        await client.call(SEND, send_fields("T", 0), b"makes the topic")
        text = "TIMER_DELAY_MS\x01100\x02TAGS\x01a"
        old_fields = {
            "producerGroup": "pg", "topic": "T", "defaultTopic": "TBW102", "queueId": "1",
            "defaultTopicQueueNums": "4", "sysFlag": "0", "bornTimestamp": "1", "flag": "0",
            "properties": text,
        }  # fmt: skip
        cases = [(SEND, send_fields("T", 1, text), int(codec)) for codec in SerializeType]
        for offset, (code, fields, codec) in enumerate([*cases, (SEND_V1, old_fields, 0)]):
            sent_ms = int(time.time() * 1000)
            answer = await client.call(code, fields, b"later", serialize_type=codec)
            assert answer.code == 0, answer.remark
            assert answer.ext_fields["queueId"] == "1"
            assert answer.ext_fields["queueOffset"] == str(offset)  # of the timer topic
            _, place = decode_offset_message_id(answer.ext_fields["msgId"])
            parked = broker.parts.store.look_message(place)
            assert parked is not None and parked.topic == WHEEL
            (message,) = await delivered(client, offset, codec)
            assert (message.body, message.topic, message.queue_id) == (b"later", "T", 1)
            properties = message.properties
            assert int(properties["TIMER_OUT_MS"]) >= sent_ms + 100
            assert int(properties["TIMER_DEQUEUE_MS"]) >= int(properties["TIMER_OUT_MS"])
            assert properties["TIMER_OUT_MS"].endswith("0")
            assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("T", "1")
        await client.close()


async def test_a_restart_in_between_delivers_it_once(tmp_path: Path) -> None:
    async with live_broker(tmp_path, timer_precision_ms=10) as broker:
        client = await RawClient.open(broker.listen_address)
        await client.call(SEND, send_fields("T", 1, "TIMER_DELAY_MS\x01400"), b"later")
        await client.close()
    async with live_broker(tmp_path, timer_precision_ms=10) as broker:
        client = await RawClient.open(broker.listen_address)
        (message,) = await delivered(client)
        assert message.body == b"later"
        assert broker.parts.timer.waiting_count == 0
        await client.close()
    async with live_broker(tmp_path) as broker:
        assert broker.parts.timer.deliveries.delivered_count == 0
        assert broker.parts.store.max_offset("T", 1) == 1


async def test_what_is_not_to_be_had_is_refused(tmp_path: Path) -> None:
    async with live_broker(tmp_path, timer_max_delay_sec=100) as broker:
        client = await RawClient.open(broker.listen_address)
        for text in ("TIMER_DELAY_SEC\x01101", "TIMER_DELAY_MS\x01x", "TIMER_DELIVER_MS\x01"
                     "99999999999999"):  # fmt: skip
            answer = await client.call(SEND, send_fields("T", 0, text), b"x")
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL, text
            assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"
        body = encode_batch([Message("T", b"a", properties={"TIMER_DELAY_SEC": "1"})])
        answer = await client.call(BATCH, send_fields("T", m="true"), body)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        answer = await client.call(SEND, send_fields(WHEEL, 0, "TIMER_OUT_MS\x011"), b"x")
        assert answer.code == ResponseCode.NO_PERMISSION
        assert WHEEL not in broker.parts.topics.table
        pulled = await client.call(PULL, pull_fields(WHEEL, 0))
        assert pulled.code == ResponseCode.PULL_NOT_FOUND, "for those who look what waits"
        assert broker.parts.store.max_offset(WHEEL, 0) == 0
        # Its place is in the answer of its send: nobody may have it before its time by that.
        sent = await client.call(SEND, send_fields("T", 0, "TIMER_DELAY_SEC\x0150"), b"later")
        _, place = decode_offset_message_id(sent.ext_fields["msgId"])
        fields = {"offset": str(place), "group": "g", "delayLevel": "0", "originMsgId": "x"}
        answer = await client.call(SEND_BACK, fields)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        await client.close()


async def test_switched_off_timers_are_refused_and_others_go_on(tmp_path: Path) -> None:
    async with live_broker(tmp_path, timer_wheel_enable=False) as broker:
        client = await RawClient.open(broker.listen_address)
        answer = await client.call(SEND, send_fields("T", 0, "TIMER_DELAY_SEC\x011"), b"x")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "timerWheelEnable" in (answer.remark or "")
        assert (await client.call(SEND, send_fields("T", 0), b"x")).code == 0
        await client.close()
        assert not (tmp_path / "skylarkmq" / "timer").exists()
