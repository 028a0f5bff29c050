"""Requests of the broker to a client or a name server that wait for the peer's answers.

Each has its deadline; their number is bounded. An answer that comes too late is dropped.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Final

from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.protocol.command import RemotingCommand, encode_command

CALLS_MAX: Final = 1024
_OPAQUE_MASK: Final = 0x7FFFFFFF
_opaques = itertools.count(1)


class ConnectionClosedError(ConnectionError):
    """The peer went away before it answered."""


def next_opaque() -> int:
    """Return a number for a request of ours; no other request has it, on any connection."""
    return next(_opaques) & _OPAQUE_MASK


class PendingCalls:
    """The requests to one peer that it has not answered. Loop thread."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: dict[int, asyncio.Future[RemotingCommand]] = {}

    async def call(
        self,
        command: RemotingCommand,
        timeout_s: float,
        send: Callable[[bytes], None],
        clock: Clock,
        peer: str,
    ) -> RemotingCommand:
        """Send a request and wait for its answer.

        Raises:
            TimeoutError: no answer within `timeout_s`.
            ConnectionClosedError: the peer is gone, or has too many requests of ours unanswered.
        """
        futures = self._futures
        if len(futures) >= CALLS_MAX:
            raise ConnectionClosedError(f"{peer} leaves {CALLS_MAX} requests unanswered")
        opaque = command.opaque = next_opaque()
        future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        futures[opaque] = future
        timer = _deadline(future, timeout_s, clock, peer)
        try:
            send(encode_command(command))
            return await future
        finally:
            timer.cancel()
            futures.pop(opaque, None)

    def answered(self, response: RemotingCommand) -> None:
        """Match the peer's answer with a call."""
        future = self._futures.get(response.opaque)
        if future is not None and not future.done():
            future.set_result(response)

    def fail(self, why: str) -> None:
        """End every call, because the peer is gone."""
        for future in self._futures.values():
            if not future.done():
                future.set_exception(ConnectionClosedError(why))
        self._futures.clear()


def _deadline(
    future: asyncio.Future[RemotingCommand], timeout_s: float, clock: Clock, peer: str
) -> TimerHandle:
    def expire() -> None:
        if not future.done():
            future.set_exception(TimeoutError(f"{peer} did not answer in {timeout_s:g} s"))

    return clock.call_at(clock.monotonic() + timeout_s, expire)
