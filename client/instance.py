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
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Coroutine
from ipaddress import ip_address
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from skylarkmq.client.clock import SystemClock, sleep
from skylarkmq.client.config import (
    MISSING_ROUTE_REFRESH_S,
    AddressMap,
    ClientConfig,
    Codec,
    Credentials,
    default_namesrv_addr,
)
from skylarkmq.client.errors import NOT_STARTED, IllegalState, NotSupported
from skylarkmq.client.namespace import Namespace
from skylarkmq.client.observe.hooks import ClientHook
from skylarkmq.client.services import Member, Services
from skylarkmq.client.wire.heartbeat import Heartbeat
from skylarkmq.client.wire.stream import AsyncioNetwork, Network
from skylarkmq.client.wire.tls import ClientTls, ServerHostname, SslSetting
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.headers.group import UnregisterClientRequestHeader
from skylarkmq.protocol.message_id import UniqueIdGenerator

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from skylarkmq.client.services import Services

log = logging.getLogger(__name__)

JITTER: Final = 0.1


class Started(ABC):
    """`async with` starts it and stops it."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    @abstractmethod
    async def start(self) -> None:
        """Start; does nothing when started."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop, and close what is its own."""


class Client(Started):
    """A connection to a RocketMQ or SkylarkMQ cluster, shared by producers and consumers.

    async with Client("127.0.0.1:9876") as client:
        async with Producer(client=client) as producer: ...

    Args:
        namesrv_addr: name servers, parted by semicolons; default: environment NAMESRV_ADDR,
            else 127.0.0.1:9876.
        namespace: tenant of the cluster: topics and groups are `namespace%name` on the brokers,
            and plain names here.
        credentials: account of the brokers' access control; every request to a broker is
            signed with it, none to a name server.
        ssl: True for TLS with verification by the system's trusted issuers, or a context of
            your own (other issuers, client certificate); None or False for plain text.
        server_hostname: the name to expect in certificates in place of the host that is
            dialled, for brokers that advertise IP addresses: one name for all, a mapping from
            `host:port` or host, or a function of `host:port`.
        client_ip: this host in the client id and in message ids; default: the address that
            faces the name server.
        instance_name: tells clients of one host apart; default: process id and a random part.
        codec: header codec; `auto` is JSON, and msgpack where the peer is ours.
        request_timeout, route_refresh, heartbeat_interval: seconds.
        address_map: the address to dial for one that a broker advertises, as a mapping or a
            function; for containers, NAT and tunnels.
        metrics: a registry of prometheus-client that takes this client's metrics.
        tracer_provider: makes OpenTelemetry spans of sends, receives and handlers; needs
            `pip install 'skylarkmq[otel]'`.
        network, clock, random: taken from the system unless a test hands them in.
    """

    def __init__(
        self,
        namesrv_addr: str | None = None,
        *,
        namespace: str | None = None,
        credentials: Credentials | None = None,
        ssl: SslSetting = None,
        server_hostname: ServerHostname = None,
        client_ip: str | None = None,
        instance_name: str | None = None,
        unit_name: str | None = None,
        codec: Codec = "auto",
        request_timeout: float = 3.0,
        route_refresh: float = 30.0,
        heartbeat_interval: float = 30.0,
        address_map: AddressMap | None = None,
        metrics: CollectorRegistry | None = None,
        tracer_provider: TracerProvider | None = None,
        network: Network | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        """Take the settings; nothing is connected before `start`."""
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
            namespace=namespace,
            credentials=credentials,
        )
        self._network = network or AsyncioNetwork(ClientTls(ssl, server_hostname))
        self._observers = metrics, tracer_provider
        self._clock = clock
        self._random = random or Random()
        self._namespace = Namespace(namespace)
        self._services: Services | None = None
        self._starting = asyncio.Lock()
        self._closed = False
        self._client_id = ""
        self._unique_ids: UniqueIdGenerator | None = None
        self._producer_groups: Counter[str] = Counter()
        self._tasks: list[asyncio.Task[None]] = []
        self._heartbeat: Heartbeat | None = None

    async def start(self) -> None:
        """Connect to a name server; does nothing when started already.

        Raises:
            ConnectionFailed: no name server can be reached; a TlsError when a check of TLS is why.
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
                if self._closed:  # while it connected
                    raise IllegalState("the client is closed")
            except BaseException:
                await services.remoting.stop()
                raise
            self._name_client(local_ip, clock)
            services.client_id = self._client_id
            services.hooks += hooks_of(services, *self._observers)
            self._services = services
            config = self._config
            self._heartbeat = heartbeat = Heartbeat(
                services, self._client_id, self._producer_groups, config.heartbeat_interval_s
            )
            self._tasks = [
                self._run(heartbeat.run(), "heartbeat"),
                self._run(
                    self._refresh(services, config.route_refresh_s, missing_only=False), "routes"
                ),
                self._run(
                    self._refresh(services, MISSING_ROUTE_REFRESH_S, missing_only=True),
                    "missing-routes",
                ),
            ]

    async def stop(self) -> None:
        """End the tasks and close all connections. Stop producers and consumers before."""
        self._closed = True
        services, self._services = self._services, None
        # What needs no waiting comes first, so that a cancelled stop has closed all the same.
        for task in self._tasks:
            task.cancel()
        if services is not None:
            services.pushes.cancel()
            services.routes.cancel()
            services.remoting.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if services is not None:
            await services.pushes.stop()
            await services.routes.stop()
            await services.remoting.stop()

    @property
    def client_id(self) -> str:
        """`<ip>@<instance>[@<unit>]`, as brokers know this client; empty before `start`."""
        return self._client_id

    @property
    def namespace(self) -> Namespace:
        """Wraps and unwraps names of topics and groups; false when there is none."""
        return self._namespace

    @property
    def services(self) -> Services:
        """The inside of a started client.

        Raises:
            IllegalState: not started, or closed.
        """
        if self._services is None:
            raise IllegalState(f"the client is {'closed' if self._closed else NOT_STARTED}")
        return self._services

    @property
    def unique_ids(self) -> UniqueIdGenerator:
        """The ids that its messages get.

        Raises:
            IllegalState: not started.
        """
        if self._unique_ids is None:
            raise IllegalState(f"the client is {NOT_STARTED}")
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
        if self._heartbeat is None:
            raise IllegalState(f"the client is {NOT_STARTED}")
        await self._heartbeat.send()

    # Inside

    def _name_client(self, local_ip: str, clock: Clock) -> None:
        ip = self._config.client_ip or local_ip
        try:
            address = ip_address(ip.partition("%")[0])
        except ValueError:  # a name does for the client id; message ids want an address
            address = ip_address(local_ip.partition("%")[0])
        instance = self._config.instance_name or f"{os.getpid()}#{self._random.getrandbits(48):x}"
        parts = [ip, instance, self._config.unit_name]
        self._client_id = "@".join(part for part in parts if part)
        seed = self._random.getrandbits(32)
        self._unique_ids = UniqueIdGenerator(address.packed, os.getpid(), seed, clock)

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.create_task(work, name=f"skylarkmq-client-{name}")

    async def _refresh(self, services: Services, interval_s: float, *, missing_only: bool) -> None:
        while True:
            jitter = self._random.uniform(1 - JITTER, 1 + JITTER)
            await sleep(services.clock, interval_s * jitter)
            try:
                await services.routes.refresh_all(missing_only=missing_only)
            except Exception:
                log.exception("route refresh failed, the next one comes in its time")

    async def _unregister(self, header: UnregisterClientRequestHeader) -> None:
        """Tell the brokers that are connected; who does not hear it finds out by time."""
        services = self._services
        if services is None:
            return  # closed: its connections have told the brokers
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


class OnClient(Started):
    """A producer, a consumer and their like: they share a client, or have one of their own."""

    def __init__(self, client: Client | None, namesrv_addr: str | None) -> None:
        """Take a shared client, or name server addresses (default as for Client) for an own one.

        Raises:
            TypeError: `client` is no Client.
            ValueError: both are given.
        """
        if not isinstance(client, Client | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"client= takes a Client, not {type(client).__name__}; addresses of name servers "
                "go into namesrv_addr="
            )
        if client is not None and namesrv_addr is not None:
            raise ValueError("give client= or namesrv_addr=, not both")
        self._owns_client = client is None
        self._client = Client(namesrv_addr) if client is None else client

    async def _stop_own_client(self) -> None:
        """Stop the client, unless it is shared."""
        if self._owns_client:
            await self._client.stop()


def hooks_of(
    services: Services, metrics: CollectorRegistry | None, tracer_provider: TracerProvider | None
) -> list[ClientHook]:
    """Return the hooks for a registry of metrics and for a provider of tracers, if given.

    Raises:
        NotSupported: OpenTelemetry's library is not installed.
    """
    hooks: list[ClientHook] = []
    if metrics is not None:
        from skylarkmq.client.observe.metrics import MetricsHook

        hooks.append(MetricsHook(services, metrics))
    if tracer_provider is not None:
        try:
            from skylarkmq.client.observe.otel import OpenTelemetryHook
        except ImportError as error:
            hint = "pip install 'skylarkmq[otel]'"
            raise NotSupported("tracer_provider needs opentelemetry-api", hint=hint) from error

        hooks.append(OpenTelemetryHook(services, tracer_provider))
    return hooks
