"""The typed call for pulling (11), and what its answers mean.

    code  meaning to the consumer
    0     records in the body; go on at nextBeginOffset
    19    nothing new, after the broker held the request; go on there
    20    nothing that matches, or try again; go on there
    21    the offset is outside the queue; nextBeginOffset is where to go on
    else  an error

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/MQClientAPIImpl.java
(processPullResponse), client/.../impl/consumer/DefaultMQPushConsumerImpl.java (pullMessage)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from skylarkmq.client.errors import ProtocolError, broker_error
from skylarkmq.client.wire.remoting import Remoting
from skylarkmq.protocol.bodies.heartbeat import SubscriptionData
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import PullSysFlag
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields
from skylarkmq.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from skylarkmq.protocol.message import MessageExt, MessageQueue
from skylarkmq.protocol.record import decode_messages
from skylarkmq.protocol.remoting_command import RemotingCommand


class PullStatus(Enum):
    """What a pull came to."""

    FOUND = "found"
    NO_NEW = "no new message"
    NO_MATCHED = "no matched message"
    OFFSET_MOVED = "offset moved"


STATUSES: Final[dict[int, PullStatus]] = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_MOVED,
}

PLAIN_PULL_COUNT: Final = 32
PLAIN_PULL_BYTES: Final = 256 * 1024
"""RocketMQ's 4.9 brokers give no more messages and bytes at once."""
BIG_PULL_BYTES: Final = 4 * 1024 * 1024
"""What one pull asks for at most; ours and RocketMQ's 5.x brokers give it."""


@dataclass(frozen=True, slots=True)
class PullRequest:
    """What to ask for."""

    group: str
    queue: MessageQueue
    offset: int
    max_count: int
    sub_version: int
    commit_offset: int
    """Where the group stands in this queue; above 0 it is committed on the way."""
    suspend_ms: int
    """How long the broker may hold the request while there is nothing; 0: it answers at once."""
    max_bytes: int = 0
    """How much may come, when that is more than RocketMQ's 256 KiB."""
    subscription: SubscriptionData | None = None
    """What is wanted, for those who are no members of the group; else the heartbeat says it."""


@dataclass(frozen=True, slots=True)
class PullResult:
    """What came. All offsets are queue offsets."""

    status: PullStatus
    messages: list[MessageExt]
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    """Which broker of the set to ask next: 0 the master, another one when the master is busy with
    messages that are no longer in its memory."""


async def pull(remoting: Remoting, address: str, wish: PullRequest, timeout_s: float) -> PullResult:
    """Ask for messages; the broker holds the request for `suspend_ms` while there are none.

    Raises:
        RocketMQError: refused, no answer, or one that cannot be read.
    """
    flags = PullSysFlag.FLAG_SUSPEND if wish.suspend_ms > 0 else 0
    if wish.commit_offset > 0:
        flags |= PullSysFlag.FLAG_COMMIT_OFFSET
    inline = wish.subscription
    if inline is not None:
        flags |= PullSysFlag.FLAG_SUBSCRIPTION
    header = PullMessageRequestHeader(
        consumer_group=wish.group,
        topic=wish.queue.topic,
        queue_id=wish.queue.queue_id,
        queue_offset=wish.offset,
        max_msg_nums=wish.max_count,
        sys_flag=flags,
        commit_offset=wish.commit_offset,
        suspend_timeout_millis=wish.suspend_ms,
        subscription=inline.sub_string if inline is not None else None,
        expression_type=inline.expression_type if inline is not None else None,
        sub_version=wish.sub_version,
        max_msg_bytes=(
            min(wish.max_bytes, BIG_PULL_BYTES) if wish.max_bytes > PLAIN_PULL_BYTES else None
        ),
        broker_name=wish.queue.broker_name,
    )
    request = RemotingCommand.request(RequestCode.PULL_MESSAGE, encode_fields(header))
    answer = await remoting.call(address, request, timeout_s)
    status = STATUSES.get(answer.code)
    if status is None:
        raise broker_error(answer.code, answer.remark, address)
    try:
        where = decode_fields(PullMessageResponseHeader, answer.ext_fields)
        messages = decode_messages(answer.body) if status is PullStatus.FOUND else []
    except RemoteProtocolError as error:
        raise ProtocolError(f"{address} sent an answer that cannot be read: {error}") from error
    return PullResult(
        status,
        messages,
        where.next_begin_offset,
        where.min_offset,
        where.max_offset,
        where.suggest_which_broker_id,
    )
