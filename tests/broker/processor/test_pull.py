"""Pulls that are held, and the offset that rides on a pull."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.store.results import GetMessageResult
from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient, pull_fields, send_fields

SEND, PULL, QUERY_OFFSET = 310, 11, 14
SUSPEND, COMMIT, SUBSCRIPTION = 2, 1, 4


@pytest.mark.parametrize("flush_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_held_pull_that_fails_costs_no_sender_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush_type: str
) -> None:
    async with live_broker(tmp_path, flush_disk_type=flush_type) as broker:
        sender = await RawClient.open(broker.listen_address)
        reader = await RawClient.open(broker.listen_address)
        await sender.call(SEND, send_fields("T"), b"0")
        held = reader.send(PULL, pull_fields("T", offset=1, sysFlag=str(SUSPEND | SUBSCRIPTION)))
        other = reader.send(30, {"topic": "T", "queueId": "0"})
        await reader.answer(other)
        assert broker.state.holding.count == 1

        def unreadable(*_: object) -> GetMessageResult:
            raise OSError("the disk can not read this")

        monkeypatch.setattr(broker.state.store, "get_message", unreadable)
        answer = await sender.call(SEND, send_fields("T"), b"1")
        assert (answer.code, answer.ext_fields["queueOffset"]) == (0, "1")
        pulled = await reader.answer(held)
        assert pulled.code == ResponseCode.SYSTEM_ERROR
        await sender.close()
        await reader.close()


async def test_a_pull_commits_no_negative_offset(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        client = await RawClient.open(broker.listen_address)
        await client.call(SEND, send_fields("T"), b"0")
        flags = str(COMMIT | SUBSCRIPTION)
        for offset in ("1", "-1"):
            await client.call(PULL, pull_fields("T", sysFlag=flags, commitOffset=offset))
        where = {"consumerGroup": "cg", "topic": "T", "queueId": "0"}
        answer = await client.call(QUERY_OFFSET, where)
        assert answer.ext_fields["offset"] == "1"
        await client.close()
