"""What a pull came to."""

from __future__ import annotations

from dataclasses import dataclass

from skylarkmq.client.wire.api_pull import PullStatus


@dataclass(frozen=True, slots=True)
class Pulled:
    """One answer to a pull. All offsets are queue offsets."""

    status: PullStatus
    records: bytes
    """As stored, back to back; empty unless FOUND."""
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    """Which broker of the set to ask next: 0 the master, another one when the master is busy with
    messages that are no longer in its memory."""
    remark: str = ""
    """The store's own name for the outcome, `MESSAGE_WAS_REMOVING`."""
