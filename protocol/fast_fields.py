"""The ext fields of the two hottest requests as structs of text, for quick decoding.

A struct refuses any other field. So what a quick decoder accepts is all there is; a signed request,
or one that negotiates, goes to the generic decoder. Values stay text; `headers/fields.py` reads the
numbers among them, after both, by the same strict rule. An attribute is
None when the field is absent or null.
"""

import msgspec

from skylarkmq.protocol.headers.send import SEND_V2_NAMES


class SendFields(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False, rename=SEND_V2_NAMES
):
    """The fields of codes 310, 320 and 325, by the names of `SendMessageRequestHeader`."""

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


class PullFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False, rename="camel"):
    """The fields of codes 11 and 361, by the names of `PullMessageRequestHeader`.

    `request_type` is `0` from pull and lite-pull clients, else absent; nothing depends on it.
    """

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
    request_type: str | None = msgspec.field(default=None, name="ReqT")
