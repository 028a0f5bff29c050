"""A typed request and its answer: a header out, a header, a body or records in.

Every failure is a RocketMQError: no answer in time, no connection, a refusal, or an answer that
cannot be read.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, TypeVar

import msgspec

from skylarkmq.client.errors import ProtocolError, broker_error
from skylarkmq.protocol.bodies.text import decode_body
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.record import RecordParts, message_of, split_records
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.client import RemotingClient

T = TypeVar("T", bound=msgspec.Struct)

SUCCESS: Final = frozenset({int(ResponseCode.SUCCESS)})
BODY_NODES_MAX: Final = 4_000_000
"""Half a million queues."""


async def ask(
    remoting: RemotingClient,
    address: str,
    code: int,
    timeout_s: float,
    header: msgspec.Struct | None = None,
    *,
    body: bytes = b"",
    extra: dict[str, str] | None = None,
    accepted: Collection[int] = SUCCESS,
) -> RemotingCommand:
    """Send one request and return its answer.

    Args:
        extra: fields beside the header's.
        accepted: answers that are no error.

    Raises:
        RocketMQError: no answer, or one that is not in `accepted`.
    """
    fields = {} if header is None else encode_fields(header)
    if extra:
        fields.update(extra)
    answer = await remoting.call(address, RemotingCommand.request(code, fields, body), timeout_s)
    if answer.code not in accepted:
        raise broker_error(answer.code, answer.remark, address)
    return answer


def read_body(
    kind: type[T], answer: RemotingCommand, address: str, node_count_max: int = BODY_NODES_MAX
) -> T:
    """Return the body of an answer.

    Args:
        node_count_max: values that its JSON may have.

    Raises:
        ProtocolError: it cannot be read.
    """
    try:
        return decode_body(kind, answer.body, node_count_max=node_count_max)
    except RemoteProtocolError as error:
        raise ProtocolError(f"{address} sent a body that cannot be read: {error}") from error


def read_header(kind: type[T], answer: RemotingCommand, address: str) -> T:
    """Return the header of an answer.

    Raises:
        ProtocolError: it cannot be read.
    """
    try:
        return decode_fields(kind, answer.ext_fields)
    except RemoteProtocolError as error:
        raise ProtocolError(f"{address} sent an answer that cannot be read: {error}") from error


def read_messages(answer: RemotingCommand, address: str) -> list[MessageExt]:
    """Return the messages in an answer's body.

    Raises:
        ProtocolError: a record is cut or damaged.
    """
    return [message_of(parts) for parts in read_records(answer, address)]


def read_records(answer: RemotingCommand, address: str) -> list[RecordParts]:
    """Return the records in an answer's body, taken apart.

    Raises:
        ProtocolError: one is cut or damaged.
    """
    try:
        return split_records(answer.body)
    except RemoteProtocolError as error:
        raise ProtocolError(f"{address} sent a record that cannot be read: {error}") from error
