"""A client's network on which some real brokers fall silent, and its clock, which does not wait.

    network = SilentNetwork({"127.0.0.1:10911"})
    client = Client(namesrv, network=network, clock=network.clock)

For the client a silent broker is what one is that SIGSTOP has stopped: connections to it are made,
what is written to them is taken, nothing comes back. The other brokers are reached over sockets. As
soon as nothing but answers of silent brokers is waited for, the clock goes on to the next timer: so
a time limit costs no time, and no answer of the others is ever late, on however busy a machine.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Collection

from skylarkmq.protocol.command import decode_command
from skylarkmq.protocol.frame import FrameDecoder
from skylarkmq.remoting.stream import AsyncioNetwork, Stream

QUIET_TURNS = 20
"""Turns of the loop in which nothing happened, before the clock goes on."""
LIMIT_S = 40.0
"""Of the clock: a request to a silent broker ends within it."""


class SkippingClock:
    """The system's clock, ahead of it by what was skipped; the time of day is the system's."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._order = itertools.count()

    def now_ms(self) -> int:
        return int(time.time() * 1000)

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead_s

    def call_at(self, when_s: float, callback: Callable[..., object], *args: object) -> _Timer:
        timer = _Timer(callback, args)
        heapq.heappush(self._timers, (when_s, next(self._order), timer))
        timer.handle = asyncio.get_running_loop().call_later(
            max(0.0, when_s - self.monotonic()), timer.run
        )
        return timer

    def skip(self) -> bool:
        """Go on to the next timer; False when there is none."""
        while self._timers and self._timers[0][2].is_over:
            heapq.heappop(self._timers)
        if not self._timers:
            return False
        self._ahead_s += max(0.0, self._timers[0][0] - self.monotonic())
        while self._timers and self._timers[0][0] <= self.monotonic():
            heapq.heappop(self._timers)[2].run()
        return True


class _Timer:
    def __init__(self, callback: Callable[..., object], args: tuple[object, ...]) -> None:
        self._callback = callback
        self._args = args
        self.is_over = False
        self.handle: asyncio.TimerHandle

    def run(self) -> None:
        if not self.is_over:
            self.cancel()
            self._callback(*self._args)

    def cancel(self) -> None:
        self.is_over = True
        self.handle.cancel()


class SilentNetwork:
    """Implements `Network`.

    Attributes:
        silent: addresses of which nothing comes.
        away: addresses at which nobody listens.
        clock: of the client.
    """

    def __init__(self, silent: Collection[str] = (), away: Collection[str] = ()) -> None:
        self.silent = silent
        self.away = away
        self.clock = SkippingClock()
        self._inner = AsyncioNetwork()
        self._awaited = 0  # answers and connections of the others
        self._unanswered: list[float] = []  # when silent brokers were asked
        self._changes = 0
        self._watching = False

    async def connect(self, address: str, receiver: asyncio.Protocol) -> Stream:
        if address in self.away:
            raise ConnectionRefusedError("connection refused")
        if address in self.silent:
            return _SilentStream(self, receiver)
        self._awaited += 1
        try:
            watched = _Watched(self, receiver)
            stream = await self._inner.connect(address, watched)
        finally:
            self._awaited -= 1
            self._changes += 1
        return watched.over(stream)

    def asked_silent(self) -> None:
        self._changes += 1
        self._unanswered.append(self.clock.monotonic())
        if not self._watching:
            self._watching = True
            self._look(self._changes, 0)

    def asked(self) -> None:
        self._changes += 1
        self._awaited += 1

    def answered(self, count: int = 1) -> None:
        self._changes += 1
        self._awaited -= count

    def _look(self, changes: int, quiet: int) -> None:
        """Let the clock go on once it has been quiet for some turns, until nobody is waited for."""
        if changes != self._changes or self._awaited:
            quiet = 0
        elif quiet >= QUIET_TURNS:
            now_s = self.clock.monotonic()
            self._unanswered = [each for each in self._unanswered if now_s - each < LIMIT_S]
            if not self._unanswered or not self.clock.skip():
                self._watching = False
                return
            quiet = 0
        asyncio.get_running_loop().call_soon(self._look, self._changes, quiet + 1)


class _SilentStream:
    local_ip = "127.0.0.1"
    unsent_size = 0

    def __init__(self, network: SilentNetwork, receiver: asyncio.Protocol) -> None:
        self._network = network
        self._receiver = receiver
        self._is_open = True

    def write(self, data: bytes) -> None:
        self._network.asked_silent()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            asyncio.get_running_loop().call_soon(self._receiver.connection_lost, None)

    abort = close


class _Watched(asyncio.Protocol):
    """A connection to a broker that answers: counts what it has not answered yet."""

    def __init__(self, network: SilentNetwork, receiver: asyncio.Protocol) -> None:
        self._network = network
        self._receiver = receiver
        self._asked, self._told = FrameDecoder(), FrameDecoder()
        self._awaited: set[int] = set()
        self.pause_writing = receiver.pause_writing  # type: ignore[method-assign]
        self.resume_writing = receiver.resume_writing  # type: ignore[method-assign]

    def over(self, stream: Stream) -> Stream:
        self._stream = stream
        self.close, self.abort = stream.close, stream.abort
        return self

    @property
    def local_ip(self) -> str:
        return self._stream.local_ip

    @property
    def unsent_size(self) -> int:
        return self._stream.unsent_size

    def write(self, data: bytes) -> None:
        for each in self._asked.feed(data):
            request = decode_command(each)
            if not request.is_oneway and not request.is_response:
                self._awaited.add(request.opaque)
                self._network.asked()
        self._stream.write(data)

    def data_received(self, data: bytes) -> None:
        for each in self._told.feed(data):
            answer = decode_command(each)
            if answer.is_response and answer.opaque in self._awaited:
                self._awaited.discard(answer.opaque)
                self._network.answered()
        self._receiver.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._network.answered(len(self._awaited))
        self._awaited.clear()
        self._receiver.connection_lost(exc)
