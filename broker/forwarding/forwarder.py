"""Forwards calls, as they came, to the endpoint of another broker.

There the client is as one that is connected: the same id, account, deadline and address.

    metadata               what the client says of itself (x-mq-*), and proves itself by
    x-skylarkmq-client     host:port of the client; a call that has it was forwarded, and is handled
                           where it arrives, so no two brokers hand it to each other for ever
    x-skylarkmq-proof      where access control is on, that a broker says so (`forwarded.py`)
    deadline               MARGIN_S before the client's, which so hears why there is no answer

What fails on the way becomes the status of an answer; an error of gRPC's own would be trouble of
the connection to this endpoint, which has none:

    there is no answer in time      PROXY_TIMEOUT
    the other endpoint is full      TOO_MANY_REQUESTS
    it has no such call             NOT_IMPLEMENTED
    all else                        INTERNAL_SERVER_ERROR; clients try again
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

from google.protobuf.message import DecodeError, Message

from skylarkmq.broker.access.accounts import DENY_ALL, AccessRules, Account
from skylarkmq.broker.access.files import RulesUser
from skylarkmq.broker.access.forwarded import CLIENT, PROOF, proof_of
from skylarkmq.broker.forwarding.grpc_client import UpstreamError, UpstreamStream
from skylarkmq.broker.forwarding.upstream import Upstreams
from skylarkmq.broker.grpc.calls import Call, Rpc, RpcRefused
from skylarkmq.broker.grpc.other_brokers import OtherBroker
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.http2.grpc import GrpcStatus
from skylarkmq.protocol.v5.codes import Code

MARGIN_S: Final = 0.1
"""An answer has this time for its way back to the client."""
LIMIT_S: Final = 60.0
"""For a call whose client does not say how long it waits."""
_CODES: Final[dict[GrpcStatus, Code]] = {
    GrpcStatus.DEADLINE_EXCEEDED: Code.PROXY_TIMEOUT,
    GrpcStatus.RESOURCE_EXHAUSTED: Code.TOO_MANY_REQUESTS,
    GrpcStatus.UNIMPLEMENTED: Code.NOT_IMPLEMENTED,
}


class NotForwarded(RpcRefused):
    """A call that another broker gave no answer to.

    Attributes:
        reached: False: it surely did not arrive there.
    """

    def __init__(self, code: int, message: str, *, reached: bool) -> None:
        super().__init__(code, message)
        self.reached = reached


def is_forwarded(call: Call) -> bool:
    """Return whether another broker has forwarded a call, so that it is handled here."""
    return CLIENT in call.metadata


class Forwarder:
    """Forwards calls. Loop thread.

    Attributes:
        answered: calls by the other broker's name and status code.
    """

    def __init__(
        self,
        upstreams: Upstreams,
        clock: Clock,
        own_address: str,
        access: RulesUser | None = None,
    ) -> None:
        """Forward through connections to other endpoints.

        Args:
            clock: of peers, on which deadlines are told.
            own_address: `host:port` of this endpoint, to which nothing is forwarded.
            access: has the account of an admin, which proves clients' addresses; None: access
                control is off.
        """
        self.answered: Counter[tuple[str, int]] = Counter()
        self._upstreams = upstreams
        self._clock = clock
        self._own_address = own_address
        self._access = access
        self._rules: AccessRules = DENY_ALL
        self._admin: Account | None = None  # of these rules
        self._polls: set[asyncio.Task[Any]] = set()

    async def unary(self, rpc: Rpc, to: OtherBroker, call: Call, request: Message) -> Any:
        """Forward a call, and return the answer, whatever its status.

        Raises:
            NotForwarded: there is none.
        """
        self._check(to)
        timeout_s, data = self._timeout_s(call), request.SerializeToString()
        try:
            answered = await self._upstreams.unary(
                to.address, rpc.path, self.metadata(call), data, timeout_s
            )
            answer: Any = rpc.response.FromString(answered)
        except (UpstreamError, DecodeError) as error:
            raise self._failed(to, error) from error
        self.count(to, answer.status.code)
        return answer

    @asynccontextmanager
    async def stream(
        self, rpc: Rpc, to: OtherBroker, call: Call, *, has_limit: bool = True
    ) -> AsyncGenerator[UpstreamStream]:
        """Forward a call with many messages; leaving it resets what is open.

        Who reads the answer counts it by its status.

        Args:
            has_limit: it ends in time for the client's deadline.

        Raises:
            NotForwarded: it did not end well; also out of what is done with the stream.
        """
        self._check(to)
        timeout_s = self._timeout_s(call) if has_limit else None
        try:
            async with self._upstreams.stream(
                to.address, rpc.path, self.metadata(call), timeout_s
            ) as stream:
                yield stream
        except (UpstreamError, DecodeError) as error:
            raise self._failed(to, error) from error

    async def polled(self, stream: UpstreamStream) -> bytes | None:
        """Return the first message of an answer that a client may wait long for.

        Raises:
            RpcRefused: MESSAGE_NOT_FOUND; `end_polls` was called.
        """
        task = asyncio.current_task()
        assert task is not None
        self._polls.add(task)
        try:
            return await stream.read()
        except asyncio.CancelledError:
            if task in self._polls or task.uncancel():  # by its client
                raise
            why = "no message before this endpoint stopped"
            raise RpcRefused(Code.MESSAGE_NOT_FOUND, why) from None
        finally:
            self._polls.discard(task)

    def end_polls(self) -> None:
        """End the calls that wait for the first message of an answer; this endpoint stops."""
        polls, self._polls = self._polls, set()
        for task in polls:
            task.cancel()

    def count(self, to: OtherBroker, code: int) -> None:
        """Count a call that another broker has answered."""
        self.answered[to.name, code] += 1

    def metadata(self, call: Call) -> dict[str, str]:
        """Return the metadata of a call that is forwarded."""
        metadata = {
            name: value
            for name, value in call.metadata.items()
            if name.startswith("x-mq-") or name == "authorization"
        }
        metadata[CLIENT] = call.peer
        if self._access is not None:
            if self._access.rules is not self._rules:
                self._rules = self._access.rules
                self._admin = self._rules.admin()
            if self._admin is not None:
                metadata[PROOF] = proof_of(self._admin, call.peer, metadata)
        return metadata

    def _check(self, to: OtherBroker) -> None:
        """Refuse to forward a call to this endpoint itself: its broker does not lead any more.

        Raises:
            NotForwarded: it is the one.
        """
        if to.address == self._own_address:
            why = f"another replica of broker {to.name} is about to lead; try again"
            raise NotForwarded(Code.INTERNAL_SERVER_ERROR, why, reached=False)

    def _timeout_s(self, call: Call) -> float:
        """Return how long the other broker has.

        Raises:
            NotForwarded: no time is left.
        """
        if call.deadline_s is None:
            return LIMIT_S
        left_s = call.deadline_s - self._clock.monotonic() - MARGIN_S
        if left_s <= 0:
            why = "the deadline of the call is over, or too soon for another broker's answer"
            raise NotForwarded(Code.PROXY_TIMEOUT, why, reached=False)
        return left_s

    def _failed(self, to: OtherBroker, error: UpstreamError | DecodeError) -> NotForwarded:
        code, reached = Code.INTERNAL_SERVER_ERROR, True
        if isinstance(error, UpstreamError):
            code, reached = _CODES.get(error.status, code), error.reached
        self.count(to, code)
        why = f"broker {to.name} at {to.address} gave no answer: {error}"
        return NotForwarded(code, why, reached=reached)
