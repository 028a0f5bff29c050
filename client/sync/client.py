"""Client, blocking: the owner of the loop thread on which the objects that share it run."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from skylarkmq.client.config import AddressMap, Codec, Credentials
from skylarkmq.client.instance import Client as AsyncClient
from skylarkmq.client.sync.inner import Inner
from skylarkmq.client.sync.portal import Portal
from skylarkmq.client.wire.stream import Network
from skylarkmq.client.wire.tls import ServerHostname, SslSetting
from skylarkmq.common.clock import Clock

if TYPE_CHECKING:  # both are loaded only for those who use them
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

T = TypeVar("T")


class Client:
    """A connection to a cluster; `skylarkmq.client.Client` without await. Any thread.

    with Client("127.0.0.1:9876") as client:
        with Producer(client=client) as producer: ...

    After a fork the child's client is another one: it connects anew when it is used, under another
    client id, and what stands on it starts anew likewise. One that is not closed is closed at the
    end of the program, which waits five seconds for that at most.
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
        """Take the settings, as the asynchronous one does."""

        def make() -> AsyncClient:
            return AsyncClient(
                namesrv_addr,
                namespace=namespace,
                credentials=credentials,
                ssl=ssl,
                server_hostname=server_hostname,
                client_ip=client_ip,
                instance_name=instance_name,
                unit_name=unit_name,
                codec=codec,
                request_timeout=request_timeout,
                route_refresh=route_refresh,
                heartbeat_interval=heartbeat_interval,
                address_map=address_map,
                metrics=metrics,
                tracer_provider=tracer_provider,
                network=network,
                clock=clock,
                random=random,
            )

        self.portal = Portal()
        """The way into the loop thread; for the objects that share it."""
        self._inner = Inner(self.portal, make)
        self.portal.close_at_exit(self.stop)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Connect to a name server; does nothing when started already.

        Raises:
            ConnectionFailed: no name server can be reached.
            IllegalState: closed before.
        """
        self._inner.start()

    def stop(self) -> None:
        """Close all connections and end the thread. Stop producers and consumers before."""
        try:
            self._inner.end(lambda it: it.stop())
        finally:
            self.portal.close()

    @property
    def client_id(self) -> str:
        """`<ip>@<instance>[@<unit>]`, as brokers know this client; empty before `start`."""
        return self._inner.current().client_id

    def maker(self, make: Callable[[AsyncClient], T]) -> Callable[[], T]:
        """Return what makes an object on the asynchronous client of this process."""
        return lambda: make(self._inner.current())
