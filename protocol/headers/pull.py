"""Headers of reading: pulling (11, and 361 of 5.x lite consumers, which means the same), messages
by key (12) and by place (33), offsets and times of a queue (29, 30, 31, 32).

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/header/ (the class of each name);
`maxMsgBytes` from apache/rocketmq@rocketmq-all-5.3.3
remoting/.../protocol/header/PullMessageRequestHeader.java
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.headers.fields import (
    Header,
    JavaInt,
    JavaLong,
    decode_fields,
    java_int,
    java_long,
)


class PullMessageRequestHeader(Header, kw_only=True, frozen=True):
    """What to read from where.

    `queue_offset` is where to read, `commit_offset` what the group has done (valid when the
    commit bit of `sys_flag` is set), `suspend_timeout_millis` how long an empty answer may be
    held back, `sub_version` the version of the subscription in ms. `subscription` and
    `expression_type` count when `sys_flag` says so; a missing type means TAG.
    """

    consumer_group: str
    topic: str
    queue_id: JavaInt
    queue_offset: JavaLong
    max_msg_nums: JavaInt
    sys_flag: JavaInt
    commit_offset: JavaLong
    suspend_timeout_millis: JavaLong
    subscription: str | None = None
    sub_version: JavaLong
    expression_type: str | None = None
    max_msg_bytes: JavaInt | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


def decode_pull_header(ext_fields: Mapping[str, str]) -> PullMessageRequestHeader:
    """Return the header of a pull as `decode_fields` does, in half the time: one for each pull.

    Raises:
        RemoteProtocolError: SYSTEM_ERROR; a mandatory field is missing, or a text is ill-typed.
    """
    get = ext_fields.get
    max_msg_bytes = get("maxMsgBytes")
    try:
        return PullMessageRequestHeader(
            consumer_group=ext_fields["consumerGroup"],
            topic=ext_fields["topic"],
            queue_id=java_int(ext_fields["queueId"], ""),
            queue_offset=java_long(ext_fields["queueOffset"], ""),
            max_msg_nums=java_int(ext_fields["maxMsgNums"], ""),
            sys_flag=java_int(ext_fields["sysFlag"], ""),
            commit_offset=java_long(ext_fields["commitOffset"], ""),
            suspend_timeout_millis=java_long(ext_fields["suspendTimeoutMillis"], ""),
            subscription=get("subscription"),
            sub_version=java_long(ext_fields["subVersion"], ""),
            expression_type=get("expressionType"),
            max_msg_bytes=None if max_msg_bytes is None else java_int(max_msg_bytes, ""),
            broker_name=get("bname"),
        )
    except (KeyError, RemoteProtocolError):  # the general way meets the same and names the field
        return decode_fields(PullMessageRequestHeader, ext_fields)


class PullFields(msgspec.Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    """The fields of a pull as text, where nothing else stands beside them."""

    consumer_group: str
    topic: str
    queue_id: str
    queue_offset: str
    max_msg_nums: str
    sys_flag: str
    commit_offset: str
    suspend_timeout_millis: str
    sub_version: str
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: str | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


_FIELD_NAMES: Final = tuple(field.encode_name for field in msgspec.structs.fields(PullFields))
_REQUIRED_COUNT: Final = sum(field.required for field in msgspec.structs.fields(PullFields))


def pull_fields(texts: dict[str, str]) -> PullFields | None:
    """Return the fields of a pull; None when one is missing or unknown."""
    values = [texts.pop(name, None) for name in _FIELD_NAMES]
    if texts or None in values[:_REQUIRED_COUNT]:
        return None
    return PullFields(*values)  # type: ignore[arg-type]


class PullMessageResponseHeader(Header, kw_only=True, frozen=True):
    """Where to go on; mandatory in answers 0, 19, 20 and 21. All offsets are queue offsets."""

    suggest_which_broker_id: JavaLong
    next_begin_offset: JavaLong
    min_offset: JavaLong
    max_offset: JavaLong


class QueryMessageRequestHeader(Header, kw_only=True, frozen=True):
    """Messages of a topic by key, stored between two times in ms.

    The extra `_UNIQUE_KEY_QUERY` stands outside this header, because it is not signed.
    """

    topic: str
    key: str
    max_num: JavaInt
    begin_timestamp: JavaLong
    end_timestamp: JavaLong


class QueryMessageResponseHeader(Header, kw_only=True, frozen=True):
    """How far the key index has come: store time in ms and physical offset of its last entry.

    `complete` is SkylarkMQ's own: the answer has every message of the key that was published before
    the question. Absent: some may be missing, or the broker does not say.
    """

    index_last_update_timestamp: JavaLong
    index_last_update_phyoffset: JavaLong
    complete: bool | None = msgspec.field(default=None, name="skylarkmq.complete")


class SearchOffsetRequestHeader(Header, kw_only=True, frozen=True):
    """The queue offset whose message was stored nearest to `timestamp`, ms."""

    topic: str
    queue_id: JavaInt
    timestamp: JavaLong


class SearchOffsetResponseHeader(Header, kw_only=True, frozen=True):
    """A queue offset."""

    offset: JavaLong


class GetMaxOffsetRequestHeader(Header, kw_only=True, frozen=True):
    """The queue offset that the next message will get."""

    topic: str
    queue_id: JavaInt


class GetMaxOffsetResponseHeader(Header, kw_only=True, frozen=True):
    """A queue offset; 0 for an unknown queue."""

    offset: JavaLong


class GetMinOffsetRequestHeader(Header, kw_only=True, frozen=True):
    """The first queue offset that can still be read."""

    topic: str
    queue_id: JavaInt


class GetMinOffsetResponseHeader(Header, kw_only=True, frozen=True):
    """A queue offset; 0 for an unknown queue."""

    offset: JavaLong


class GetEarliestMsgStoretimeRequestHeader(Header, kw_only=True, frozen=True):
    """When the first message of a queue was stored."""

    topic: str
    queue_id: JavaInt


class GetEarliestMsgStoretimeResponseHeader(Header, kw_only=True, frozen=True):
    """A time in ms; -1 when there is no message."""

    timestamp: JavaLong


class ViewMessageRequestHeader(Header, kw_only=True, frozen=True):
    """The record at a physical offset."""

    offset: JavaLong
