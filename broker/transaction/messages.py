"""The four forms of a transactional message, each made from the one before.

    half      what a producer sends first: stored in queue 0 of RMQ_SYS_TRANS_HALF_TOPIC, its target
              in REAL_TOPIC and REAL_QID, without transaction bits
    renewed   the half message stored once more, at the end of its queue, before its producer is
              asked or while it may not be asked yet. TRANSACTION_CHECK_TIMES counts the questions,
              TRAN_PREPARED_QUEUE_OFFSET is the queue offset at which it was stored first
    final     what consumers see after a commit: the real topic and queue, the commit bits, the half
              message's physical offset in its field; the text of the properties stays as it was
    given up  a copy in TRANS_CHECK_MAX_TIME_TOPIC, when no client answers for too long

    op        an end, in RMQ_SYS_TRANS_OP_HALF_TOPIC: tag `d`, body the half message's queue offset
              in decimal digits (later versions of RocketMQ put several in one, separated by commas)

Unlike RocketMQ: a half message without PGROUP, or with a delay of its own, is refused (there it can
never be ended, or is lost); what a client writes into the two properties of the renewal is taken
out; a renewed message keeps its flag, names its first offset, and counts real questions alone.

Pure; loop thread.
Source: apache/rocketmq@rocketmq-all-4.9.8
broker/.../transaction/queue/TransactionalMessageBridge.java (parseHalfMessageInner,
renewHalfMessageInner, makeOpMessageInner), DefaultTransactionalMessageCheckListener.java,
broker/.../processor/EndTransactionProcessor.java (endMessageTransaction)
"""

from __future__ import annotations

import dataclasses
from typing import Final

from skylarkmq.broker.delay.delayed_message import Parked, copy_to, delivered
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.flags import (
    RMQ_SYS_TRANS_CHECK_MAX_TIME_TOPIC,
    RMQ_SYS_TRANS_HALF_TOPIC,
    RMQ_SYS_TRANS_OP_HALF_TOPIC,
    MessageSysFlag,
    validate_producer_group,
)
from skylarkmq.protocol.properties import (
    MAX_PROPERTIES_SIZE,
    TAGS_AND_SEPARATOR,
    encode_properties,
    find_property,
    long_value,
    with_property,
    without_property,
)
from skylarkmq.protocol.tags_code import tags_code
from skylarkmq.store.results import MessageInner
from skylarkmq.store.timer.rules import asks_for_timer

HALF_TOPIC: Final = RMQ_SYS_TRANS_HALF_TOPIC
OP_TOPIC: Final = RMQ_SYS_TRANS_OP_HALF_TOPIC
GIVEN_UP_TOPIC: Final = RMQ_SYS_TRANS_CHECK_MAX_TIME_TOPIC
QUEUE_ID: Final = 0
RENEWAL_ROOM: Final = 128
"""Bytes of properties that a renewal adds at most: two numbers with their names."""

_BITS: Final = MessageSysFlag.TRANSACTION_MASK
_TRAN_MSG: Final = names.TRAN_MSG.encode() + b"\x01"
_PGROUP: Final = names.PGROUP.encode() + b"\x01"
_UNIQ_KEY: Final = names.UNIQ_KEY.encode() + b"\x01"
_REAL_TOPIC: Final = names.REAL_TOPIC.encode() + b"\x01"
_TIMES: Final = names.TRANSACTION_CHECK_TIMES.encode()
_FIRST: Final = names.TRAN_PREPARED_QUEUE_OFFSET.encode()
_IMMUNITY: Final = names.CHECK_IMMUNITY_TIME_IN_SECONDS.encode() + b"\x01"
_REMOVE_TAG: Final = "d"
_OP_PROPERTIES: Final = encode_properties({names.WAIT: "true", names.TAGS: _REMOVE_TAG}).encode()
_OP_TAGS_CODE: Final = tags_code(_REMOVE_TAG)
_OFFSETS_IN_OP_MAX: Final = 4096
_MS_PER_S: Final = 1000


# Half messages


def is_transactional(properties: bytes) -> bool:
    """Return whether an encoded text asks for a transaction."""
    value = find_property(properties, _TRAN_MSG)
    return value is not None and value.lower() == b"true"


def half_of(inner: MessageInner, delay_level: int) -> MessageInner:
    """Return a producer's message as its half message.

    Args:
        delay_level: what its DELAY property asks for, 0 for none.

    Raises:
        ValueError: it cannot be the first half of a transaction.
    """
    group = find_property(inner.properties, _PGROUP)
    if group is None:
        raise ValueError(f"a transactional message names its producer group in {names.PGROUP}")
    why = validate_producer_group(group.decode("utf-8", "replace"))
    if why is not None:
        raise ValueError(f"{names.PGROUP}: {why}")
    if delay_level > 0 or asks_for_timer(inner.properties):
        raise ValueError("a transactional message cannot be delayed")
    properties = without_property(without_property(inner.properties, _TIMES), _FIRST)
    properties = with_property(properties, names.REAL_TOPIC.encode(), inner.topic.encode())
    properties = with_property(properties, names.REAL_QID.encode(), b"%d" % inner.queue_id)
    if len(properties) > MAX_PROPERTIES_SIZE - RENEWAL_ROOM:
        raise ValueError(
            f"the properties of a transactional message have {MAX_PROPERTIES_SIZE - RENEWAL_ROOM} "
            f"bytes at most, these have {len(properties)} with the broker's own"
        )
    return dataclasses.replace(
        inner,
        topic=HALF_TOPIC,
        queue_id=QUEUE_ID,
        properties=properties,
        sys_flag=inner.sys_flag & ~_BITS,
    )


def without_transaction(inner: MessageInner) -> MessageInner:
    """Return the message as an ordinary one: with transaction bits it would enter no queue."""
    return dataclasses.replace(inner, sys_flag=inner.sys_flag & ~_BITS)


def group_of(half: Parked) -> str:
    """Return the producer group that answers for a half message; empty when it names none."""
    return (find_property(half.properties, _PGROUP) or b"").decode("utf-8", "replace")


def unique_key_of(half: Parked) -> str | None:
    """Return the id that the producer gave."""
    value = find_property(half.properties, _UNIQ_KEY)
    return None if value is None else value.decode("utf-8", "replace")


def keyed_by(half: Parked) -> tuple[str, str] | None:
    """Return topic and unique key of a half message that is ended by them; None of others.

    Its producer speaks RocketMQ 5's gRPC protocol, and has the topic as its group.
    """
    topic, key = topic_of(half), unique_key_of(half)
    return None if key is None or group_of(half) != topic else (topic, key)


def first_offset_of(half: Parked, queue_offset: int) -> int:
    """Return the queue offset at which a half message was stored first."""
    first = named_first_offset_of(half)
    return first if first is not None and first < queue_offset else queue_offset


def named_first_offset_of(half: Parked) -> int | None:
    """Return the first queue offset that a half message names; None when it was stored once."""
    first = long_value(find_property(half.properties, _FIRST + b"\x01"))
    return first if first is not None and first >= 0 else None


def check_times_of(half: Parked) -> int:
    """Return how often its producer was asked about a half message."""
    return max(0, long_value(find_property(half.properties, _TIMES + b"\x01")) or 0)


def immunity_ms_of(half: Parked, default_ms: int) -> int | None:
    """Return how long after its birth no client is asked, ms; None when it does not say."""
    value = find_property(half.properties, _IMMUNITY)
    if value is None:
        return None
    seconds = long_value(value)
    return default_ms if seconds is None or seconds == -1 else seconds * _MS_PER_S


# What follows from them


def topic_of(half: Parked) -> str:
    """Return the topic that a half message is for; empty where it names none."""
    return (find_property(half.properties, _REAL_TOPIC) or b"").decode("utf-8", "replace")


def final_of(half: Parked, physical_offset: int) -> MessageInner:
    """Return what consumers see of a half message that lies at `physical_offset`.

    Raises:
        ValueError: it names no target.
    """
    inner = delivered(half)
    inner.sys_flag = half.sys_flag & ~_BITS | MessageSysFlag.TRANSACTION_COMMIT_TYPE
    inner.prepared_transaction_offset = physical_offset
    return inner


def renewed(half: Parked, first_offset: int, check_times: int) -> MessageInner:
    """Return a half message as it is stored again.

    Args:
        check_times: how often its producer was asked, the question that follows included.
    """
    properties = half.properties
    if check_times != check_times_of(half):
        properties = with_property(properties, _TIMES, b"%d" % check_times)
    properties = with_property(properties, _FIRST, b"%d" % first_offset)
    return copy_to(half, HALF_TOPIC, QUEUE_ID, properties)


def resumed(half: Parked) -> MessageInner:
    """Return a message that was given up as a half message that was never asked about."""
    properties = with_property(half.properties, _TIMES, b"0")
    return copy_to(half, HALF_TOPIC, QUEUE_ID, properties)


def given_up(half: Parked) -> MessageInner:
    """Return the copy of a half message that is given up."""
    return copy_to(half, GIVEN_UP_TOPIC, QUEUE_ID, half.properties)


# Op messages


def op_of(queue_offset: int, host: bytes, now_ms: int) -> MessageInner:
    """Return the op message of a half message's end.

    Args:
        host: packed address of the broker, which is born and store host of what it writes itself.
    """
    return MessageInner(
        OP_TOPIC,
        QUEUE_ID,
        b"%d" % queue_offset,
        _OP_PROPERTIES,
        host,
        host,
        now_ms,
        _OP_TAGS_CODE,
    )


def ended_by(op: Parked) -> list[int]:
    """Return the queue offsets that an op message names; none when it is not one of an end."""
    if find_property(op.properties, TAGS_AND_SEPARATOR) != _REMOVE_TAG.encode():
        return []
    parts = op.body.split(b",", _OFFSETS_IN_OP_MAX)[:_OFFSETS_IN_OP_MAX]
    numbers = [long_value(part.strip()) for part in parts]
    return [number for number in numbers if number is not None and number >= 0]
