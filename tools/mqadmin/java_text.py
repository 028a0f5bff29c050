"""Texts as Java prints them: times in the machine's zone, maps, bytes, objects.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../common/UtilAll.java, the toString() of
message/MessageExt.java, Message.java, TopicConfig.java and SubscriptionGroupConfig.java
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, cast

import click

from skylarkmq.client.admin import GroupSettings, TopicSettings
from skylarkmq.client.message_view import StoredMessage
from skylarkmq.protocol.message import MessageQueue

TIME_FORM: Final = "yyyy-MM-dd#HH:mm:ss:SSS"
SIGN_BIT: Final = 0x80


def java(value: object) -> str:
    """Return a value as `%s` prints it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        rows = cast("Mapping[object, object]", value)
        return "{" + ", ".join(f"{name}={java(item)}" for name, item in rows.items()) + "}"
    if isinstance(value, bytes):
        signed = (byte - ((byte & SIGN_BIT) << 1) for byte in value)
        return "[" + ", ".join(map(str, signed)) + "]"
    return str(value)


def seconds_text(when: datetime | None) -> str:
    """Return a time to the second, in the machine's zone."""
    return "" if when is None else f"{when.astimezone():%Y-%m-%d %H:%M:%S}"


def millis_text(when: datetime | None) -> str:
    """Return a time to the millisecond, in the machine's zone."""
    if when is None:
        return ""
    return f"{seconds_text(when)},{when.microsecond // 1000:03d}"


def parsed_time(text: str) -> datetime:
    """Return a time that is given in ms since the epoch, or in TIME_FORM in the machine's zone.

    Raises:
        click.UsageError: neither.
    """
    try:
        if text.lstrip("-").isdigit():
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        return datetime.strptime(text, "%Y-%m-%d#%H:%M:%S:%f").astimezone()
    except (ValueError, OverflowError, OSError) as error:
        raise click.UsageError(
            f"{text!r} is no time: use ms since the epoch or {TIME_FORM}"
        ) from error


def queue_text(queue: MessageQueue) -> str:
    """Return a queue."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


def message_text(message: StoredMessage) -> str:
    """Return a message with all that is stored of it."""
    stored = message.stored
    parts = {
        "brokerName": message.queue.broker_name,
        "queueId": stored.queue_id,
        "storeSize": stored.store_size,
        "queueOffset": stored.queue_offset,
        "sysFlag": stored.sys_flag,
        "bornTimestamp": stored.born_timestamp,
        "bornHost": f"/{stored.born_host}",
        "storeTimestamp": stored.store_timestamp,
        "storeHost": f"/{stored.store_host}",
        "msgId": message.offset_msg_id,
        "commitLogOffset": stored.physical_offset,
        "bodyCRC": stored.body_crc,
        "reconsumeTimes": stored.reconsume_times,
        "preparedTransactionOffset": stored.prepared_transaction_offset,
    }
    inner = (
        f"Message{{topic='{message.topic}', flag={stored.flag}, "
        f"properties={java(stored.properties)}, body={java(message.body)}, transactionId='null'}}"
    )
    listed = ", ".join(f"{name}={value}" for name, value in parts.items())
    return f"MessageExt [{listed}, toString()={inner}]"


def perm_text(letters: str) -> str:
    """Return a permission: R, W and X, or - in their places."""
    return "".join(letter.upper() if letter in letters else "-" for letter in "rwx")


def topic_text(topic: str, settings: TopicSettings) -> str:
    """Return the settings of a topic."""
    return (
        f"TopicConfig [topicName={topic}, readQueueNums={settings.read_queues}, "
        f"writeQueueNums={settings.write_queues}, perm={perm_text(settings.perm)}, "
        f"topicFilterType={settings.filter_type}, topicSysFlag={settings.sys_flag}, "
        f"order={java(settings.order)}]"
    )


def group_fields(group: str, settings: GroupSettings) -> dict[str, str]:
    """Return the settings of a group by RocketMQ's names, in its order."""
    fields = {
        "groupName": group,
        "consumeEnable": settings.consume_enabled,
        "consumeFromMinEnable": settings.from_min_enabled,
        "consumeBroadcastEnable": settings.broadcast_enabled,
        "retryQueueNums": settings.retry_queues,
        "retryMaxTimes": settings.max_retries,
        "brokerId": settings.broker_id,
        "whichBrokerWhenConsumeSlowly": settings.broker_id_when_slow,
        "notifyConsumerIdsChangedEnable": settings.notify_members,
    }
    return {name: java(value) for name, value in fields.items()}


def group_text(group: str, settings: GroupSettings) -> str:
    """Return the settings of a group."""
    listed = ", ".join(f"{name}={value}" for name, value in group_fields(group, settings).items())
    return f"SubscriptionGroupConfig [{listed}]"
