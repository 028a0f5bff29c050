"""The network seam with a scripted peer at its other end: no socket, no time.

    network = ScriptedNetwork()
    peer = network.listen("broker:10911")
    peer.on(RequestCode.HEART_BEAT, lambda request: request.reply(0))
    ...
    peer.script = [b"exact answer bytes", EOF]      # or: what each next request is answered with

What a peer says is delivered in a later turn of the loop, as a socket would. Each stream keeps the
bytes that the client wrote, one item a write, so that a test can count writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from enum import Enum

from skylarkmq.protocol.command import decode_command, encode_command
from skylarkmq.protocol.frame import FrameDecoder
from skylarkmq.protocol.remoting_command import RemotingCommand


class Close(Enum):
    """A step of a script: the peer closes the connection."""

    EOF = "eof"


EOF = Close.EOF
Answer = RemotingCommand | bytes | Close | None
Handler = Callable[[RemotingCommand], Answer | list[Answer]]


class ScriptedStream:
    """The client's end of a scripted connection; implements `Stream`."""

    local_ip = "192.0.2.1"
    unsent_size = 0

    def __init__(self, peer: ScriptedPeer, receiver: asyncio.Protocol) -> None:
        self.peer = peer
        self.receiver = receiver
        self.writes: list[bytes] = []
        self.requests: list[RemotingCommand] = []
        self.open = True
        self._decoder = FrameDecoder()
        self._taken_size = 0
        self.said_size = 0

    # Stream

    def write(self, data: bytes) -> None:
        assert self.open, "written to a closed stream"
        self.writes.append(data)
        limit = self.peer.cut_request_at
        if limit is not None:
            data = data[: max(0, limit - self._taken_size)]
        self._taken_size += len(data)
        if data:
            for frame in self._decoder.feed(data):
                self._take(decode_command(frame))
        if limit is not None and self._taken_size >= limit:
            self.lose(ConnectionResetError("cut inside a request"))

    def close(self) -> None:
        self.lose(None)

    def abort(self) -> None:
        self.lose(None)

    # The peer's hand

    def say(self, answer: Answer) -> None:
        """Deliver a command, raw bytes, or the end of the stream, in a later turn."""
        if isinstance(answer, Close):
            self.lose(None)
        elif answer is not None:
            data = answer if isinstance(answer, bytes) else encode_command(answer)
            limit = self.peer.cut_answer_at
            if limit is not None:
                data = data[: max(0, limit - self.said_size)]
            self.said_size += len(data)
            self._later(self._deliver, data)
            if limit is not None and self.said_size >= limit:
                self.lose(ConnectionResetError("cut inside an answer"))

    def lose(self, error: Exception | None) -> None:
        """End the stream, behind what was said before."""
        if self.open:
            self._later(self._end, error)

    def _later(self, what: Callable[..., None], argument: object) -> None:
        (self.peer.later or asyncio.get_running_loop().call_soon)(what, argument)

    def _take(self, request: RemotingCommand) -> None:
        self.requests.append(request)
        self.peer.requests.append(request)
        answers = self.peer.respond(request, self)
        for answer in answers if isinstance(answers, list) else [answers]:
            self.say(answer)

    def _deliver(self, data: bytes) -> None:
        if self.open and data:
            self.receiver.data_received(data)

    def _end(self, error: Exception | None) -> None:
        if self.open:
            self.open = False
            if self in self.peer.streams:
                self.peer.streams.remove(self)
            self.receiver.connection_lost(error)


class ScriptedPeer:
    """A peer at one address; the same for all connections to it."""

    def __init__(self, script: Iterable[Answer] = ()) -> None:
        self.script: list[Answer] = list(script)
        """Answers to the next requests, in order; they come before the handlers."""
        self.requests: list[RemotingCommand] = []
        self.streams: list[ScriptedStream] = []
        self.connect_error: OSError | None = None
        self.connect_count = 0
        self.silent = False
        """Take requests and answer none."""
        self.later: Callable[..., object] | None = None
        """How what the peer says comes over; by default in the next turn of the loop."""
        self.cut_request_at: int | None = None
        """Lose the connection when that many request bytes have come."""
        self.cut_answer_at: int | None = None
        self._handlers: dict[int, Handler] = {}

    def on(self, code: int, handler: Handler) -> None:
        """Answer requests of `code` with what the handler returns: one, several, or nothing."""
        self._handlers[code] = handler

    def respond(self, request: RemotingCommand, stream: ScriptedStream) -> Answer | list[Answer]:
        if self.silent:
            return None
        if self.script:
            return self.script.pop(0)
        handler = self._handlers.get(request.code)
        return None if handler is None else handler(request)

    def of_code(self, code: int) -> list[RemotingCommand]:
        """The requests of that code so far."""
        return [request for request in self.requests if request.code == code]

    def push(self, command: RemotingCommand) -> None:
        """Send a request of the peer's own over every open connection."""
        for stream in list(self.streams):
            stream.say(command)

    def lose_all(self) -> None:
        """Drop every connection."""
        for stream in list(self.streams):
            stream.lose(ConnectionResetError("reset by the test"))


class ScriptedNetwork:
    """Implements `Network`; addresses where nobody listens refuse."""

    def __init__(self) -> None:
        self._peers: dict[str, ScriptedPeer] = {}

    def listen(self, address: str, peer: ScriptedPeer | None = None) -> ScriptedPeer:
        peer = peer or ScriptedPeer()
        self._peers[address] = peer
        return peer

    async def connect(self, address: str, receiver: asyncio.Protocol) -> ScriptedStream:
        await asyncio.sleep(0)
        peer = self._peers.get(address)
        if peer is None:
            raise ConnectionRefusedError(f"nobody listens at {address}")
        peer.connect_count += 1
        if peer.connect_error is not None:
            raise peer.connect_error
        stream = ScriptedStream(peer, receiver)
        peer.streams.append(stream)
        return stream
