"""What is checked of a message that is sent, in RocketMQ's order, and how it is stored.

    body empty; larger than maxMessageSize        MESSAGE_BODY_EMPTY, MESSAGE_BODY_TOO_LARGE
    more than 128 properties of the user's;
      16,384 bytes of them, the tag and the keys  MESSAGE_PROPERTIES_TOO_LARGE
    a property's name is the broker's; control
      characters in name or value                 ILLEGAL_MESSAGE_PROPERTY_KEY
    tag: blank, `|`, control characters           ILLEGAL_MESSAGE_TAG
    key: blank, control characters                ILLEGAL_MESSAGE_KEY
    message id: blank, control characters         ILLEGAL_MESSAGE_ID
    delivery time after timerMaxDelaySec          ILLEGAL_DELIVERY_TIME
    recovery of a transaction after an hour       BAD_REQUEST
    message group: blank, 64 bytes, control
      characters                                  ILLEGAL_MESSAGE_GROUP
    priority below 0                              BAD_REQUEST
    the topic takes no messages of the type       MESSAGE_PROPERTY_CONFLICT_WITH_TYPE

The type is what the message says and carries: a transaction, else one with a delivery time, else
one with a message group, else one with a priority, else normal.

    stored                           from
    UNIQ_KEY                         message id
    TAGS, KEYS                       tag; keys with blanks between them
    TRAN_MSG, PGROUP                 of a transaction: true; the topic
    CHECK_IMMUNITY_TIME_IN_SECONDS   of a transaction: when its producer is asked first
    TIMER_DELIVER_MS                 delivery time
    __SHARDINGKEY                    message group
    _SYS_MSG_PRIORITY_               priority
    __BORNHOST                       born host, where the producer says one
    TRACE_CONTEXT                    trace context

A body that is packed with gzip is stored as it was before: consumers of the remoting protocol take
what is compressed for zlib. One in zlib's format stays.

Unlike RocketMQ, where a delivery time is at most a day away, a message group, a delivery time or a
transaction takes the priority away, a message id with control characters adds properties of its
own, and a message can name its group and its delay among the user's properties as well. It also
stores the producer's host, time and group with every message.
Source: apache/rocketmq@rocketmq-all-5.3.3 proxy/.../grpc/v2/producer/SendMessageActivity.java,
proxy/.../grpc/v2/common/GrpcValidator.java, proxy/.../common/ProxyConfig.java (limits),
common/.../attribute/TopicMessageType.java (parseFromMessageProperty)
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.unknown_fields import UnknownFieldSet

from skylarkmq.broker.grpc.calls import RpcRefused
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.compression import looks_compressed
from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.protocol.properties import KEY_SEPARATOR, RESERVED_NAMES_5, encode_properties
from skylarkmq.protocol.topic_attributes import MESSAGE_TYPES, PRIORITY_TYPE
from skylarkmq.protocol.v5.codes import Code
from skylarkmq.protocol.v5.schema_pb2 import (
    GZIP,
    LITE,
    PRIORITY,
    TRANSACTION,
    ChangeInvisibleDurationRequest,
    Message,
    SystemProperties,
)
from skylarkmq.store.config import StoreConfig

PROPERTIES_MAX: Final = 128
PROPERTIES_SIZE_MAX: Final = 16_384
GROUP_SIZE_MAX: Final = 63
RECOVERY_MAX_S: Final = 3600
TIME_MAX_MS: Final = 253_402_300_799_999
"""The end of the year 9999, after which the protocol knows no time."""

NORMAL_TYPE, FIFO_TYPE, DELAY_TYPE, TRANSACTION_TYPE = MESSAGE_TYPES

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_NAMES: Final = RESERVED_NAMES_5 | {names.SHARDING_KEY, names.TIMER_DELAY_MS}
_CHARACTER_SIZE_MAX: Final = 4  # bytes in UTF-8
_GZIP: Final = b"\x1f\x8b"
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS


class Checked(NamedTuple):
    """A sound message, as it is stored."""

    kind: str  # of MESSAGE_TYPES, or PRIORITY_TYPE
    message_id: str
    group: str  # empty without one
    deliver_ms: int  # 0 without a delivery time
    born_ms: int
    body: bytes
    sys_flag: int
    properties: str  # encoded


_LITE_TOPIC: Final = 21
"""A field of SystemProperties, since RocketMQ 5.5; the schema here does not have it."""


def later_fields(message: SystemProperties | ChangeInvisibleDurationRequest) -> dict[int, Any]:
    """Return what a message has beside the fields of the schema here, by its number."""
    return {each.field_number: each.data for each in UnknownFieldSet(message)}


def _check_type(system: SystemProperties) -> None:
    """Refuse what would not be what it is, stored as a normal message."""
    why = ""
    if system.HasField("priority"):  # it goes before a lite topic
        if system.priority < 0:
            raise RpcRefused(Code.BAD_REQUEST, f"the priority is {system.priority}, below 0")
    elif system.message_type == LITE or _LITE_TOPIC in later_fields(system):
        why = "is a lite one: lite topics, of RocketMQ 5.5, are not built here"
    elif system.message_type == PRIORITY:
        why = "is of type PRIORITY and has no priority: give it one, from 0 on"
    if why:
        raise RpcRefused(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, f"the message {why}")


def _kind(system: SystemProperties, deliver_ms: int) -> str:
    """Return the type that a message says and carries."""
    kind = FIFO_TYPE if system.message_group else NORMAL_TYPE
    if deliver_ms:
        kind = DELAY_TYPE
    if system.message_type == TRANSACTION:
        kind = TRANSACTION_TYPE
    if not system.HasField("priority"):
        return kind
    if kind != NORMAL_TYPE:
        raise RpcRefused(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"the message has a priority, and is of type {kind}: only one of them goes",
        )
    return PRIORITY_TYPE


class MessageRules:
    """Checks messages by a store's limits."""

    __slots__ = ("_body_max", "_delay_max_ms", "_has_timers")

    def __init__(self, config: StoreConfig) -> None:
        self._body_max = config.max_message_size
        self._delay_max_ms = config.timer_max_delay_sec * 1000
        self._has_timers = config.timer_wheel_enable

    def check(self, message: Message, topic: str, types: tuple[str, ...], now_ms: int) -> Checked:
        """Return what is stored of a message.

        Args:
            types: what the topic takes.

        Raises:
            RpcRefused: the first thing that is wrong.
        """
        system = message.system_properties
        self._check_body(message.body)
        stored = dict(message.user_properties)
        tag, keys, group = system.tag, system.keys, system.message_group
        _check_properties(stored)
        _check_size([*stored, *stored.values(), tag, *keys])
        if tag:
            stored[names.TAGS] = _tag(tag)
        if keys:
            stored[names.KEYS] = _keys(keys)
        message_id = stored[names.UNIQ_KEY] = _worded(
            system.message_id, "the message id", Code.ILLEGAL_MESSAGE_ID
        )
        _check_type(system)
        sys_flag, is_half = 0, system.message_type == TRANSACTION
        if is_half:
            sys_flag = int(MessageSysFlag.TRANSACTION_PREPARED_TYPE)
            stored[names.TRAN_MSG] = "true"
            stored[names.PGROUP] = topic
        deliver_ms = self._deliver_ms(system, now_ms)
        if deliver_ms:
            stored[names.TIMER_DELIVER_MS] = str(deliver_ms)
        if is_half and system.HasField("orphaned_transaction_recovery_duration"):
            stored[names.CHECK_IMMUNITY_TIME_IN_SECONDS] = str(_recovery_s(system))
        if group:
            stored[names.SHARDING_KEY] = _group(group)
        kind = _kind(system, deliver_ms)
        if kind == PRIORITY_TYPE:
            stored[names.PRIORITY] = str(system.priority)
        if kind not in types:
            raise RpcRefused(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"the message is of type {kind}, and topic {topic} takes {', '.join(types)}; its "
                "attribute message.type says so",
            )
        for name, value in (
            (names.BORN_HOST, system.born_host),
            (names.TRACE_CONTEXT, system.trace_context),
        ):
            if value:
                stored[name] = _text(value, name, Code.BAD_REQUEST)
        body = message.body
        if system.body_encoding == GZIP:
            body, flag = self._opened(body)
            sys_flag |= flag
        born_ms = _ms(system.born_timestamp.seconds, system.born_timestamp.nanos) or now_ms
        text = encode_properties(stored)
        return Checked(kind, message_id, group, deliver_ms, born_ms, body, sys_flag, text)

    def _check_body(self, body: bytes) -> None:
        if not body:
            raise RpcRefused(Code.MESSAGE_BODY_EMPTY, "a message must have a body")
        if len(body) > self._body_max:
            raise RpcRefused(
                Code.MESSAGE_BODY_TOO_LARGE,
                f"a body has {self._body_max} bytes at most (maxMessageSize), this one has "
                f"{len(body)}",
            )

    def _opened(self, body: bytes) -> tuple[bytes, int]:
        """Return a compressed body as it is stored, and its system flag."""
        if not body.startswith(_GZIP):
            if looks_compressed(body, MessageSysFlag.COMPRESSED_FLAG):
                return body, int(MessageSysFlag.COMPRESSED_FLAG)
            raise RpcRefused(
                Code.MESSAGE_CORRUPTED, "its encoding is GZIP, but its first bytes are not"
            )
        reader = zlib.decompressobj(_GZIP_WINDOW)
        try:
            opened = reader.decompress(body, self._body_max + 1)
        except zlib.error as error:
            raise RpcRefused(Code.MESSAGE_CORRUPTED, f"the body is no gzip: {error}") from error
        if len(opened) <= self._body_max and not reader.eof:
            raise RpcRefused(Code.MESSAGE_CORRUPTED, "the body is gzip that has no end")
        self._check_body(opened)
        return opened, 0

    def _deliver_ms(self, system: SystemProperties, now_ms: int) -> int:
        """Return the delivery time, 0 without one."""
        if not system.HasField("delivery_timestamp"):
            return 0
        seconds, nanos = system.delivery_timestamp.seconds, system.delivery_timestamp.nanos
        if seconds * 1000 - now_ms > self._delay_max_ms:
            raise RpcRefused(
                Code.ILLEGAL_DELIVERY_TIME,
                f"the delivery time is {seconds - now_ms // 1000} s from now, at most "
                f"{self._delay_max_ms // 1000} s are allowed (timerMaxDelaySec)",
            )
        deliver_ms = max(1, _ms(seconds, nanos))
        if deliver_ms > now_ms and not self._has_timers:
            raise RpcRefused(
                Code.NOT_IMPLEMENTED,
                "the broker delivers no message at a time of its own: timerWheelEnable is false",
            )
        return deliver_ms


def _ms(seconds: int, nanos: int) -> int:
    """Return a protocol's time in ms since the epoch; 0 for one that is none, or before."""
    ms = seconds * 1000 + nanos // 1_000_000
    return ms if 0 <= ms <= TIME_MAX_MS else 0


def _check_properties(properties: dict[str, str]) -> None:
    if len(properties) > PROPERTIES_MAX:
        raise RpcRefused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"a message has {PROPERTIES_MAX} properties at most, this one has {len(properties)}",
        )
    if not _NAMES.isdisjoint(properties):
        name = next(name for name in properties if name in _NAMES)
        why = f"the property {name} is the broker's own"
        raise RpcRefused(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, why)
    for texts in (properties, properties.values()):
        if has_control("".join(texts)):
            why = "the name or the value of a property holds a control character"
            raise RpcRefused(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, why)


def _check_size(texts: Sequence[str]) -> None:
    if sum(map(len, texts)) * _CHARACTER_SIZE_MAX <= PROPERTIES_SIZE_MAX:
        return
    size = sum(len(text.encode()) for text in texts)
    if size > PROPERTIES_SIZE_MAX:
        raise RpcRefused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties, tag and keys have {PROPERTIES_SIZE_MAX} bytes at most, these have {size}",
        )


def has_control(text: str) -> bool:
    """Return whether a text holds a control character, of ISO's."""
    return _CONTROL.search(text) is not None


def _text(text: str, what: str, code: Code) -> str:
    if has_control(text):
        raise RpcRefused(code, f"{what} holds a control character")
    return text


def _worded(text: str, what: str, code: Code) -> str:
    if not text or text.isspace():
        raise RpcRefused(code, f"{what} is blank")
    return _text(text, what, code)


def _tag(tag: str) -> str:
    if "|" in tag:
        raise RpcRefused(Code.ILLEGAL_MESSAGE_TAG, "the tag holds '|', which means 'or' in filters")
    return _worded(tag, "the tag", Code.ILLEGAL_MESSAGE_TAG)


def _keys(keys: Iterable[str]) -> str:
    return KEY_SEPARATOR.join([_worded(key, "a key", Code.ILLEGAL_MESSAGE_KEY) for key in keys])


def _group(group: str) -> str:
    size = len(group.encode())
    if size > GROUP_SIZE_MAX:
        raise RpcRefused(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"a message group has {GROUP_SIZE_MAX} bytes at most, this one has {size}",
        )
    return _worded(group, "the message group", Code.ILLEGAL_MESSAGE_GROUP)


def _recovery_s(system: SystemProperties) -> int:
    seconds: int = system.orphaned_transaction_recovery_duration.seconds
    if not 0 <= seconds <= RECOVERY_MAX_S:
        raise RpcRefused(
            Code.BAD_REQUEST,
            f"the recovery of a transaction begins after {RECOVERY_MAX_S} s at most, not {seconds}",
        )
    return seconds
