"""Message properties: their names, and the text that carries them.

    text  = pair (0x02 pair)* [0x02]      UTF-8, at most 32,767 bytes in a record
    pair  = name 0x01 value               both with at least one character

The reader's rules, which both forms below follow: split at 0x02; the first 0x01 of a segment ends
the name; a segment without a name, a value or a 0x01 is passed over; of two pairs with one name
the later one wins. 4.9 writes no 0x02 after the last pair, other releases do.

Functions on `str` build or read a whole map; they serve clients and rare requests. Functions on
`bytes` search in the encoded text; they serve the broker's hot path, where a map for each message
would be the most expensive step of a send.
Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../message/MessageConst.java, MessageDecoder.java
(messageProperties2String, string2messageProperties)
"""

import re
from collections.abc import Mapping
from typing import Final

NAME_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"
KEY_SEPARATOR: Final = " "
FORBIDDEN: Final = ("\0", NAME_SEPARATOR, PROPERTY_SEPARATOR)
"""What neither names nor values may hold: the separators, and zeros, which our brokers refuse."""
MAX_PROPERTIES_SIZE: Final = 32767
"""Bytes of the encoded text: its length is a signed 16-bit field of the record."""

PRIORITY_MAX: Final = 2**31 - 1

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
TRAN_MSG: Final = "TRAN_MSG"
PGROUP: Final = "PGROUP"
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
BUYER_ID: Final = "BUYER_ID"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
TRANSFER_FLAG: Final = "TRANSFER_FLAG"
CORRECTION_FLAG: Final = "CORRECTION_FLAG"
MQ2_FLAG: Final = "MQ2_FLAG"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
UNIQ_KEY: Final = "UNIQ_KEY"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"
TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
INSTANCE_ID: Final = "INSTANCE_ID"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
ARRIVE_TIME: Final = "ARRIVE_TIME"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
CLUSTER: Final = "CLUSTER"
MSG_TYPE: Final = "MSG_TYPE"
SHARDING_KEY: Final = "__SHARDINGKEY"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"  # 5.x: due time, ms since the epoch
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"  # 5.x: delay, ms
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"  # 5.x: delay, s
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"  # 5.x: the waiting message to take back
TIMER_OUT_MS: Final = "TIMER_OUT_MS"  # 5.x, by the broker: the due time in force, ms
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"  # 5.x, by the broker: when it began to wait, ms
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"  # 5.x, by the broker: when it was delivered, ms
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"  # 5.x, by the broker: how often it was stored again
PRIORITY: Final = "_SYS_MSG_PRIORITY_"  # 5.4: 0 or more, the highest goes first
STORE_AGAIN: Final = "STORE_AGAIN"  # ours: "true" where a deduplication window is not to look
INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"

# Since 5.x, mostly by its proxy and for consumers that pop.
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
BORN_HOST: Final = "__BORNHOST"  # the producer's address, as it says
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
POP_CK: Final = "POP_CK"  # a receipt handle, in remoting answers
POP_CK_OFFSET: Final = "POP_CK_OFFSET"
FIRST_POP_TIME: Final = "1ST_POP_TIME"  # of a message that was not acknowledged in time, ms
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
EXTEND_UNIQ_INFO: Final = "EXTEND_UNIQ_INFO"
DUP_INFO: Final = "DUP_INFO"
TIMER_DELAY_LEVEL: Final = "TIMER_DELAY_LEVEL"
CRC32: Final = "__CRC32#"

RESERVED_NAMES: Final = frozenset(
    {
        KEYS,
        TAGS,
        WAIT,
        DELAY,
        RETRY_TOPIC,
        REAL_TOPIC,
        REAL_QID,
        TRAN_MSG,
        PGROUP,
        MIN_OFFSET,
        MAX_OFFSET,
        BUYER_ID,
        ORIGIN_MESSAGE_ID,
        TRANSFER_FLAG,
        CORRECTION_FLAG,
        MQ2_FLAG,
        RECONSUME_TIME,
        MSG_REGION,
        TRACE_ON,
        UNIQ_KEY,
        MAX_RECONSUME_TIMES,
        CONSUME_START_TIME,
        TRAN_PREPARED_QUEUE_OFFSET,
        INSTANCE_ID,
        CORRELATION_ID,
        REPLY_TO_CLIENT,
        TTL,
        ARRIVE_TIME,
        PUSH_REPLY_TIME,
        CLUSTER,
        MSG_TYPE,
        INNER_MULTI_QUEUE_OFFSET,
    }
)
"""Names that a user's own properties may not take."""

RESERVED_NAMES_5: Final = RESERVED_NAMES | {
    POP_CK,
    POP_CK_OFFSET,
    FIRST_POP_TIME,
    DUP_INFO,
    EXTEND_UNIQ_INFO,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_ENQUEUE_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ROLL_TIMES,
    TIMER_OUT_MS,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_LEVEL,
    BORN_HOST,
    BORN_TIMESTAMP,
    DLQ_ORIGIN_TOPIC,
    DLQ_ORIGIN_MESSAGE_ID,
    CRC32,
    PRIORITY,
}
"""The same for clients of RocketMQ 5's gRPC protocol.

Source: apache/rocketmq@rocketmq-all-5.3.3 common/.../message/MessageConst.java (STRING_HASH_SET)
"""

TAGS_AND_SEPARATOR: Final = b"TAGS\x01"
"""What begins the TAGS pair; for `find_property`."""

_TAGS_PAIR: Final = PROPERTY_SEPARATOR + TAGS + NAME_SEPARATOR
_PROPERTY_BYTE: Final = 0x02
_PROPERTY_BYTES: Final = b"\x02"
_LONG: Final = re.compile(rb"[+-]?[0-9]{1,19}")
_LONG_MAX: Final = 0x7FFFFFFFFFFFFFFF


def is_forbidden(text: str) -> bool:
    """Return whether a name or a value holds a character of `FORBIDDEN`."""
    return "\0" in text or "\x01" in text or "\x02" in text


def encode_properties(properties: Mapping[str, str]) -> str:
    """Return the text of `properties` in the mapping's order, without a trailing separator.

    Pairs without a name or a value are left out: no reader would see them.
    """
    return PROPERTY_SEPARATOR.join(
        [name + NAME_SEPARATOR + value for name, value in properties.items() if name and value]
    )


def decode_properties(text: str) -> dict[str, str]:
    """Return the properties of `text`; what is no pair is passed over, so this never fails."""
    properties: dict[str, str] = {}
    for segment in text.split(PROPERTY_SEPARATOR):
        name, _, value = segment.partition(NAME_SEPARATOR)
        if name and value:
            properties[name] = value
    return properties


def parse_priority(text: str) -> int:
    """Return the priority that the value of PRIORITY says.

    Raises:
        ValueError: it is no number from 0 to 2,147,483,647.
    """
    if text.isascii() and text.isdigit() and len(text) <= len(str(PRIORITY_MAX)):
        priority = int(text)
        if priority <= PRIORITY_MAX:
            return priority
    raise ValueError(f"a priority is a number from 0 to {PRIORITY_MAX}, not {text[:32]!a}")


def tag_in(text: str) -> str | None:
    """Return the value of TAGS in `text`, None without one."""
    _, found, rest = (PROPERTY_SEPARATOR + text).rpartition(_TAGS_PAIR)
    tag = rest.partition(PROPERTY_SEPARATOR)[0]
    return tag if found and tag else decode_properties(text).get(TAGS) if found else None


def find_property(data: bytes, name_and_sep: bytes) -> bytes | None:
    """Return the value that a reader of the encoded text would see, None when there is none.

    Args:
        name_and_sep: the property's name with its 0x01, for instance `b"TAGS\\x01"`.
    """
    position = data.rfind(name_and_sep)
    while position >= 0:
        if position == 0 or data[position - 1] == _PROPERTY_BYTE:
            start = position + len(name_and_sep)
            end = data.find(_PROPERTY_BYTES, start)
            value = data[start:end] if end >= 0 else data[start:]
            if value:
                return value
        position = data.rfind(name_and_sep, 0, position + len(name_and_sep) - 1)
    return None


def long_value(value: bytes | None) -> int | None:
    """Return the number of a property's text, as Java reads a long; None when it is none."""
    if value is None or _LONG.fullmatch(value) is None:
        return None
    number = int(value)
    return number if -_LONG_MAX - 1 <= number <= _LONG_MAX else None


def without_property(data: bytes, name: bytes) -> bytes:
    """Return the encoded text without any pair of that name; the other bytes stay as they are.

    Unless the text ended in a separator, the result does not either.
    """
    prefix = name + b"\x01"
    if prefix not in data:
        return data
    kept = [segment for segment in data.split(_PROPERTY_BYTES) if not segment.startswith(prefix)]
    return _PROPERTY_BYTES.join(kept)


def with_property(data: bytes, name: bytes, value: bytes) -> bytes:
    """Return the encoded text with `name` set to `value`, at its end.

    Earlier pairs of the name are taken out. An empty value only takes them out.
    """
    rest = without_property(data, name)
    if not value:
        return rest
    return join_properties(rest, name + b"\x01" + value)


def join_properties(inner: bytes, batch_level: bytes) -> bytes:
    """Return both encoded texts as one, with one 0x02 between them where both hold something.

    So the properties of a batch follow those of the message inside it, as in RocketMQ's own files.
    """
    if not inner:
        return batch_level
    if not batch_level:
        return inner
    if inner[-1] == _PROPERTY_BYTE:
        return inner + batch_level
    return inner + _PROPERTY_BYTES + batch_level
