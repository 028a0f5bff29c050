"""Other brokers of a topic, and where their gRPC endpoints are.

A client has one access point and needs each broker of its topic. So a route names the queues of all
of them, each broker's with its own endpoints, to which the client then goes by itself: nothing is
handed on from broker to broker, and a broker that fails takes nobody's messages but its own along.

    which brokers    the name servers say, as to any client of RocketMQ 4: the present master of
                     each, also after another replica was elected
    which endpoint   the broker itself says, among its figures (28): grpcAdvertisedAddress, else
                     brokerIP1 and grpcListenPort

A broker without an endpoint, or one of RocketMQ's, has no queues in the route. What was learned is
kept for a while, and beyond that when nobody answers. This broker itself is not asked about here: a
replica that does not lead has no open endpoint, so who answers is the one that clients look for.

Unlike RocketMQ's proxy, which is one endpoint for a whole cluster and calls the brokers itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from skylarkmq.common.clock import Clock
from skylarkmq.protocol.bodies.route import QueueData, TopicRouteData
from skylarkmq.protocol.errors import WireError
from skylarkmq.protocol.flags import MASTER_ID
from skylarkmq.remoting.errors import RocketMQError
from skylarkmq.remoting.waiting import within

log = logging.getLogger(__name__)

ROUTE_KEPT_S: Final = 5.0
ENDPOINT_KEPT_S: Final = 30.0
ANSWER_LIMIT_S: Final = 1.0
"""For name servers, and again for brokers: a client waits for 3 s."""
ROUTES_MAX: Final = 10_000
ENDPOINTS_MAX: Final = 1_000

FindRoutes = Callable[[str], Awaitable[list[TopicRouteData | None]]]
FindEndpoint = Callable[[str], Awaitable[str | None]]


class Neighbour(NamedTuple):
    """A topic's queues on another broker, and where clients find it, `host:port`."""

    queues: QueueData
    endpoint: str


class _Known(NamedTuple):
    until_s: float
    rows: list[tuple[QueueData, str]]  # with each broker's master, `host:port`


class Neighbours:
    """Knows other brokers. Loop thread."""

    def __init__(
        self,
        broker_name: str,
        clock: Clock,
        find_routes: Callable[[], FindRoutes | None],
        find_endpoint: FindEndpoint,
    ) -> None:
        """Begin without knowledge.

        Args:
            broker_name: this broker's.
            clock: of peers.
            find_routes: returns what asks the name servers for a topic's route; None while this
                broker is registered nowhere.
            find_endpoint: asks a broker for its endpoint; None: it has none.
        """
        self._broker_name = broker_name
        self._clock = clock
        self._find_routes = find_routes
        self._find_endpoint = find_endpoint
        self._routes: dict[str, _Known] = {}
        self._endpoints: dict[str, tuple[float, str | None]] = {}
        self._asking: dict[str, asyncio.Task[list[Neighbour]]] = {}

    def start(self) -> None:
        """Begin; whoever asks has answers looked for."""

    def stop(self) -> None:
        """Look for nothing any more."""
        for task in self._asking.values():
            task.cancel()

    async def of(self, topic: str) -> list[Neighbour]:
        """Return a topic's queues on other brokers that have an endpoint.

        Those who ask for one topic at a time share the answers.
        """
        task = self._asking.get(topic)
        if task is None:
            task = self._asking[topic] = asyncio.ensure_future(self._look(topic))
            task.add_done_callback(lambda done: self._asking.pop(topic, None))
        return await asyncio.shield(task)

    async def _look(self, topic: str) -> list[Neighbour]:
        known = self._routes.get(topic)
        if known is None or known.until_s <= self._clock.monotonic():
            known = await self._ask_name_servers(topic, known)
        endpoints = await asyncio.gather(*(self._endpoint(address) for _, address in known.rows))
        return [
            Neighbour(queues, endpoint)
            for (queues, _), endpoint in zip(known.rows, endpoints, strict=True)
            if endpoint is not None
        ]

    async def _ask_name_servers(self, topic: str, known: _Known | None) -> _Known:
        find = self._find_routes()
        answers: list[TopicRouteData | None] = []
        if find is not None:
            try:
                answers = await within(self._clock, ANSWER_LIMIT_S, find(topic))
            except TimeoutError:
                log.info("no name server tells where else %s is", topic)
        rows = self._rows(answers) if answers or known is None else known.rows
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        found = self._routes[topic] = _Known(self._clock.monotonic() + ROUTE_KEPT_S, rows)
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
                if name != self._broker_name and name in masters:
                    rows.setdefault(name, (queues, masters[name]))
        return [rows[name] for name in sorted(rows)]

    async def _endpoint(self, address: str) -> str | None:
        until_s, endpoint = self._endpoints.get(address, (0.0, None))
        if until_s > self._clock.monotonic():
            return endpoint
        try:
            endpoint = await within(self._clock, ANSWER_LIMIT_S, self._find_endpoint(address))
            kept_s = ENDPOINT_KEPT_S
        except (TimeoutError, RocketMQError, WireError) as error:
            log.info("the broker at %s does not tell its gRPC endpoint: %s", address, error)
            kept_s = ROUTE_KEPT_S  # with the last answer
        if len(self._endpoints) >= ENDPOINTS_MAX:
            self._endpoints.clear()
        self._endpoints[address] = self._clock.monotonic() + kept_s, endpoint
        return endpoint
