"""Attributes of a topic: names and values beside its queues and permissions, as of RocketMQ 5.

They stand in `topics.json` as a map, which 4.9 brokers pass over when they read the file, and leave
out when they write it. The request that changes a topic (17) carries changes as text,

    +name=value,-name

where `+` sets and `-` takes away. What is not named stays as it is. RocketMQ 5's brokers refuse
names that they do not know, 4.9's pass over the text.

Ours, both or neither:

    skylarkmq.deduplication.seconds   how long a unique key is known
    skylarkmq.deduplication.keys      how many are known at most

Source: apache/rocketmq@rocketmq-all-5.3.3 common/.../attribute/AttributeParser.java,
AttributeUtil.java (alterCurrentAttributes), common/.../TopicConfig.java
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

DEDUPLICATION_SECONDS: Final = "skylarkmq.deduplication.seconds"
DEDUPLICATION_KEYS: Final = "skylarkmq.deduplication.keys"
_NAMES: Final = frozenset({DEDUPLICATION_SECONDS, DEDUPLICATION_KEYS})
SECONDS_MAX: Final = 7 * 86_400
KEYS_MAX: Final = 10_000_000


class WrongAttributeError(ValueError):
    """A text of changes that is none, or a value that its attribute does not take."""


class DeduplicationWindow(NamedTuple):
    """For how long a topic does not store a message of the same unique key again.

    Attributes:
        seconds: since the first copy was stored, at most a week.
        keys: that are remembered at most; each takes up to 200 bytes of the broker's memory.
    """

    seconds: int
    keys: int = 100_000


def changed_attributes(current: Mapping[str, str], changes: str) -> dict[str, str]:
    """Return the attributes after a request's changes; those of others that are new are left out.

    Raises:
        WrongAttributeError: the text is no list of changes, or a value of ours is wrong.
    """
    attributes = dict(current)
    for change in changes.split(","):
        if not change:
            continue
        sign, (name, separator, value) = change[0], change[1:].partition("=")
        if sign not in "+-" or not name or (sign == "+") != bool(separator and value):
            raise WrongAttributeError(
                f"attributes {changes[:64]!a}: write +name=value or -name, several with commas"
            )
        if sign == "-":
            attributes.pop(name, None)
        elif name in _NAMES or name in current:
            attributes[name] = value
    deduplication_of(attributes)
    return attributes


def deduplication_of(attributes: Mapping[str, str]) -> DeduplicationWindow | None:
    """Return the window of a topic with these attributes; None: it has none.

    Raises:
        WrongAttributeError: they are no window.
    """
    seconds, keys = attributes.get(DEDUPLICATION_SECONDS), attributes.get(DEDUPLICATION_KEYS)
    if seconds is None and keys is None:
        return None
    if seconds is None or keys is None:
        raise WrongAttributeError(
            f"a deduplication window has both {DEDUPLICATION_SECONDS} and {DEDUPLICATION_KEYS}"
        )
    return DeduplicationWindow(
        _number(DEDUPLICATION_SECONDS, seconds, SECONDS_MAX),
        _number(DEDUPLICATION_KEYS, keys, KEYS_MAX),
    )


def deduplication_changes(window: DeduplicationWindow | None) -> str:
    """Return the changes that give a topic a window, or take it away."""
    if window is None:
        return f"-{DEDUPLICATION_SECONDS},-{DEDUPLICATION_KEYS}"
    return f"+{DEDUPLICATION_SECONDS}={window.seconds},+{DEDUPLICATION_KEYS}={window.keys}"


def _number(name: str, text: str, limit: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= limit):
        raise WrongAttributeError(f"{name}={text[:32]!a} is out of range: 1 to {limit} are allowed")
    return int(text)
