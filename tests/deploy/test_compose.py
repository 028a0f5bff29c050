"""The compose files: keys, ports and paths fit the broker; what they start is started here."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from skylarkmq.client import Admin, Consumer, Message, Producer, RocketMQError, StartFrom
from skylarkmq.client.admin import FailoverStatus
from tests.deploy import compose_files, image
from tests.deploy.compose_files import Server, read, servers
from tests.deploy.tools import DEPLOY, INSTALL, program, run
from tests.support.commands import Command, Commands, commands
from tests.support.etcd_process import EtcdProcess, start_etcd
from tests.support.patience import LIMIT_S
from tests.support.ports import free_groups

OURS = [(name, server) for name in compose_files.NAMES for server in servers(name)]
IDS = [f"{name}-{server.name}" for name, server in OURS]


@pytest.mark.parametrize(("name", "server"), OURS, ids=IDS)
def test_each_server_has_keys_that_it_knows_and_a_place_for_its_data(
    name: str, server: Server
) -> None:
    loaded = server.load()
    config = loaded.config
    if server.command == "namesrv":  # the image has some for a broker
        assert set(loaded.unknown_variables) <= image.settings().keys()
    else:
        assert not loaded.unknown_variables
    (volume,) = server.service["volumes"]
    assert volume.partition(":")[2] == "/data"
    assert volume.partition(":")[0] in read(name)["volumes"]
    if server.command == "namesrv":
        assert str(config.kv_config_path).startswith("/data/")
        return
    assert str(config.store.store_path_root_dir) == "/data/store"
    published = server.published
    if published:
        main = config.listen_port
        wanted = {main, main - 2, config.metrics_prom_exporter_port}
        assert published == wanted | ({9876} if server.command == "serve" else set())


@pytest.mark.parametrize(("name", "server"), OURS, ids=IDS)
def test_each_server_runs_with_nothing_that_it_does_not_need(name: str, server: Server) -> None:
    service = server.service
    assert service["read_only"] is True and service["tmpfs"] == ["/tmp"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "healthcheck" not in service, "the image's own"
    assert "ulimits" not in service, "one above the machine's ends the start"
    assert service["restart"] == "unless-stopped"
    if server.command != "namesrv":
        assert int(service["stop_grace_period"].removesuffix("s")) >= 60


def test_the_replicas_are_a_set_that_outlives_one_of_them() -> None:
    brokers = [one for one in servers("compose.replicas.yaml") if one.command == "broker"]
    configs = [one.load().config for one in brokers]
    assert {(c.broker_name, c.min_in_sync_replicas) for c in configs} == {("broker-a", 2)}
    assert sorted(c.broker_id for c in configs) == [1, 2, 3]
    assert all(c.is_replica for c in configs)
    services = read("compose.replicas.yaml")["services"]
    for server, config in zip(brokers, configs, strict=True):
        assert config.broker_ip2 == server.name, "how the others find it"
        assert config.broker_ip1 == server.name, "and clients in their network"
        hosts = re.findall(r"http://([\w-]+):2379", str(config.controller_endpoints))
        assert len(hosts) == 3 and set(hosts) <= services.keys()
        assert str(config.namesrv_addr).partition(":")[0] in services


def test_the_words_of_a_spark_worker_are_those_that_spark_takes() -> None:
    """It knows no `--cores=1`: it prints its options and ends."""
    (main, *words) = read("spark/compose.yaml")["services"]["worker"]["command"]
    assert main == "org.apache.spark.deploy.worker.Worker"
    assert words[:-1:2] == ["--cores", "--memory", "--work-dir"] and "=" not in "".join(words)


def test_prometheus_asks_every_broker() -> None:
    for compose, config in (
        ("compose.yaml", "prometheus.yml"), ("compose.replicas.yaml", "replicas.yml"),
    ):  # fmt: skip
        text = (DEPLOY / "prometheus" / config).read_text("utf-8")
        brokers = [one for one in servers(compose) if one.command != "namesrv"]
        found = set(re.findall(r"- ([\w-]+:\d+)$", text, re.M))
        assert found == {
            f"{one.name}:{one.load().config.metrics_prom_exporter_port}" for one in brokers
        }
        assert read(compose)["services"]["prometheus"]["profiles"] == ["monitoring"]
        command = " ".join(read(compose)["services"]["prometheus"].get("command", []))
        assert config == "prometheus.yml" or config in command


def test_what_is_mounted_is_there() -> None:
    if not (DEPLOY / "grafana").exists():
        pytest.skip("deploy/grafana is not there")
    for name in compose_files.NAMES:
        for service in read(name)["services"].values():
            for volume in service.get("volumes", []):
                if volume.startswith("."):
                    assert (DEPLOY / volume.partition(":")[0]).exists(), volume


@pytest.mark.interop
@pytest.mark.parametrize("name", compose_files.NAMES)
def test_compose_accepts_the_file(name: str) -> None:
    run(*_compose(), "-f", str(DEPLOY / name), "--profile", "*", "config", "--quiet")


def _compose() -> list[str]:
    """Return how compose is called: as a plug-in of docker, or on its own."""
    docker = shutil.which("docker")
    if docker is not None:
        asked = subprocess.run([docker, "compose", "version"], capture_output=True, check=False)
        if asked.returncode == 0:
            return [docker, "compose"]
    assert "docker-compose" in INSTALL
    return [program("docker-compose")]


# What the files start, as processes on ports of their own


class Stack:
    """The servers of a compose file on this machine: their commands and their environment."""

    def __init__(self, name: str, folder: Path, etcd: list[EtcdProcess]) -> None:
        self._servers = servers(name)
        self._folder = folder
        groups = free_groups(*[(1, 2, 3)] * len(self._servers))
        pages = free_groups(*[()] * len(self._servers))
        self.ports = {one.name: group[2] for one, group in zip(self._servers, groups, strict=True)}
        self._pages = {one.name: page[0] for one, page in zip(self._servers, pages, strict=True)}
        self._etcd = {f"http://etcd-{n}:2379": one.url for n, one in enumerate(etcd, 1)}

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self.ports['namesrv']}"

    def page(self, server: str) -> str:
        """Return where a server's metrics page is."""
        return f"127.0.0.1:{self._pages[server]}"

    def environment(self, server: Server) -> dict[str, str]:
        """Return the variables of the file, with places of this machine in them."""
        found: dict[str, str] = {}
        for key, text in server.environment.items():
            for there, here in self._etcd.items():
                text = text.replace(there, here)
            text = text.replace("namesrv:9876", self.namesrv)
            text = text.replace("/data", str(self._folder / server.name))
            found[key] = text.replace("0.0.0.0", "127.0.0.1")
        for key in found.keys() & {"SKYLARKMQ_BROKER_IP1", "SKYLARKMQ_BROKER_IP2"}:
            found[key] = "127.0.0.1"  # for the name of the container
        found["SKYLARKMQ_LISTEN_PORT"] = str(self.ports[server.name])
        found["SKYLARKMQ_METRICS_PROM_EXPORTER_PORT"] = str(self._pages[server.name])
        if server.command == "broker":
            found["SKYLARKMQ_MAPPED_FILE_SIZE_COMMIT_LOG"] = str(8 << 20)
            found["SKYLARKMQ_CONTROLLER_LEASE_TTL"] = "2"  # a killed one is missed soon
        return found

    async def start(self, all_of: Commands, server: Server) -> Command:
        return await all_of.start(server.command, env=self.environment(server))


async def _leader(admin: Admin) -> FailoverStatus | None:
    try:
        brokers = (await admin.cluster_status()).brokers
    except RocketMQError:
        return None
    seen = [broker.failover for broker in brokers]
    return next((each for each in seen if each is not None and each.leads), None)


@pytest.mark.interop  # with a real etcd, and for as long as its leases take
async def test_the_replicas_go_on_when_a_master_is_killed_or_drained(
    tmp_path: Path,
) -> None:
    etcd = await asyncio.to_thread(start_etcd, tmp_path / "etcd", 3)
    stack = Stack("compose.replicas.yaml", tmp_path, etcd)
    async with AsyncExitStack() as ends:
        for one in etcd:
            ends.callback(one.kill)
        all_of = await ends.enter_async_context(commands(tmp_path))
        running: dict[int, Command] = {}
        for server in servers("compose.replicas.yaml"):
            command = await stack.start(all_of, server)
            running[server.load().config.broker_id if server.command == "broker" else 0] = command
        await all_of.until(lambda: "ready" in running[0].output, "the name server")
        admin = Admin(namesrv_addr=stack.namesrv, timeout=LIMIT_S)
        await ends.enter_async_context(admin)

        async def leads(count: int, other_than: str = "") -> bool:
            seen = await _leader(admin)
            return seen is not None and len(seen.in_sync) >= count and seen.replica != other_than

        await all_of.until(lambda: leads(3), "three in sync")
        before = await _leader(admin)
        assert before is not None and before.broker_id is not None
        await admin.create_topic("orders", queues=1)
        async with Producer(namesrv_addr=stack.namesrv, send_timeout=LIMIT_S) as producer:
            await producer.send(Message("orders", b"before"))
            await running[before.broker_id].kill()
            await all_of.until(lambda: leads(2, before.replica), "another one leads")
            await producer.send(Message("orders", b"after"))
            now = await _leader(admin)
            assert now is not None
            address = stack.page(f"broker-{now.broker_id}")
            drained = await all_of.start("drain", "--address", address)
            drained.is_wanted = False  # it ends by itself
            assert await drained.process.wait() == 0, drained.output
            await all_of.until(lambda: leads(2, now.replica), "another one leads, and both follow")
            await producer.send(Message("orders", b"drained"))
        async with Consumer(
            "orders", group="g", namesrv_addr=stack.namesrv, start_from=StartFrom.FIRST
        ) as consumer:
            got = [(await consumer.getone(timeout=LIMIT_S)).body for _ in range(3)]
        assert got == [b"before", b"after", b"drained"]
