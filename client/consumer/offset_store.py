"""A group's offsets: where to start, and what was committed.

    clustering     on the brokers, two-way (15)
    broadcasting   in a file of this machine (local_offsets.py)

An offset that could not be committed is reported to the caller; the next commit tries it again.
A commit waits for the broker's answer to the one before it, also when the caller of that one was
cancelled: a broker with many threads may take two that are under way in any order, and the older
one would move the group back. The first commit of a topic to a broker goes alone: 4.9 and 5.x make
the group's table with it; if several come at once, each makes a table, and the last one stays
(broker/.../offset/ConsumerOffsetManager.java, commitOffset).

Unlike RocketMQ: commits are two-way. A one-way commit that is lost moves the group back unnoticed.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../consumer/store/RemoteBrokerOffsetStore.java,
client/.../impl/consumer/RebalancePushImpl.java (computePullFromWhereWithException)
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from skylarkmq.client.config import OFFSET_TIMEOUT_S
from skylarkmq.client.consumer.last_read import ReadMessage, look, new_life
from skylarkmq.client.consumer.local_offsets import LocalOffsets
from skylarkmq.client.consumer.offset_search import first_since
from skylarkmq.client.consumer.queue_locks import QueueLocks
from skylarkmq.client.consumer.subscription import StartFrom
from skylarkmq.client.errors import RebalanceInProgress, RocketMQError, RouteNotFound
from skylarkmq.client.services import Services
from skylarkmq.protocol.flags import MASTER_ID, TOOLS_CONSUMER_GROUP, is_retry_topic
from skylarkmq.protocol.message import MessageQueue

log = logging.getLogger(__name__)

COMMITS_MAX: Final = 64
"""Commits under way at the same time."""


class OffsetStore:
    """The offsets of one group. Loop thread."""

    def __init__(
        self,
        services: Services,
        group: str,
        local: LocalOffsets | None = None,
        locks: QueueLocks | None = None,
    ) -> None:
        """Take the group.

        Args:
            local: open; the offsets are kept there.
            locks: of an ordered consumer; without its lock a queue may be another member's, who
                has come further, so no offset of it is committed.
        """
        self._services = services
        self._api = services.consumer_api
        self._group = group
        self._local = local
        self._locks = locks
        self._committed: dict[MessageQueue, int] = {}
        self._begun: set[tuple[str, str]] = set()
        """Tables of offsets that brokers have by now."""
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By broker: one that does not answer holds up no commit to another."""
        self._untold: set[str] = set()
        """Brokers that do not show messages to the tools of this account."""
        self._tasks: set[asyncio.Task[list[RocketMQError]]] = set()

    async def start_offset(self, queue: MessageQueue, start_from: StartFrom) -> int:
        """Return the queue offset at which the group goes on, or starts.

        Raises:
            RocketMQError: the broker cannot be asked.
        """
        committed = await self.committed(queue, zero_if_young=start_from.where != "now")
        if committed is not None and committed >= 0:
            if self._local is not None:
                committed = await self._checked(self._local, queue, committed, start_from)
            self._committed[queue] = committed
            return committed
        return await self._first_start(queue, start_from)

    async def _first_start(self, queue: MessageQueue, start_from: StartFrom) -> int:
        """Return where a group begins that has committed nothing."""
        # Retries are never skipped: what lies in the retry topic was received before.
        if is_retry_topic(queue.topic) or start_from.where == "first":
            return await self.begin(queue)
        if start_from.where in ("last", "now"):
            return await self.end(queue)
        return await self.at_time(queue, start_from.timestamp_ms)

    async def _checked(
        self, local: LocalOffsets, queue: MessageQueue, offset: int, start_from: StartFrom
    ) -> int:
        """Return an offset of the file; where its messages are others by now, one to go on at.

        The file may be of another cluster: so the group begins there as a new one, but not after
        messages that were stored since the file was written.
        """
        read = local.last_read(queue)
        if read is None:
            return offset
        address = self._address(queue)
        begin = await new_life(self._services, address, self._group, queue, read, of_master=True)
        if begin is None:
            return min(offset, read.offset + 1)
        begin = min(begin, await self._first_start(queue, start_from))
        log.warning(
            "%s: offset %d of the file is of another cluster, or of a log that became shorter; "
            "group %s goes on at %d", queue, offset, self._group, begin,
        )  # fmt: skip
        return begin

    async def committed(self, queue: MessageQueue, *, zero_if_young: bool = True) -> int | None:
        """Return the group's committed offset, None without one.

        Args:
            zero_if_young: see `ConsumerApi.query_offset`.

        Raises:
            RocketMQError: the broker cannot be asked.
        """
        if self._local is not None:
            return self._local.get(queue)
        address = self._address(queue, any_broker=True)
        return await self._api.query_offset(
            address, self._group, queue, OFFSET_TIMEOUT_S, zero_if_young=zero_if_young
        )

    async def begin(self, queue: MessageQueue) -> int:
        """Return the first queue offset that can still be read."""
        return await self._api.min_offset(self._address(queue), queue, OFFSET_TIMEOUT_S)

    async def end(self, queue: MessageQueue) -> int:
        """Return the queue offset that the next message will get."""
        return await self._api.max_offset(self._address(queue), queue, OFFSET_TIMEOUT_S)

    async def at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the queue offset of the first message stored at that time or later."""
        address = self._address(queue)
        return await first_since(self._services, address, self._group, queue, timestamp_ms)

    async def commit(
        self, offsets: Mapping[MessageQueue, int], *, anew: bool = False
    ) -> list[RocketMQError]:
        """Commit what changed since the last time; return what failed, to be tried again later.

        Cancelled, it goes on in the background; the next commit waits for it.

        Args:
            anew: also what did not change, should the broker have lost it or another member, which
                had the queue before, have moved it back.
        """
        if not offsets or not (anew or self._changed(offsets)):
            return []
        task = asyncio.create_task(
            self._commit_changed(dict(offsets), anew=anew),
            name=f"skylarkmq-{self._group}-committing",
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    def known(self, queue: MessageQueue) -> int | None:
        """Return what this member committed last or started from; no I/O."""
        return self._committed.get(queue)

    def forget(self, queue: MessageQueue) -> None:
        """Drop what is remembered of a queue that somebody else owns now, or that was moved."""
        self._committed.pop(queue, None)

    def _changed(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        known = self._committed
        return {queue: offset for queue, offset in offsets.items() if known.get(queue) != offset}

    async def _commit_changed(
        self, offsets: Mapping[MessageQueue, int], *, anew: bool
    ) -> list[RocketMQError]:
        if self._local is not None:
            async with self._turns[""]:
                return await self._keep(self._local, offsets if anew else self._changed(offsets))
        by_broker: defaultdict[str, dict[MessageQueue, int]] = defaultdict(dict)
        for queue, offset in offsets.items():
            by_broker[queue.broker_name][queue] = offset
        calls = (self._commit_to(name, each, anew=anew) for name, each in by_broker.items())
        return [error for errors in await asyncio.gather(*calls) for error in errors]

    async def _commit_to(
        self, broker_name: str, offsets: Mapping[MessageQueue, int], *, anew: bool
    ) -> list[RocketMQError]:
        async with self._turns[broker_name]:
            changed = offsets if anew else self._changed(offsets)
            begun = {_table(queue): queue for queue in changed if _table(queue) not in self._begun}
            first = {queue: changed[queue] for queue in begun.values()}
            rest = {queue: offset for queue, offset in changed.items() if queue not in first}
            return [*await self._commit_all(first), *await self._commit_all(rest)]

    async def _commit_all(self, offsets: Mapping[MessageQueue, int]) -> list[RocketMQError]:
        errors: list[RocketMQError] = []
        items = list(offsets.items())
        for start in range(0, len(items), COMMITS_MAX):
            some = items[start : start + COMMITS_MAX]
            outcomes = await asyncio.gather(*(self._commit(*item) for item in some))
            errors += [error for error in outcomes if error is not None]
        return errors

    async def _commit(self, queue: MessageQueue, offset: int) -> RocketMQError | None:
        if self._locks is not None and not self._locks.holds(queue):
            return RebalanceInProgress(f"the lock of {queue} is not held at the moment")
        try:
            # The master alone: a slave's offsets are overwritten by the next copy of the master's.
            address = self._address(queue)
            await self._api.update_offset(address, self._group, queue, offset, OFFSET_TIMEOUT_S)
        except RocketMQError as error:
            self._services.failed(queue.topic, error)
            return error
        self._committed[queue] = offset
        self._begun.add(_table(queue))
        return None

    async def _keep(
        self, local: LocalOffsets, changed: Mapping[MessageQueue, int]
    ) -> list[RocketMQError]:
        if changed:
            try:
                await local.put(changed)
            except RocketMQError as error:
                return [error]
            self._committed.update(changed)
            await self._keep_last(local, changed)
        return []

    async def _keep_last(self, local: LocalOffsets, offsets: Mapping[MessageQueue, int]) -> None:
        """Write beside offsets which messages stand before them, as far as brokers tell.

        They are asked in the name of the tools: a pull of this member would count as its next one.
        """
        found: dict[MessageQueue, ReadMessage | None] = {}
        services, group = self._services, TOOLS_CONSUMER_GROUP

        async def ask(queue: MessageQueue, offset: int) -> None:
            try:
                address = self._address(queue)
                found[queue], answer = await look(services, address, group, queue, offset - 1)
            except RocketMQError as error:
                log.debug("last message of %s not looked at: %s", queue, error)
            else:
                if answer is None:
                    self._untold.add(queue.broker_name)

        items = [
            (queue, offset)
            for queue, offset in offsets.items()
            if offset > 0 and queue.broker_name not in self._untold
        ]
        for start in range(0, len(items), COMMITS_MAX):
            await asyncio.gather(*(ask(*item) for item in items[start : start + COMMITS_MAX]))
        try:
            await local.put_last(found)
        except RocketMQError as error:
            log.debug("last messages not saved, tried again: %s", error)

    def _address(self, queue: MessageQueue, *, any_broker: bool = False) -> str:
        """Return the master's address; with `any_broker` a slave's will do while it is away."""
        addresses = self._services.routes.broker(queue.broker_name)
        address = addresses.get(MASTER_ID)
        if address is None and any_broker and addresses:
            address = addresses[min(addresses)]
        if address is None:
            hint = f"Broker {queue.broker_name} has no master at the moment"
            raise RouteNotFound(queue.topic, "no_broker", hint)
        return address


def _table(queue: MessageQueue) -> tuple[str, str]:
    """What names the table of a group's offsets that a queue's is in."""
    return queue.topic, queue.broker_name
