"""A client's own settings: namespace, name servers, what it learns about the brokers."""

from __future__ import annotations

import pytest

from skylarkmq.client import Client, Producer
from skylarkmq.client.config import Codec
from skylarkmq.client.instance import services_of
from tests.behaviour.cluster import Cluster
from tests.behaviour.support import Inbox, bodies, consuming, numbered, received, send_numbered

NAMESPACE = "shop"


@pytest.mark.parametrize("codec", ["auto", "json", "rocketmq"])
async def test_the_client_learns_what_the_broker_is(cluster: Cluster, codec: Codec) -> None:
    async with cluster.client(codec=codec) as client:
        peer = await services_of(client).peer(cluster.address)
    assert peer.ours == cluster.is_ours
    assert peer.has_timers == cluster.has("timers")


async def test_topics_and_groups_of_a_namespace(
    cluster: Cluster, client: Client, group: str
) -> None:
    name = cluster.unique("T")
    await cluster.create_topic(client, f"{NAMESPACE}%{name}")
    async with cluster.client(namespace=NAMESPACE) as tenant:
        async with Producer(client=tenant) as producer:
            await send_numbered(producer, name, "m", 10)
            assert {queue.topic for queue in await producer.queues(name)} == {name}
        async with consuming(tenant, name, group, Inbox(fail=1)) as inbox:
            await inbox.wait(lambda: len({m.body for m in inbox.messages}) == 10)
            tries = await inbox.count(20)
    assert bodies(tries) == sorted(numbered("m", 10) * 2), "each failed once and came again"
    assert {message.topic for message in tries} == {name}

    outside = await received(client, f"{NAMESPACE}%{name}", f"{group}_outside", 10)
    assert bodies(outside) == numbered("m", 10)
    assert {message.properties["INSTANCE_ID"] for message in outside} == {NAMESPACE}


async def test_a_dead_name_server_beside_a_good_one(
    cluster: Cluster, topic: str, group: str
) -> None:
    async with Client(f"127.0.0.1:1, {cluster.namesrv}") as client:
        async with Producer(client=client) as producer:
            await send_numbered(producer, topic, "m", 5)
        assert bodies(await received(client, topic, group, 5)) == numbered("m", 5)
