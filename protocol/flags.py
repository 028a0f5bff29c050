"""System flag bits, permission bits, a master's id, and the names that RocketMQ keeps for itself.

The message system flag (sent with a message, stored in its record, field SYSFLAG):

    bits   value   meaning
    0      0x001   the body is compressed by the producer
    1      0x002   the topic uses MULTI_TAG
    2-3    0x00C   transaction type: 0 none, 4 prepared, 8 commit, 12 rollback
    4      0x010   the born host is IPv6 (20 bytes in the record instead of 8)
    5      0x020   the store host is IPv6
    6      0x040   needs unwrapping (5.x)
    7      0x080   inner batch (5.x)
    8-10   0x700   compression: 0 zlib by old clients, 1 LZ4, 2 ZSTD, 3 zlib

Names are checked where they come in, because a topic becomes a folder on disk and one length byte
in each record. One rule holds for all: see `validate_topic`.
Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../sysflag/MessageSysFlag.java, PullSysFlag.java,
TopicSysFlag.java, common/.../constant/PermName.java, common/.../topic/TopicValidator.java,
common/.../MixAll.java
"""

import re
from typing import Final


class MessageSysFlag:
    """Bits of a message's system flag, under RocketMQ's names."""

    COMPRESSED_FLAG: Final = 0x1
    MULTI_TAGS_FLAG: Final = 0x2
    TRANSACTION_NOT_TYPE: Final = 0x0
    TRANSACTION_PREPARED_TYPE: Final = 0x4
    TRANSACTION_COMMIT_TYPE: Final = 0x8
    TRANSACTION_ROLLBACK_TYPE: Final = 0xC
    TRANSACTION_MASK: Final = 0xC
    BORNHOST_V6_FLAG: Final = 0x10
    STOREHOSTADDRESS_V6_FLAG: Final = 0x20
    NEED_UNWRAP_FLAG: Final = 0x40
    INNER_BATCH_FLAG: Final = 0x80
    COMPRESSION_LZ4_TYPE: Final = 0x100
    COMPRESSION_ZSTD_TYPE: Final = 0x200
    COMPRESSION_ZLIB_TYPE: Final = 0x300
    COMPRESSION_MASK: Final = 0x700


class PullSysFlag:
    """Bits of a pull request's system flag, under RocketMQ's names."""

    FLAG_COMMIT_OFFSET: Final = 0x1
    FLAG_SUSPEND: Final = 0x2
    FLAG_SUBSCRIPTION: Final = 0x4
    FLAG_CLASS_FILTER: Final = 0x8
    FLAG_LITE_PULL_MESSAGE: Final = 0x10


class TopicSysFlag:
    """Bits of a topic's system flag, under RocketMQ's names."""

    FLAG_UNIT: Final = 0x1
    FLAG_UNIT_SUB: Final = 0x2


class PermName:
    """Permission bits of a topic and of a broker, under RocketMQ's names."""

    PERM_INHERIT: Final = 0x1
    PERM_WRITE: Final = 0x2
    PERM_READ: Final = 0x4
    PERM_PRIORITY: Final = 0x8


def is_readable(perm: int) -> bool:
    """Return whether the permission bits allow reading."""
    return perm & PermName.PERM_READ != 0


def is_writeable(perm: int) -> bool:
    """Return whether the permission bits allow writing."""
    return perm & PermName.PERM_WRITE != 0


def is_inherited(perm: int) -> bool:
    """Return whether topics made on demand may copy this topic's queues."""
    return perm & PermName.PERM_INHERIT != 0


def transaction_type(sys_flag: int) -> int:
    """Return the transaction bits of a message's system flag."""
    return sys_flag & MessageSysFlag.TRANSACTION_MASK


MAX_TOPIC_SIZE: Final = 127
"""Characters of a topic: its length is one signed byte in the record."""
MAX_GROUP_SIZE: Final = 120
"""Characters of a consumer group: `%RETRY%` + group is a topic."""
MAX_PRODUCER_GROUP_SIZE: Final = 255
MAX_ECHO_SIZE: Final = 64
"""Characters of a refused name that an error text repeats."""

RETRY_GROUP_TOPIC_PREFIX: Final = "%RETRY%"
DLQ_GROUP_TOPIC_PREFIX: Final = "%DLQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
CID_RMQ_SYS_PREFIX: Final = "CID_RMQ_SYS_"
assert len(RETRY_GROUP_TOPIC_PREFIX) + MAX_GROUP_SIZE <= MAX_TOPIC_SIZE
assert len(DLQ_GROUP_TOPIC_PREFIX) + MAX_GROUP_SIZE <= MAX_TOPIC_SIZE

AUTO_CREATE_TOPIC_KEY_TOPIC: Final = "TBW102"
RMQ_SYS_SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
RMQ_SYS_BENCHMARK_TOPIC: Final = "BenchmarkTest"
RMQ_SYS_TRANS_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
RMQ_SYS_TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
RMQ_SYS_TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
RMQ_SYS_TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
RMQ_SYS_SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
RMQ_SYS_OFFSET_MOVED_EVENT: Final = "OFFSET_MOVED_EVENT"
RMQ_SYS_WHEEL_TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
"""Where messages with a delay of their own wait; RocketMQ's name for it since 5.0."""
SYS_METADATA_TOPIC: Final = "SKYLARKMQ_SYS_METADATA"
"""Where a master under a controller writes what else must go over to its successor; ours."""

SYSTEM_TOPICS: Final = frozenset(
    {
        AUTO_CREATE_TOPIC_KEY_TOPIC,
        RMQ_SYS_SCHEDULE_TOPIC,
        RMQ_SYS_BENCHMARK_TOPIC,
        RMQ_SYS_TRANS_HALF_TOPIC,
        RMQ_SYS_TRACE_TOPIC,
        RMQ_SYS_TRANS_OP_HALF_TOPIC,
        RMQ_SYS_TRANS_CHECK_MAX_TIME_TOPIC,
        RMQ_SYS_SELF_TEST_TOPIC,
        RMQ_SYS_OFFSET_MOVED_EVENT,
        RMQ_SYS_WHEEL_TIMER_TOPIC,
        SYS_METADATA_TOPIC,
    }
)
"""Topics that only the broker itself creates, changes and deletes."""

NOT_ALLOWED_SEND_TOPICS: Final = frozenset(
    {
        RMQ_SYS_SCHEDULE_TOPIC,
        RMQ_SYS_TRANS_HALF_TOPIC,
        RMQ_SYS_TRANS_OP_HALF_TOPIC,
        RMQ_SYS_TRANS_CHECK_MAX_TIME_TOPIC,
        RMQ_SYS_SELF_TEST_TOPIC,
        RMQ_SYS_OFFSET_MOVED_EVENT,
        RMQ_SYS_WHEEL_TIMER_TOPIC,
        SYS_METADATA_TOPIC,
    }
)
"""Topics that clients may not send to."""
assert NOT_ALLOWED_SEND_TOPICS <= SYSTEM_TOPICS

MASTER_ID: Final = 0
"""The broker id of a master; its slaves have greater ones."""

REPLY_TOPIC_POSTFIX: Final = "REPLY_TOPIC"

DEFAULT_PRODUCER_GROUP: Final = "DEFAULT_PRODUCER"
TOOLS_CONSUMER_GROUP: Final = "TOOLS_CONSUMER"
FILTERSRV_CONSUMER_GROUP: Final = "FILTERSRV_CONSUMER"
CLIENT_INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
SELF_TEST_CONSUMER_GROUP: Final = "SELF_TEST_C_GROUP"
ONS_HTTP_PROXY_GROUP: Final = "CID_ONS-HTTP-PROXY"
CID_ONSAPI_PERMISSION_GROUP: Final = "CID_ONSAPI_PERMISSION"
CID_ONSAPI_OWNER_GROUP: Final = "CID_ONSAPI_OWNER"
CID_ONSAPI_PULL_GROUP: Final = "CID_ONSAPI_PULL"
CID_RMQ_SYS_TRANS_GROUP: Final = "CID_RMQ_SYS_TRANS"

_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)
_TOPIC_NAME: Final = re.compile(
    rf"{_NAME.pattern}|{RETRY_GROUP_TOPIC_PREFIX}{_NAME.pattern}\+{_NAME.pattern}", re.ASCII
)


def validate_topic(name: str) -> str | None:
    """Return why `name` cannot be a topic, or None when it can.

    Allowed: `%`, `|`, `-`, `_`, ASCII digits and letters, 1 to 127 of them; and one `+` in the
        name of a topic of pop's retries, `%RETRY%group+topic`. The whole name is matched, so a
        line end, a look-alike letter or a path separator is refused; `%2e` stays three characters.
    """
    return _validate_name("topic", name, MAX_TOPIC_SIZE, _TOPIC_NAME)


def validate_group(name: str) -> str | None:
    """Return why `name` cannot be a consumer group, or None when it can.

    Unlike RocketMQ: its 4.9 broker checks no group name; ours must fit into a retry topic's name.
    """
    return _validate_name("group", name, MAX_GROUP_SIZE)


def validate_producer_group(name: str) -> str | None:
    """Return why `name` cannot be a producer group, or None when it can."""
    return _validate_name("group", name, MAX_PRODUCER_GROUP_SIZE)


def is_system_topic(topic: str) -> bool:
    """Return whether the broker itself owns this topic."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def retry_topic(group: str) -> str:
    """Return the topic that keeps a consumer group's messages for another try."""
    return RETRY_GROUP_TOPIC_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the topic that keeps a consumer group's dead letters."""
    return DLQ_GROUP_TOPIC_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Return the topic that every broker of a cluster has for replies to requests."""
    return f"{cluster}_{REPLY_TOPIC_POSTFIX}"


def is_retry_topic(topic: str) -> bool:
    """Return whether the topic holds some group's retries."""
    return topic.startswith(RETRY_GROUP_TOPIC_PREFIX)


def _validate_name(
    kind: str, name: str, max_size: int, pattern: re.Pattern[str] = _NAME
) -> str | None:
    if not name or name.isspace():
        return f"the specified {kind} is blank"
    if len(name) > max_size:
        return (
            f"the specified {kind} is longer than {max_size} characters: "
            f"it has {len(name)} and starts with {name[:MAX_ECHO_SIZE]!a}"
        )
    if pattern.fullmatch(name) is None:
        bad = _NAME.sub("", name)[:1]
        return (
            f"the specified {kind} {name[:MAX_ECHO_SIZE]!a} contains illegal characters, such as "
            f"{bad!a}: allowed are the letters a to z and A to Z, digits, hyphen (-), underscore "
            "(_), percent (%) and bar (|)"
        )
    return None
