"""Fields of a configuration: what a value may be, and the key that a user knows it by.

A configuration is a frozen dataclass whose attributes are RocketMQ's key names in snake_case; the
type of an attribute carries its limits, so that a wrong value is refused wherever it comes from.
It also says what the key does here (`Effect`).
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple, TypeVar

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Limits:
    """The smallest and the largest number that a key takes."""

    low: int
    high: int


@dataclasses.dataclass(frozen=True)
class Effect:
    """What a key does here; a key without this mark counts from the start on.

    Attributes:
        is_live: a change counts while the broker runs.
        is_unused: any value is accepted and changes nothing: what it tunes works otherwise here.
        needs: the values that other keys must have for this one to count; ABOVE_ZERO is any such.
        not_built: the default is the only value that is accepted; what to do instead of another.
    """

    is_live: bool = False
    is_unused: bool = False
    needs: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    not_built: str = ""


ABOVE_ZERO: Final = object()
T = TypeVar("T")
Live = Annotated[T, Effect(is_live=True)]
Unused = Annotated[T, Effect(is_unused=True)]
NotBuilt = Annotated[T, Effect(not_built="it is not supported yet; remove the key")]

Milliseconds = Annotated[int, Limits(0, INT_MAX)]
Interval = Annotated[int, Limits(1, INT_MAX)]  # ms between two runs of something
Bytes = Annotated[int, Limits(1, INT_MAX)]
Count = Annotated[int, Limits(0, INT_MAX)]
Positive = Annotated[int, Limits(1, INT_MAX)]
Percent = Annotated[int, Limits(0, 100)]
Port = Annotated[int, Limits(0, 65535)]
Long = Annotated[int, Limits(0, LONG_MAX)]


HIDDEN: Final = "******"
_SECRET: Final = re.compile(r"password|secret|accesskey|token|credential", re.IGNORECASE)


def is_secret(key: str) -> bool:
    """Return whether the value of a key must not be shown."""
    return _SECRET.search(key.replace("_", "")) is not None


class ConfigError(ValueError):
    """A value that a key cannot take.

    Attributes:
        key: RocketMQ's name of the key.
        value: the refused value as text; stars for one that is secret.
        cure: what to write instead, for a human.
        origin: where the value stands; empty for a default.
    """

    def __init__(self, key: str, value: object, cure: str, origin: str = "") -> None:
        self.key = key
        self.value = HIDDEN if is_secret(key) else str(value)
        super().__init__(f"{key}={self.value}: {cure}" + (f" ({origin})" if origin else ""))
        self.cure = cure
        self.origin = origin


# Keys that hold words of capitals, or are RocketMQ's system properties: the general rule would
# spell them otherwise.
_KEYS: Final = {
    "broker_ip1": "brokerIP1",
    "broker_ip2": "brokerIP2",
    "check_crc_on_recover": "checkCRCOnRecover",
    "tls_server_mode": "tls.server.mode",
    "tls_test_mode_enable": "tls.test.mode.enable",
    "tls_server_cert_path": "tls.server.certPath",
    "tls_server_key_path": "tls.server.keyPath",
    "tls_server_key_password": "tls.server.keyPassword",
    "tls_server_need_client_auth": "tls.server.need.client.auth",
    "tls_server_trust_cert_path": "tls.server.trustCertPath",
    "tls_server_auth_client": "tls.server.authClient",
    "tls_enable": "tls.enable",
    "tls_client_auth_server": "tls.client.authServer",
    "tls_client_trust_cert_path": "tls.client.trustCertPath",
    "tls_client_cert_path": "tls.client.certPath",
    "tls_client_key_path": "tls.client.keyPath",
    "tls_client_key_password": "tls.client.keyPassword",
    "tls_config_file": "tls.config.file",
}


def key_of(attribute: str) -> str:
    """Return the key of an attribute: `flush_disk_type` is `flushDiskType`, and a few others."""
    known = _KEYS.get(attribute)
    return known or re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), attribute)


class Key(NamedTuple):
    """A key of a configuration."""

    attribute: str
    type: Any  # with its limits
    default: Any  # None also where a value must be given
    effect: Effect


_keys: dict[Any, dict[str, Key]] = {}


def keys_of(cls: Any) -> dict[str, Key]:
    """Return the keys of a configuration by their names, in the order of its attributes."""
    if cls in _keys:
        return _keys[cls]
    hints = typing.get_type_hints(cls, include_extras=True)
    keys: dict[str, Key] = {}
    for field in dataclasses.fields(cls):
        wanted, effect = hints[field.name], Effect()
        if typing.get_origin(wanted) is Annotated:
            kind, *marks = typing.get_args(wanted)
            effect = next((mark for mark in marks if isinstance(mark, Effect)), effect)
            limits = [mark for mark in marks if isinstance(mark, Limits)]
            wanted = Annotated[kind, limits[0]] if limits else kind
        if not dataclasses.is_dataclass(wanted):  # a configuration inside of another has its own
            default = None if field.default is dataclasses.MISSING else field.default
            keys[key_of(field.name)] = Key(field.name, wanted, default, effect)
    _keys[cls] = keys
    return keys


def check_value(key: str, wanted: Any, value: object) -> None:
    """Check one value by the limits or words of its type.

    Raises:
        ConfigError: it is outside of them.
    """
    origin = typing.get_origin(wanted)
    if origin is Annotated:
        for limits in typing.get_args(wanted)[1:]:
            if not isinstance(limits, Limits) or not isinstance(value, int):
                continue
            if not limits.low <= value <= limits.high:
                raise ConfigError(key, value, f"use {limits.low} to {limits.high}")
    elif origin is typing.Literal:
        words = typing.get_args(wanted)
        if value not in words:
            raise ConfigError(key, value, f"use one of {', '.join(words)}")
    elif value is not None:
        for member in typing.get_args(wanted):
            check_value(key, member, value)


def check_values(config: Any) -> None:
    """Check every value of a configuration by its type.

    Raises:
        ConfigError: for the first value outside of its limits.
    """
    for name, key in keys_of(type(config)).items():
        check_value(name, key.type, getattr(config, key.attribute))
