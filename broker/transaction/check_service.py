"""Checks: asking producers how the transactions ended that are open for long (39, one-way).

There is a round every `transactionCheckInterval`, as long as a transaction is open. It walks over
the open half messages, a page at a time, and decides by `CheckRules`. What is asked about,
postponed or given up is stored again, a page as one batch; the questions are sent when that is
durable, and name the new places. Between two pages the loop turns; pages that are not in memory are
read off the loop.

    idle       nothing is open: no timer; woken by the first half message
    waiting    one timer, at the next multiple of the interval since the start
    round      a task; it ends at the first half message that is too young

A question goes to one live client of the producer group, each time to the next one. The answer is
an END_TRANSACTION like any other; an answer that never comes is a question in the next round. A
producer group without a client, or whose clients do not read what they are sent, is asked in a
later round, and that is not counted. The question to a client that leaves while the half message is
stored again is counted.

Source: apache/rocketmq@rocketmq-all-4.9.8
broker/.../transaction/TransactionalMessageCheckService.java,
broker/.../transaction/queue/TransactionalMessageServiceImpl.java (check,
isNeedDiscard, isNeedSkip),
broker/.../transaction/AbstractTransactionalMessageCheckListener.java (sendCheckMessage),
broker/.../client/ProducerManager.java (getAvailableChannel), Broker2Client.java
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from enum import Enum
from typing import Final, NamedTuple

from skylarkmq.broker.access.control import may_publish
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.delay.delayed_message import Parked, Place
from skylarkmq.broker.groups.memberships import Member
from skylarkmq.broker.groups.producer_manager import ProducerManager
from skylarkmq.broker.transaction.half_reader import Found
from skylarkmq.broker.transaction.ledger import End, TransactionLedger
from skylarkmq.broker.transaction.messages import (
    GIVEN_UP_TOPIC,
    check_times_of,
    final_of,
    first_offset_of,
    given_up,
    group_of,
    immunity_ms_of,
    renewed,
    topic_of,
    unique_key_of,
)
from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.flags import MAX_ECHO_SIZE
from skylarkmq.protocol.headers.fields import encode_fields
from skylarkmq.protocol.headers.send import CheckTransactionStateRequestHeader
from skylarkmq.protocol.message_id import offset_message_id
from skylarkmq.protocol.properties import MAX_PROPERTIES_SIZE
from skylarkmq.protocol.record import encode_record
from skylarkmq.store.results import STORED, MessageInner, PutMessageResult

log = logging.getLogger(__name__)

_HOUR_MS: Final = 3_600_000


class Step(Enum):
    """What comes next."""

    STOP = "stop"
    ASK = "ask"
    POSTPONE = "postpone"
    GIVE_UP = "give up"


class CheckRules(NamedTuple):
    """The limits of checks: what a round does with a half message that is still open.

        asked `transactionCheckMax` times, or born over `fileReservedTime` hours ago  GIVE_UP
        younger than `transactionTimeOut`                                             STOP
        younger than its CHECK_IMMUNITY_TIME_IN_SECONDS                               POSTPONE
        else                                                                          ASK

    STOP ends the round, because what follows is younger still. A round also ends where its queue
    ended when it began, which no step of the wall clock moves. Ages count from the born time, which
    is the producer's clock; a message from the future is asked about at once, and so is one with
    an immunity time whose clock is ahead by more than `fileReservedTime`.

    ASK without a client of the producer group to ask is not counted and stores nothing. Such a
    message is given up before its log file expires: when it was stored, by the broker's own clock,
    nine tenths of `fileReservedTime` ago.

    Unlike RocketMQ, which counts questions that reached no client: a producer that was away for a
    quarter of an hour finds its transactions given up there. Nor does its born time alone give a
    message up before a client was asked (a producer's clock may be days behind), nor is one that is
    postponed counted.
    """

    timeout_ms: int
    check_max: int
    reserved_ms: int

    @classmethod
    def of(cls, config: BrokerConfig) -> CheckRules:
        """Return the limits that a configuration sets."""
        return cls(
            config.transaction_time_out,
            config.transaction_check_max,
            config.store.file_reserved_time * _HOUR_MS,
        )

    def step(self, half: Parked, now_ms: int) -> Step:
        """Return what to do with an open half message."""
        times = check_times_of(half)
        age_ms = now_ms - half.born_timestamp
        if times >= self.check_max or (times and age_ms > self.reserved_ms):
            return Step.GIVE_UP
        immunity_ms = immunity_ms_of(half, self.timeout_ms)
        if immunity_ms is None:
            return Step.STOP if 0 <= age_ms < self.timeout_ms else Step.ASK
        is_immune = -self.reserved_ms < age_ms < min(immunity_ms, self.reserved_ms)
        return Step.POSTPONE if is_immune else Step.ASK

    def expires(self, half: Parked, now_ms: int) -> bool:
        """Return whether an open half message must leave its place, whose log file goes soon."""
        return now_ms - half.store_timestamp >= self.reserved_ms * 9 // 10


class Audience(NamedTuple):
    """The clients that could be asked."""

    writable: list[Member]
    is_congested: bool  # there are clients, and all leave what they were sent unread


def question(half: Parked, place: Place) -> RemotingCommand:
    """Return the request: the half message under its real topic and queue, and where it is.

    Raises:
        ValueError: the half message names no target.
    """
    target = final_of(half, 0)
    unique_key = unique_key_of(half)
    body = encode_record(
        queue_id=target.queue_id,
        flag=half.flag,
        queue_offset=place.queue_offset,
        physical_offset=place.physical_offset,
        sys_flag=half.sys_flag,
        born_timestamp=half.born_timestamp,
        born_host=half.born_host,
        store_timestamp=half.store_timestamp,
        store_host=half.store_host,
        reconsume_times=half.reconsume_times,
        prepared_transaction_offset=0,
        body=half.body,
        topic=target.topic.encode("ascii"),
        properties=half.properties,
    )
    header = CheckTransactionStateRequestHeader(
        tran_state_table_offset=place.queue_offset,
        commit_log_offset=place.physical_offset,
        msg_id=unique_key,
        transaction_id=unique_key,
        offset_msg_id=offset_message_id(half.store_host, place.physical_offset),
    )
    return RemotingCommand.request(
        RequestCode.CHECK_TRANSACTION_STATE, encode_fields(header), body, oneway=True
    )


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
        ledger: TransactionLedger,
        producers: ProducerManager,
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._producers = producers
        self._turns = itertools.count()  # a group's clients are asked in turn
        self._clock = clock
        self._rules = CheckRules.of(config)
        self._max_body_size = config.store.max_message_size
        self._interval_s = config.transaction_check_interval / 1000
        self._started_s = 0.0
        self._timer: TimerHandle | None = None
        self._round: asyncio.Task[None] | None = None
        self._running = False
        self._silent: Counter[str] = Counter()  # questions of this round without a client, by group
        self._told: frozenset[str] = frozenset()  # groups without a client in the last round
        self._given_up = 0  # in this round

    def start(self) -> None:
        """Check from now on, one interval from now first. The ledger has started."""
        self._running = True
        self._started_s = self._clock.monotonic()
        self._ledger.on_half = self._wake
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
        """True while a round is under way."""
        return self._round is not None

    def _wake(self) -> None:
        """Plan the next round, unless it is planned or nothing is open."""
        ledger = self._ledger
        if (
            self._running
            and self._timer is None
            and self._round is None
            and ledger.is_ready
            and ledger.pending_count
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
        ledger, table = self._ledger, self._ledger.table
        lost = ledger.skip_removed()
        if lost:
            log.error("%d open transactions were removed with their log files", lost)
        at, end, unreadable = table.start, ledger.halves.end, 0
        while self._running:
            page = ledger.open_page(at, end)
            if not page:
                break
            found = await ledger.halves.read(page)
            unreadable += sum(entry.message is None for entry in found)
            planned, stopped = self._plan(found)
            if not await self._carry_out(planned) or stopped:
                break
            at = page[-1].queue_offset + 1
            await asyncio.sleep(0)
        if unreadable:
            log.error("%d open transactions cannot be read now, and stay open", unreadable)
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

    def _plan(self, found: list[Found]) -> tuple[list[_Planned], bool]:
        """Return what to do with a page, and whether the round ends in it."""
        ledger, now_ms = self._ledger, self._clock.now_ms()
        planned: list[_Planned] = []
        audiences: dict[str, Audience] = {}  # a page may have one group with thousands of clients
        for place, half, _ in found:
            offset = place.queue_offset
            if half is None or ledger.table.is_ended(offset) or ledger.is_under_way(offset):
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
                    audiences[group] = self._audience(group)
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
                self._ledger.make_topic(GIVEN_UP_TOPIC)
            results = await self._ledger.end(ends)
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
            self._ledger.note_given_up(end.first_offset)
            self._given_up += 1
        elif entry.step is Step.POSTPONE:
            self._ledger.stats.postponed += 1
        elif end.follows is not None:
            half = entry.half._replace(properties=end.follows.properties)
            place = Place(result.physical_offset, 0, result.queue_offset)
            self._ask(entry, place, half)

    def _audience(self, group: str) -> Audience:
        """Return the clients of a producer group that can be asked now."""
        live = [client for client in self._producers.clients(group) if not client.closed]
        writable = [client for client in live if not client.paused_since_s]
        return Audience(writable, bool(live) and not writable)

    def _ask(self, entry: _Planned, place: Place, half: Parked) -> None:
        if entry.step is not Step.ASK:
            return
        writable, topic = entry.audience.writable, topic_of(half)
        for _ in writable:
            client = writable[next(self._turns) % len(writable)]
            if not client.closed and may_publish(client, topic):
                client.push(question(half, place))
                self._ledger.stats.asked += 1
                return
        self._note_nobody(group_of(half))

    def _note_nobody(self, group: str) -> None:
        self._ledger.stats.nobody += 1
        if group in self._silent or len(self._silent) < SILENT_MAX:
            self._silent[group] += 1
