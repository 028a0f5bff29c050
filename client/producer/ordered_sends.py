"""Strict order: sends stand in a line for their queue, and the first one alone is under way.

Loop thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skylarkmq.protocol.message import MessageQueue

if TYPE_CHECKING:
    from skylarkmq.client.producer.send_pipeline import Send


class OrderedSends:
    """The sends of one producer, queue by queue in the order of the calls."""

    def __init__(self) -> None:
        self._lines: dict[MessageQueue, dict[Send, None]] = {}

    def is_first(self, send: Send, queue: MessageQueue) -> bool:
        """Put the send at the end of the queue's line if it is not in it; True when it may go."""
        line = self._lines.setdefault(queue, {})
        line.setdefault(send)
        return next(iter(line)) is send

    def has_before(self, send: Send) -> bool:
        """Return whether the send stands in a line and is not the first."""
        line = None if send.queue is None else self._lines.get(send.queue)
        return line is not None and send in line and next(iter(line)) is not send

    def leave(self, send: Send) -> Send | None:
        """Take the send out of its line; return the one whose turn it is now, if it was first."""
        line = None if send.queue is None else self._lines.get(send.queue)
        if line is None or send not in line:
            return None
        was_first = next(iter(line)) is send
        del line[send]
        if not line:
            assert send.queue is not None
            del self._lines[send.queue]
        return next(iter(line), None) if was_first else None
