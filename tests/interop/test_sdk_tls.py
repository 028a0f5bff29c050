"""The SDK over TLS to RocketMQ's own servers: verified, and refused when something is wrong."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pytest

from skylarkmq.client import Client, Message, Producer, RocketMQError, TlsError
from tests.behaviour.support import bodies, numbered, received, send_numbered
from tests.interop.apache_server import Apache5Broker, ApacheBroker
from tests.interop.children import Children
from tests.interop.servers import Broker
from tests.support.certificates import Authority

pytestmark = pytest.mark.interop

NAME = "broker.example"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=[ApacheBroker, Apache5Broker], ids=["49", "53"])
def secured(
    request: pytest.FixtureRequest,
    maven: None,
    authority: Authority,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Broker]:
    """Name server and broker that take TLS, and plain text too, on the same port."""
    folder = tmp_path_factory.mktemp("tls")
    certificate = authority.certificate_file(NAME, "127.0.0.1")
    broker = request.param(Children(folder), folder)
    broker.options = (
        "-Dtls.test.mode.enable=false",
        "-Dtls.server.mode=permissive",
        f"-Dtls.server.certPath={certificate}",
        f"-Dtls.server.keyPath={certificate}",
    )
    try:
        broker.start()
        yield broker
    finally:
        broker.end()


def client_of(broker: Broker, context: ssl.SSLContext | bool, name: str | None = None) -> Client:
    return Client(
        broker.namesrv,
        ssl=context,
        server_hostname=name,
        heartbeat_interval=1.0,
        route_refresh=1.0,
    )


@pytest.mark.parametrize("name", [None, NAME], ids=["by-address", "by-name"])
async def test_verified(
    secured: Broker, authority: Authority, topic: str, group: str, name: str | None
) -> None:
    async with client_of(secured, authority.client_context(), name) as client:
        async with Producer(client=client) as producer:
            await send_numbered(producer, topic, "m", 50)
            big = await producer.send(Message(topic, bytes(range(256)) * 4000))
        got = await received(client, topic, group, 51)
        by_id = {message.msg_id: message for message in got}
        assert by_id.pop(big.msg_id).body == bytes(range(256)) * 4000
        assert bodies([*by_id.values()]) == numbered("m", 50)


async def test_one_topic_for_those_with_tls_and_those_without(
    secured: Broker, authority: Authority, topic: str, group: str
) -> None:
    async with client_of(secured, False) as plain, Producer(client=plain) as producer:
        await send_numbered(producer, topic, "m", 5)
    async with client_of(secured, authority.client_context()) as client:
        assert bodies(await received(client, topic, group, 5)) == numbered("m", 5)


async def test_an_unknown_issuer(secured: Broker) -> None:
    with pytest.raises(TlsError, match="issuer check"):
        await client_of(secured, True).start()


async def test_a_wrong_name(secured: Broker, authority: Authority) -> None:
    with pytest.raises(TlsError, match="host name check"):
        await client_of(secured, authority.client_context(), "elsewhere.example").start()


async def test_the_name_server_of_a_plain_cluster_speaks_no_tls(broker: Broker) -> None:
    """Ours: it must say so, not hang."""
    with pytest.raises(RocketMQError):
        await client_of(broker, True).start()
