"""The group's offsets, written back to brokers so that their lag metrics tell the truth."""

from __future__ import annotations

from collections.abc import Mapping

from skylarkmq.client.spark.settings import ConnectionSettings
from skylarkmq.protocol.message import MessageQueue


class OffsetWriteBack:
    """Commits in a thread of its own, best effort; any thread may call."""

    def __init__(self, settings: ConnectionSettings, group: str, interval_s: float = 1.0) -> None:
        """Start nothing yet."""
        raise NotImplementedError

    def put(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Let the group's NEXT offsets be these, soon; returns at once, the newest win."""
        raise NotImplementedError

    def close(self, timeout_s: float = 3.0) -> None:
        """Write what is left, then end the thread."""
        raise NotImplementedError
