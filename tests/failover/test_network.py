"""Packets get lost in the direction that was cut, without an error, and only until it is mended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.failover.network import OUTSIDE, Host, Namespaces, why_no_namespaces
from tests.failover.volume import Volume
from tests.support.patience import until_sync

pytestmark = pytest.mark.fault_root

# Sends each datagram back to where it came from, and what it is asked for to somebody else.
ECHO = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("0.0.0.0", 7007))
while True:
    data, source = s.recvfrom(100)
    s.sendto(data, source)
"""
ASK = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(float(sys.argv[2]))
s.sendto(b"hello", (sys.argv[1], 7007))
try:
    print(s.recv(100).decode())
except TimeoutError:
    print("nothing")
"""


@pytest.fixture
def network() -> Iterator[Namespaces]:
    if why := why_no_namespaces():
        pytest.skip(why)
    made = Namespaces(["one", "two", "three"])
    echoes: list[subprocess.Popen[bytes]] = []
    try:
        made.make()
        for name in ("one", "two", "three"):
            command = [*made.hosts[name].command, sys.executable, "-c", ECHO]
            echoes.append(subprocess.Popen(command))
        for name in ("one", "two", "three"):
            until_sync(partial(_answers, made.hosts[OUTSIDE], made.hosts[name]), name)
        yield made
    finally:
        for echo in echoes:
            echo.kill()
            echo.wait()
        made.remove()


def _answers(source: Host, target: Host, wait_s: float = 0.3) -> bool:
    command = [*source.command, sys.executable, "-c", ASK, target.address, str(wait_s)]
    return b"hello" in subprocess.run(command, capture_output=True, check=False).stdout


def _delivers(target: Host) -> bool:
    """Whether this process's packets arrive there, whatever becomes of answers."""

    def received() -> int:
        command = [*target.command, "cat", "/proc/self/net/dev"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        _, _, counters = shown.partition("eth0:")
        return int(counters.split()[1])

    before = received()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(50):
            sender.sendto(b"hello", (target.address, 7007))
    return received() - before >= 50


def test_each_reaches_each(network: Namespaces) -> None:
    for source in network.hosts.values():
        for name in ("one", "two", "three"):
            assert _answers(source, network.hosts[name])


def test_a_cut_loses_the_packets_of_one_direction(network: Namespaces) -> None:
    one, two, three = (network.hosts[name] for name in ("one", "two", "three"))
    network.cut("one", "two")
    assert not _answers(one, two)
    assert _answers(one, three)
    assert _answers(three, two)
    network.cut("three", OUTSIDE)  # what comes from outside arrives, its answer does not
    assert not _answers(network.hosts[OUTSIDE], three)
    assert _delivers(three)
    network.mend()
    assert _answers(one, two)
    assert _answers(network.hosts[OUTSIDE], three)


def test_a_connection_outlives_a_cut(network: Namespaces) -> None:
    """TCP hears of nothing, and sends again."""
    serve = (
        "import socket; s = socket.create_server(('0.0.0.0', 7008)); c, _ = s.accept(); "
        "c.sendall(b'x'); print(c.recv(9), flush=True); c.sendall(c.recv(9))"
    )
    command = [*network.hosts["one"].command, sys.executable, "-c", serve]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:

        def connected() -> socket.socket | None:
            try:
                return socket.create_connection((network.hosts["one"].address, 7008))
            except ConnectionRefusedError:
                return None

        found = until_sync(connected, "a connection")
        assert found is not None
        with found as connection:
            connection.settimeout(0.5)
            assert connection.recv(9) == b"x"
            network.cut("one", OUTSIDE)
            connection.sendall(b"first")
            assert server.stdout is not None
            assert server.stdout.readline() == b"b'first'\n"
            connection.sendall(b"second")
            with pytest.raises(TimeoutError):
                connection.recv(9)
            network.mend()
            connection.settimeout(60)
            assert connection.recv(9) == b"second"
    finally:
        server.kill()
        server.wait()


def test_nothing_is_left_behind(network: Namespaces) -> None:
    other = Namespaces(["four"])
    other.make()
    assert other.hosts["four"].address.rpartition(".")[0] not in {
        host.address.rpartition(".")[0] for host in network.hosts.values()
    }
    other.remove()
    shown = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert Path(other.hosts["four"].command[-1]).name not in shown.stdout


def test_a_host_keeps_no_mounts_of_others(network: Namespaces) -> None:
    """Else a test beside it that unmounts a broken file system gets it back when it mounts anew."""
    asked = [*network.hosts["one"].command, "readlink", "/proc/self/ns/mnt"]
    shown = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == os.readlink("/proc/self/ns/mnt")


SYNC = """
import os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
sys.stdin.readline()
for number in range(20):
    os.pwrite(file, b"x" * 4096, number * 4096)
    os.fdatasync(file)
"""


def test_a_volume_is_slow_until_it_is_let_go(tmp_path: Path) -> None:
    """Twenty writes at four a second last; twenty without a limit do not last longer than that."""
    volume = Volume(tmp_path, "slow")
    try:
        volume.make(with_root=True)
        if not volume.can_be_slow:
            pytest.skip("no loop mounts, or no blkio controller of cgroup v1, here")
        seconds: list[float] = []
        for operations in (4, 0):
            volume.limit(operations)
            command = [sys.executable, "-c", SYNC, str(volume.root / "file")]
            writer = subprocess.Popen(command, stdin=subprocess.PIPE)
            volume.take_in(writer.pid)
            begun = time.monotonic()
            writer.communicate(b"go\n")
            seconds.append(time.monotonic() - begun)
        assert seconds[0] > 4
        assert seconds[0] > seconds[1]
    finally:
        volume.remove()
    assert not volume.root.is_mount()
