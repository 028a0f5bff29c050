"""What name servers are told of a broker that is drained, and what they are asked."""

from __future__ import annotations

import msgspec
import pytest

from skylarkmq.broker.metrics.runtime_info import GRPC_ADDRESS, GRPC_ENDPOINT, GrpcPlaces
from skylarkmq.protocol.bodies.route import KVTable, RegisterBrokerBody
from skylarkmq.protocol.bodies.text import decode_body, encode_body
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.remoting.errors import RequestTimeout
from tests.broker.test_registration import Setup
from tests.support.manual_clock import settle


async def test_what_is_withheld_is_told_with_every_registration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = Setup(monkeypatch)
    await setup.start()
    await setup.create("orders")
    assert setup.service.not_told() == []
    setup.service.withhold({"orders": 4})
    assert setup.service.not_told() == ["ns1:9876"]
    await settle()
    assert setup.service.not_told() == []

    def told() -> tuple[int, int]:
        body = decode_body(RegisterBrokerBody, setup.channel.requests[-1].body)
        table = body.topic_config_serialize_wrapper.topic_config_table
        route = setup.namesrv.routes.topic_route("orders")
        assert route is not None
        return table["orders"].perm, route.queue_datas[0].perm

    assert told() == (4, 4)
    topic = setup.topics.table["orders"]
    setup.topics.update(msgspec.structs.replace(topic, write_queue_nums=5))  # that one alone
    await settle()
    assert told() == (4, 4)
    setup.remoting.lose("ns1:9876")
    await settle()
    assert told() == (4, 4)
    assert topic.perm == 6, "the broker itself refuses nobody"
    setup.service.withhold({})
    await settle()
    assert told() == (6, 6)
    await setup.service.stop()


async def test_routes_are_asked_of_every_name_server_elsewhere_or_else_of_our_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = Setup(monkeypatch, namesrv_addr=None)
    await alone.start()
    (route,) = await alone.service.routes("TBW102")
    assert route is not None
    assert [queues.broker_name for queues in route.queue_datas] == ["broker-a"]
    assert await alone.service.routes("orders") == [None]
    await alone.service.stop()

    setup = Setup(monkeypatch, namesrv_addr="ns1:9876;ns2:9876;ns3:9876")
    await setup.start()
    setup.channels["ns1:9876"].body = encode_body(route)
    setup.channels["ns2:9876"].outcome = ResponseCode.TOPIC_NOT_EXIST
    setup.channels["ns3:9876"].outcome = RequestTimeout("away")
    assert await setup.service.routes("TBW102") == [route, None]
    await setup.service.stop()


async def test_a_broker_that_refuses_to_tell_its_grpc_port_may_have_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = Setup(monkeypatch)
    await setup.start()
    told = {GRPC_ENDPOINT: "public:8081", GRPC_ADDRESS: "10.0.0.1:8081"}
    for table, places in (
        (told, GrpcPlaces("public:8081", "10.0.0.1:8081")),
        ({GRPC_ENDPOINT: "public:8081"}, GrpcPlaces("public:8081", "public:8081")),
        ({}, None),
    ):
        setup.channel.body = encode_body(KVTable(table=table))
        assert await setup.service.grpc_places("ns1:9876") == places
    setup.channel.outcome = ResponseCode.SYSTEM_BUSY
    with pytest.raises(RemoteProtocolError):
        await setup.service.grpc_places("ns1:9876")
    await setup.service.stop()
