"""RocketMQ's Java client and administration tool over TLS, against each mode of the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from skylarkmq.client import Admin, Client, Message, Producer
from tests.interop.accounts import ALICE, ROOT, secured_broker
from tests.interop.admin_tools import JavaAdmin
from tests.interop.apache_server import ApacheBroker
from tests.interop.children import Children
from tests.interop.skylark_server import SkylarkBroker
from tests.interop.tools import JavaTools
from tests.support.certificates import Authority
from tests.support.patience import until

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


@pytest.mark.parametrize("certificate", ["expired", "of another authority"])
def test_client_certificates_that_are_not_good(
    start: Start, authority: Authority, tmp_path: Path, topic: str, certificate: str
) -> None:
    other = Authority(tmp_path, "another authority")
    mine = (
        authority.certificate_file("client", lasts=timedelta(days=-1))
        if certificate == "expired"
        else other.certificate_file("client")
    )
    tools = start(
        tls__server__mode="enforcing",
        tls__server__certPath=authority.certificate_file("127.0.0.1"),
        tls__server__need__client__auth="require",
        tls__server__trustCertPath=authority.ca_file,
    )
    refused = tools.produce(
        topic,
        "sync",
        1,
        *CHECKED,
        f"-Dtls.client.trustCertPath={authority.ca_file}",
        f"-Dtls.client.certPath={mine}",
        f"-Dtls.client.keyPath={mine}",
    )
    assert [one["event"] for one in refused] == ["error"]


@pytest.mark.parametrize("certificate", ["expired", "of another authority"])
def test_certificates_of_the_server_that_are_not_good(
    start: Start, authority: Authority, tmp_path: Path, topic: str, certificate: str
) -> None:
    """Who checks does not send; who does not check, does."""
    other = Authority(tmp_path, "another authority")
    tools = start(
        tls__server__mode="enforcing",
        tls__server__certPath=(
            authority.certificate_file("127.0.0.1", lasts=timedelta(days=-1))
            if certificate == "expired"
            else other.certificate_file("127.0.0.1")
        ),
    )
    trust = f"-Dtls.client.trustCertPath={authority.ca_file}"
    refused = tools.produce(topic, "sync", 1, *CHECKED, trust)
    assert [one["event"] for one in refused] == ["error"]
    assert [one["event"] for one in tools.produce(topic, "sync", 1, TLS)] == ["sent"]


def test_mqadmin(maven: None, authority: Authority, tmp_path: Path) -> None:
    """Over TLS with an account and without one, and in plain text, which is not served."""
    tls = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": authority.certificate_file("127.0.0.1"),
    }
    checked = (*CHECKED, f"-Dtls.client.trustCertPath={authority.ca_file}")
    with secured_broker(tmp_path / "broker", **tls) as broker:
        root = JavaAdmin(broker.children, broker, ROOT, jvm=checked)
        assert "broker-a" in root.run("clusterList")
        text = root.run("updateTopic", "-t", "T_new", "-b", root.address)
        assert "success" in text
        assert "T_new" in root.run("topicList")
        assert "enforcing" in root.run("getBrokerConfig", "-b", root.address)
        alice = JavaAdmin(broker.children, broker, ALICE, jvm=checked)
        text = alice.run("updateTopic", "-t", "T_newer", "-b", alice.address)
        assert "Need admin permission for request code=17" in text
        nobody = JavaAdmin(broker.children, broker, jvm=checked)
        assert "No accessKey is configured" in nobody.run("clusterList")
        plain = JavaAdmin(broker.children, broker, ROOT)
        text = plain.run("clusterList")
        assert "command failed" in text and "broker-a" not in text
        assert "org.apache.rocketmq.remoting.exception.Remoting" in text


def test_our_broker_registers_over_tls(maven: None, authority: Authority, tmp_path: Path) -> None:
    """At RocketMQ's own name server, which serves TLS alone."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "ours").mkdir()
    theirs = ApacheBroker(Children(tmp_path / "theirs"), tmp_path / "theirs")
    certificate = authority.certificate_file("127.0.0.1")
    theirs.options = (
        TLS,
        "-Dtls.test.mode.enable=false",
        "-Dtls.server.mode=enforcing",
        f"-Dtls.server.certPath={certificate}",
        f"-Dtls.server.keyPath={certificate}",
    )
    ours = SkylarkBroker(
        Children(tmp_path / "ours"),
        tmp_path / "ours",
        theirs,
        **{
            "tls.server.mode": "enforcing",
            "tls.server.certPath": certificate,
            "tls.client.trustCertPath": authority.ca_file,
        },
    )
    try:
        theirs.start()
        ours.start()
        check_both(theirs.namesrv, authority)
    finally:
        ours.end()
        theirs.end()


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_rocketmqs_broker_registers_over_tls(
    maven: None, authority: Authority, tmp_path: Path, mode: str
) -> None:
    """At our name server; RocketMQ's broker then sends and receives beside ours."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "ours").mkdir()
    certificate = authority.certificate_file("127.0.0.1")
    ours = SkylarkBroker(
        Children(tmp_path / "ours"),
        tmp_path / "ours",
        **{"tls.server.mode": mode, "tls.server.certPath": certificate},
    )
    try:
        ours.start()
        theirs = ApacheBroker(Children(tmp_path / "theirs"), tmp_path / "theirs", ours)
        theirs.options = (
            *CHECKED,
            f"-Dtls.client.trustCertPath={authority.ca_file}",
            "-Dtls.server.mode=enforcing",
            f"-Dtls.server.certPath={certificate}",
            f"-Dtls.server.keyPath={certificate}",
        )
        try:
            theirs.start()
            check_both(ours.namesrv, authority)
        finally:
            theirs.end()
    finally:
        ours.end()


def check_both(namesrv: str, authority: Authority) -> None:
    """Over TLS, both brokers are registered, and each takes messages."""

    async def check() -> None:
        client = Client(namesrv, ssl=authority.client_context(), route_refresh=1.0)
        async with client, Admin(client=client) as admin:

            async def known() -> bool:
                names = {broker.name for broker in (await admin.cluster()).brokers}
                return names == {"broker-a", "broker-b"}

            await until(known, "both brokers")
            await admin.create_topic("T_both", queues=2)
            async with Producer(client=client) as producer:
                sent = [await producer.send(Message("T_both", "x")) for _ in range(8)]
        assert {result.queue.broker_name for result in sent} == {"broker-a", "broker-b"}

    asyncio.run(check())


def test_a_broker_that_enforces_tls(start: Start, topic: str, group: str) -> None:
    tools = start(tls__server__mode="enforcing", defaultTopicQueueNums=1)
    sent = tools.produce(topic, "async", 20, TLS)
    assert [one["event"] for one in sent] == ["sent"] * 20
    consumer = tools.consume(topic, group, TLS)
    consumer.count("message", 20)
    consumer.finish()
    refused = tools.produce(topic, "sync", 1)
    assert [one["event"] for one in refused] == ["error"]
