"""Typed calls of pop consumption: take 200050, done 200051, another invisible time 200053, wait for
a message 200054.

SkylarkMQ's brokers answer these codes and RocketMQ's since 5.0. Answers to a request for messages:

    code       meaning
    0          records in the body; each one's handle is made of the header's texts
    19, 210    nothing there
    209        too many clients wait already
    3          a broker that has no pop consumption, RocketMQ 4.9's
    else       an error

Each call raises a RocketMQError when there is no answer or a refusal.
Source: apache/rocketmq@rocketmq-all-5.3.3 client/.../impl/MQClientAPIImpl.java (processPopResponse,
ackMessageAsync, changeInvisibleTimeAsync)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from skylarkmq.client.errors import NotSupported, ProtocolError, ReceiptExpired, broker_error
from skylarkmq.client.wire.ask import SUCCESS, read_header, read_records
from skylarkmq.protocol.bodies.group import SubscriptionData
from skylarkmq.protocol.codes import (
    POLLING_FULL,
    POLLING_TIMEOUT,
    RequestCode,
    ResponseCode,
)
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.headers.fields import encode_fields
from skylarkmq.protocol.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.pop import (
    POP_CK,
    Checkpoint,
    order_count_of,
    parse_checkpoint,
    parse_msg_offset_info,
    parse_order_count_info,
    parse_start_offset_info,
    retry_mark,
    topic_of_delivery,
)
from skylarkmq.protocol.record import message_of
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.client import RemotingClient

ALL_QUEUES: Final = -1
START_AT_END: Final = 1
"""Where a group without an offset begins; a broker begins a young queue at its first message."""
POP_COUNT_MAX: Final = 32
"""Brokers give no more at once, and RocketMQ's refuse a request for more."""
NOTHING: Final = frozenset({int(ResponseCode.PULL_NOT_FOUND), POLLING_TIMEOUT, POLLING_FULL})


@dataclass(frozen=True, slots=True)
class PopWish:
    """Which messages to take, and for how long."""

    group: str
    broker_name: str
    subscription: SubscriptionData
    max_count: int
    invisible_ms: int
    ordered: bool = False
    attempt_id: str | None = None


class Popped(NamedTuple):
    """One message, and the handle of its delivery."""

    message: MessageExt
    checkpoint: Checkpoint
    earlier_count: int
    """How often it was delivered before."""


async def pop(
    remoting: RemotingClient, address: str, wish: PopWish, timeout_s: float
) -> list[Popped]:
    """Take messages of all queues of a topic at one broker; none when there are none now."""
    data = wish.subscription
    header = PopMessageRequestHeader(
        consumer_group=wish.group,
        topic=data.topic,
        queue_id=ALL_QUEUES,
        max_msg_nums=wish.max_count,
        invisible_time=wish.invisible_ms,
        poll_time=0,
        born_time=0,  # the broker's own clock counts
        init_mode=START_AT_END,
        exp_type=data.expression_type,
        exp=data.sub_string,
        order=wish.ordered,
        attempt_id=wish.attempt_id,
        broker_name=wish.broker_name,
    )
    answer = await _ask(remoting, address, RequestCode.POP_MESSAGE, timeout_s, header)
    if answer.code in NOTHING:
        return []
    if answer.code != ResponseCode.SUCCESS:
        raise broker_error(answer.code, answer.remark, address)
    said = read_header(PopMessageResponseHeader, answer, address)
    messages = [message_of(parts) for parts in read_records(answer, address)]
    try:
        return _with_handles(messages, said, wish)
    except RemoteProtocolError as error:
        raise ProtocolError(f"{address} sent handles that cannot be read: {error}") from error


async def ack(
    remoting: RemotingClient,
    address: str,
    group: str,
    topic: str,
    checkpoint: Checkpoint,
    timeout_s: float,
) -> None:
    """Say that a delivery is done.

    Raises:
        ReceiptExpired: its invisible time was over, or it was done before.
    """
    header = AckMessageRequestHeader(
        consumer_group=group,
        topic=topic_of_delivery(topic, group, checkpoint.retry),
        queue_id=checkpoint.queue_id,
        extra_info=checkpoint.text,
        offset=checkpoint.queue_offset,
        broker_name=checkpoint.broker_name,
    )
    answer = await _ask(remoting, address, RequestCode.ACK_MESSAGE, timeout_s, header)
    _check_delivery(answer, address)


async def change_invisible_time(
    remoting: RemotingClient,
    address: str,
    group: str,
    topic: str,
    checkpoint: Checkpoint,
    invisible_ms: int,
    timeout_s: float,
) -> Checkpoint:
    """Hide a message for another time from now on, and return its new handle.

    Raises:
        ReceiptExpired: its invisible time was over, or it was done before.
    """
    header = ChangeInvisibleTimeRequestHeader(
        consumer_group=group,
        topic=topic_of_delivery(topic, group, checkpoint.retry),
        queue_id=checkpoint.queue_id,
        extra_info=checkpoint.text,
        offset=checkpoint.queue_offset,
        invisible_time=invisible_ms,
        broker_name=checkpoint.broker_name,
    )
    code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    answer = await _ask(remoting, address, code, timeout_s, header)
    _check_delivery(answer, address)
    said = read_header(ChangeInvisibleTimeResponseHeader, answer, address)
    return checkpoint._replace(
        start_offset=checkpoint.queue_offset,
        pop_time=said.pop_time,
        invisible_ms=said.invisible_time,
        revive_queue_id=said.revive_qid,
    )


async def wait_for_message(
    remoting: RemotingClient,
    address: str,
    wish: PopWish,
    poll_ms: int,
    timeout_s: float,
) -> bool:
    """Wait at a broker until there is something to take; False after `poll_ms` without that."""
    header = NotificationRequestHeader(
        consumer_group=wish.group,
        topic=wish.subscription.topic,
        queue_id=ALL_QUEUES,
        poll_time=poll_ms,
        born_time=0,
        order=wish.ordered,
        attempt_id=wish.attempt_id,
        broker_name=wish.broker_name,
    )
    answer = await _ask(remoting, address, RequestCode.NOTIFICATION, timeout_s, header)
    if answer.code in NOTHING:
        return False
    if answer.code != ResponseCode.SUCCESS:
        raise broker_error(answer.code, answer.remark, address)
    return read_header(NotificationResponseHeader, answer, address).has_msg


async def _ask(
    remoting: RemotingClient, address: str, code: int, timeout_s: float, header: msgspec.Struct
) -> RemotingCommand:
    request = RemotingCommand.request(code, encode_fields(header))
    connection = await remoting.connection(address)
    # RocketMQ's binary headers have 16 bits for a code, and these codes need more.
    is_binary = connection.serialize_type == SerializeType.ROCKETMQ
    answer = await connection.call(request, timeout_s, SerializeType.JSON if is_binary else None)
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise NotSupported(
            f"the broker at {address} has no pop consumption: {answer.remark}",
            hint="RocketMQ has it since 5.0. A Consumer receives from brokers of 4.9",
        )
    return answer


def _check_delivery(answer: RemotingCommand, address: str) -> None:
    if answer.code == ResponseCode.NO_MESSAGE:
        raise ReceiptExpired(answer.code, answer.remark or "", address)
    if answer.code not in SUCCESS:
        raise broker_error(answer.code, answer.remark, address)


def _with_handles(
    messages: list[MessageExt], said: PopMessageResponseHeader, wish: PopWish
) -> list[Popped]:
    starts = parse_start_offset_info(said.start_offset_info or "")
    offsets = {
        key: iter(sorted(those))
        for key, those in parse_msg_offset_info(said.msg_offset_info or "").items()
    }
    counts = parse_order_count_info(said.order_count_info or "")
    found: list[Popped] = []
    for message in messages:
        earlier_count = message.reconsume_times
        own = message.properties.get(POP_CK)
        if own is not None and (message.reconsume_times or retry_mark(message.topic) != "0"):
            checkpoint = parse_checkpoint(own)
        else:
            key = retry_mark(message.topic), message.queue_id
            offset = next(offsets.get(key, iter(())), message.queue_offset)
            if wish.ordered:
                earlier_count = max(earlier_count, order_count_of(counts, key, offset))
            checkpoint = Checkpoint(
                starts.get(key, message.queue_offset),
                said.pop_time,
                said.invisible_time,
                said.revive_qid,
                key[0],
                wish.broker_name,
                message.queue_id,
                offset,
            )
        found.append(Popped(message, checkpoint, earlier_count))
    return found
