"""Routes: queues in Java's order, brokers that do not count, refreshes that keep what is known."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from skylarkmq.client.errors import ConnectionFailed, RouteNotFound
from skylarkmq.client.wire.nameserver import NameServers
from skylarkmq.client.wire.route import RouteTable, parse_route
from skylarkmq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.remoting.client import RemotingClient
from tests.support.fake_cluster import NAMESRV, FakeCluster
from tests.support.manual_clock import ManualClock, settle

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def broker(name: str, *ids: int) -> BrokerData:
    addresses = {broker_id: f"{name}-{broker_id}:10911" for broker_id in ids}
    return BrokerData(broker_addrs=addresses, broker_name=name, cluster="c")


def queues(name: str, read: int, write: int, perm: int = 6) -> QueueData:
    return QueueData(broker_name=name, perm=perm, read_queue_nums=read, write_queue_nums=write)


def same(address: str) -> str:
    return address


def test_queues_come_in_the_order_of_the_brokers_names() -> None:
    data = TopicRouteData(
        broker_datas=[broker("b", 0), broker("a", 0, 1)],
        queue_datas=[queues("b", 1, 2), queues("a", 2, 1)],
    )
    route = parse_route("t", data, same)
    assert [queue[1:] for queue in route.publish_queues] == [("a", 0), ("b", 0), ("b", 1)]
    assert [queue[1:] for queue in route.subscribe_queues] == [("a", 0), ("a", 1), ("b", 0)]
    assert route.brokers == {"a": {0: "a-0:10911", 1: "a-1:10911"}, "b": {0: "b-0:10911"}}


def test_permissions_and_missing_masters() -> None:
    data = TopicRouteData(
        broker_datas=[broker("reads", 0), broker("writes", 0), broker("slave", 1)],
        queue_datas=[
            queues("reads", 1, 1, 4), queues("writes", 1, 1, 2), queues("slave", 1, 1, 6),
        ],
    )  # fmt: skip
    route = parse_route("t", data, same)
    assert [queue.broker_name for queue in route.publish_queues] == ["writes"]
    assert [queue.broker_name for queue in route.subscribe_queues] == ["reads", "slave"]


def test_an_order_topic_names_its_queues_itself() -> None:
    data = TopicRouteData(
        broker_datas=[broker("a", 0)], queue_datas=[queues("a", 8, 8)],
        order_topic_conf="b:2;a:1;;junk:x",
    )  # fmt: skip
    route = parse_route("t", data, same)
    assert list(route.publish_queues) == [
        MessageQueue("t", "b", 0), MessageQueue("t", "b", 1), MessageQueue("t", "a", 0),
    ]  # fmt: skip


def test_addresses_are_mapped() -> None:
    data = TopicRouteData(broker_datas=[broker("a", 0)], queue_datas=[queues("a", 1, 1)])
    route = parse_route("t", data, lambda address: address.replace("a-0", "127.0.0.1"))
    assert route.brokers["a"] == {0: "127.0.0.1:10911"}


class Table:
    """A route table over the fake cluster."""

    def __init__(self, namesrv: str = NAMESRV) -> None:
        self.cluster = FakeCluster()
        self.clock = ManualClock()
        self.changes: list[str] = []
        remoting = RemotingClient(
            self.cluster.network, self.clock, Random(1), "json", lambda *_: None
        )
        self.servers = NameServers(remoting, namesrv.split(";"), 3.0, Random(1), self.clock)
        self.routes = RouteTable(self.servers, same, self.clock, self.changes.append)

    @property
    def asked(self) -> list[str]:
        return [r.ext_fields["topic"] for r in self.cluster.name_server.of_code(ROUTE)]


async def test_one_question_serves_all_who_ask_at_the_same_time() -> None:
    it = Table()
    it.cluster.broker("broker-a", {"orders": 2})
    routes = await asyncio.gather(*(it.routes.for_publish("orders", 4) for _ in range(20)))
    assert len({id(route) for route in routes}) == 1
    assert it.asked == ["orders"]
    assert it.cluster.name_server.of_code(ROUTE)[0].ext_fields == {
        "topic": "orders", "acceptStandardJsonOnly": "true",
    }  # fmt: skip
    assert it.changes == ["orders"]


async def test_a_known_route_outlives_the_name_server_and_its_memory() -> None:
    it = Table()
    broker_a = it.cluster.broker("broker-a", {"orders": 2})
    route = await it.routes.for_publish("orders", 4)
    it.cluster.brokers.remove(broker_a)
    assert await it.routes.refresh("orders") is None
    assert it.routes.known("orders") == route
    it.cluster.name_server.lose_all()
    it.cluster.name_server.connect_error = ConnectionRefusedError("away")
    await settle()
    await it.routes.refresh_all()
    assert it.routes.known("orders") == route


async def test_changes_are_told_once() -> None:
    it = Table()
    it.cluster.broker("broker-a", {"orders": 2})
    for _ in range(3):
        await it.routes.refresh("orders")
    assert it.changes == ["orders"]
    it.cluster.broker("broker-b", {"orders": 1})
    await it.routes.refresh_all()
    assert it.changes == ["orders"] * 2
    assert set(it.routes.brokers()) == {"broker-a", "broker-b"}
    assert it.routes.master_address("broker-b") == "broker-b:10911"
    assert it.routes.master_address("broker-z") is None


async def test_only_missing_and_borrowed_routes_are_asked_for_in_between() -> None:
    it = Table()
    it.cluster.broker("broker-a", {"orders": 2, "TBW102": 8})
    await it.routes.refresh("orders")
    await it.routes.refresh("absent")
    borrowed = await it.routes.for_publish("fresh", 3)
    assert borrowed.borrowed
    assert len(borrowed.publish_queues) == 3
    assert borrowed.subscribe_queues == ()
    before = len(it.asked)
    await it.routes.refresh_all(missing_only=True)
    assert it.asked[before:] == ["absent", "fresh"]


async def test_a_young_answer_is_good_enough_when_asked_so() -> None:
    it = Table()
    it.cluster.broker("broker-a", {"orders": 2})
    await it.routes.refresh("orders")
    await it.routes.refresh("orders", max_age_s=1.0)
    assert len(it.asked) == 1
    it.clock.advance(1)
    await it.routes.refresh("orders", max_age_s=1.0)
    assert len(it.asked) == 2


async def test_a_topic_without_a_writable_queue() -> None:
    it = Table()
    it.cluster.broker("broker-a", {"orders": 2}).topics["orders"].perm = 4
    with pytest.raises(RouteNotFound) as caught:
        await it.routes.for_publish("orders", 4)
    assert caught.value.reason == "no_broker"


async def test_a_route_without_a_writable_queue_is_asked_for_again_by_who_sends() -> None:
    it = Table()
    topic = it.cluster.broker("broker-a", {"orders": 2}).topics["orders"]
    topic.perm = 4
    for _ in range(3):
        with pytest.raises(RouteNotFound):
            await it.routes.for_publish("orders", 4)
    assert len(it.asked) == 1
    topic.perm = 6
    it.clock.advance(1)
    assert (await it.routes.for_publish("orders", 4)).publish_queues


async def test_the_next_name_server_is_asked_when_one_is_away_or_silent() -> None:
    it = Table(f"away:1;{NAMESRV}")
    it.cluster.broker("broker-a", {"orders": 2})
    for _ in range(3):
        assert await it.routes.refresh("orders") is not None
    silent = it.cluster.network.listen("silent:1")
    silent.silent = True
    other = Table(f"silent:1;{NAMESRV}")
    other.cluster.network.listen("silent:1", silent)
    other.cluster.broker("broker-a", {"orders": 2})
    asking = asyncio.create_task(other.routes.refresh("orders"))
    await settle()
    other.clock.advance(3)
    assert await asking is not None


async def test_no_name_server_at_all() -> None:
    it = Table("away:1;away:2")
    with pytest.raises(ConnectionFailed):
        await it.routes.refresh("orders")
    with pytest.raises(ConnectionFailed, match=r"reached: away:1: .*; away:2: ") as caught:
        await it.servers.connect()
    assert caught.value.address == "away:1;away:2"


async def test_the_newest_route_tells_where_a_broker_is() -> None:
    it = Table()
    master = it.cluster.broker("broker-a", {"orders": 1, "flights": 1})
    for topic in ("orders", "flights"):
        await it.routes.for_publish(topic, 4)
    successor = it.cluster.successor(master)
    it.cluster.take_over(successor, master)
    await it.routes.refresh("flights")
    assert it.routes.master_address("broker-a") == successor.address
    assert it.routes.broker("broker-a") == {0: successor.address}
    assert it.routes.brokers() == {"broker-a": {0: successor.address}}
    it.routes.forget("flights")
    assert it.routes.master_address("broker-a") == successor.address
    it.cluster.take_over(master, successor)
    await it.routes.refresh("orders")
    assert it.routes.master_address("broker-a") == master.address, "the same route, and news again"
    it.routes.forget("orders")
    assert it.routes.master_address("broker-a") is None and it.routes.brokers() == {}
