"""Where the processes run: a namespace for each on one bridge, or plain loopback.

A `Host` is a namespace with one interface at the bridge; the processes of the test itself are at
the bridge, too, under the name OUTSIDE. Link addresses are known from the start and never asked
for, so one host's packets to another are lost, without an error and in that direction alone, when
it is told a link address that nobody has.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.ports import free_ports

OUTSIDE: Final = "outside"
NOBODY: Final = "02:ff:ff:ff:ff:ff"
PORTS: Final = {"client": 10911, "etcd": 2379, "peer": 2380, "names": 9876, "metrics": 5557}
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Host:
    """Where a process runs."""

    name: str
    address: str
    command: tuple[str, ...] = ()
    """Begins the command of what runs there."""

    def ports(self, *names: str) -> list[int]:
        """The ports of its servers; they stay the same when a server is started again."""
        return [PORTS[name] for name in names]


class LoopbackHost(Host):
    """A host that has ports of its own instead."""

    def ports(self, *names: str) -> list[int]:
        if names == ("client",):
            # The fast port is two below, replicas connect one above.
            return [free_ports(1, 2, 3)[2]]
        return free_ports(*range(1, len(names)))[: len(names)]


class Loopback:
    """No network to cut; needs no root."""

    can_cut = False

    def __init__(self, names: Iterable[str]) -> None:
        self.hosts = {name: LoopbackHost(name, "127.0.0.1") for name in names}

    def make(self) -> None:
        """There is nothing to make."""

    def remove(self) -> None:
        """Nor to remove."""

    def cut(self, source: str, target: str) -> None:
        raise AssertionError("loopback cannot be cut")

    def mend(self) -> None:
        """Nothing was cut."""


class Namespaces:
    """Hosts in network namespaces. Needs root; blocks for milliseconds."""

    can_cut = True

    def __init__(self, names: Iterable[str]) -> None:
        self._tag = f"sk{os.getpid():x}-{next(_numbers)}"
        self._network = _free_network()
        self._names = list(names)
        self._cut: set[tuple[str, str]] = set()
        self.hosts = {
            name: Host(
                name,
                f"{self._network}.{number}",
                # `ip netns exec` would also keep a copy of all mounts that there are: who
                # unmounts a file system does not get rid of it then.
                ("nsenter", f"--net=/run/netns/{self._namespace(name)}"),
            )
            for number, name in enumerate(self._names, 1)
        }
        self.hosts[OUTSIDE] = Host(OUTSIDE, f"{self._network}.254")

    def make(self) -> None:
        """Make bridge and namespaces."""
        bridge = self._bridge
        _ip("link", "add", bridge, "address", self._link(OUTSIDE), "type", "bridge")
        _ip("addr", "add", f"{self.hosts[OUTSIDE].address}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for number, name in enumerate(self._names, 1):
            space, end = self._namespace(name), f"{self._tag}-{number}"
            _ip("netns", "add", space)
            _ip("link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", end, "master", bridge, "up")
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "link", "set", "eth0", "address", self._link(name))
            _ip("-n", space, "addr", "add", f"{self.hosts[name].address}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
        for source, target in itertools.permutations(self.hosts, 2):
            self._tell(source, target, self._link(target))

    def remove(self) -> None:
        """Remove what `make` has made, as far as it came; nothing runs there any more."""
        for name in self._names:
            _ip("netns", "del", self._namespace(name), check=False)
        _ip("link", "del", self._bridge, check=False)

    def cut(self, source: str, target: str) -> None:
        """From here on what `source` sends to `target` is lost."""
        self._tell(source, target, NOBODY)
        self._cut.add((source, target))

    def mend(self) -> None:
        """End all cuts."""
        for source, target in sorted(self._cut):
            self._tell(source, target, self._link(target))
        self._cut.clear()

    @property
    def _bridge(self) -> str:
        return f"{self._tag}-b"

    def _namespace(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def _link(self, name: str) -> str:
        number = 254 if name == OUTSIDE else self._names.index(name) + 1
        return f"02:53:4b:00:00:{number:02x}"

    def _tell(self, source: str, target: str, link: str) -> None:
        where = [] if source == OUTSIDE else ["-n", self._namespace(source)]
        device = self._bridge if source == OUTSIDE else "eth0"
        address = self.hosts[target].address
        _ip(*where, "neigh", "replace", address, "lladdr", link, "nud", "permanent", "dev", device)


def why_no_namespaces() -> str:
    """Why there can be none here; empty when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program, package in (("ip", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(program) is None:
            return f"network namespaces need the program {program} ({package})"
    network = Namespaces(["probe"])
    try:
        network.make()
    except OSError as error:
        return f"no network namespaces here: {error}"
    finally:
        network.remove()
    return ""


def _ip(*arguments: str, check: bool = True) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _free_network() -> str:
    """Three bytes of a network that this machine has no address in, nor a route to."""
    used = Path("/proc/net/fib_trie").read_text() if Path("/proc/net/fib_trie").exists() else ""
    for number in range(next(_numbers) % 50, 256):
        found = f"10.213.{number}"
        if f"{found}." not in used and _is_unrouted(found):
            return found
    raise OSError("10.213.0.0/16 is all in use")


def _is_unrouted(network: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((f"{network}.1", 9))
        except OSError:
            return True
        own = probe.getsockname()[0]
    return not own.startswith(f"{network}.")
