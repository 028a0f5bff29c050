"""Which queues this member of the group owns, and the change from one division to the next.

    each round:     this member's share of every topic (assignor.py)
    revoked queues: on_revoked awaited -> drained -> acked offsets committed -> dropped
    new queues:     start offset asked for -> on_assigned awaited -> pulled

Nothing tells a queue's next owner when the owner before is done with it. So a member that gives a
queue up hands out nothing more of it and waits for its handlers, REVOKE_DRAIN_S at most; and after
a member has joined, a member that gets queues of members that stay asks for its start offsets only
after HANDOVER_S. Unlike RocketMQ: the Java client does neither, and what is at work runs twice.
An ordered consumer (orderly.py) has locks on the broker instead.

A round comes when the broker says that members changed (40), when a route changed, and every 20 s.
While no broker answers, the queues of its topics stay as they are.

A queue that is made while the group is at work is read from its beginning, whatever `start_from`
says of older ones: its messages were sent after this member had joined.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/consumer/RebalanceImpl.java
(rebalanceByTopic, updateProcessQueueTableInRebalance)
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from skylarkmq.client.config import (
    HANDOVER_S,
    REBALANCE_INTERVAL_S,
    REBALANCE_RETRY_S,
    REVOKE_DRAIN_S,
)
from skylarkmq.client.consumer.assignor import Assignor
from skylarkmq.client.consumer.offset_store import OffsetStore
from skylarkmq.client.consumer.pull_service import PullService
from skylarkmq.client.consumer.subscription import StartFrom
from skylarkmq.client.errors import RebalanceInProgress, RocketMQError
from skylarkmq.client.observe.hooks import each
from skylarkmq.client.received_message import ProcessQueue
from skylarkmq.client.services import Services
from skylarkmq.protocol.flags import is_retry_topic
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.remoting.waiting import sleep, wait_event

log = logging.getLogger(__name__)

QueuesCallback = Callable[[list[MessageQueue]], Awaitable[None] | None]
LATE_SLACK_MS: Final = 30_000
"""How far the clocks of a broker and of this client may lie apart, for queues that come late."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The application's, called with queues before they come and before they go."""

    on_assigned: QueuesCallback | None = None
    on_revoked: QueuesCallback | None = None


class Rebalance:
    """The assigned queues of one consumer. Loop thread.

    Its size is one idea: a queue changes its owner in fixed steps, which one task at a time takes.
    """

    def __init__(
        self,
        services: Services,
        group: str,
        offsets: OffsetStore,
        pulls: PullService,
        assignor: Assignor,
        start_from: StartFrom,
        callbacks: Callbacks,
    ) -> None:
        self.assigned: dict[MessageQueue, ProcessQueue] = {}
        self._services = services
        self._group = group
        self._offsets = offsets
        self._pulls = pulls
        self._assignor = assignor
        self._start_from = start_from
        self._callbacks = callbacks
        pulls.reposition = self.reposition
        self._wanted = asyncio.Event()
        self._closed = False
        self._turn = asyncio.Lock()
        # Invariant: the task that holds _turn.
        self._dividing: asyncio.Task[object] | None = None
        self._paused: set[MessageQueue] = set()
        self._seen: dict[str, set[MessageQueue]] = {}
        self._late: set[MessageQueue] = set()
        self._joined_ms = services.clock.now_ms()

    def wake(self) -> None:
        """Let a round come now."""
        self._wanted.set()

    def close(self) -> None:
        """Take no queue any more, also in a round that is under way."""
        self._closed = True

    async def run(self) -> None:
        """Come round for ever; the consumer cancels it."""
        clock, complete = self._services.clock, True
        while True:
            wait_s = REBALANCE_INTERVAL_S if complete else REBALANCE_RETRY_S
            await wait_event(clock, self._wanted, wait_s)
            try:
                complete = await self.round()
            except Exception:
                complete = False
                log.exception("group %s: rebalance failed, tried again soon", self._group)

    async def round(self) -> bool:
        """Divide once; False when something is missing, so that the next round comes soon.

        Called by a callback of the application, which is part of a round, it asks for another one.
        """
        task = asyncio.current_task()
        if self._dividing is task:
            self._wanted.set()
            return True
        async with self._turn:
            self._dividing = task
            try:
                return await self._divide()
            finally:
                self._dividing = None

    async def revoke(
        self,
        queues: Sequence[MessageQueue],
        *,
        commit: bool = True,
        anew: bool = False,
        drain: bool = False,
        told: bool = False,
    ) -> None:
        """Give queues up, after the user's callback and with their acked offsets committed.

        Args:
            commit: false when another member has them already.
            anew: commit also what is committed already.
            drain: wait for what is at work, for a while.
            told: the application has been told before.
        """
        if not queues:
            return
        leaving = [self.assigned[queue] for queue in queues] if drain else []
        changed = asyncio.Event()
        for held in leaving:
            held.on_drained = changed.set
        if not told:
            await self.tell_revoked(queues)
        if leaving:
            await self._commit_held(queues)  # should the next owner come before the drain's end
            await self._drain(leaving, changed)
        await self._commit_held(queues if commit else (), anew=anew)
        for queue in queues:
            # Not the one of before the await: it may have been repositioned meanwhile.
            process_queue = self.assigned.pop(queue, None)
            if process_queue is not None:
                self._pulls.cancel(process_queue)
            self._offsets.forget(queue)
        await self._release(queues)

    async def tell_revoked(self, queues: Sequence[MessageQueue]) -> None:
        """Tell the application of queues that go."""
        await self._tell(self._callbacks.on_revoked, queues)

    def reposition(self, queue: MessageQueue, offset: int) -> None:
        """Drop what is held of the queue and go on at `offset`.

        Raises:
            RebalanceInProgress: the queue is not assigned.
        """
        old = self.held(queue)
        self._pulls.cancel(old)
        self._offsets.forget(queue)
        self._start(queue, offset)

    def held(self, queue: MessageQueue) -> ProcessQueue:
        """Return the process queue of an assigned queue.

        Raises:
            RebalanceInProgress: the queue is not assigned.
        """
        process_queue = self.assigned.get(queue)
        if process_queue is None:
            raise RebalanceInProgress(f"{queue} is not assigned to this consumer at the moment")
        return process_queue

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stop handing out and pulling these queues, also when they go away and come back."""
        for queue in queues:
            self._paused.add(queue)
            if queue in self.assigned:
                self.assigned[queue].paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> list[ProcessQueue]:
        """Undo `pause`; return the queues that may have something to hand out."""
        resumed: list[ProcessQueue] = []
        for queue in queues:
            self._paused.discard(queue)
            process_queue = self.assigned.get(queue)
            if process_queue is not None:
                process_queue.paused = False
                self._pulls.wake(process_queue)
                resumed.append(process_queue)
        return resumed

    @property
    def paused(self) -> set[MessageQueue]:
        """The paused queues."""
        return set(self._paused)

    async def _divide(self) -> bool:
        self._wanted.clear()
        complete = True
        share: set[MessageQueue] = set()
        handed_over: set[str] = set()
        for topic in list(self._assignor.subscriptions):
            mine = await self._assignor.of(topic)
            if self._assignor.takes_over:
                handed_over.add(topic)
            if mine is None:
                complete = False
                share.update(queue for queue in self.assigned if queue.topic == topic)
            else:
                complete = complete and self._assignor.settled
                self._note(topic)
                share.update(mine)
        before = set(self.assigned)
        await self._give_up([queue for queue in self.assigned if queue not in share], share)
        fresh = sorted(queue for queue in share if queue not in self.assigned)
        if any(queue.topic in handed_over for queue in fresh):
            await self._wait_for_owners()
        complete = await self._assign(fresh) and complete
        for topic in sorted({queue.topic for queue in before ^ set(self.assigned)}):
            self._tell_hooks(topic)
        return complete

    async def _commit_held(self, queues: Iterable[MessageQueue], *, anew: bool = False) -> None:
        """Commit what is done of the queues that are held still."""
        held = {queue: self.assigned[queue] for queue in queues if queue in self.assigned}
        offsets = {queue: held_queue.commit_offset for queue, held_queue in held.items()}
        for error in await self._offsets.commit(offsets, anew=anew):
            log.warning("group %s: offset not committed at revoke: %s", self._group, error)

    async def _give_up(
        self, queues: Sequence[MessageQueue], share: Collection[MessageQueue]
    ) -> None:
        """Revoke queues that another member gets.

        Args:
            share: the queues that this member is to have.
        """
        try:
            await self.revoke(queues, drain=True)
        except BaseException:
            for queue in queues:
                if queue in self.assigned:
                    self._pulls.keep(self.assigned[queue])
            raise

    async def _wait_for_owners(self) -> None:
        """Let the owners before finish with their queues."""
        await sleep(self._services.clock, HANDOVER_S)

    async def _admit(self, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
        """Return the queues that this member may take now."""
        return queues

    async def _release(self, queues: Sequence[MessageQueue]) -> None:
        """Let others have queues that were given up, their offsets committed."""

    async def _drain(self, leaving: Sequence[ProcessQueue], changed: asyncio.Event) -> None:
        """Wait until nothing is at work of queues that hand out no more, for a while."""
        clock = self._services.clock
        end_s = clock.monotonic() + REVOKE_DRAIN_S
        while any(each.out_count for each in leaving if not each.dropped):
            left_s = end_s - clock.monotonic()
            if left_s <= 0:
                log.warning(
                    "group %s: queues go with messages still at work after %g s, which the next "
                    "member gets as well", self._group, REVOKE_DRAIN_S,
                )  # fmt: skip
                return
            await wait_event(clock, changed, left_s)
            changed.clear()

    async def _assign(self, queues: Sequence[MessageQueue]) -> bool:
        """Take new queues over; False when a start offset could not be found out."""
        admitted = await self._admit(queues) if queues else queues
        starts = await asyncio.gather(
            *(self._offsets.start_offset(queue, self._start_of(queue)) for queue in admitted),
            return_exceptions=True,
        )
        if self._closed:
            await self._release(admitted)
            return False
        taken: list[MessageQueue] = []
        for queue, start in zip(admitted, starts, strict=True):
            if isinstance(start, int):
                self.assigned[queue] = self._pulls.new_queue(queue, start)
                taken.append(queue)
            elif isinstance(start, RocketMQError):
                log.warning("group %s: no start offset of %s: %s", self._group, queue, start)
            else:
                raise start
        if taken:
            log.info("group %s: assigned %s", self._group, taken)
            await self._settle_starts(taken)
            await self._tell(self._callbacks.on_assigned, taken)
        # Also those whose turn was cancelled once, or whose topic was unsubscribed for a moment;
        # not those that the callback has sought, which are being pulled by now.
        for process_queue in list(self.assigned.values()):
            if not self._closed and not self._pulls.is_started(process_queue):
                self._begin(process_queue)
        return len(taken) == len(admitted)

    async def _settle_starts(self, queues: Sequence[MessageQueue]) -> None:
        """Commit where the group starts: if this member died now, the next one, which may start at
        the end, would miss messages."""
        starts = {
            queue: self.assigned[queue].commit_offset
            for queue in queues
            if queue in self.assigned and self._offsets.known(queue) is None
        }
        for error in await self._offsets.commit(starts):
            log.warning("group %s: start not committed, tried again: %s", self._group, error)

    def _note(self, topic: str) -> None:
        """Remember which queues were made after this member joined."""
        route = self._services.routes.known(topic)
        queues = set(route.subscribe_queues) if route is not None else set[MessageQueue]()
        seen = self._seen.setdefault(topic, queues)
        self._late |= queues - seen
        seen |= queues

    def _start_of(self, queue: MessageQueue) -> StartFrom:
        if queue in self._late and self._start_from.where in ("last", "now"):
            return StartFrom("timestamp", self._joined_ms - LATE_SLACK_MS)
        return self._start_from

    def _start(self, queue: MessageQueue, offset: int) -> None:
        process_queue = self._pulls.new_queue(queue, offset)
        self.assigned[queue] = process_queue
        self._begin(process_queue)

    def _begin(self, process_queue: ProcessQueue) -> None:
        queue = process_queue.queue
        process_queue.paused = queue in self._paused
        self._pulls.start(process_queue)

    def _tell_hooks(self, topic: str) -> None:
        each(self._services.hooks, lambda hook: hook.rebalanced(self._group, topic))

    async def _tell(self, callback: QueuesCallback | None, queues: Sequence[MessageQueue]) -> None:
        """Call the user's callback, with all queues but those of the retry topic."""
        unwrap = self._services.namespace.unwrap_queue
        visible = [unwrap(queue) for queue in queues if not is_retry_topic(queue.topic)]
        if callback is None or not visible:
            return
        try:
            outcome = callback(visible)
            if inspect.isawaitable(outcome):
                await outcome
        except Exception:
            log.exception("group %s: a rebalance callback failed, going on", self._group)
