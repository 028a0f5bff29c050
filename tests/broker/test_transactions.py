"""Transactions over the wire, on every write mode of a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.message_id import decode_offset_message_id
from skylarkmq.protocol.properties import encode_properties
from skylarkmq.protocol.record import decode_message, decode_messages
from tests.support.heartbeats import heartbeat
from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient, pull_fields, send_fields

TOPIC, GROUP = "orders", "producers"
COMMIT, ROLLBACK = "8", "12"
WRITE_MODES: list[dict[str, Any]] = [
    {},
    {"flush_disk_type": "SYNC_FLUSH"},
    {"transient_store_pool_enable": True, "transient_store_pool_size": 2},
]


@pytest.fixture(params=WRITE_MODES, ids=["async", "sync", "pool"])
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RawClient]:
    async with live_broker(
        tmp_path, transaction_check_interval=200, transaction_time_out=50, **request.param
    ) as broker:
        client = await RawClient.open(broker.listen_address)
        body = heartbeat("192.0.2.1@1", producers=[GROUP])
        await client.call(RequestCode.HEART_BEAT, {}, body)
        yield client
        await client.close()


async def half(client: RawClient, body: bytes, **more: str) -> RemotingCommand:
    """The answer to the first half of a transaction."""
    properties = encode_properties({"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": "K", **more})
    fields = send_fields(TOPIC, 1, properties, f="4", a=GROUP)
    answer = await client.call(RequestCode.SEND_MESSAGE_V2, fields, body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


def verdict(answer: RemotingCommand, decision: str) -> dict[str, str]:
    """The header of an end, as the Java client fills it from the answer to a half message."""
    _, offset = decode_offset_message_id(answer.ext_fields["msgId"])
    return {
        "producerGroup": GROUP,
        "tranStateTableOffset": answer.ext_fields["queueOffset"],
        "commitLogOffset": str(offset),
        "commitOrRollback": decision,
        "fromTransactionCheck": "false",
        "msgId": "K",
        "transactionId": "K",
    }


async def next_body(client: RawClient, offset: int) -> bytes:
    """The body of the message at an offset of the queue, waiting for it."""
    fields = pull_fields(TOPIC, 1, offset, sysFlag="6")  # held until there is one
    while True:
        answer = await client.call(RequestCode.PULL_MESSAGE, fields)
        if answer.code == ResponseCode.SUCCESS:
            return decode_messages(answer.body)[0].body


async def test_commit_rollback_and_a_question(client: RawClient) -> None:
    first = await half(client, b"committed")
    assert first.ext_fields["queueId"] == "1"
    assert first.ext_fields["queueOffset"] == "0"
    # At once, one-way, as the Java client does: in mode pool nothing is readable yet.
    client.send(RequestCode.END_TRANSACTION, verdict(first, COMMIT), oneway=True)
    assert await next_body(client, 0) == b"committed"
    second = await half(client, b"rolled back", WAIT="false")
    answer = await client.call(RequestCode.END_TRANSACTION, verdict(second, ROLLBACK))
    assert answer.code == ResponseCode.SUCCESS
    again = await client.call(RequestCode.END_TRANSACTION, verdict(second, COMMIT))
    assert again.code == ResponseCode.SYSTEM_ERROR
    await half(client, b"asked about")
    asked = b""
    while asked != b"asked about":  # on a slow machine the other two may be asked about as well
        push = await client.push()
        assert (push.code, push.is_oneway) == (RequestCode.CHECK_TRANSACTION_STATE, True)
        message = decode_message(push.body)
        assert (message.topic, message.queue_id) == (TOPIC, 1)
        asked = message.body
    fields = {
        **push.ext_fields,
        "producerGroup": GROUP,
        "commitOrRollback": COMMIT,
        "fromTransactionCheck": "true",
    }
    client.send(RequestCode.END_TRANSACTION, fields, oneway=True)
    assert await next_body(client, 1) == b"asked about"


async def test_transactions_can_be_switched_off(tmp_path: Path) -> None:
    async with live_broker(tmp_path, reject_transaction_message=True) as broker:
        client = await RawClient.open(broker.listen_address)
        properties = encode_properties({"TRAN_MSG": "true", "PGROUP": GROUP})
        fields = send_fields(TOPIC, 1, properties, f="4")
        answer = await client.call(RequestCode.SEND_MESSAGE_V2, fields, b"x")
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "rejectTransactionMessage" in (answer.remark or "")
        await client.close()


async def test_an_open_transaction_survives_a_restart(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        client = await RawClient.open(broker.listen_address)
        kept, ended = await half(client, b"kept"), await half(client, b"ended")
        await client.call(RequestCode.END_TRANSACTION, verdict(ended, COMMIT))
        await client.close()
    async with live_broker(tmp_path) as broker:
        client = await RawClient.open(broker.listen_address)
        answers = [
            await client.call(RequestCode.END_TRANSACTION, verdict(answer, COMMIT))
            for answer in (ended, kept)
        ]
        assert [answer.code for answer in answers] == [
            ResponseCode.SYSTEM_ERROR,
            ResponseCode.SUCCESS,
        ]
        assert await next_body(client, 1) == b"kept"
        await client.close()
