"""The transactions of a store: what is open, and the one place where one is ended.

Every end is one store batch: what follows from it (the final message, the half message written
again, the copy of what is given up; nothing for a rollback), then the op message. So an op message
is never stored without what it stands for. A half message has at most one end under way; a verdict
that comes meanwhile waits for it, and finds the transaction ended, or the half message at its new
place.

Unlike RocketMQ, which publishes once more for every commit that comes: there a repeated verdict,
and a verdict for a place that a check has left meanwhile, show a message twice.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/EndTransactionProcessor.java,
broker/.../transaction/queue/TransactionalMessageBridge.java
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from skylarkmq.broker.base.waiting import put, result_of
from skylarkmq.broker.config.settings import READ_WRITE
from skylarkmq.broker.delay.delayed_message import Place
from skylarkmq.broker.groups.consumer_offset import NO_OFFSET, ConsumerOffsetManager
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.broker.transaction.half_keys import HalfKeys
from skylarkmq.broker.transaction.half_reader import PAGE_COUNT, HalfReader, Left, load_table
from skylarkmq.broker.transaction.half_table import HalfTable
from skylarkmq.broker.transaction.messages import HALF_TOPIC, OP_TOPIC, QUEUE_ID, op_of
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import CID_RMQ_SYS_TRANS_GROUP
from skylarkmq.remoting.waiting import sleep
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.results import STORED, MessageInner, PutMessageResult

log = logging.getLogger(__name__)

TOPIC_QUEUE_NUMS: Final = 1
GIVEN_UP_MAX: Final = 10_000
LOAD_RETRY_S: Final = 10.0
ARRIVALS_MAX: Final = 10_000


class TransactionStats:
    """Plain counters. Loop thread."""

    __slots__ = ("asked", "committed", "given_up", "nobody", "postponed", "refused", "rolled_back")

    def __init__(self) -> None:
        self.committed = 0
        self.rolled_back = 0
        self.given_up = 0  # moved to TRANS_CHECK_MAX_TIME_TOPIC
        self.asked = 0  # questions that were sent
        self.nobody = 0  # questions without a client of the group to send them to
        self.postponed = 0  # written again because its producer may not be asked yet
        self.refused = 0  # verdicts that name no open half message


class End(NamedTuple):
    """The end of a half message, as it is stored.

    Attributes:
        follows: what follows from it; None for a rollback.
        host: packed address, for the op message.
    """

    offset: int
    first_offset: int
    follows: MessageInner | None
    host: bytes


class TransactionLedger:
    """The half and op topics. Loop thread.

    Its size is one idea: whoever asks about a half message must see what is open, what is being
    ended and what has ended at one moment, so all of it changes here.

    Attributes:
        given_up: first offsets of the half messages that were given up lately. A verdict that
            comes after all is still taken for them.
        keys: where to look for those whose producers name no offsets.
        on_half: called when half messages have become visible.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicConfigManager,
        offsets: ConsumerOffsetManager,
        clock: Clock,
    ) -> None:
        self.table = HalfTable()
        self.keys = HalfKeys()
        self.stats = TransactionStats()
        self.halves = HalfReader(store, HALF_TOPIC)
        self.given_up: OrderedDict[int, None] = OrderedDict()
        self.on_half: Callable[[], None] = lambda: None
        self._ops = HalfReader(store, OP_TOPIC)
        self._store = store
        self._topics = topics
        self._clock = clock
        self._offsets = offsets
        offsets.sources.append(self._bring_offsets)
        self._under_way: dict[int, asyncio.Event] = {}
        self._arrivals: dict[int, asyncio.Event] = {}  # queue offsets of halves not visible yet
        self._ready = asyncio.Event()
        self._loading: asyncio.Task[None] | None = None
        self._listens = False

    # Life cycle

    def start(self) -> None:
        """Learn what is open. The store has started, the table of consumer offsets is loaded."""
        self._ready.clear()
        half, op = self._saved(HALF_TOPIC), self._saved(OP_TOPIC)
        self.table = HalfTable(half, op)
        self.keys = HalfKeys()
        if self._store_failed not in self._store.failure_listeners:  # it may have been stopped
            self._store.failure_listeners.append(self._store_failed)
        if self.halves.end:
            self.expect()
        if half < self.halves.end or op < self._ops.end:
            self._loading = asyncio.ensure_future(self._load(half, op))
        else:
            self._ready.set()

    async def stop(self) -> None:
        """Read no more. Where a start has to begin goes with the table of consumer offsets."""
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)

    def expect(self) -> None:
        """Prepare for half messages: some are there, or one is about to be stored."""
        if not self._listens:
            self._listens = True
            self.make_topic(HALF_TOPIC)
            self._store.add_arrival_listener(self._arrived, HALF_TOPIC)

    def make_topic(self, name: str) -> None:
        """Have one of the topics of transactions in the table, where RocketMQ looks for it."""
        try:
            self._topics.create_in_send_back(name, TOPIC_QUEUE_NUMS, READ_WRITE)
        except RemoteProtocolError as error:  # no room: its messages are stored nevertheless
            log.warning("%s", error.remark)

    async def _load(self, half: int, op: int) -> None:
        end = self.halves.end
        while True:
            try:
                left = await load_table(
                    self.table, self.keys, self.halves, self._ops, op_offset=op, end=end
                )
                for at in range(0, len(left), PAGE_COUNT):
                    await self._put_ops(left[at : at + PAGE_COUNT])
                break
            except Exception:
                log.exception("the ends of transactions cannot be read, trying again")
            await sleep(self._clock, LOAD_RETRY_S)
            self.table = HalfTable(half, op)
        self._ready.set()
        self._offsets.changed()
        self.on_half()

    async def _put_ops(self, left: list[Left]) -> None:
        """Store the op messages that a crash has kept from places that have ended."""
        now_ms = self._clock.now_ms()
        ops = [op_of(offset, host, now_ms) for offset, host in left]
        results = await result_of(put(self._store, ops))
        for (offset, _), result in zip(left, results, strict=True):
            if result.status in STORED:
                self.table.note_op(result.queue_offset, offset)

    def _store_failed(self, _: BaseException) -> None:
        arrivals, self._arrivals = self._arrivals, {}
        for event in arrivals.values():
            event.set()

    # How far both topics are done with: consumer offsets of CID_RMQ_SYS_TRANS. They are in
    # `consumerOffset.json` like any group's, where a broker that takes the store over finds them.
    # Too low an offset only costs a start some reading.

    def _saved(self, topic: str) -> int:
        """Return where a start begins to read."""
        store = self._store
        low, high = store.min_offset(topic, QUEUE_ID), store.max_offset(topic, QUEUE_ID)
        offset = self._offsets.query(CID_RMQ_SYS_TRANS_GROUP, topic, QUEUE_ID)
        return low if offset == NO_OFFSET else min(max(offset, low), high)

    def _bring_offsets(self) -> None:
        """Bring both offsets up to date: the table of consumer offsets is about to be taken."""
        if not self.is_ready:
            return
        op = self.table.op_start(self.halves.end, self._ops.end)
        for topic, offset in ((HALF_TOPIC, self.table.start), (OP_TOPIC, op)):
            if self._store.max_offset(topic, QUEUE_ID):  # it ever held a message
                self._offsets.keep("the broker", CID_RMQ_SYS_TRANS_GROUP, topic, QUEUE_ID, offset)

    # What is open

    @property
    def is_ready(self) -> bool:
        """True when it is known what is open."""
        return self._ready.is_set()

    @property
    def pending_count(self) -> int:
        """Half messages that have not ended; 0 at a slave, which does not follow their ends."""
        if self._store.follows:
            return 0
        return self.table.pending_count(self.halves.end)

    async def ready(self) -> None:
        """Return when it is known what is open."""
        await self._ready.wait()

    async def visible(self, offset: int) -> bool:
        """Return when the half message at a queue offset can be read; False: there is none.

        It was acknowledged before it was visible: WAIT=false, or the transient pool.
        """
        queue = self._store.queues.get(HALF_TOPIC, QUEUE_ID)
        if queue is None or not 0 <= offset < queue.next_offset:
            return False
        while offset >= queue.max_offset and self._store.failure is None:
            if len(self._arrivals) >= ARRIVALS_MAX and offset not in self._arrivals:
                why = "too many transactions wait for their half messages"
                raise RemoteProtocolError(ResponseCode.SYSTEM_BUSY, why)
            await self._arrivals.setdefault(offset, asyncio.Event()).wait()
        return offset < queue.max_offset

    async def place_of(self, offset: int, first_offset: int) -> int:
        """Return where a half message is now, when no end of it is under way."""
        while True:
            current = self.table.moved.get(first_offset, offset)
            under_way = self._under_way.get(current)
            if under_way is None:
                return current
            await under_way.wait()

    def open_page(self, at: int, end: int, *, with_ending: bool = False) -> list[Place]:
        """Return where the next open half messages are: a page at most.

        Args:
            at, end: queue offsets between which to look.
            with_ending: also those that are being ended.
        """
        offsets: list[int] = []
        while len(offsets) < PAGE_COUNT and (at := self.table.next_pending(at, end)) < end:
            if with_ending or not self.is_under_way(at):
                offsets.append(at)
            at += 1
        return self.halves.page_of(offsets)

    def is_under_way(self, offset: int) -> bool:
        """Return whether the half message is being ended."""
        return offset in self._under_way

    def _arrived(self, _topic: str, _queue_id: int, max_offset: int) -> None:
        if self._arrivals:
            for offset in [offset for offset in self._arrivals if offset < max_offset]:
                self._arrivals.pop(offset).set()
        self.on_half()

    # Ends

    async def end(self, ends: Sequence[End]) -> list[PutMessageResult]:
        """Store ends, all in one batch, and return the result of what follows from each.

        The caller has made sure that none of them is under way; they all are before this waits
        for the first time. What was refused is open as before.

        Raises:
            OSError: the disk has failed.
        """
        stored: asyncio.Future[list[PutMessageResult]] = asyncio.get_running_loop().create_future()
        now_ms = self._clock.now_ms()
        inners: list[MessageInner] = []
        for end in ends:
            if end.follows is not None:
                inners.append(end.follows)
            inners.append(op_of(end.offset, end.host, now_ms))
        for end in ends:
            self._under_way[end.offset] = asyncio.Event()
        try:
            self._store.put_messages(inners, partial(self._stored, ends, stored))
        except BaseException:
            for end in ends:
                self._settle(end)
            raise
        return await asyncio.shield(stored)

    def _stored(
        self,
        ends: Sequence[End],
        stored: asyncio.Future[list[PutMessageResult]],
        results: list[PutMessageResult],
    ) -> None:
        remaining, firsts = iter(results), list[PutMessageResult]()
        for end in ends:
            first = next(remaining)
            op = first if end.follows is None else next(remaining)
            if first.status in STORED:
                self._ended(end, first, op)
            firsts.append(first)
            self._settle(end)
        self._offsets.changed()
        if not stored.done():
            stored.set_result(firsts)

    def _ended(self, end: End, first: PutMessageResult, op: PutMessageResult) -> None:
        """Keep that a half message has ended.

        A full log file may have taken what follows and refused the op message. Then the offset of
        the half topic alone says that it has ended, once the table of offsets is written.
        """
        table = self.table
        table.end(end.offset)
        if end.follows is not None and end.follows.topic == HALF_TOPIC:
            table.move(end.first_offset, first.queue_offset)
        else:
            table.moved.pop(end.first_offset, None)
        if op.status in STORED:
            table.note_op(op.queue_offset, end.offset)

    def _settle(self, end: End) -> None:
        event = self._under_way.pop(end.offset, None)
        if event is not None:
            event.set()

    def note_given_up(self, first_offset: int) -> None:
        """Note that a half message was moved to TRANS_CHECK_MAX_TIME_TOPIC."""
        self.stats.given_up += 1
        self.given_up[first_offset] = None
        if len(self.given_up) > GIVEN_UP_MAX:
            self.given_up.popitem(last=False)

    def note_reopened(self, first_offset: int | None, offset: int) -> None:
        """Note that one that was given up is a half message again, at `offset`."""
        if first_offset is not None:
            self.given_up.pop(first_offset, None)
            self.table.move(first_offset, offset)

    def skip_removed(self) -> int:
        """Pass over half messages whose log files were removed; return how many were open."""
        begin = self.halves.begin
        if begin <= self.table.start:
            return 0
        lost = self.table.pending_count(begin)
        self.table.skip_to(begin)
        moved = self.table.moved
        for first in [first for first, offset in moved.items() if offset < begin]:
            del moved[first]
        self._offsets.changed()
        return lost
