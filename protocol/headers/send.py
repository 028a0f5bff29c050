"""Headers of sending (10, 310, 320, 324, 325), sending back (36), the reply push (326), taking back
(370), and transactions: the verdict (37), the question (39), another chance (323).

The send request exists under two sets of names for the same fields: long ones (v1, codes 10 and
324) and single letters (v2, codes 310, 320 and 325). Here it is one type, read and written by
either set.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/header/ (the class of each name;
SendMessageRequestHeaderV2.java for the letters)
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from skylarkmq.protocol.codes import SEND_V2_CODES
from skylarkmq.protocol.headers.fields import (
    Header,
    JavaInt,
    JavaLong,
    decode_fields,
    encode_fields,
    plan_of,
)

UNCONFIRMED_FIELD: Final = "skylarkmq.unconfirmed"
"""In the refusal of a send by a broker that may have stored it all the same."""


class SendMessageRequestHeader(Header, kw_only=True, frozen=True):
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


class SendMessageResponseHeader(Header, kw_only=True, frozen=True):
    """Where the message is. `msg_id` is the offset id, for a batch several joined by commas.

    5.x's `recall_handle` takes back a message that waits for a time of its own.
    """

    msg_id: str
    queue_id: JavaInt
    queue_offset: JavaLong
    transaction_id: str | None = None
    recall_handle: str | None = None


class RecallMessageRequestHeader(Header, kw_only=True, frozen=True):
    """A message that is to be taken back."""

    producer_group: str | None = None
    topic: str
    recall_handle: str
    broker_name: str | None = msgspec.field(default=None, name="bname")


class RecallMessageResponseHeader(Header, kw_only=True, frozen=True):
    """The id of the message, the one that its producer gave it."""

    msg_id: str


class ConsumerSendMsgBackRequestHeader(Header, kw_only=True, frozen=True):
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


class ReplyMessageRequestHeader(Header, kw_only=True, frozen=True):
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


SEND_V2_NAMES: Final = dict(
    zip(SendMessageRequestHeader.__struct_fields__, "abcdefghijklmn", strict=True)
)
"""The single letters by attribute."""


class SendFields(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False, rename=SEND_V2_NAMES
):
    """The fields of codes 310, 320 and 325 as text, for quick decoding.

    It refuses any other field. So what a quick decoder accepts is all there is; a signed request,
    or one that negotiates, goes to the generic decoder. The numbers among the values are read after
    both, by the same strict rule. An attribute is None when the field is absent or null.
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: str
    queue_id: str
    sys_flag: str
    born_timestamp: str
    flag: str
    properties: str | None = None
    reconsume_times: str | None = None
    unit_mode: str | None = None
    max_reconsume_times: str | None = None
    batch: str | None = None
    broker_name: str | None = None


_REQUIRED_COUNT: Final = sum(field.required for field in msgspec.structs.fields(SendFields))


def send_fields(texts: dict[str, str]) -> SendFields | None:
    """Return the fields of a send by their letters; None when one is missing or unknown."""
    values = [texts.pop(letter, None) for letter in SEND_V2_NAMES.values()]
    if texts or None in values[:_REQUIRED_COUNT]:
        return None
    return SendFields(*values)  # type: ignore[arg-type]


_V2_PLAN: Final = plan_of(SendMessageRequestHeader, SEND_V2_NAMES)


def decode_send_header(code: int, ext_fields: Mapping[str, str]) -> SendMessageRequestHeader:
    """Return the header of a send request by the names that go with its `code`.

    Raises:
        RemoteProtocolError: SYSTEM_ERROR; a mandatory field is missing, or a text is ill-typed.
    """
    plan = _V2_PLAN if code in SEND_V2_CODES else None
    return decode_fields(SendMessageRequestHeader, ext_fields, plan)


def encode_send_header_v2(header: SendMessageRequestHeader) -> dict[str, str]:
    """Return the text map for codes 310, 320 and 325; `encode_fields` makes that of 10 and 324."""
    return encode_fields(header, _V2_PLAN)


class EndTransactionRequestHeader(Header, kw_only=True, frozen=True):
    """The verdict over a half message.

    `tran_state_table_offset` is its queue offset in the half topic, `commit_log_offset` its
    physical offset; `commit_or_rollback` is 8 commit, 12 rollback, 0 not known.
    """

    producer_group: str
    tran_state_table_offset: JavaLong
    commit_log_offset: JavaLong
    commit_or_rollback: JavaInt
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None


class CheckTransactionStateRequestHeader(Header, kw_only=True, frozen=True):
    """The question about a half message; offsets as above, ids as the producer knows them."""

    tran_state_table_offset: JavaLong
    commit_log_offset: JavaLong
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeCheckHalfMessageRequestHeader(Header, kw_only=True, frozen=True):
    """The offset id of a half message, or of one that was given up."""

    msg_id: str
