"""What administrators ask of a name server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.broker.config.settings import NamesrvConfig
from skylarkmq.broker.config.tls_settings import TlsConfig
from skylarkmq.broker.namesrv.controller import NamesrvController
from skylarkmq.common.config_fields import keys_of
from skylarkmq.protocol.bodies.route import KVTable, RegisterBrokerBody, TopicList, TopicRouteData
from skylarkmq.protocol.bodies.text import decode_body, encode_body
from skylarkmq.protocol.bodies.topic import TopicConfig, TopicConfigSerializeWrapper
from tests.support.raw_client import RawClient


@pytest.fixture
async def namesrv(tmp_path: Path) -> AsyncIterator[NamesrvController]:
    config = NamesrvConfig(
        listen_port=0, kv_config_path=tmp_path / "a" / "kv.json", order_message_enable=True
    )
    controller = NamesrvController(config, SystemClock(asyncio.get_running_loop()))
    await controller.start()
    yield controller
    await controller.stop()


@pytest.fixture
async def peer(namesrv: NamesrvController) -> AsyncIterator[RawClient]:
    peer = await RawClient.open(namesrv.listen_address)
    for broker, cluster, topics in (("a", "C1", "TU"), ("b", "C2", "TV")):
        table = {name: TopicConfig(topic_name=name, perm=6) for name in topics}
        wrapper = TopicConfigSerializeWrapper(topic_config_table=table)
        body = encode_body(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))
        await peer.call(103, _who(broker, cluster), body)
    yield peer
    await peer.close()


def _who(broker: str, cluster: str) -> dict[str, str]:
    return {
        "brokerName": broker, "brokerAddr": f"10.0.0.1:{ord(broker)}", "clusterName": cluster,
        "haServerAddr": "", "brokerId": "0",
    }  # fmt: skip


async def _route(peer: RawClient, topic: str) -> TopicRouteData | None:
    answer = await peer.call(105, {"topic": topic})
    return None if answer.code == 17 else decode_body(TopicRouteData, answer.body)


async def _brokers(peer: RawClient, topic: str) -> list[str]:
    route = await _route(peer, topic)
    return [] if route is None else sorted(queue.broker_name for queue in route.queue_datas)


async def test_a_topic_is_forgotten_everywhere(peer: RawClient) -> None:
    assert await _brokers(peer, "T") == ["a", "b"]
    assert (await peer.call(216, {"topic": "T"})).code == 0
    assert await _brokers(peer, "T") == []
    assert (await peer.call(216, {"topic": "T"})).code == 0


async def test_a_topic_is_forgotten_in_one_cluster(peer: RawClient) -> None:
    assert (await peer.call(216, {"topic": "T", "clusterName": "C1"})).code == 0
    assert await _brokers(peer, "T") == ["b"]
    assert (await peer.call(216, {"topic": "T", "clusterName": "nobody"})).code == 0
    assert await _brokers(peer, "T") == ["b"]


async def test_topics_of_a_cluster(peer: RawClient) -> None:
    for cluster, topics in (("C1", ["T", "U"]), ("C2", ["T", "V"]), ("nobody", [])):
        answer = await peer.call(224, {"cluster": cluster})
        assert sorted(decode_body(TopicList, answer.body).topic_list) == topics


async def test_system_topics_are_clusters_and_brokers(peer: RawClient) -> None:
    body = decode_body(TopicList, (await peer.call(304)).body)
    assert body.topic_list == ["C1", "a", "C2", "b"]
    assert body.broker_addr == "10.0.0.1:97"


async def test_write_permission_of_a_broker(peer: RawClient) -> None:
    answer = await peer.call(205, {"brokerName": "a"})
    assert answer.ext_fields["wipeTopicCount"] == "2"
    route = await _route(peer, "T")
    assert route is not None
    assert {queue.broker_name: queue.perm for queue in route.queue_datas} == {"a": 4, "b": 6}
    answer = await peer.call(327, {"brokerName": "a"})
    assert answer.ext_fields["addTopicCount"] == "2"
    route = await _route(peer, "T")
    assert route is not None
    assert {queue.perm for queue in route.queue_datas} == {6}
    answer = await peer.call(205, {"brokerName": "nobody"})
    assert (answer.code, answer.ext_fields["wipeTopicCount"]) == (0, "0")


async def test_write_permission_leaves_the_other_permissions_as_they_are(peer: RawClient) -> None:
    """Wiping takes the right to write alone; adding gives both rights, and no other."""
    perms = {"none": 0, "write": 2, "read": 4, "both": 6, "inherited": 7}
    table = {name: TopicConfig(topic_name=name, perm=perm) for name, perm in perms.items()}
    wrapper = TopicConfigSerializeWrapper(topic_config_table=table)
    body = encode_body(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))
    await peer.call(103, _who("c", "C1"), body)

    async def seen() -> dict[str, int]:
        routes = {name: await _route(peer, name) for name in perms}
        return {
            name: queue.perm
            for name, route in routes.items()
            if route is not None
            for queue in route.queue_datas
        }

    assert await seen() == perms
    assert (await peer.call(205, {"brokerName": "c"})).ext_fields["wipeTopicCount"] == "5"
    assert await seen() == {"none": 0, "write": 0, "read": 4, "both": 4, "inherited": 5}
    assert (await peer.call(327, {"brokerName": "c"})).ext_fields["addTopicCount"] == "5"
    assert await seen() == dict.fromkeys(perms, 6)


async def test_kv_config_is_durable_when_answered(
    peer: RawClient, namesrv: NamesrvController, tmp_path: Path
) -> None:
    path = tmp_path / "a" / "kv.json"
    assert not path.parent.exists()
    entry = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}
    assert (await peer.call(101, entry)).code == 22
    assert (await peer.call(219, entry)).code == 22
    assert (await peer.call(100, {**entry, "value": "a:4;b:4"})).code == 0
    assert json.loads(path.read_bytes())["configTable"] == {"ORDER_TOPIC_CONFIG": {"T": "a:4;b:4"}}
    assert (await peer.call(101, entry)).ext_fields["value"] == "a:4;b:4"
    answer = await peer.call(219, entry)
    assert decode_body(KVTable, answer.body).table == {"T": "a:4;b:4"}
    assert (await peer.call(102, entry)).code == 0
    assert (await peer.call(101, entry)).code == 22
    assert json.loads(path.read_bytes())["configTable"] == {"ORDER_TOPIC_CONFIG": {}}


async def test_ordered_topics_in_routes_and_for_brokers(peer: RawClient) -> None:
    entry = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "a:4;b:4"}
    await peer.call(100, entry)
    routes = [await _route(peer, topic) for topic in ("T", "U")]
    assert [route and route.order_topic_conf for route in routes] == ["a:4;b:4", None]
    answer = await peer.call(103, _who("a", "C1"), encode_body(RegisterBrokerBody()))
    assert decode_body(KVTable, answer.body).table == {"T": "a:4;b:4"}


async def test_topics_of_units(peer: RawClient) -> None:
    flags = {"plain": 0, "unit": 1, "sub": 2, "both": 3}
    table = {name: TopicConfig(topic_name=name, topic_sys_flag=flags[name]) for name in flags}
    wrapper = TopicConfigSerializeWrapper(topic_config_table=table)
    body = encode_body(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))
    await peer.call(103, _who("c", "C3"), body)
    for code, topics in ((311, ["both", "unit"]), (312, ["both", "sub"]), (313, ["sub"])):
        answer = await peer.call(code)
        assert sorted(decode_body(TopicList, answer.body).topic_list) == topics, code


async def test_its_configuration_is_told(peer: RawClient, tmp_path: Path) -> None:
    text = (await peer.call(319)).body.decode()
    rows = dict(line.split("=", 1) for line in text.splitlines())
    assert rows["orderMessageEnable"] == "true"
    assert rows["kvConfigPath"] == str(tmp_path / "a" / "kv.json")
    keys = {*keys_of(NamesrvConfig), *keys_of(TlsConfig)}
    assert keys - rows.keys() == {"tls.server.keyPassword", "tls.client.keyPassword"}
    assert not rows.keys() - keys


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        ("", 0, None),
        (
            "orderMessageEnable=false",
            16,
            "orderMessageEnable: keys of",
        ),
        ("kvConfigPath=/etc/passwd", 16, "take a restart"),
        ("orderMesageEnable=false", 1, "did you mean orderMessageEnable"),
        ("a=\\u00g0", 1, "no properties"),
        ("x" * 70000, 1, "65536 are allowed"),
    ],
)
async def test_its_configuration_takes_a_restart(
    peer: RawClient, text: str, code: int, why: str | None
) -> None:
    before = (await peer.call(319)).body
    answer = await peer.call(318, {}, text.encode())
    assert answer.code == code
    assert (why or "") in (answer.remark or "")
    assert (await peer.call(319)).body == before


async def test_the_levels_of_its_logs_can_be_changed(peer: RawClient) -> None:
    assert (await peer.call(318, {}, b"logLevel=INFO,skylarkmq.broker.net=DEBUG")).code == 0
    assert b"\nlogLevel=INFO,skylarkmq.broker.net=DEBUG\n" in (await peer.call(319)).body
    answer = await peer.call(318, {}, b"logLevel=LOUD")
    assert answer.code != 0 and "DEBUG, INFO" in (answer.remark or "")
    assert b"\nlogLevel=INFO,skylarkmq" in (await peer.call(319)).body
