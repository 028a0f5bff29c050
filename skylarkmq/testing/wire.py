"""Faults between the broker and its clients: on the broker's side of each connection.

A rule names a request code and how often it counts. Requests are looked at as they come in; what is
answered to a marked one is looked for among the bytes that go out. Without a rule a connection does
one truth test more than a broker's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from skylarkmq.broker.net.checked import CheckedFrame
from skylarkmq.broker.net.connection import Connection, FrameHandler
from skylarkmq.broker.net.server import RemotingServer
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import RemotingCommand, decode_command
from skylarkmq.protocol.frame import BadFrameError, FrameDecoder, RawFrame, encode_frame

CLOSE_REASON: Final = "fault"
# Clients send by the code with short names; a rule for sends says SEND_MESSAGE.
_SAME: Final = {
    int(RequestCode.SEND_MESSAGE): frozenset(
        {int(RequestCode.SEND_MESSAGE), int(RequestCode.SEND_MESSAGE_V2)}
    )
}


class Kind(Enum):
    """What a rule does to a request."""

    DROP_REQUEST = "drop request"
    DROP_REPLY = "drop reply"
    DELAY_REPLY = "delay reply"
    FAIL = "fail"


@dataclass(eq=False)
class Rule:
    """One fault of requests of a code."""

    kind: Kind
    code: int
    remaining: int | None  # how often it still counts; None: until it is taken away
    delay_s: float = 0.0
    response_code: int = 0
    remark: str = ""
    hits: int = 0
    codes: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.codes = _SAME.get(self.code, frozenset({self.code}))

    def take(self, request: RemotingCommand) -> bool:
        """Return whether the rule counts for this request, which then is one of its number."""
        if request.code not in self.codes or self.remaining == 0:
            return False
        if request.is_oneway and self.kind in (Kind.DROP_REPLY, Kind.DELAY_REPLY):
            return False
        if self.remaining is not None:
            self.remaining -= 1
        self.hits += 1
        return True


class WireFaults:
    """The rules of a broker, and its connections. Loop thread, but for `rules`.

    Attributes:
        rules: replaced as a whole by any thread, never changed.
        refusing: whether each new connection is cut.
    """

    def __init__(self) -> None:
        self.rules: tuple[Rule, ...] = ()
        self.refusing = False
        self.connections: set[Connection] = set()

    def connect(self, handler: FrameHandler, server: RemotingServer, /) -> Connection:
        """Make what stands for a peer; a `ConnectionMaker`."""
        return _FaultyConnection(handler, server, self)

    def rule_for(self, request: RemotingCommand) -> Rule | None:
        """Return the first rule that counts for a request."""
        for rule in self.rules:
            if rule.take(request):
                return rule
        return None

    def close_all(self) -> None:
        """Cut every connection, with what was to be sent on it."""
        for connection in list(self.connections):
            connection.abort(CLOSE_REASON)


class _Sieve:
    """Stands before the broker's own handler."""

    def __init__(self, handler: FrameHandler, wire: WireFaults) -> None:
        self._handler = handler
        self._wire = wire

    def handle(self, connection: Connection, frames: list[RawFrame]) -> list[RawFrame]:
        if not self._wire.rules:
            return self._handler.handle(connection, frames)
        assert isinstance(connection, _FaultyConnection)
        judged = connection.take_read(frames)
        for index, frame in enumerate(frames):
            if judged or self._passes(connection, frame):
                waiting = self._handler.handle(connection, [frame])
                if waiting:
                    return waiting + frames[index + 1 :]
        return []

    def _passes(self, connection: _FaultyConnection, frame: RawFrame) -> bool:
        """Return whether the broker is to see a request; mark one whose answer is to be caught."""
        try:
            request = decode_command(frame)
        except BadFrameError:
            return True
        rule = None if request.is_response else self._wire.rule_for(request)
        if rule is None:
            return True
        if rule.kind is Kind.FAIL:
            connection.reply(request, request.reply(rule.response_code, rule.remark))
        elif rule.kind is not Kind.DROP_REQUEST:
            connection.marked[request.opaque] = rule
            return True
        return False


class _FaultyConnection(Connection):
    """A peer whose answers may be lost or late."""

    __slots__ = ("_read", "_wire", "marked")

    def __init__(self, handler: FrameHandler, server: RemotingServer, wire: WireFaults) -> None:
        super().__init__(_Sieve(handler, wire), server)
        self._wire = wire
        self.marked: dict[int, Rule] = {}  # requests by opaque, until they are answered
        self._read: list[RawFrame] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._wire.refusing:
            self.abort(CLOSE_REASON)
        else:
            self._wire.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wire.connections.discard(self)
        self.marked.clear()
        super().connection_lost(exc)

    def take_read(self, frames: list[RawFrame]) -> bool:
        """Return whether the rules have seen these frames: the broker may handle some again."""
        if all(any(_as_read(frame) is known for known in self._read) for frame in frames):
            return True
        self._read = frames
        return False

    def send(self, data: bytes, *, at_once: bool = False) -> None:
        if self.marked:
            data = self._sifted(data, super().send)
        if data:
            super().send(data, at_once=at_once)

    def _sifted(self, data: bytes, send: Callable[[bytes], None]) -> bytes:
        """Return what is left of whole frames once marked answers are out of them."""
        kept: list[bytes] = []
        for frame in FrameDecoder().feed(data):
            whole = encode_frame(frame.serialize_type, frame.header, frame.body)
            command = decode_command(frame)
            rule = self.marked.pop(command.opaque, None) if command.is_response else None
            if rule is None:
                kept.append(whole)
            elif rule.kind is Kind.DELAY_REPLY:
                clock = self._clock  # of peers: real seconds
                clock.call_at(clock.monotonic() + rule.delay_s, send, whole)
        return b"".join(kept)


def _as_read(frame: RawFrame) -> RawFrame:
    return frame.original if isinstance(frame, CheckedFrame) else frame
