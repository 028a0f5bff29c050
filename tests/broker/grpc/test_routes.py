"""Routes and assignments of this broker's own queues."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

import msgspec

from skylarkmq.broker.access.accounts import PUB, SUB, Account
from skylarkmq.broker.base.addresses import AddressList
from skylarkmq.broker.grpc.calls import Call, RpcRefused
from skylarkmq.broker.grpc.endpoints import OwnEndpoints
from skylarkmq.broker.grpc.other_brokers import OtherBroker
from skylarkmq.broker.grpc.routes import RouteRpcs
from skylarkmq.protocol.bodies.route import QueueData
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from skylarkmq.protocol.v5.schema_pb2 import DOMAIN_NAME, READ, READ_WRITE, WRITE, IPv4, IPv6
from tests.broker.grpc.session_rig import GROUP, TOPIC, SessionRig, a_call, resource
from tests.support.manual_clock import settle

OWN = "192.0.2.1:8081"


class Rig(SessionRig):
    def __init__(self, advertised: str | None = None, **config: Any) -> None:
        super().__init__(**config)
        self.withheld: dict[str, int] = {}
        self.others: list[OtherBroker] = []
        self.routes = RouteRpcs(
            self.context,
            OwnEndpoints(OWN, advertised, forwards=config.get("grpc_proxy_mode") == "CLUSTER"),
            self._client_view,
            self._others,
        )

    async def _others(self, topic: str) -> list[OtherBroker]:
        return self.others

    def _client_view(self, topic: TopicConfig) -> TopicConfig:
        perm = topic.perm & self.withheld.get(topic.topic_name, topic.perm)
        return msgspec.structs.replace(topic, perm=perm)

    def make(self, topic: TopicConfig) -> None:
        """Make a topic, durable."""
        self.topics.update(topic)
        self.workers.run_all()

    async def route(
        self, topic: str = TOPIC, *places: tuple[str, int], call: Call | None = None
    ) -> list[schema_pb2.MessageQueue]:
        request = schema_pb2.QueryRouteRequest(topic=resource(topic), endpoints=asked(*places))
        return await self.ask(request, call or a_call())

    async def ask(
        self, request: schema_pb2.QueryRouteRequest, call: Call
    ) -> list[schema_pb2.MessageQueue]:
        """The queues of a route, the workers doing what they are asked to meanwhile."""
        task = asyncio.ensure_future(self.routes.query_route(call, request))
        while not task.done():
            await settle(5)
            self.workers.run_all()
        answer = task.result()
        assert answer.status.code == Code.OK
        return list(answer.message_queues)

    async def assigned(
        self, topic: str = TOPIC, group: str = GROUP
    ) -> list[schema_pb2.MessageQueue]:
        request = schema_pb2.QueryAssignmentRequest(topic=resource(topic), group=resource(group))
        answer = await self.routes.query_assignment(a_call(), request)
        return [assignment.message_queue for assignment in answer.assignments]

    async def endpoints(self, *places: tuple[str, int]) -> tuple[int, list[tuple[str, int]]]:
        told = (await self.route(TOPIC, *places))[0].broker.endpoints
        return told.scheme, [(address.host, address.port) for address in told.addresses]


def asked(*places: tuple[str, int]) -> schema_pb2.Endpoints:
    """Endpoints as clients write them: the scheme is their guess."""
    addresses = [schema_pb2.Address(host=host, port=port) for host, port in places]
    return schema_pb2.Endpoints(scheme=IPv4, addresses=addresses)


def rig_of(**config: Any) -> Rig:
    rig = Rig(**config)
    rig.start()
    rig.topic(TOPIC, queues=2)
    return rig


@pytest.fixture
async def rig() -> Rig:
    return rig_of()


async def refused(awaitable: Any) -> int:
    with pytest.raises(RpcRefused) as why:
        await awaitable
    return why.value.code


# Queues


async def test_a_replica_set_is_in_the_route_once_whoever_leads(rig: Rig) -> None:
    rig.store.follows = True
    name = rig.config.broker_name
    rig.others = [
        OtherBroker(
            QueueData(broker_name=each, perm=6, read_queue_nums=2, write_queue_nums=2),
            "192.0.2.2:8081",
            "192.0.2.2:8081",
        )
        for each in (name, "another")
    ]
    found = [(queue.broker.name, queue.id) for queue in await rig.route()]
    assert found == [(name, 0), (name, 1), ("another", 0), ("another", 1)]
    rig.others = []
    assert [queue.id for queue in await rig.route()] == [0, 1], "nobody leads just now"


@pytest.mark.parametrize(
    ("read", "write", "perm", "permissions"),
    [
        (2, 2, 6, [READ_WRITE, READ_WRITE]),
        (4, 2, 6, [READ_WRITE, READ_WRITE, READ, READ]),
        (1, 3, 6, [READ_WRITE, WRITE, WRITE]),
        (2, 3, 4, [READ, READ]),
        (2, 3, 2, [WRITE, WRITE, WRITE]),
        (0, 2, 6, [WRITE, WRITE]),
    ],
)
async def test_queues_and_permissions(
    rig: Rig, read: int, write: int, perm: int, permissions: list[int]
) -> None:
    rig.make(TopicConfig(topic_name="U", read_queue_nums=read, write_queue_nums=write, perm=perm))
    queues = await rig.route("U")
    assert [queue.id for queue in queues] == list(range(len(permissions)))
    assert [queue.permission for queue in queues] == permissions
    assert {(queue.broker.name, queue.broker.id) for queue in queues} == {("broker-a", 0)}


async def test_a_topic_closed_to_all_is_forbidden(rig: Rig) -> None:
    rig.topic("U", perm=0)
    assert await refused(rig.route("U")) == Code.FORBIDDEN
    assert await refused(rig.assigned("U")) == Code.FORBIDDEN
    rig.topic("W", perm=2)
    assert await refused(rig.assigned("W")) == Code.FORBIDDEN


async def test_a_permission_that_is_withheld_is_not_told(rig: Rig) -> None:
    """As while the broker is drained."""
    rig.withheld[TOPIC] = 4
    assert [queue.permission for queue in await rig.route()] == [READ, READ]


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("nowhere", Code.TOPIC_NOT_FOUND),
        ("", Code.ILLEGAL_TOPIC),
        ("a b", Code.ILLEGAL_TOPIC),
        ("T" * 128, Code.ILLEGAL_TOPIC),
        ("../T", Code.ILLEGAL_TOPIC),
        ("TBW102", Code.ILLEGAL_TOPIC),
        ("rmq_sys_wheel_timer", Code.ILLEGAL_TOPIC),
    ],
)
async def test_what_has_no_route(rig: Rig, topic: str, code: int) -> None:
    before = dict(rig.topics.table)
    assert await refused(rig.route(topic)) == code
    assert await refused(rig.assigned(topic)) == code
    assert rig.topics.table == before


async def test_dead_letters_have_a_route(rig: Rig) -> None:
    rig.topic(f"%DLQ%{GROUP}", queues=1)
    assert len(await rig.route(f"%DLQ%{GROUP}")) == 1


async def test_a_namespace_is_given_back(rig: Rig) -> None:
    request = schema_pb2.QueryRouteRequest(
        topic=schema_pb2.Resource(resource_namespace="NS", name=TOPIC)
    )
    assert (await rig.ask(request, a_call()))[0].topic == request.topic


# Types


@pytest.mark.parametrize(
    ("attributes", "types"),
    [
        ({}, [1, 2, 3, 4]),
        ({"message.type": "MIXED"}, [1, 2, 3, 4]),
        ({"message.type": "UNSPECIFIED"}, [1, 2, 3, 4]),
        ({"message.type": "FIFO"}, [2]),
        ({"message.type": "DELAY"}, [3]),
        ({"message.type": "TRANSACTION"}, [4]),
        ({"message.type": "NORMAL"}, [1]),
        ({"message.type": "PRIORITY"}, [6]),
    ],
)
async def test_types_of_messages(rig: Rig, attributes: dict[str, str], types: list[int]) -> None:
    rig.make(TopicConfig(topic_name="U", attributes=attributes))
    queues = await rig.route("U")
    assert all(list(queue.accept_message_types) == types for queue in queues)


# Endpoints


async def test_a_client_is_told_what_it_reached(rig: Rig) -> None:
    assert await rig.endpoints(("203.0.113.9", 30081)) == (IPv4, [("203.0.113.9", 30081)])
    assert await rig.endpoints(("mq.example.org", 443)) == (DOMAIN_NAME, [("mq.example.org", 443)])
    assert await rig.endpoints(("localhost", 8081)) == (DOMAIN_NAME, [("localhost", 8081)])
    assert await rig.endpoints(("2001:db8::1", 8081)) == (IPv6, [("2001:db8::1", 8081)])


async def test_a_client_that_says_nothing_is_told_the_brokers_address(rig: Rig) -> None:
    assert await rig.endpoints() == (IPv4, [("192.0.2.1", 8081)])


async def test_of_several_addresses_the_own_one_counts(rig: Rig) -> None:
    others = ("192.0.2.7", 8081), ("192.0.2.8", 8081)
    assert await rig.endpoints(*others, ("192.0.2.1", 8081)) == (IPv4, [("192.0.2.1", 8081)])
    assert await rig.endpoints(*others) == (IPv4, list(others))
    mixed = ("192.0.2.7", 1), ("a.example.org", 2), ("2001:db8::1", 3), ("192.0.2.8", 4)
    assert await rig.endpoints(*mixed) == (IPv4, [("192.0.2.7", 1), ("192.0.2.8", 4)])
    names = ("a.example.org", 1), ("b.example.org", 1)
    assert await rig.endpoints(*names) == (DOMAIN_NAME, [("a.example.org", 1)])


async def test_of_several_addresses_all_count_where_calls_are_forwarded() -> None:
    """When the one that a client uses is lost, it goes on with another one at once."""
    rig = rig_of(grpc_proxy_mode="CLUSTER")
    places = [("192.0.2.1", 8081), ("192.0.2.7", 8081)]
    assert await rig.endpoints(*places) == (IPv4, places)
    assert await rig.endpoints() == (IPv4, [("192.0.2.1", 8081)])


async def test_an_advertised_address_is_told_to_all() -> None:
    rig = rig_of(advertised="mq.example.org:443")
    for places in ((), (("192.0.2.7", 8081),), (("192.0.2.7", 1), ("192.0.2.8", 1))):
        assert await rig.endpoints(*places) == (DOMAIN_NAME, [("mq.example.org", 443)])
    rig = rig_of(advertised="[2001:db8::1]:443")
    assert await rig.endpoints() == (IPv6, [("2001:db8::1", 443)])


@pytest.mark.parametrize(
    "places",
    [
        [("", 8081)],
        [("a b", 8081)],
        [("h" * 300, 8081)],
        [("192.0.2.1", 0)],
        [("192.0.2.1", 65536)],
        [("192.0.2.1", -1)],
        [("192.0.2.1", 1), ("\n", 1)],
        [("192.0.2.1", 1)] * 17,
    ],
)
async def test_addresses_that_are_none(rig: Rig, places: list[tuple[str, int]]) -> None:
    assert await refused(rig.route(TOPIC, *places)) == Code.ILLEGAL_ACCESS_POINT


# Topics made by their routes


async def test_a_topic_is_made_where_both_switches_are_on() -> None:
    rig = rig_of(grpc_auto_create_topic_enable=True, default_topic_queue_nums=3)
    assert len(await rig.route("fresh")) == 3
    assert b'"fresh"' in rig.files.read_all(rig.store.paths.config / "topics.json")
    assert await refused(rig.assigned("other")) == Code.TOPIC_NOT_FOUND
    for topic in ("rmq_sys_fresh", "%RETRY%fresh", "%DLQ%fresh"):
        with pytest.raises(RpcRefused):
            await rig.route(topic)
    rig = rig_of(grpc_auto_create_topic_enable=True, auto_create_topic_enable=False)
    assert await refused(rig.route("fresh")) == Code.TOPIC_NOT_FOUND


async def test_a_route_waits_until_the_topic_is_on_the_disk(rig: Rig) -> None:
    """What is acknowledged then has a topic, whatever happens."""
    rig.topics.create_in_send("fresh", "TBW102", 4, "")
    request = schema_pb2.QueryRouteRequest(topic=resource("fresh"))
    task = asyncio.ensure_future(rig.routes.query_route(a_call(), request))
    await settle(20)
    assert not task.done()
    for _ in range(3):  # its own change, and the one before
        rig.workers.run_all()
        await settle(20)
    assert len(task.result().message_queues) == 4


async def test_who_may_not_send_makes_no_topic() -> None:
    rig = rig_of(grpc_auto_create_topic_enable=True)
    account = Account("reader", b"secret123", Path("x.yml"), AddressList([]))
    reader, writer = replace(account, topic_default=SUB), replace(account, topic_default=PUB)
    assert await refused(rig.route("fresh", call=a_call(account=reader))) == Code.TOPIC_NOT_FOUND
    assert len(await rig.route("fresh", call=a_call(account=writer))) == 8


async def test_topics_are_not_made_without_end() -> None:
    rig = rig_of(grpc_auto_create_topic_enable=True, max_topics=12)
    count = len(rig.topics.table)
    for number in range(count, 12):
        await rig.route(f"fresh{number}")
    with pytest.raises(RemoteProtocolError, match="no room"):
        await rig.route("one-more")


# Assignments


async def test_a_group_gets_any_queue(rig: Rig) -> None:
    (queue,) = await rig.assigned()
    assert (queue.id, queue.permission, queue.topic.name) == (-1, READ, TOPIC)
    assert queue.broker.endpoints.addresses[0].host == "192.0.2.1"
    rig.make(TopicConfig(topic_name="U", read_queue_nums=0, write_queue_nums=2))
    assert await refused(rig.assigned("U")) == Code.FORBIDDEN


async def test_an_orderly_group_gets_each_queue(rig: Rig) -> None:
    rig.group(consume_message_orderly=True)
    assert [queue.id for queue in await rig.assigned()] == [0, 1]


async def test_a_group_must_be_one(rig: Rig) -> None:
    assert await refused(rig.assigned(group="")) == Code.ILLEGAL_CONSUMER_GROUP
    assert await refused(rig.assigned(group="CID_RMQ_SYS_TRANS")) == Code.ILLEGAL_CONSUMER_GROUP
