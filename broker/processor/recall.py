"""Taking a message back that waits for its delivery time: code 370, and gRPC's RecallMessage.

    handle    URL-safe base64 of `v1 topic brokerName deliverMs uniqKey`, blanks in between; in the
              answer to the send of a message with a time of its own and a key

A recall stores what takes the waiting message back in the timer topic, and is answered when that is
as durable as the flush mode makes it: a message that was taken back so is not delivered, whatever
happens to the broker. Whether a message waits there at all is not looked up; to take it back twice
does no harm.

Unlike RocketMQ: `recallMessageEnable` need not say so, and a recall that is late on the disk, or
missing on a slave, is answered as a send is, not with success.
Source: apache/rocketmq@rocketmq-all-5.3.3 common/.../producer/RecallMessageHandle.java,
broker/.../processor/RecallMessageProcessor.java, SendMessageProcessor.java (attachRecallHandle)
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from skylarkmq.broker.net.handlers import Answer, Call, handles, refused
from skylarkmq.broker.processor.send_answers import CODES, remark_of
from skylarkmq.broker.processor.send_checks import check_busy
from skylarkmq.broker.requests.processor import Context, Processor, check_topic
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import RMQ_SYS_WHEEL_TIMER_TOPIC, is_retry_topic
from skylarkmq.protocol.headers.send import (
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
)
from skylarkmq.protocol.properties import encode_properties, find_property
from skylarkmq.store.results import TAKEN, MessageInner, PutMessageResult
from skylarkmq.store.timer.rules import TimerRefusedError, cancelled_key, due_of

HANDLE_SIZE_MAX: Final = 4096
_VERSION: Final = "v1"
_PARTS: Final = 5
_DIGITS_MAX: Final = 15
_SEPARATORS: Final = "\0\x01\x02"
_UNIQ_KEY: Final = names.UNIQ_KEY.encode() + b"\x01"


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


def handle_of(inner: MessageInner, topic: str, broker_name: str) -> str | None:
    """Return the handle of a message as it is stored; None of one that cannot be taken back.

    Args:
        topic: that it was sent to.
    """
    if inner.topic != RMQ_SYS_WHEEL_TIMER_TOPIC or is_retry_topic(topic):
        return None
    key, due_ms = find_property(inner.properties, _UNIQ_KEY), due_of(inner.properties)
    if not key or due_ms is None or cancelled_key(inner.properties) is not None:
        return None
    return recall_handle(topic, broker_name, due_ms, key.decode("utf-8", "replace"))


def parse_handle(handle: str) -> RecallHandle:
    """Return what a handle names.

    Raises:
        RemoteProtocolError: ILLEGAL_OPERATION; it is none.
    """
    if len(handle) <= HANDLE_SIZE_MAX:
        try:
            data = base64.b64decode(handle, altchars=b"-_", validate=True)
            version, topic, broker_name, due, message_id = data.decode().split(" ", _PARTS - 1)
        except (binascii.Error, ValueError):
            pass
        else:
            is_time = due.isascii() and due.isdigit() and len(due) <= _DIGITS_MAX
            is_id = bool(message_id.strip()) and not any(each in message_id for each in _SEPARATORS)
            if version == _VERSION and is_time and is_id:
                return RecallHandle(topic, broker_name, int(due), message_id)
    raise _illegal("the recall handle is none that a broker has made")


class RecallProcessor(Processor):
    """Takes messages back. Loop thread."""

    def __init__(self, context: Context, store_host: bytes) -> None:
        """Take back what waits in a broker's store.

        Args:
            store_host: packed address of the broker.
        """
        super().__init__(context)
        self._store_host = store_host

    @handles(RequestCode.RECALL_MESSAGE, RecallMessageRequestHeader)
    async def recall_message(self, call: Call[RecallMessageRequestHeader]) -> Answer:
        """Take a message back (370); the code is 604 for a handle that is not of this message."""
        header = call.header
        check_topic(header.topic)
        self._find_topic(header.topic)
        message_id, result = await self.take_back(header.topic, header.recall_handle)
        code = CODES.get(result.status, ResponseCode.SYSTEM_ERROR)
        said = RecallMessageResponseHeader(msg_id=message_id) if result.status in TAKEN else None
        return Answer(header=said, remark=remark_of(result), code=code)

    async def take_back(self, topic: str, text: str) -> tuple[str, PutMessageResult]:
        """Store what takes a message of a topic back; return its id, and what came of that.

        Raises:
            RemoteProtocolError: ILLEGAL_OPERATION for a handle that does not count here and now,
                REQUEST_CODE_NOT_SUPPORTED without timers, or the store takes nothing.
        """
        handle = parse_handle(text)
        self._check(handle, topic)
        check_busy(self._store)
        try:
            inner = self._store.timer_rules.redirect(self._canceling(handle))
        except TimerRefusedError as error:
            if error.is_illegal:
                raise _illegal(str(error)) from error
            raise refused(str(error), ResponseCode.REQUEST_CODE_NOT_SUPPORTED) from error
        try:
            return handle.message_id, await self._put(inner)
        except OSError as error:
            why = self._store.refusal() or str(error)
            raise refused(why, ResponseCode.SERVICE_NOT_AVAILABLE) from error

    def _check(self, handle: RecallHandle, topic: str) -> None:
        why = None
        if handle.topic != topic:
            why = f"the recall handle is of another topic than {topic}"
        elif handle.broker_name != self._config.broker_name:
            why = f"the recall handle is of another broker than {self._config.broker_name}"
        elif handle.deliver_ms <= self._clock.now_ms():
            why = "the delivery time of the message is over: it cannot be recalled any more"
        if why is not None:
            raise _illegal(why)

    def _canceling(self, handle: RecallHandle) -> MessageInner:
        """Return the message that takes another one back, before it is led to the timer topic."""
        properties = {
            names.TIMER_DELIVER_MS: str(handle.deliver_ms),
            names.TIMER_DEL_UNIQKEY: f"{handle.topic}+{handle.message_id}",
        }
        host, now_ms = self._store_host, self._clock.now_ms()
        text = encode_properties(properties).encode()
        return MessageInner(handle.topic, 0, b"0", text, host, host, now_ms)


def _illegal(why: str) -> RemoteProtocolError:
    return refused(why, ResponseCode.ILLEGAL_OPERATION)
