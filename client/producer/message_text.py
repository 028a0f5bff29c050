"""What of a message is text on the wire, and which compressions its body may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from skylarkmq.client.errors import MessageTooLarge, NotSupported
from skylarkmq.protocol.compression import (
    CompressionKind,
    CompressionUnavailableError,
    compress,
)
from skylarkmq.protocol.message import NO_PROPERTIES, Message
from skylarkmq.protocol.properties import (
    KEYS,
    MAX_PROPERTIES_SIZE,
    NAME_SEPARATOR,
    PROPERTY_SEPARATOR,
    TAGS,
    UNIQ_KEY,
    encode_properties,
)

KINDS: Final = {
    "zlib": CompressionKind.ZLIB,
    "lz4": CompressionKind.LZ4,
    "zstd": CompressionKind.ZSTD,
}

assert (NAME_SEPARATOR, PROPERTY_SEPARATOR) == ("\x01", "\x02"), "written out below"


def require_compression(name: str) -> None:
    """See that the library of a compression is here.

    Raises:
        NotSupported: it is not; the text says what to install.
        ValueError: there is no such compression.
    """
    if name not in KINDS:
        raise ValueError(f"compression is one of {', '.join(KINDS)}, not {name!r}")
    try:
        compress(b"", KINDS[name])
    except CompressionUnavailableError as error:
        raise NotSupported(
            f"compression {name!r} needs a library that is not installed",
            hint=f"pip install 'skylarkmq[{error.extra}]'",
        ) from error


def properties_text(
    message: Message, unique_id: str, added: Mapping[str, str] | None = None
) -> str:
    """Return the text of the message's properties with its id; plain messages without a map.

    What is added never replaces what the message says itself.
    """
    if (
        added is not None
        or message.properties is not NO_PROPERTIES
        or message.delay_level
        or message.delay is not None
        or message.deliver_at is not None
        or message.sharding_key
        or not message.wait_store_ok
    ):
        properties = message.to_properties()
        if added is not None:
            properties = {**added, **properties}
        return f"{UNIQ_KEY}\x01{unique_id}\x02{encode_properties(properties)}"
    text = f"{UNIQ_KEY}\x01{unique_id}"
    if message.tags:
        text = f"{text}\x02{TAGS}\x01{message.tags}"
    if message.keys:
        text = f"{text}\x02{KEYS}\x01{message.keys}"
    return text


def check_properties(text: str) -> None:
    """See that the text fits into a record.

    Raises:
        MessageTooLarge: it does not.
    """
    size = len(text.encode())
    if size > MAX_PROPERTIES_SIZE:
        raise MessageTooLarge(size, MAX_PROPERTIES_SIZE, hint="Its properties are too long")
