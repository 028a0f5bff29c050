"""A batch: several messages of one topic in one request, stored together or not at all.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../message/MessageBatch.java (generateFromList)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from skylarkmq.client.errors import IllegalState, MessageTooLarge
from skylarkmq.client.producer.send_result import SendResult
from skylarkmq.client.wire.api_send import SendRequest
from skylarkmq.protocol.batch import BatchItem, encode_batch
from skylarkmq.protocol.flags import is_retry_topic
from skylarkmq.protocol.message import Message
from skylarkmq.protocol.message_id import BATCH_ID_SEPARATOR
from skylarkmq.protocol.properties import MAX_PROPERTIES_SIZE, UNIQ_KEY, WAIT, encode_properties


def check_batch(messages: Sequence[Message]) -> None:
    """See that the messages may stand in one batch.

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
    )


def batch_results(result: SendResult) -> list[SendResult]:
    """Return one result for each message of a batch, from the one that the broker gave for all."""
    ids = result.msg_id.split(BATCH_ID_SEPARATOR)
    offset_ids = result.offset_msg_id.split(BATCH_ID_SEPARATOR)
    offset_ids += [""] * (len(ids) - len(offset_ids))
    return [
        SendResult(
            result.status,
            unique_id,
            offset_ids[index],
            result.queue,
            result.queue_offset + index,
            result.transaction_id,
            result.region_id,
            result.trace_on,
            result.unknown_tries,
        )
        for index, unique_id in enumerate(ids)
    ]
