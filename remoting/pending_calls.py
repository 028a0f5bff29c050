"""Requests of this side that wait for a peer's answers, each with its deadline.

Every waiter ends exactly once: answered, timed out, or failed when the connection closes. One timer
per connection stands at the earliest deadline, so a deadline costs nothing until it passes. An
answer that comes too late finds no waiter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Final, Protocol

from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.errors import RequestTimeout, RocketMQError
from skylarkmq.remoting.send_answer import StoredAnswer, as_command

OPAQUE_MAX: Final = 0x7FFFFFFF


def opaques() -> Iterator[int]:
    """Yield 1 to OPAQUE_MAX over and over, without a step in Python."""
    return chain.from_iterable(repeat(range(1, OPAQUE_MAX + 1)))


class Waiter(Protocol):
    """Waits for the answer to one request; exactly one of these is called, once."""

    @property
    def deadline_s(self) -> float:
        """When to give up, on the clock's monotonic time; then it fails with RequestTimeout."""
        ...

    def answered(self, answer: RemotingCommand) -> None:
        """The answer is there, whatever its code."""
        ...

    def stored(self, answer: StoredAnswer) -> None:
        """The answer is there, and it has the fields of an answer to a send."""
        ...

    def failed(self, error: RocketMQError) -> None:
        """There will be no answer."""
        ...


class FutureWaiter:
    """A waiter for a coroutine."""

    __slots__ = ("deadline_s", "future")

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()

    def answered(self, answer: RemotingCommand) -> None:
        if not self.future.done():
            self.future.set_result(answer)

    def stored(self, answer: StoredAnswer) -> None:
        self.answered(as_command(answer))

    def failed(self, error: RocketMQError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class PendingCalls:
    """What a connection asked its peer and has no answer to; a connection derives from it.

    Loop thread. It is a base class and not a part: a part would cost a request one call more.
    """

    __slots__ = ("_clock", "_pending", "_timer", "_timer_s", "take_opaque")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.take_opaque: Final[Callable[[], int]] = opaques().__next__
        """Return an opaque that no request under way to this peer uses."""
        self._pending: dict[int, Waiter] = {}
        self._timer: TimerHandle | None = None
        self._timer_s = 0.0

    @property
    def pending_count(self) -> int:
        """Requests under way."""
        return len(self._pending)

    def expect(self, opaque: int, waiter: Waiter) -> None:
        """Let `waiter` hear the answer to a request that leaves now."""
        self._pending[opaque] = waiter
        deadline_s = waiter.deadline_s
        if self._timer is None or deadline_s < self._timer_s:
            self._arm(deadline_s)

    def expect_by(self, deadline_s: float) -> None:
        """Take note that the deadline of a request under way is `deadline_s` now."""
        if self._timer is not None and deadline_s < self._timer_s:
            self._arm(deadline_s)

    def answered(self, answer: RemotingCommand) -> bool:
        """Give an answer to its waiter; False when none waits for it any more."""
        waiter = self._pending.pop(answer.opaque, None)
        if waiter is None:
            return False
        waiter.answered(answer)
        return True

    def forget(self, opaque: int) -> None:
        """Stop waiting for that answer; its waiter hears nothing any more."""
        self._pending.pop(opaque, None)

    def fail_calls(self, error: RocketMQError) -> None:
        """End every call, because the peer is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = self._pending, {}
        for waiter in pending.values():
            waiter.failed(error)

    def late_error(self) -> RequestTimeout:
        """Return the error of a request whose deadline has passed."""
        return RequestTimeout("no answer in time")

    def _arm(self, deadline_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = deadline_s
        self._timer = self._clock.call_at(deadline_s, self._expire)

    def _expire(self) -> bool:
        """Fail the waiters whose deadline has passed; return whether there was one."""
        self._timer = None
        now_s = self._clock.monotonic()
        due = [opaque for opaque, waiter in self._pending.items() if waiter.deadline_s <= now_s]
        for opaque in due:
            waiter = self._pending.pop(opaque, None)  # the one before may have forgotten it
            if waiter is not None:
                waiter.failed(self.late_error())
        if self._pending and self._timer is None:
            self._arm(min(waiter.deadline_s for waiter in self._pending.values()))
        return bool(due)
