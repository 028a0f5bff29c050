"""Programs of docs/ whose processes or brokers end and start while others go on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skylarkmq.client import Message, Producer
from tests.support.broker_process import BrokerProcess
from tests.support.patience import LIMIT_S, until
from tests.test_documents import EMBEDDED_MARK, NAME_SERVER, SNIPPETS

WORKER_PAGE = "docs/sdk/simple-consumer.md"


@asynccontextmanager
async def running(program: str, said: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process of a program in the file's folder, until the block ends; the file has its lines."""
    with said.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-u", "-c", program), cwd=said.parent, stdout=file, stderr=file
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def line_in(said: Path, text: str) -> None:
    await until(lambda: text in said.read_text() or None, f"{text} in {said.name}")


@pytest.mark.slow
async def test_a_worker_outlives_its_broker(tmp_path: Path, unused_tcp_port: int) -> None:
    """Killed while the worker has a message in hand, so its `ack` fails, and then `receive`."""
    [block] = [block for name, block in SNIPPETS.items() if name.startswith(WORKER_PAGE)]
    address = f"127.0.0.1:{unused_tcp_port}"
    slower = block.replace("await consumer.ack", "await asyncio.sleep(1); await consumer.ack")
    store, keys = tmp_path / "store", {"namesrvListenPort": unused_tcp_port}
    said = tmp_path / "said"
    broker = await BrokerProcess.spawn(store, keys, command="serve")
    try:
        async with running(slower.replace(NAME_SERVER, address), said) as worker:
            await line_in(said, "got hello")
            await broker.kill()
            await line_in(said, "WARNING:root:")
            broker = await BrokerProcess.spawn(store, keys, command="serve")
            async with Producer(namesrv_addr=address) as producer:
                await producer.send(Message("greetings", "you"))
            await line_in(said, "got you")
            worker.terminate()
            assert await asyncio.wait_for(worker.wait(), LIMIT_S) == 0
    finally:
        await broker.kill()
    assert "Traceback" not in said.read_text()


@pytest.mark.slow
async def test_several_processes_have_one_broker(tmp_path: Path, unused_tcp_port: int) -> None:
    [block] = [block for block in SNIPPETS.values() if EMBEDDED_MARK in block]
    program = block.replace("9876", str(unused_tcp_port))
    one, other = tmp_path / "one", tmp_path / "other"
    async with running(program, one), running(program, other):
        await line_in(one, "sent")
        await line_in(other, "sent")
