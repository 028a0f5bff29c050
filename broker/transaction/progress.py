"""How far the half and op topics are done with, as consumer offsets of CID_RMQ_SYS_TRANS.

They are in `consumerOffset.json` like any group's, where a broker that takes the store over finds
them. Too low an offset only costs a start some reading.

Invariant: an offset is handed to the table only when the log is on the disk up to where it was
written when the offset was taken. Else a power cut could take an end whose half message has been
passed by, and nobody would ever be asked about it. Unlike RocketMQ.
Source: apache/rocketmq@rocketmq-all-4.9.8
broker/.../transaction/queue/TransactionalMessageBridge.java (updateConsumeOffset)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from skylarkmq.broker.consumer_offset import NO_OFFSET, ConsumerOffsetManager
from skylarkmq.broker.transaction.messages import HALF_TOPIC, OP_TOPIC, QUEUE_ID
from skylarkmq.protocol.clock import Clock, TimerHandle
from skylarkmq.protocol.flags import CID_RMQ_SYS_TRANS_GROUP
from skylarkmq.store.message_store import MessageStore

INTERVAL_S: Final = 1.0
FLUSH_CHECK_INTERVAL_S: Final = 0.1
_WHO: Final = "the broker"


class Offsets(NamedTuple):
    """Where a start begins to read."""

    half: int
    op: int


class TransactionProgress:
    """Brings the offsets into the table. Loop thread."""

    def __init__(
        self,
        store: MessageStore,
        offsets: ConsumerOffsetManager,
        clock: Clock,
        current: Callable[[], Offsets],
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._clock = clock
        self._current = current
        self._taken: tuple[Offsets, int] | None = None  # with what must be on the disk before
        self._timer: TimerHandle | None = None
        self._saved: asyncio.Future[None] | None = None

    def load(self) -> Offsets:
        """Return the offsets of the table; of a topic without one, where its queue begins."""
        half, op = (
            self._offsets.query(CID_RMQ_SYS_TRANS_GROUP, topic, QUEUE_ID)
            for topic in (HALF_TOPIC, OP_TOPIC)
        )
        return Offsets(self._within(HALF_TOPIC, half), self._within(OP_TOPIC, op))

    def changed(self) -> None:
        """The offsets may have moved; the table follows within a second or two."""
        if self._timer is None and self._saved is None:
            self._plan(INTERVAL_S)

    async def save(self) -> None:
        """Return when the table holds the offsets as they are now, or never will.

        Call while the store still syncs; nothing changes afterwards.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._taken = None
        self._saved = asyncio.get_running_loop().create_future()
        self._due()
        await self._saved

    def _within(self, topic: str, offset: int) -> int:
        low, high = (
            self._store.min_offset(topic, QUEUE_ID),
            self._store.max_offset(topic, QUEUE_ID),
        )
        return low if offset == NO_OFFSET else min(max(offset, low), high)

    def _plan(self, wait_s: float) -> None:
        self._timer = self._clock.call_at(self._clock.monotonic() + wait_s, self._due)

    def _due(self) -> None:
        self._timer = None
        log = self._store.commit_log
        if self._taken is None:
            self._taken = self._current(), log.wrote_offset
        offsets, needed = self._taken
        waits = log.flushed_offset < needed and not self._is_kept(offsets)
        if self._store.failure is None and waits:
            self._plan(FLUSH_CHECK_INTERVAL_S)
            return
        self._taken = None
        if self._store.failure is None:
            self._commit(offsets)
            if self._saved is None and self._current() != offsets:
                self._plan(INTERVAL_S)
        if self._saved is not None:
            self._saved.set_result(None)

    def _commit(self, offsets: Offsets) -> None:
        for topic, offset in self._used(offsets):
            self._offsets.keep(_WHO, CID_RMQ_SYS_TRANS_GROUP, topic, QUEUE_ID, offset)

    def _is_kept(self, offsets: Offsets) -> bool:
        """Whether the table says so already."""
        return all(
            self._offsets.query(CID_RMQ_SYS_TRANS_GROUP, topic, QUEUE_ID) == offset
            for topic, offset in self._used(offsets)
        )

    def _used(self, offsets: Offsets) -> list[tuple[str, int]]:
        """The topics that ever held a message, with their offsets."""
        both = ((HALF_TOPIC, offsets.half), (OP_TOPIC, offsets.op))
        return [row for row in both if self._store.max_offset(row[0], QUEUE_ID)]
