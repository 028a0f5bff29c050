"""Typed calls for sending: 310, 320 with their answers, and 36.

A send's header differs from the one before in five places only, so its frame is made from a
template per producer group and queue. `encode_command` over the typed header is the road for the
other codecs and for the rare fields; a test holds both to the same meaning.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/MQClientAPIImpl.java (sendMessage,
processSendResponse, consumerSendMessageBack)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from skylarkmq.client.connection import Connection, Waiter
from skylarkmq.client.errors import ProtocolError, broker_error
from skylarkmq.client.remoting import Remoting
from skylarkmq.client.send_result import STORED_CODES, SendResult
from skylarkmq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import AUTO_CREATE_TOPIC_KEY_TOPIC
from skylarkmq.protocol.frame import PREFIX, SerializeType
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields
from skylarkmq.protocol.headers.send import (
    ConsumerSendMsgBackRequestHeader,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
    encode_send_header_v2,
)
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.properties import MSG_REGION, TRACE_ON
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.protocol.version import CURRENT

_to_json: Callable[[object], bytes] = msgspec.json.Encoder().encode
_to_msgpack: Callable[[object], bytes] = msgspec.msgpack.Encoder().encode
_pack_prefix = PREFIX.pack
_JSON: Final = int(SerializeType.JSON)
_MSGPACK: Final = int(SerializeType.MSGPACK)
_MSGPACK_MARK: Final = _MSGPACK << 24
_PYTHON: Final = int(LanguageCode.PYTHON)
_VERSION: Final = CURRENT


class SendRequest:
    """One message, or one batch, as it goes on the wire, apart from the queue."""

    __slots__ = (
        "batch",
        "body",
        "born_timestamp",
        "flag",
        "max_reconsume_times",
        "properties",
        "reconsume_times",
        "sys_flag",
        "topic",
        "unique_key",
    )

    def __init__(
        self,
        topic: str,
        body: bytes,
        properties: str,
        unique_key: str,
        born_timestamp: int,
        *,
        flag: int = 0,
        sys_flag: int = 0,
        batch: bool = False,
        reconsume_times: int = 0,
        max_reconsume_times: int | None = None,
    ) -> None:
        self.topic = topic
        self.body = body
        self.properties = properties
        self.unique_key = unique_key
        self.born_timestamp = born_timestamp
        self.flag = flag
        self.sys_flag = sys_flag
        self.batch = batch
        self.reconsume_times = reconsume_times
        self.max_reconsume_times = max_reconsume_times


class SendTemplate:
    """Makes the send frames of one producer group for one queue."""

    __slots__ = ("_default_queue_count", "_group", "_json", "_msgpack_fields", "queue")

    def __init__(self, group: str, queue: MessageQueue, default_queue_count: int) -> None:
        self.queue = queue
        self._group = group
        self._default_queue_count = default_queue_count
        names = {"group": group, "topic": queue.topic, "broker": queue.broker_name}
        text = {name: _to_json(value).replace(b"%", b"%%") for name, value in names.items()}
        self._json: Final = (
            b'{"code":310,"extFields":{"a":%(group)s,"b":%(topic)s,"c":"%(default)s","d":"%(count)d"'
            b',"e":"%(queue)d","f":"%%d","g":"%%d","h":"%%d","i":%%s,"j":"0","k":"false",'
            b'"m":"false","n":%(broker)s},"flag":0,"language":"PYTHON","opaque":%%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":%(version)d}'
        ) % {
            **{name.encode(): value for name, value in text.items()},
            b"default": AUTO_CREATE_TOPIC_KEY_TOPIC.encode(),
            b"count": default_queue_count,
            b"queue": queue.queue_id,
            b"version": _VERSION,
        }
        self._msgpack_fields: Final[dict[str, object]] = {
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

    def start(
        self, connection: Connection, request: SendRequest, waiter: Waiter, deadline_s: float
    ) -> int:
        """Send `request` to the queue; return the opaque under which `waiter` hears the answer."""
        kind = connection.serialize_type
        if (
            connection.offers_codec
            or request.batch
            or request.max_reconsume_times is not None
            or kind not in (_JSON, _MSGPACK)
        ):
            return connection.start(self.command(request), waiter, deadline_s)
        opaque = connection.take_opaque()
        if kind == _JSON:
            header = self._json % (
                request.sys_flag,
                request.born_timestamp,
                request.flag,
                _to_json(request.properties),
                opaque,
            )
        else:
            fields = {
                **self._msgpack_fields,
                "f": request.sys_flag,
                "g": request.born_timestamp,
                "h": request.flag,
                "i": request.properties,
            }
            header = _to_msgpack((310, _PYTHON, _VERSION, opaque, 0, None, fields))
        body = request.body
        size = len(header)
        head = _pack_prefix(4 + size + len(body), kind << 24 | size) + header
        connection.submit(opaque, head, body, waiter, deadline_s)
        return opaque

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


def send_result(
    answer: RemotingCommand, request: SendRequest, queue: MessageQueue, unknown_tries: int
) -> SendResult | None:
    """Return what a stored message's answer says; None for an answer that means not stored.

    Raises:
        ProtocolError: the answer lacks a field.
    """
    status = STORED_CODES.get(answer.code)
    if status is None:
        return None
    fields = answer.ext_fields
    try:
        header = decode_fields(SendMessageResponseHeader, fields)
    except RemoteProtocolError as error:
        raise ProtocolError(f"answer of {queue.broker_name} to a send: {error}") from error
    if header.queue_id != queue.queue_id:
        queue = queue._replace(queue_id=header.queue_id)
    return SendResult(
        status,
        request.unique_key,
        header.msg_id,
        queue,
        header.queue_offset,
        header.transaction_id,
        fields.get(MSG_REGION),
        fields.get(TRACE_ON) != "false",
        unknown_tries,
    )


async def send_message_back(
    remoting: Remoting, address: str, header: ConsumerSendMsgBackRequestHeader, timeout_s: float
) -> None:
    """Hand a message back to the broker that keeps it, for another try or as a dead letter.

    Raises:
        RocketMQError: refused, or no answer.
    """
    fields = encode_fields(header)
    request = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
    answer = await remoting.call(address, request, timeout_s)
    if answer.code != ResponseCode.SUCCESS:
        raise broker_error(answer.code, answer.remark, address)
