"""A name server over its socket: every code, and the end of a broker's connection."""

import asyncio
from collections.abc import AsyncIterator
from random import Random

import msgspec
import pytest

from skylarkmq.broker.access.outgoing import answer_push
from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.broker.config.settings import NamesrvConfig
from skylarkmq.broker.namesrv.controller import NamesrvController
from skylarkmq.broker.namesrv.processor import ANSWER_TIMEOUT_S
from skylarkmq.common.crc import body_crc
from skylarkmq.protocol.bodies.route import (
    RegisterBrokerBody,
    TopicList,
    TopicRouteData,
    encode_compressed_registration,
)
from skylarkmq.protocol.bodies.text import DataVersion, decode_body, encode_body
from skylarkmq.protocol.bodies.topic import TopicConfig, TopicConfigSerializeWrapper
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.remoting.client import RemotingClient
from skylarkmq.remoting.stream import AsyncioNetwork
from tests.support.manual_clock import ManualClock
from tests.support.patience import LIMIT_S
from tests.support.raw_client import RawClient

WHO = {
    "brokerName": "broker-a",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "c",
    "brokerId": "0",
}
VERSION = DataVersion(counter=3, timestamp=5)
BODY = RegisterBrokerBody(
    topic_config_serialize_wrapper=TopicConfigSerializeWrapper(
        data_version=VERSION, topic_config_table={"T": TopicConfig(topic_name="T")}
    )
)


@pytest.fixture
async def namesrv() -> AsyncIterator[NamesrvController]:
    controller = NamesrvController(
        NamesrvConfig(listen_port=0), SystemClock(asyncio.get_running_loop())
    )
    await controller.start()
    yield controller
    await controller.stop()


class Channel:
    """What a broker registers by."""

    def __init__(self, controller: NamesrvController) -> None:
        self._address = "{}:{}".format(*controller.listen_address)
        clock = SystemClock(asyncio.get_running_loop())
        self._remoting = RemotingClient(AsyncioNetwork(), clock, Random(), "json", answer_push)

    async def call(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        return await self._remoting.call(self._address, command, timeout_s)

    async def close(self) -> None:
        await self._remoting.stop()


@pytest.fixture
async def channel(namesrv: NamesrvController) -> AsyncIterator[Channel]:
    channel = Channel(namesrv)
    yield channel
    await channel.close()


async def _call(channel: Channel, code: int, body: bytes = b"", **fields: str) -> RemotingCommand:
    return await channel.call(RemotingCommand.request(code, fields, body), LIMIT_S)


async def _register(channel: Channel, body: bytes, **fields: str) -> RemotingCommand:
    fields = {**WHO, "haServerAddr": "10.0.0.1:10912", **fields}
    return await _call(channel, RequestCode.REGISTER_BROKER, body, **fields)


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_registered_topic_is_found(channel: Channel, compressed: bool) -> None:
    body = encode_compressed_registration(BODY) if compressed else encode_body(BODY)
    answer = await _register(
        channel, body, compressed=str(compressed).lower(), bodyCrc32=str(body_crc(body))
    )
    assert answer.code == ResponseCode.SUCCESS and not answer.body
    answer = await _call(channel, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
    assert answer.code == ResponseCode.SUCCESS
    assert b'"brokerAddrs":{"0":"10.0.0.1:10911"}' in answer.body
    route = decode_body(TopicRouteData, answer.body)
    assert route.queue_datas[0].write_queue_nums == 16
    answer = await _call(channel, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert decode_body(TopicList, answer.body).topic_list == ["T"]
    answer = await _call(channel, RequestCode.GET_BROKER_CLUSTER_INFO)
    assert msgspec.json.decode(answer.body) == {
        "brokerAddrTable": {
            "broker-a": {
                "brokerAddrs": {"0": "10.0.0.1:10911"},
                "brokerName": "broker-a",
                "cluster": "c",
            }
        },
        "clusterAddrTable": {"c": ["broker-a"]},
    }


async def test_a_registration_without_a_body_or_a_checksum(channel: Channel) -> None:
    assert (await _register(channel, b"")).code == ResponseCode.SUCCESS
    assert (await _register(channel, encode_body(BODY))).code == ResponseCode.SUCCESS


async def test_a_damaged_registration_is_refused(channel: Channel) -> None:
    answer = await _register(channel, encode_body(BODY), bodyCrc32="1")
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")
    assert (await _register(channel, b"[")).code == ResponseCode.SYSTEM_ERROR
    answer = await _register(channel, b"x", compressed="true")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    answer = await _call(channel, RequestCode.REGISTER_BROKER, brokerName="b")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    answer = await _call(channel, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert decode_body(TopicList, answer.body).topic_list == []


async def test_unknown_topics_and_codes(channel: Channel) -> None:
    answer = await _call(channel, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="nobody\u00e4")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert (answer.remark or "").startswith("No topic route info in name server for the topic")
    for code in (RequestCode.GET_BROKER_CONFIG, RequestCode.SEND_MESSAGE, 99999):
        answer = await _call(channel, code)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_the_version_question(channel: Channel) -> None:
    async def ask(version: DataVersion) -> RemotingCommand:
        body = encode_body(version)
        return await _call(channel, RequestCode.QUERY_DATA_VERSION, body, **WHO)

    answer = await ask(VERSION)
    assert answer.ext_fields["changed"] == "true" and not answer.body
    await _register(channel, encode_body(BODY))
    answer = await ask(VERSION)
    assert answer.ext_fields["changed"] == "false"
    assert decode_body(DataVersion, answer.body) == VERSION
    answer = await ask(DataVersion(counter=4, timestamp=5))
    assert answer.ext_fields["changed"] == "true"


async def test_a_broker_is_gone_when_it_says_so_or_hangs_up(
    namesrv: NamesrvController, channel: Channel
) -> None:
    await _register(channel, encode_body(BODY))
    assert (await _call(channel, RequestCode.UNREGISTER_BROKER, **WHO)).code == ResponseCode.SUCCESS
    answer = await _call(channel, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST

    broker = Channel(namesrv)
    for _ in range(2):
        await _register(broker, encode_body(BODY))
    assert namesrv.routes.topics() == ["T"]
    await broker.close()
    for _ in range(1000):
        answer = await _call(channel, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            break
    assert namesrv.routes.topics() == []


# Who takes whose place


async def _addresses(channel: Channel) -> str:
    answer = await _call(channel, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
    return decode_body(TopicRouteData, answer.body).broker_datas[0].broker_addrs[0]


async def test_a_broker_that_answers_keeps_its_place(
    namesrv: NamesrvController, channel: Channel
) -> None:
    """As one of RocketMQ does: its client's end answers 3 to a code that it does not know."""
    stranger = Channel(namesrv)
    await _register(channel, encode_body(BODY))
    for fields in ({"brokerAddr": "10.0.0.9:1"}, {"brokerName": "broker-b"}):
        refused = await _register(stranger, encode_body(BODY), **fields)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "is there and answers" in (refused.remark or "")
    gone = await _call(stranger, RequestCode.UNREGISTER_BROKER, **WHO)
    assert gone.code == ResponseCode.SYSTEM_ERROR
    assert await _addresses(channel) == "10.0.0.1:10911"
    moved = await _register(channel, encode_body(BODY), brokerAddr="10.0.0.9:1")
    assert moved.code == ResponseCode.SUCCESS, "it may move itself"
    assert await _addresses(channel) == "10.0.0.9:1"
    await channel.close()
    await stranger.close()


async def test_a_broker_that_was_started_again_elsewhere_takes_its_old_place() -> None:
    """Its old machine went without a word: the connection stands, and nobody answers."""
    clock = ManualClock()
    namesrv = NamesrvController(NamesrvConfig(listen_port=0), clock)
    await namesrv.start()
    old = await RawClient.open(namesrv.listen_address)
    who = {**WHO, "haServerAddr": ""}
    assert (await old.call(RequestCode.REGISTER_BROKER, who, encode_body(BODY))).code == 0
    new = [await RawClient.open(namesrv.listen_address) for _ in range(2)]
    moved = {**who, "brokerAddr": "10.0.0.9:1"}
    opaques = [each.send(RequestCode.REGISTER_BROKER, moved, encode_body(BODY)) for each in new]
    assert (await old.push()).code == RequestCode.HEART_BEAT
    clock.advance(ANSWER_TIMEOUT_S)
    answers = [await each.answer(opaque) for each, opaque in zip(new, opaques, strict=True)]
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 2
    assert not old.pushes, "one question for both"
    for each in (old, *new):
        await each.close()
    await namesrv.stop()


async def test_the_later_election_decides_and_asks_nobody(
    namesrv: NamesrvController, channel: Channel
) -> None:
    later, configured = Channel(namesrv), Channel(namesrv)
    await _register(channel, encode_body(BODY), **{"skylarkmq.term": "3"})
    at_b = {"brokerAddr": "10.0.0.9:1", "skylarkmq.term": "4"}
    assert (await _register(later, encode_body(BODY), **at_b)).code == ResponseCode.SUCCESS
    assert await _addresses(channel) == "10.0.0.9:1"
    for peer, fields in (
        (channel, {"skylarkmq.term": "3"}),
        (configured, {"brokerAddr": "10.0.0.8:1"}),
    ):
        refused = await _register(peer, encode_body(BODY), **fields)
        assert refused.code == ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH
        assert "10.0.0.9:1" in (refused.remark or "") and "term 4" in (refused.remark or "")
    await channel.close()
    assert await _addresses(later) == "10.0.0.9:1"
    for peer in (later, configured):
        await peer.close()
