"""Fault tests S4 and S5: the power goes, the disk dies or freezes, on a file system of its own.

Needs root.

A loop-mounted ext4 is shut down without its journal being written (FS_IOC_SHUTDOWN): what was not
synced is gone, stored through mappings or not. For the power cut the broker stands still before
that and is killed behind it; for the dead disk it goes on.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import subprocess
from asyncio import open_connection, sleep, timeout
from collections.abc import Iterator
from pathlib import Path
from random import Random
from threading import Thread
from time import monotonic

import pytest

from skylarkmq.broker.base.health import waits_for_disk
from skylarkmq.protocol.codes import RequestCode
from tests.support.broker_process import BrokerProcess
from tests.support.frame_load import FrameLoad, read_back
from tests.support.patience import LIMIT_S
from tests.support.raw_client import RawClient, pull_fields, send_fields
from tests.support.send_history import Outcome, SendHistory

pytestmark = pytest.mark.fault_root

IMAGE_SIZE = 400 << 20
FS_IOC_SHUTDOWN = 0x8004587D
FIFREEZE, FITHAW = 0xC0045877, 0xC0045878
STOPPED, IN_DISK = "T", "D"
SEND = RequestCode.SEND_MESSAGE_V2
WITHOUT_JOURNAL = struct.pack("I", 2)
CONNECTIONS = 8
STORE_FAILED = 74
WRITE_MODES: dict[str, dict[str, object]] = {
    "pwrite": {},
    "mapped": {"commitLogWriteMode": "mapped", "warmMapedFileEnable": "true"},
    "pool": {"transientStorePoolEnable": "true"},
}


class Volume:
    """A file system in a file."""

    def __init__(self, folder: Path) -> None:
        self._image = folder / "image"
        self.root = folder / "volume"
        self._mounted = False
        self._frozen = False

    def make(self) -> None:
        """Make and mount it; skip the test where that is not possible."""
        if os.geteuid() != 0:
            pytest.skip("mounting a file system needs root")
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("mkfs.ext4 is not installed")
        with self._image.open("wb") as file:
            file.truncate(IMAGE_SIZE)
        subprocess.run(["mkfs.ext4", "-q", str(self._image)], check=True)
        self.root.mkdir()
        mounted = self._mount()
        if mounted.returncode:
            pytest.skip(f"no loop mounts here: {mounted.stderr.strip()}")

    def _mount(self) -> subprocess.CompletedProcess[str]:
        command = ["mount", "-o", "loop", str(self._image), str(self.root)]
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
        self._mounted = not mounted.returncode
        return mounted

    def freeze(self) -> None:
        """From here on what changes the file system waits, until `thaw`."""
        self._ioctl(FIFREEZE, 0)
        self._frozen = True

    def thaw(self) -> None:
        """End that; without it nothing happens."""
        if self._frozen:
            self._frozen = False
            self._ioctl(FITHAW, 0)

    def cut(self) -> None:
        """From here on nothing reaches the disk, and all calls fail."""
        self._ioctl(FS_IOC_SHUTDOWN, WITHOUT_JOURNAL)

    def _ioctl(self, request: int, argument: bytes | int) -> None:
        folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(folder, request, argument)
        finally:
            os.close(folder)

    def mount_again(self) -> None:
        """The machine is back."""
        self.unmount()
        mounted = self._mount()
        assert self._mounted, mounted.stderr

    def unmount(self) -> None:
        self.thaw()
        if self._mounted:
            subprocess.run(["umount", str(self.root)], check=True)
            self._mounted = False


async def stand_still(pid: int) -> None:
    """Stop a process, and wait until none of its threads is in a call of the system any more.

    A sync that runs while the file system is shut down may report a success that it did not have.
    """
    os.kill(pid, signal.SIGSTOP)
    async with timeout(LIMIT_S):
        while _states(pid) != {STOPPED}:  # of threads of another process  # noqa: ASYNC110
            await sleep(0.001)


def _states(pid: int) -> set[str]:
    stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return {stat.rpartition(")")[2].split()[0] for stat in stats}


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    made = Volume(tmp_path)
    try:
        made.make()
        yield made
    finally:
        made.unmount()


async def _run_into_power_cut(
    volume: Volume, settings: dict[str, object], history: SendHistory, rng: Random
) -> None:
    """One life: start, check what is there, send, lose power."""
    process = await (await BrokerProcess.spawn(volume.root / "store", settings)).ready()
    load = FrameLoad(history, rng)
    try:
        await read_back(process.address, history)
        await load.start(process.address, CONNECTIONS)
        async with timeout(LIMIT_S):
            await load.acked(rng.randrange(300, 2500))
        await stand_still(process.process.pid)
        volume.cut()
    finally:
        await process.kill()
    await load.ended()
    volume.mount_again()


async def _check(volume: Volume, settings: dict[str, object], history: SendHistory) -> None:
    process = await (await BrokerProcess.spawn(volume.root / "store", settings)).ready()
    try:
        await read_back(process.address, history)
    finally:
        await process.kill()


@pytest.mark.parametrize(("write_mode", "cuts"), [("pwrite", 4), ("mapped", 3), ("pool", 3)])
async def test_a_power_cut_takes_nothing_that_was_acknowledged_durable(
    volume: Volume, write_mode: str, cuts: int
) -> None:
    rng, history = Random(cuts), SendHistory()
    settings: dict[str, object] = {**WRITE_MODES[write_mode], "flushDiskType": "SYNC_FLUSH"}
    for _ in range(cuts):
        await _run_into_power_cut(volume, settings, history, rng)
    await _check(volume, settings, history)
    assert history.outcomes[Outcome.OK] >= 300 * cuts


async def test_the_cut_is_one_without_syncs_messages_are_lost(volume: Volume) -> None:
    history = SendHistory()
    settings: dict[str, object] = {
        "flushDiskType": "ASYNC_FLUSH",
        "flushIntervalCommitLog": 60_000,
        "flushConsumeQueueThoroughInterval": 600_000,
    }
    await _run_into_power_cut(volume, settings, history, Random(1))
    with pytest.raises(AssertionError, match="I1"):
        await _check(volume, settings, history)


@pytest.mark.parametrize(("write_mode", "rounds"), [("pwrite", 2), ("mapped", 1), ("pool", 2)])
async def test_a_disk_that_dies_ends_the_broker_and_takes_nothing(
    volume: Volume, write_mode: str, rounds: int
) -> None:
    rng, history = Random(rounds), SendHistory()
    settings: dict[str, object] = {**WRITE_MODES[write_mode], "flushDiskType": "SYNC_FLUSH"}
    for _ in range(rounds):
        process = await (await BrokerProcess.spawn(volume.root / "store", settings)).ready()
        load = FrameLoad(history, rng)
        try:
            await read_back(process.address, history)
            await load.start(process.address, CONNECTIONS)
            async with timeout(LIMIT_S):
                await load.acked(rng.randrange(300, 2500))
            await stand_still(process.process.pid)
            volume.cut()
            os.kill(process.process.pid, signal.SIGCONT)
            assert await process.ended() == STORE_FAILED, process.tail()
        finally:
            await process.kill()
        await load.ended()
        assert "the store has failed" in process.tail()
        for attempt in history.attempts:  # of a message whose sync failed nobody knows
            if attempt.outcome is Outcome.FAILED:
                attempt.outcome = Outcome.UNKNOWN
        volume.mount_again()
    await _check(volume, settings, history)


async def _waits_for_disk(process: BrokerProcess) -> None:
    """Return when a thread of the process is held by the disk."""
    async with timeout(LIMIT_S):
        while IN_DISK not in _states(process.process.pid):  # noqa: ASYNC110
            await sleep(0.001)


async def _page(process: BrokerProcess, path: str) -> int:
    reader, writer = await open_connection(*process.metrics_address)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    async with timeout(LIMIT_S):
        status = int((await reader.readline()).split()[1])
    writer.close()
    return status


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_frozen_disk_is_no_reason_for_a_restart(volume: Volume, flush: str) -> None:
    """The append that meets the freeze holds the loop; the probes say so, and it goes on."""
    settings = {"flushDiskType": flush}
    process = await (await BrokerProcess.spawn(volume.root / "store", settings)).ready()
    try:
        client = await RawClient.open(process.address)
        assert (await client.call(SEND, send_fields("T"), b"before")).code == 0
        assert await _page(process, "/readyz") in (200, 503)  # not registered anywhere
        volume.freeze()
        opaque = client.send(SEND, send_fields("T"), b"meets it")
        await _waits_for_disk(process)
        assert await _page(process, "/livez") == 200
        assert await _page(process, "/version") == 200
        async with timeout(LIMIT_S):  # the thread that waits may be another than the loop's
            while await _page(process, "/readyz") != 503:
                pass
        volume.thaw()
        assert (await client.answer(opaque)).code == 0
        assert (await client.call(SEND, send_fields("T"), b"after")).code == 0
        await client.close()
    finally:
        volume.thaw()
        await process.kill()


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_freeze_that_is_met_off_the_loop_holds_up_the_sends_alone(
    volume: Volume, flush: str
) -> None:
    settings = {"flushDiskType": flush, "transientStorePoolEnable": "true"}
    process = await (await BrokerProcess.spawn(volume.root / "store", settings)).ready()
    try:
        client = await RawClient.open(process.address)
        assert (await client.call(SEND, send_fields("T"), b"before")).code == 0
        while (pulled := await client.call(RequestCode.PULL_MESSAGE, pull_fields("T"))).code:
            pass  # shown with the commit
        volume.freeze()
        opaque = client.send(SEND, send_fields("T"), b"meets it")
        await _waits_for_disk(process)
        again = await client.call(RequestCode.PULL_MESSAGE, pull_fields("T", sysFlag="4"))
        assert again.code == 0
        assert again.body == pulled.body
        assert await _page(process, "/livez") == 200
        volume.thaw()
        assert (await client.answer(opaque)).code == 0
        await client.close()
    finally:
        volume.thaw()
        await process.kill()


def test_a_thread_that_a_frozen_disk_holds_waits_for_it(volume: Volume) -> None:
    path = volume.root / "file"
    path.touch()
    volume.freeze()
    writer = Thread(target=path.write_bytes, args=(b"late",))
    writer.start()
    try:
        assert writer.native_id is not None
        deadline_s = monotonic() + LIMIT_S
        while not waits_for_disk(writer.native_id):
            assert monotonic() < deadline_s
    finally:
        volume.thaw()
        writer.join()
    assert path.read_bytes() == b"late"
