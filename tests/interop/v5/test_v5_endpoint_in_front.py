"""What stands between one endpoint and the brokers that it calls: TLS, accounts, an endpoint that
is lost, and a set of replicas whose master changes. Ours alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylarkmq.client import Admin, Client, Credentials
from tests.failover.cluster import HOSTS, Cluster
from tests.failover.network import Namespaces, why_no_namespaces
from tests.interop.accounts import ALICE, GROUP, OPEN, READ_ONLY, ROOT, Keys
from tests.interop.children import Children
from tests.interop.v5.conftest import KIND, Connect
from tests.interop.v5.pairs import SkylarkPair
from tests.interop.v5.programs import (
    LANGUAGES,
    CallFailedError,
    Place,
    Producer,
    Program,
    PushConsumer,
)
from tests.support.certificates import Authority
from tests.support.etcd_process import etcd_program

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(SkylarkPair.kind != KIND, reason="how ours stand before each other"),
]

UNAUTHORIZED, FORBIDDEN = 40100, 40300
BODIES = [f"m-{number}" for number in range(8)]
GRPC_PORT = 8081
LONG_MS = 3_600_000
"""Nothing comes again in a test."""


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SkylarkPair]:
    """Two brokers that the test starts; a parameter has the keys of the one behind."""
    folder = tmp_path / "pair"
    folder.mkdir()
    found = SkylarkPair(folder, getattr(request, "param", None))
    try:
        yield found
    finally:
        found.end()


def goes_through(program: Program, topic: str, group: str) -> None:
    """Send messages and receive all of them, each once, by both kinds of consumers."""
    producer = program.producer(topic)
    pushed, later = ([f"{body} {word} {group}" for body in BODIES] for word in ("first", "later"))
    sent = {body: producer.send(body)["message_id"] for body in pushed}
    push = program.push(topic, group)
    push.until(*pushed)
    push.close()
    sent |= {body: producer.send(body)["message_id"] for body in later}
    simple = program.simple(topic, group)
    received = simple.received(len(later), LONG_MS)
    for message in received:
        simple.ack(message)
    # A group that is new gets what was sent for others before, too.
    found = [one for one in (*push.messages, *received) if one["body"] in sent]
    assert {one["body"]: one["message_id"] for one in found} == sent
    assert len(found) == len(sent)


def test_tls_to_the_endpoint_and_from_there(
    pair: SkylarkPair, connect: Connect, tmp_path: Path, topic: str, group: str
) -> None:
    """The broker behind takes nothing but TLS, and its certificate is checked."""
    authority = Authority(tmp_path)
    certificate = authority.certificate_file("127.0.0.1")
    for server in (pair.names, *pair.ours):
        server.keys["tls.server.certPath"] = certificate
    for broker in pair.ours:
        broker.keys |= {"tls.enable": "true", "tls.client.trustCertPath": authority.ca_file}
    pair.start()
    pair.make_topic(topic)
    pair.far.stop()
    pair.far.keys["tls.server.mode"] = "enforcing"
    pair.far.start()
    pair.routed(topic)
    program = connect(Place(pair.endpoint, tls=True, ca_file=str(authority.ca_file)))
    goes_through(program, topic, group)


def test_accounts_at_both_brokers(pair: SkylarkPair, connect: Connect) -> None:
    """The broker behind checks the client's own account."""
    for broker in pair.ours:
        broker.secure()
    pair.start()

    async def make_topics() -> None:
        client = Client(pair.near.namesrv, credentials=Credentials(*ROOT))
        async with client, Admin(client=client) as admin:
            for topic in (OPEN, READ_ONLY):
                await admin.create_topic(topic, queues=2, exist_ok=True)
            brokers = {each.broker for each in (await admin.describe_topic(OPEN)).settings}
            assert brokers == {broker.name for broker in pair.brokers}

    asyncio.run(make_topics())

    def with_keys(keys: Keys) -> Program:
        return connect(Place(pair.endpoint, key=keys[0], secret=keys[1]))

    goes_through(with_keys(ROOT), OPEN, "G_root")
    for keys in ((ROOT[0], "another-secret"), ("nobody-known", ROOT[1]), ("", "")):
        with pytest.raises(CallFailedError) as raised:
            with_keys(keys).producer(OPEN).send("m")
        assert raised.value.code in {0, UNAUTHORIZED}, raised.value
    alice = with_keys(ALICE)
    goes_through(alice, OPEN, GROUP)
    if alice.language == "go":
        return  # it waits for settings, and does not look at the status that comes instead
    with pytest.raises(CallFailedError) as raised:
        alice.simple(OPEN, "G_others").receive()
    assert raised.value.code in {0, FORBIDDEN}
    with pytest.raises(CallFailedError) as raised:
        alice.producer(READ_ONLY).send("m")
    assert raised.value.code in {0, FORBIDDEN}


@pytest.mark.parametrize("pair", [{"grpcProxyMode": "CLUSTER"}], indirect=True, ids=["both"])
def test_one_of_two_endpoints_is_lost(
    pair: SkylarkPair, connect: Connect, language: str, topic: str, group: str
) -> None:
    """A client that names both goes on at the other one at once, whichever it is."""
    if language == "node":
        pytest.skip("Node's client takes several addresses for one name, which it does not find")
    pair.start()
    pair.make_topic(topic)
    program = connect(Place(";".join(broker.endpoint for broker in pair.ours)))
    producer = program.producer(topic)
    push = program.push(topic, group)
    goes_on(producer, push, "before")
    for lost in pair.brokers:
        lost.kill()
        sent = [f"{body} without {lost.name}" for body in BODIES]
        for body in sent:
            producer.send(body)
        push.until(*sent)
        lost.start()
        pair.routed(topic)


def goes_on(producer: Producer, push: PushConsumer, word: str) -> None:
    """Wait until sends work, and their messages come."""
    for body in BODIES:
        producer.send_surely(f"{body} {word}")
    push.until(*(f"{body} {word}" for body in BODIES))


@pytest.mark.fault_root
def test_a_replica_that_follows_is_the_endpoint(tmp_path: Path, topic: str, group: str) -> None:
    """Clients of all languages at both replicas that follow; then the master is lost."""
    etcd_program(tmp_path)
    if why := why_no_namespaces():
        pytest.skip(why)
    keys = {"grpcListenPort": GRPC_PORT, "grpcProxyMode": "CLUSTER"}
    cluster = Cluster(tmp_path, Namespaces(HOSTS), settings=keys)
    children = Children(tmp_path)
    try:
        cluster.make()
        asyncio.run(cluster.start())
        first = asyncio.run(cluster.led()).master
        asyncio.run(made_topic(cluster, topic))
        followers = [name for name in cluster.replicas if name != first]
        pairs: list[tuple[Producer, PushConsumer]] = []
        for number, language in enumerate(LANGUAGES):
            host, _ = cluster.address(followers[number % 2])
            program = Program(children, language, Place(f"{host}:{GRPC_PORT}"))
            pairs.append((program.producer(topic), program.push(topic, f"{group}_{language}")))
        for producer, push in pairs:
            goes_on(producer, push, producer.name)
        cluster.replicas[first].kill()
        asyncio.run(cluster.led(but=first))
        for producer, push in pairs:
            goes_on(producer, push, f"{producer.name} at the next master")
        assert cluster.unasked_ends() == []
    finally:
        children.stop_all()
        cluster.end()


async def made_topic(cluster: Cluster, topic: str) -> None:
    """Have the master make a topic."""
    async with Admin(namesrv_addr=cluster.namesrv) as admin:
        await admin.create_topic(topic, queues=2)
