"""Receipt handles: which delivery of which message a client acknowledges.

    text  = s1.<kind>.<queue id>.<queue offset>.<serial>.<CRC-32, 8 hex digits>.<broker name>

The CRC is of all the rest. A handle is one delivery. A message that comes again has another serial,
so an old handle never ends a newer delivery. When a delivery ends is the broker's to know and
stands in no handle. Which broker that is does, for clients of an endpoint that has several.

Unlike RocketMQ, whose handles carry the time and place of a checkpoint message.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from zlib import crc32

MAIN: Final = 0
"""A message of the topic itself."""
RETRY: Final = 1
"""A message of `%RETRY%group_topic`, where deliveries that were not acknowledged go."""
OLD_RETRY: Final = 2
"""A message of `%RETRY%group`, where consumers of the 4.x protocol have given it back."""
PLUS_RETRY: Final = 3
"""A message of `%RETRY%group+topic`, which is RETRY by RocketMQ 5's newer name."""

HANDLE_SIZE_MAX: Final = 1024

_TEXT: Final = re.compile(
    r"(s1\.([0123])\.(\d{1,10})\.(\d{1,19})\.(\d{1,19}))\.([0-9a-f]{8})\.(.+)", re.ASCII | re.DOTALL
)


class Receipt(NamedTuple):
    """One delivery of one message of a group and a topic.

    `kind` is one of the above; `serial` is the time of the delivery in ms since the epoch,
    made greater than every earlier one of this broker.
    """

    kind: int
    queue_id: int
    offset: int
    serial: int

    def to_text(self, broker_name: str) -> str:
        """Return the handle as clients get it."""
        kind, queue_id, offset, serial = self
        text = f"s1.{kind}.{queue_id}.{offset}.{serial}"
        return f"{text}.{_checksum(text, broker_name):08x}.{broker_name}"


def parse(text: str) -> tuple[Receipt, str]:
    """Return what a handle says, and the name of its broker.

    Raises:
        ValueError: no broker made such a handle.
    """
    found = _TEXT.fullmatch(text) if len(text) <= HANDLE_SIZE_MAX else None
    if found is None or int(found[6], 16) != _checksum(found[1], found[7]):
        raise ValueError(f"no receipt handle: {text[:64]!a}")
    return Receipt(int(found[2]), int(found[3]), int(found[4]), int(found[5])), found[7]


def _checksum(text: str, broker_name: str) -> int:
    return crc32(broker_name.encode("utf-8", "surrogatepass"), crc32(text.encode()))
