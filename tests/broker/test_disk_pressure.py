"""A broker whose disk is too full: code 14, reads and commits go on, sends resume by themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skylarkmq.broker.broker_pages import health_checks
from skylarkmq.broker.controller import BrokerController
from skylarkmq.common.files import DiskFiles, DiskSpace
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from tests.support.live_broker import live_broker
from tests.support.manual_clock import ManualClock, advance_async
from tests.support.patience import until
from tests.support.raw_client import RawClient, pull_fields, send_fields

pytestmark = pytest.mark.timing


class _Disk(DiskFiles):
    """A real disk that is as full as the test says."""

    percent = 50

    def space(self, path: Path) -> DiskSpace:
        return DiskSpace(self.percent, 100 - self.percent)


class _Rig:
    def __init__(self, controller: BrokerController, disk: _Disk, clock: ManualClock) -> None:
        self.controller = controller
        self.disk = disk
        self.clock = clock

    async def connect(self) -> None:
        self.client = await RawClient.open(self.controller.listen_address)

    async def send(self, body: bytes = b"body") -> RemotingCommand:
        return await self.client.call(RequestCode.SEND_MESSAGE_V2, send_fields("T"), body)

    async def pull(self, offset: int) -> RemotingCommand:
        fields = pull_fields("T", 0, offset, sysFlag="4")
        return await self.client.call(RequestCode.PULL_MESSAGE, fields)

    async def until_disk(self, *, full: bool) -> None:
        """Let the clock go on until the broker has noticed; a thread asks the disk."""
        disk = self.controller.parts.store.cleaning.disk
        await self.until(lambda: disk.is_full is full)

    async def until(self, met: Callable[[], bool]) -> None:
        """Let the clock go on a second at a time until something is so."""

        async def met_now() -> bool:
            await advance_async(self.clock, 1.0)
            return met()

        await until(met_now)


@asynccontextmanager
async def _broker(root: Path, **changes: int) -> AsyncIterator[_Rig]:
    disk, clock = _Disk(), ManualClock()
    async with live_broker(root, files=disk, clock=clock, **changes) as controller:
        rig = _Rig(controller, disk, clock)
        await rig.connect()
        yield rig
        await rig.client.close()


async def test_sends_are_refused_and_resume_by_themselves(tmp_path: Path) -> None:
    async with _broker(tmp_path) as rig:
        assert (await rig.send()).code == ResponseCode.SUCCESS
        rig.disk.percent = 91
        await rig.until_disk(full=True)
        refused = await rig.send()
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert refused.remark is not None and "91 %" in refused.remark
        assert (await rig.pull(0)).code == ResponseCode.SUCCESS
        rig.disk.percent = 90
        await rig.until_disk(full=False)
        assert (await rig.send()).code == ResponseCode.SUCCESS
        assert (await rig.pull(1)).code == ResponseCode.SUCCESS


async def test_a_consumer_of_removed_messages_is_sent_to_the_first_that_is_left(
    tmp_path: Path,
) -> None:
    sizes = {"mapped_file_size_commit_log": 1 << 20, "max_message_size": 1 << 19}
    async with _broker(tmp_path, **sizes) as rig:
        for _ in range(5):
            assert (await rig.send(bytes(400_000))).code == ResponseCode.SUCCESS
        store = rig.controller.parts.store
        rig.disk.percent = 86
        await rig.until(
            lambda: store.stats.log_files_deleted == 2 and store.min_offset("T", 0) == 4
        )
        minimum = store.min_offset("T", 0)
        assert minimum == 4
        answer = await rig.pull(0)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert (answer.ext_fields or {})["nextBeginOffset"] == str(minimum)
        assert (await rig.pull(minimum)).code == ResponseCode.SUCCESS


class _SmallDisk(DiskFiles):
    """A real disk without room for another file of the log, when the test says so."""

    free = 1 << 40

    def free_bytes(self, path: Path) -> int:
        return self.free


async def test_a_broker_without_room_for_the_log_is_not_ready(tmp_path: Path) -> None:
    disk, clock = _SmallDisk(), ManualClock()
    sizes = {"mapped_file_size_commit_log": 1 << 20, "max_message_size": 1 << 19}
    async with live_broker(tmp_path, files=disk, clock=clock, **sizes) as controller:
        client = await RawClient.open(controller.listen_address)

        async def fill(code: ResponseCode) -> None:
            for _ in range(40):
                await advance_async(clock, 1.1)
                answer = await client.call(
                    RequestCode.SEND_MESSAGE_V2, send_fields("T"), bytes(300_000)
                )
                if answer.code == code:
                    return
            raise AssertionError(f"no send was answered with {code}")

        check = health_checks(controller, controller._lag).ready["store"]
        assert check() == ""
        disk.free = 1000
        await fill(ResponseCode.SERVICE_NOT_AVAILABLE)
        assert "no room for the next log file" in check()
        disk.free = 1 << 40
        await fill(ResponseCode.SUCCESS)
        assert check() == ""
        await client.close()
