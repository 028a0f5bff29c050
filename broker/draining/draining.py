"""Moves clients away before this broker is stopped: no failed send, and no message twice.

    serving      nothing is asked for
    producers    name servers tell clients to send elsewhere; what still comes is stored as ever
    consumers    consumers have confirmed all; name servers tell them to read elsewhere
    drained      nobody sends or waits here any more: a stop is not seen by clients
    impossible   there is nobody to move to; nothing was changed

The broker itself registers its topics without the permission to write, then without any, so a name
server that starts again meanwhile, or a topic that changes, undoes nothing. Its own table of topics
stays as it is: a client that has not heard of it is served, never refused. After the start that
follows the broker registers as ever.

How it is seen that clients have moved: clients ask for routes anew every 30 s, so after that time
(`DrainOrder.refresh_s`) producers have, when no send came for QUIET_S. Consumers have, when all
groups with members have confirmed every message, and nobody waits for one, by a held pull or a
receive of a group that pops, after those who did were answered. A client that pulls without being
held, or names the queue that it sends to, is not seen, or keeps the drain from its end:
`DrainState.waits_for` says what it waits for.

A topic moves only when another broker takes its messages, as every name server that answers says,
and when it is not ordered: a key must keep its queue. Other topics stay, and their clients see the
stop. A replica that leads lets another one lead; whoever is no master has nothing to move.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from skylarkmq.broker.base.stats import OTHER, BrokerStats, Traffic
from skylarkmq.broker.groups.consumer_manager import (
    BROADCASTING,
    ConsumerGroupInfo,
    ConsumerManager,
)
from skylarkmq.broker.groups.consumer_offset import ConsumerOffsetManager
from skylarkmq.broker.pop.consumption import pop_retry_topic
from skylarkmq.broker.pop.handles import PLUS_RETRY, RETRY
from skylarkmq.broker.pop.receiving import Receiver
from skylarkmq.broker.pulling.long_polling import PullRequestHoldService
from skylarkmq.broker.replication.failover.replica_events import State
from skylarkmq.broker.replication.failover.replica_status import Replicated
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.bodies.route import TopicRouteData
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import (
    MASTER_ID,
    PermName,
    is_system_topic,
    is_writeable,
    reply_topic,
)
from skylarkmq.remoting.waiting import sleep
from skylarkmq.store.message_store import MessageStore

if TYPE_CHECKING:
    from skylarkmq.broker.registration.service import RegistrationService

log = logging.getLogger(__name__)

REFRESH_S: Final = 30.0
"""How often clients ask for routes anew: `pollNameServerInterval` of Java, `route_refresh` here."""
LOOK_EVERY_S: Final = 1.0
QUIET_S: Final = 3.0
"""No send, and no request that waits, for so long: a client that is still here would have come."""
ROUTES_AT_ONCE: Final = 32
SHOWN: Final = 20


class Phase(Enum):
    """The phases of a drain, in their order; an impossible one does not go on."""

    SERVING = "serving"
    PRODUCERS = "producers"
    CONSUMERS = "consumers"
    DRAINED = "drained"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class DrainOrder:
    """What somebody asks for.

    refresh_s: clients learn a new route within this time, s.
    leaving: brokers that leave as well, so that nothing can move to them.
    """

    refresh_s: float = REFRESH_S
    leaving: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DrainState:
    """How a drain stands.

    waits_for: what has to happen yet, for a human.
    stays: topics whose clients cannot move, at most SHOWN of them.
    moved: how many topics move.
    why: why it is impossible, or why nothing had to move.
    """

    phase: Phase = Phase.SERVING
    waits_for: tuple[str, ...] = ()
    stays: tuple[str, ...] = ()
    stay_count: int = 0
    moved: int = 0
    why: str = ""


class DrainSources(NamedTuple):
    """Where a drain sees who is still here."""

    broker_name: str
    cluster_name: str
    topics: TopicConfigManager
    store: MessageStore
    offsets: ConsumerOffsetManager
    consumers: ConsumerManager
    holding: PullRequestHoldService
    pop: Receiver
    stats: BrokerStats
    replica: Callable[[], Replicated | None]


class Draining:
    """The one drain of a broker. Loop thread."""

    def __init__(self, sources: DrainSources, announcer: RegistrationService, clock: Clock) -> None:
        self.state = DrainState()
        self._sources = sources
        self._announcer = announcer
        self._clock = clock
        self._order = DrainOrder()
        self._task: asyncio.Task[None] | None = None
        self._is_announced = False  # name servers are told something
        self._moving: dict[str, int] = {}  # topic -> its own permission

    @property
    def is_told(self) -> bool:
        """Whether name servers know what clients are to do, or there is nothing to know."""
        is_asking = self.state.phase is Phase.PRODUCERS and not self._is_announced
        return not is_asking and not self._announcer.not_told()

    def start(self, order: DrainOrder) -> None:
        """Begin; one that goes on, or is over, stays as it is."""
        if self.state.phase in (Phase.SERVING, Phase.IMPOSSIBLE) and self._task is None:
            self._order, self._is_announced = order, False
            self.state = DrainState(Phase.PRODUCERS, ("name servers are asked",))
            self._task = asyncio.get_running_loop().create_task(self._run(), name="drain")
            self._task.add_done_callback(self._ended)

    async def undo(self) -> None:
        """Let clients come back."""
        await self.stop()
        if self._moving:
            self._moving = {}
            self._announcer.withhold({})
            log.warning("the drain is undone: clients may come back")
        self.state = DrainState()

    async def stop(self) -> None:
        """Look no more; what name servers were told stays. For the stop of the broker."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._task is task:
            self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the drain has failed; name servers keep what they know", exc_info=error)
            self.state = DrainState(Phase.IMPOSSIBLE, why=f"it has failed: {error!r}")

    async def _run(self) -> None:
        replica = self._sources.replica()
        if replica is not None:
            await self._hand_over(replica)
        elif not self._announcer.is_master:
            self._drained("it is no master: nobody sends here, and consumers find the others")
        elif await self._survey():
            await self._move_producers()
            await self._move_consumers()
            self._drained("")

    async def _hand_over(self, replica: Replicated) -> None:
        if replica.status().state == State.MASTER:
            try:
                await replica.switch_over("")
            except RemoteProtocolError as error:
                self._impossible(f"no other replica leads: {error.remark}")
                return
        self._drained("another replica of the set leads, or will")

    async def _survey(self) -> bool:
        """Find what can move; return whether anything can."""
        table = self._sources.topics.table
        movable, is_answered = await self._elsewhere([n for n, t in table.items() if not t.order])
        self._moving = {name: table[name].perm for name in movable if name in table}
        self._note(Phase.PRODUCERS)
        if not is_answered:
            self._impossible("no name server answers, so that clients cannot be told")
        elif not movable or (self.state.stay_count and not any(map(self._is_told, movable))):
            self._impossible(
                "no other broker takes the messages of its topics: clients would have nowhere to "
                "go. Producers see errors while this broker is stopped; nothing stored is lost"
            )
        else:
            return True
        self._moving = {}
        return False

    async def _elsewhere(self, topics: Sequence[str]) -> tuple[set[str], bool]:
        """Return the topics that another broker takes, and whether any name server answered."""
        found: set[str] = set()
        is_answered = not topics
        for first in range(0, len(topics), ROUTES_AT_ONCE):
            part = topics[first : first + ROUTES_AT_ONCE]
            answers = await asyncio.gather(*map(self._announcer.routes, part))
            for topic, routes in zip(part, answers, strict=True):
                is_answered = is_answered or bool(routes)
                if routes and all(self._has_another_writer(route) for route in routes):
                    found.add(topic)
        return found, is_answered

    def _has_another_writer(self, route: TopicRouteData | None) -> bool:
        if route is None:
            return False
        masters = {b.broker_name for b in route.broker_datas if MASTER_ID in b.broker_addrs}
        others = masters - {self._sources.broker_name, *self._order.leaving}
        return any(
            queues.broker_name in others
            and is_writeable(queues.perm)
            and queues.write_queue_nums > 0
            for queues in route.queue_datas
        )

    async def _move_producers(self) -> None:
        await self._announce(Phase.PRODUCERS, ~PermName.PERM_WRITE)
        until_s = self._clock.monotonic() + self._order.refresh_s
        sent, quiet_since_s = self._sent(), self._clock.monotonic()
        while True:  # until nobody sends, or the drain is undone
            now_s, before, sent = self._clock.monotonic(), sent, self._sent()
            if sent != before:
                quiet_since_s = now_s
            waits = self._time_left(until_s, now_s)
            if now_s - quiet_since_s < QUIET_S:
                waits.append(f"producers still sent {now_s - quiet_since_s:.0f} s ago")
            waits += self._behind()
            if not waits:
                return
            self._note(Phase.PRODUCERS, waits)
            await sleep(self._clock, LOOK_EVERY_S)

    async def _move_consumers(self) -> None:
        await self._announce(Phase.CONSUMERS, 0)
        until_s = self._clock.monotonic() + self._order.refresh_s
        quiet_since_s = self._clock.monotonic()
        while True:  # until nobody waits for messages, or the drain is undone
            now_s = self._clock.monotonic()
            waits = self._time_left(until_s, now_s)
            if not waits:
                held = self._answer_held()
                if held:
                    quiet_since_s = now_s
                if now_s - quiet_since_s < QUIET_S:
                    waits.append(f"consumers still waited for messages: {held} requests")
            waits += self._behind()
            if not waits:
                return
            self._note(Phase.CONSUMERS, waits)
            await sleep(self._clock, LOOK_EVERY_S)

    async def _announce(self, phase: Phase, mask: int) -> None:
        """Have all name servers know that clients are to go, and see that they still can."""
        while True:  # once more for each topic that cannot move any longer
            self._announcer.withhold({name: perm & mask for name, perm in self._moving.items()})
            self._is_announced = True
            log.warning("draining: name servers are told that %s are to go", phase.value)
            while behind := self._announcer.not_told():
                self._note(phase, [f"name server {name} is told" for name in behind])
                await sleep(self._clock, LOOK_EVERY_S)
            movable, is_answered = await self._elsewhere([*self._moving])
            lost = self._moving.keys() - movable if is_answered else set[str]()
            if not lost:
                return
            log.warning("no other broker takes %s any more: it stays", ", ".join(sorted(lost)))
            self._moving = {n: perm for n, perm in self._moving.items() if n not in lost}

    def _answer_held(self) -> int:
        """Answer pulls and receives that wait for what moves; return how many there were."""
        holding = self._sources.holding
        before = holding.count
        for topic in holding.topics() & self._moving.keys():
            holding.wake_topic(topic)
        return before - holding.count + self._sources.pop.end_polls_of(self._moving)

    def _sent(self) -> int:
        """Return how many messages clients have sent to what moves."""
        total = 0
        counted: Mapping[tuple[str, str], Traffic] = self._sources.stats.topics_in
        for (topic, _), traffic in counted.items():
            if topic in self._moving or topic == OTHER:
                total += traffic.count
        return total

    def _behind(self) -> list[str]:
        """Return which groups with members have messages of what moves to confirm yet."""
        sources, behind = self._sources, list[str]()
        for (topic, group), offsets in sources.offsets.table.items():
            info = sources.consumers.group(group)
            if (
                info is None
                or not info.channels
                or info.message_model == BROADCASTING
                or not self._reads(info, topic)
            ):
                continue
            config = sources.topics.get(topic)
            count = 0 if config is None else config.read_queue_nums
            missing = sum(
                max(0, sources.store.max_offset(topic, queue_id) - offsets.get(queue_id, 0))
                for queue_id in range(count)
            )
            if missing:
                behind.append(f"group {group} has not confirmed {missing} messages of {topic}")
        return behind

    def _reads(self, info: ConsumerGroupInfo, topic: str) -> bool:
        """Return whether a group's members get messages of a topic that moves, or tries of it."""
        if topic in info.subscriptions:
            return topic in self._moving
        return info.pops and any(
            topic == pop_retry_topic(info.group, each, kind)
            for kind in (RETRY, PLUS_RETRY)
            for each in info.subscriptions
            if each in self._moving
        )

    @staticmethod
    def _time_left(until_s: float, now_s: float) -> list[str]:
        left_s = until_s - now_s
        return [f"clients ask for routes anew: {left_s:.0f} s"] if left_s > 0 else []

    def _note(self, phase: Phase, waits: Collection[str] = ()) -> None:
        table = self._sources.topics.table
        stays = sorted(n for n in table if n not in self._moving and self._is_told(n))
        self.state = DrainState(
            phase,
            tuple([*waits][:SHOWN]),
            tuple(stays[:SHOWN]),
            len(stays),
            len(self._moving),
        )

    def _is_told(self, topic: str) -> bool:
        """Return whether somebody wants to hear that a topic stays: not of those that must."""
        here = self._sources
        own = (here.broker_name, here.cluster_name, reply_topic(here.cluster_name))
        return not is_system_topic(topic) and topic not in own

    def _drained(self, why: str) -> None:
        self._note(Phase.DRAINED)
        state = self.state
        stays = ((), 0) if why else (state.stays, state.stay_count)  # others have all of it, then
        self.state = DrainState(Phase.DRAINED, (), *stays, state.moved, why)
        log.warning("drained%s", f": {why}" if why else ": it can be stopped")

    def _impossible(self, why: str) -> None:
        self.state = DrainState(
            Phase.IMPOSSIBLE, (), self.state.stays, self.state.stay_count, 0, why
        )
        log.warning("it cannot be drained: %s", why)
