"""Messages that leave the place where they were popped: to another try, or to the dead letters.

    not acknowledged in time   copy in `%RETRY%group_topic` (`%RETRY%group+topic` with
                               enableRetryTopicV2), reconsumeTimes one more
    after the last attempt     copy in `%DLQ%group`

First the copy is as durable as the flush mode makes it, then the original is done: a crash in
between repeats a message and loses none. Under ASYNC_FLUSH it is done when the log is synced; until
then the journal says where the copy lies, so that neither is lost, and none comes twice. A copy
that is refused is tried again every second, the original pins the group's offset meanwhile. Where
no topic of retries can be made, or the copy has no room to name its topic, the message comes again
in place. Copies are stored in batches, in
the order in which messages were handed over. A retry in a topic of type PRIORITY goes to the queue
of the same number, its priority; its topic gets as many queues as the other one has.

A copy keeps body, flags, properties, born data and store host. A retry gets 1ST_POP_TIME, and its
topic as RETRY_TOPIC; a dead letter RETRY_TOPIC, ORIGIN_MESSAGE_ID and the topic and id that it came
from (DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID).

Source: apache/rocketmq@rocketmq-all-5.3.3 broker/.../processor/PopReviveService.java (reviveRetry),
broker/.../processor/AbstractSendMessageProcessor.java (consumerSendMsgBack)
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from skylarkmq.broker.base.waiting import put, records, result_of, synced
from skylarkmq.broker.config.settings import READ_WRITE
from skylarkmq.broker.delay.delayed_message import NO_RECORD, Parked, ParkedReader, Place, copy_to
from skylarkmq.broker.pop.consumption import pop_retry_topic
from skylarkmq.broker.pop.deliveries import Delivery
from skylarkmq.broker.pop.handles import RETRY
from skylarkmq.broker.pop.in_flight import InFlight
from skylarkmq.broker.pop.registry import PopRegistry
from skylarkmq.broker.pop.states import MOVING
from skylarkmq.broker.requests.processor import Context
from skylarkmq.broker.tables.persist import durable
from skylarkmq.common.clock import TimerHandle
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import dlq_topic
from skylarkmq.protocol.headers.fields import INT_MAX
from skylarkmq.protocol.message_id import offset_message_id
from skylarkmq.protocol.properties import (
    MAX_PROPERTIES_SIZE,
    find_property,
    with_property,
    without_property,
)
from skylarkmq.protocol.record import HEAD
from skylarkmq.store.results import TAKEN, MessageInner, PutMessageResult, PutMessageStatus

log = logging.getLogger(__name__)

BATCH_MAX: Final = 128
"""Messages of one batch."""
BATCH_BYTES_MAX: Final = 4 << 20
RETRY_S: Final = 1.0

_FIRST_POP_TIME: Final = b"1ST_POP_TIME"
_DLQ_ORIGIN_TOPIC: Final = b"DLQ_ORIGIN_TOPIC"
_DLQ_ORIGIN_MESSAGE_ID: Final = b"DLQ_ORIGIN_MESSAGE_ID"
_RETRY_TOPIC: Final = names.RETRY_TOPIC.encode()
_ORIGIN_MESSAGE_ID: Final = names.ORIGIN_MESSAGE_ID.encode()
_UNIQ_KEY: Final = names.UNIQ_KEY.encode() + b"\x01"
_ILLEGAL: Final = frozenset(
    {PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED}
)

Callback = Callable[[bool], None]


class _Move(NamedTuple):
    delivery: Delivery
    callback: Callback | None
    target: str  # the topic of the copy

    @property
    def is_current(self) -> bool:
        """False when something else has ended it meanwhile."""
        return self.delivery.state is MOVING

    def answer(self, is_kept: bool) -> None:
        """Answer who waits for the outcome."""
        if self.callback is not None:
            self.callback(is_kept)


class Moves:
    """Copies what it is given, one batch at a time. Loop thread."""

    def __init__(
        self,
        context: Context,
        registry: PopRegistry,
        in_flight: InFlight,
        retries: int,
    ) -> None:
        """Begin with nothing to copy.

        Args:
            retries: the kind of the topics of retries that copies go to.
        """
        self._retries = retries
        self._store = context.store
        self._topics = context.topics
        self._clock = context.clock
        self._registry = registry
        self._in_flight = in_flight
        self._waiting: deque[_Move] = deque()
        self._task: asyncio.Task[None] | None = None
        self._timer: TimerHandle | None = None
        self._is_failing = False  # which was logged
        self._is_stopped = False
        self._syncs = context.store.config.flush_disk_type == "SYNC_FLUSH"
        self._leaving = 0  # batches that wait for the log's sync

    @property
    def count(self) -> int:
        """Messages that wait for their copies."""
        return len(self._waiting)

    def add(self, delivery: Delivery, callback: Callback | None = None) -> None:
        """Copy a message, which is in the state MOVING.

        Args:
            callback: called with whether a dead letter was stored, at the first attempt; None: it
                is tried until it succeeds.
        """
        assert delivery.state is MOVING, delivery.state.name
        group = delivery.queue.source.group.name
        target = dlq_topic(group)
        if not delivery.to_dead_letters:
            target = pop_retry_topic(group, delivery.topic, self._retries)
        move = _Move(delivery, callback, target)
        if self._is_stopped:  # `PopService.start` finds it
            move.answer(False)
            return
        self._waiting.append(move)
        self._begin()

    async def stop(self) -> None:
        """Copy no more; what waits is forgotten. What is under way ends."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for move in self._waiting:
            move.answer(False)
        self._waiting.clear()
        if self._task is not None:
            await self._task
        if self._leaving:
            with suppress(Exception):  # it was logged: what left stays in the journal
                await result_of(synced(self._store))

    def start(self) -> None:
        """Copy again, after `stop`."""
        self._is_stopped = False

    def _begin(self) -> None:
        if self._task is None and self._timer is None and not self._is_stopped:
            self._task = asyncio.get_running_loop().create_task(self._work())

    def _go_on(self) -> None:
        self._timer = None
        if self._waiting:
            self._begin()

    async def _work(self) -> None:
        try:
            while self._waiting and not self._is_stopped:
                moves = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
                try:
                    left = await self._move(moves)
                except Exception:
                    log.exception("messages could not be moved to a topic of retries")
                    left = moves
                    self._is_failing = True
                if left:
                    self._keep(left)
                    break
        finally:
            self._task = None

    def _keep(self, moves: list[_Move]) -> None:
        """Try again later, but not after `stop`, nor those whose caller wants to know now."""
        for move in moves:
            move.answer(False)
        if self._is_stopped:
            return
        self._waiting.extendleft(move for move in reversed(moves) if move.callback is None)
        if self._waiting:
            self._timer = self._clock.call_at(self._clock.monotonic() + RETRY_S, self._go_on)

    async def _move(self, moves: list[_Move]) -> list[_Move]:
        """Store the copies of messages, and return those that are to be tried again."""
        moves = await self._with_topics(moves)
        copies = await self._copies(moves)
        current: list[tuple[_Move, MessageInner]] = []
        for move, inner in copies:
            if move.is_current:
                current.append((move, inner))
            else:
                move.answer(False)
        left: list[_Move] = []
        while current:
            results = await result_of(put(self._store, [inner for _, inner in current]))
            kept = next(
                (at for at, result in enumerate(results) if result.status not in TAKEN),
                len(results),
            )
            self._stored([move for move, _ in current[:kept]], results)
            rest = current[kept:]
            if not rest:
                self._is_failing = False
                break
            why = results[kept]
            if why.status not in _ILLEGAL:
                self._log_refused(why)
                left += [move for move, _ in rest]
                break
            self._refused(rest[0][0], why)
            current = rest[1:]
        return left

    async def _with_topics(self, moves: list[_Move]) -> list[_Move]:
        """Make the topics of the copies; return the moves that have one."""
        found: list[_Move] = []
        is_fresh = False
        for move in moves:
            if not move.is_current:
                move.answer(False)
                continue
            target, delivery = move.target, move.delivery
            count = 1 if delivery.to_dead_letters else max(1, _levels(delivery))
            known = self._topics.get(target)
            if known is None:
                try:
                    self._topics.create_in_send_back(target, count, READ_WRITE)
                except RemoteProtocolError as error:
                    self._without_topic(move, error)
                    continue
                is_fresh = True
                log.info("topic %s made", target)
            elif known.write_queue_nums < count:
                grown = {"read_queue_nums": count, "write_queue_nums": count}
                self._topics.update(msgspec.structs.replace(known, **grown))
                is_fresh = True
            if not delivery.to_dead_letters:
                self._read_retries(delivery)
            found.append(move)
        if is_fresh:
            await durable(self._topics)
        return found

    def _read_retries(self, delivery: Delivery) -> None:
        """Have what is stored in a message's topic of retries read from now on."""
        group = delivery.queue.source.group.name
        consumption = self._registry.find(group, delivery.topic)
        if consumption is not None and self._retries not in consumption.retries:
            self._registry.extend(consumption)

    def _without_topic(self, move: _Move, error: RemoteProtocolError) -> None:
        if not self._is_failing:
            self._is_failing = True
            log.error("no topic %s: %s; messages come again in place", move.target, error.remark)
        move.answer(False)
        if move.callback is None:
            self._in_flight.retry_in_place(move.delivery)

    async def _copies(self, moves: list[_Move]) -> list[tuple[_Move, MessageInner]]:
        """Return the copies; a message that cannot be read is logged, and done."""
        cold = [
            move.delivery.physical_offset
            for move in moves
            if not self._store.is_in_memory(move.delivery.physical_offset)
        ]
        found: dict[int, bytes | None] = {}
        if cold:
            read = await result_of(records(self._store, cold))
            found = dict(zip(cold, read, strict=True))
        copies: list[tuple[_Move, MessageInner]] = []
        size = 0
        for number, move in enumerate(moves):
            delivery = move.delivery
            try:
                parked = self._read(delivery, found)
            except ValueError as error:
                log.error(
                    "message %d of queue %d of %s, at %d of the log, is lost to group %s: %s",
                    delivery.offset,
                    delivery.queue.queue_id,
                    delivery.queue.source.topic,
                    delivery.physical_offset,
                    delivery.queue.source.group.name,
                    error,
                )
                self._end(move)
                continue
            size += len(parked.body)
            if copies and size > BATCH_BYTES_MAX:
                self._waiting.extendleft(reversed(moves[number:]))
                break
            copy = self._copy(move, parked)
            if copy is not None:
                copies.append((move, copy))
            elif move.is_current:  # what was read may have taken a while
                self._in_flight.retry_in_place(delivery)
        return copies

    def _read(self, delivery: Delivery, found: dict[int, bytes | None]) -> Parked:
        source = delivery.queue.source
        reader = ParkedReader(self._store.commit_log, source.topic, delivery.queue.queue_id)
        at = delivery.physical_offset
        if at in found:
            record = found[at]
            return reader.parse(record, Place(at, len(record or b""), delivery.offset))
        located = self._store.commit_log.locate(at)
        if located is None or located[1] + HEAD.size > located[0].committed_position:
            raise ValueError(NO_RECORD)
        size, _ = HEAD.unpack_from(located[0].view, located[1])
        return reader.read(Place(at, size, delivery.offset))

    def _copy(self, move: _Move, parked: Parked) -> MessageInner | None:
        """Return a message's copy; None for a retry without room to name its topic."""
        delivery, text = move.delivery, parked.properties
        topic = delivery.topic.encode()
        if delivery.to_dead_letters:
            unique = find_property(text, _UNIQ_KEY)
            offset_id = offset_message_id(parked.store_host, delivery.physical_offset).encode()
            text = _added(text, _RETRY_TOPIC, topic)
            text = _added(text, _ORIGIN_MESSAGE_ID, offset_id)
            text = _added(text, _DLQ_ORIGIN_TOPIC, topic)
            text = _added(text, _DLQ_ORIGIN_MESSAGE_ID, unique or offset_id)
        else:
            # Unlike RocketMQ 5, which does not say it: two topics of retries may have one name.
            # What a producer wrote there counts for nothing.
            text = _added(without_property(text, _RETRY_TOPIC), _RETRY_TOPIC, topic)
            if self._retries == RETRY and find_property(text, _RETRY_TOPIC + b"\x01") is None:
                return None
            text = _added(text, _FIRST_POP_TIME, b"%d" % self._clock.now_ms())
        level = 0
        if not delivery.to_dead_letters:
            level = min(delivery.queue.queue_id, max(1, _levels(delivery)) - 1)
        inner = copy_to(parked, move.target, level, text)
        inner.reconsume_times = min(delivery.attempt, INT_MAX)
        return inner

    def _stored(self, moves: list[_Move], results: list[PutMessageResult]) -> None:
        """Go on with messages whose copies are stored."""
        leaving: list[_Move] = []
        for move, result in zip(moves, results, strict=False):
            if self._syncs and result.status is PutMessageStatus.PUT_OK:
                self._end(move)
                continue
            if move.is_current:
                self._in_flight.copied(move.delivery, result.physical_offset)
                leaving.append(move)
            move.answer(True)
        if leaving:
            self._leaving += 1
            synced(self._store, at_once=False)(lambda _, error: self._synced(leaving, error))

    def _synced(self, moves: list[_Move], error: BaseException | None) -> None:
        """Go on with messages whose copies are on the disk, if they are: else the journal knows."""
        self._leaving -= 1
        if error is None:
            for move in moves:
                if move.is_current:
                    self._in_flight.moved(move.delivery)

    def _end(self, move: _Move) -> None:
        if move.is_current:
            self._in_flight.moved(move.delivery)
        move.answer(True)

    def _refused(self, move: _Move, why: PutMessageResult) -> None:
        """Go on without a copy that no store would take."""
        log.error("a copy for %s is refused for good: %s", move.target, why.why)
        move.answer(False)
        if move.callback is None and move.is_current:
            if move.delivery.to_dead_letters:
                self._in_flight.moved(move.delivery)
            else:
                self._in_flight.retry_in_place(move.delivery)

    def _log_refused(self, why: PutMessageResult) -> None:
        if not self._is_failing:
            self._is_failing = True
            log.error(
                "messages that nobody acknowledged cannot be stored for another try, trying again "
                "every %d s: %s, %s",
                RETRY_S,
                why.status.value,
                why.why,
            )


def _levels(delivery: Delivery) -> int:
    """Return how many levels of priority the topic of a message has."""
    consumption = delivery.queue.source.group.consumptions.get(delivery.topic)
    return 0 if consumption is None else consumption.levels


def _added(text: bytes, name: bytes, value: bytes) -> bytes:
    """Return properties with one more, where there is none of that name and there is room."""
    if find_property(text, name + b"\x01") is not None:
        return text
    longer = with_property(text, name, value)
    return longer if len(longer) <= MAX_PROPERTIES_SIZE else text
