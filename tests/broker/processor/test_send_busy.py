"""Sends while the transient pool has no buffer: refused first thing, taken again later."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.record import decode_messages
from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient, pull_fields, send_fields

SEND, SEND_V1, BACK, PULL = 310, 10, 36, 11
V1_FIELDS = {
    "producerGroup": "p", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
    "queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0",
}  # fmt: skip


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_no_buffer_is_answered_busy_until_there_is_one(tmp_path: Path, flush: str) -> None:
    pool = {"transient_store_pool_enable": True, "transient_store_pool_size": 2}
    async with live_broker(tmp_path, flush_disk_type=flush, **pool) as broker:
        client = await RawClient.open(broker.listen_address)
        assert (await client.call(SEND, send_fields("T"), b"first")).code == 0
        buffers = broker.state.store.commit_log.pool
        assert buffers is not None
        taken = buffers.borrow()
        assert taken is not None and buffers.is_deficient
        for code, fields in ((SEND, send_fields("T")), (SEND_V1, V1_FIELDS), (BACK, {})):
            answer = await client.call(code, fields, b"refused")
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert (answer.remark or "").startswith("[REJECTREQUEST]")
        buffers.give_back(taken)
        assert (await client.call(SEND, send_fields("T"), b"second")).code == 0
        found: list[bytes] = []
        while len(found) < 2:  # shown with the commit; a pull that finds nothing is held till then
            answer = await client.call(PULL, pull_fields("T", 0, len(found)))
            found += [message.body for message in decode_messages(answer.body)]
        assert found == [b"first", b"second"]
        await client.close()
