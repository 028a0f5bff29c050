"""RecallMessage: takes a message back that waits for its delivery time.

    handle    URL-safe base64 of `v1 topic brokerName deliverMs uniqKey`, blanks in between

It stores what takes the waiting message back in the timer topic, and is answered when that is as
durable as the flush mode makes it: a message that was taken back so is not delivered, whatever
happens to the broker. Whether a message waits there at all is not looked up; to take it back twice
does no harm.

Unlike RocketMQ, which answers a handle that is none with INTERNAL_SERVER_ERROR, and takes no
message back unless `recallMessageEnable` says so.
Source: apache/rocketmq@rocketmq-all-5.3.3 common/.../producer/RecallMessageHandle.java,
proxy/.../processor/ProducerProcessor.java (recallMessage),
broker/.../processor/RecallMessageProcessor.java
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from skylarkmq.broker.grpc.calls import OK, Call, RpcHandlers, RpcRefused, rpc, status
from skylarkmq.broker.grpc.names import topic_of
from skylarkmq.broker.grpc.validation import DELAY_TYPE, has_control
from skylarkmq.broker.processor.processor import Context
from skylarkmq.broker.processor.send_answers import CODES, remark_of
from skylarkmq.broker.processor.send_checks import check_busy
from skylarkmq.broker.waiting import put, result_of
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.properties import encode_properties
from skylarkmq.protocol.topic_attributes import message_types_of
from skylarkmq.protocol.v5.codes import Code, status_code
from skylarkmq.protocol.v5.schema_pb2 import RecallMessageRequest, RecallMessageResponse
from skylarkmq.store.results import STORED, MessageInner
from skylarkmq.store.timer.rules import TimerRefusedError

HANDLE_SIZE_MAX: Final = 4096
_VERSION: Final = "v1"
_PARTS: Final = 5
_DIGITS_MAX: Final = 15


class RecallHandle(NamedTuple):
    """What a handle names."""

    topic: str
    broker_name: str
    deliver_ms: int
    message_id: str


def recall_handle(topic: str, broker_name: str, deliver_ms: int, message_id: str) -> str:
    """Return the handle of a message that waits."""
    text = " ".join((_VERSION, topic, broker_name, str(deliver_ms), message_id))
    return base64.urlsafe_b64encode(text.encode()).decode()


def parse_handle(handle: str) -> RecallHandle:
    """Return what a handle names.

    Raises:
        RpcRefused: it is none.
    """
    if len(handle) <= HANDLE_SIZE_MAX:
        try:
            data = base64.b64decode(handle, altchars=b"-_", validate=True)
            version, topic, broker_name, due, message_id = data.decode().split(" ", _PARTS - 1)
        except (binascii.Error, ValueError):
            pass
        else:
            is_time = due.isascii() and due.isdigit() and len(due) <= _DIGITS_MAX
            if (
                version == _VERSION
                and is_time
                and message_id.strip()
                and not has_control(message_id)
            ):
                return RecallHandle(topic, broker_name, int(due), message_id)
    raise RpcRefused(Code.BAD_REQUEST, "the recall handle is none that a broker has made")


class RecallHandlers(RpcHandlers):
    """Takes messages back. Loop thread."""

    def __init__(self, context: Context, store_host: bytes) -> None:
        """Take back what waits in a broker's store.

        Args:
            store_host: packed address of the broker.
        """
        self._config = context.config
        self._clock = context.clock
        self._topics = context.topics
        self._store = context.store
        self._store_host = store_host

    @rpc("RecallMessage", RecallMessageRequest, RecallMessageResponse)
    async def recall_message(
        self, _call: Call, request: RecallMessageRequest
    ) -> RecallMessageResponse:
        """Store what takes a message back."""
        topic = topic_of(request.topic)
        self._check_topic(topic)
        handle = parse_handle(request.recall_handle)
        self._check(handle, topic)
        check_busy(self._store)
        try:
            inner = self._store.timer_rules.redirect(self._canceling(handle))
        except TimerRefusedError as error:
            code = Code.BAD_REQUEST if error.is_illegal else Code.NOT_IMPLEMENTED
            raise RpcRefused(code, str(error)) from error
        try:
            (result,) = await result_of(put(self._store, (inner,)))
        except OSError as error:
            why = self._store.refusal() or str(error)
            raise RemoteProtocolError(ResponseCode.SERVICE_NOT_AVAILABLE, why) from error
        code = status_code(CODES.get(result.status, ResponseCode.MESSAGE_ILLEGAL))
        return RecallMessageResponse(
            status=OK if code == Code.OK else status(code, remark_of(result) or ""),
            message_id=handle.message_id if result.status in STORED else "",
        )

    def _check_topic(self, name: str) -> None:
        topic = self._topics.get(name)
        if topic is None:
            raise RpcRefused(Code.TOPIC_NOT_FOUND, f"topic {name} does not exist")
        types = message_types_of(topic.attributes_map)
        if DELAY_TYPE not in types:
            raise RpcRefused(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"no message of topic {name} can be recalled: it takes {', '.join(types)}, and "
                f"only messages of type {DELAY_TYPE} wait",
            )

    def _check(self, handle: RecallHandle, topic: str) -> None:
        why = None
        if handle.topic != topic:
            why = f"the recall handle is of another topic than {topic}"
        elif handle.broker_name != self._config.broker_name:
            why = f"the recall handle is of another broker than {self._config.broker_name}"
        elif handle.deliver_ms <= self._clock.now_ms():
            why = "the delivery time of the message is over: it cannot be recalled any more"
        if why is not None:
            raise RpcRefused(Code.BAD_REQUEST, why)

    def _canceling(self, handle: RecallHandle) -> MessageInner:
        """Return the message that takes another one back, before it is led to the timer topic."""
        properties = {
            names.TIMER_DELIVER_MS: str(handle.deliver_ms),
            names.TIMER_DEL_UNIQKEY: f"{handle.topic}+{handle.message_id}",
        }
        host, now_ms = self._store_host, self._clock.now_ms()
        text = encode_properties(properties).encode()
        return MessageInner(handle.topic, 0, b"0", text, host, host, now_ms)
