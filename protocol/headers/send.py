"""Headers of sending (10, 310, 320, 324, 325), sending back (36) and the reply push (326).

The send request exists under two sets of names for the same fields: long ones (v1, codes 10 and
324) and single letters (v2, codes 310, 320 and 325). Here it is one type, read and written by
either set.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/header/
SendMessageRequestHeader.java, SendMessageRequestHeaderV2.java, SendMessageResponseHeader.java,
ConsumerSendMsgBackRequestHeader.java, ReplyMessageRequestHeader.java
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from skylarkmq.protocol.codes import SEND_V2_CODES
from skylarkmq.protocol.headers.fields import (
    JavaInt,
    JavaLong,
    decode_by_plan,
    encode_by_plan,
    plan_of,
)


class SendMessageRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """What is sent where; fields in the order of the letters a to n.

    `queue_id` below 0 lets the broker choose; `born_timestamp` is in ms; `flag` is the
    application's own number; `properties` is the encoded property text; `batch` decides whether
    the body is a batch, whatever the code; `reconsume_times` and `max_reconsume_times` matter on
    retry topics only.
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: JavaInt
    queue_id: JavaInt
    sys_flag: JavaInt
    born_timestamp: JavaLong
    flag: JavaInt
    properties: str | None = ""
    reconsume_times: JavaInt = 0
    unit_mode: bool = False
    max_reconsume_times: JavaInt | None = None
    batch: bool = False
    broker_name: str | None = msgspec.field(default=None, name="bname")


class SendMessageResponseHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Where the message is. `msg_id` is the offset id, for a batch several joined by commas."""

    msg_id: str
    queue_id: JavaInt
    queue_offset: JavaLong
    transaction_id: str | None = None


class ConsumerSendMsgBackRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A message that a consumer could not handle; `offset` is physical.

    `delay_level` 0 lets the broker choose by the count of attempts, below 0 asks for the dead
    letter queue at once.
    """

    offset: JavaLong
    group: str
    delay_level: JavaInt
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: JavaInt | None = None


class ReplyMessageRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A reply on its way from the broker to the client that asked; hosts as `ip:port`."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: JavaInt
    queue_id: JavaInt
    sys_flag: JavaInt
    born_timestamp: JavaLong
    flag: JavaInt
    properties: str | None = None
    reconsume_times: JavaInt | None = None
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_timestamp: JavaLong


V2_LETTERS: Final = "abcdefghijklmn"
_ATTRIBUTES: Final = SendMessageRequestHeader.__struct_fields__
assert len(_ATTRIBUTES) == len(V2_LETTERS)

_V1_PLAN: Final = plan_of(SendMessageRequestHeader)
_V2_PLAN: Final = plan_of(SendMessageRequestHeader, dict(zip(_ATTRIBUTES, V2_LETTERS, strict=True)))


def decode_send_header(code: int, ext_fields: Mapping[str, str]) -> SendMessageRequestHeader:
    """Return the header of a send request by the names that go with its `code`.

    Raises:
        RemoteProtocolError: SYSTEM_ERROR; a mandatory field is missing, or a text is ill-typed.
    """
    plan = _V2_PLAN if code in SEND_V2_CODES else _V1_PLAN
    return decode_by_plan(SendMessageRequestHeader, plan, ext_fields)


def encode_send_header_v1(header: SendMessageRequestHeader) -> dict[str, str]:
    """Return the text map for codes 10 and 324."""
    return encode_by_plan(header, _V1_PLAN)


def encode_send_header_v2(header: SendMessageRequestHeader) -> dict[str, str]:
    """Return the text map for codes 310, 320 and 325."""
    return encode_by_plan(header, _V2_PLAN)
