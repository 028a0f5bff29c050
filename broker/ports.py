"""What a broker listens on, and where clients are told to find it."""

from __future__ import annotations

import logging
import socket

from skylarkmq.broker.config.settings import HA_PORT_DISTANCE, BrokerConfig
from skylarkmq.broker.grpc.needs import bind_for_grpc
from skylarkmq.broker.net.addresses import (
    advertised_address,
    bind_pair,
    bind_three,
    in_container,
    interface_addresses,
    is_guessed,
    is_loopback,
    port_of,
    why_unreachable,
)
from skylarkmq.broker.replication.ha.ha_server import bind_for_slaves

log = logging.getLogger(__name__)


class Ports:
    """The sockets of a broker, until its servers take them.

    Attributes:
        clients: two, as RocketMQ has them.
        slaves, grpc: for slaves, and for clients of RocketMQ 5; None where nobody listens for them.
    """

    def __init__(self) -> None:
        self.clients: tuple[socket.socket, ...] = ()
        self.slaves: socket.socket | None = None
        self.grpc: socket.socket | None = None

    def bind(self, config: BrokerConfig, *, takes_slaves: bool) -> None:
        """Bind all.

        Raises:
            OSError: an address is taken.
        """
        if takes_slaves and not (config.listen_port or config.store.ha_listen_port):
            main, fast, self.slaves = bind_three(config.bind_address, HA_PORT_DISTANCE)
            self.clients = main, fast
        else:
            self.clients = bind_pair(config.bind_address, config.listen_port)
            self.slaves = bind_for_slaves(config) if takes_slaves else None
        if config.grpc_listen_port is not None:
            self.grpc = bind_for_grpc(config, config.grpc_listen_port)

    @property
    def main(self) -> int:
        """The port that clients are told."""
        return port_of(self.clients[0])

    def find_host(self, config: BrokerConfig) -> str:
        """Return the host that clients are told, and warn of one that they may not reach."""
        bound = config.bind_address
        if is_loopback(bound):
            bound = self.clients[0].getsockname()[0]  # of `localhost` that may be ::1
        host = advertised_address(config.broker_ip1, bound, interface_addresses())
        if is_guessed(config.broker_ip1, bound) and in_container():
            log.warning(
                "clients are told %s, the address of this container, which those outside its "
                "network cannot reach: set brokerIP1 to one that they can",
                host,
            )
        elif doubt := why_unreachable(host, bound, contained=in_container()):
            log.warning("%s", doubt)
        return host

    def close(self) -> None:
        """Close what was bound, and nobody listens on."""
        for bound in (*self.clients, self.slaves, self.grpc):
            if bound is not None:
                bound.close()
