"""Headers of pulling (11, and 361 of 5.x lite consumers, which means the same).

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/header/
PullMessageRequestHeader.java, PullMessageResponseHeader.java; `maxMsgBytes` from
apache/rocketmq@rocketmq-all-5.3.3 remoting/.../protocol/header/PullMessageRequestHeader.java
"""

import msgspec

from skylarkmq.protocol.headers.fields import JavaInt, JavaLong


class PullMessageRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
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


class PullMessageResponseHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Where to go on; mandatory in answers 0, 19, 20 and 21. All offsets are queue offsets."""

    suggest_which_broker_id: JavaLong
    next_begin_offset: JavaLong
    min_offset: JavaLong
    max_offset: JavaLong
