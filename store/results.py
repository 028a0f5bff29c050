"""What goes into the store and what comes out: messages to append, statuses, read results.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../PutMessageStatus.java, GetMessageStatus.java
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class PutMessageStatus(Enum):
    """Outcome of a put.

    FLUSH_DISK_TIMEOUT means stored, durability not known yet; FLUSH_SLAVE_TIMEOUT and
    SLAVE_NOT_AVAILABLE that it is stored on this broker, and on a slave perhaps later. UNCONFIRMED
    is what a gate makes of the first two: it is in this broker's log, and a failover may take it
    back, so nobody may count on it. The same is said of a message whose new topic is not safe.
    """

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    UNCONFIRMED = "UNCONFIRMED"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"


Committed = Callable[[PutMessageStatus], None]
"""Told once what has come of a commit."""

TAKEN = frozenset(
    {
        PutMessageStatus.PUT_OK,
        PutMessageStatus.FLUSH_DISK_TIMEOUT,
        PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
        PutMessageStatus.SLAVE_NOT_AVAILABLE,
    }
)
"""Whose sender may let go of the message."""
STORED = TAKEN | {PutMessageStatus.UNCONFIRMED}
"""What is in this broker's log."""


class GetMessageStatus(Enum):
    """Outcome of a read; the name goes into the pull answer's remark."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(slots=True)
class MessageInner:
    """A message ready to be stored; the store adds offsets and the store time."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes  # encoded text, UTF-8
    born_host: bytes  # packed, 8 or 20 bytes
    store_host: bytes  # packed, 8 or 20 bytes
    born_timestamp: int  # ms since the epoch
    tags_code: int = 0
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0  # physical offset of the half message
    delay_level: int = 0  # > 0 on the schedule topic: the unit carries the due time
    wait_store_ok: bool = True  # False: answer before the sync flush
    is_copy: bool = False  # of a stored message, whose body may be larger than is taken now


class PutMessageResult(NamedTuple):
    """Where a message went. The offsets are -1 unless the status is one of STORED."""

    status: PutMessageStatus
    queue_offset: int = -1
    physical_offset: int = -1
    store_timestamp: int = 0
    why: str = ""  # cause and cure of a refusal, for the remark
    record_size: int = 0  # bytes


class ConsumeQueueUnit(NamedTuple):
    """One entry of a consume queue."""

    commit_offset: int
    record_size: int
    tags_code: int


@dataclass(slots=True)
class GetMessageResult:
    """What a read found; `views` are the stored records, neighbours merged, in queue order."""

    status: GetMessageStatus
    next_begin_offset: int = 0
    min_offset: int = 0
    max_offset: int = 0
    views: Sequence[memoryview | bytes] = ()
    count: int = 0
    size: int = 0
    suggest_pulling_from_slave: bool = False  # the last message looked at is not in memory
    units: bytes = b""  # of the queue, from the offset asked for on, if the disk had to give them
