"""A broker whose disk fails or is full: its answers, its reads, its health, its end."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skylarkmq.broker.controller import EXIT_STORE_FAILED, BrokerController
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.record import decode_messages
from skylarkmq.store.message_store import StoreState
from tests.support.failing_files import FailingFiles
from tests.support.live_broker import broker_config
from tests.support.manual_clock import ManualClock
from tests.support.patience import LIMIT_S, until
from tests.support.raw_client import RawClient, pull_fields, send_fields

pytestmark = pytest.mark.timing

BODY = bytes(30_000)
TOPIC_FIELDS = {
    "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip


class Rig:
    """A broker in this loop, its disk, its clock and one client."""

    def __init__(self, root: Path, flush: str) -> None:
        self.files = FailingFiles()
        self.clock = ManualClock()
        self.controller = BrokerController(
            broker_config(
                root,
                flush_disk_type=flush,
                max_message_size=32_768,
                mapped_file_size_commit_log=1 << 20,
            ),
            files=self.files,
            clock=self.clock,
        )

    async def start(self) -> None:
        await self.controller.start()
        self.client = await RawClient.open(self.controller.listen_address)

    async def stop(self) -> None:
        await self.client.close()
        await self.controller.stop()

    def store_state(self) -> StoreState:
        return self.controller.parts.store.state

    async def send(self, body: bytes = b"body", topic: str = "T") -> RemotingCommand:
        return await self.client.call(RequestCode.SEND_MESSAGE_V2, send_fields(topic), body)

    async def read_count(self) -> int:
        """How many messages can be read, each of them whole."""
        count = 0
        while True:
            fields = pull_fields("T", 0, count, sysFlag="4")
            answer = await self.client.call(RequestCode.PULL_MESSAGE, fields)
            if answer.code != ResponseCode.SUCCESS:
                return count
            count += len(decode_messages(answer.body))

    async def status(self, path: str) -> int:
        """The status of a health page."""
        assert self.controller.metrics_address is not None
        reader, writer = await asyncio.open_connection(*self.controller.metrics_address)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        status = int((await reader.readline()).split()[1])
        writer.close()
        return status


@asynccontextmanager
async def _rig(root: Path, flush: str) -> AsyncIterator[Rig]:
    rig = Rig(root, flush)
    await rig.start()
    try:
        yield rig
    finally:
        await rig.stop()


@pytest.mark.parametrize("op", ["datasync", "pwrite"])
async def test_a_failed_sync_or_write_ends_writing_and_the_process(tmp_path: Path, op: str) -> None:
    async with _rig(tmp_path, "SYNC_FLUSH") as rig:
        for _ in range(3):
            assert (await rig.send()).code == ResponseCode.SUCCESS
        rig.files.fail(op, path="commitlog")
        refused = await rig.send()
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert rig.store_state() is StoreState.FAILED
        again = await rig.send()
        assert again.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "restart" in (again.remark or "")
        assert await rig.read_count() == 3
        assert [await rig.status(path) for path in ("/readyz", "/livez")] == [503, 503]
        ended = rig.controller.ended
        assert ended is not None
        assert not ended.done()
        rig.clock.advance(5)
        assert ended.result() == EXIT_STORE_FAILED
    assert (tmp_path / "abort").exists()
    async with _rig(tmp_path, "SYNC_FLUSH") as rig:  # the supervisor's restart
        assert await rig.read_count() in (3, 4)  # what was refused may be there
        assert (await rig.send()).code == ResponseCode.SUCCESS


async def test_a_failed_timed_flush_stops_the_acknowledgements(tmp_path: Path) -> None:
    async with _rig(tmp_path, "ASYNC_FLUSH") as rig:
        assert (await rig.send()).code == ResponseCode.SUCCESS
        rig.files.fail("datasync", path="commitlog")
        failed = asyncio.Event()
        rig.controller.parts.store.failure_listeners.append(lambda _: failed.set())
        rig.clock.advance(0.5)
        async with asyncio.timeout(LIMIT_S):
            await failed.wait()
        assert (await rig.send()).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert await rig.read_count() == 1


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_a_full_disk_is_code_14_and_passes(tmp_path: Path, flush: str) -> None:
    async with _rig(tmp_path, flush) as rig:
        assert (await rig.send(BODY)).code == ResponseCode.SUCCESS
        rig.files.fail("allocate", path="commitlog", error=errno.ENOSPC, times=1_000_000)
        stored, refused = 1, None
        for _ in range(120):
            answer = await rig.send(BODY)
            if answer.code == ResponseCode.SUCCESS:
                assert refused is None, "stored behind one that was refused"
                stored += 1
            else:
                refused = answer
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert "room" in (answer.remark or "")
        assert refused is not None
        assert await rig.read_count() == stored
        assert rig.store_state() is StoreState.RUNNING
        # A restart makes no room.
        assert [await rig.status(path) for path in ("/readyz", "/livez")] == [503, 200]
        rig.files.heal()
        rig.clock.advance(1.1)
        answer = await rig.send(BODY)
        assert (answer.code, answer.ext_fields["queueOffset"]) == (0, str(stored))
        assert await rig.status("/readyz") == 200
    async with _rig(tmp_path, flush) as rig:
        assert await rig.read_count() == stored + 1


async def test_a_batch_that_does_not_fit_is_refused_as_a_whole(tmp_path: Path) -> None:
    """Sends pipelined into one read, the last ones without room: no answer is wrong."""
    async with _rig(tmp_path, "ASYNC_FLUSH") as rig:
        assert (await rig.send(BODY)).code == ResponseCode.SUCCESS
        rig.files.fail("allocate", path="commitlog", error=errno.ENOSPC, times=1_000_000)
        client = rig.client
        fields = send_fields("T")
        opaques = [client.send(RequestCode.SEND_MESSAGE_V2, fields, BODY) for _ in range(100)]
        answers = [await client.answer(opaque) for opaque in opaques]
        stored = [answer for answer in answers if answer.code == ResponseCode.SUCCESS]
        offsets = [int(answer.ext_fields["queueOffset"]) for answer in stored]
        assert offsets == list(range(1, 1 + len(stored)))
        assert 0 < len(stored) < 100
        assert await rig.read_count() == 1 + len(stored)


async def test_a_full_disk_refuses_topics_and_a_failed_one_ends_writing(tmp_path: Path) -> None:
    async with _rig(tmp_path, "ASYNC_FLUSH") as rig:
        assert (await rig.send()).code == ResponseCode.SUCCESS

        async def create(topic: str) -> RemotingCommand:
            fields = {"topic": topic, **TOPIC_FIELDS}
            return await rig.client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

        rig.files.fail("rename", path="topics.json", error=errno.ENOSPC)
        full = await create("one")
        assert full.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert rig.store_state() is StoreState.RUNNING
        assert (await create("one")).code == ResponseCode.SUCCESS
        assert b'"one"' in (tmp_path / "config" / "topics.json").read_bytes()
        rig.files.fail("rename", path="topics.json", error=errno.EIO)
        failed = await create("two")
        assert failed.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert rig.store_state() is StoreState.FAILED
        assert (await rig.send()).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert await rig.read_count() == 1


async def test_a_message_of_a_new_topic_waits_for_the_topic_table(tmp_path: Path) -> None:
    async with _rig(tmp_path, "ASYNC_FLUSH") as rig:
        rig.files.fail("rename", path="topics.json", error=errno.ENOSPC)
        answer = await rig.send(topic="made")
        assert answer.code != ResponseCode.SUCCESS, "acknowledged, and its topic may be lost"
        answer = await rig.send(topic="made")
        assert answer.code == ResponseCode.SUCCESS
        assert b'"made"' in (tmp_path / "config" / "topics.json").read_bytes()


@pytest.mark.parametrize(
    ("op", "path", "error", "short"),
    [
        ("open", "commitlog", errno.EMFILE, None),
        ("map", "commitlog", errno.ENOMEM, None),
        ("open", "consumequeue", errno.ENFILE, None),
        ("pwrite", "consumequeue", errno.ENOSPC, 3),
    ],
)
async def test_what_the_machine_refuses_once_ends_no_broker(
    tmp_path: Path, op: str, path: str, error: int, short: int | None
) -> None:
    async with _rig(tmp_path, "ASYNC_FLUSH") as rig:
        rig.files.fail(op, path=path, error=error, short=short)
        stored = 0

        async def send() -> bool:
            """Send once; whether that is stored, or never will be."""
            nonlocal stored
            rig.clock.advance(1.1)
            is_stored = (await rig.send(BODY)).code == ResponseCode.SUCCESS
            stored += is_stored
            return is_stored or rig.store_state() is StoreState.FAILED

        async def is_struck() -> bool:
            await send()
            return rig.files.has_failed

        await until(is_struck, "the call that is refused")
        for _ in range(80):  # over the end of two log files
            await until(send, "room")
        assert rig.store_state() is StoreState.RUNNING
        assert await rig.read_count() == stored
