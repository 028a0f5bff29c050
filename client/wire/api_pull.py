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

from skylarkmq.client.errors import broker_error
from skylarkmq.client.wire.ask import ask, read_header, read_records
from skylarkmq.protocol.bodies.group import SubscriptionData
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.flags import TOOLS_CONSUMER_GROUP, PullSysFlag
from skylarkmq.protocol.headers.fields import LONG_MAX, encode_fields
from skylarkmq.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from skylarkmq.protocol.message import MessageExt, MessageQueue
from skylarkmq.protocol.record import RecordParts, message_of
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.client import RemotingClient


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
NO_END: Final = LONG_MAX
BIG_PULL_BYTES: Final = 4 * 1024 * 1024
"""What one pull asks for at most; ours and RocketMQ's 5.x brokers give it."""


@dataclass(frozen=True, slots=True)
class PullRequest:
    """What to ask for."""

    group: str
    queue: MessageQueue
    offset: int
    max_count: int
    sub_version: int = 0
    commit_offset: int = 0
    """Where the group stands in this queue; above 0 it is committed on the way."""
    suspend_ms: int = 0
    """How long the broker may hold the request while there is nothing; 0: it answers at once."""
    max_bytes: int = 0
    """How much may come, when that is more than RocketMQ's 256 KiB."""
    subscription: SubscriptionData | None = None
    """What is wanted, for those who are no members of the group; else the heartbeat says it."""

    def header(self) -> PullMessageRequestHeader:
        """Return the header of its request."""
        flags = PullSysFlag.FLAG_SUSPEND if self.suspend_ms > 0 else 0
        if self.commit_offset > 0:
            flags |= PullSysFlag.FLAG_COMMIT_OFFSET
        inline = self.subscription
        if inline is not None:
            flags |= PullSysFlag.FLAG_SUBSCRIPTION
        return PullMessageRequestHeader(
            consumer_group=self.group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=self.offset,
            max_msg_nums=self.max_count,
            sys_flag=flags,
            commit_offset=self.commit_offset,
            suspend_timeout_millis=self.suspend_ms,
            subscription=inline.sub_string if inline is not None else None,
            expression_type=inline.expression_type if inline is not None else None,
            sub_version=self.sub_version,
            max_msg_bytes=(
                min(self.max_bytes, BIG_PULL_BYTES) if self.max_bytes > PLAIN_PULL_BYTES else None
            ),
            broker_name=self.queue.broker_name,
        )


class PullTemplate:
    """Makes pulls that differ from one another in offset and count alone."""

    def __init__(self, wish: PullRequest) -> None:
        self._fields = encode_fields(wish.header())

    def at(self, offset: int, max_count: int) -> RemotingCommand:
        """Return the request for messages from `offset` on."""
        fields = self._fields | {"queueOffset": str(offset), "maxMsgNums": str(max_count)}
        return RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=fields)


@dataclass(frozen=True, slots=True)
class PulledRecords:
    """What a pull brought, as the broker stores it. All offsets are queue offsets."""

    status: PullStatus
    records: bytes
    """As stored, back to back; empty unless FOUND."""
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    """Which broker of the set to ask next: 0 the master, another one when the master is busy with
    messages that are no longer in its memory."""
    remark: str = ""
    """The store's own name for the outcome, `MESSAGE_WAS_REMOVING`."""


@dataclass(frozen=True, slots=True)
class PullResult:
    """What came, taken apart; the rest as in `PulledRecords`."""

    status: PullStatus
    records: list[RecordParts]
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int

    @property
    def messages(self) -> list[MessageExt]:
        """The records as messages, made anew at each call."""
        return [message_of(parts) for parts in self.records]


async def pull(
    remoting: RemotingClient, address: str, wish: PullRequest, timeout_s: float
) -> PullResult:
    """Ask for messages; the broker holds the request for `suspend_ms` while there are none.

    Raises:
        RocketMQError: refused, no answer, or one that cannot be read.
    """
    code = RequestCode.PULL_MESSAGE
    answer = await ask(remoting, address, code, timeout_s, wish.header(), accepted=STATUSES)
    found = pulled_in(answer, address)
    return PullResult(
        found.status,
        read_records(answer, address) if found.records else [],
        found.next_offset,
        found.min_offset,
        found.max_offset,
        found.suggested_broker_id,
    )


def pulled_in(answer: RemotingCommand, address: str) -> PulledRecords:
    """Return what an answer to a pull brought.

    Raises:
        BrokerError: a refusal.
        ProtocolError: the answer cannot be read.
    """
    status = STATUSES.get(answer.code)
    if status is None:
        raise broker_error(answer.code, answer.remark, address)
    where = read_header(PullMessageResponseHeader, answer, address)
    return PulledRecords(
        status,
        answer.body if status is PullStatus.FOUND else b"",
        where.next_begin_offset,
        where.min_offset,
        where.max_offset,
        where.suggest_which_broker_id,
        answer.remark or "",
    )


@dataclass(eq=False)
class QueuePages:
    """A queue from `position` to `end`, page by page; only `take` moves on.

    A pull that carries its subscription needs no heartbeat, and TOOLS_CONSUMER, which every broker
    has, needs no members. Nothing is committed.
    """

    queue: MessageQueue
    position: int
    end: int

    async def read(
        self, remoting: RemotingClient, address: str, timeout_s: float,
        data: SubscriptionData, suspend_ms: int = 0,
    ) -> PullResult:  # fmt: skip
        """Return the next page; the broker may hold the request while there is none."""
        wish = PullRequest(
            TOOLS_CONSUMER_GROUP, self.queue, self.position, PLAIN_PULL_COUNT,
            suspend_ms=suspend_ms, subscription=data,
        )  # fmt: skip
        return await pull(remoting, address, wish, timeout_s)

    def take(self, page: PullResult) -> list[MessageExt]:
        """Return what is left to read of a page, and move on to what follows the page."""
        begin, self.position = self.position, page.next_offset
        if self.end < NO_END and page.status is PullStatus.NO_NEW and page.next_offset <= begin:
            self.position = self.end  # the queue was cut below the end
        return [each for each in page.messages if begin <= each.queue_offset < self.end]
