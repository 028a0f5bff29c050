"""What the interop tests share. INTEROP_BROKER says what they run against:

skylarkmq   ours (default)
apache      RocketMQ's own broker, which shows that the tests themselves are right
apache53    that of 5.3
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from tests.interop import java
from tests.interop.admin_tools import JavaAdmin
from tests.interop.apache_server import Apache5Broker, ApacheBroker
from tests.interop.children import Children, Several
from tests.interop.mixed_cluster import MixedCluster
from tests.interop.servers import Broker
from tests.interop.skylark_server import SkylarkBroker
from tests.interop.tools import JavaTools

SERVERS: dict[str, type[Broker]] = {
    server.kind: server for server in (SkylarkBroker, ApacheBroker, Apache5Broker)
}
KINDS = os.environ.get("INTEROP_BROKER", "skylarkmq").split(",")
SHOWN_LINES = 60

Start = Callable[[type[Broker]], Broker]


@pytest.fixture(scope="session")
def start_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts brokers that live as long as the session."""
    brokers: list[Broker] = []

    def start(server: type[Broker]) -> Broker:
        if issubclass(server, ApacheBroker) and (why := java.missing()):
            pytest.skip(why)
        folder = tmp_path_factory.mktemp(server.kind)
        broker = server(Children(folder), folder)
        brokers.append(broker)
        broker.start()
        return broker

    yield start
    for broker in brokers:
        broker.end()


@pytest.fixture(scope="session", params=KINDS)
def broker(request: pytest.FixtureRequest, start_broker: Start) -> Broker:
    """The broker under test, shared: each test has topics and groups of its own."""
    return start_broker(SERVERS[request.param])


@pytest.fixture
def own_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """A broker that the test may stop and start again; a parameter is a table of its keys."""
    server = SERVERS[KINDS[0]]
    if issubclass(server, ApacheBroker) and (why := java.missing()):
        pytest.skip(why)
    folder = tmp_path / server.kind
    folder.mkdir()
    broker = server(Children(folder), folder, **getattr(request, "param", {}))
    try:
        broker.start()
        yield broker
    finally:
        broker.end()


@pytest.fixture(scope="session")
def mixed(maven: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    """Brokers and name servers of both kinds, shared: each test leaves all four running."""
    cluster = MixedCluster(tmp_path_factory.mktemp("mixed"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    """Starts processes that end with the test."""
    started = Children(tmp_path)
    yield started
    started.stop_all()


@pytest.fixture(scope="session")
def maven() -> None:
    """Skips where no Java client can be built or run."""
    if why := java.missing():
        pytest.skip(why)


@pytest.fixture
def tools(maven: None, children: Children, broker: Broker) -> JavaTools:
    """RocketMQ's Java client against the broker under test."""
    return JavaTools(children, broker)


@pytest.fixture(scope="session")
def admin(maven: None, broker: Broker) -> JavaAdmin:
    """RocketMQ's administration tool against the broker under test, one JVM for all tests."""
    return JavaAdmin(broker.children, broker)


@pytest.fixture
def own_admin(maven: None, children: Children, own_broker: Broker) -> JavaAdmin:
    """The same against a broker that the test may stop."""
    return JavaAdmin(children, own_broker)


@pytest.fixture
def own_tools(maven: None, children: Children, own_broker: Broker) -> JavaTools:
    """RocketMQ's Java client against a broker that the test may stop."""
    return JavaTools(children, own_broker)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic that no other test uses."""
    return "T_" + _name(request)


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A consumer group that no other test uses."""
    return "G_" + _name(request)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Beside a failed test stands what its brokers printed last."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, Broker):
                for child in value.children.all:
                    report.sections.append((child.name, child.tail(SHOWN_LINES)))
            elif isinstance(value, Several):
                report.sections += value.tail(SHOWN_LINES)
    return report


def _name(request: pytest.FixtureRequest) -> str:
    """File and test, as far as a name goes: a group has at most 120 characters, %RETRY% is more."""
    text = f"{request.path.stem}_{request.node.name}".replace("test_", "")
    return re.sub(r"[^A-Za-z0-9]+", "_", text)[:100]
