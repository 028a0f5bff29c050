"""What a send came to."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.message import MessageQueue


class SendStatus(Enum):
    """How far the broker got; in every case the message is stored on it."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


STORED_CODES: Final[dict[int, SendStatus]] = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}
"""Answers that mean stored; all but the first leave its durability unconfirmed."""


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """A stored message. Immutable."""

    status: SendStatus
    msg_id: str
    """The id the producer gave, property UNIQ_KEY."""
    offset_msg_id: str
    """The broker's id: its address and the place in its log."""
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region_id: str | None = None
    trace_on: bool = True
    unknown_tries: int = 0
    """Earlier tries that ended without an answer; each of them may have stored a copy as well."""
