"""`serve --brokers 2` as a process of its own, and how a test asks what it serves."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.patience import LIMIT_S, until
from tests.support.ports import free_groups
from tests.support.raw_client import RawClient

SMALL = {
    "mappedFileSizeCommitLog": 8 << 20,
    "maxMessageSize": 1 << 20,
    "brokerName": "a",
    "bindAddress": "127.0.0.1",
}
TWO_BROKERS = (-2, 1, 8, 10, 11)
"""The other ports of two brokers, seen from the listen port of the first."""


class Fleet:
    """A supervisor's process, and what it and its members say."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self.text = ""
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.text += line.decode()
            if line.startswith(b"{"):
                self.lines.append(json.loads(line))

    async def line(self, met: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            assert self.process.returncode is None or not self._reader.done(), self.text
            return next((line for line in self.lines if met(line)), None)

        found = await until(look, "a line of the log")
        assert found is not None
        return found

    async def ready(self) -> dict[str, Any]:
        return await self.line(lambda line: line.get("event") == "ready")

    async def ended(self) -> int:
        """Its exit code, when the members have ended, too: they write to the same pipe."""
        async with asyncio.timeout(LIMIT_S):
            await self._reader
            return await self.process.wait()

    def pids(self) -> dict[str, int]:
        """The members' processes by name."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        found: dict[str, int] = {}
        for pid in map(int, children.split()):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            names = [word.partition("=")[2] for word in words if word.startswith("brokerName=")]
            found[names[-1] if names else "namesrv"] = pid
        return found


@asynccontextmanager
async def fleet(root: Path, *words: str, **settings: object) -> AsyncIterator[Fleet]:
    brokers, (namesrv,) = free_groups(TWO_BROKERS, ())  # they are started again on the same ports
    ports = {
        "listenPort": brokers[0],
        "namesrvListenPort": namesrv,
        "metricsPromExporterPort": 0,
    }
    keys = {**SMALL, **ports, "storePathRootDir": root, **settings}
    arguments = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "skylarkmq.cli", "serve", *arguments, *words),
        *("--log-format", "json"),
        stderr=asyncio.subprocess.PIPE,
        env={k: v for k, v in os.environ.items() if not k.startswith("SKYLARKMQ_")},
        limit=1 << 20,
    )
    it = Fleet(process)
    try:
        yield it
    finally:
        if process.returncode is None:
            process.kill()  # its members notice
        await it.ended()


def host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


async def call(
    address: str,
    code: int,
    fields: dict[str, str],
    body: bytes = b"",
    *,
    tls: ssl.SSLContext | None = None,
) -> Any:
    client = await RawClient.open(host_and_port(address), tls)
    try:
        return await client.call(code, fields, body)
    finally:
        await client.close()


async def page(
    address: str, path: str, *, tls: ssl.SSLContext | None = None, method: str = "GET"
) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection(*host_and_port(address), ssl=tls)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body.decode()
