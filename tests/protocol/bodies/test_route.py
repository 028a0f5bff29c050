"""Bodies of the name server: the golden ones, both JSON forms, the compressed registration."""

import contextlib
import struct
import zlib

import pytest

from skylarkmq.protocol.bodies import route
from skylarkmq.protocol.bodies.route import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    KVTable,
    QueueData,
    RegisterBrokerBody,
    TopicList,
    TopicRouteData,
    decode_compressed_registration,
    encode_compressed_registration,
)
from skylarkmq.protocol.bodies.text import decode_body, encode_body
from skylarkmq.protocol.bodies.topic import TopicConfig, TopicConfigSerializeWrapper
from skylarkmq.protocol.errors import LocalProtocolError, RemoteProtocolError
from tests.protocol.message_vectors import FRAMES
from tests.protocol.support import only_frame

ROUTE = only_frame(bytes.fromhex(FRAMES["route_response_json"]["hex"])).body
COMPRESSED = FRAMES["register_broker_body_compressed"]
INFLATED = bytes.fromhex(COMPRESSED["decoded"]["inflated_hex"])
PLAIN = (
    b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":3,'
    b'"timestamp":1700000000000},"topicConfigTable":{"TopicTest":{"order":false,"perm":6,'
    b'"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"TopicTest",'
    b'"topicSysFlag":0,"writeQueueNums":4}}}}'
)


def test_the_golden_route() -> None:
    body = decode_body(TopicRouteData, ROUTE)
    assert body == TopicRouteData(
        broker_datas=[
            BrokerData(
                cluster="DefaultCluster",
                broker_name="broker-a",
                broker_addrs={0: "192.0.2.20:10911"},
            )
        ],
        queue_datas=[
            QueueData(broker_name="broker-a", perm=6, read_queue_nums=4, write_queue_nums=4)
        ],
    )
    assert encode_body(body) == ROUTE


def test_a_route_of_an_older_name_server() -> None:
    legacy = ROUTE.replace(b'{"0":', b"{0:")
    assert legacy != ROUTE
    assert decode_body(TopicRouteData, legacy) == decode_body(TopicRouteData, ROUTE)


def test_order_configuration_only_where_there_is_one() -> None:
    body = decode_body(TopicRouteData, ROUTE[:-1] + b',"orderTopicConf":"broker-a:4"}')
    assert body.order_topic_conf == "broker-a:4"
    assert b'"orderTopicConf":"broker-a:4"' in encode_body(body)


def test_cluster_and_lists() -> None:
    text = (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"192.0.2.20:10911"},'
        b'"brokerName":"broker-a","cluster":"DefaultCluster"}},'
        b'"clusterAddrTable":{"DefaultCluster":["broker-a"]}}'
    )
    info = decode_body(ClusterInfo, text)
    assert info.broker_addr_table["broker-a"].broker_addrs == {0: "192.0.2.20:10911"}
    assert encode_body(info) == text.replace(b"{0:", b'{"0":')
    assert encode_body(TopicList(topic_list=["T"])) == b'{"topicList":["T"]}'
    assert encode_body(TopicList(topic_list=[])) == b'{"topicList":[]}'
    assert decode_body(TopicList, b'{"topicList":["T"],"brokerAddr":null}').topic_list == ["T"]
    assert encode_body(KVTable(table={"T": "broker-a:4"})) == b'{"table":{"T":"broker-a:4"}}'


def test_a_plain_registration() -> None:
    body = decode_body(RegisterBrokerBody, PLAIN)
    assert encode_body(body) == PLAIN
    assert body == decode_compressed_registration(bytes.fromhex(COMPRESSED["hex"]))


def test_the_golden_compressed_registration() -> None:
    body = decode_body(RegisterBrokerBody, PLAIN)
    written = encode_compressed_registration(body)
    assert zlib.decompress(written) == INFLATED
    assert decode_compressed_registration(written) == body
    assert (
        zlib.crc32(bytes.fromhex(COMPRESSED["hex"])) & 0x7FFFFFFF
        == (COMPRESSED["decoded"]["bodyCrc32"])
    )


def test_what_the_compressed_form_loses() -> None:
    config = TopicConfig(topic_name="T", order=True, topic_sys_flag=2, perm=4)
    wrapper = TopicConfigSerializeWrapper(
        topic_config_table={"T": config}, data_version=DataVersion(counter=1, timestamp=2)
    )
    body = RegisterBrokerBody(
        topic_config_serialize_wrapper=wrapper, filter_server_list=["192.0.2.1:1"]
    )
    back = decode_compressed_registration(encode_compressed_registration(body))
    assert back.filter_server_list == ["192.0.2.1:1"]
    assert back.topic_config_serialize_wrapper.data_version == wrapper.data_version
    assert back.topic_config_serialize_wrapper.topic_config_table == {
        "T": TopicConfig(topic_name="T", perm=4)
    }


def refused(inflated: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_compressed_registration(zlib.compress(inflated))


def test_every_cut_of_the_inflated_text_is_refused() -> None:
    for size in range(len(INFLATED)):
        refused(INFLATED[:size])


def test_every_cut_of_the_stream_is_refused_and_flipped_bits_do_no_harm() -> None:
    data = bytes.fromhex(COMPRESSED["hex"])
    for size in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            decode_compressed_registration(data[:size])
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            with contextlib.suppress(RemoteProtocolError):  # some bits change nothing
                assert decode_compressed_registration(bytes(flipped))


@pytest.mark.parametrize("size", [-1, -(2**31), 2**31 - 1, len(INFLATED)])
@pytest.mark.parametrize("position", [0, 43, 47])
def test_lengths_and_counts_that_lie_are_refused(size: int, position: int) -> None:
    lying = bytearray(INFLATED)
    struct.pack_into(">i", lying, position, size)
    refused(bytes(lying))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"TopicTest 4 4 6",
        b"TopicTest 4 4 6 SINGLE_TAG x",
        b"TopicTest 4  6 SINGLE_TAG",
        b"TopicTest 4 x 6 SINGLE_TAG",
        b"TopicTest 4 4 99999999999 SINGLE_TAG",
        b"TopicTest 4 1_0 6 SINGLE_TAG",
        b"Topic\xff 4 4 6 SINGLE_TAG",
    ],
)
def test_topics_that_are_not_five_words_are_refused(text: bytes) -> None:
    version = INFLATED[:43]
    filters = INFLATED[-6:]
    refused(version + struct.pack(">ii", 1, len(text)) + text + filters)


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b"[", b"\xff", b"[" * 100_000])
def test_filter_servers_that_are_no_list_are_refused(text: bytes) -> None:
    refused(INFLATED[:-6] + struct.pack(">i", len(text)) + text)


def test_a_bomb_is_not_inflated() -> None:
    bomb = zlib.compress(bytes(route.INFLATED_SIZE_MAX + 1), 9)
    assert len(bomb) < 20_000
    with pytest.raises(RemoteProtocolError, match="over"):
        decode_compressed_registration(bomb)


def test_what_utf8_cannot_carry_is_our_own_fault() -> None:
    config = TopicConfig(topic_name="\ud800")
    wrapper = TopicConfigSerializeWrapper(topic_config_table={"T": config})
    with pytest.raises(LocalProtocolError):
        encode_compressed_registration(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))
