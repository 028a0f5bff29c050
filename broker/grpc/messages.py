"""A stored record as a message of the gRPC protocol.

    topic               the one that the client asked for, never a retry topic
    user_properties     what is not HIDDEN
    body, body_digest   as stored, and the MD5 of just that; Node's client wants a digest
    body_encoding       IDENTITY, or GZIP

Producers of the remoting protocol compress with zlib, LZ4 or Zstandard, for which the protocol has
no word, and Node's client opens nothing but gzip. So such bodies are opened here. What is of none
of these formats, or damaged, goes out as it is stored, as GZIP: gzip is what gRPC's producers use.

Unlike RocketMQ, which calls all compressed bodies GZIP and shows its own properties, such as
`__SHARDINGKEY`, among the user's.
Source: apache/rocketmq@rocketmq-all-5.3.3 proxy/.../grpc/v2/common/GrpcConverter.java
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress
from typing import Final, Protocol

from skylarkmq.protocol import properties as names
from skylarkmq.protocol.compression import CompressionUnavailableError, decompress
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import DLQ_GROUP_TOPIC_PREFIX, MessageSysFlag
from skylarkmq.protocol.host_address import unpack_host
from skylarkmq.protocol.message_id import offset_message_id
from skylarkmq.protocol.properties import decode_properties, parse_priority
from skylarkmq.protocol.record import split_records
from skylarkmq.protocol.v5.schema_pb2 import (
    DELAY,
    FIFO,
    GZIP,
    IDENTITY,
    MD5,
    NORMAL,
    PRIORITY,
    TRANSACTION,
    Encoding,
    Message,
    SystemProperties,
)

log = logging.getLogger(__name__)

HIDDEN: Final = names.RESERVED_NAMES_5 | {
    names.SHARDING_KEY,
    names.TRACE_CONTEXT,
    names.TRANSACTION_ID,
    names.TRANSACTION_CHECK_TIMES,
    names.CHECK_IMMUNITY_TIME_IN_SECONDS,
    names.TIMER_DELAY_MS,
    names.STORE_AGAIN,
}
"""Properties that are no user's: they have fields of their own, or mean nothing to a client."""

_TIME_MAX_MS: Final = 253_402_300_799_999
"""The end of the year 9999, the last that Java's clients take."""
_TIMED: Final = frozenset(
    {names.DELAY, names.TIMER_DELIVER_MS, names.TIMER_DELAY_MS, names.TIMER_DELAY_SEC}
)

_logged: set[str] = set()


def fill_message(
    message: Message,
    record: bytes | memoryview,
    topic: str,
    body_max: int,
    *,
    namespace: str = "",
    handle: str = "",
    attempt: int = 0,
) -> int:
    """Fill an empty message of the protocol from a stored record; return the bytes of its body.

    Args:
        topic: what the client calls it.
        body_max: bytes that a compressed body may have when it is open.
        namespace: of the topic, as the client said.
        handle: the receipt handle; empty for a message that nobody acknowledges.
        attempt: 1 for the first delivery; 0 for what the record says.

    Raises:
        RemoteProtocolError: the record is damaged.
    """
    (parts,) = split_records(bytes(record))
    _, queue_id, _, queue_offset, physical_offset, sys_flag, born_ms, born_host = parts[:8]
    store_ms, store_host, reconsume_times, _, body, text, _, _ = parts[8:]
    properties = decode_properties(text)
    message.topic.name = topic
    if namespace:
        message.topic.resource_namespace = namespace
    user_properties = message.user_properties
    for name, value in properties.items():
        if name not in HIDDEN:
            user_properties[name] = value
    system = message.system_properties
    if sys_flag & MessageSysFlag.COMPRESSED_FLAG:
        body, system.body_encoding = _opened(body, sys_flag, body_max)
    else:
        system.body_encoding = IDENTITY
    message.body = body
    digest = system.body_digest
    digest.type = MD5
    digest.checksum = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    system.message_id = (
        properties.get(names.UNIQ_KEY)
        or properties.get(names.ORIGIN_MESSAGE_ID)
        or offset_message_id(store_host, physical_offset)
    )
    set_time(system.born_timestamp, born_ms)
    system.born_host = properties.get(names.BORN_HOST) or unpack_host(born_host).ip
    set_time(system.store_timestamp, store_ms)
    system.store_host = str(unpack_host(store_host))
    system.queue_id = queue_id
    system.queue_offset = queue_offset
    system.delivery_attempt = attempt or reconsume_times + 1
    if handle:
        system.receipt_handle = handle
    _fill_from_properties(system, properties)
    if topic.startswith(DLQ_GROUP_TOPIC_PREFIX):
        _fill_origin(system, properties)
    return len(body)


def _fill_from_properties(system: SystemProperties, properties: dict[str, str]) -> None:
    get = properties.get
    tag = get(names.TAGS)
    if tag is not None:
        system.tag = tag
    keys = get(names.KEYS)
    if keys is not None:
        system.keys.extend([key for key in keys.split(names.KEY_SEPARATOR) if key])
    message_group = get(names.SHARDING_KEY)
    if message_group is not None:
        system.message_group = message_group
    if get(names.TRAN_MSG) == "true":
        system.message_type = TRANSACTION
    elif not _TIMED.isdisjoint(properties):
        system.message_type = DELAY
        _set_delivery_time(system, get(names.TIMER_DELIVER_MS) or get(names.TIMER_OUT_MS) or "")
    else:
        system.message_type = NORMAL if message_group is None else FIFO
    priority = get(names.PRIORITY)
    if priority is not None:
        with suppress(ValueError):  # a 4.x producer may say anything, elsewhere than in such topics
            system.priority = parse_priority(priority)
            if system.message_type == NORMAL:
                system.message_type = PRIORITY
    trace_context = get(names.TRACE_CONTEXT)
    if trace_context is not None:
        system.trace_context = trace_context


def _set_delivery_time(system: SystemProperties, text: str) -> None:
    """Set the time of delivery from a property, which may be anything; without a time, set none.

    Unlike RocketMQ, which adds a delay to the time at which the message is received.
    """
    if text.isascii() and text.isdigit() and len(text) <= len(str(_TIME_MAX_MS)):
        set_time(system.delivery_timestamp, int(text))


def _fill_origin(system: SystemProperties, properties: dict[str, str]) -> None:
    """Say where a dead letter comes from.

    Unlike RocketMQ, also of one whose group did not pop: those say it in other properties.
    """
    topic = properties.get(names.DLQ_ORIGIN_TOPIC) or properties.get(names.RETRY_TOPIC)
    if topic is not None:
        origin = system.dead_letter_queue
        origin.topic = topic
        origin.message_id = properties.get(names.DLQ_ORIGIN_MESSAGE_ID) or system.message_id


class Timestamp(Protocol):
    """As protobuf has it."""

    seconds: int
    nanos: int


def set_time(field: Timestamp, time_ms: int) -> None:
    """Set a field from ms since the epoch; what is beyond the calendar of clients is cut."""
    field.seconds, rest_ms = divmod(min(max(time_ms, 0), _TIME_MAX_MS), 1000)
    field.nanos = rest_ms * 1_000_000


def _opened(body: bytes, sys_flag: int, body_max: int) -> tuple[bytes, Encoding]:
    """Return a compressed body as clients can read it, and its encoding."""
    try:
        return decompress(body, sys_flag, body_max), IDENTITY
    except CompressionUnavailableError as error:
        why = str(error)
        if why not in _logged:  # one of each format
            _logged.add(why)
            log.warning("clients of gRPC get compressed messages as they are stored: %s", why)
    except RemoteProtocolError:
        pass
    return body, GZIP
