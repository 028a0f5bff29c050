"""Typed calls for sending: 310, 320 with their answers, and 36.

A send's header differs from the one before in five places only, so its frame is made from a
template per producer group and queue. `encode_command` over the typed header is the way for the
other codecs and for the rare fields; a test holds both to the same meaning.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/MQClientAPIImpl.java (sendMessage,
processSendResponse, consumerSendMessageBack)
"""

from __future__ import annotations

from typing import Final

import msgspec

from skylarkmq.client.errors import BrokerError, NotConfirmed, ProtocolError, broker_error
from skylarkmq.client.wire.ask import ask
from skylarkmq.client.wire.send_head import (
    json_parts,
    json_send_head,
    msgpack_parts,
    msgpack_send_head,
)
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import AUTO_CREATE_TOPIC_KEY_TOPIC
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.headers.fields import decode_fields
from skylarkmq.protocol.headers.send import (
    UNCONFIRMED_FIELD,
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

_JSON: Final = int(SerializeType.JSON)
_MSGPACK: Final = int(SerializeType.MSGPACK)


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
    ids: tuple[str, ...] = ()
    """Of the messages of a batch."""


class SendTemplate:
    """Makes the send frames of one producer group for one queue."""

    __slots__ = ("_default_queue_count", "_group", "_json", "_msgpack", "queue")

    def __init__(self, group: str, queue: MessageQueue, default_queue_count: int) -> None:
        self.queue = queue
        self._group = group
        self._default_queue_count = default_queue_count
        self._json: Final = json_parts(group, queue, default_queue_count)
        self._msgpack: Final = msgpack_parts(group, queue, default_queue_count)

    def start(self, connection: Connection, request: SendRequest, waiter: Waiter) -> int:
        """Send `request` to the queue; return the opaque under which `waiter` hears the answer."""
        kind = connection.serialize_type
        if connection.by_start or request.batch or request.max_reconsume_times is not None:
            return connection.start(self.command(request), waiter)
        if kind == _MSGPACK:
            put_head, parts = msgpack_send_head, self._msgpack
        elif kind == _JSON:
            put_head, parts = json_send_head, self._json
        else:
            return connection.start(self.command(request), waiter)
        body = request.body
        opaque = connection.take_opaque()
        head = put_head(
            parts,
            opaque,
            request.sys_flag,
            request.born_timestamp,
            request.flag,
            request.properties,
            len(body),
        )
        connection.submit(opaque, head, body, waiter)
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


def send_refusal(answer: RemotingCommand, broker_addr: str) -> BrokerError:
    """Return the error that stands for an answer that does not say stored."""
    if UNCONFIRMED_FIELD in answer.ext_fields:
        return NotConfirmed(answer.code, answer.remark or "", broker_addr)
    return broker_error(answer.code, answer.remark, broker_addr)


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
