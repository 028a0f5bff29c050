"""Attributes of a topic: names and values beside its queues and permissions, as of RocketMQ 5.

They stand in `topics.json` as a map, which 4.9 brokers pass over when they read the file, and leave
out when they write it. The request that changes a topic (17) carries changes as text,

    +name=value,-name

where `+` sets and `-` takes away. What is not named stays as it is. Names that are not known are
refused, as by RocketMQ 5's brokers; 4.9's pass over the text.

RocketMQ 5's that count here:

    message.type   what clients of RocketMQ 5 may send: NORMAL, FIFO, DELAY, TRANSACTION, each of
                   these (MIXED), or PRIORITY, which also says that a queue is a level of priority

Ours, both or neither:

    skylarkmq.deduplication.seconds   how long a unique key is known
    skylarkmq.deduplication.keys      how many are known at most

Source: apache/rocketmq@rocketmq-all-5.3.3 common/.../attribute/AttributeParser.java,
AttributeUtil.java (alterCurrentAttributes), TopicMessageType.java, common/.../TopicConfig.java,
TopicAttributes.java
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

DEDUPLICATION_SECONDS: Final = "skylarkmq.deduplication.seconds"
DEDUPLICATION_KEYS: Final = "skylarkmq.deduplication.keys"
MESSAGE_TYPE: Final = "message.type"
MessageType = Literal["NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY"]
MESSAGE_TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")
ANY_MESSAGE_TYPE: Final = "MIXED"
PRIORITY_TYPE: Final = "PRIORITY"
"""Not part of MIXED: where queues are no levels, a priority would say nothing."""
_NAMES: Final = frozenset({DEDUPLICATION_SECONDS, DEDUPLICATION_KEYS, MESSAGE_TYPE})
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
    """Return the attributes after a request's changes.

    Raises:
        WrongAttributeError: the text is no list of changes, a name is not known, or a value is
            wrong.
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
        else:
            raise WrongAttributeError(
                f"unsupported attribute {name[:64]!a}: a topic has {', '.join(sorted(_NAMES))}"
            )
    deduplication_of(attributes)
    kind = attributes.get(MESSAGE_TYPE, ANY_MESSAGE_TYPE)
    if kind not in (*MESSAGE_TYPES, ANY_MESSAGE_TYPE, PRIORITY_TYPE, "UNSPECIFIED"):
        raise WrongAttributeError(
            f"{MESSAGE_TYPE}={kind[:32]!a}: one of {', '.join(MESSAGE_TYPES)}, "
            f"{ANY_MESSAGE_TYPE} and {PRIORITY_TYPE} is allowed"
        )
    return attributes


def message_types_of(attributes: Mapping[str, str]) -> tuple[str, ...]:
    """Return the types that clients of RocketMQ 5 may send to a topic.

    Unlike RocketMQ, where a topic that names none takes normal messages alone, it takes all of
    them: a topic of a 4.9 broker may hold anything.
    """
    kind = attributes.get(MESSAGE_TYPE)
    return (kind,) if kind in (*MESSAGE_TYPES, PRIORITY_TYPE) else MESSAGE_TYPES


def has_priorities(attributes: Mapping[str, str]) -> bool:
    """Return whether a topic's queues are levels of priority, the last one the highest."""
    return attributes.get(MESSAGE_TYPE) == PRIORITY_TYPE


def message_type_change(kind: MessageType) -> str:
    """Return the change that has a topic take messages of a type, or of any."""
    return f"+{MESSAGE_TYPE}={kind}"


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
