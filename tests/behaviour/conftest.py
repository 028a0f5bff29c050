"""One suite over three kinds of cluster: ours (default), and RocketMQ's own broker and name server
4.9 and 5.3 (marked interop).

    async def test_x(cluster: Cluster, client: Client, topic: str, group: str) -> None:

The cluster is shared by all tests of the session: a test uses `topic` (made for it, four queues),
`group` and `cluster.unique(...)`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest

from skylarkmq.client import Client, Producer
from tests.behaviour.cluster import APACHE_4, APACHE_5, SKYLARKMQ, Cluster, test_name
from tests.interop import java as maven
from tests.interop.admin_tools import JavaAdmin
from tests.interop.apache_server import Apache5Broker, ApacheBroker
from tests.interop.children import Children
from tests.interop.servers import Broker
from tests.interop.skylark_server import SkylarkBroker
from tests.interop.tools import JavaTools
from tests.support.patience import LIMIT_S

SERVERS: dict[str, type[Broker]] = {
    SKYLARKMQ: SkylarkBroker,
    APACHE_4: ApacheBroker,
    APACHE_5: Apache5Broker,
}
KINDS = [
    SKYLARKMQ,
    pytest.param(APACHE_4, marks=pytest.mark.interop),
    pytest.param(APACHE_5, marks=pytest.mark.interop),
]
SHOWN_LINES = 40


@pytest.fixture(scope="session", params=KINDS)
def cluster_kind(request: pytest.FixtureRequest) -> str:
    """Which cluster the test runs over; the tests of one kind come together."""
    kind: str = request.param
    return kind


@pytest.fixture(scope="session")
def shared_broker(cluster_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker of one kind, for as long as tests want it."""
    if cluster_kind != SKYLARKMQ and (why := maven.missing()):
        pytest.skip(why)
    folder = tmp_path_factory.mktemp(cluster_kind)
    broker = SERVERS[cluster_kind](Children(folder), folder)
    try:
        broker.start()
        yield broker
    finally:
        broker.end()


@pytest.fixture
def cluster(request: pytest.FixtureRequest, cluster_kind: str, shared_broker: Broker) -> Cluster:
    """The cluster under test."""
    return Cluster(cluster_kind, shared_broker, test_name(request))


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    """A started client of the cluster."""
    async with cluster.client() as client:
        yield client


@pytest.fixture
async def producer(client: Client) -> AsyncIterator[Producer]:
    """A started producer on `client`."""
    async with Producer(client=client, send_timeout=LIMIT_S) as producer:
        yield producer


@pytest.fixture
async def topic(cluster: Cluster, client: Client) -> str:
    """A topic of four queues that no other test uses."""
    name = cluster.unique("T")
    await cluster.create_topic(client, name)
    return name


@pytest.fixture
def group(cluster: Cluster) -> str:
    """A consumer group that no other test uses."""
    return cluster.unique("G")


@pytest.fixture
def java(cluster: Cluster, tmp_path: Path) -> Iterator[JavaTools]:
    """RocketMQ's Java client against the cluster; its processes end with the test."""
    if why := maven.missing():
        pytest.skip(why)
    children = Children(tmp_path)
    yield JavaTools(children, cluster.broker)
    children.stop_all()


@pytest.fixture
def mqadmin(java: JavaTools, cluster: Cluster, tmp_path: Path) -> Iterator[JavaAdmin]:
    """RocketMQ's administration tool against the cluster."""
    children = Children(tmp_path)
    yield JavaAdmin(children, cluster.broker)
    children.stop_all()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Beside a failed test stands what its broker printed last."""
    report = yield
    broker = getattr(item, "funcargs", {}).get("shared_broker")
    if report.failed and broker is not None:
        for child in broker.children.all:
            report.sections.append((child.name, child.tail(SHOWN_LINES)))
    return report
