"""RocketMQ's Java client and administration tool over TLS, against each mode of the broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.children import Children
from tests.interop.skylark_server import SkylarkBroker
from tests.interop.tools import JavaTools
from tests.support.certificates import Authority

pytestmark = pytest.mark.interop

TLS = "-Dtls.enable=true"
CHECKED = (TLS, "-Dtls.test.mode.enable=false", "-Dtls.client.authServer=true")

Start = Callable[..., JavaTools]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def start(maven: None, children: Children, tmp_path: Path) -> Iterator[Start]:
    """Starts a broker with keys of TLS, and returns the Java client's programs for it."""
    brokers: list[SkylarkBroker] = []

    def starts(**keys: object) -> JavaTools:
        named = {name.replace("__", "."): value for name, value in keys.items()}
        broker = SkylarkBroker(children, tmp_path, **named)
        brokers.append(broker)
        broker.start()
        return JavaTools(children, broker)

    yield starts
    for broker in brokers:
        broker.end()


def works(tools: JavaTools, topic: str, group: str, *options: str) -> None:
    """Send, and consume what was sent."""
    tools.queues(topic, create=1)
    sent = tools.produce(topic, "sync", 20, *options)
    assert [one["event"] for one in sent] == ["sent"] * 20
    consumer = tools.consume(topic, group, *options)
    got = consumer.count("message", 20)
    consumer.finish()
    assert {one["msg_id"] for one in got} == {one["msg_id"] for one in sent}


def test_the_defaults_of_both(start: Start, topic: str, group: str) -> None:
    """Permissive and test mode there, a client that checks nothing here: and one without TLS."""
    tools = start()
    works(tools, topic, group, TLS)
    assert [one["event"] for one in tools.produce(topic, "sync", 1)] == ["sent"]


def test_a_client_that_checks_the_certificate(
    start: Start, authority: Authority, topic: str, group: str
) -> None:
    tools = start(
        tls__server__mode="permissive",
        tls__server__certPath=authority.certificate_file("127.0.0.1"),
    )
    works(tools, topic, group, *CHECKED, f"-Dtls.client.trustCertPath={authority.ca_file}")


def test_client_certificates(start: Start, authority: Authority, topic: str, group: str) -> None:
    tools = start(
        tls__server__mode="permissive",
        tls__server__certPath=authority.certificate_file("127.0.0.1"),
        tls__server__need__client__auth="require",
        tls__server__trustCertPath=authority.ca_file,
    )
    certificate = authority.certificate_file("client")
    trust = f"-Dtls.client.trustCertPath={authority.ca_file}"
    mine = (f"-Dtls.client.certPath={certificate}", f"-Dtls.client.keyPath={certificate}")
    works(tools, topic, group, *CHECKED, trust, *mine)
    refused = tools.produce(topic, "sync", 1, *CHECKED, trust)
    assert [one["event"] for one in refused] != ["sent"]


def test_a_broker_that_enforces_tls(start: Start, topic: str, group: str) -> None:
    tools = start(tls__server__mode="enforcing", defaultTopicQueueNums=1)
    sent = tools.produce(topic, "async", 20, TLS)
    assert [one["event"] for one in sent] == ["sent"] * 20
    consumer = tools.consume(topic, group, TLS)
    consumer.count("message", 20)
    consumer.finish()
    refused = tools.produce(topic, "sync", 1)
    assert [one["event"] for one in refused] == ["error"]
