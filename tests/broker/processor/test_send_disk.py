"""What senders are told when the disk is slow, full or broken; over the wire, with real threads."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skylarkmq.broker.controller import EXIT_STORE_FAILED, BrokerController
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.record import decode_messages
from skylarkmq.store.message_store import StoreState
from tests.support.failing_files import ALWAYS, FailingFiles
from tests.support.live_broker import live_broker
from tests.support.manual_clock import ManualClock
from tests.support.raw_client import RawClient, pull_fields, send_fields

SEND, PULL, MAX_OFFSET = 310, 11, 30
LOG_SIZE, MESSAGE_MAX = 256 * 1024, 64 * 1024
HELD = {"sysFlag": "6"}  # a pull that waits, with its own subscription
REFUSED = ResponseCode.SERVICE_NOT_AVAILABLE


class Rig:
    """A broker on a disk and a clock of the test's, and one connection to it."""

    def __init__(self, broker: BrokerController, files: FailingFiles, clock: ManualClock) -> None:
        self.broker = broker
        self.files = files
        self.clock = clock
        self.client: RawClient

    @property
    def state(self) -> StoreState:
        return self.broker.parts.store.state

    async def handled(self) -> None:
        """Return when the broker has looked at everything sent so far."""
        await self.client.call(9999)

    async def send(self, body: bytes = b"x", properties: str = "") -> RemotingCommand:
        return await self.client.call(SEND, send_fields("T", 0, properties), body)

    async def bodies(self, offset: int = 0, **more: str) -> list[bytes]:
        pulled = await self.client.call(PULL, pull_fields("T", 0, offset, **more))
        return [message.body for message in decode_messages(pulled.body)]


@asynccontextmanager
async def rig_of(root: Path, flush: str = "SYNC_FLUSH", **changes: object) -> AsyncIterator[Rig]:
    """A broker whose topic `T` holds one durable message."""
    files, clock = FailingFiles(), ManualClock()
    async with live_broker(
        root,
        files=files,
        clock=clock,
        flush_disk_type=flush,
        mapped_file_size_commit_log=LOG_SIZE,
        max_message_size=MESSAGE_MAX,
        **changes,
    ) as broker:
        rig = Rig(broker, files, clock)
        rig.client = await RawClient.open(broker.listen_address)
        assert (await rig.send(b"first")).code == 0
        try:
            yield rig
        finally:
            files.heal()
            files.syncing.set()
            await rig.client.close()


async def test_a_late_sync_answers_ten_with_the_place_and_shows_the_message_later(
    tmp_path: Path,
) -> None:
    async with rig_of(tmp_path) as rig:
        rig.files.syncing.clear()
        opaque = rig.client.send(SEND, send_fields("T"), b"late")
        await rig.handled()
        rig.clock.advance(5.1)
        answer = await rig.client.answer(opaque)
        assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert answer.ext_fields["queueOffset"] == "1"
        assert answer.ext_fields["msgId"]
        assert await rig.bodies() == [b"first"]
        held = rig.client.send(PULL, pull_fields("T", 0, 1, **HELD))
        rig.files.syncing.set()
        found = await rig.client.answer(held)
        assert [message.body for message in decode_messages(found.body)] == [b"late"]
        assert rig.state is StoreState.RUNNING


async def test_who_does_not_wait_is_answered_before_the_sync_and_shown_after_it(
    tmp_path: Path,
) -> None:
    async with rig_of(tmp_path) as rig:
        rig.files.syncing.clear()
        answer = await rig.send(b"quick", "WAIT\x01false")
        assert (answer.code, answer.ext_fields["queueOffset"]) == (0, "1")
        assert await rig.bodies() == [b"first"]
        held = rig.client.send(PULL, pull_fields("T", 0, 1, **HELD))
        await rig.handled()
        assert rig.broker.parts.holding.count == 1
        rig.files.syncing.set()
        found = decode_messages((await rig.client.answer(held)).body)
        assert [message.body for message in found] == [b"quick"]
        assert "WAIT" not in found[0].properties


async def test_one_read_answers_who_waits_and_who_does_not_apart(tmp_path: Path) -> None:
    async with rig_of(tmp_path) as rig:
        rig.files.syncing.clear()
        waiting = rig.client.send(SEND, send_fields("T"), b"waits")
        quick = rig.client.send(SEND, send_fields("T", 0, "WAIT\x01false"), b"quick")
        assert (await rig.client.answer(quick)).ext_fields["queueOffset"] == "2"
        rig.files.syncing.set()
        assert (await rig.client.answer(waiting)).ext_fields["queueOffset"] == "1"


@pytest.mark.parametrize("op", ["datasync", "pwrite"])
async def test_a_broken_disk_refuses_for_good_reads_on_and_ends_the_process(
    tmp_path: Path, op: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig_of(tmp_path) as rig:
        rig.files.fail(op, path="commitlog", error=errno.EIO, times=ALWAYS)
        opaques = [rig.client.send(SEND, send_fields("T"), b"lost") for _ in range(3)]
        answers = [await rig.client.answer(opaque) for opaque in opaques]
        assert [answer.code for answer in answers] == [REFUSED] * 3
        assert all(answer.ext_fields["MSG_REGION"] for answer in answers)
        rig.files.heal()
        later = await rig.send(b"later")
        assert later.code == REFUSED
        assert "restart" in (later.remark or "")
        assert await rig.bodies() == [b"first"], "what is durable is still read"
        assert rig.broker.ended is not None
        rig.clock.advance(4.9)
        assert not rig.broker.ended.done()
        rig.clock.advance(0.2)
        assert rig.broker.ended.result() == EXIT_STORE_FAILED
        assert (tmp_path / "abort").exists()
    assert (tmp_path / "abort").exists(), "the stop is not a clean one"
    assert "ending the process in 5 s" in caplog.text


async def test_a_broken_disk_keeps_the_process_when_it_is_told_so(tmp_path: Path) -> None:
    async with rig_of(tmp_path, store_failure_exit=False) as rig:
        rig.files.fail("datasync", path="commitlog", error=errno.EIO, times=ALWAYS)
        assert (await rig.send()).code == REFUSED
        rig.clock.advance(60)
        assert rig.broker.ended is not None
        assert not rig.broker.ended.done()
        assert await rig.bodies() == [b"first"]


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_a_log_file_that_could_not_be_made_once_ends_writing(
    tmp_path: Path, flush: str
) -> None:
    async with rig_of(tmp_path, flush) as rig:
        rig.files.fail("allocate", path="commitlog", error=errno.EIO)
        body = bytes(MESSAGE_MAX)
        answers: list[RemotingCommand] = []
        while not answers or answers[-1].code == 0:
            opaques = [rig.client.send(SEND, send_fields("T"), body) for _ in range(3)]
            answers += [await rig.client.answer(opaque) for opaque in opaques]
            assert len(answers) < 60, "the file was asked for again"
        assert rig.state is StoreState.FAILED
        stored = [answer.code for answer in answers].index(REFUSED)
        assert all(answer.code == REFUSED for answer in answers[stored:])
        found = await rig.client.call(MAX_OFFSET, {"topic": "T", "queueId": "0"})
        assert found.ext_fields["offset"] == str(1 + stored)


@pytest.mark.parametrize("more", [{}, {"extra": "field"}], ids=["fast path", "slow path"])
async def test_a_full_disk_refuses_and_writing_resumes_by_itself(
    tmp_path: Path, more: dict[str, str]
) -> None:
    async with rig_of(tmp_path) as rig:
        rig.files.fail("allocate", path="commitlog", error=errno.ENOSPC, times=ALWAYS)
        stored, refused = 1, 0
        while refused < 3:
            fields = {**send_fields("T"), **more}
            answer = await rig.client.call(SEND, fields, bytes(MESSAGE_MAX))
            if answer.code == 0:
                stored += 1
            else:
                refused += 1
                assert answer.code == REFUSED
                assert "no room for the next log file" in (answer.remark or "")
        assert await rig.bodies() != []
        assert rig.state is StoreState.RUNNING
        rig.files.heal()
        rig.clock.advance(1.1)
        answer = await rig.send(bytes(MESSAGE_MAX))
        assert (answer.code, answer.ext_fields["queueOffset"]) == (0, str(stored))


async def test_no_room_for_queues_refuses_until_there_is(tmp_path: Path) -> None:
    async with rig_of(tmp_path, "ASYNC_FLUSH") as rig:
        rig.files.fail("allocate", path="consumequeue", error=errno.ENOSPC, times=ALWAYS)
        rig.clock.advance(1.1)
        while not rig.broker.parts.store.queues.flusher.refused:
            await rig.handled()
        answer = await rig.send()
        assert answer.code == REFUSED
        assert "free some space" in (answer.remark or "")
        assert await rig.bodies() == [b"first"]
        rig.files.heal()
        rig.clock.advance(1.1)
        while rig.broker.parts.store.queues.flusher.refused:
            await rig.handled()
        assert (await rig.send()).ext_fields["queueOffset"] == "1"
