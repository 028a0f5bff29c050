"""Typed calls for sending: 310, 320 with their answers, and 36.

A send's header differs from the one before in five places only, so its frame is made from a
template per producer group and queue. `encode_command` over the typed header is the road for the
other codecs and for the rare fields; a test holds both to the same meaning.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/MQClientAPIImpl.java (sendMessage,
processSendResponse, consumerSendMessageBack)
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import msgspec

from skylarkmq.client.errors import ProtocolError
from skylarkmq.client.wire.ask import ask
from skylarkmq.protocol.codes import CURRENT_VERSION, LanguageCode, RequestCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import AUTO_CREATE_TOPIC_KEY_TOPIC
from skylarkmq.protocol.frame import PREFIX, SerializeType
from skylarkmq.protocol.headers.fields import decode_fields
from skylarkmq.protocol.headers.send import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
    encode_send_header_v2,
)
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.properties import MSG_REGION, TRACE_ON
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.client import RemotingClient
from skylarkmq.remoting.connection import Connection
from skylarkmq.remoting.pending_calls import Waiter
from skylarkmq.remoting.send_answer import StoredAnswer

_to_json: Callable[[object], bytes] = msgspec.json.Encoder().encode
_to_msgpack: Callable[[object], bytes] = msgspec.msgpack.Encoder().encode
_pack_prefix = PREFIX.pack
_JSON: Final = int(SerializeType.JSON)
_MSGPACK: Final = int(SerializeType.MSGPACK)
_MSGPACK_MARK: Final = _MSGPACK << 24
_FLAGS_SIZE: Final = 2 * (5 - 1)
"""What two numbers of 32 bits take in msgpack above two zeros."""
_PYTHON: Final = int(LanguageCode.PYTHON)
_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_VERSION: Final = CURRENT_VERSION


class SendRequest(msgspec.Struct, frozen=True, gc=False):
    """One message, or one batch, as it goes on the wire, apart from the queue."""

    topic: str
    body: bytes
    properties: str
    unique_key: str
    born_timestamp: int
    flag: int = 0
    sys_flag: int = 0
    batch: bool = False
    reconsume_times: int = 0
    max_reconsume_times: int | None = None


class SendTemplate:
    """Makes the send frames of one producer group for one queue."""

    __slots__ = (
        "_default_queue_count",
        "_flagged",
        "_group",
        "_json",
        "_msgpack",
        "_msgpack_size",
        "_pack_flagged",
        "_pack_msgpack",
        "queue",
    )

    def __init__(self, group: str, queue: MessageQueue, default_queue_count: int) -> None:
        self.queue = queue
        self._group = group
        self._default_queue_count = default_queue_count
        names = {"group": group, "topic": queue.topic, "broker": queue.broker_name}
        text = {name: _to_json(value).replace(b"%", b"%%") for name, value in names.items()}
        self._json: Final = (
            b'{"code":310,"extFields":{"a":%(group)s,"b":%(topic)s,"c":"%(default)s",'
            b'"d":"%(count)d","e":"%(queue)d","f":"%%d","g":"%%d","h":"%%d","i":%%s,"j":"0",'
            b'"k":"false","m":"false","n":%(broker)s},"flag":0,"language":"PYTHON","opaque":%%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":%(version)d}'
        ) % {
            **{name.encode(): value for name, value in text.items()},
            b"default": AUTO_CREATE_TOPIC_KEY_TOPIC.encode(),
            b"count": default_queue_count,
            b"queue": queue.queue_id,
            b"version": _VERSION,
        }
        fixed: dict[str, object] = {
            "a": group,
            "b": queue.topic,
            "c": AUTO_CREATE_TOPIC_KEY_TOPIC,
            "d": default_queue_count,
            "e": queue.queue_id,
            "j": 0,
            "k": False,
            "m": False,
            "n": queue.broker_name,
        }
        # An array of 7 up to the opaque; then flag, remark and the map, its changing fields last.
        front = bytes((0x97,)) + b"".join(map(_to_msgpack, (_SEND, _PYTHON, _VERSION))) + b"\xce"
        entries = b"".join(_to_msgpack(part) for item in fixed.items() for part in item)
        middle = b"\x00\xc0" + bytes((0x80 + len(fixed) + 4,)) + entries + b"\xa1f"
        # Nearly all messages have no flags, which makes four fields fewer to pack.
        self._msgpack: Final = (front, middle + b"\x00\xa1h\x00\xa1g\xd3")
        self._pack_msgpack: Final = struct.Struct(f">II{len(front)}sI{len(middle) + 7}sq3sI").pack
        self._msgpack_size: Final = len(front) + 4 + len(middle) + 7 + 8 + 3 + 4
        self._flagged: Final = (front, middle + b"\xd2")
        self._pack_flagged: Final = struct.Struct(
            f">II{len(front)}sI{len(middle) + 1}si3si3sq3sI"
        ).pack

    def start(self, connection: Connection, request: SendRequest, waiter: Waiter) -> int:
        """Send `request` to the queue; return the opaque under which `waiter` hears the answer."""
        if connection.by_start or request.batch or request.max_reconsume_times is not None:
            return connection.start(self.command(request), waiter)
        kind = connection.serialize_type
        if kind == _MSGPACK:
            opaque = connection.take_opaque()
            properties = request.properties.encode()
            if request.sys_flag or request.flag:
                head = self._flagged_head(request, opaque, properties)
            else:
                size = self._msgpack_size + len(properties)
                front, middle = self._msgpack
                head = (
                    self._pack_msgpack(
                        4 + size + len(request.body),
                        _MSGPACK_MARK | size,
                        front,
                        opaque,
                        middle,
                        request.born_timestamp,
                        b"\xa1i\xdb",
                        len(properties),
                    )
                    + properties
                )
        elif kind == _JSON:
            opaque = connection.take_opaque()
            header = self._json % (
                request.sys_flag,
                request.born_timestamp,
                request.flag,
                _to_json(request.properties),
                opaque,
            )
            size = len(header)
            head = _pack_prefix(4 + size + len(request.body), size) + header
        else:
            return connection.start(self.command(request), waiter)
        connection.submit(opaque, head, request.body, waiter)
        return opaque

    def _flagged_head(self, request: SendRequest, opaque: int, properties: bytes) -> bytes:
        size = self._msgpack_size + _FLAGS_SIZE + len(properties)
        front, middle = self._flagged
        return (
            self._pack_flagged(
                4 + size + len(request.body),
                _MSGPACK_MARK | size,
                front,
                opaque,
                middle,
                request.sys_flag,
                b"\xa1h\xd2",
                request.flag,
                b"\xa1g\xd3",
                request.born_timestamp,
                b"\xa1i\xdb",
                len(properties),
            )
            + properties
        )

    def command(self, request: SendRequest, *, oneway: bool = False) -> RemotingCommand:
        """Return the request by the typed header, for any codec."""
        header = SendMessageRequestHeader(
            producer_group=self._group,
            topic=self.queue.topic,
            default_topic=AUTO_CREATE_TOPIC_KEY_TOPIC,
            default_topic_queue_nums=self._default_queue_count,
            queue_id=self.queue.queue_id,
            sys_flag=request.sys_flag,
            born_timestamp=request.born_timestamp,
            flag=request.flag,
            properties=request.properties,
            reconsume_times=request.reconsume_times,
            max_reconsume_times=request.max_reconsume_times,
            batch=request.batch,
            broker_name=self.queue.broker_name,
        )
        code = RequestCode.SEND_BATCH_MESSAGE if request.batch else RequestCode.SEND_MESSAGE_V2
        fields = encode_send_header_v2(header)
        return RemotingCommand.request(code, fields, request.body, oneway=oneway)


def stored_answer(answer: RemotingCommand) -> StoredAnswer:
    """Return where the message is that the answer says is stored.

    Raises:
        ProtocolError: the answer lacks a field.
    """
    fields = answer.ext_fields
    try:
        header = decode_fields(SendMessageResponseHeader, fields)
    except RemoteProtocolError as error:
        raise ProtocolError(f"an answer to a send cannot be read: {error}") from error
    return (
        answer.opaque,
        answer.code,
        header.msg_id,
        header.queue_id,
        header.queue_offset,
        header.transaction_id,
        fields.get(MSG_REGION),
        fields.get(TRACE_ON, "true"),
    )


async def send_message_back(
    remoting: RemotingClient,
    address: str,
    header: ConsumerSendMsgBackRequestHeader,
    timeout_s: float,
) -> None:
    """Hand a message back to the broker that keeps it, for another try or as a dead letter.

    Raises:
        RocketMQError: refused, or no answer.
    """
    await ask(remoting, address, RequestCode.CONSUMER_SEND_MSG_BACK, timeout_s, header)
