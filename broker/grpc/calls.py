"""One call of the gRPC service: who makes it, how a method becomes its handler, how it fails.

A handler knows no transport. It is a method of an `RpcHandlers` class:

    unary       async def query_route(self, call, request) -> QueryRouteResponse
    receive     async def receive_message(self, call, request, send) -> None
                `send` takes a message of the answer, and returns when there is room for another
    telemetry   async def telemetry(self, call, stream) -> None
                the client is told that the stream is over when it returns

The task of a call is cancelled when its client cancels it, or has gone, or its deadline is over.

What a handler raises becomes a status in the call's own answer:

    RpcRefused              its code and message
    RemoteProtocolError     the code that belongs to its response code; its remark
    anything else           INTERNAL_SERVER_ERROR, and a line with a traceback in the log

Source: apache/rocketmq@rocketmq-all-5.3.3 proxy/.../grpc/v2/GrpcMessagingApplication.java,
proxy/.../grpc/v2/common/ResponseBuilder.java
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from google.protobuf.message import Message

from skylarkmq.broker.access.accounts import Account
from skylarkmq.broker.access.control import AccessDenied
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code, status_code

log = logging.getLogger(__name__)

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
MESSAGE_MAX: Final = 1024
"""Characters of a status message: it may echo what the client has sent."""
NO_LITE_TOPICS: Final = (
    "lite topics, of RocketMQ 5.5, are not built here: use an ordinary topic, with message groups "
    "where order counts"
)
NO_PULLS: Final = "it is not built here: consumers receive by ReceiveMessage, or pull over remoting"
NOT_BUILT: Final = {
    f"/{SERVICE}/SyncLiteSubscription": NO_LITE_TOPICS,
    **{
        f"/{SERVICE}/{name}": NO_PULLS
        for name in ("PullMessage", "GetOffset", "QueryOffset", "UpdateOffset")
    },
}
"""Calls of the service that are refused, and what to do instead."""
RECEIVE: Final = "ReceiveMessage"
TELEMETRY: Final = "Telemetry"


@dataclass(slots=True, eq=False)
class Call:
    """One call under way, and who makes it. Loop thread.

    Attributes:
        client_id: which process of the client, as it says; never empty.
        language: as it says, in upper case: JAVA, PYTHON, ...; OTHER when it says nothing.
        version: of the client's library, as it says.
        namespace: as it says; may be empty.
        peer: `host:port` of the client.
        account: whose call it is; None when access control is off, or the address is let in.
        deadline_s: when the client stops waiting, on the clock of peers; None: it does not say.
        metadata: as it was sent, names in lower case.
        source: `host:port` whose shares and limits count: `peer`, or where another endpoint says
            that without a proof, that endpoint.
    """

    client_id: str
    language: str = "OTHER"
    version: str = ""
    namespace: str = ""
    peer: str = ""
    account: Account | None = None
    deadline_s: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    source: str = ""

    def __post_init__(self) -> None:
        self.source = self.source or self.peer


class RpcRefused(Exception):
    """A call that is answered with a code other than OK.

    Attributes:
        code: of `protocol.v5.codes.Code`.
        message: the cause, and after a semicolon or colon the cure.
        ends_stream: the stream ends with gRPC's INVALID_ARGUMENT, as clients expect it of settings
            that cannot be used.
    """

    def __init__(self, code: int, message: str, *, ends_stream: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.ends_stream = ends_stream


class TelemetryStream(Protocol):
    """Both directions of a telemetry call. Loop thread."""

    async def read(self) -> schema_pb2.TelemetryCommand | None:
        """Return the client's next command; None when it sends no more."""
        ...

    async def write(self, command: schema_pb2.TelemetryCommand) -> None:
        """Send a command; returns when there is room for another."""
        ...


Send = Callable[[schema_pb2.ReceiveMessageResponse], Awaitable[None]]
"""Sends a message of the answer to a receive."""
Handler = Callable[..., Awaitable[Any]]
H = TypeVar("H", bound=Handler)


class Rpc(NamedTuple):
    """A handler with what it reads and writes.

    `needs_task` is False for one that has no task until it waits for anything but an `Outcome`.
    """

    name: str
    request: type[Message]
    response: type[Message]
    handler: Handler
    needs_task: bool = True

    @property
    def path(self) -> str:
        """How a request names it."""
        return f"/{SERVICE}/{self.name}"

    def answer(self, status: schema_pb2.Status) -> Message:
        """Return the answer that says no more than a status."""
        return self.response(status=status)


def rpc(
    name: str, request: type[Message], response: type[Message], *, needs_task: bool = True
) -> Callable[[H], H]:
    """Make a method of an `RpcHandlers` class the handler of a call.

    Args:
        name: of the call in the service.
        request: what the client sends, for Telemetry many of them.
        response: what it gets; for ReceiveMessage and Telemetry many of them.
        needs_task: False for one that is answered by `Outcome`s, and asks for no task (limits of
            time do): it begins in the read that brings it, which takes less.
    """

    def decorated(method: H) -> H:
        vars(method)["answered_rpc"] = (name, request, response, needs_task)
        return method

    return decorated


class RpcHandlers:
    """A class whose methods handle calls."""

    def rpcs(self) -> list[Rpc]:
        """Return what this class answers."""
        found: list[Rpc] = []
        for cls in type(self).__mro__:
            for attribute, member in vars(cls).items():
                if hasattr(member, "answered_rpc"):
                    name, request, response, needs_task = member.answered_rpc
                    handler = getattr(self, attribute)
                    found.append(Rpc(name, request, response, handler, needs_task))
        return found


def rpc_table(classes: Iterable[RpcHandlers]) -> dict[str, Rpc]:
    """Return the handler of each call by its name, of several classes.

    Raises:
        ValueError: two handle the same.
    """
    table: dict[str, Rpc] = {}
    for owner in classes:
        for found in owner.rpcs():
            if table.setdefault(found.name, found) is not found:
                raise ValueError(f"{found.name} has two handlers")
    return table


def status(code: int, message: str = "") -> schema_pb2.Status:
    """Return a status; OK without a message says "OK", as clients show it."""
    if code == Code.OK and not message:
        message = "OK"
    return schema_pb2.Status(code=code, message=message[:MESSAGE_MAX])


OK: Final = status(Code.OK)
"""Copy it into an answer by naming it; do not change it."""


def common_status(statuses: Iterable[schema_pb2.Status]) -> schema_pb2.Status:
    """Return the status of an answer with entries: the code of all of them, of one at least."""
    first, *others = statuses
    if not others or all(other.code == first.code for other in others):
        return first
    return status(Code.MULTIPLE_RESULTS, "each entry has a status of its own")


def failure(error: Exception, name: str, call: Call) -> schema_pb2.Status:
    """Return the status for what a handler raised; an error of ours gets a line in the log."""
    if isinstance(error, RpcRefused):
        return status(error.code, error.message)
    if isinstance(error, AccessDenied):
        return status(Code.FORBIDDEN if error.is_known else Code.UNAUTHORIZED, error.remark)
    if isinstance(error, RemoteProtocolError):
        return status(status_code(error.response_code), error.remark)
    log.error("%s of %s at %s failed", name, ascii(call.client_id), call.peer, exc_info=error)
    return status(
        Code.INTERNAL_SERVER_ERROR,
        f"{name} failed inside the broker; its log says why, at this time",
    )
