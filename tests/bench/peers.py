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
from typing import IO, Any, cast

from skylarkmq.broker.config.settings import HA_PORT_DISTANCE
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
    *,
    command: str = "serve",
) -> Iterator[Server]:
    """A broker on an empty store, ready for clients.

    Args:
        byte_code: where compiled modules are kept from one start to the next.
        command: `broker` for one without a name server.
    """
    with _serving(root, flush, settings or {}, byte_code, command) as (child, ready, took_s):
        cpu_s = cpu_seconds(child.pid)
        yield Server(
            child.pid, _port(ready["listenAddr"]), str(ready.get("namesrvAddr", "")), took_s, cpu_s
        )


@contextlib.contextmanager
def fleet(root: Path, flush: str, count: int) -> Iterator[tuple[int, list[Server]]]:
    """The supervisor's process, and its brokers on empty stores, in their order."""
    with _serving(root, flush, {"brokers": count, "brokerName": "b"}) as (child, ready, _):
        members = cast("list[dict[str, Any]]", ready["brokers"])
        pids = {_broker_name(pid): pid for pid in children_of(child.pid)}
        namesrv = str(ready["namesrvAddr"])
        yield (
            child.pid,
            [Server(pids[one["broker"]], _port(one["listenAddr"]), namesrv) for one in members],
        )


def children_of(pid: int) -> list[int]:
    """The processes that a process's first thread has started."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _broker_name(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    names = [word.partition("=")[2] for word in words if word.startswith("brokerName=")]
    return names[-1] if names else ""


def _port(address: object) -> int:
    return int(str(address).rpartition(":")[2])


@contextlib.contextmanager
def _serving(
    root: Path,
    flush: str,
    settings: dict[str, object],
    byte_code: Path | None = None,
    command: str = "serve",
) -> Iterator[tuple[subprocess.Popen[str], dict[str, object], float]]:
    """A broker that is ready: its process, what it says then, and after how long."""
    values: dict[str, object] = {
        "storePathRootDir": root / "store",
        "mappedFileSizeCommitLog": 256 * 1024 * 1024,
        "maxHashSlotNum": 20_000,
        "flushDiskType": flush,
        "listenPort": 0,
        **({"namesrvListenPort": 0} if command == "serve" else {}),
        "metricsPromExporterPort": 0,
        "maxConnectionsPerAddress": 20_000,
        "newNamesPerSecond": 0,
        **settings,
    }
    words = [str(Path(sys.executable).with_name("skylarkmq")), command, "--log-format", "json"]
    for key, value in values.items():
        words += ["--set", f"{key}={value}"]
    environment = dict(os.environ)
    if byte_code is not None:
        environment["PYTHONPYCACHEPREFIX"] = str(byte_code)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
    path = root / "broker.log"
    with path.open("w") as log:
        started = time.perf_counter()
        with process(words, stdout=log, stderr=log, env=environment) as child:
            ready = wait_until_ready(child, path)
            yield child, ready, time.perf_counter() - started


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


@contextlib.contextmanager
def slave(master: Server) -> Iterator[None]:
    """A slave that follows a broker, which is empty, and keeps nothing."""
    command = [sys.executable, "-m", "tests.bench.slave", str(master.port + HA_PORT_DISTANCE)]
    with process(command, stdout=subprocess.PIPE) as child:
        if not output_of(child).readline():
            raise RuntimeError("the slave ended")
        yield


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
