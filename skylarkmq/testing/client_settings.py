"""The arguments of `Client` that a test's broker passes on: all but the address."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, TypedDict

from skylarkmq.common.clock import Clock

if TYPE_CHECKING:  # the SDK is loaded by whoever asks for a client
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from skylarkmq.client.config import AddressMap, Codec, Credentials
    from skylarkmq.client.wire.stream import Network
    from skylarkmq.client.wire.tls import ServerHostname, SslSetting


class ClientSettings(TypedDict, total=False):
    """Keyword arguments of `skylarkmq.client.Client`, and of the blocking one."""

    namespace: str | None
    credentials: Credentials | None
    ssl: SslSetting
    server_hostname: ServerHostname
    client_ip: str | None
    instance_name: str | None
    unit_name: str | None
    codec: Codec
    request_timeout: float
    route_refresh: float
    heartbeat_interval: float
    address_map: AddressMap | None
    metrics: CollectorRegistry | None
    tracer_provider: TracerProvider | None
    network: Network | None
    clock: Clock | None
    random: Random | None
