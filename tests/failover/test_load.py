"""The clients, the checker and the reader of stores agree about a broker alone that is killed."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from skylarkmq.store.stopped.reader import StoppedStore
from tests.broker.test_power_cut import Volume, stand_still
from tests.broker.test_power_cut import volume as volume  # a fixture
from tests.failover.checker import check
from tests.failover.cluster import SETTINGS
from tests.failover.consumers import CONSUMERS
from tests.failover.history import History, Operation, read_history
from tests.failover.load import Load, create_topic, now
from tests.failover.logs import compare_logs, stored_messages
from tests.failover.processes import ServerProcess
from tests.support.patience import LIMIT_S, until
from tests.support.ports import free_ports

pytestmark = pytest.mark.timing


async def _serves(broker: ServerProcess, address: tuple[str, int]) -> None:
    """Wait until it does."""

    async def connects() -> bool:
        assert broker.is_running, broker.tail()
        try:
            _, writer = await asyncio.open_connection(*address)
        except OSError:
            return False
        writer.close()
        return True

    await until(connects, "the broker")


@pytest.mark.parametrize(
    ("flush", "kills"),
    [
        pytest.param("SYNC_FLUSH", 2, marks=pytest.mark.slow),
        pytest.param("SYNC_FLUSH", 12, marks=pytest.mark.fault),
        pytest.param("ASYNC_FLUSH", 12, marks=pytest.mark.fault),
    ],
)
async def test_a_broker_that_is_killed_while_its_consumers_live_on(
    tmp_path: Path, flush: str, kills: int
) -> None:
    async def kill(broker: ServerProcess) -> None:
        broker.kill()

    await _deaths(tmp_path, tmp_path / "store", flush, kills, kill)


@pytest.mark.fault_root
async def test_power_cuts_while_its_consumers_live_on(tmp_path: Path, volume: Volume) -> None:
    async def cut(broker: ServerProcess) -> None:
        await stand_still(broker.pid)
        volume.cut()
        broker.kill()
        volume.mount_again()

    await _deaths(tmp_path, volume.root / "store", "SYNC_FLUSH", 4, cut)


async def _deaths(
    folder: Path,
    root: Path,
    flush: str,
    count: int,
    die: Callable[[ServerProcess], Awaitable[None]],
) -> None:
    """Let a broker die so many times under its clients, and check all that they know."""
    seed, port, _, names = free_ports(2, 3, 4)  # the fast port first, slaves at the third
    keys = {
        **SETTINGS,
        "mappedFileSizeCommitLog": 1 << 17,
        "maxMessageSize": 1 << 13,
        "flushDiskType": flush,
        "storePathRootDir": root,
        "listenPort": port,
        "namesrvListenPort": names,
    }
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "skylarkmq.cli", "serve", "--log-format", "json", *words]
    broker = ServerProcess("broker", command, folder)
    history = History(folder / "history.jsonl")
    address = "127.0.0.1", port
    load = Load(history, f"127.0.0.1:{names}", {"broker": address}, seed=seed)
    try:
        broker.start()
        await _serves(broker, address)
        await create_topic(address)
        await load.start()
        for _ in range(count):
            await load.acks(100, LIMIT_S)
            begun = now()
            await die(broker)
            broker.start()
            await _serves(broker, address)
            await load.acks(20, LIMIT_S)
            history.add(Operation("fault", "kill", begun, now(), "done"))
        assert await load.drain()
        stored = await load.read_all(address, "end", final=True)
        await load.stop()
        broker.terminate()
        await broker.ended()
        assert broker.unasked == []
        assert broker.lives == count + 1
        logs = _logs(folder, root, history, stored)
        assert logs > 100_000
    finally:
        await load.stop()
        broker.kill()
        history.close()
    verdict = check(read_history(history.path), consumers=CONSUMERS)
    assert verdict.is_good, str(verdict)
    assert verdict.acked >= 120 * count
    assert verdict.kept == stored
    assert len(verdict.gaps["kill"]) == count
    assert min(verdict.gaps["kill"]) > 0


def _logs(folder: Path, root: Path, history: History, count: int) -> int:
    """Add what the stopped store holds; a copy with another byte in it is seen to differ."""
    shutil.copytree(root, folder / "copy")
    stores = {"store": root, "copy": folder / "copy"}
    same = compare_logs(stores)
    assert same.differences == []
    assert same.start == 0
    assert set(same.ends.values()) == {same.end}
    found = list(stored_messages(root, "store", same.end))
    assert len(found) == count
    for read in found:
        history.add(read)
    assert len(list(stored_messages(root, "store", same.end // 2))) < count

    files = StoppedStore(folder / "copy").log_files
    assert len(files) > 1
    place = files[1].start + 37  # a queue id: no CRC tells
    data = bytearray(files[1].path.read_bytes())
    data[37 - 20] ^= 1
    files[1].path.write_bytes(data)
    [difference] = compare_logs(stores).differences
    assert difference.endswith(f"differ at {place - 20}")
    return same.size
