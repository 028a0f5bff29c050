"""Dead letters: what one is, how old it is, and the copy that goes back to its first topic.

A copy has the letter's body, keys, tags, user properties, message id and time of birth. What
belongs to the delivery that failed goes: counters of tries, delays, transaction marks, and the name
of the topic, which is its own again. ORIGIN_MESSAGE_ID stays, so a copy can be told from the
message that was sent first. A letter without a message id, as very old clients sent, gets one that
is made of its place, so that its copies can be told too.

Pure. Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/SendMessageProcessor.java
(asyncConsumerSendMsgBack, handleRetryAndDLQ: reconsumeTimes, RETRY_TOPIC, ORIGIN_MESSAGE_ID)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from skylarkmq.client.admin.dead_letters import DROPPED_NAMES
from skylarkmq.client.producer.queue_selector import by_hash
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.compression import COMPRESSION_SHIFT, CompressionKind, compress
from skylarkmq.protocol.compression import compression_flags as flags_of
from skylarkmq.protocol.flags import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    DEFAULT_PRODUCER_GROUP,
    MessageSysFlag,
)
from skylarkmq.protocol.headers.send import SendMessageRequestHeader
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.properties import encode_properties
from skylarkmq.spark.writing.unique_keys import key_of_values

COLUMNS: Final = (
    "brokerName string, queueId int, queueOffset bigint, msgId string, keys string, tags string, "
    "body binary, properties map<string,string>, bornTimestamp timestamp, "
    "storeTimestamp timestamp, reconsumeTimes int, flag int, sysFlag int, storeSize int"
)
"""What is read of each letter, as a schema of the source."""

HOUR_MS: Final = 3_600_000
AGES: Final = (
    (HOUR_MS, "under 1 hour"),
    (24 * HOUR_MS, "under 1 day"),
    (72 * HOUR_MS, "under 3 days"),
    (7 * 24 * HOUR_MS, "under 7 days"),
)
OLDEST: Final = "7 days and more"


class LetterKey(NamedTuple):
    """Which letter: its place, and its id, as a topic that was made anew uses places again."""

    broker_name: str
    queue_id: int
    queue_offset: int
    msg_id: str

    def __str__(self) -> str:
        return f"{self.broker_name}/{self.queue_id}/{self.queue_offset}/{self.msg_id}"


class Letter(NamedTuple):
    """One dead letter, its body opened."""

    key: LetterKey
    body: bytes
    properties: Mapping[str, str]
    born_ms: int
    flag: int
    sys_flag: int
    reconsume_times: int

    @property
    def origin(self) -> str:
        """The topic that it was sent to first, as brokers know it; empty if it does not say."""
        return self.properties.get(names.RETRY_TOPIC, "")


def letter_of(row: Mapping[str, Any]) -> Letter:
    """Return the letter of a row with COLUMNS, its times as ms in `bornMs`."""
    key = LetterKey(row["brokerName"], row["queueId"], row["queueOffset"], row["msgId"] or "")
    return Letter(
        key,
        bytes(row["body"] or b""),
        dict(row["properties"] or {}),
        row["bornMs"],
        row["flag"],
        row["sysFlag"],
        row["reconsumeTimes"],
    )


def copied_properties(letter: Letter) -> dict[str, str]:
    """Return the properties of the copy."""
    left = DROPPED_NAMES | {names.RETRY_TOPIC}
    kept = {name: value for name, value in letter.properties.items() if name not in left}
    kept.setdefault(names.UNIQ_KEY, key_of_values(tuple(letter.key)))
    return kept


def choose_queue(letter: Letter, queues: Sequence[MessageQueue]) -> MessageQueue:
    """Return where the copy goes, of the topic's writable queues, which are not none.

    By its sharding key, as its producer chose; else on the letter's own broker, in turn.
    """
    key = letter.properties.get(names.SHARDING_KEY)
    if key is not None:
        return by_hash(queues, key)
    near = [queue for queue in queues if queue.broker_name == letter.key.broker_name] or queues
    return near[letter.key.queue_offset % len(near)]


def copy_of(letter: Letter, queue: MessageQueue) -> tuple[SendMessageRequestHeader, bytes]:
    """Return the header and the body of the copy's send.

    A body that was compressed is compressed again, since the broker's limit is on what it stores.

    Args:
        queue: as brokers know it.

    Raises:
        CompressionUnavailableError: its compression's library is not installed.
    """
    body, sys_flag = letter.body, 0
    if letter.sys_flag & MessageSysFlag.COMPRESSED_FLAG:
        number = (letter.sys_flag & MessageSysFlag.COMPRESSION_MASK) >> COMPRESSION_SHIFT
        kind = CompressionKind(number) if number else CompressionKind.ZLIB
        # The bits stay as they were: old releases know no number.
        sys_flag = flags_of(kind) if number else MessageSysFlag.COMPRESSED_FLAG
        body = compress(body, kind)
    header = SendMessageRequestHeader(
        producer_group=DEFAULT_PRODUCER_GROUP,
        topic=queue.topic,
        default_topic=AUTO_CREATE_TOPIC_KEY_TOPIC,
        default_topic_queue_nums=1,
        queue_id=queue.queue_id,
        sys_flag=sys_flag,
        born_timestamp=letter.born_ms,
        flag=letter.flag,
        properties=encode_properties(copied_properties(letter)),
        broker_name=queue.broker_name,
    )
    return header, body


def age_of(age_ms: int) -> str:
    """Return the class of an age."""
    return next((name for bound, name in AGES if age_ms < bound), OLDEST)
