"""Rounds of checks: every `transactionCheckInterval`, as long as a transaction is open.

A round walks over the open half messages, a page at a time, and decides by `check_rules.py`. What
is asked about, postponed or given up is stored anew, a page as one batch; the questions are sent
when that is durable, and name the new places. Between two pages the loop turns; pages that are not
in memory are read off the loop.

    idle       nothing is open: no timer; woken by the first half message
    waiting    one timer, at the next multiple of the interval since the start
    round      a task; it ends at the first half message that is too young

A producer group without a client, or whose clients do not read what they are sent, is asked in a
later round, and that is not counted. A client that leaves while the half message is stored anew is
the one whose question counts all the same.

Source: apache/rocketmq@rocketmq-all-4.9.8
broker/.../transaction/TransactionalMessageCheckService.java,
broker/.../transaction/queue/TransactionalMessageServiceImpl.java (check)
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Final, NamedTuple

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.delay.delayed_message import Parked, Place
from skylarkmq.broker.transaction.bridge import End, TransactionBridge
from skylarkmq.broker.transaction.check_listener import Audience, TransactionCheckListener
from skylarkmq.broker.transaction.check_rules import CheckRules, Step
from skylarkmq.broker.transaction.half_reader import PAGE_COUNT, Found
from skylarkmq.broker.transaction.messages import (
    GIVEN_UP_TOPIC,
    check_times_of,
    final_of,
    first_offset_of,
    given_up,
    group_of,
    renewed,
)
from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.protocol.flags import MAX_ECHO_SIZE
from skylarkmq.protocol.properties import MAX_PROPERTIES_SIZE
from skylarkmq.store.results import STORED, MessageInner, PutMessageResult

log = logging.getLogger(__name__)

SILENT_MAX: Final = 100


class _Planned(NamedTuple):
    """What is done with one half message; `end` is None when it is asked about where it is."""

    step: Step
    place: Place
    half: Parked
    end: End | None
    audience: Audience


class TransactionCheckService:
    """Checks the open transactions between `start` and `stop`. Loop thread."""

    def __init__(
        self,
        config: BrokerConfig,
        bridge: TransactionBridge,
        listener: TransactionCheckListener,
        clock: Clock,
    ) -> None:
        self._bridge = bridge
        self._listener = listener
        self._clock = clock
        self._rules = CheckRules.of(config)
        self._max_body_size = config.store.max_message_size
        self._interval_s = config.transaction_check_interval / 1000
        self._started_s = 0.0
        self._timer: TimerHandle | None = None
        self._round: asyncio.Task[None] | None = None
        self._running = False
        self._silent: Counter[str] = Counter()  # questions of this round that nobody took, by group
        self._told: frozenset[str] = frozenset()  # groups without a client in the last round
        self._given_up = 0  # in this round

    def start(self) -> None:
        """Check from now on, one interval from now first. The bridge has started."""
        self._running = True
        self._started_s = self._clock.monotonic()
        self._bridge.on_half = self._wake
        self._wake()

    async def stop(self) -> None:
        """Check no more; a page under way is finished. Call while the store still writes."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._round is not None:
            await self._round

    @property
    def is_checking(self) -> bool:
        """Whether a round is under way."""
        return self._round is not None

    def _wake(self) -> None:
        """Plan the next round, unless it is planned or nothing is open."""
        bridge = self._bridge
        if (
            self._running
            and self._timer is None
            and self._round is None
            and bridge.is_ready
            and bridge.pending_count
        ):
            passed = (self._clock.monotonic() - self._started_s) // self._interval_s
            when_s = self._started_s + (passed + 1) * self._interval_s
            self._timer = self._clock.call_at(when_s, self._due)

    def _due(self) -> None:
        self._timer = None
        self._round = asyncio.ensure_future(self._run_round())

    async def _run_round(self) -> None:
        try:
            await self._check_all()
        except Exception:
            log.exception("a round of transaction checks ended early")
        finally:
            self._round = None
            self._wake()

    # A round

    async def _check_all(self) -> None:
        bridge, table = self._bridge, self._bridge.table
        lost = bridge.skip_removed()
        if lost:
            log.error("%d open transactions were removed with their log files", lost)
        at, end, unreadable = table.start, bridge.halves.end, 0
        while self._running:
            page = self._page(at, end)
            if not page:
                break
            found = await bridge.halves.read(page)
            unreadable += sum(entry.message is None for entry in found)
            planned, stopped = self._plan(found)
            if not await self._carry_out(planned) or stopped:
                break
            at = page[-1].queue_offset + 1
            await asyncio.sleep(0)
        if unreadable:
            log.error("%d open transactions can not be read now, and stay open", unreadable)
        for group in self._silent.keys() - self._told:
            log.warning(
                "producer group %a has no client that could be asked about %d open transactions; "
                "they wait until one connects",
                group[:MAX_ECHO_SIZE],
                self._silent[group],
            )
        self._told = frozenset(self._silent)
        self._silent.clear()
        if self._given_up:
            log.warning(
                "%d transactions were given up without a verdict; their messages are in %s",
                self._given_up,
                GIVEN_UP_TOPIC,
            )
            self._given_up = 0

    def _page(self, at: int, end: int) -> list[Place]:
        bridge, offsets = self._bridge, list[int]()
        while len(offsets) < PAGE_COUNT and (at := bridge.table.next_pending(at, end)) < end:
            if not bridge.is_under_way(at):
                offsets.append(at)
            at += 1
        return bridge.halves.page_of(offsets)

    def _plan(self, found: list[Found]) -> tuple[list[_Planned], bool]:
        """What to do with a page, and whether the round ends in it."""
        bridge, now_ms = self._bridge, self._clock.now_ms()
        planned: list[_Planned] = []
        audiences: dict[str, Audience] = {}  # a page may have one group with thousands of clients
        for place, half, _ in found:
            offset = place.queue_offset
            if half is None or bridge.table.is_ended(offset) or bridge.is_under_way(offset):
                continue
            step = self._rules.step(half, now_ms)
            if step is Step.STOP:
                return planned, True
            entry = self._planned(step, place, half, audiences)
            if entry is not None:
                planned.append(entry)
        return planned, False

    def _planned(
        self, step: Step, place: Place, half: Parked, audiences: dict[str, Audience]
    ) -> _Planned | None:
        offset = place.queue_offset
        first = first_offset_of(half, offset)
        audience = Audience([], is_congested=False)
        if step is Step.ASK:
            try:
                final_of(half, 0)
            except ValueError as error:
                log.error("the transaction at %d is given up: %s", offset, error)
                step = Step.GIVE_UP
            else:
                group = group_of(half)
                if group not in audiences:
                    audiences[group] = self._listener.audience(group)
                audience = audiences[group]
                if audience.is_congested:
                    return None
                if not audience.writable:
                    self._note_nobody(group)
                    if not self._rules.expires(half, self._clock.now_ms()):
                        return None
                    step = Step.GIVE_UP
        follows: MessageInner
        if step is Step.GIVE_UP:
            follows = given_up(half)
        else:
            follows = renewed(half, first, check_times_of(half) + (step is Step.ASK))
        end: End | None = End(offset, first, follows, half.store_host)
        if (
            len(follows.properties) > MAX_PROPERTIES_SIZE or len(follows.body) > self._max_body_size
        ):  # another broker stored it, or one with other limits
            end = None
        return _Planned(step, place, half, end, audience)

    async def _carry_out(self, planned: list[_Planned]) -> bool:
        """Store and ask; False when the store does not take messages."""
        ends = [entry.end for entry in planned if entry.end is not None]
        results: list[PutMessageResult] = []
        if ends:
            if any(entry.step is Step.GIVE_UP for entry in planned):
                self._bridge.make_topic(GIVEN_UP_TOPIC)
            results = await self._bridge.end(ends)
        remaining = iter(results)
        for entry in planned:
            if entry.end is None:
                self._ask(entry, entry.place, entry.half)
                continue
            result = next(remaining)
            if result.status not in STORED:
                log.error(
                    "the transaction at %d stays as it is: %s %s",
                    entry.place.queue_offset,
                    result.status.value,
                    result.why,
                )
                return False
            self._done(entry, entry.end, result)
        return True

    def _done(self, entry: _Planned, end: End, result: PutMessageResult) -> None:
        if entry.step is Step.GIVE_UP:
            self._bridge.note_given_up(end.first_offset)
            self._given_up += 1
        elif entry.step is Step.POSTPONE:
            self._bridge.stats.postponed += 1
        elif end.follows is not None:
            half = entry.half._replace(properties=end.follows.properties)
            place = Place(result.physical_offset, 0, result.queue_offset)
            self._ask(entry, place, half)

    def _ask(self, entry: _Planned, place: Place, half: Parked) -> None:
        if entry.step is not Step.ASK:
            return
        if self._listener.ask(entry.audience, half, place):
            self._bridge.stats.asked += 1
        else:
            self._note_nobody(group_of(half))

    def _note_nobody(self, group: str) -> None:
        self._bridge.stats.nobody += 1
        if group in self._silent or len(self._silent) < SILENT_MAX:
            self._silent[group] += 1
