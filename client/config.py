"""Settings of Client, Producer and Consumer: names, types, defaults, and the check of each.

A constructor takes its settings as keywords, `**settings: Unpack[ProducerSettings]`, and makes one
checked ProducerConfig of them. Type checkers read the TypedDict; a test compares it with the
dataclass, which has the defaults. `shows` lets `help` and notebooks print the keywords. The
docstring of Producer says what each of them means. Durations are seconds, sizes bytes.

Source of the defaults: apache/rocketmq@rocketmq-all-4.9.8 client/.../ClientConfig.java,
client/.../producer/DefaultMQProducer.java, client/.../consumer/DefaultMQPushConsumer.java
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, Required, TypedDict, TypeVar, get_args

from skylarkmq.client.consumer.allocate import Assignment, find_allocation
from skylarkmq.client.errors import DEFAULT_RETRY_CODES, IllegalState
from skylarkmq.protocol.frame import MAX_FRAME_SIZE
from skylarkmq.remoting.connection import Codec as Codec

F = TypeVar("F", bound=Callable[..., Any])
AddressMap = Mapping[str, str] | Callable[[str], str]
AckMode = Literal["auto", "manual", "none"]
Model = Literal["clustering", "broadcasting"]
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


class ClientSettings(TypedDict, total=False):
    """The keywords of Client that ClientConfig checks."""

    namespace: str | None
    credentials: Credentials | None
    client_ip: str | None
    instance_name: str | None
    unit_name: str | None
    codec: Codec
    request_timeout: float
    route_refresh: float
    heartbeat_interval: float
    address_map: AddressMap | None


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The settings of a Client."""

    namesrv_addr: str
    namespace: str | None = None
    credentials: Credentials | None = None
    client_ip: str | None = None
    instance_name: str | None = None
    unit_name: str | None = None
    codec: Codec = "auto"
    request_timeout: float = 3.0
    route_refresh: float = 30.0
    heartbeat_interval: float = 30.0
    address_map: AddressMap | None = None

    def __post_init__(self) -> None:
        if not self.name_servers:
            raise ValueError("namesrv_addr names no address")
        for address in self.name_servers:
            _check_address(address)
        if self.codec not in get_args(Codec):
            raise ValueError(f"codec is one of {', '.join(get_args(Codec))}, not {self.codec!r}")
        for name in ("request_timeout", "route_refresh", "heartbeat_interval"):
            _require_positive(name, getattr(self, name))

    @property
    def name_servers(self) -> list[str]:
        """The addresses; semicolons separate them, as in Java, or commas."""
        return [part for part in re.split(r"[;,\s]+", self.namesrv_addr) if part]

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


class ProducerSettings(TypedDict, total=False):
    """The keywords of Producer that ProducerConfig checks."""

    group: str
    send_timeout: float
    retries: int
    retry_on: Collection[int]
    compress_over: int
    compression: Compression
    max_message_size: int
    default_topic_queues: int
    max_in_flight: int
    max_in_flight_bytes: int
    strict: bool
    strict_order: bool
    latency_fault: bool
    try_timeout: float | None


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """The settings of a Producer."""

    group: str = DEFAULT_PRODUCER_GROUP
    send_timeout: float = 3.0
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
    try_timeout: float | None = None

    def __post_init__(self) -> None:
        for name in ("send_timeout", "max_message_size", "default_topic_queues", "max_in_flight"):
            _require_positive(name, getattr(self, name))
        if self.try_timeout is not None:
            _require_positive("try_timeout", self.try_timeout)
        if self.retries < 0:
            raise ValueError("retries is 0 or more")
        if self.max_message_size > MAX_FRAME_SIZE - FRAME_RESERVE:
            raise ValueError(f"max_message_size is at most {MAX_FRAME_SIZE - FRAME_RESERVE}")
        if self.max_in_flight_bytes < self.max_message_size:
            raise ValueError("max_in_flight_bytes holds at least one message of max_message_size")


class ConsumerSettings(TypedDict, total=False):
    """The keywords of Consumer that ConsumerConfig checks."""

    group: Required[str]
    model: Model
    orderly: bool
    assignment: Assignment
    batch_size: int
    prefetch: int
    prefetch_bytes: int
    max_span: int
    max_reconsume: int | None
    retry_delays: Sequence[float | timedelta]
    ack: AckMode
    commit_interval: float
    consume_timeout: float
    offsets_folder: str | Path | None


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """The settings of a Consumer."""

    group: str
    model: Model = "clustering"
    orderly: bool = False
    assignment: Assignment = "average"
    batch_size: int = 32
    prefetch: int = 1000
    prefetch_bytes: int = 100 * MIB
    max_span: int = 2000
    max_reconsume: int | None = None
    retry_delays: Sequence[float | timedelta] = ()
    ack: AckMode = "auto"
    commit_interval: float = 5.0
    consume_timeout: float = 900.0
    offsets_folder: str | Path | None = None

    def __post_init__(self) -> None:
        for name in (
            "batch_size",
            "prefetch",
            "prefetch_bytes",
            "max_span",
            "commit_interval",
            "consume_timeout",
        ):
            _require_positive(name, getattr(self, name))
        if self.max_reconsume is not None and self.max_reconsume < 0:
            raise ValueError("max_reconsume is 0 or more")
        if any(not 0 <= delay_s <= RETRY_DELAY_MAX_S for delay_s in self.retry_delays_s):
            raise ValueError(f"retry_delays are 0 to {RETRY_DELAY_MAX_S} s each")
        if self.ack not in get_args(AckMode):
            raise ValueError(f"ack is one of {', '.join(get_args(AckMode))}, not {self.ack!r}")
        if self.model not in get_args(Model):
            raise ValueError(f"model is one of {', '.join(get_args(Model))}, not {self.model!r}")
        if self.orderly and self.ack == "none":
            raise ValueError("an ordered consumer acknowledges: ack is auto or manual")
        find_allocation(self.assignment)

    @property
    def retry_delays_s(self) -> list[float]:
        """The retry delays in seconds."""
        return [
            delay.total_seconds() if isinstance(delay, timedelta) else delay
            for delay in self.retry_delays
        ]

    @property
    def broadcasting(self) -> bool:
        """Every member gets every message, and keeps its own offsets."""
        return self.model == "broadcasting"

    @property
    def tries_max(self) -> int | None:
        """How often a message is tried again; None is without end."""
        if self.max_reconsume is None and not self.orderly:
            return MAX_RECONSUME
        return self.max_reconsume


def default_namesrv_addr() -> str:
    """Return the environment's NAMESRV_ADDR, or the default address."""
    return os.environ.get("NAMESRV_ADDR", "").strip() or DEFAULT_NAMESRV_ADDR


def _check_address(address: str) -> None:
    if "://" in address:
        raise ValueError(
            f"{address[:64]!a} is a URL: name servers are host:port, as 127.0.0.1:9876, and no HTTP"
        )
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise ValueError(
            f"{address[:64]!a} is no host:port: name servers have a port, mostly 9876, as "
            "127.0.0.1:9876"
        )


def _require_positive(name: str, value: float) -> None:
    if value <= 0:
        raise ValueError(f"{name} is above 0, not {value}")


def shows(config: type) -> Callable[[F], F]:
    """Return a decorator that shows the fields of `config` in place of `**settings`.

    It changes the signature that `help`, notebooks and the documentation print, and nothing else.
    """

    def shown(function: F) -> F:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        names = {parameter.name for parameter in own}
        settings = [
            inspect.Parameter(
                each.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if each.default is MISSING else each.default,
                annotation=each.type,
            )
            for each in fields(config)
            if each.name not in names
        ]
        printed: Any = function
        printed.__signature__ = signature.replace(parameters=[*own, *settings])
        return function

    return shown
