"""Typed calls of administrators: a header out, a header or a body in, to brokers and name servers.

Every failure is a RocketMQError: no answer in time, no connection, a refusal, or a body that cannot
be read. A code that the peer does not serve is answered with 3, by RocketMQ's name servers not at
all.
Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/MQClientAPIImpl.java
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from skylarkmq.client.errors import ProtocolError, RocketMQError, broker_error
from skylarkmq.protocol.bodies.text import decode_body, encode_body
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.record import decode_messages
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.client import RemotingClient

B = TypeVar("B", bound=msgspec.Struct)

SUCCESS: Final = frozenset({int(ResponseCode.SUCCESS)})
BODY_NODES_MAX: Final = 4_000_000
"""Values that an answer's JSON may have: half a million queues."""


class AdminApi:
    """The calls, over one client's connections; `timeout_s` bounds each."""

    def __init__(self, remoting: RemotingClient, timeout_s: float) -> None:
        self._remoting = remoting
        self.timeout_s = timeout_s

    async def call(
        self,
        address: str,
        code: int,
        header: msgspec.Struct | None = None,
        *,
        body: bytes = b"",
        extra: dict[str, str] | None = None,
        accepted: frozenset[int] = SUCCESS,
        timeout_s: float | None = None,
    ) -> RemotingCommand:
        """Send one request and return its answer.

        Args:
            extra: fields beside the header's.
            accepted: answers that are no error.
            timeout_s: seconds, for a call that takes longer than others.

        Raises:
            RocketMQError: no answer, or one that is not in `accepted`.
        """
        fields = {} if header is None else encode_fields(header)
        if extra:
            fields.update(extra)
        request = RemotingCommand.request(code, fields, body)
        answer = await self._remoting.call(address, request, timeout_s or self.timeout_s)
        if answer.code not in accepted:
            raise broker_error(answer.code, answer.remark, address)
        return answer

    async def body(
        self,
        kind: type[B],
        address: str,
        code: int,
        header: msgspec.Struct | None = None,
        *,
        timeout_s: float | None = None,
    ) -> B:
        """Do that and return the answer's body as a `kind`."""
        answer = await self.call(address, code, header, timeout_s=timeout_s)
        return read_body(kind, answer, address)

    async def fields(
        self, kind: type[B], address: str, code: int, header: msgspec.Struct | None = None
    ) -> B:
        """Do that and return the answer's header as a `kind`."""
        return read_header(kind, await self.call(address, code, header), address)

    async def any_of(
        self,
        addresses: list[str],
        code: int,
        header: msgspec.Struct | None = None,
        *,
        accepted: frozenset[int] = SUCCESS,
    ) -> tuple[RemotingCommand, str]:
        """Ask one after the other until one answers; return the answer and who gave it.

        Raises:
            RocketMQError: the last one's error.
        """
        last: RocketMQError | None = None
        for address in addresses:
            try:
                return await self.call(address, code, header, accepted=accepted), address
            except RocketMQError as error:
                last = error
        assert last is not None, "there is at least one address"
        raise last


def read_body(kind: type[B], answer: RemotingCommand, address: str) -> B:
    """Return the body of an answer.

    Raises:
        ProtocolError: it cannot be read.
    """
    try:
        return decode_body(kind, answer.body, node_count_max=BODY_NODES_MAX)
    except RemoteProtocolError as error:
        raise ProtocolError(f"{address} sent a body that cannot be read: {error}") from error


def read_header(kind: type[B], answer: RemotingCommand, address: str) -> B:
    """Return the header of an answer.

    Raises:
        ProtocolError: it cannot be read.
    """
    try:
        return decode_fields(kind, answer.ext_fields)
    except RemoteProtocolError as error:
        raise ProtocolError(f"{address} sent an answer that cannot be read: {error}") from error


def read_records(answer: RemotingCommand, address: str) -> list[MessageExt]:
    """Return the records in an answer's body.

    Raises:
        ProtocolError: one is cut or damaged.
    """
    try:
        return decode_messages(answer.body)
    except RemoteProtocolError as error:
        raise ProtocolError(f"{address} sent a record that cannot be read: {error}") from error


def json_body(body: msgspec.Struct) -> bytes:
    """Return the text of a request's body."""
    return encode_body(body)
