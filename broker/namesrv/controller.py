"""Wires a name server: its tables, its processor and the server that clients reach it by."""

from __future__ import annotations

from skylarkmq.broker.config import BrokerConfig, NamesrvConfig
from skylarkmq.broker.namesrv.processor import NamesrvProcessor
from skylarkmq.broker.namesrv.route_info import RouteInfoManager
from skylarkmq.broker.router import Router
from skylarkmq.broker.server import RemotingServer
from skylarkmq.broker.sockets import bind, port_of
from skylarkmq.broker.stats import BrokerStats
from skylarkmq.protocol.clock import Clock


class NamesrvController:
    """A name server, alone in its process or beside a broker. Loop thread.

    Attributes:
        routes: the tables; a broker in this process registers there without a connection.
        listen_address: host and port, the port as it really is once `start` has returned.
    """

    def __init__(self, config: NamesrvConfig, clock: Clock) -> None:
        self.routes = RouteInfoManager(clock)
        self.listen_address: tuple[str, int] = (config.bind_address, config.listen_port)
        self._config = config
        stats = BrokerStats()
        self._router = Router(NamesrvProcessor(self.routes).handlers(), stats, clock)
        self._server = RemotingServer(
            self._router,
            clock,
            stats,
            idle_limit_s=config.server_channel_max_idle_time_seconds,
            max_connections=config.max_connections,
        )

    @classmethod
    def beside(cls, config: BrokerConfig, clock: Clock) -> NamesrvController:
        """Return the name server that a broker of this configuration brings along."""
        return cls(
            NamesrvConfig(
                bind_address=config.bind_address,
                listen_port=config.namesrv_listen_port,
                max_connections=config.max_connections,
                server_channel_max_idle_time_seconds=config.server_channel_max_idle_time_seconds,
            ),
            clock,
        )

    async def start(self) -> None:
        """Serve.

        Raises:
            OSError: the address can not be had.
        """
        host = self._config.bind_address
        bound = bind(host, self._config.listen_port)
        self.listen_address = (host, port_of(bound))
        await self._server.serve(bound)
        self.routes.start()

    async def stop(self) -> None:
        """Serve no more."""
        self.routes.stop()
        await self._server.stop()
        await self._router.stop()
