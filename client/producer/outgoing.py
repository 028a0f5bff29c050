"""Encoding of messages: the text of their properties, compression, batches.

A batch is several messages of one topic in one request, stored together or not at all.
Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../message/MessageBatch.java (generateFromList)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from skylarkmq.client.errors import IllegalState, MessageTooLarge, NotSupported
from skylarkmq.client.send_result import SendResult
from skylarkmq.client.wire.api_send import SendRequest
from skylarkmq.common.extras import how_to_install
from skylarkmq.protocol.batch import BatchItem, encode_batch
from skylarkmq.protocol.compression import (
    CompressionKind,
    CompressionUnavailableError,
    compress,
)
from skylarkmq.protocol.flags import is_retry_topic
from skylarkmq.protocol.message import NO_PROPERTIES, Message
from skylarkmq.protocol.message_id import BATCH_ID_SEPARATOR
from skylarkmq.protocol.properties import (
    KEYS,
    MAX_PROPERTIES_SIZE,
    NAME_SEPARATOR,
    PROPERTY_SEPARATOR,
    TAGS,
    UNIQ_KEY,
    WAIT,
    encode_properties,
)

KINDS: Final = {
    "zlib": CompressionKind.ZLIB,
    "lz4": CompressionKind.LZ4,
    "zstd": CompressionKind.ZSTD,
}
assert (NAME_SEPARATOR, PROPERTY_SEPARATOR) == ("\x01", "\x02"), "written out below"
_ID_FRONT: Final = f"{UNIQ_KEY}\x01"
_TAGS_FRONT: Final = f"\x02{TAGS}\x01"
_KEYS_FRONT: Final = f"\x02{KEYS}\x01"


def require_compression(name: str) -> None:
    """Check that the library of a compression is installed.

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
            hint=how_to_install(error.extra),
        ) from error


def properties_text(
    message: Message, unique_id: str, added: Mapping[str, str] | None = None
) -> str:
    """Return the text of the message's properties with its id; plain messages without a map.

    A property of the message wins over an added one of the same name.
    """
    if (
        added is not None
        or message.properties is not NO_PROPERTIES
        or message.delay_level
        or message.delay is not None
        or message.deliver_at is not None
        or message.sharding_key
        or message.priority is not None
        or not message.wait_store_ok
    ):
        properties = message.to_properties()
        if added is not None:
            properties = {**added, **properties}
        return f"{_ID_FRONT}{unique_id}\x02{encode_properties(properties)}"
    tags = message.tags
    text = f"{_ID_FRONT}{unique_id}{_TAGS_FRONT}{tags}" if tags else _ID_FRONT + unique_id
    return f"{text}{_KEYS_FRONT}{message.keys}" if message.keys else text


def check_properties(text: str) -> None:
    """Check that the text of the properties fits into a record.

    Raises:
        MessageTooLarge: it does not.
    """
    size = len(text.encode())
    if size > MAX_PROPERTIES_SIZE:
        raise MessageTooLarge(size, MAX_PROPERTIES_SIZE, hint="Its properties are too long")


def check_batch(messages: Sequence[Message]) -> None:
    """Check that the messages may be one batch.

    Raises:
        IllegalState: they may not.
    """
    if not messages:
        raise IllegalState("a batch holds at least one message")
    first = messages[0]
    for message in messages:
        if message.topic != first.topic:
            raise IllegalState(f"a batch has one topic, not {first.topic} and {message.topic}")
        if message.wait_store_ok != first.wait_store_ok:
            raise IllegalState("all messages of a batch have the same wait_store_ok")
        if is_delayed(message):
            raise IllegalState("a batch holds no delayed messages")
        if message.priority is not None:
            raise IllegalState(
                "a batch goes to one queue, and a priority chooses it",
                hint="send_many sends messages with a priority one by one",
            )
    if is_retry_topic(first.topic):
        raise IllegalState("retry topics take no batches")


def common_key(messages: Sequence[Message]) -> str | None:
    """Return the sharding key that decides the queue of all the messages, if one does.

    Raises:
        IllegalState: they have several sharding keys, so some would leave the order of theirs.
    """
    keys = {message.sharding_key for message in messages} - {None}
    if len(keys) > 1:
        raise IllegalState(
            "a batch goes to one queue, and its messages have several sharding keys",
            hint="send_many makes a batch for each queue",
        )
    return keys.pop() if keys else None


def is_delayed(message: Message) -> bool:
    """Return whether the message waits on the broker, by level or by time."""
    return bool(message.delay_level) or message.is_timed


def batch_item(message: Message, unique_id: str, added: Mapping[str, str]) -> BatchItem:
    """Return the message's part of a batch.

    Raises:
        MessageTooLarge: its properties do not fit into a record.
    """
    item = BatchItem.of(message, {**added, UNIQ_KEY: unique_id})
    if len(item.properties) > MAX_PROPERTIES_SIZE:
        raise MessageTooLarge(
            len(item.properties), MAX_PROPERTIES_SIZE, hint="Its properties are too long"
        )
    return item


def batch_request(
    topic: str,
    items: Sequence[BatchItem],
    ids: Sequence[str],
    now_ms: int,
    max_size: int,
    *,
    wait_store_ok: bool,
) -> SendRequest:
    """Return the request that sends `items` as one batch; bodies stay uncompressed.

    Args:
        topic: as brokers know it.
        max_size: bound of the whole batch body, bytes.

    Raises:
        MessageTooLarge: together they exceed `max_size`.
    """
    body = encode_batch(items)
    if len(body) > max_size:
        raise MessageTooLarge(len(body), max_size, hint="Send the messages in several batches")
    properties = {} if wait_store_ok else {WAIT: "false"}
    return SendRequest(
        topic,
        body,
        encode_properties(properties),
        BATCH_ID_SEPARATOR.join(ids),
        now_ms,
        batch=True,
        ids=tuple(ids),
    )


def batch_results(result: SendResult, ids: Sequence[str]) -> list[SendResult]:
    """Return one result for each message of a batch, from the one that the broker gave for all.

    A broker that has stored some of them before, in a topic with a deduplication window, tells no
    queue offset where they do not follow each other.

    Args:
        ids: of the messages, as the batch's request has them.
    """
    offset_ids = result.offset_msg_id.split(BATCH_ID_SEPARATOR)
    offset_ids += [""] * (len(ids) - len(offset_ids))
    return [
        SendResult(
            result.status,
            unique_id,
            offset_ids[index],
            result.queue,
            result.queue_offset + index if result.queue_offset >= 0 else -1,
            result.transaction_id,
            result.region_id,
            result.trace_on,
            result.unknown_tries,
        )
        for index, unique_id in enumerate(ids)
    ]
