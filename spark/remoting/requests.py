"""Requests of the blocking client and what their answers say; pure, one function a call.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/MQClientAPIImpl.java; what the answers
mean: client/wire/api_pull.py
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from skylarkmq.client.errors import AuthError, BrokerError, ProtocolError, broker_error
from skylarkmq.client.wire.api_pull import BIG_PULL_BYTES, PLAIN_PULL_BYTES, STATUSES, PullStatus
from skylarkmq.protocol.bodies.heartbeat import CheckClientRequestBody, SubscriptionData
from skylarkmq.protocol.bodies.text import decode_body, encode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import TOOLS_CONSUMER_GROUP, PullSysFlag
from skylarkmq.protocol.headers.consumer import (
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields
from skylarkmq.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from skylarkmq.protocol.headers.query import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    SearchOffsetRequestHeader,
)
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.spark.remoting.pulled import Pulled

T = TypeVar("T", bound=msgspec.Struct)

TOOLS_GROUP: Final = TOOLS_CONSUMER_GROUP
"""In its name everybody may pull: every broker has it."""
FILTER_CLIENT_ID: Final = "spark-skylarkmq"
"""A reader is no member of its group; the name shows in refusals alone."""
BROKER_NAME_FIELD: Final = "bname"
BODY_NODES_MAX: Final = 4_000_000
AUTH_HINT: Final = (
    "Check options accessKey and secretKey, and the account's permissions in the broker's "
    "plain_acl.yml"
)


def min_offset_of(queue: MessageQueue) -> RemotingCommand:
    """Ask for the first queue offset that can be read."""
    header = GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
    return _of_queue(RequestCode.GET_MIN_OFFSET, header, queue)


def max_offset_of(queue: MessageQueue) -> RemotingCommand:
    """Ask for the queue offset that the next message will get."""
    header = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
    return _of_queue(RequestCode.GET_MAX_OFFSET, header, queue)


def nearest_offset_of(queue: MessageQueue, timestamp_ms: int) -> RemotingCommand:
    """Ask for the queue offset of the message stored nearest to that time."""
    header = SearchOffsetRequestHeader(
        topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms
    )
    return _of_queue(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, queue)


def committed_offset_of(group: str, queue: MessageQueue) -> RemotingCommand:
    """Ask where a group stands."""
    header = QueryConsumerOffsetRequestHeader(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id
    )
    return _of_queue(RequestCode.QUERY_CONSUMER_OFFSET, header, queue)


def commit_of(group: str, queue: MessageQueue, next_offset: int) -> RemotingCommand:
    """Say that a group has done everything below `next_offset`."""
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        commit_offset=next_offset,
    )
    return _of_queue(RequestCode.UPDATE_CONSUMER_OFFSET, header, queue)


def filter_of(group: str, subscription: SubscriptionData) -> RemotingCommand:
    """Ask whether the broker filters by the expression of a subscription."""
    body = CheckClientRequestBody(
        client_id=FILTER_CLIENT_ID, group=group, subscription_data=subscription
    )
    return RemotingCommand(RequestCode.CHECK_CLIENT_CONFIG, body=encode_body(body))


def offset_in(answer: RemotingCommand, address: str) -> int:
    """Return the queue offset in an answer to any of these but `commit_of`.

    Raises:
        BrokerError: a refusal.
        ProtocolError: the answer cannot be read.
    """
    check(answer, address)
    return fields_in(GetMaxOffsetResponseHeader, answer, address).offset


def committed_in(answer: RemotingCommand, address: str) -> int | None:
    """Return the next offset of a group, None when it has none; raises as `offset_in`."""
    return None if answer.code == ResponseCode.QUERY_NOT_FOUND else offset_in(answer, address)


def check(answer: RemotingCommand, address: str) -> None:
    """Raise BrokerError unless the answer is a success."""
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer, address)


def refusal(answer: RemotingCommand, address: str) -> BrokerError:
    """Return the error that an answer stands for."""
    error = broker_error(answer.code, answer.remark, address)
    if isinstance(error, AuthError):
        return AuthError(error.code, error.remark, address, hint=AUTH_HINT)
    return error


def fields_in(kind: type[T], answer: RemotingCommand, address: str) -> T:
    """Return the answer's header.

    Raises:
        ProtocolError: it cannot be read.
    """
    try:
        return decode_fields(kind, answer.ext_fields)
    except RemoteProtocolError as error:
        raise ProtocolError(f"{address} sent an answer that cannot be read: {error}") from error


def body_in(kind: type[T], answer: RemotingCommand, address: str) -> T:
    """Return the body of a success; raises as `offset_in`."""
    check(answer, address)
    try:
        return decode_body(kind, answer.body, node_count_max=BODY_NODES_MAX)
    except RemoteProtocolError as error:
        raise ProtocolError(f"{address} sent a body that cannot be read: {error}") from error


class PullRequests:
    """Makes the pulls of one group from one queue; `queue` and `group` as brokers know them."""

    def __init__(
        self,
        group: str,
        queue: MessageQueue,
        max_bytes: int,
        subscription: SubscriptionData | None = None,
    ) -> None:
        self._header = PullMessageRequestHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=0,
            max_msg_nums=1,
            sys_flag=PullSysFlag.FLAG_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*" if subscription is None else subscription.sub_string,
            sub_version=0 if subscription is None else subscription.sub_version,
            expression_type="TAG" if subscription is None else subscription.expression_type,
            max_msg_bytes=_asked_bytes(max_bytes),
            broker_name=queue.broker_name,
        )
        self._fields = encode_fields(self._header)

    def at(self, offset: int, max_count: int) -> RemotingCommand:
        """Return the request for messages from `offset` on."""
        fields = dict(self._fields)
        fields["queueOffset"] = str(offset)
        fields["maxMsgNums"] = str(max_count)
        return RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=fields)


def pulled_in(answer: RemotingCommand, address: str) -> Pulled:
    """Return what came of a pull.

    Raises:
        BrokerError: a refusal.
        ProtocolError: the answer cannot be read.
    """
    status = STATUSES.get(answer.code)
    if status is None:
        raise refusal(answer, address)
    where = fields_in(PullMessageResponseHeader, answer, address)
    return Pulled(
        status,
        answer.body if status is PullStatus.FOUND else b"",
        where.next_begin_offset,
        where.min_offset,
        where.max_offset,
        where.suggest_which_broker_id,
        answer.remark or "",
    )


def _of_queue(code: int, header: msgspec.Struct, queue: MessageQueue) -> RemotingCommand:
    fields = encode_fields(header)
    fields[BROKER_NAME_FIELD] = queue.broker_name
    return RemotingCommand(code, ext_fields=fields)


def _asked_bytes(max_bytes: int) -> int | None:
    """Return the size to ask for; from 256 KiB on it is a little more than that, because only then
    our broker, and RocketMQ's of 5.x, give more than 32 messages."""
    if max_bytes < PLAIN_PULL_BYTES:
        return None
    return min(max(max_bytes, PLAIN_PULL_BYTES + 1), BIG_PULL_BYTES)
