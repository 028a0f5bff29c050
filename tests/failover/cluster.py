"""Three replicas of one broker name, a name server and etcd: processes on hosts of a network.

Replicas are known by the names of their hosts, which are their broker ids with an r in front. A
disk that was lost comes back as another replica id on the same host; `Standing` has names.
"""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from skylarkmq.broker.replication.failover.etcd import prefix_of
from skylarkmq.client.admin import Admin
from skylarkmq.client.admin.cluster import parse_properties
from skylarkmq.client.errors import ConnectionFailed, IllegalState, NotFound, RocketMQError
from skylarkmq.protocol.codes import RequestCode
from tests.failover.network import Host, Loopback, Namespaces
from tests.failover.processes import ServerProcess
from tests.failover.volume import Volume
from tests.support.etcd_process import etcd_program
from tests.support.raw_client import RawClient

ROOT: Final = Path(__file__).resolve().parents[2]
REPLICAS: Final = ("r1", "r2", "r3")
NAMES: Final = "names"
ETCD: Final = "etcd"
HOSTS: Final = (*REPLICAS, NAMES, ETCD)
BROKER_NAME: Final = "broker-a"
PREFIX: Final = prefix_of("DefaultCluster", BROKER_NAME)
LOG_FILE_SIZE: Final = 4 << 20

ASK_LIMIT_S: Final = 2.0
LOOK_EVERY_S: Final = 0.1
SETTINGS: Final[Mapping[str, object]] = {
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": LOG_FILE_SIZE,
    "mappedFileSizeConsumeQueue": 20 * 10_000,
    "maxMessageSize": 1 << 20,
    "metricsPromExporterPort": 0,
    # A machine that does ten other things is no reason to refuse.
    "brokerFastFailureEnable": "false",
    "osPageCacheBusyTimeOutMills": 3_600_000,
}


class StuckError(AssertionError):
    """What a sound cluster does after a while did not come."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What etcd says: who leads, who is in sync, who is alive; replicas by host."""

    term: int = 0
    master: str = ""  # holds the lease; empty: nobody does
    in_sync: tuple[str, ...] = ()
    alive: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether one leads and all others are in sync and alive."""
        return bool(self.master) and set(self.in_sync) == set(self.alive) == set(REPLICAS)


class Cluster:
    """All processes. The methods that block do so for milliseconds, `make` and `end` for seconds.

    Attributes:
        replicas: their processes by host.
        volumes: where their stores lie.
    """

    def __init__(
        self,
        folder: Path,
        network: Namespaces | Loopback,
        lease_s: int = 3,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """Decide where everything is; nothing is made yet.

        Args:
            settings: keys of the replicas besides the usual ones.
        """
        self.folder = folder
        self.network = network
        self.lease_s = lease_s
        self._ports = {
            **{name: network.hosts[name].ports("client")[0] for name in REPLICAS},
            NAMES: network.hosts[NAMES].ports("names")[0],
        }
        self._etcd_ports = network.hosts[ETCD].ports("etcd", "peer")
        self.volumes = {name: Volume(folder, name) for name in REPLICAS}
        self.etcd = ServerProcess(ETCD, self._etcd_command(), folder)
        self.names = ServerProcess(NAMES, self._names_command(), folder)
        self.replicas = {
            name: ServerProcess(
                name,
                self._replica_command(name, settings or {}),
                folder,
                self.volumes[name].take_in,
            )
            for name in REPLICAS
        }

    @property
    def namesrv(self) -> str:
        """Where clients ask for routes."""
        return f"{self.network.hosts[NAMES].address}:{self._ports[NAMES]}"

    def address(self, name: str) -> tuple[str, int]:
        """Where a replica serves clients."""
        return self.network.hosts[name].address, self._ports[name]

    @property
    def processes(self) -> list[ServerProcess]:
        return [*self.replicas.values(), self.names, self.etcd]

    def make(self) -> None:
        """Make network and volumes. Blocks."""
        self.network.make()
        for volume in self.volumes.values():
            volume.make(with_root=self.network.can_cut)

    async def start(self) -> None:
        """Start all of it and wait until it is whole."""
        self.etcd.start()
        await self.until(lambda standing: True, "etcd")
        self.names.start()
        for replica in self.replicas.values():
            replica.start()
        await self.whole()

    def keep_stores(self) -> None:
        """Copy the stores to where they outlive `end`. Blocks."""
        for name, volume in self.volumes.items():
            volume.keep(self.folder / f"store-{name}")

    def end(self) -> None:
        """Leave no process, no mount and no namespace behind. Blocks."""
        try:
            for process in self.processes:
                process.kill()
        finally:
            try:
                for volume in self.volumes.values():
                    volume.remove()
            finally:
                self.network.remove()

    async def standing(self) -> Standing | None:
        """Ask etcd; None: it does not answer."""
        with suppress(OSError, ValueError):
            return await asyncio.to_thread(self._standing)
        return None

    async def until(
        self, met: Callable[[Standing], bool], what: str, limit_s: float | None = None
    ) -> Standing:
        """Look until etcd says what is waited for.

        Raises:
            StuckError: it does not.
        """
        limit_s = limit_s or 60 * self.lease_s
        last: Standing | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while True:
                    last = await self.standing()
                    if last is not None and met(last):
                        return last
                    await asyncio.sleep(LOOK_EVERY_S)
        raise StuckError(f"waited {limit_s:.0f} s for {what}, last seen: {last}")

    async def whole(self) -> Standing:
        """Wait until one leads and all are in sync."""
        return await self.until(lambda standing: standing.is_whole, "all replicas in sync")

    async def led(self, but: str = "") -> Standing:
        """Wait until somebody leads, other than `but`."""
        return await self.until(
            lambda standing: standing.master not in ("", but), f"a master other than {but or '-'}"
        )

    async def switch_over(self) -> str:
        """Let another replica lead as an operator does, once all are in sync; return which one.

        Raises:
            StuckError: that was refused.
        """
        before = await self.whole()
        refused: RocketMQError | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * self.lease_s), Admin(namesrv_addr=self.namesrv) as admin:
                while True:
                    try:
                        await admin.switch_over(BROKER_NAME)
                        return (await self.led(but=before.master)).master
                    except (ConnectionFailed, IllegalState, NotFound) as error:
                        refused = error  # right behind another one
                        await asyncio.sleep(LOOK_EVERY_S)
                    except RocketMQError as error:
                        refused = error
                        break
        raise StuckError(f"a switch-over from {before.master} was refused: {refused}")

    async def set_live(self, key: str, value: int) -> None:
        """Change a key of the configuration at whoever leads, as soon as anybody does.

        Raises:
            StuckError: nobody takes it.
        """
        refused = "nobody leads"
        with suppress(TimeoutError):
            async with asyncio.timeout(60 * self.lease_s):
                while True:
                    standing = await self.standing()
                    if standing is not None and standing.master in self.replicas:
                        told = await asyncio.to_thread(self._set, standing.master, key, value)
                        if not told.returncode:
                            return
                        refused = told.stdout.decode()
                    await asyncio.sleep(LOOK_EVERY_S)
        raise StuckError(f"{key}={value} was not taken: {refused}")

    def _set(self, name: str, key: str, value: int) -> subprocess.CompletedProcess[bytes]:
        """Ask the broker from its own machine, as it demands. Blocks."""
        words = ["-m", "tests.failover.set_key", str(self._ports[name]), key, str(value)]
        command = [*self.network.hosts[name].command, sys.executable, *words]
        return subprocess.run(command, stdout=subprocess.PIPE, cwd=ROOT, check=False)

    async def live_values(self, key: str) -> dict[str, str]:
        """Ask each replica what a key is there."""
        found: dict[str, str] = {}
        for name in REPLICAS:
            client = await RawClient.open(self.address(name))
            try:
                answer = await client.call(RequestCode.GET_BROKER_CONFIG)
            finally:
                await client.close()
            found[name] = parse_properties(answer.body)[key]
        return found

    def unasked_ends(self) -> list[str]:
        """Ends of processes that nobody had asked for."""
        for process in self.processes:
            process.look()
        return [end for process in self.processes for end in process.unasked]

    def cut_off(self, name: str, others: Iterable[str], *, into: bool, out: bool) -> None:
        """Lose what others send to a host, what it sends to them, or both."""
        for other in others:
            if other == name:
                continue
            if into:
                self.network.cut(other, name)
            if out:
                self.network.cut(name, other)

    def _standing(self) -> Standing:
        found = self._entries()
        state: dict[str, Any] = found.get("state", {})
        host = {
            key.removeprefix("replicas/"): f"r{value['brokerId']}"
            for key, value in found.items()
            if key.startswith("replicas/")
        }
        # An id whose disk was lost is nobody, so that a set with it in it is not whole.
        alive = {key.removeprefix("alive/") for key in found if key.startswith("alive/")}

        def names(ids: Iterable[str]) -> tuple[str, ...]:
            return tuple(
                sorted(host.get(each, each) if each in alive else f"lost {each}" for each in ids)
            )

        master = found.get("master", {}).get("replica", "")
        return Standing(
            state.get("term", 0),
            host.get(master, master),
            names(state.get("inSync", [])),
            names(alive),
        )

    def _entries(self) -> dict[str, Any]:
        end = PREFIX[:-1] + bytes([PREFIX[-1] + 1])
        key, range_end = (base64.b64encode(each).decode() for each in (PREFIX, end))
        url = f"http://{self.network.hosts[ETCD].address}:{self._etcd_ports[0]}/v3/kv/range"
        body = json.dumps({"key": key, "range_end": range_end}).encode()
        with urllib.request.urlopen(url, body, timeout=ASK_LIMIT_S) as answer:
            rows = json.loads(answer.read()).get("kvs", [])
        return {
            base64.b64decode(row["key"])[len(PREFIX) :].decode(): json.loads(
                base64.b64decode(row["value"])
            )
            for row in rows
        }

    def _etcd_command(self) -> list[str]:
        host = self.network.hosts[ETCD]
        client, peer = (f"http://{host.address}:{port}" for port in self._etcd_ports)
        arguments = {
            "name": ETCD,
            "data-dir": self.folder / "etcd-data",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"{ETCD}={peer}",
            # 1.5 times this is the shortest lease.
            "heartbeat-interval": 50,
            "election-timeout": 500,
            "log-level": "error",
        }
        program = str(etcd_program(self.folder))
        # Power cuts are not tried here, and the machine's disk is shared.
        words = ["--unsafe-no-fsync", *(f"--{key}={value}" for key, value in arguments.items())]
        return [*host.command, program, *words]

    def _names_command(self) -> list[str]:
        host = self.network.hosts[NAMES]
        keys = {
            "listenPort": self._ports[NAMES],
            "bindAddress": host.address,
            "kvConfigPath": self.folder / "kvConfig.json",
        }
        return _command(host, "namesrv", keys)

    def _replica_command(self, name: str, settings: Mapping[str, object]) -> list[str]:
        host = self.network.hosts[name]
        etcd = self.network.hosts[ETCD].address
        keys = {
            "controllerEndpoints": f"http://{etcd}:{self._etcd_ports[0]}",
            "controllerLeaseTtl": self.lease_s,
            # How long a follower that is gone holds up sends: as long as a master that is.
            "haMaxTimeSlaveNotCatchup": self.lease_s * 1000,
            "brokerName": BROKER_NAME,
            "brokerId": name.removeprefix("r"),
            # A namespace has a loopback of its own, from which the configuration is changed.
            "bindAddress": "0.0.0.0" if self.network.can_cut else host.address,
            "brokerIP1": host.address,
            "listenPort": self._ports[name],
            "storePathRootDir": self.volumes[name].store,
            "namesrvAddr": self.namesrv,
            **SETTINGS,
            **settings,
        }
        return _command(host, "broker", keys)


def _command(host: Host, what: str, keys: Mapping[str, object]) -> list[str]:
    words = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    return [
        *host.command,
        *(sys.executable, "-m", "skylarkmq.cli", what, "--log-format", "json"),
        *words,
    ]
