"""Sends while the disk is behind: refused first thing, taken again later."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.record import decode_messages
from tests.support.failing_files import FailingFiles
from tests.support.live_broker import live_broker
from tests.support.manual_clock import ManualClock
from tests.support.raw_client import RawClient, pull_fields, send_fields

SEND, SEND_V1, BACK, PULL = 310, 10, 36, 11
BACK_FIELDS = {"offset": "0", "group": "g", "delayLevel": "0"}
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
        buffers = broker.parts.store.commit_log.pool
        assert buffers is not None
        taken = buffers.borrow()
        assert taken is not None and buffers.is_deficient
        for code, fields in ((SEND, send_fields("T")), (SEND_V1, V1_FIELDS), (BACK, BACK_FIELDS)):
            answer = await client.call(code, fields, b"refused")
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert answer.remark == (
                "[REJECTREQUEST]system busy, start flow control for a while, every buffer of the "
                "transient pool is in use; transientStorePoolSize=2"
            )
        assert broker.parts.store.stats.busy_refusals["pool_exhausted"] == 3
        buffers.give_back(taken)
        assert (await client.call(SEND, send_fields("T"), b"second")).code == 0
        found: list[bytes] = []
        while len(found) < 2:  # shown with the commit; a pull that finds nothing is held till then
            answer = await client.call(PULL, pull_fields("T", 0, len(found)))
            found += [message.body for message in decode_messages(answer.body)]
        assert found == [b"first", b"second"]
        await client.close()


async def test_an_append_under_way_for_long_refuses_sends(tmp_path: Path) -> None:
    clock, files = ManualClock(), FailingFiles()
    async with live_broker(tmp_path, files=files, clock=clock) as broker:
        client = await RawClient.open(broker.listen_address)
        assert (await client.call(SEND, send_fields("T"), b"first")).code == 0
        broker.parts.store.writer._slow = True  # so that the next append leaves the loop
        files.writing.clear()
        opaque = client.send(SEND, send_fields("T"), b"stalls")
        assert (await client.call(PULL, pull_fields("T"))).code == 0
        clock.advance(1.2)
        for code, fields in ((SEND, send_fields("T")), (SEND_V1, V1_FIELDS), (BACK, BACK_FIELDS)):
            answer = await client.call(code, fields, b"refused")
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert (answer.remark or "").startswith(
                "[REJECTREQUEST]system busy, start flow control for a while, an append has been "
                "under way for 1200 ms with "
            )
            assert (answer.remark or "").endswith("osPageCacheBusyTimeOutMills=1000")
        assert broker.parts.store.stats.busy_refusals["page_cache_busy"] == 3
        assert (await client.call(PULL, pull_fields("T"))).code == 0, "reads go on"
        files.writing.set()
        assert (await client.answer(opaque)).code == 0
        answer = await client.call(SEND, send_fields("T"), b"again")
        assert (answer.code, answer.ext_fields["queueOffset"]) == (0, "2")
        await client.close()


async def test_sends_that_wait_for_the_disk_are_bounded_over_all_connections(
    tmp_path: Path,
) -> None:
    files = FailingFiles()
    limits = {"send_thread_pool_queue_capacity": 50}
    settings = {"flush_disk_type": "SYNC_FLUSH", **limits}
    async with live_broker(tmp_path, files=files, **settings) as broker:
        clients = [await RawClient.open(broker.listen_address) for _ in range(5)]
        assert (await clients[0].call(SEND, send_fields("T"), b"first")).code == 0
        files.syncing.clear()
        opaques: list[tuple[RawClient, int]] = []
        for number in range(30):
            for client in clients:
                opaques.append((client, client.send(SEND, send_fields("T"), b"%d" % number)))
                await client.call(30, {"topic": "T", "queueId": "0"})  # so it has been read
        files.syncing.set()
        answers = [await client.answer(opaque) for client, opaque in opaques]
        assert [answer.code for answer in answers] == [0] * 50 + [2] * 100
        assert answers[-1].remark == (
            "[OVERLOAD]system busy, start flow control for a while, 50 sends wait for the disk or "
            "for replicas; sendThreadPoolQueueCapacity"
        )
        offsets = [int(answer.ext_fields["queueOffset"]) for answer in answers[:50]]
        assert offsets == list(range(1, 51))
        assert broker.parts.stats.rejections == {("send", "queue_full"): 100}
        assert (await clients[0].call(SEND, send_fields("T"), b"last")).code == 0
        for client in clients:
            await client.close()
