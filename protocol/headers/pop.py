"""Headers of pop consumption by 5.x's remoting clients: taking messages (200050), done (200051),
looking without taking (200052), another invisible time (200053), telling that there is something
(200054), how many wait (200055).

The bodies of 400, 401 and 200151 are in `bodies/pop.py`; the texts inside the fields in `pop.py`.

Source: apache/rocketmq@rocketmq-all-5.3.3 remoting/.../protocol/header/ (the class of each name)
"""

import msgspec

from skylarkmq.protocol.headers.fields import Header, JavaInt, JavaLong


class PopMessageRequestHeader(Header, kw_only=True, frozen=True):
    """Give me messages, and hide them from others for `invisible_time`.

    Times in ms; `poll_time` is how long an empty answer may be held back, from `born_time` on.
    `queue_id` below 0 means all queues. `init_mode` is where a group without an offset starts: 0
    at the first message, 1 at the end. `exp` is a filter of the kind `exp_type`. `order` asks for
    the messages of a queue one batch after the other; then the same `attempt_id` gets the same
    messages again.
    """

    consumer_group: str
    topic: str
    queue_id: JavaInt
    max_msg_nums: JavaInt
    invisible_time: JavaLong
    poll_time: JavaLong
    born_time: JavaLong
    init_mode: JavaInt
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


class PopMessageResponseHeader(Header, kw_only=True, frozen=True):
    """What a client builds the messages' handles of; also the answer of 200052, with zeros."""

    pop_time: JavaLong = 0
    invisible_time: JavaLong = 0
    revive_qid: JavaInt = 0
    rest_num: JavaLong = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class PeekMessageRequestHeader(Header, kw_only=True, frozen=True):
    """Show me messages and hide them from nobody."""

    topic: str
    queue_id: JavaInt
    max_msg_nums: JavaInt
    consumer_group: str


class AckMessageRequestHeader(Header, kw_only=True, frozen=True):
    """The message is done. `topic` is the one that it lies in, which may be a retry topic."""

    consumer_group: str
    topic: str
    queue_id: JavaInt
    extra_info: str
    offset: JavaLong
    broker_name: str | None = msgspec.field(default=None, name="bname")


class ChangeInvisibleTimeRequestHeader(Header, kw_only=True, frozen=True):
    """Hide the message for `invisible_time` ms from now on; the answer has the new handle."""

    consumer_group: str
    topic: str
    queue_id: JavaInt
    extra_info: str
    offset: JavaLong
    invisible_time: JavaLong
    broker_name: str | None = msgspec.field(default=None, name="bname")


class ChangeInvisibleTimeResponseHeader(Header, kw_only=True, frozen=True):
    """What the message's new handle is built of."""

    pop_time: JavaLong = 0
    invisible_time: JavaLong = 0
    revive_qid: JavaInt = 0


class NotificationRequestHeader(Header, kw_only=True, frozen=True):
    """Tell me when there is a message for the group; within `poll_time` ms."""

    consumer_group: str
    topic: str
    queue_id: JavaInt
    poll_time: JavaLong
    born_time: JavaLong
    order: bool = False
    attempt_id: str | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


class NotificationResponseHeader(Header, kw_only=True, frozen=True):
    """Whether there is one, or whether no more clients can wait."""

    has_msg: bool = False
    polling_full: bool = False


class PollingInfoRequestHeader(Header, kw_only=True, frozen=True):
    """How many clients of the group wait for messages."""

    consumer_group: str
    topic: str
    queue_id: JavaInt


class PollingInfoResponseHeader(Header, kw_only=True, frozen=True):
    """So many."""

    polling_num: JavaInt
