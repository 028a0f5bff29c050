"""Other brokers of a topic in its route."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.grpc import other_brokers as limits
from skylarkmq.broker.grpc.other_brokers import OtherBrokers
from skylarkmq.broker.metrics.runtime_info import GrpcPlaces
from skylarkmq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from skylarkmq.remoting.errors import ConnectionFailed
from tests.broker.grpc.rig import Client
from tests.broker.grpc.session_rig import GROUP, resource
from tests.support.live_broker import live_broker, namesrv_of
from tests.support.manual_clock import ManualClock, settle
from tests.support.patience import until


def route(**masters: str) -> TopicRouteData:
    """A route with two queues on each broker; a name without an address is one without a master."""
    return TopicRouteData(
        broker_datas=[
            BrokerData(broker_name=name, broker_addrs={0: address} if address else {1: "slave:1"})
            for name, address in masters.items()
        ],
        queue_datas=[
            QueueData(broker_name=name, perm=6, read_queue_nums=2, write_queue_nums=2)
            for name in masters
        ],
    )


class Rig:
    """Name servers and brokers that answer what the test says."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.routes: list[TopicRouteData | None] = []
        self.endpoints: dict[str, str | None] = {}
        self.asked: list[str] = []
        self.are_silent = False
        self.is_registered = True
        self.leads = True
        self.other_brokers = OtherBrokers(
            lambda name: name == "own" and self.leads,
            self.clock,
            lambda: self._routes if self.is_registered else None,
            self._grpc,
        )

    async def _routes(self, topic: str) -> list[TopicRouteData | None]:
        self.asked.append(topic)
        if self.are_silent:
            await asyncio.sleep(3600)
        return self.routes

    async def _grpc(self, address: str) -> GrpcPlaces | None:
        self.asked.append(address)
        if self.are_silent:
            await asyncio.sleep(3600)
        if address not in self.endpoints:
            raise ConnectionFailed(address, "nobody is there")
        endpoint = self.endpoints[address]
        return None if endpoint is None else GrpcPlaces(endpoint, f"grpc-{address}")

    async def of(self, topic: str = "T") -> dict[str, str]:
        """The endpoint of each other broker."""
        found = await self.other_brokers.of(topic)
        return {each.queues.broker_name: each.endpoint for each in found}

    async def address_of(self, broker_name: str) -> str | None:
        found = await self.other_brokers.find(broker_name, "T")
        return None if found is None else found.address

    def were_asked(self) -> list[str]:
        asked, self.asked = self.asked, []
        return asked


async def test_the_masters_of_other_brokers_are_found() -> None:
    rig = Rig()
    rig.routes = [None, route(own="o:1", b="b:1", c=""), route(b="old:1", d="d:1", e="e:1")]
    rig.endpoints = {"b:1": "b.example:8081", "d:1": "d.example:8081", "e:1": None}
    assert await rig.of() == {"b": "b.example:8081", "d": "d.example:8081"}
    assert sorted(rig.were_asked()) == ["T", "b:1", "d:1", "e:1"]


async def test_what_was_learned_is_kept_for_a_while() -> None:
    rig = Rig()
    rig.routes, rig.endpoints = [route(b="b:1")], {"b:1": "b.example:1"}
    for _ in range(3):
        assert await rig.of() == {"b": "b.example:1"}
    assert rig.were_asked() == ["T", "b:1"]
    rig.clock.advance(6)
    rig.routes, rig.endpoints = [route(b="b:2")], {"b:2": "b.example:2"}
    assert await rig.of() == {"b": "b.example:2"}, "another replica leads"
    assert rig.were_asked() == ["T", "b:2"]
    rig.routes = [None, None]
    for _ in range(9):
        rig.clock.advance(6)
        assert await rig.of() == {"b": "b.example:2"}, "name servers may have just started"
    rig.clock.advance(6)
    assert await rig.of() == {}, "the topic was deleted there"
    rig.routes = [None, route(b="b:2")]
    rig.clock.advance(6)
    assert await rig.of() == {"b": "b.example:2"}
    rig.routes = [None, route(own="o:1")]
    rig.clock.advance(6)
    assert await rig.of() == {}, "one knows that it is not there any more"


async def test_brokers_find_another_one_by_its_own_port() -> None:
    rig = Rig()
    rig.routes, rig.endpoints = [route(b="b:1", c="c:1")], {"b:1": "lb:1", "c:1": "lb:1"}
    assert rig.other_brokers.known("T") is None
    assert await rig.address_of("c") == "grpc-c:1"
    assert rig.were_asked() == ["T", "b:1", "c:1"]
    assert await rig.address_of("b") == "grpc-b:1"
    assert await rig.address_of("nobody") is None
    assert await rig.address_of("own") is None
    assert rig.were_asked() == []


async def test_a_replica_that_follows_has_its_master_for_another_broker() -> None:
    rig = Rig()
    rig.routes, rig.endpoints = [route(own="m:1")], {"m:1": "m:8081"}
    rig.leads = False
    assert await rig.address_of("own") == "grpc-m:1"
    rig.leads = True
    rig.clock.advance(6)
    assert await rig.of() == {}


async def test_what_is_known_is_looked_for_again_behind_its_users() -> None:
    rig = Rig()
    rig.routes, rig.endpoints = [route(b="b:1")], {"b:1": "b:8081"}
    await rig.of()
    rig.were_asked()

    def names() -> list[str]:
        return [each.name for each in rig.other_brokers.known("T") or ()]

    assert names() == ["b"]
    assert rig.were_asked() == []
    rig.routes = [route(c="c:1")]
    rig.endpoints["c:1"] = "c:8081"
    rig.clock.advance(6)
    assert names() == ["b"], "nobody waits"
    await settle(20)
    assert names() == ["c"]
    assert rig.were_asked() == ["T", "c:1"]


async def test_one_that_was_not_found_is_looked_for_at_once() -> None:
    rig = Rig()
    rig.routes, rig.endpoints = [route(b="b:1")], {"b:1": "b:8081", "b:2": "b:8082"}
    await rig.of()
    rig.were_asked()
    rig.routes = [route(b="b:2")]
    end_s = rig.clock.monotonic() + 3
    assert not await rig.other_brokers.again("T", None)
    assert not await rig.other_brokers.again("T", rig.clock.monotonic() + 0.2)
    waiting = [asyncio.ensure_future(rig.other_brokers.again("T", end_s)) for _ in range(9)]
    await settle(20)
    assert rig.were_asked() == [], "a moment later"
    rig.clock.advance(0.5)
    assert all(await asyncio.gather(*waiting))
    assert rig.were_asked() == ["T", "b:2"]
    assert await rig.of() == {"b": "b:8082"}
    assert not await rig.other_brokers.again("unknown", None)


async def test_all_who_wait_for_a_topic_share_what_is_asked() -> None:
    rig = Rig()
    rig.routes, rig.endpoints = [route(b="b:1")], {"b:1": "b:8081"}
    await rig.of()
    rig.were_asked()
    end_s = rig.clock.monotonic() + 3

    async def wait() -> None:
        while await rig.other_brokers.again("T", end_s):
            pass

    waiting: list[asyncio.Future[None]] = []
    for _ in range(310):
        if len(waiting) < 40:
            waiting.append(asyncio.ensure_future(wait()))
        await settle(20)
        rig.clock.advance(0.01)
    await asyncio.gather(*waiting)
    assert rig.were_asked().count("T") <= 3 / limits.AGAIN_S


async def test_who_does_not_answer_is_believed_to_be_as_before() -> None:
    rig = Rig()
    rig.routes, rig.endpoints = [route(b="b:1")], {"b:1": "b.example:1"}
    await rig.of()
    rig.routes, rig.endpoints = [], {}
    rig.clock.advance(31)
    assert await rig.of() == {"b": "b.example:1"}
    rig.are_silent = True
    rig.clock.advance(31)
    task = asyncio.ensure_future(rig.of())
    for _ in range(2):
        await settle(20)
        rig.clock.advance(1.1)
    await settle(20)
    assert task.result() == {"b": "b.example:1"}
    rig.were_asked()
    assert await rig.of() == {"b": "b.example:1"}
    assert rig.were_asked() == [], "and not asked by each client"


async def test_a_broker_that_does_not_answer_holds_no_other_up() -> None:
    rig = Rig()
    rig.routes, rig.endpoints = [route(b="b:1", c="c:1")], {"c:1": "c.example:1"}
    assert await rig.of() == {"c": "c.example:1"}
    rig.endpoints["b:1"] = "b.example:1"
    rig.clock.advance(6)
    assert await rig.of() == {"b": "b.example:1", "c": "c.example:1"}


async def test_those_who_ask_at_a_time_share_the_answer() -> None:
    rig = Rig()
    rig.routes, rig.endpoints = [route(b="b:1")], {"b:1": "b.example:1"}
    first, *others = [asyncio.ensure_future(rig.of()) for _ in range(5)]
    await asyncio.sleep(0)
    first.cancel()
    assert await asyncio.gather(*others) == [{"b": "b.example:1"}] * 4
    assert rig.were_asked() == ["T", "b:1"]


async def test_a_broker_that_is_registered_nowhere_is_alone() -> None:
    rig = Rig()
    rig.is_registered = False
    assert await rig.of() == {}


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROUTES_MAX", 3)
    monkeypatch.setattr(limits, "ENDPOINTS_MAX", 3)
    rig = Rig()
    for number in range(20):
        rig.routes = [route(b=f"b:{number}")]
        rig.endpoints = {f"b:{number}": "b.example:1"}
        assert await rig.of(f"T{number}") == {"b": "b.example:1"}
    kept: Any = rig.other_brokers
    assert len(kept._routes) <= 3 >= len(kept._places)
    assert not kept._asking


async def test_a_stop_ends_what_is_under_way() -> None:
    rig = Rig()
    rig.are_silent = True
    task = asyncio.ensure_future(rig.of())
    await settle(5)
    rig.other_brokers.stop()
    await settle(5)
    assert task.cancelled()


# Brokers


async def query(broker: BrokerController, name: str, request: Any) -> Any:
    assert broker.grpc_address is not None
    async with grpc.aio.insecure_channel(f"127.0.0.1:{broker.grpc_address[1]}") as channel:
        return await Client(channel).call(name, request)


async def places(broker: BrokerController, topic: str = "T") -> dict[str, tuple[int, int]]:
    """The port and the number of queues of each broker in a route."""
    answer = await query(broker, "QueryRoute", schema_pb2.QueryRouteRequest(topic=resource(topic)))
    found: dict[str, tuple[int, int]] = {}
    for queue in answer.message_queues:
        _, count = found.get(queue.broker.name, (0, 0))
        found[queue.broker.name] = queue.broker.endpoints.addresses[0].port, count + 1
    return found


@pytest.mark.timing
async def test_each_broker_knows_the_others(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(live_broker(tmp_path / "a", grpc_listen_port=0))
        second = await stack.enter_async_context(
            live_broker(
                tmp_path / "b",
                broker_name="broker-b",
                namesrv_addr=namesrv_of(first),
                grpc_listen_port=0,
            )
        )
        third = await stack.enter_async_context(
            live_broker(tmp_path / "c", broker_name="broker-c", namesrv_addr=namesrv_of(first))
        )
        assert first.grpc_address is not None
        assert second.grpc_address is not None
        for broker, count in ((first, 2), (second, 3), (third, 4)):
            broker.parts.topics.update(
                TopicConfig(topic_name="T", read_queue_nums=count, write_queue_nums=count)
            )
        second.parts.topics.update(TopicConfig(topic_name="U", read_queue_nums=1, perm=4))
        assert first.namesrv is not None
        routes = first.namesrv.routes

        def is_known(topic: str, count: int) -> bool:
            known = routes.topic_route(topic)
            return known is not None and len(known.queue_datas) == count

        await until(lambda: is_known("T", 3) and is_known("U", 1))
        expected = {
            "broker-a": (first.grpc_address[1], 2),
            "broker-b": (second.grpc_address[1], 3),
        }
        assert await places(first, "T") == expected, "the third has no endpoint"
        assert await places(second, "T") == expected
        assert await places(first, "U") == {"broker-b": (second.grpc_address[1], 1)}
        request = schema_pb2.QueryAssignmentRequest(topic=resource("T"), group=resource(GROUP))
        answer = await query(first, "QueryAssignment", request)
        assert answer.status.code == Code.OK
        assert [
            (each.message_queue.broker.name, each.message_queue.id) for each in answer.assignments
        ] == [("broker-a", -1), ("broker-b", -1)]


@pytest.mark.timing
async def test_one_endpoint_stands_for_all_brokers(tmp_path: Path) -> None:
    first_config = {"grpc_listen_port": 0, "grpc_proxy_mode": "CLUSTER"}
    async with (
        live_broker(tmp_path / "a", **first_config) as first,
        live_broker(
            tmp_path / "b",
            broker_name="broker-b",
            namesrv_addr=namesrv_of(first),
            grpc_listen_port=0,
        ) as second,
    ):
        assert first.grpc_address is not None
        assert second.grpc_address is not None
        for broker, count in ((first, 2), (second, 3)):
            broker.parts.topics.update(
                TopicConfig(topic_name="T", read_queue_nums=count, write_queue_nums=count)
            )
        assert first.namesrv is not None
        routes = first.namesrv.routes
        await until(lambda: len((routes.topic_route("T") or route()).queue_datas) == 2)
        one = first.grpc_address[1]
        assert await places(first) == {"broker-a": (one, 2), "broker-b": (one, 3)}
        assert await places(second) == {
            "broker-a": (one, 2),
            "broker-b": (second.grpc_address[1], 3),
        }
