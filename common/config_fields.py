"""Fields of a configuration: what a value may be, and the key that a user knows it by.

A configuration is a frozen dataclass whose attributes are RocketMQ's key names in snake_case; the
type of an attribute carries its limits, so that a wrong value is refused wherever it comes from.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from typing import Annotated, Any, Final

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Limits:
    """The smallest and the largest number that a key takes."""

    low: int
    high: int


Milliseconds = Annotated[int, Limits(0, INT_MAX)]
Interval = Annotated[int, Limits(1, INT_MAX)]  # ms between two runs of something
Bytes = Annotated[int, Limits(1, INT_MAX)]
Count = Annotated[int, Limits(0, INT_MAX)]
Positive = Annotated[int, Limits(1, INT_MAX)]
Percent = Annotated[int, Limits(0, 100)]
Port = Annotated[int, Limits(0, 65535)]
Long = Annotated[int, Limits(0, LONG_MAX)]


class ConfigError(ValueError):
    """A value that a key cannot take.

    Attributes:
        key: RocketMQ's name of the key.
        value: the refused value as text.
        cure: what to write instead, for a human.
        origin: where the value stands; empty when nobody said it.
    """

    def __init__(self, key: str, value: object, cure: str, origin: str = "") -> None:
        super().__init__(f"{key}={value}: {cure}" + (f" ({origin})" if origin else ""))
        self.key = key
        self.value = str(value)
        self.cure = cure
        self.origin = origin


# Keys that hold words of capitals, which the general rule would spell otherwise.
_KEYS: Final = {
    "broker_ip1": "brokerIP1",
    "broker_ip2": "brokerIP2",
    "check_crc_on_recover": "checkCRCOnRecover",
}


def key_of(attribute: str) -> str:
    """Return the key of an attribute: `flush_disk_type` is `flushDiskType`."""
    known = _KEYS.get(attribute)
    return known or re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), attribute)


_types: dict[Any, dict[str, Any]] = {}


def types_of(cls: Any) -> dict[str, Any]:
    """Return the types of a configuration's attributes with their limits, in their order."""
    known = _types.get(cls)
    if known is None:
        hints = typing.get_type_hints(cls, include_extras=True)
        known = _types[cls] = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
    return known


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
    for attribute, wanted in types_of(config.__class__).items():
        check_value(key_of(attribute), wanted, getattr(config, attribute))
