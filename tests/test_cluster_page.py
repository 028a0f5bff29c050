"""The commands of the page about clusters are run as they stand, but for ports and folders."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from skylarkmq.client import Admin, ConnectionFailed, Message, Producer
from tests.support.patience import LIMIT_S, until
from tests.support.ports import free_ports

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "operations" / "clusters.md"
COMMAND = re.compile(r"^    \.venv/bin/skylarkmq (.+)$", re.MULTILINE)


def on_free_ports(lines: list[str]) -> tuple[list[str], str]:
    """Return the commands on other ports, and where their name servers are."""
    text = "\n".join(lines)
    for port in dict.fromkeys(re.findall(r"(?:listenPort|ExporterPort)=(\d+)", text)):
        text = text.replace(port, str(free_ports(-2, 1)[0]))
    (namesrv,) = set(re.findall(r"namesrvAddr=([\d.:;]+)", text))
    return text.splitlines(), namesrv


@asynccontextmanager
async def running(line: str, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a command until the block ends, or its process."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "skylarkmq",
        *shlex.split(line),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGTERM)
            await asyncio.wait_for(child.wait(), LIMIT_S)


async def names_of(namesrv: str) -> set[str]:
    """Return the brokers that a name server knows, none while it cannot be reached."""
    try:
        async with Admin(namesrv_addr=namesrv) as admin:
            return {broker.name for broker in (await admin.cluster()).brokers}
    except ConnectionFailed:
        return set()


async def test_the_cluster_of_the_page_runs_and_outlives_a_name_server(tmp_path: Path) -> None:
    both = {"broker-a", "broker-b"}
    lines, namesrv = on_free_ports(COMMAND.findall(PAGE.read_text("utf-8")))
    assert [line.split()[0] for line in lines] == ["namesrv", "namesrv", "broker", "broker"]
    one, other = namesrv.split(";")

    async def everyone(address: str) -> bool:
        return await names_of(address) == both

    async with (
        running(lines[2], tmp_path),  # brokers first: they find the name servers later
        running(lines[3], tmp_path),
        running(lines[1], tmp_path),
    ):
        async with running(lines[0], tmp_path) as killed:
            await until(lambda: everyone(one), "both brokers at the first")
            await until(lambda: everyone(other), "both brokers at the second")
            async with (
                Admin(namesrv_addr=namesrv) as admin,
                Producer(namesrv_addr=namesrv, send_timeout=LIMIT_S) as producer,
            ):
                await admin.create_topic("payments", queues=4, order=True)
                acks = [await producer.send(Message("payments", "m")) for _ in range(8)]
                assert {ack.queue.broker_name for ack in acks} == both
                killed.kill()
                await killed.wait()
                acks = [await producer.send(Message("payments", "m")) for _ in range(8)]
                assert {ack.queue.broker_name for ack in acks} == both
        async with running(lines[0], tmp_path):
            await until(lambda: everyone(one), "both brokers at the first again")
            async with Admin(namesrv_addr=one) as admin:
                found = await admin.describe_topic("payments")
            assert found.message_count == 16
            assert all(each.order for each in found.settings)
