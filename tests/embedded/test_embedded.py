"""A broker inside the application: its life, its failure, and what a crash leaves."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from skylarkmq.broker.base.logs import LINES_MAX
from skylarkmq.client import Client, Message, PeekReader, Producer, RocketMQError, sync
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.embedded import THREAD_NAME, Broker, StoreError, StoreLockedError
from skylarkmq.testing.disk import TestFiles
from tests.embedded.killed_child import TOPIC
from tests.support.patience import LIMIT_S

pytestmark = pytest.mark.timing


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == THREAD_NAME]


async def bodies(address: str) -> list[bytes]:
    async with Client(address) as client, PeekReader(TOPIC, client=client, stop="now") as reader:
        return [message.body async for message in reader]


async def test_what_was_sent_is_there_after_the_next_start(tmp_path: Path) -> None:
    async with (
        Broker(tmp_path / "queue") as broker,
        Producer(namesrv_addr=broker.namesrv_addr) as producer,
    ):
        await producer.send(Message(TOPIC, b"one"))
    assert not threads()
    async with Broker(tmp_path / "queue") as broker:
        assert await bodies(broker.namesrv_addr) == [b"one"]


@pytest.mark.parametrize("bound", ["127.0.0.2", "0.0.0.0", "localhost"])
async def test_clients_are_told_where_it_is_bound(tmp_path: Path, bound: str) -> None:
    settings = {"bindAddress": bound, "brokerIP1": "127.0.0.1" if bound == "0.0.0.0" else bound}
    async with (
        Broker(tmp_path, settings=settings) as broker,
        Producer(namesrv_addr=broker.namesrv_addr) as producer,
    ):
        await producer.send(Message(TOPIC, b"one"))


def test_code_without_a_loop_has_it_too(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, sync.Producer(namesrv_addr=broker.namesrv_addr) as producer:
        producer.send(Message(TOPIC, b"one"))
        assert threads() == [THREAD_NAME]
    assert not threads()
    with Broker(tmp_path) as broker:
        assert asyncio.run(bodies(broker.namesrv_addr)) == [b"one"]


def test_the_signals_stay_the_application_s(tmp_path: Path) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with Broker(tmp_path):
        during = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert during == before


def test_a_peer_cannot_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Broker(tmp_path) as broker:
        host, port = broker.namesrv_addr.split(":")
        for _ in range(200):
            with socket.create_connection((host, int(port))) as peer:
                peer.sendall(b"GET / HTTP/1.0\r\n\r\n")
                peer.recv(100)
    told = [each for each in caplog.records if each.getMessage().startswith("closing ")]
    seconds = {int(each.created) for each in told}
    assert len(told) <= LINES_MAX * len(seconds)
    assert not logging.getLogger(told[0].name).filters


UNBOUNDED = """
import logging, sys
from skylarkmq.embedded import Broker

with Broker(sys.argv[1], settings={"grpcListenPort": 0}):
    for name in [*logging.root.manager.loggerDict]:
        if name.startswith("skylarkmq.broker.") and not logging.getLogger(name).filters:
            print(name)
"""


def test_what_peers_of_grpc_provoke_is_bounded_too(tmp_path: Path) -> None:
    """In a process of its own: the modules of gRPC are loaded when a broker has a port for it."""
    pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")
    command = [sys.executable, "-c", UNBOUNDED, str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert told.stdout == ""


def test_the_folder_is_one_process_s(tmp_path: Path) -> None:
    program = f"from skylarkmq.embedded import Broker\nwith Broker({str(tmp_path)!r}): pass"
    with Broker(tmp_path) as broker:
        second = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S
        )
        with pytest.raises(StoreLockedError, match=r"that one at its address \(`port=` of one"):
            Broker(tmp_path).__enter__()
        port = int(broker.namesrv_addr.split(":")[1])
        with pytest.raises(StoreLockedError, match=f"client of that one at 127.0.0.1:{port}$"):
            Broker(tmp_path, port=port).__enter__()
    assert second.returncode == 1
    assert "is in use by another broker, embedded or of `skylarkmq serve`" in second.stderr


def test_a_wrong_setting_names_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean flushDiskType\?$"):
        Broker(tmp_path, settings={"flushDiskTyp": "SYNC_FLUSH"})
    with pytest.raises(TypeError, match=r"^Broker: port is a whole number, not '1'$"):
        Broker(tmp_path, port="1")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^port=80000: use 0 to 65535$"):
        Broker(tmp_path, port=80_000)
    with pytest.raises(TypeError, match=r"^Broker: settings is a dict of keys and values, not 'x'"):
        Broker(tmp_path, settings="x")  # type: ignore[arg-type]


async def test_one_is_for_one_block(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    async with broker:
        pass
    with pytest.raises(RuntimeError, match="make a new one for another block"):
        await broker.__aenter__()
    with pytest.raises(RuntimeError, match="make a new one for another block"):
        broker.__enter__()


@pytest.mark.parametrize(
    ("key", "value", "cure"),
    [
        ("storePathRootDir", "other", "the folder is the first argument"),
        ("brokers", 2, "skylarkmq serve --brokers"),
        ("controllerEndpoints", "http://127.0.0.1:2379", "skylarkmq serve"),
    ],
)
def test_what_cannot_be_here_is_refused_with_its_place(
    tmp_path: Path, key: str, value: str | int, cure: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{key}={value}: .*{cure}"):
        Broker(tmp_path, settings={key: value, "brokerId": 1})


def test_all_listeners_share_the_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    two = Broker(tmp_path)._config.max_connections
    three = Broker(tmp_path, settings={"grpcListenPort": 0})._config.max_connections
    assert three == two * 2 // 3 < two


class Application(Exception):
    """An error of the application's own."""


async def test_the_block_s_own_error_comes_through(tmp_path: Path) -> None:
    with pytest.raises(Application):
        async with Broker(tmp_path):
            raise Application


async def test_a_cancelled_block_stops_the_broker_first(tmp_path: Path) -> None:
    entered = asyncio.Event()

    async def serve() -> None:
        async with Broker(tmp_path):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(serve())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not threads()
    assert not (tmp_path / "abort").exists()


async def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    task = asyncio.create_task(Broker(tmp_path).__aenter__())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not threads()
    async with Broker(tmp_path):
        pass


def failing(files: TestFiles) -> None:
    files.sync_error = errno.EIO


async def test_a_store_that_fails_raises_in_the_application(tmp_path: Path) -> None:
    files = TestFiles(syncs=True, sparse_log=False)
    with pytest.raises(StoreError, match=f"the store {tmp_path} has failed: .*open it again"):
        async with (
            Broker(tmp_path, settings={"flushDiskType": "SYNC_FLUSH"}, files=files) as broker,
            Producer(namesrv_addr=broker.namesrv_addr, retries=0) as producer,
        ):
            await producer.send(Message(TOPIC, b"kept"))
            failing(files)
            with pytest.raises(RocketMQError):
                await producer.send(Message(TOPIC, b"refused"))
            await asyncio.Event().wait()  # until it is cancelled
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert not threads()
    async with Broker(tmp_path) as broker:
        assert b"kept" in await bodies(broker.namesrv_addr)


def test_a_store_that_fails_is_told_at_the_block_s_end(tmp_path: Path) -> None:
    files = TestFiles(syncs=True, sparse_log=False)
    with (
        pytest.raises(StoreError, match="has failed"),
        Broker(tmp_path, settings={"flushDiskType": "SYNC_FLUSH"}, files=files) as broker,
        sync.Producer(namesrv_addr=broker.namesrv_addr, retries=0) as producer,
    ):
        failing(files)
        with pytest.raises(RocketMQError):
            producer.send(Message(TOPIC, b"refused"))
        assert broker.failure is not None


@pytest.mark.slow
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_was_acknowledged_outlives_a_killed_application(tmp_path: Path, flush: str) -> None:
    acked: list[int] = []
    for wanted in (20, 300, 1000, 40):
        first = acked[-1] + 1 if acked else 0
        command = [sys.executable, "-m", "tests.embedded.killed_child", str(tmp_path), flush]
        with subprocess.Popen([*command, str(first)], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            lines = [next(child.stdout) for _ in range(wanted)]
            child.kill()
            lines += child.stdout  # what it had printed by then
            acked += [int(line) for line in lines if re.fullmatch(r"\d+\n", line)]
        with Broker(tmp_path) as broker:
            stored = [int(body) for body in asyncio.run(bodies(broker.namesrv_addr))]
        assert set(acked) <= set(stored)
