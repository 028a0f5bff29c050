"""What can be made to go wrong with a test's broker.

    broker.faults.drop_reply(RequestCode.SEND_MESSAGE)      # the next send is stored, and not told
    with broker.faults.disk_full():
        ...                                                 # sends are refused with code 14

Each call sets a fault and returns a handle: it ends with `heal`, at the end of its `with` block, or
with `clear`. Any thread may call; the fault is in force on return.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from typing import Self

from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.testing.disk import TestFiles
from skylarkmq.testing.wire import Kind, Rule, WireFaults


class Fault:
    """A fault that was set."""

    def __init__(self, heal: Callable[[], None], rule: Rule | None = None) -> None:
        self._heal: Callable[[], None] | None = heal
        self._rule = rule

    def heal(self) -> None:
        """End it; nothing happens when it has ended."""
        heal, self._heal = self._heal, None
        if heal is not None:
            heal()

    @property
    def hits(self) -> int:
        """How many requests it has struck so far; 0 for a fault that is not of requests."""
        return 0 if self._rule is None else self._rule.hits

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()


class Faults:
    """Sets faults of one broker.

    Codes are those of requests (`skylarkmq.protocol.codes.RequestCode`), to the broker or to its
    name server; SEND_MESSAGE stands for SEND_MESSAGE_V2 too.
    """

    def __init__(
        self,
        home: asyncio.AbstractEventLoop,
        wire: WireFaults,
        disk: Callable[[], TestFiles],
        judge_disk: Callable[[], None],
    ) -> None:
        """Take the broker's loop, which runs in this thread, and what to break.

        Args:
            disk: returns the files of the broker's present life.
            judge_disk: lets the broker see at once how full its disk is.
        """
        self._home = home
        self._wire = wire
        self._disk = disk
        self._judge_disk = judge_disk
        self._thread = threading.get_ident()
        self._set: list[Fault] = []

    def drop_reply(self, code: int, n: int | None = 1) -> Fault:
        """Carry out the next `n` requests of a code (None: all), and lose their answers."""
        return self._rule(Rule(Kind.DROP_REPLY, int(code), n))

    def drop_request(self, code: int, n: int | None = 1) -> Fault:
        """Lose the next `n` requests of a code (None: all); nothing is done, nothing answered."""
        return self._rule(Rule(Kind.DROP_REQUEST, int(code), n))

    def delay(self, code: int, seconds: float, n: int | None = None) -> Fault:
        """Carry out requests of a code, and answer them so many real seconds later."""
        return self._rule(Rule(Kind.DELAY_REPLY, int(code), n, delay_s=seconds))

    def fail(
        self,
        code: int,
        n: int | None = 1,
        response_code: int = ResponseCode.SYSTEM_ERROR,
        remark: str = "a fault that a test has set",
    ) -> Fault:
        """Refuse the next `n` requests of a code (None: all) with `response_code`."""
        rule = Rule(Kind.FAIL, int(code), n, response_code=int(response_code), remark=remark)
        return self._rule(rule)

    def disk_full(self) -> Fault:
        """Let the disk be full: messages are refused with code 14, what is stored can be read."""

        def set_full(full: bool) -> None:
            self._disk().is_full = full
            self._judge_disk()

        return self._switch(set_full)

    def pause_flush(self) -> Fault:
        """Let syncs of the log hang.

        With SYNC_FLUSH sends wait, and get FLUSH_DISK_TIMEOUT after the broker's syncFlushTimeout
        (5 s of its clock: `advance`). A hanging sync goes on by itself after a minute.
        """

        def set_paused(paused: bool) -> None:
            may_sync = self._disk().may_sync
            may_sync.clear() if paused else may_sync.set()

        return self._switch(set_paused)

    def disk_error(self) -> Fault:
        """Let the next sync of the log fail, which ends all writing until `restart`.

        Sends are refused with code 14; a healed disk changes nothing, as for a real broker.
        """

        def set_broken(broken: bool) -> None:
            self._disk().sync_error = errno.EIO if broken else None

        return self._switch(set_broken)

    def close_connections(self) -> None:
        """Cut every connection to broker and name server; clients may connect again at once."""
        self._at_home(self._wire.close_all)

    def refuse_connections(self) -> Fault:
        """Cut every connection, and each new one as soon as it is there."""

        def set_refusing(refusing: bool) -> None:
            self._wire.refusing = refusing
            if refusing:
                self._wire.close_all()

        return self._switch(set_refusing)

    def clear(self) -> None:
        """End every fault."""
        faults, self._set = self._set, []
        for fault in faults:
            fault.heal()

    def _rule(self, rule: Rule) -> Fault:
        if rule.remaining is not None and rule.remaining < 1:
            raise ValueError(f"n is 1 or more, or None for all, not {rule.remaining}")

        def set_rule(active: bool) -> None:
            others = (each for each in self._wire.rules if each is not rule)
            self._wire.rules = (*others, rule) if active else (*others,)

        return self._switch(set_rule, rule)

    def _switch(self, set_to: Callable[[bool], None], rule: Rule | None = None) -> Fault:
        self._at_home(lambda: set_to(True))
        fault = Fault(lambda: self._at_home(lambda: set_to(False)), rule)
        self._set.append(fault)
        return fault

    def _at_home(self, action: Callable[[], None]) -> None:
        """Act in the thread of the broker's loop, and return when it is done."""
        if threading.get_ident() == self._thread:
            action()
            return

        async def act() -> None:
            action()

        asyncio.run_coroutine_threadsafe(act(), self._home).result()
