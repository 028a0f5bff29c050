"""Other brokers of a topic, and where their gRPC endpoints are.

A client has one access point and needs each broker of its topic. So a route names the queues of all
of them. With grpcProxyMode=LOCAL each broker's have its own endpoints, to which the client then
goes by itself: a broker that fails takes nobody's messages but its own along. With CLUSTER, as of
RocketMQ's proxy, all have this endpoint, which forwards calls (`forwarding/cluster.py`).

    which brokers    the name servers say, as to any client of RocketMQ 4: the present master of
                     each, also after another replica was elected
    which endpoint   the broker itself says, among its figures (28): for clients
                     grpcAdvertisedAddress, else brokerIP1 and grpcListenPort; for brokers always
                     these two

A broker without an endpoint, or one of RocketMQ's, has no queues in the route. What was learned is
kept for a while, and beyond that when nobody answers, or no name server knows the topic: one that
has just started knows none, until brokers register again. One that is not found where it was may
have another replica for its master: the name servers are asked at once. This broker itself is not
asked about, but a replica that follows counts its master among the other brokers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from skylarkmq.broker.metrics.runtime_info import GrpcPlaces
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.bodies.route import QueueData, TopicRouteData
from skylarkmq.protocol.errors import WireError
from skylarkmq.protocol.flags import MASTER_ID
from skylarkmq.remoting.errors import RocketMQError
from skylarkmq.remoting.waiting import sleep, within

log = logging.getLogger(__name__)

ROUTE_KEPT_S: Final = 5.0
ENDPOINT_KEPT_S: Final = 30.0
AGAIN_S: Final = 0.5
"""After this a broker that was not found is looked for again."""
UNKNOWN_KEPT_S: Final = 60.0
"""What was known of a topic that no name server knows any more; brokers register every 30 s."""
ANSWER_LIMIT_S: Final = 1.0
"""For name servers, and again for brokers: a client waits for 3 s."""
ROUTES_MAX: Final = 10_000
ENDPOINTS_MAX: Final = 1_000

FindRoutes = Callable[[str], Awaitable[list[TopicRouteData | None]]]
FindGrpc = Callable[[str], Awaitable[GrpcPlaces | None]]


class OtherBroker(NamedTuple):
    """A topic's queues on another broker, and where it is found, `host:port`.

    Attributes:
        endpoint: by clients.
        address: by brokers.
    """

    queues: QueueData
    endpoint: str
    address: str

    @property
    def name(self) -> str:
        """The broker's."""
        return self.queues.broker_name


class _Known(NamedTuple):
    until_s: float
    told_s: float  # when a name server knew the topic last
    rows: list[tuple[QueueData, str]]  # with each broker's master, `host:port`


class OtherBrokers:
    """Knows other brokers. Loop thread.

    Attributes:
        is_own: as given.
    """

    def __init__(
        self,
        is_own: Callable[[str], bool],
        clock: Clock,
        find_routes: Callable[[], FindRoutes | None],
        find_grpc: FindGrpc,
    ) -> None:
        """Begin without knowledge.

        Args:
            is_own: tells whether a broker's name is this one's, and it leads.
            clock: of peers.
            find_routes: returns what asks the name servers for a topic's route; None while this
                broker is registered nowhere.
            find_grpc: asks a broker where it is found by gRPC; None: nowhere.
        """
        self.is_own = is_own
        self._clock = clock
        self._find_routes = find_routes
        self._find_grpc = find_grpc
        self._routes: dict[str, _Known] = {}
        self._places: dict[str, tuple[float, GrpcPlaces | None]] = {}
        self._found: dict[str, tuple[float, list[OtherBroker]]] = {}  # with when it was looked for
        self._asking: dict[str, asyncio.Task[list[OtherBroker]]] = {}

    def start(self) -> None:
        """Begin; whoever asks has answers looked for."""

    def stop(self) -> None:
        """Look for nothing any more."""
        for task in self._asking.values():
            task.cancel()

    async def of(self, topic: str) -> list[OtherBroker]:
        """Return a topic's queues on other brokers that have an endpoint.

        Those who ask for one topic at a time share the answers.
        """
        return await asyncio.shield(self._asked(topic))

    def known(self, topic: str) -> list[OtherBroker] | None:
        """Return the same as it was found last, and look again when that is a while ago.

        None: it was not looked for yet, `of` is to be asked.
        """
        found = self._found.get(topic)
        if found is None:
            return None
        asked_s, other_brokers = found
        if asked_s + ROUTE_KEPT_S <= self._clock.monotonic():
            self._asked(topic)
        return other_brokers

    async def find(self, broker_name: str, topic: str) -> OtherBroker | None:
        """Return another broker that has a topic; None: there is none of this name."""
        other_brokers = self.known(topic)
        if other_brokers is None or all(each.name != broker_name for each in other_brokers):
            other_brokers = await self.of(topic)
        return next((each for each in other_brokers if each.name == broker_name), None)

    async def again(self, topic: str, deadline_s: float | None) -> bool:
        """Look for a topic's brokers anew, a moment later: one was not found where it had been.

        Args:
            deadline_s: of who waits for one, on the clock of peers; None: nobody does.

        Returns:
            Whether there was time for it before the deadline.
        """
        known, now_s = self._routes.get(topic), self._clock.monotonic()
        if known is not None:  # many wait: one question in AGAIN_S is enough for all of them
            until_s = min(known.until_s, known.told_s + AGAIN_S)
            self._routes[topic] = known._replace(until_s=until_s)
        if deadline_s is None or deadline_s <= now_s + AGAIN_S:
            return False
        await sleep(self._clock, AGAIN_S)
        await self.of(topic)
        return True

    def _asked(self, topic: str) -> asyncio.Task[list[OtherBroker]]:
        task = self._asking.get(topic)
        if task is None:
            task = self._asking[topic] = asyncio.ensure_future(self._look(topic))
            task.add_done_callback(lambda done: self._asking.pop(topic, None))
        return task

    async def _look(self, topic: str) -> list[OtherBroker]:
        asked_s = self._clock.monotonic()
        known = self._routes.get(topic)
        if known is None or known.until_s <= asked_s:
            known = await self._ask_name_servers(topic, known)
        places = await asyncio.gather(*(self._place(address) for _, address in known.rows))
        found = [
            OtherBroker(queues, *place)
            for (queues, _), place in zip(known.rows, places, strict=True)
            if place is not None
        ]
        if len(self._found) >= ROUTES_MAX:
            self._found.clear()
        self._found[topic] = asked_s, found
        return found

    async def _ask_name_servers(self, topic: str, known: _Known | None) -> _Known:
        find = self._find_routes()
        answers: list[TopicRouteData | None] = []
        if find is not None:
            try:
                answers = await within(self._clock, ANSWER_LIMIT_S, find(topic))
            except TimeoutError:
                log.info("no name server tells where else %s is", topic)
        now_s = self._clock.monotonic()
        rows, told_s = self._rows(answers), now_s
        if known is not None and not any(answers):
            told_s = known.told_s
            if not answers or now_s < told_s + UNKNOWN_KEPT_S:
                rows = known.rows
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        found = self._routes[topic] = _Known(now_s + ROUTE_KEPT_S, told_s, rows)
        return found

    def _rows(self, answers: list[TopicRouteData | None]) -> list[tuple[QueueData, str]]:
        """Return each other broker's queues once, whoever named them, by the brokers' names."""
        rows: dict[str, tuple[QueueData, str]] = {}
        for route in filter(None, answers):
            masters = {
                broker.broker_name: broker.broker_addrs[MASTER_ID]
                for broker in route.broker_datas
                if MASTER_ID in broker.broker_addrs
            }
            for queues in route.queue_datas:
                name = queues.broker_name
                if name in masters and not self.is_own(name):
                    rows.setdefault(name, (queues, masters[name]))
        return [rows[name] for name in sorted(rows)]

    async def _place(self, address: str) -> GrpcPlaces | None:
        until_s, place = self._places.get(address, (0.0, None))
        if until_s > self._clock.monotonic():
            return place
        try:
            place = await within(self._clock, ANSWER_LIMIT_S, self._find_grpc(address))
            kept_s = ENDPOINT_KEPT_S
        except (TimeoutError, RocketMQError, WireError) as error:
            log.info("the broker at %s does not tell its gRPC endpoint: %s", address, error)
            kept_s = ROUTE_KEPT_S  # with the last answer
        if len(self._places) >= ENDPOINTS_MAX:
            self._places.clear()
        self._places[address] = self._clock.monotonic() + kept_s, place
        return place
