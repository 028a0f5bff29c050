"""What the endpoint for clients of RocketMQ 5 needs before it is loaded; no library is in here."""

from __future__ import annotations

import socket
from importlib.util import find_spec

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.net.addresses import bind
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.common.extras import how_to_install


def check_grpc(config: BrokerConfig) -> None:
    """Refuse a port for gRPC where its library is missing.

    Raises:
        ConfigError: it is missing.
    """
    if not _is_installed("google.protobuf"):
        cure = f"it needs protobuf: {how_to_install('grpc')}"
        raise ConfigError("grpcListenPort", config.grpc_listen_port, cure)


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of what stands before the dot
        return False


def bind_for_grpc(config: BrokerConfig, port: int) -> socket.socket:
    """Return the socket where clients of RocketMQ 5 connect, not listening.

    Raises:
        OSError: the address is not available; its text names the key.
    """
    try:
        return bind(config.bind_address, port)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} (grpcListenPort)") from error
