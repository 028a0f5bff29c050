"""Replicas of one broker in this process: real sockets and disks, an engine of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.broker.config.settings import BrokerConfig, NamesrvConfig
from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.namesrv.controller import NamesrvController
from skylarkmq.broker.replica_broker import ReplicaBroker
from skylarkmq.broker.replication.failover.replica_events import State
from skylarkmq.client import Producer
from skylarkmq.common.files import Files
from skylarkmq.store.config import StoreConfig
from tests.support.life_clock import LifeClock
from tests.support.patience import LIMIT_S, until
from tests.support.ports import free_ports
from tests.support.simulated_coordination import Engine, SimulatedCoordination

NAME = "broker-a"


class ReplicaSet:
    """Some replicas, a name server, and the engine."""

    def __init__(self, folder: Path, namesrv_addr: str, **config: Any) -> None:
        self.clock = SystemClock(asyncio.get_running_loop())
        self.engine = Engine(self.clock)
        self.namesrv_addr = namesrv_addr
        self.replicas: dict[int, ReplicaBroker] = {}
        self.ways: dict[int, SimulatedCoordination] = {}
        self._clocks: dict[int, LifeClock] = {}
        self._folder = folder
        self._metrics: Any = config.pop("metrics", "none")  # pages, as a controller takes it
        self._config = config
        self._ports: dict[int, int] = {}

    def config(self, number: int, **more: Any) -> BrokerConfig:
        port = self._ports.setdefault(number, free_ports(-2, 1)[0])
        store: dict[str, Any] = {
            "flush_disk_type": "SYNC_FLUSH",
            "mapped_file_size_commit_log": 1 << 20,
            "max_message_size": 100_000,
            "max_hash_slot_num": 1000,
            "max_index_num": 4000,
        }
        broker: dict[str, Any] = {
            "broker_id": number,
            "controller_lease_ttl": 3,
            "controller_endpoints": "http://127.0.0.1:2379",
            "metrics_prom_exporter_port": 0,
            **self._config,
        }
        for key, value in {**broker, **more}.items():
            (store if hasattr(StoreConfig, key) else broker)[key] = value
        for key in store:
            broker.pop(key, None)
        return BrokerConfig(
            store=StoreConfig(store_path_root_dir=self._folder / f"store-{number}", **store),
            broker_name=NAME,
            listen_port=port,
            namesrv_addr=self.namesrv_addr,
            **broker,
        )

    async def start(self, number: int, *, files: Files | None = None, **more: Any) -> ReplicaBroker:
        """Start a replica on the disk, or on these files."""
        config = self.config(number, **more)
        way = self.ways[number] = SimulatedCoordination(self.engine, NAME, self.clock)

        clock = self._clocks[number] = LifeClock(self.clock)

        def make(config: BrokerConfig) -> BrokerController:
            return BrokerController(config, clock=clock, metrics=self._metrics, files=files)

        replica = self.replicas[number] = ReplicaBroker(config, make, files=files, coordination=way)
        await replica.start()
        return replica

    async def kill(self, number: int) -> None:
        """Kill a replica; the engine notices at once, which takes a lease elsewhere."""
        replica = self.replicas.pop(number)
        await replica.kill()
        self._clocks[number].end()
        self.engine.revoke(replica.driver.engine._lease)

    async def stop(self, number: int) -> None:
        await self.replicas.pop(number).stop()

    def leader(self) -> int | None:
        """Return who leads and serves."""
        for number, replica in self.replicas.items():
            if replica.driver.state.state is State.MASTER and replica.lives.serves:
                return number
        return None

    async def led(self) -> int:
        """Wait until somebody leads."""
        found = await until(self.leader, "a master")
        assert found is not None
        return found

    async def in_sync(self, *numbers: int) -> None:
        """Wait until the recorded set is these replicas."""
        ids = {self.replicas[number].driver.me for number in numbers}

        def is_so() -> bool:
            leader = self.leader()
            if leader is None:
                return False
            return set(self.replicas[leader].admin.status().in_sync) == ids

        await until(is_so, f"{numbers} in sync")

    async def three(self) -> int:
        """Start replicas 1 to 3, and return who leads when all are in sync."""
        for number in (1, 2, 3):
            await self.start(number)
        leader = await self.led()
        await self.in_sync(1, 2, 3)
        return leader

    async def same_logs(self) -> None:
        """Wait until all logs are the same, byte for byte."""

        def are() -> bool:
            logs = [replica.life.parts.store.commit_log for replica in self.replicas.values()]
            ends = {(each.min_offset, each.wrote_offset, each.stored_offset) for each in logs}
            return len(ends) == 1

        await until(are, "logs of one length")
        logs = [bytes_of(replica) for replica in self.replicas.values()]
        assert all(each == logs[0] for each in logs)


def bytes_of(replica: ReplicaBroker) -> bytes:
    found = replica.life.parts.store.commit_log
    data, offset = bytearray(), found.min_offset
    while part := found.part(offset, 1 << 20):
        data += part
        offset += len(part)
    return bytes(data)


@asynccontextmanager
async def replica_set(folder: Path, **config: Any) -> AsyncIterator[ReplicaSet]:
    """Run a name server, and end what was started."""
    clock = SystemClock(asyncio.get_running_loop())
    namesrv = NamesrvController(NamesrvConfig(listen_port=0), clock)
    await namesrv.start()
    try:
        async with replicas_at(f"127.0.0.1:{namesrv.listen_address[1]}", folder, **config) as found:
            yield found
    finally:
        await namesrv.stop()


@asynccontextmanager
async def replicas_at(namesrv_addr: str, folder: Path, **config: Any) -> AsyncIterator[ReplicaSet]:
    """End the replicas that the test has started, and not stopped."""
    found = ReplicaSet(folder, namesrv_addr, **config)
    try:
        yield found
    finally:
        for replica in found.replicas.values():
            await replica.stop()


@asynccontextmanager
async def producing(replicas: ReplicaSet) -> AsyncIterator[Producer]:
    """Run a patient producer."""
    async with Producer(namesrv_addr=replicas.namesrv_addr, send_timeout=LIMIT_S) as producer:
        yield producer
