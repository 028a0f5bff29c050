"""Names that come in with requests: the one place where processors refuse them.

A group name is checked wherever it enters, because `%RETRY%` and the group become a topic, and a
topic a folder. What is checked here is echoed shortened, so a remark stays small.
Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../topic/TopicValidator.java
"""

from __future__ import annotations

from typing import Final

from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import (
    CID_RMQ_SYS_TRANS_GROUP,
    validate_group,
    validate_producer_group,
    validate_topic,
)

CLIENT_ID_SIZE_MAX: Final = 255
"""Characters of a client id, which the client makes of its address and a name."""


def check_topic(topic: str) -> None:
    """Refuse what cannot be a topic.

    Raises:
        RemoteProtocolError: SYSTEM_ERROR with the reason.
    """
    _refuse(validate_topic(topic))


def check_group(group: str) -> None:
    """Refuse what cannot be a consumer group.

    Raises:
        RemoteProtocolError: SYSTEM_ERROR with the reason.
    """
    _refuse(validate_group(group))


def check_offset_group(group: str) -> None:
    """Refuse what cannot be a consumer group, and those whose offsets are the broker's own.

    Raises:
        RemoteProtocolError: SYSTEM_ERROR or NO_PERMISSION with the reason.
    """
    check_group(group)
    if group == CID_RMQ_SYS_TRANS_GROUP:
        raise RemoteProtocolError(
            ResponseCode.NO_PERMISSION, f"the offsets of {group} are the broker's own"
        )


def check_producer_group(group: str) -> None:
    """Refuse what cannot be a producer group.

    Raises:
        RemoteProtocolError: SYSTEM_ERROR with the reason.
    """
    _refuse(validate_producer_group(group))


def _refuse(why: str | None) -> None:
    if why is not None:
        raise RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why)
