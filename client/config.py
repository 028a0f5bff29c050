"""Settings of Client and Producer: names, types, defaults, checks; and what the SDK is tuned by.

Each keyword of a constructor stands once: as a field of ClientConfig and ProducerConfig, and for
Consumer in `consumer/config.py`. `settings.takes` gives the constructor these keywords, for readers
of `help`, for editors and for type checkers. The docstring of the class says what each of them
means. Durations are seconds or timedeltas, here in seconds with `_s` at the end; sizes are bytes.

Source of the defaults: apache/rocketmq@rocketmq-all-4.9.8 client/.../ClientConfig.java,
client/.../producer/DefaultMQProducer.java, client/.../consumer/DefaultMQPushConsumer.java
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Final, Literal, get_args

from skylarkmq.client.errors import DEFAULT_RETRY_CODES, IllegalState
from skylarkmq.common.clock import Clock
from skylarkmq.common.settings import names_checked, require_positive, seconds_of, seconds_or_none
from skylarkmq.protocol.frame import MAX_FRAME_SIZE
from skylarkmq.remoting.connection import Codec as Codec
from skylarkmq.remoting.stream import Network
from skylarkmq.remoting.tls import ServerHostname, SslSetting

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from skylarkmq.client.instance import Client
    from skylarkmq.client.producer.checks import Check

AddressMap = Mapping[str, str] | Callable[[str], str]
Compression = Literal["zlib", "lz4", "zstd"]

DEFAULT_NAMESRV_ADDR: Final = "127.0.0.1:9876"
DEFAULT_PRODUCER_GROUP: Final = "DEFAULT_PRODUCER"
MIB: Final = 1024 * 1024
FRAME_RESERVE: Final = 256 * 1024
"""What a frame needs beside the body: the properties, each byte up to six in JSON, and the rest."""

FIRST_LOOK_S: Final = 0.1
LATER_LOOK_S: Final = 1.0
LOOKS_S: Final = 60.0
"""How often, doubling, and how long a consumer looks for a topic that did not exist at its start:
often it is made by a program that starts beside it."""
MISSING_ROUTE_REFRESH_S: Final = 5.0
"""How often the route of a topic that nobody serves yet is asked for again."""

REBALANCE_INTERVAL_S: Final = 20.0
REBALANCE_RETRY_S: Final = 1.0

REVOKE_DRAIN_S: Final = 5.0
"""How long a queue that goes to another member waits for the handlers of its messages."""
HANDOVER_S: Final = 0.5
"""How long a member that joins, or takes queues because one did, leaves the owners of before for
that: handlers that end within it are not run twice."""

PULL_SUSPEND_MS: Final = 15_000
PULL_TIMEOUT_S: Final = 30.0
PULL_ERROR_DELAY_S: Final = 3.0
PULL_FLOW_CONTROL_DELAY_S: Final = 0.02
OFFSET_TIMEOUT_S: Final = 5.0
SEND_BACK_TIMEOUT_S: Final = 5.0

MAX_RECONSUME: Final = 16
"""Retries of a message before it is given up; an ordered consumer has no such limit by default."""
RETRY_DELAY_MAX_S: Final = 7200
"""The last of RocketMQ's delay levels."""
SUSPEND_S: Final = 1.0
"""How long a queue of an ordered consumer waits before it tries a message again."""
LOCK_REFRESH_S: Final = 20.0
LOCK_LOST_S: Final = 30.0
"""How long a queue counts as locked after the broker last said so; the broker itself waits 60 s."""
LOCK_RETRY_S: Final = 1.0
LOCK_GRACE_S: Final = 10.0
"""How long no new lock is asked for after a connection was lost: its broker may have restarted and
forgotten the locks, and their owners come first."""
LOCK_TIMEOUT_S: Final = 1.0


@names_checked
@dataclass(frozen=True, slots=True)
class Credentials:
    """An account of the brokers' access control; what prints it shows no secret.

    Raises:
        ValueError: an empty key.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)
    """Of temporary accounts of some clouds."""

    def __post_init__(self) -> None:
        if not self.access_key or not self.secret_key:
            raise ValueError("credentials need an access_key and a secret_key")


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The settings of a Client."""

    namesrv_addr: str | None = None
    _: KW_ONLY
    namespace: str | None = None
    credentials: Credentials | None = None
    ssl: SslSetting = None
    server_hostname: ServerHostname = None
    client_ip: str | None = None
    instance_name: str | None = None
    unit_name: str | None = None
    codec: Codec = "auto"
    start_timeout: float | timedelta = 30.0
    request_timeout: float | timedelta = 3.0
    route_refresh: float | timedelta = 30.0
    heartbeat_interval: float | timedelta = 30.0
    address_map: AddressMap | None = None
    metrics: CollectorRegistry | None = None
    tracer_provider: TracerProvider | None = None
    network: Network | None = None
    clock: Clock | None = None
    random: Random | None = None
    name_servers: list[str] = field(init=False)
    """The addresses; semicolons separate them, as in Java, or commas."""
    start_timeout_s: float = field(init=False)
    request_timeout_s: float = field(init=False)
    route_refresh_s: float = field(init=False)
    heartbeat_interval_s: float = field(init=False)

    def __post_init__(self) -> None:
        listed = self.namesrv_addr or default_namesrv_addr()
        servers = [part for part in re.split(r"[;,\s]+", listed) if part]
        object.__setattr__(self, "name_servers", servers)
        if not self.name_servers:
            raise ValueError("namesrv_addr names no address")
        for address in self.name_servers:
            _check_address(address)
        if self.codec not in get_args(Codec):
            raise ValueError(f"codec is one of {', '.join(get_args(Codec))}, not {self.codec!r}")
        if not isinstance(self.credentials, Credentials | None):  # pyright: ignore
            raise TypeError("credentials is Credentials(access_key, secret_key)")
        for name in ("start_timeout", "request_timeout", "route_refresh", "heartbeat_interval"):
            object.__setattr__(self, f"{name}_s", seconds_of(getattr(self, name)))
            if name != "start_timeout":
                require_positive(name, getattr(self, f"{name}_s"))
        if self.start_timeout_s < 0:
            raise ValueError("start_timeout is 0 or more")

    def mapped(self, address: str) -> str:
        """Return the address to dial for a broker that advertises `address`.

        Raises:
            IllegalState: the application's function failed.
        """
        rule = self.address_map
        if rule is None:
            return address
        if not callable(rule):
            return rule.get(address, address)
        try:
            return rule(address)
        except Exception as error:
            raise IllegalState(f"address_map failed for {address}: {error!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """The settings of a Producer."""

    client: Client | None = None
    namesrv_addr: str | None = None
    group: str = DEFAULT_PRODUCER_GROUP
    send_timeout: float | timedelta = 3.0
    retries: int = 2
    retry_on: Collection[int] = DEFAULT_RETRY_CODES
    compress_over: int = 4096
    compression: Compression = "zlib"
    max_message_size: int = 4 * MIB
    default_topic_queues: int = 4
    max_in_flight: int = 1000
    max_in_flight_bytes: int = 64 * MIB
    strict: bool = False
    strict_order: bool = False
    latency_fault: bool = False
    try_timeout: float | timedelta | None = None
    check: Check | None = None
    trace: bool | str = False
    send_timeout_s: float = field(init=False)
    try_timeout_s: float | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "send_timeout_s", seconds_of(self.send_timeout))
        object.__setattr__(self, "try_timeout_s", seconds_or_none(self.try_timeout))
        require_positive("send_timeout", self.send_timeout_s)
        if self.try_timeout_s is not None:
            require_positive("try_timeout", self.try_timeout_s)
        for name in ("max_message_size", "default_topic_queues", "max_in_flight"):
            require_positive(name, getattr(self, name))
        if self.retries < 0:
            raise ValueError("retries is 0 or more")
        if self.max_message_size > MAX_FRAME_SIZE - FRAME_RESERVE:
            raise ValueError(f"max_message_size is at most {MAX_FRAME_SIZE - FRAME_RESERVE}")
        if self.max_in_flight_bytes < self.max_message_size:
            raise ValueError("max_in_flight_bytes holds at least one message of max_message_size")


def default_namesrv_addr() -> str:
    """Return the environment's NAMESRV_ADDR, or the default address."""
    return os.environ.get("NAMESRV_ADDR", "").strip() or DEFAULT_NAMESRV_ADDR


def _check_address(address: str) -> None:
    if "://" in address:
        raise ValueError(
            f"{address[:64]!a} is a URL: name servers are host:port, as 127.0.0.1:9876, and no HTTP"
        )
    host, _, port = address.rpartition(":")
    is_number = port.isascii() and port.isdigit()
    if not host or not is_number or not 0 < int(port) < 65536:
        why = "name servers have a port, mostly 9876, as 127.0.0.1:9876"
        if host and is_number:
            why = "a port is 1 to 65535"
        raise ValueError(f"{address[:64]!a} is no host:port: {why}")
