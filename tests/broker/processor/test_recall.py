"""Timed messages that clients of the remoting protocol take back."""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylarkmq.broker.controller import BrokerController
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.message_id import decode_offset_message_id
from skylarkmq.protocol.record import decode_messages
from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient, pull_fields, send_fields

SEND, PULL, RECALL = 310, 11, 370
SUSPEND = 6  # a pull's flags: its own subscription, and wait for a message
ID = "7F00000100002A139C0D1B5A7C3E0000"
HOUR = "TIMER_DELAY_SEC\x013600"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerController]:
    async with live_broker(tmp_path, timer_precision_ms=10) as controller:
        yield controller


@pytest.fixture
async def client(broker: BrokerController) -> AsyncIterator[RawClient]:
    peer = await RawClient.open(broker.listen_address)
    await peer.call(SEND, send_fields("T", 0), b"makes the topic")
    yield peer
    await peer.close()


def recall_fields(handle: str, topic: str = "T") -> dict[str, str]:
    return {"producerGroup": "pg", "topic": topic, "recallHandle": handle, "bname": "broker-a"}


def encoded(*words: object) -> str:
    return base64.urlsafe_b64encode(" ".join(map(str, words)).encode()).decode()


@pytest.mark.parametrize("codec", list(SerializeType))
async def test_a_message_that_was_taken_back_never_comes(
    broker: BrokerController, client: RawClient, codec: int
) -> None:
    due_ms = int(time.time() * 1000) + 400
    handles: list[str] = []
    for name in ("taken back", "other"):
        properties = f"TIMER_DELIVER_MS\x01{due_ms}\x02UNIQ_KEY\x01{name}"
        sent = await client.call(
            SEND, send_fields("T", 1, properties), name.encode(), serialize_type=codec
        )
        assert sent.code == 0, sent.remark
        assert sent.ext_fields["MSG_REGION"] == "DefaultRegion"
        handles.append(sent.ext_fields["recallHandle"])
    answer = await client.call(RECALL, recall_fields(handles[0]), serialize_type=codec)
    assert (answer.code, answer.ext_fields["msgId"]) == (0, "taken back"), answer.remark
    fields = pull_fields("T", 1, 0, sysFlag=str(SUSPEND), suspendTimeoutMillis="15000")
    found = decode_messages((await client.call(PULL, fields)).body)
    assert [message.body for message in found] == [b"other"]
    assert broker.parts.timer.messages.cancelled_count == 1


@pytest.mark.parametrize("more", [{}, {"skylarkmq.codec": "msgpack.1"}])
async def test_a_handle_is_rocketmqs(
    broker: BrokerController, client: RawClient, more: dict[str, str]
) -> None:
    sent = await client.call(
        SEND, send_fields("T", 1, f"{HOUR}\x02UNIQ_KEY\x01{ID}", **more), b"later"
    )
    _, place = decode_offset_message_id(sent.ext_fields["msgId"])
    parked = broker.parts.store.look_message(place)
    assert parked is not None
    words = base64.urlsafe_b64decode(sent.ext_fields["recallHandle"]).decode().split(" ")
    assert words == ["v1", "T", "broker-a", parked.properties["TIMER_OUT_MS"], ID]
    assert sent.ext_fields.get("skylarkmq.codec") == more.get("skylarkmq.codec")


@pytest.mark.parametrize(
    "properties",
    [
        f"UNIQ_KEY\x01{ID}",
        f"DELAY\x013\x02UNIQ_KEY\x01{ID}",
        f"TIMER_DELAY_SEC\x010\x02UNIQ_KEY\x01{ID}",
        f"{HOUR}\x02TIMER_DEL_UNIQKEY\x01T+{ID}\x02UNIQ_KEY\x01{ID}",
        HOUR,
    ],
)
async def test_what_cannot_be_taken_back_has_no_handle(client: RawClient, properties: str) -> None:
    sent = await client.call(SEND, send_fields("T", 1, properties), b"x")
    assert sent.code == 0
    assert "recallHandle" not in sent.ext_fields


async def test_a_retry_that_waits_has_no_handle(client: RawClient) -> None:
    sent = await client.call(SEND, send_fields("%RETRY%g", 0, f"{HOUR}\x02UNIQ_KEY\x01a"), b"x")
    assert sent.code == 0
    assert "recallHandle" not in sent.ext_fields


async def test_what_is_no_handle_of_the_message_is_refused(
    broker: BrokerController, client: RawClient
) -> None:
    await client.call(SEND, send_fields("U", 0), b"makes the topic")
    later_ms, long_ago = int(time.time() * 1000) + 3_600_000, 1_600_000_000_000
    before = broker.parts.store.commit_log.wrote_offset
    for handle, why in (
        ("nonsense", "none that a broker has made"),
        ("", "none that a broker has made"),
        (encoded("v2", "T", "broker-a", later_ms, ID), "none that a broker has made"),
        (encoded("v1", "U", "broker-a", later_ms, ID), "another topic"),
        (encoded("v1", "T", "broker-b", later_ms, ID), "another broker"),
        (encoded("v1", "T", "broker-a", long_ago, ID), "cannot be recalled any more"),
        (encoded("v1", "T", "broker-a", later_ms * 2, ID), "timerMaxDelaySec"),
    ):
        answer = await client.call(RECALL, recall_fields(handle))
        assert answer.code == ResponseCode.ILLEGAL_OPERATION == 604, handle
        assert why in (answer.remark or "")
    answer = await client.call(RECALL, recall_fields(encoded("v1", "X", "b", 1, ID), "X"))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert broker.parts.store.commit_log.wrote_offset == before


async def test_without_timers_nothing_is_taken_back(tmp_path: Path) -> None:
    async with live_broker(tmp_path, timer_wheel_enable=False) as broker:
        client = await RawClient.open(broker.listen_address)
        await client.call(SEND, send_fields("T", 0), b"makes the topic")
        handle = encoded("v1", "T", "broker-a", int(time.time() * 1000) + 60_000, ID)
        answer = await client.call(RECALL, recall_fields(handle))
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert "timerWheelEnable" in (answer.remark or "")
        await client.close()
