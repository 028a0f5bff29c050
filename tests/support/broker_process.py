"""A broker in a process of its own, which a test may kill: own process group, loopback, port 0."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from tests.support.patience import LIMIT_S

# A log file holds a few hundred messages, so that a run rolls over several.
SMALL_FILES = {
    "maxMessageSize": "32768",
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "2000",
}

# A machine that does ten other things is no reason to refuse, or to say that a sync came late.
PATIENT = {
    "brokerFastFailureEnable": "false",
    "osPageCacheBusyTimeOutMills": "3600000",
    "syncFlushTimeout": "3600000",
}

# How messages get into the log; every write mode keeps the same promises under SYNC_FLUSH.
WRITE_MODES: Mapping[str, Mapping[str, object]] = {
    "plain": {},
    "mapped": {"commitLogWriteMode": "mapped", "warmMapedFileEnable": "true"},
    "pool": {"transientStorePoolEnable": "true", "transientStorePoolSize": 4},
}


class BrokerProcess:
    """One life of `skylarkmq broker`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.address = ("", 0)
        self.metrics_address = ("", 0)
        self.fields: dict[str, str] = {}
        """What it said when it was ready."""
        self.lines: deque[str] = deque(maxlen=200)
        self.line_count = 0
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.ensure_future(self._read())

    @classmethod
    async def spawn(
        cls,
        root: Path,
        settings: Mapping[str, object] | None = None,
        *,
        command: str = "broker",
        file_limit: int | None = None,
    ) -> BrokerProcess:
        """Start the process; it is not ready yet.

        Args:
            command: `serve` has a name server, too.
            file_limit: how many files it may have open.
        """
        keys = {
            "storePathRootDir": root,
            "brokerName": "broker-a",
            "listenPort": 0,
            "metricsPromExporterPort": 0,
            **SMALL_FILES,
            **PATIENT,
            **(settings or {}),
        }
        arguments = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SKYLARKMQ_")}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "skylarkmq.cli", command, "--log-format", "json"),
            *arguments,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env=environment,
            limit=1 << 20,
        )
        if file_limit is not None:  # long before it looks: it has to load its modules first
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (file_limit, file_limit))
        return cls(process)

    async def ready(self) -> BrokerProcess:
        """Wait until it serves.

        Raises:
            AssertionError: it ended instead.
        """
        async with asyncio.timeout(LIMIT_S):
            await asyncio.shield(self._ready)
        return self

    async def kill(self) -> None:
        """kill -9."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.ended()

    def terminate(self) -> None:
        """SIGTERM."""
        self.process.terminate()

    async def ended(self) -> int:
        """Wait for the end of the process and return its exit code."""
        async with asyncio.timeout(LIMIT_S):
            code = await self.process.wait()
            await self._reader
        return code

    @property
    def resident_size(self) -> int:
        """Bytes of memory that are not files, now."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the process has no memory")

    def tail(self) -> str:
        """What it said last."""
        return "\n".join(self.lines)

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            text = line.decode(errors="replace").rstrip("\n")
            self.lines.append(text)
            self.line_count += 1
            if '"event":"ready"' in text and not self._ready.done():
                fields = self.fields = json.loads(text)
                self.address = _address(fields["listenAddr"])
                self.metrics_address = _address(fields["metricsAddr"])
                self._ready.set_result(None)
        if not self._ready.done():
            self._ready.set_exception(AssertionError(f"the broker ended:\n{self.tail()}"))
            self._ready.exception()  # asked for or not


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


@contextlib.asynccontextmanager
async def running_broker(root: Path, **settings: object) -> AsyncIterator[BrokerProcess]:
    """A broker that serves until the block ends."""
    process = await (await BrokerProcess.spawn(root, settings)).ready()
    try:
        yield process
    finally:
        await process.kill()
