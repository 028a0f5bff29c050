"""Everything that boards and rules ask about, small and in this process, with some load.

broker-m   master, SYNC_FLUSH, TLS, with a slave; groups that lag, give up, differ
broker-p   a transient pool
broker-a   two replicas that elect their master
the supervisor of several processes, the queries of a Spark driver, and an application with the SDK,
as their pages show them
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.broker.config.settings import NamesrvConfig
from skylarkmq.broker.config.tls_settings import TlsConfig
from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.fleet.pages import fleet_families
from skylarkmq.broker.namesrv.controller import NamesrvController
from skylarkmq.client import (
    Client,
    Consumer,
    Message,
    Producer,
    ReceivedMessage,
    SimpleConsumer,
    StartFrom,
    Tag,
)
from skylarkmq.client.observe.metrics import families_of
from skylarkmq.common.clock import Clock
from skylarkmq.common.files import Files
from skylarkmq.spark.offsets import QueueKey, QueueOffsets
from skylarkmq.spark.progress import ProgressMetrics, read_progress
from tests.broker.replication.replica_rig import ReplicaSet, replicas_at
from tests.support.certificates import Authority
from tests.support.live_broker import PATIENT, broker_config
from tests.support.patience import LIMIT_S, until

TOPIC = "orders"
BROKERS, SPARK, APPLICATION = "skylarkmq", "skylarkmq-spark", "billing"
"""The first two are the jobs in `deploy/prometheus/prometheus.yml`."""
LATER = {
    "rocketmq_consumer_connections",
    "rocketmq_consumer_inflight_messages",
    "rocketmq_consumer_lag_latency_milliseconds",
    "rocketmq_consumer_queueing_latency_milliseconds",
    "rocketmq_producer_connections",
    "rocketmq_send_to_dlq_messages_total",
    "rocketmq_storage_message_reserve_time_milliseconds",
    "skylarkmq_consumer_group_differing_subscriptions",
    "skylarkmq_client_consume_duration_seconds_count",
    "skylarkmq_nameserver_registered",
    "skylarkmq_replica_behind_bytes",
    "skylarkmq_slave_behind_bytes",
    "skylarkmq_store_disk_used_ratio",
}
"""Families that have their first series when somebody has looked at a disk, or said something."""


class Series(NamedTuple):
    """One series of a scrape."""

    name: str
    labels: Mapping[str, str]


def scrape(address: str) -> str:
    """Return the text of a page of metrics."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=LIMIT_S) as answer:
        return str(answer.read().decode())


def series_of(text: str, job: str, instance: str) -> Iterator[Series]:
    """Yield the series as Prometheus names them, with those that it adds itself."""
    place = {"job": job, "instance": instance}
    yield Series("up", place)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield Series(sample.name, {**sample.labels, **place})


class Pages:
    """A page of metrics that somebody else's process has: a supervisor, a Spark driver."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._server, self._thread = start_http_server(0, "127.0.0.1", registry)
        self.address = f"127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class FleetPage:
    """The families that a supervisor adds."""

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        slot = SimpleNamespace(name="broker-m", fields={}, restart_count=0, aborted_count=0)
        supervisor: Any = SimpleNamespace(slots=[slot], brokers=[slot])
        yield from fleet_families(supervisor, frozenset({"broker-m"}))


def progress_of(batch: int, rows: int, behind: int) -> dict[str, Any]:
    """Return what Spark reports of a batch, as far as it counts here."""
    place = QueueKey(TOPIC, "broker-m", 0)
    return {
        "id": "1", "runId": "2", "name": "archive", "batchId": batch, "numInputRows": rows,
        "batchDuration": 250, "eventTime": {"watermark": "2026-01-02T03:04:05.000Z"},
        "stateOperators": [{"numRowsDroppedByWatermark": 1}],
        "sources": [{
            "endOffset": QueueOffsets({place: 10}).text(),
            "latestOffset": {
                **QueueOffsets({place: 10 + behind}).to_json(),
                "behind": {TOPIC: behind}, "lost": 0, "away": [],
            },
        }],
    }  # fmt: skip


@contextmanager
def spark_page() -> Iterator[tuple[ProgressMetrics, str]]:
    """Serve what `spark.progress.watch` serves; yield the metrics and the address."""
    metrics = ProgressMetrics()
    metrics.started("2")
    metrics.take(read_progress(progress_of(1, 10, 7)))
    registry = CollectorRegistry()
    registry.register(metrics)
    page = Pages(registry)
    try:
        yield metrics, page.address
    finally:
        page.close()


class Site:
    """What runs.

    Attributes:
        targets: `host:port` of each page of metrics, by job.
    """

    def __init__(self, namesrv_addr: str) -> None:
        self.namesrv_addr = namesrv_addr
        self.targets: dict[str, list[str]] = {BROKERS: [], SPARK: [], APPLICATION: []}

    async def series(self) -> list[Series]:
        """Scrape all until the last family has its series."""

        async def scraped() -> list[Series] | None:
            found = await self._scraped()
            return None if LATER - {each.name for each in found} else found

        found = await until(scraped, f"all of {LATER}")
        assert found is not None
        return found

    async def _scraped(self) -> list[Series]:
        found: list[Series] = []
        for job, addresses in self.targets.items():
            for address in addresses:
                text = await asyncio.to_thread(scrape, address)
                found += series_of(text, job, address)
        return found


async def started(
    stack: AsyncExitStack,
    root: Path,
    files: Files | None = None,
    clock: Clock | None = None,
    **changes: Any,
) -> BrokerController:
    """Start a broker whose end is the stack's."""
    broker = BrokerController(broker_config(root, **PATIENT, **changes), files=files, clock=clock)
    await broker.start()
    stack.push_async_callback(broker.stop)
    return broker


def page_of(broker: BrokerController) -> str:
    """Return where a broker's page of metrics is."""
    assert broker.metrics_address is not None
    return "{}:{}".format(*broker.metrics_address)


@asynccontextmanager
async def loaded_site(folder: Path) -> AsyncIterator[Site]:
    """Start everything, and send and read until each family has its series."""
    async with AsyncExitStack() as stack:
        names = NamesrvController(
            NamesrvConfig(listen_port=0), SystemClock(asyncio.get_running_loop())
        )
        await names.start()
        stack.push_async_callback(names.stop)
        site = Site("{}:{}".format(*names.listen_address))
        await _brokers(stack, site, folder)
        spark = stack.enter_context(spark_page())
        site.targets[SPARK].append(spark[1])
        fleet, application = CollectorRegistry(), CollectorRegistry()
        fleet.register(FleetPage())
        await _load(stack, site, application)
        for job, registry in ((BROKERS, fleet), (APPLICATION, application)):
            page = Pages(registry)
            stack.callback(page.close)
            site.targets[job].append(page.address)
        yield site


async def _brokers(stack: AsyncExitStack, site: Site, folder: Path) -> None:
    certificate = Authority(folder).certificate_file("127.0.0.1")
    common: dict[str, Any] = {"namesrv_addr": site.namesrv_addr}
    master = await started(
        stack, folder / "master", broker_name="broker-m", flush_disk_type="SYNC_FLUSH",
        tls=TlsConfig(tls_server_cert_path=certificate), grpc_listen_port=0, **common,
    )  # fmt: skip
    assert master.parts.grpc is not None
    master.parts.grpc.calls.count("ReceiveMessage", 40401)
    master.parts.grpc.forwarded["broker-p", 20000] += 1
    slave = await started(
        stack, folder / "slave", broker_name="broker-m", broker_role="SLAVE", broker_id=1, **common
    )
    pool = await started(
        stack, folder / "pool", broker_name="broker-p", transient_store_pool_enable=True,
        transient_store_pool_size=2, mapped_file_size_commit_log=1 << 20,
        max_message_size=100_000, **common,
    )  # fmt: skip
    replicas: ReplicaSet = await stack.enter_async_context(
        replicas_at(site.namesrv_addr, folder, metrics="listen")
    )
    for number in (1, 2):
        await replicas.start(number)
    await replicas.led()
    await replicas.in_sync(1, 2)
    lives = (each.life for each in replicas.replicas.values())
    site.targets[BROKERS] += map(page_of, (master, slave, pool, *lives))
    await until(lambda: master.parts.ha_server and master.parts.ha_server.slaves, "the slave")


async def _load(stack: AsyncExitStack, site: Site, application: CollectorRegistry) -> None:
    """Send to all brokers; read a part, leave a part, give up one, and disagree."""
    clients = [Client(namesrv_addr=site.namesrv_addr, metrics=application) for _ in range(3)]
    for client in clients:
        await stack.enter_async_context(client)
    producer = await stack.enter_async_context(Producer(client=clients[0]))
    await until(lambda: _sent(producer), "a topic that takes messages")
    for number in range(60):
        await producer.send(Message(TOPIC, b"%d" % number, tags="A"))
    await producer.send(Message(TOPIC, b"later", tags="A", delay_level=18))
    for client, tag in zip(clients[1:], ("A", "B"), strict=True):
        consumer = Consumer(TOPIC, group="mixed", client=client, selector=Tag(tag))
        await stack.enter_async_context(consumer)
    reader = Consumer(
        TOPIC, group="billing", client=clients[1], ack="manual", start_from=StartFrom.FIRST
    )
    await stack.enter_async_context(reader)
    await (await reader.getone(LIMIT_S)).ack()
    await (await reader.getone(LIMIT_S)).dead_letter("not wanted")
    await reader.commit()
    families = families_of(application)
    families.send_duration.of(TOPIC, "RequestTimeout").observe(3)
    families.consume_duration.of(TOPIC, "shipping", "retry").observe(0.1)
    families.settle_duration.of(TOPIC, "collecting", "ack", "ReceiptExpired").observe(0.1)
    families.receive_to_ack.of(TOPIC, "collecting").observe(3)
    families.receive_duration.of("collecting", "SystemBusy").observe(3)
    families.send_retries.of("SystemBusy").inc()
    families.reconnects.of("broker").inc()
    handled = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        handled.set()

    worker = Consumer(TOPIC, group="shipping", client=clients[2], start_from=StartFrom.FIRST)
    await stack.enter_async_context(worker)
    running = asyncio.ensure_future(worker.run(handle))
    simple = SimpleConsumer(TOPIC, group="collecting", client=clients[1])
    await stack.enter_async_context(simple)
    await simple.receive(1)
    stack.callback(running.cancel)
    async with asyncio.timeout(LIMIT_S):
        await handled.wait()


async def _sent(producer: Producer) -> bool:
    with suppress(Exception):
        await producer.send(Message(TOPIC, b"first", tags="A"))
        return True
    return False
