"""Client: what producers and consumers share. `services.py` has the connections and the tasks.

It runs in the caller's loop. It makes no loop, no thread and no signal handler.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from contextlib import nullcontext
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from skylarkmq.client.clock import SystemClock
from skylarkmq.client.config import ClientConfig
from skylarkmq.client.errors import (
    NOT_STARTED,
    ConnectionFailed,
    IllegalState,
    NotSupported,
    RocketMQError,
)
from skylarkmq.client.namespace import Namespace
from skylarkmq.client.observe.hooks import ClientHook
from skylarkmq.client.services import Services
from skylarkmq.client.wire.nameserver import may_come
from skylarkmq.common.extras import how_to_install
from skylarkmq.common.settings import takes
from skylarkmq.remoting.stream import AsyncioNetwork
from skylarkmq.remoting.tls import ClientTls
from skylarkmq.remoting.waiting import fail_after, wait_event

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from skylarkmq.client.services import Services

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
"""How often a start that waits looks again, and how long its last look may take."""


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
        """Stop, and stop the client too unless it is shared."""


class Client(Started):
    """A connection to a RocketMQ or SkylarkMQ cluster, shared by producers and consumers.

        async with Client("127.0.0.1:9876") as client:
            async with Producer(client=client) as producer: ...

    Args:
        namesrv_addr: name servers, separated by semicolons; default: environment NAMESRV_ADDR,
            else 127.0.0.1:9876.
        namespace: tenant of the cluster: topics and groups are `namespace%name` on the brokers,
            and plain names here.
        credentials: account of the brokers' access control; every request is signed with
            it, those to name servers too.
        ssl: True for TLS with verification by the system's trusted issuers, or a context of
            your own (other issuers, client certificate); None or False for plain text.
        server_hostname: the name to expect in certificates in place of the host that is
            dialled, for brokers that advertise IP addresses: one name for all, a mapping from
            `host:port` or host, or a function of `host:port`.
        client_ip: this host in the client id and in message ids; default: the address that
            faces the name server.
        instance_name: tells clients of one host apart; default: process id and a random part.
        unit_name: a further part of the client id, for sites of several units.
        start_timeout: seconds that `start` waits for an answer of a name server, and for a first
            broker to register with it; 0: it does not wait. A host that does not exist,
            and a refusal by TLS or access control, end the wait at once.
        codec: header codec; `auto` is JSON, and msgpack where the peer is ours.
        request_timeout, route_refresh, heartbeat_interval: seconds.
        address_map: the address to dial for one that a broker advertises, as a mapping or a
            function; for containers, NAT and tunnels.
        metrics: the registry of prometheus-client for this client's metrics.
        tracer_provider: makes OpenTelemetry spans of sends, receives and handlers; needs
            the extra `otel`.
        network, clock, random: taken from the system unless a test hands them in.
    """

    @takes(ClientConfig)
    def __init__(self, config: ClientConfig) -> None:
        """Take the settings; nothing is connected before `start`."""
        self._config = config
        tls = ClientTls(config.ssl, config.server_hostname)
        self._network = config.network or AsyncioNetwork(tls)
        self._random = config.random or Random()
        self._namespace = Namespace(config.namespace).name
        self._services: Services | None = None
        self._starting = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._client_id = ""

    async def start(self) -> None:
        """Connect to a name server; does nothing when started already.

        It waits for `start_timeout` where nobody is there yet, and logs a line for whom.

        Raises:
            ConnectionFailed: no name server can be reached, or none answers; a TlsError when a
                check of TLS is why.
            AuthError: access control refuses the account.
            IllegalState: stopped before.
        """
        config = self._config
        clock = config.clock or SystemClock(asyncio.get_running_loop())
        # From the call on: who waits here for the start of another task waits no longer than that.
        end_s = clock.monotonic() + config.start_timeout_s
        async with self._starting:
            self._check_open()
            if self._services is not None:
                return
            services = Services(config, self._network, clock, self._random)
            try:
                services.name_itself(await self._first_address(services, end_s))
                self._check_open()  # it may have been stopped meanwhile
                services.hooks += _hooks_of(services, config.metrics, config.tracer_provider)
            except BaseException:
                await services.remoting.stop()
                raise
            services.begin()
            self._client_id = services.client_id
            self._services = services

    async def _first_address(self, services: Services, end_s: float) -> str:
        """Wait until `end_s` for a name server, and for a first broker to register with it.

        Return this side's address towards the name server. Without a broker the start goes on.
        """
        names, clock = services.name_servers, services.clock
        start_timeout_s = self._config.start_timeout_s
        told = False
        failure: RocketMQError | None = None
        while True:
            local_ip = ""
            look_s = max(end_s - clock.monotonic(), LOOK_S)
            try:
                async with fail_after(clock, look_s) if start_timeout_s else nullcontext():
                    local_ip = await names.connect()
                    if not start_timeout_s or await names.has_brokers(look_s):
                        return local_ip
                failure, who = None, f"a broker at name server {names.text}"
            except (RocketMQError, TimeoutError) as error:
                if not isinstance(error, RocketMQError):
                    what = "answer" if local_ip else "connection"
                    error = names.not_reached(
                        f"{names.text}: no {what} within {start_timeout_s:g} s"
                    )
                if not may_come(error):
                    raise
                # Without a connection later ones tell of the back-off.
                failure = error if local_ip else failure or error
                who = f"{'an answer of ' if local_ip else ''}name server {names.text}"
            self._check_open()
            left_s = end_s - clock.monotonic()
            if left_s <= 0 and failure is not None:
                if not isinstance(failure, ConnectionFailed):
                    failure = names.not_reached(failure.text)
                raise failure from None  # its text says the cause
            if left_s <= 0:
                log.warning("%s has not come, going on without it", who)
                return local_ip
            if not told:
                log.warning("waiting for %s, up to %g s (start_timeout)", who, round(left_s, 1))
                told = True
            await wait_event(clock, self._stopping, min(LOOK_S, left_s))
            self._check_open()

    def _check_open(self) -> None:
        if self._stopping.is_set():
            raise IllegalState("the client has stopped")

    async def stop(self) -> None:
        """End the tasks and close all connections. Stop its producers and consumers before."""
        self._stopping.set()
        services, self._services = self._services, None
        if services is not None:
            await services.stop()

    @property
    def client_id(self) -> str:
        """`<ip>@<instance>[@<unit>]`, as brokers know this client; empty before `start`."""
        return self._client_id

    @property
    def namespace(self) -> str:
        """The tenant whose topics and groups it sees; empty without one."""
        return self._namespace


def services_of(client: Client) -> Services:
    """Return the inside of a started client.

    Raises:
        IllegalState: not started, or stopped.
    """
    services = client._services  # pyright: ignore[reportPrivateUsage]
    if services is None:
        client._check_open()  # pyright: ignore[reportPrivateUsage]
        raise IllegalState(f"the client is {NOT_STARTED}")
    return services


class OnClient(Started):
    """Base of Producer, Consumer, PeekReader and Admin, which have a client or share one."""

    def __init__(self, client: Client | None, namesrv_addr: str | None) -> None:
        """Take a client to share, or name servers (default as for Client) for one of its own.

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
        self._namespace = Namespace(self._client.namespace)

    async def _stop_own_client(self) -> None:
        """Stop the client, unless it is shared."""
        if self._owns_client:
            await self._client.stop()


def _hooks_of(
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
            raise NotSupported(
                "tracer_provider needs opentelemetry-api", hint=how_to_install("otel")
            ) from error

        hooks.append(OpenTelemetryHook(services, tracer_provider))
    return hooks
