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
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from tests.bench.load import Figures, Job

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 30.0
POLL_S = 0.004


@dataclass(frozen=True)
class Server:
    """A process that listens."""

    pid: int
    port: int
    ready_s: float = 0.0  # from the start of the process


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, each with the one 2 below it."""
    import socket

    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            sock = stack.enter_context(socket.socket())
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
            fast = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                fast.bind(("127.0.0.1", port - 2))
                found.append(port)
    return found


@contextlib.contextmanager
def process(command: list[str], **settings: object) -> Iterator[subprocess.Popen[str]]:
    """A child in its own group, ended when the block is left."""
    child = subprocess.Popen(
        command, cwd=ROOT, text=True, start_new_session=True, **settings  # type: ignore[call-overload]
    )  # fmt: skip
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
def broker(root: Path, flush: str) -> Iterator[Server]:
    """A broker on an empty store, ready for clients."""
    listen, namesrv, metrics = free_ports(3)
    settings = {
        "storePathRootDir": root / "store",
        "mappedFileSizeCommitLog": 256 * 1024 * 1024,
        "maxHashSlotNum": 20_000,
        "flushDiskType": flush,
        "listenPort": listen,
        "namesrvListenPort": namesrv,
        "metricsPromExporterPort": metrics,
    }
    command = [str(Path(sys.executable).with_name("skylarkmq")), "serve"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    with (root / "broker.log").open("w") as log:
        started = time.perf_counter()
        with process(command, stdout=log, stderr=log) as child:
            wait_until_ready(child, metrics, root / "broker.log")
            yield Server(child.pid, listen, time.perf_counter() - started)


def wait_until_ready(child: subprocess.Popen[str], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        with contextlib.suppress(OSError, urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1).close()
            return
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


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024
