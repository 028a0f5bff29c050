"""How requests are handled: a method for each code, which gets the decoded header and answers.

    @handles(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader)
    def get_max_offset(self, call: Call[GetMaxOffsetRequestHeader]) -> Answer:
        return Answer(header=GetMaxOffsetResponseHeader(offset=...))

A method may also be a coroutine: its call becomes a task. A method that is none takes effect before
the next request of its connection is looked at, even where its answer waits for a table.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.tables.persist import TableFile, durable
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields

H = TypeVar("H", bound=msgspec.Struct)
Response = RemotingCommand | None
Handler = Callable[
    [Connection, RemotingCommand], RemotingCommand | Coroutine[Any, Any, Response] | None
]


class NoFields(msgspec.Struct):
    """The header of a request without one."""


class Call(NamedTuple, Generic[H]):
    """A request with its header, and the peer that it came from."""

    connection: Connection
    request: RemotingCommand
    header: H

    @property
    def remote_address(self) -> str:
        """The peer's `host:port`."""
        return self.connection.remote_address


class Answer(NamedTuple):
    """What a handler answers; the empty one says success and no more."""

    body: msgspec.Struct | bytes = b""
    header: msgspec.Struct | dict[str, str] | None = None
    remark: str | None = None
    code: int = ResponseCode.SUCCESS
    after: tuple[TableFile, ...] = ()  # tables that must be on the disk before it is sent

    def reply(self, request: RemotingCommand) -> RemotingCommand:
        """Return the command that answers a request."""
        body = self.body if isinstance(self.body, bytes) else encode_body(self.body)
        fields = self.header
        if isinstance(fields, msgspec.Struct):
            fields = encode_fields(fields)
        return request.reply(self.code, self.remark, fields, body)


UNANSWERED: Final = Answer()
"""Returned by a handler whose peer is to get no answer."""

# An answer; or a whole command, or a coroutine that makes one.
Result = Answer | RemotingCommand | Coroutine[Any, Any, Any]


def handles(
    code: int | tuple[int, ...], header: type[H]
) -> Callable[[Callable[[Any, Call[H]], Any]], Callable[[Any, Connection, RemotingCommand], Any]]:
    """Make a method of a `Handlers` class the handler of a code, whose header is decoded first."""

    def decorated(method: Callable[[Any, Call[H]], Any]) -> Callable[..., Any]:
        is_coroutine = inspect.iscoroutinefunction(method)

        @functools.wraps(method)
        def handler(self: Any, connection: Connection, request: RemotingCommand) -> Any:
            call = Call(connection, request, decode_fields(header, request.ext_fields))
            if is_coroutine:
                return _later(method, self, call)
            return _reply(request, method(self, call))

        vars(handler)["handled_codes"] = code if isinstance(code, tuple) else (code,)
        return handler

    return decorated


async def _later(method: Callable[[Any, Call[Any]], Any], owner: Any, call: Call[Any]) -> Response:
    result: Any = _reply(call.request, await method(owner, call))
    if inspect.iscoroutine(result):
        result = await result
    response: Response = result
    return response


def _reply(request: RemotingCommand, result: Result) -> Any:
    if not isinstance(result, Answer):
        return result
    if result is UNANSWERED:
        return None
    if any(table.pending for table in result.after):
        return _when_durable(request, result)
    return result.reply(request)


async def _when_durable(request: RemotingCommand, answer: Answer) -> RemotingCommand:
    await durable(*answer.after)
    return answer.reply(request)


class Handlers:
    """A class whose methods handle requests."""

    def handlers(self) -> dict[int, Handler]:
        """Return the handler of each code that this class answers."""
        return {
            code: getattr(self, name)
            for cls in type(self).__mro__
            for name, member in vars(cls).items()
            for code in getattr(member, "handled_codes", ())
        }


def refused(why: str, code: int = ResponseCode.SYSTEM_ERROR) -> RemoteProtocolError:
    """Return the error that answers a request with a code and a remark."""
    return RemoteProtocolError(code, why)
