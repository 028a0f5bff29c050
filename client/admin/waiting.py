"""Messages that consumers cannot see yet: those with a delay, and transactions that are open.

Nothing lists them: they are read from the topics in which they wait.

    delay level     SCHEDULE_TOPIC_XXXX, a queue for each level; the broker's runtime table (28)
                    says how far each level has been delivered
    a time of its   rmq_sys_wheel_timer, queue 0; a message waits until its TIMER_OUT_MS, unless a
    own             later one took it back (TIMER_DEL_UNIQKEY). 5.x and SkylarkMQ only
    open halves     RMQ_SYS_TRANS_HALF_TOPIC, queue 0, from the offset that CID_RMQ_SYS_TRANS has
                    committed, without those that the op topic names in its bodies

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../schedule/ScheduleMessageService.java
(buildRunningStats), broker/.../transaction/queue/TransactionalMessageServiceImpl.java
(fillOpRemoveMap), TransactionalMessageUtil.java (buildConsumerGroup)
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from skylarkmq.client.admin.base import NO_ROUTE, TopicPlace, from_ms
from skylarkmq.client.admin.messages import MessageAdmin
from skylarkmq.client.admin.reading import MessageScan
from skylarkmq.client.admin.results import Result
from skylarkmq.client.errors import BrokerError, TopicNotExist
from skylarkmq.client.message_view import StoredMessage
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.flags import (
    RMQ_SYS_SCHEDULE_TOPIC,
    RMQ_SYS_TRANS_HALF_TOPIC,
    RMQ_SYS_TRANS_OP_HALF_TOPIC,
    RMQ_SYS_WHEEL_TIMER_TOPIC,
)
from skylarkmq.protocol.message import MessageQueue

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
LEVEL_KEY: Final = re.compile(r"scheduleMessageOffset_(\d+)")
DEFAULT_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
LIMIT: Final = 1000


@dataclass(frozen=True, slots=True)
class DelayedMessage(Result):
    """A message that waits; `topic` and `queue_id` are where it will be delivered."""

    msg_id: str
    offset_msg_id: str
    topic: str
    broker: str
    queue_id: int
    level: int
    """Its delay level; 0: it has a time of its own."""
    due_at: datetime
    stored_at: datetime
    tags: str | None
    keys: str
    size: int


@dataclass(frozen=True, slots=True)
class OpenTransaction(Result):
    """A half message that is neither committed nor rolled back."""

    msg_id: str
    offset_msg_id: str
    topic: str
    broker: str
    group: str
    """The producer group, which the broker asks how it ended."""
    born_at: datetime
    checks: int
    """How often the broker has asked."""
    tags: str | None
    keys: str
    size: int


def delivered_by_level(runtime: Mapping[str, str]) -> dict[int, int]:
    """Return the offset that a broker delivers next, by delay level, as far as it tells.

    Args:
        runtime: its runtime table (28).
    """
    return {
        int(match[1]): int(begin)
        for key, value in runtime.items()
        if (match := LEVEL_KEY.fullmatch(key)) and (begin := value.partition(",")[0]).isdigit()
    }


class WaitingAdmin(MessageAdmin):
    """The part of Admin for messages that consumers cannot see yet."""

    async def delayed(
        self, *, topic: str | None = None, limit: int = LIMIT
    ) -> tuple[DelayedMessage, ...]:
        """Return the messages that wait for their time, the next one first; the first `limit`.

        All that wait are read, so with millions of them it takes a while. What is due by this
        machine's clock does not count as waiting for a time of its own.

        Args:
            topic: only those that go there.
        """
        if limit < 1:
            raise ValueError("limit is 1 or more")
        wanted = None if topic is None else self._topic(topic)
        lists = await self._ask(
            lambda broker, address: self._delayed_on(broker, address, wanted, limit),
            await self._masters(),
        )
        found = sorted((one for each_list in lists.values() for one in each_list), key=_due)
        return tuple(found[:limit])

    async def open_transactions(
        self, *, topic: str | None = None, limit: int = LIMIT
    ) -> tuple[OpenTransaction, ...]:
        """Return the transactions that have not ended, the oldest first; the first `limit`.

        Args:
            topic: only those of messages to it.
        """
        if limit < 1:
            raise ValueError("limit is 1 or more")
        wanted = None if topic is None else self._topic(topic)
        lists = await self._ask(
            lambda broker, address: self._open_on(broker, address, wanted), await self._masters()
        )
        found = sorted((one for each_list in lists.values() for one in each_list), key=_born)
        return tuple(found[:limit])

    # Inside

    async def _delayed_on(
        self, broker: str, address: str, topic: str | None, limit: int
    ) -> list[DelayedMessage]:
        by_level = await self._by_level(broker, address, topic, limit)
        return [*by_level, *await self._by_time(broker, address, topic, limit)]

    async def _by_level(
        self, broker: str, address: str, topic: str | None, limit: int
    ) -> list[DelayedMessage]:
        """Read what waits for the delay levels."""
        delivered: dict[MessageQueue, int] = {}
        for level, begin in delivered_by_level(await self._runtime(address)).items():
            delivered[MessageQueue(RMQ_SYS_SCHEDULE_TOPIC, broker, level - 1)] = begin
        delays = await self._delays(address)
        for level in delays:  # RocketMQ's brokers tell nothing of one that has delivered nothing
            delivered.setdefault(MessageQueue(RMQ_SYS_SCHEDULE_TOPIC, broker, level - 1), 0)
        found: list[DelayedMessage] = []
        counts: dict[int, int] = {}
        scan = self._parked(broker, address, [*delivered], delivered)
        async for message in _if_there(scan):
            level = message.queue.queue_id + 1
            due_at = message.stored_at + delays.get(level, timedelta())
            if (one := self._delayed(message, broker, topic, due_at, level)) is not None:
                counts[level] = counts.get(level, 0) + 1
                found.append(one)
            if counts.get(level, 0) >= limit:
                scan.skip_queue()  # what follows in it is due later
        return found

    async def _delays(self, address: str) -> dict[int, timedelta]:
        """Return the delay of each level; RocketMQ's own where the broker does not tell."""
        try:
            answer = await self._api.call(address, RequestCode.GET_BROKER_CONFIG)
            found = re.search(rb"^messageDelayLevel=(.+)$", answer.body, re.M)
        except BrokerError:  # with access control, for administrators alone
            found = None
        text = DEFAULT_LEVELS if found is None else found[1].decode("utf-8", "replace")
        delays: dict[int, timedelta] = {}
        for level, delay in enumerate(text.split(), 1):
            if delay[:-1].isdigit() and delay[-1] in UNIT_S:
                delays[level] = timedelta(seconds=int(delay[:-1]) * UNIT_S[delay[-1]])
        return delays

    async def _by_time(
        self, broker: str, address: str, topic: str | None, limit: int
    ) -> list[DelayedMessage]:
        """Read what waits for a time of its own."""
        now = from_ms(self._services.clock.now_ms())
        assert now is not None
        waiting: dict[tuple[str, str, datetime], DelayedMessage] = {}
        queue = MessageQueue(RMQ_SYS_WHEEL_TIMER_TOPIC, broker, 0)
        async for message in _if_there(self._parked(broker, address, [queue])):
            properties = message.properties
            due_at = from_ms(_number(properties.get(names.TIMER_OUT_MS)))
            if due_at is None or due_at <= now:
                continue
            taken_back = properties.get(names.TIMER_DEL_UNIQKEY)
            if taken_back is not None:
                target = properties.get(names.REAL_TOPIC, "")
                for key in (taken_back, taken_back.removeprefix(f"{target}+")):
                    waiting.pop((target, key, due_at), None)
            elif (one := self._delayed(message, broker, topic, due_at, 0)) is not None:
                # A copy that waits on takes the place of the one before it.
                waiting[(properties.get(names.REAL_TOPIC, ""), one.msg_id, due_at)] = one
            if len(waiting) > 4 * limit:  # the last ones will not be among the first
                kept = sorted(waiting.items(), key=lambda item: item[1].due_at)[: 2 * limit]
                waiting = dict(kept)
        return [*waiting.values()]

    def _delayed(
        self, message: StoredMessage, broker: str, topic: str | None, due_at: datetime, level: int
    ) -> DelayedMessage | None:
        target = message.properties.get(names.REAL_TOPIC, "")
        if topic is not None and target != topic:
            return None
        return DelayedMessage(
            message.msg_id,
            message.offset_msg_id,
            self._namespace.unwrap(target),
            broker,
            _number(message.properties.get(names.REAL_QID)),
            level,
            due_at,
            message.stored_at,
            message.tags,
            message.keys,
            message.size,
        )

    async def _open_on(self, broker: str, address: str, topic: str | None) -> list[OpenTransaction]:
        halves = MessageQueue(RMQ_SYS_TRANS_HALF_TOPIC, broker, 0)
        ops = MessageQueue(RMQ_SYS_TRANS_OP_HALF_TOPIC, broker, 0)
        begins = {queue: await self._checked(address, queue) for queue in (halves, ops)}
        # First the halves: one that ends meanwhile is then seen to end.
        found: dict[int, OpenTransaction] = {}
        open_ones = self._parked(broker, address, [halves], {halves: begins[halves]})
        async for half in _if_there(open_ones):
            target = half.properties.get(names.REAL_TOPIC, "")
            if topic is None or target == topic:
                found[half.queue_offset] = self._open(half, broker, target)
        async for op in _if_there(self._parked(broker, address, [ops], {ops: begins[ops]})):
            for offset in op.stored.body.split(b","):
                if offset.strip().isdigit():
                    found.pop(int(offset), None)
        return [*found.values()]

    def _open(self, half: StoredMessage, broker: str, target: str) -> OpenTransaction:
        return OpenTransaction(
            half.msg_id,
            half.offset_msg_id,
            self._namespace.unwrap(target),
            broker,
            self._namespace.unwrap(half.properties.get(names.PGROUP, "")),
            half.born_at,
            _number(half.properties.get(names.TRANSACTION_CHECK_TIMES)),
            half.tags,
            half.keys,
            half.size,
        )

    async def _checked(self, address: str, queue: MessageQueue) -> int:
        """Return below which offset all is settled, as the broker has noted for its own start."""
        api, limit_s = self._services.consumer_api, self._timeout_s
        return max(0, await api.query_offset(address, TRANSACTION_GROUP, queue, limit_s) or 0)

    def _parked(
        self,
        broker: str,
        address: str,
        queues: Sequence[MessageQueue],
        after: dict[MessageQueue, int] | None = None,
    ) -> MessageScan:
        """Return a scan of a broker's own topic, which name servers may not know."""
        place = TopicPlace(
            queues[0].topic, NO_ROUTE, {broker: address}, tuple(queues), tuple(queues)
        )

        async def find() -> TopicPlace:
            return place

        return MessageScan(self._services, self._timeout_s, find, None, None, after)


async def _if_there(scan: MessageScan) -> AsyncIterator[StoredMessage]:
    """Yield what is scanned; nothing of a topic that the broker has not made yet."""
    while True:
        try:
            message = await anext(scan)
        except (StopAsyncIteration, TopicNotExist):
            return
        yield message


def _number(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0


def _due(message: DelayedMessage) -> datetime:
    return message.due_at


def _born(transaction: OpenTransaction) -> datetime:
    return transaction.born_at
