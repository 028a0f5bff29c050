"""The client: what its producers and consumers share.

One connection to each broker, one route table, one heartbeat for all groups, one client id. Three
tasks run while it is started: heartbeats, the refresh of all routes, and the search for routes that
are still missing.

Runs in the caller's loop only; makes no loop, no thread, and no signal handler.
Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/factory/MQClientInstance.java
(startScheduledTask, sendHeartbeatToAllBroker), client/.../ClientConfig.java (buildMQClientId)
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Coroutine
from ipaddress import ip_address
from random import Random
from types import TracebackType
from typing import Any, Final, Protocol, Self

from skylarkmq.client.api_consumer import ConsumerApi
from skylarkmq.client.clock import SystemClock, sleep, wait_event
from skylarkmq.client.config import (
    MISSING_ROUTE_REFRESH_S,
    AddressMap,
    ClientConfig,
    Codec,
    default_namesrv_addr,
)
from skylarkmq.client.connection import Connection
from skylarkmq.client.errors import IllegalState, RequestTimeout, RocketMQError
from skylarkmq.client.nameserver import NameServers
from skylarkmq.client.remoting import Remoting
from skylarkmq.client.route import MASTER_ID, RouteTable
from skylarkmq.client.stream import AsyncioNetwork, Network
from skylarkmq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData
from skylarkmq.protocol.clock import Clock
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.headers.client import UnregisterClientRequestHeader
from skylarkmq.protocol.message_id import UniqueIdGenerator
from skylarkmq.protocol.remoting_command import RemotingCommand

log = logging.getLogger(__name__)

JITTER: Final = 0.1
HEARTBEAT_DELAY_S: Final = 0.2


class Member(Protocol):
    """A consumer, as the client sees it."""

    @property
    def group(self) -> str:
        """Its consumer group."""
        ...

    def consumer_data(self) -> ConsumerData:
        """Return its part of the heartbeat."""
        ...

    def wake(self) -> None:
        """The group's members or a route may have changed: rebalance soon."""
        ...


class Services:
    """What a started client offers to its producers and consumers."""

    def __init__(self, config: ClientConfig, network: Network, clock: Clock, random: Random):
        self.config = config
        self.clock = clock
        self.random = random
        self.members: dict[str, Member] = {}
        """Consumers by group."""
        self.beat_wanted = asyncio.Event()
        self.remoting = Remoting(network, clock, random, config.codec, self._pushed)
        self.name_servers = NameServers(
            self.remoting, config.name_servers, config.request_timeout_s, random
        )
        self.routes = RouteTable(self.name_servers, config.mapped, clock, self._route_changed)
        self.consumer_api = ConsumerApi(self.remoting)

    def _pushed(self, connection: Connection, push: RemotingCommand) -> None:
        """Take a request of the broker; unknown ones are answered with nothing, as in Java."""
        if push.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            member = self.members.get(push.ext_fields.get("consumerGroup", ""))
            if member is not None:
                member.wake()
        else:
            log.debug("%s pushed a request of code %d, ignored", connection.address, push.code)

    def _route_changed(self, topic: str) -> None:
        log.info("route of %s changed", topic)
        self.beat_wanted.set()  # there may be a broker that does not know this client yet
        for member in self.members.values():
            member.wake()


class Client:
    """A connection to a RocketMQ or SkylarkMQ cluster, shared by producers and consumers.

    async with Client("127.0.0.1:9876") as client:
        async with Producer(client) as producer: ...
    """

    def __init__(
        self,
        namesrv_addr: str | None = None,
        *,
        client_ip: str | None = None,
        instance_name: str | None = None,
        unit_name: str | None = None,
        codec: Codec = "auto",
        request_timeout: float = 3.0,
        route_refresh: float = 30.0,
        heartbeat_interval: float = 30.0,
        address_map: AddressMap | None = None,
        network: Network | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        """Take the settings; nothing is connected before `start`.

        Args:
            namesrv_addr: name servers, parted by semicolons; default: environment NAMESRV_ADDR,
                else 127.0.0.1:9876.
            client_ip: this host in the client id and in message ids; default: the address that
                faces the name server.
            instance_name: tells clients of one host apart; default: process id and a random part.
            codec: header codec; `auto` is JSON, and msgpack where the peer is ours.
            request_timeout, route_refresh, heartbeat_interval: seconds.
            address_map: the address to dial for one that a broker advertises, as a mapping or a
                function; for containers, NAT and tunnels.
            network, clock, random: taken from the system unless a test hands them in.
        """
        self._config = ClientConfig(
            namesrv_addr=namesrv_addr or default_namesrv_addr(),
            client_ip=client_ip,
            instance_name=instance_name,
            unit_name=unit_name,
            codec=codec,
            request_timeout_s=request_timeout,
            route_refresh_s=route_refresh,
            heartbeat_interval_s=heartbeat_interval,
            address_map=address_map,
        )
        self._network = network or AsyncioNetwork()
        self._clock = clock
        self._random = random or Random()
        self._services: Services | None = None
        self._starting = asyncio.Lock()
        self._closed = False
        self._client_id = ""
        self._unique_ids: UniqueIdGenerator | None = None
        self._producer_groups: Counter[str] = Counter()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect to a name server; does nothing when started already.

        Raises:
            ConnectionFailed: no name server can be reached.
            IllegalState: closed before.
        """
        async with self._starting:
            if self._closed:
                raise IllegalState("the client is closed")
            if self._services is not None:
                return
            clock = self._clock or SystemClock(asyncio.get_running_loop())
            services = Services(self._config, self._network, clock, self._random)
            try:
                local_ip = await services.name_servers.connect()
            except BaseException:
                await services.remoting.stop()
                raise
            self._name_client(self._config.client_ip or local_ip, clock)
            self._services = services
            config = self._config
            self._tasks = [
                self._run(self._beat(services), "heartbeat"),
                self._run(
                    self._refresh(services, config.route_refresh_s, missing_only=False), "routes"
                ),
                self._run(
                    self._refresh(services, MISSING_ROUTE_REFRESH_S, missing_only=True),
                    "missing-routes",
                ),
            ]

    async def close(self) -> None:
        """End the tasks and close all connections. Stop producers and consumers before."""
        self._closed = True
        services, self._services = self._services, None
        # What needs no waiting comes first, so that a cancelled close has closed all the same.
        for task in self._tasks:
            task.cancel()
        if services is not None:
            services.routes.cancel()
            services.remoting.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if services is not None:
            await services.routes.stop()
            await services.remoting.stop()

    @property
    def client_id(self) -> str:
        """`<ip>@<instance>[@<unit>]`, as brokers know this client; empty before `start`."""
        return self._client_id

    @property
    def services(self) -> Services:
        """The inside of a started client.

        Raises:
            IllegalState: not started, or closed.
        """
        if self._services is None:
            raise IllegalState("the client is closed" if self._closed else "not started")
        return self._services

    @property
    def unique_ids(self) -> UniqueIdGenerator:
        """The ids that its messages get.

        Raises:
            IllegalState: not started.
        """
        if self._unique_ids is None:
            raise IllegalState("the client is not started")
        return self._unique_ids

    # For producers and consumers

    def join_producer(self, group: str) -> None:
        """Name the producer group in heartbeats from now on; the next one goes out soon."""
        self._producer_groups[group] += 1
        self.want_heartbeat()

    async def leave_producer(self, group: str) -> None:
        """Undo one `join_producer`; the last one tells the brokers."""
        self._producer_groups[group] -= 1
        if self._producer_groups[group] <= 0:
            del self._producer_groups[group]
            await self._unregister(
                UnregisterClientRequestHeader(client_id=self._client_id, producer_group=group)
            )

    def join_consumer(self, member: Member) -> None:
        """Add a consumer.

        Raises:
            IllegalState: this client is in that group already. Members of one group are told apart
                by the client id, so a second one needs a client of its own.
        """
        members = self.services.members
        if member.group in members:
            raise IllegalState(
                f"this client has a consumer in group {member.group} already",
                hint="Give the second consumer a Client of its own",
            )
        members[member.group] = member

    async def leave_consumer(self, member: Member) -> None:
        """Take a consumer out and tell the brokers."""
        services = self.services
        if services.members.get(member.group) is member:
            del services.members[member.group]
            await self._unregister(
                UnregisterClientRequestHeader(
                    client_id=self._client_id, consumer_group=member.group
                )
            )

    def want_heartbeat(self) -> None:
        """Let a heartbeat go out soon instead of at its time."""
        self.services.beat_wanted.set()

    async def send_heartbeats(self) -> None:
        """Send a heartbeat to every broker of the known routes now; failures are logged.

        Pure producers speak to masters only, as in Java.
        """
        services = self.services
        services.beat_wanted.clear()
        consumers = [member.consumer_data() for member in services.members.values()]
        data = HeartbeatData(
            client_id=self._client_id,
            consumer_data_set=consumers,
            producer_data_set=[ProducerData(group_name=name) for name in self._producer_groups],
        )
        if not data.consumer_data_set and not data.producer_data_set:
            return
        addresses = {
            address
            for broker in services.routes.brokers().values()
            for broker_id, address in broker.items()
            if consumers or broker_id == MASTER_ID
        }
        await asyncio.gather(*(self._send_heartbeat(address, data) for address in addresses))

    # Inside

    def _name_client(self, ip: str, clock: Clock) -> None:
        address = ip_address(ip.partition("%")[0])
        instance = self._config.instance_name or f"{os.getpid()}#{self._random.getrandbits(48):x}"
        parts = [ip, instance, self._config.unit_name]
        self._client_id = "@".join(part for part in parts if part)
        seed = self._random.getrandbits(32)
        self._unique_ids = UniqueIdGenerator(address.packed, os.getpid(), seed, clock)

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.create_task(work, name=f"skylarkmq-client-{name}")

    async def _beat(self, services: Services) -> None:
        interval_s = self._config.heartbeat_interval_s
        while True:
            if await wait_event(services.clock, services.beat_wanted, interval_s):
                # Several wishes at the same time are one, and one that somebody fulfils is none.
                await sleep(services.clock, HEARTBEAT_DELAY_S)
                if not services.beat_wanted.is_set():
                    continue
            try:
                await self.send_heartbeats()
            except Exception:
                log.exception("heartbeat failed, the next one goes out in its time")

    async def _refresh(self, services: Services, interval_s: float, *, missing_only: bool) -> None:
        while True:
            jitter = self._random.uniform(1 - JITTER, 1 + JITTER)
            await sleep(services.clock, interval_s * jitter)
            try:
                await services.routes.refresh_all(missing_only=missing_only)
            except Exception:
                log.exception("route refresh failed, the next one comes in its time")

    async def _send_heartbeat(self, address: str, data: HeartbeatData) -> None:
        services = self.services
        connection: Connection | None = None
        seen_count = 0
        try:
            connection = await services.remoting.connection(address)
            seen_count = connection.answers_count
            await services.consumer_api.heartbeat(address, data, self._config.request_timeout_s)
        except RequestTimeout as error:
            log.warning("heartbeat to %s: %s", address, error)
            if connection is not None and connection.answers_count == seen_count:
                # Half open: nothing at all came back. A new connection finds out.
                connection.close("no answer to a heartbeat")
        except RocketMQError as error:
            log.warning("heartbeat to %s: %s", address, error)

    async def _unregister(self, header: UnregisterClientRequestHeader) -> None:
        """Tell the brokers that are connected; who does not hear it finds out by time."""
        services = self.services
        timeout_s = self._config.request_timeout_s
        calls = [
            services.consumer_api.unregister(address, header, timeout_s)
            for broker in services.routes.brokers().values()
            for address in broker.values()
            if services.remoting.ready(address) is not None
        ]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                log.debug("unregistering: %s", outcome)
