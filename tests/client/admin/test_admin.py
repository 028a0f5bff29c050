"""Admin as a whole: its life, several brokers, several clusters, namespaces, cancellation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.client import (
    Admin,
    AlreadyExists,
    BrokerError,
    Client,
    ConnectionFailed,
    IllegalState,
    NotFound,
    RequestTimeout,
)
from skylarkmq.protocol.bodies.route import BrokerData, ClusterInfo, KVTable
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.codes import RequestCode
from tests.client.admin.support import Site, site, two_brokers
from tests.support.fake_cluster import NAMESRV, FakeCluster
from tests.support.manual_clock import ManualClock, advance_async

pytestmark = pytest.mark.timing


async def test_its_life(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        admin = Admin(namesrv_addr=it.namesrv)
        with pytest.raises(IllegalState, match="not started"):
            await admin.list_topics()
        await admin.start()
        await admin.start()
        assert await admin.list_topics() == []
        await admin.stop()
        await admin.stop()
        with pytest.raises(IllegalState):
            await admin.list_topics()
        with pytest.raises(IllegalState, match="stopped"):
            await admin.start()
        wrong: Any = 5
        with pytest.raises(ValueError, match="not 5"):
            await it.admin.reset_offset("g", "t", when=wrong)
        with pytest.raises(ValueError, match="msg_id="):
            await it.admin.message("7F0000010AE5E73ADE376A5BFA270001")
        assert await it.admin.list_topics() == [], "a shared client is not closed"
    with pytest.raises(ConnectionFailed):
        await Admin(client=Client(it.namesrv, start_timeout=0)).start()
    with pytest.raises(ValueError, match="timeout"):
        Admin(timeout=0)


async def test_two_brokers_answer_as_one(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as it:
        await it.admin.create_topic("orders", queues=2)
        await it.send("orders", 8)
        about = await it.admin.describe_topic("orders")
        assert [settings.broker for settings in about.settings] == ["broker-a", "broker-b"]
        assert about.message_count == 8
        await it.consume("orders", "billing", 8, dead=8)
        assert (await it.admin.progress("billing", "orders")).lag == 0
        letters = [letter async for letter in it.admin.dead_letters("billing")]
        assert {letter.queue.broker_name for letter in letters} == {"broker-a", "broker-b"}
        reset = await it.admin.reset_offset("billing", "orders", when="begin")
        assert {row.queue.broker_name for row in reset.queues} == {"broker-a", "broker-b"}
        assert (await it.admin.progress("billing", "orders")).lag == 8
        (member,) = await it.admin.producers("DEFAULT_PRODUCER")
        assert member.brokers == ("broker-a", "broker-b")
        outcomes = await it.redrive("billing", "topic")
        assert {one.target for one in outcomes} == {"orders"}
        assert (await it.admin.progress("billing", "orders")).lag == 16
        with pytest.raises(NotFound, match="broker-z"):
            await it.admin.create_topic("more", brokers=["broker-a", "broker-z"])
        await it.admin.create_topic("more", brokers=["broker-b"], queues=1)
        assert len((await it.admin.describe_topic("more")).queues) == 1


async def test_a_namespace_has_topics_and_groups_of_its_own(tmp_path: Path) -> None:
    async with site(tmp_path, namespace="shop") as it, Admin(namesrv_addr=it.namesrv) as everything:
        await it.admin.create_topic("orders", queues=1)
        await everything.create_topic("orders", queues=3)
        assert await it.admin.list_topics() == ["orders"]
        assert await everything.list_topics() == ["orders", "shop%orders"]
        (queue,) = (await it.admin.describe_topic("orders")).queues
        assert queue.queue.topic == "orders"
        ids = await it.send("orders", 3, keys="k")
        await it.consume("orders", "billing", 3, dead=1)
        assert await it.admin.list_groups() == ["billing"]
        assert await everything.list_groups() == ["shop%billing"]
        assert await it.admin.topic_groups("orders") == ["billing"]
        rows = (await it.admin.progress("billing", "orders")).queues
        assert [(row.queue.topic, row.committed) for row in rows] == [("orders", 3)]
        (letter,) = [letter async for letter in it.admin.dead_letters("billing")]
        assert (letter.msg_id, letter.topic) == (ids[0], "%DLQ%billing")
        assert letter.origin_topic == "orders"
        (outcome,) = await it.redrive("billing")
        assert (outcome.status, outcome.target) == ("sent", "%RETRY%billing")
        positions = {rows[0].queue: 1}
        reset = await it.admin.reset_offset("billing", "orders", offset=positions)
        assert [(row.queue, row.after) for row in reset.queues] == [(rows[0].queue, 1)]
        scan = it.admin.scan("orders", after=positions)
        assert [message.queue_offset async for message in scan] == [1, 2]


def two_clusters(names: dict[str, list[str]]) -> ClusterInfo:
    return ClusterInfo(
        broker_addr_table={
            broker: BrokerData(
                broker_addrs={0: f"{broker}:10911"}, broker_name=broker, cluster=cluster
            )
            for cluster, brokers in names.items()
            for broker in brokers
        },
        cluster_addr_table=names,
    )


async def test_with_several_clusters_one_is_named() -> None:
    cluster, clock = FakeCluster(), ManualClock()
    body = encode_body(two_clusters({"east": ["a"], "west": ["b"]}))
    info = RequestCode.GET_BROKER_CLUSTER_INFO
    cluster.name_server.on(info, lambda request: request.reply(0, body=body))
    broker = cluster.broker("b")
    client = Client(NAMESRV, network=cluster.network, clock=clock, codec="json")
    async with client, Admin(client=client, timeout=2) as admin:
        with pytest.raises(IllegalState, match="several clusters: east, west"):
            await admin.create_topic("orders")
        with pytest.raises(NotFound, match="no cluster north; known: east, west"):
            await admin.create_topic("orders", cluster="north")
        with pytest.raises(BrokerError, match="not built"):
            await admin.create_topic("orders", cluster="west")
        assert [request.code for request in broker.requests] == [17]


async def test_a_topic_that_no_name_server_hears_of_costs_a_time_out() -> None:
    cluster, clock = FakeCluster(), ManualClock()
    body = encode_body(two_clusters({"east": ["a"]}))
    info = RequestCode.GET_BROKER_CLUSTER_INFO
    cluster.name_server.on(info, lambda request: request.reply(0, body=body))
    broker = cluster.broker("a")
    broker.refuse(RequestCode.UPDATE_AND_CREATE_TOPIC, 0)
    client = Client(NAMESRV, network=cluster.network, clock=clock, codec="json")
    async with client, Admin(client=client, timeout=2) as admin:
        creating = asyncio.create_task(admin.create_topic("orders"))
        await advance_async(clock, 1.5)
        assert not creating.done()
        await advance_async(clock, 1.0)
        with pytest.raises(RequestTimeout, match="does not know it"):
            await creating
        silent = asyncio.create_task(admin.broker_runtime("a"))
        broker.silent = True
        await advance_async(clock, 3.0)
        with pytest.raises(RequestTimeout):
            await silent
    assert clock.pending_count == 0


async def test_a_broker_that_has_just_started_is_asked_again() -> None:
    """RocketMQ's refuses its runtime table until it has counted for the first time."""
    cluster, clock = FakeCluster(), ManualClock()
    broker = cluster.network.listen(cluster.broker("a").address)
    code = RequestCode.GET_BROKER_RUNTIME_INFO
    remark = "java.util.NoSuchElementException, java.util.LinkedList.getLast(LinkedList.java:261)"
    broker.on(code, lambda request: request.reply(1, remark))
    client = Client(NAMESRV, network=cluster.network, clock=clock, codec="json")
    async with client, Admin(client=client) as admin:
        asking = asyncio.create_task(admin.broker_runtime("a"))
        await advance_async(clock, 0.6)
        assert not asking.done()
        body = encode_body(KVTable(table={"brokerVersionDesc": "V4_9_7"}))
        broker.on(code, lambda request: request.reply(0, body=body))
        await advance_async(clock, 0.3)
        assert (await asking).version == "V4_9_7"
        broker.on(code, lambda request: request.reply(1, "another reason"))
        with pytest.raises(BrokerError, match="another reason"):
            await admin.broker_runtime("a")
        broker.on(code, lambda request: request.reply(1, remark))
        asking = asyncio.create_task(admin.broker_runtime("a"))
        await advance_async(clock, 6.0)
        with pytest.raises(BrokerError, match="getLast"):
            await asking


async def test_a_topic_is_created_once_every_name_server_that_answers_knows_it() -> None:
    cluster, clock = FakeCluster(), ManualClock()
    cluster.broker("a", {"orders": 1})
    first, second = cluster.name_server, cluster.network.listen("second:9876")
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    second.on(code, lambda request: request.reply(17, "No topic route info"))
    empty = encode_body(ClusterInfo())
    second.on(RequestCode.GET_BROKER_CLUSTER_INFO, lambda request: request.reply(0, body=empty))
    servers = f"dead:9876;{NAMESRV};second:9876"
    client = Client(servers, network=cluster.network, clock=clock, codec="json")
    async with client, Admin(client=client, timeout=2) as admin:
        with pytest.raises(AlreadyExists):
            await admin.create_topic("orders")
        creating = asyncio.create_task(admin.create_topic("orders", exist_ok=True))
        await advance_async(clock, 1.0)
        assert not creating.done()
        second.on(code, cluster._route)
        await advance_async(clock, 0.1)
        await creating
    assert [request.code for request in first.requests].count(int(code)) > 0


CALLS: dict[str, Callable[[Site], Awaitable[Any]]] = {
    "cluster": lambda it: it.admin.cluster(),
    "describe_topic": lambda it: it.admin.describe_topic("orders"),
    "describe_group": lambda it: it.admin.describe_group("billing"),
    "progress": lambda it: it.admin.progress("billing"),
    "query": lambda it: it.admin.query("orders", key="k"),
    "reset_offset": lambda it: it.admin.reset_offset("billing", "orders", when="begin"),
    "update_topic": lambda it: it.admin.update_topic("orders", queues=2),
    "broker_config": lambda it: it.admin.broker_config("broker-a"),
}


async def test_results_have_a_form_for_json(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        await it.admin.create_topic("orders", queues=2)
        await it.send("orders", 2, keys="k")
        await it.consume("orders", "billing", 2)
        for name, call in CALLS.items():
            result = await call(it)
            for one in result if isinstance(result, list) else [result]:
                if hasattr(one, "to_json"):
                    assert json.loads(json.dumps(one.to_json())) == one.to_json(), name
        progress = (await it.admin.progress("billing", "orders")).to_json()
        row = progress["queues"][0]
        assert row["queue"] == {"topic": "orders", "broker": "broker-a", "queue_id": 0}
        assert (row["lag"], progress["lag"], progress["group"]) == (1, 2, "billing")
