"""Processes that a run talks to: brokers, the echo server, the load."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from tests.bench.load import Figures, Job, cpu_seconds

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 30.0
POLL_S = 0.004


@dataclass(frozen=True)
class Server:
    """A process that listens."""

    pid: int
    port: int
    namesrv: str = ""
    ready_s: float = 0.0  # from the start of the process
    ready_cpu_s: float = 0.0  # of all its threads until then
    protocol: str = "rocketmq"


@contextlib.contextmanager
def process(command: list[str], **settings: object) -> Iterator[subprocess.Popen[str]]:
    """A child in its own group, ended when the block is left."""
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        text=True,
        start_new_session=True,
        **settings,  # type: ignore[call-overload]
    )
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


@contextlib.contextmanager
def broker(
    root: Path,
    flush: str,
    settings: dict[str, object] | None = None,
    byte_code: Path | None = None,
) -> Iterator[Server]:
    """A broker on an empty store, ready for clients.

    Args:
        byte_code: where compiled modules are kept from one start to the next.
    """
    values: dict[str, object] = {
        "storePathRootDir": root / "store",
        "mappedFileSizeCommitLog": 256 * 1024 * 1024,
        "maxHashSlotNum": 20_000,
        "flushDiskType": flush,
        "listenPort": 0,
        "namesrvListenPort": 0,
        "metricsPromExporterPort": 0,
        "maxConnectionsPerAddress": 20_000,
        "newNamesPerSecond": 0,
        **(settings or {}),
    }
    command = [str(Path(sys.executable).with_name("skylarkmq")), "serve", "--log-format", "json"]
    for key, value in values.items():
        command += ["--set", f"{key}={value}"]
    environment = dict(os.environ)
    if byte_code is not None:
        environment["PYTHONPYCACHEPREFIX"] = str(byte_code)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
    path = root / "broker.log"
    with path.open("w") as log:
        started = time.perf_counter()
        with process(command, stdout=log, stderr=log, env=environment) as child:
            ready = wait_until_ready(child, path)
            took_s, cpu_s = time.perf_counter() - started, cpu_seconds(child.pid)
            port = int(str(ready["listenAddr"]).rpartition(":")[2])
            yield Server(child.pid, port, str(ready["namesrvAddr"]), took_s, cpu_s)


def wait_until_ready(child: subprocess.Popen[str], log: Path) -> dict[str, object]:
    """Wait for the line that tells the addresses, and return its fields."""
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        for line in log.read_text().splitlines():
            if '"event":"ready"' in line and line.endswith("}"):
                fields: dict[str, object] = json.loads(line)
                return fields
        if child.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the broker does not start:\n{log.read_text()}")
        time.sleep(POLL_S)


@contextlib.contextmanager
def echo() -> Iterator[Server]:
    """The server that gives back what it gets."""
    command = [sys.executable, "-m", "tests.bench.echo"]
    with process(command, stdout=subprocess.PIPE) as child:
        yield Server(child.pid, int(output_of(child).readline()))


class Load:
    """The load process; jobs run one after the other."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child

    def run(self, job: Job) -> Figures:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(asdict(job)) + "\n")
        self._child.stdin.flush()
        line = output_of(self._child).readline()
        if not line:
            raise RuntimeError("the load process ended")
        figures = Figures(**json.loads(line))
        if figures.failed:
            raise RuntimeError(f"{job}: {figures.first_failure}")
        return figures


@contextlib.contextmanager
def load() -> Iterator[Load]:
    command = [sys.executable, "-m", "tests.bench.load"]
    with process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        yield Load(child)


def output_of(child: subprocess.Popen[str]) -> IO[str]:
    assert child.stdout is not None
    return child.stdout


def resident_mib(pid: int, field: str = "VmRSS") -> float:
    """Resident memory of a process; with RssFile, that part of it which is pages of files."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024
