"""Bodies of the name server: routes (105), cluster (106), topics (206), registration (103).

The compressed form of a registration is a zlib stream over

    size   part
    4 + n  DataVersion as JSON       int32 BE length before each text
    4      topic count               int32 BE
    4 + n  for each topic: name, read queues, write queues, perm, filter type; a blank between
    4 + n  JSON array of filter servers

It loses `order` and `topicSysFlag` of the topics.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/route/ (TopicRouteData.java,
QueueData.java, BrokerData.java), common/.../protocol/body/ (ClusterInfo.java, TopicList.java,
KVTable.java, RegisterBrokerBody.java: encode, decode)
"""

import struct
import zlib
from typing import Any, Final

import msgspec

from skylarkmq.protocol.bodies.text import Body, DataVersion, decode_body, encode_body
from skylarkmq.protocol.bodies.topic import TopicConfig, TopicConfigSerializeWrapper
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import LocalProtocolError, RemoteProtocolError
from skylarkmq.protocol.frame import MAX_FRAME_SIZE
from skylarkmq.protocol.header_json import DECODE_ERRORS
from skylarkmq.protocol.headers.fields import JavaInt, JavaLong, java_int

INFLATED_SIZE_MAX: Final = MAX_FRAME_SIZE
_SIZE: Final = struct.Struct(">i")


class QueueData(Body, kw_only=True, frozen=True):
    """The queues of one topic on one broker."""

    broker_name: str
    perm: JavaInt
    read_queue_nums: JavaInt
    topic_sys_flag: JavaInt = 0
    write_queue_nums: JavaInt


class BrokerData(Body, kw_only=True, frozen=True):
    """The addresses (`ip:port`) of one broker by broker id; 0 is the master."""

    broker_addrs: dict[JavaLong, str]
    broker_name: str
    cluster: str = ""


def _no_filter_servers() -> dict[str, list[str]]:
    """Not plain `dict`: msgspec would leave out its empty value, where Java writes `{}`."""
    return {}


class TopicRouteData(Body, kw_only=True, frozen=True, omit_defaults=True):
    """Where a topic lives. `order_topic_conf` is `broker:queues;...` for ordered topics."""

    broker_datas: list[BrokerData]
    filter_server_table: dict[str, list[str]] = msgspec.field(default_factory=_no_filter_servers)
    order_topic_conf: str | None = None
    queue_datas: list[QueueData]


class ClusterInfo(Body, kw_only=True, frozen=True):
    """All brokers by name, and the names by cluster."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class TopicList(Body, kw_only=True, frozen=True, omit_defaults=True):
    """Topic names."""

    broker_addr: str | None = None
    topic_list: list[str]


class KVTable(Body, kw_only=True, frozen=True):
    """Text by text; a registration is answered with the order configuration by topic."""

    table: dict[str, str] = {}


class RegisterBrokerBody(Body, kw_only=True, frozen=True):
    """What a broker tells about its topics."""

    filter_server_list: list[str] = []
    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = TopicConfigSerializeWrapper()


def _sized(data: bytes) -> bytes:
    return _SIZE.pack(len(data)) + data


def encode_compressed_registration(body: RegisterBrokerBody) -> bytes:
    """Return the compressed form of `body`.

    Raises:
        LocalProtocolError: a text that UTF-8 cannot carry.
    """
    wrapper = body.topic_config_serialize_wrapper
    parts = [
        _sized(encode_body(wrapper.data_version)),
        _SIZE.pack(len(wrapper.topic_config_table)),
    ]
    try:
        for config in wrapper.topic_config_table.values():
            text = (
                f"{config.topic_name} {config.read_queue_nums} {config.write_queue_nums}"
                f" {config.perm} {config.topic_filter_type}"
            )
            parts.append(_sized(text.encode()))
        parts.append(_sized(msgspec.json.encode(body.filter_server_list)))
    except ValueError as error:
        raise LocalProtocolError(f"registration cannot be written: {error}") from error
    return zlib.compress(b"".join(parts), 9)


def _refused(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(ResponseCode.SYSTEM_ERROR, f"the registration is not sound: {why}")


def _inflate(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        inflated = stream.decompress(data, INFLATED_SIZE_MAX)
    except zlib.error as error:
        raise _refused("not a zlib stream") from error
    if not stream.eof:
        raise _refused(f"cut off, or over {INFLATED_SIZE_MAX} bytes")
    return inflated


class _Parts:
    """Reads the inflated registration part by part."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self) -> int:
        end = self._position + _SIZE.size
        if end > len(self._data):
            raise _refused("cut off")
        (number,) = _SIZE.unpack_from(self._data, self._position)
        self._position = end
        if number < 0:
            raise _refused("a negative length")
        return int(number)

    def text(self) -> bytes:
        size = self.number()
        start = self._position
        if size > len(self._data) - start:
            raise _refused("a length past the end")
        self._position = start + size
        return self._data[start : self._position]


def _topic_config(text: bytes) -> TopicConfig:
    try:
        name, read, write, perm, filter_type = text.decode().split(" ")
    except ValueError as error:
        raise _refused("a topic is not five words") from error
    return TopicConfig(
        topic_name=name,
        read_queue_nums=java_int(read, "readQueueNums"),
        write_queue_nums=java_int(write, "writeQueueNums"),
        perm=java_int(perm, "perm"),
        topic_filter_type=filter_type,
    )


def decode_compressed_registration(data: bytes) -> RegisterBrokerBody:
    """Return the registration in `data`, inflating at most INFLATED_SIZE_MAX bytes.

    Raises:
        RemoteProtocolError: SYSTEM_ERROR; not such a stream, or a length that does not fit.
    """
    parts = _Parts(_inflate(data))
    data_version = decode_body(DataVersion, parts.text())
    configs = [_topic_config(parts.text()) for _ in range(parts.number())]
    try:
        filter_servers: Any = msgspec.json.decode(parts.text(), type=list[str])
    except DECODE_ERRORS as error:
        raise _refused("the filter servers are not a list") from error
    wrapper = TopicConfigSerializeWrapper(
        topic_config_table={config.topic_name: config for config in configs},
        data_version=data_version,
    )
    return RegisterBrokerBody(
        topic_config_serialize_wrapper=wrapper, filter_server_list=filter_servers
    )
